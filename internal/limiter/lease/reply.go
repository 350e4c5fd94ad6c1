package lease

import (
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// putBackReserved puts the reserved units back after a call that failed. The units that the call was to give back may
// have arrived: they are lost.
func (c *call) putBackReserved(t int64) {
	stats := &c.owner.shard.stats
	for i := range c.tiers {
		tc := &c.tiers[i]
		tc.putBack(stats, tc.reserved, t)
		stats.Lost += tc.returned
	}
}

// storeReply keeps what the reply, at t, grants and says of each counter, and counts what there is for the request.
// Leases are counted from sent.
func (c *call) storeReply(sent, t int64) {
	c.owner.storeOffset = c.reply.Now - sent
	for i := range c.tiers {
		c.storeResult(i, sent, t)
	}
}

func (c *call) storeResult(i int, sent, t int64) {
	tc, r, grant, stats := &c.tiers[i], &c.reply.Results[i], c.reply.Lease(i), &c.owner.shard.stats
	counter, charged := tc.counter, c.reply.Charges(i)
	tc.noteReturned(stats, charged)
	tc.countAvailable(stats, t, charged, grant.At, c.leaseRequest(i).Largest() > 0)
	if r.Unasked && counter.lease.Known() { // the store has not looked at the counter
		return
	}
	if homeMoved(counter.tier, tc.tier) {
		stats.Lost += grant.Units
		return
	}
	c.updateLease(i, sent, t)
	isSame := sameLimit(counter.tier, tc.tier)
	if counter.lease.Rebind(counter.tier); !isSame { // a new plan came during the call: the next call returns the lease
		counter.until = min(counter.until, t)
	}
	if tc.mayLease {
		counter.supply.noteAnswer(c.owner.owner, t, c.reply.Now, r, c.reply.Leased(i), max(tc.need, 1))
		c.owner.noteScarcity(counter, t)
	}
	if tc.mayLease && isSame && !r.Never {
		c.updateDenial(i, t)
	}
}

// noteReturned accounts for the units that the call gave back. They have arrived if the store charged the tier.
func (tc *tierCall) noteReturned(stats *Stats, arrived bool) {
	counter := tc.counter
	tc.refusedReturns = tc.returned > 0 && !arrived
	switch {
	case tc.returned == 0:
	case arrived:
		stats.Returned += tc.returned
	case counter.lease.Units == 0 && counter.lease.At == tc.leaseAt && counter.until == tc.leaseUntil &&
		!homeMoved(counter.tier, tc.tier):
		counter.lease.Units = tc.returned // the denial changed nothing: the next call returns them
	default: // another lease or home cell came meanwhile: the next call would not return them where they were charged
		stats.Lost += tc.returned
	}
}

// countAvailable counts what there is for the request: what was reserved, if the window that counts it is still open,
// and what the store has charged, which is counted at the time at. asksLease is whether the call asked for a lease of
// the tier.
func (tc *tierCall) countAvailable(stats *Stats, t int64, charged bool, at int64, asksLease bool) {
	tc.available = tc.reserved
	// All units of one request must be counted in one window, slot or entry, because its receipt names only one.
	if tc.reserved > 0 && (t >= tc.leaseUntil || tc.need > 0 && at != 0 && at != tc.leaseAt) {
		stats.Lost += tc.reserved
		tc.available = 0
	}
	if !charged {
		return
	}
	tc.charged, tc.chargedAt = tc.need, at
	tc.available += tc.charged
	if tc.tier.Leasing().Apart && !asksLease {
		tc.chargedAt = 0
	}
}

// updateLease makes what result i says and grants the counter's lease. If nothing is granted, the lease stays as it is.
func (c *call) updateLease(i int, sent, t int64) {
	tc, grant, stats := &c.tiers[i], c.reply.Lease(i), &c.owner.shard.stats
	counter := tc.counter
	said, before := tc.leftover(&c.reply, i), counter.lease
	if counter.lease = said; grant.At == 0 || !tc.mayLease || grant.Units == 0 && before.Units > 0 {
		counter.lease.Keep(before.Units, before.At)
		return
	}
	units, locked := int64(0), int64(0) // of the lease before, which the grant is added to
	switch {
	case before.Units == 0:
	case t < counter.until && before.At == grant.At:
		units, locked = before.Units, counter.ramp.lockedAt(t)
	default:
		stats.Lost += before.Units
	}
	life := min(grant.Until-c.reply.Now, c.store.lifeOf(counter))
	life -= life / driftPart
	if sent+life <= t { // the lease ended before the reply arrived
		stats.Lost += grant.Units
		grant.Units, grant.Upfront = 0, 0
	}
	counter.lease.Keep(units+grant.Units, grant.At)
	if units == 0 {
		counter.until = t // of the lease before; max, below, must not keep it
	}
	if grant.Units == 0 {
		return
	}
	counter.until = max(counter.until, sent+life)
	// The store began the ramp before the reply arrived. All ramps of a counter end together, with the slot.
	r := &counter.ramp
	r.locked, r.from, r.to = locked+grant.Units-grant.Upfront, t, max(t+grant.Until-c.reply.Now, t+1)
	if r.locked > 0 {
		step := tc.tier.Leasing().Step
		r.from, r.to = r.from+step, r.to+step
	}
}

// driftPart is which part of its life a lease ends early: a thousandth. NTP corrects a clock by at most 500 parts per
// million, so two clocks drift apart by at most a thousandth.
const driftPart = 1000

// leftover returns what the store said of result i. A store that denies has evaluated the result without the units that
// the call was to give back, and still counts them. They are leased here as before, so they are taken off what remains
// in the store.
func (tc *tierCall) leftover(reply *limit.Decision, i int) limit.Leftover {
	l := reply.Leftover(i)
	if tc.refusedReturns {
		l.AddUsed(tc.returned)
	}
	return l
}

// updateDenial remembers that result i denies, or forgets the denials before if it admits.
func (c *call) updateDenial(i int, t int64) {
	tc, r, grant := &c.tiers[i], &c.reply.Results[i], c.reply.Lease(i)
	switch {
	case !r.Admits:
		c.owner.rememberDenial(tc.counter, t, r.Cost, c.fitsAt(i, t), c.reply.Now)
	case c.leaseRequest(i).Ramp && grant.Units == 0 && tc.need == 0 && tc.available < r.Cost:
		// The ramp has no units: others have leased all that comes free until the slot ends.
		fitsAt := max(tc.counter.lease.FitsAt(r.Cost), grant.Until)
		c.owner.rememberDenial(tc.counter, t, r.Cost, fitsAt, c.reply.Now)
		tc.counter.denial.until = min(tc.counter.denial.until, grant.Until-c.owner.storeOffset)
	case tc.need > 0:
		c.owner.forgetDenial(tc.counter, c.reply.Now)
	}
}

// rememberDenial has the cost denied without a call for as long as the rule says. retryAt is when the cost fits, as the
// store says.
func (o *ownerLeases) rememberDenial(c *counter, t, cost, retryAt, storeNow int64) {
	if c.denial.covers(cost, t) {
		return
	}
	v := o.viewOf(c, t, cost, cost)
	fits := time.Duration(max(retryAt-storeNow, 0)) * time.Microsecond
	wait := o.shard.store.config.Rule.DenyFor(&v, fits, c.denial.repeats)
	// However long the reply took, the denial ends at retryAt.
	until := min(t+max(wait.Microseconds(), 0), retryAt-o.storeOffset)
	c.denial = denial{cost: cost, until: until, storeUntil: retryAt, repeats: c.denial.repeats + 1}
}

// forgetDenial ends the denial when the store admits. If it admits before the time that the denial named, the denials
// without a call were early.
func (o *ownerLeases) forgetDenial(c *counter, storeNow int64) {
	if c.denial.localDenied > 0 && storeNow < c.denial.storeUntil {
		o.shard.stats.Early += c.denial.localDenied
	}
	c.denial = denial{}
}

// leaseEndedMeanwhile reports whether the request is only denied because leases that were reserved for it ended during
// the call, so that a second call is due. A request that the store charged an exact limit for gets none: that limit
// would be charged twice.
func (c *call) leaseEndedMeanwhile(t int64) bool {
	if !c.reply.Allowed {
		return false
	}
	ended := false
	for i := range c.tiers {
		tc := &c.tiers[i]
		if !tc.mayLease {
			return false
		}
		ended = ended || tc.available < tc.reserved && tc.available+tc.counter.spendable(t) < tc.cost
	}
	return ended
}

// writeDecision writes the decision over what there is for the request, and takes the units that it charges off the
// leases.
func (c *call) writeDecision(d *limit.Decision, t int64) {
	reply := &c.reply
	e := d.BeginLeased(c.request, reply.Now, reply.ID)
	for i := range c.tiers {
		tc := &c.tiers[i]
		l := tc.counter.lease
		switch {
		case tc.need > 0:
			l = tc.leftover(reply, i)
		case tc.available > 0: // a refund must name what counts these units, also if the counter has another lease now
			l.Keep(l.Units, tc.leaseAt)
		}
		l.Rebind(tc.tier)
		l.Units = tc.counter.lease.Units + tc.available
		e.FromLeftover(tc.charge, &l, c.retryAt(i, t))
	}
	if !d.Allowed {
		d.ID = limit.ReceiptID{}
	} else if d.ID == (limit.ReceiptID{}) {
		d.ID = c.owner.nextID()
	}
	for i := range c.tiers {
		tc := &c.tiers[i]
		if d.Charges(i) {
			tc.available -= e.ChargeLeftover(i)
		}
		switch {
		case !tc.mayLease: // nothing is left: the store charged it only if it admitted all
		case tc.available > 0: // another limit denied the request, or the tier is of a shadow limit that would have
			tc.putBack(&c.owner.shard.stats, tc.available, t)
		case tc.available < 0: // the rest of the cost comes from the lease
			tc.counter.lease.Units += tc.available
		}
		tc.counter.noteMore(e, i, t)
	}
}

// retryAt returns 0 if the tier admits the request, or else until when it is denied by the store's clock.
func (c *call) retryAt(i int, t int64) int64 {
	tc, r := &c.tiers[i], &c.reply.Results[i]
	lacks := tc.cost - tc.available
	switch {
	case !r.Admits:
		return max(c.fitsAt(i, t), 1)
	case lacks <= tc.need && !c.reply.Charges(i): // another limit denied: the store would have charged what is lacking
		return 0
	case lacks > 0 && tc.spendable(t) < lacks:
		return tc.counter.fitsAt(t, tc.cost, lacks, c.reply.Now)
	}
	return 0
}

// fitsAt returns when the cost fits after the store's denial of result i, by the store's clock. The store knows only
// when the units fit that it was asked for. A bucket may get no units back of a lease that ends before that.
func (c *call) fitsAt(i int, t int64) int64 {
	tc, r := &c.tiers[i], &c.reply.Results[i]
	if tc.reserved > 0 && tc.tier.Leasing().Refills && r.RetryAt-c.reply.Now >= tc.leaseUntil-t {
		l := c.reply.Leftover(i)
		return max(r.RetryAt, l.FitsAt(tc.cost))
	}
	return r.RetryAt
}

// spendable returns how many units of the counter's lease the request may spend. Units that another home cell charged
// could not be refunded by the request's receipt.
func (tc *tierCall) spendable(t int64) int64 {
	if homeMoved(tc.counter.tier, tc.tier) {
		return 0
	}
	return tc.counter.spendable(t)
}

// putBack puts units that were reserved, and units that the call charged for the request, into the counter's lease, if
// that is counted where they are.
func (tc *tierCall) putBack(stats *Stats, units, t int64) {
	counter := tc.counter
	charged := min(tc.charged, units)
	reserved := units - charged
	switch {
	case reserved == 0:
	case t >= tc.leaseUntil || counter.lease.At != tc.leaseAt || !sameLimit(counter.tier, tc.tier),
		t >= counter.until && counter.lease.Units > 0:
		stats.Lost += reserved
	default:
		counter.lease.Units, counter.until = counter.lease.Units+reserved, max(counter.until, tc.leaseUntil)
	}
	switch {
	case charged == 0:
	case tc.chargedAt == 0 || counter.lease.At != tc.chargedAt || homeMoved(counter.tier, tc.tier):
		stats.Lost += charged
	default: // if the lease has ended, the next call returns them
		counter.lease.Units, counter.until = counter.lease.Units+charged, max(counter.until, t)
	}
}
