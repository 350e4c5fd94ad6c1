package lease

import (
	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// decideLocally decides the request if that needs no call. If it needs one, decideLocally returns false and changes
// nothing.
//
// It is the path of nearly all requests, and expects the owner's counters in the order of the request's limits.
func (o *ownerLeases) decideLocally(req *limit.Request, now clock.Instant, d *limit.Decision) bool {
	s, t := o.shard.store, o.shard.clock.At(now)
	e := d.BeginLeased(req, t+o.storeOffset, limit.ReceiptID{})
	n, unknown := 0, false
	for i := range req.Charges {
		charge := &req.Charges[i]
		l := charge.Limit
		if l == nil || !s.mayLease(l) || l.Mode == limit.Off || len(l.Tiers) == 0 ||
			charge.Cost < 1 || charge.Cost > limit.MaxUnits {
			return false
		}
		for j := range l.Tiers {
			if n >= len(o.counters) {
				return false
			}
			c := o.counters[n]
			if c.tier != &l.Tiers[j] || c.value != charge.Value {
				return o.decideInAnyOrder(req, t, d)
			}
			if !c.lease.Known() {
				return false
			}
			retryAt, known := c.decideCost(charge.Cost, t, o.storeOffset)
			unknown = unknown || !known
			e.FromLeftover(i, &c.lease, retryAt)
			n++
		}
	}
	if unknown && d.Allowed {
		return false
	}
	o.spendLocally(t, d, o.counters)
	return true
}

// decideInAnyOrder is decideLocally for counters that are not in the order of the request's limits.
func (o *ownerLeases) decideInAnyOrder(req *limit.Request, t int64, d *limit.Decision) bool {
	if req.Check() != nil {
		return false
	}
	e := d.BeginLeased(req, t+o.storeOffset, limit.ReceiptID{})
	var array [16]*counter // keeps the counters of most requests off the heap
	counters, unknown := array[:0], false
	for i := range req.Charges {
		charge := &req.Charges[i]
		for j := range charge.Limit.Tiers {
			c := o.findCounter(&charge.Limit.Tiers[j], charge.Value, len(counters))
			if c == nil || c.tier != &charge.Limit.Tiers[j] || !o.shard.store.mayLease(charge.Limit) || !c.lease.Known() {
				return false
			}
			retryAt, known := c.decideCost(charge.Cost, t, o.storeOffset)
			unknown = unknown || !known
			e.FromLeftover(i, &c.lease, retryAt)
			counters = append(counters, c)
		}
	}
	if unknown && d.Allowed {
		return false
	}
	o.spendLocally(t, d, counters)
	return true
}

// decideCost returns whether the lease admits the cost (0), or until when the cost is denied by the store's clock.
// known is false if only the store can tell.
func (c *counter) decideCost(cost, t, storeOffset int64) (retryAt int64, known bool) {
	if c.spendable(t) >= cost {
		return 0, true
	}
	if at := c.spendableAt(t, cost); at > t {
		return at + storeOffset, true
	}
	if c.denial.covers(cost, t) {
		return max(c.denial.storeUntil, t+storeOffset+1), true
	}
	return 0, false
}

// spendLocally completes a decision that was made without a call: it takes the units off the leases of the counters,
// which are in the order of the results.
func (o *ownerLeases) spendLocally(t int64, d *limit.Decision, counters []*counter) {
	o.shard.stats.Local++
	if d.Allowed {
		d.ID = o.nextID()
	} else {
		o.shard.stats.Denied++
	}
	for i := range d.Results {
		c, cost := counters[i], d.Results[i].Cost
		c.demand.addRequest(t, cost)
		if d.Charges(i) {
			c.lease.Units -= d.Revise().ChargeLeftover(i)
		} else if r := &d.Results[i]; !r.Admits && !r.Shadow() && c.denial.covers(cost, t) {
			c.denial.localDenied++
		}
	}
}
