package lease

import (
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/singleflight"
)

// counter is one tier's counter for one owner and value, as this process knows it. Times are of the shard's clock.
type counter struct {
	// A decision without a call reads these: the first word of ramp alone if there is no ramp, and all but the last
	// words of demand. They lie in few cache lines.
	tier   *limit.Tier
	value  limit.Value
	until  int64          // when the lease ends
	lease  limit.Leftover // the units that are leased and not spent
	ramp   ramp           // which of the lease's units cannot be spent yet
	demand demand

	promisedAt int64 // a denial named this time; until then no units of the ramp are given back

	denial      denial
	flight      *singleflight.Call // the call under way that leases this counter, or nil
	supply      supply
	scarce      bool // units were scarce at the store's last answer, see noteScarcity
	isHomeQuota bool
}

// ramp is units of a lease that come free evenly over time. The zero ramp has none.
type ramp struct {
	locked   int64 // units that are not free at from
	from, to int64 // at to, all are free
}

// lockedAt returns how many units are not free at t, rounded up.
func (r *ramp) lockedAt(t int64) int64 {
	switch {
	case r.locked == 0 || t >= r.to:
		return 0
	case t <= r.from:
		return r.locked
	}
	return (r.locked*(r.to-t) + (r.to - r.from) - 1) / (r.to - r.from)
}

// removeLocked takes up to so many units off those that are not free at t.
func (r *ramp) removeLocked(units, t int64) {
	if r.locked > 0 {
		r.locked = max(r.lockedAt(t)-units, 0)
		r.from = max(r.from, t)
		r.to = max(r.to, r.from+1)
	}
}

// denial is what the store did not admit: a cost, and with it all larger ones. The zero denial is none.
type denial struct {
	cost        int64 // units; this cost and larger ones are denied without a call,
	until       int64 // before this time
	storeUntil  int64 // µs since 1970 by the store's clock: when the cost fits if nobody else charges
	repeats     int   // how many denials came one after the other
	localDenied int64 // requests that it denied without a call
}

// covers reports whether a cost is denied at t without a call.
func (d *denial) covers(cost, t int64) bool { return d.cost > 0 && cost >= d.cost && t < d.until }

// spendable returns how many units can be spent at t.
func (c *counter) spendable(t int64) int64 {
	if t >= c.until {
		return 0
	}
	return max(c.lease.Units-c.ramp.lockedAt(t), 0)
}

// spendableAt returns the first time from t on at which cost can be spent, if nothing else is spent before; 0 if the
// lease has fewer units, ends before that, or has no ramp.
func (c *counter) spendableAt(t, cost int64) int64 {
	r := &c.ramp
	if r.locked == 0 || c.lease.Units < cost || t >= c.until {
		return 0
	}
	// The cost can be spent once no more than mayLock units are locked: locked·(to−at) ≤ mayLock·(to−from).
	mayLock := c.lease.Units - cost
	at := max(r.to-mayLock*(r.to-r.from)/r.locked, t)
	if at >= c.until {
		return 0
	}
	return at
}

const idleAfter = 60_000_000 // µs; after a minute without requests the demand has faded to nothing, see fadeOver

// isIdle reports whether the counter can be dropped: nothing is leased, and nothing is known that would be of use.
func (c *counter) isIdle(t int64) bool {
	return c.flight == nil && (t >= c.until || c.lease.Units == 0) && t >= c.denial.until &&
		t-c.demand.lastRequest >= idleAfter
}

// changeTier makes the counter one of a tier of the same identity, when a plan has changed. It returns how many units
// are lost.
func (c *counter) changeTier(t *limit.Tier) (lost int64) {
	if !sameLimit(c.tier, t) {
		c.until = 0 // the units are returned with the next call
		c.denial = denial{}
	}
	if homeMoved(c.tier, t) {
		lost = c.forgetLease()
	}
	c.lease.Rebind(t)
	c.tier, c.isHomeQuota = t, isHomeQuota(t)
	return lost
}

// sameLimit reports whether a lease and a denial of one tier hold for another tier of the same identity.
func sameLimit(a, b *limit.Tier) bool {
	return a == b || a.Threshold == b.Threshold && a.Capacity() == b.Capacity() &&
		a.Limit().Exact == b.Limit().Exact && !homeMoved(a, b)
}

// homeMoved reports whether different cells keep the counters of two tiers of the same identity.
func homeMoved(a, b *limit.Tier) bool { return a.Limit().Home != b.Limit().Home }

// forgetLease drops what was leased, and what is known of the counter, when another cell begins to keep the counter:
// units must not be given back where they were not charged. It returns how many units are lost.
func (c *counter) forgetLease() (lost int64) {
	lost = c.lease.Units
	c.lease, c.until, c.ramp.locked, c.denial, c.supply = limit.Leftover{}, 0, 0, denial{}, supply{}
	return lost
}

// leasesEntries reports whether a lease of the tier is one entry of a log or of buckets, counted at the lease's end.
func leasesEntries(t *limit.Tier) bool {
	l := t.Leasing()
	return !l.None && !l.Ends
}
