package lease

import (
	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// decideLocally decides the request if that needs no call. If it needs one, decideLocally returns false, and has
// changed nothing but d.
//
// Nearly all requests are admitted here, by the first loop and the second: all counters of the request come first among
// the owner's, in the order of the request's limits, and each has the units. The first loop need not check the limits.
// A tier that is equal to a counter's is of a limit that was checked when the counter was added; and units are leased
// only of limits that may be leased.
func (o *ownerLeases) decideLocally(req *limit.Request, now clock.Instant, d *limit.Decision) bool {
	t, n := o.shard.clock.At(now), 0
	for i := range req.Charges {
		charge := &req.Charges[i]
		if charge.Limit == nil || len(charge.Limit.Tiers) == 0 || len(charge.Limit.Tiers) > len(o.counters)-n {
			return o.decideInAnyOrder(req, t, d)
		}
		for j := range charge.Limit.Tiers {
			tier, c := &charge.Limit.Tiers[j], o.counters[n]
			if c.tier != tier || c.value != charge.Value || c.spendable(t) < charge.Cost ||
				charge.Cost < 1 || charge.Cost > tier.Capacity() {
				return o.decideInAnyOrder(req, t, d)
			}
			n++
		}
	}
	o.shard.stats.Local++
	e := d.BeginLeased(req, t+o.storeOffset, o.nextID())
	e.Expect(n)
	n = 0
	for i := range req.Charges {
		charge := &req.Charges[i]
		for range charge.Limit.Tiers {
			c := o.counters[n]
			e.SpendLeftover(n, i, &c.lease)
			if c.ramp.locked > 0 {
				c.noteMore(e, n, t)
			}
			c.demand.addRequest(t, charge.Cost)
			n++
		}
	}
	return true
}

// decideInAnyOrder is decideLocally for all other requests: those that are denied, and those whose counters are in
// another order.
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
			if c == nil || c.tier != &charge.Limit.Tiers[j] || !o.shard.store.mayLease(charge.Limit) ||
				!c.lease.Known() {
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

// decideCost returns 0 if the lease admits the cost, and otherwise the time by the store's clock until which the cost
// is denied. known is false if only the store can tell; retryAt means nothing then.
func (c *counter) decideCost(cost, t, storeOffset int64) (retryAt int64, known bool) {
	if c.spendable(t) >= cost {
		return 0, true
	}
	if at := c.spendableAt(t, cost); at > t {
		c.promisedAt = max(c.promisedAt, at)
		return at + storeOffset, true
	}
	if !c.denial.covers(cost, t) {
		return 0, false
	}
	retryAt = max(c.denial.storeUntil, t+storeOffset+1)
	if cost > c.denial.cost {
		if leasesEntries(c.tier) { // only the store has the entries, which say when so many units leave
			return 0, false
		}
		retryAt = max(retryAt, c.lease.FitsAt(cost))
	}
	return retryAt, true
}

// noteMore notes in result i when a unit can be spent, if the lease has units, and none of them now.
func (c *counter) noteMore(e *limit.Evaluation, i int, t int64) {
	if c.lease.Units > 0 && c.spendable(t) == 0 {
		e.MoreFrom(i, c.fitsAt(t, 1, 1, e.Now))
	}
}

// fitsAt returns when the counter admits a cost of which the request lacks some units, by the store's clock: when the
// ramp of the lease has them free, or when the store has room for the cost.
func (c *counter) fitsAt(t, cost, lacks, storeNow int64) int64 {
	if at := c.spendableAt(t, lacks); at > t {
		c.promisedAt = max(c.promisedAt, at)
		return storeNow + at - t
	}
	const least = 1000 // µs; a retry at once would find the same lease
	return max(c.lease.FitsAt(cost), storeNow+least)
}

// spendLocally completes the decision of decideInAnyOrder: it takes the units off the leases of the counters,
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
			c.noteMore(d.Revise(), i, t)
		} else if r := &d.Results[i]; !r.Admits && !r.Shadow() && c.denial.covers(cost, t) {
			c.denial.localDenied++
		}
	}
}
