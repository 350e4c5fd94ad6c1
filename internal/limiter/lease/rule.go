package lease

import (
	"math"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Rule says how much of a counter to lease, and how long a denial lasts. It decides about the number of calls and about
// who must wait, never about correctness: the store grants no more than the algorithm's bound allows, whatever the rule
// asks for. It is called under a lock and must be quick.
type Rule interface {
	// SizeLease sets how much to ask for: Least, Most, Ample, Plenty, Share and Ramp. It may set Need to 0 with Ramp,
	// unless View.MustFit is set: the request is then served from the units of the ramp that are free at once, or
	// denied.
	SizeLease(v *View, ask *limit.LeaseRequest)

	// DenyFor returns for how long a cost that the store has denied is denied without a call. A denial never lasts
	// longer than fits, after which the cost fits by the store's answer. repeats is how many denials came before, one
	// after the other.
	DenyFor(v *View, fits time.Duration, repeats int) time.Duration
}

// View is what this process knows of one counter.
type View struct {
	Tier       *limit.Tier
	Cost       int64         // of the request, units
	Lacks      int64         // units of the cost that are not leased; 0 if the call is made for another counter
	Spendable  int64         // units that are leased and can be spent, without those that are reserved for the request
	Left       int64         // units that the store had left when it last answered in this window; else the capacity
	LeftAge    time.Duration // how long ago the store had Left units; 0 if Left is the capacity
	EndsIn     time.Duration // until a lease would end: with the window, period or slot, or after its longest life
	RampEndsIn time.Duration // until a ramp would end; 0 for algorithms that have none
	Rate       float64       // units per second that this process is asked for
	Total      float64       // units per second that all processes use; 0 if not known
	Instances  int           // how many processes share the counter, at least 1
	Saturated  bool          // the store's last answer was a denial, or left less than it had been asked for
	MustFit    bool          // Need must not be lowered
}

// Adaptive is the rule in use. While there is plenty it makes one call in a window, or in [Config.Life] if that is
// shorter. If units are scarce, each process leases only a part of the units that are left, so leases get smaller
// towards the limit. Once a token bucket or a sliding window is used up, each process leases ramps. The zero Adaptive
// is ready for use.
type Adaptive struct{ tuning *tuning }

func (a Adaptive) constants() *tuning {
	if a.tuning == nil {
		return &defaultTuning
	}
	return a.tuning
}

// SizeLease implements [Rule].
func (a Adaptive) SizeLease(v *View, ask *limit.LeaseRequest) {
	k, leasing := a.constants(), v.Tier.Leasing()
	if !v.hasUnitsToLease(k) {
		return
	}
	total := v.totalRate()
	refillSuffices := !leasing.Refills || float64(v.Left) >= total*v.RampEndsIn.Seconds()
	if (v.Saturated || !refillSuffices) && leasing.Ramps && !v.MustFit && v.sizeRamp(k, total, ask) {
		return
	}
	seconds := v.EndsIn.Seconds()
	expected := v.Rate * seconds // units, until the lease would end
	if expected < 1 && !leasing.Refills {
		return // no other request is expected before the lease ends
	}
	scarce := v.Rate * min(seconds, k.scarceFor.Seconds())
	if v.Lacks == 0 && float64(v.Spendable) > scarce*k.enoughPart {
		return // the call is made for another counter, and this one does not need it
	}
	part := 1.0 // of all requests, those that come to this process
	if total > 0 {
		part = v.Rate / total
	}
	ask.Plenty = wholeUnits(k.plentyTimes * total * seconds)
	ask.Ample = wholeUnits(expected + k.ampleDeviations*math.Sqrt(expected) + 1)
	ask.Most = wholeUnits(scarce)
	ask.Share = int64(math.Min(part/k.shareParts, 1) * limit.ShareOne)
	if !runsOut(leasing) || part*float64(v.Instances) >= k.leastFrom {
		ask.Least = wholeUnits(min(math.Ceil(float64(v.Tier.Capacity())*part/k.leastParts), expected+1))
	}
	if v.Instances <= 1 {
		ask.Share = limit.ShareOne
	}
}

// hasUnitsToLease reports whether each process can have enough units for leases to be worth what they cost others.
// Without a lease the store decides exactly. Where there are hardly more units than processes, leased units would lie
// where no request comes. Of a token bucket, nothing refills in place of leased units until the slot ends, and the last
// unit of each lease may be lost with the slot. Of a sliding window that several processes share, units come free so
// evenly that each process has to hold some of them all the time.
func (v *View) hasUnitsToLease(k *tuning) bool {
	const least = 2 // units of the limit for each process
	instances := float64(max(v.Instances, 1))
	switch l := v.Tier.Leasing(); {
	case l.Refills:
		slot := float64(v.Tier.Threshold) / v.Tier.Period.Seconds() * float64(l.Longest) / 1e6
		return slot >= k.leastInSlot*instances
	case l.Weighs && instances > 1:
		return float64(v.Tier.Capacity()) >= k.leastInSlot*instances
	}
	return float64(v.Tier.Capacity()) >= least*instances
}

// totalRate returns how many units per second all processes together are asked for. Without an answer of the store that
// tells it, the other processes are taken to be asked for as much as this one.
func (v *View) totalRate() float64 {
	if v.Total == 0 {
		return float64(max(v.Instances, 1)) * v.Rate
	}
	return max(v.Total, v.Rate)
}

// runsOut reports whether units that are used come free only when their window or period ends. Of token buckets and
// sliding windows, units come free all the time.
func runsOut(l limit.Leasing) bool { return l.Ends && !l.Refills && !l.Weighs }

// runsOutIn estimates after how many seconds the store will have no units left, if all processes use as many units per
// second as before. It is infinite if units come free all the time, or if this process is the only one: then no process
// lacks what this one holds.
func (v *View) runsOutIn() float64 {
	total := v.totalRate()
	if !runsOut(v.Tier.Leasing()) || total == 0 || v.Instances <= 1 {
		return math.Inf(1)
	}
	return max(float64(v.Left)/total-v.LeftAge.Seconds(), 0)
}

// sizeRamp asks for a part of what comes free until the slot ends. It reports false if that is too little to be worth
// it.
func (v *View) sizeRamp(k *tuning, total float64, ask *limit.LeaseRequest) bool {
	seconds := v.RampEndsIn.Seconds()
	comesFree := float64(v.Tier.Threshold) / v.Tier.Period.Seconds() * seconds
	even := 1 / float64(max(v.Instances, 1))
	share := even
	if total > 0 {
		share = max(v.Rate/total, share)
	}
	if comesFree*share < k.rampLeast*float64(v.Cost) {
		return false
	}
	part := even
	if v.Total > 0 {
		// Total is what is used, which is less than what is asked for, so this process is due less than Rate/Total.
		part = max(part, k.rampPart*v.Rate/v.Total)
	}
	ask.Need, ask.Ramp, ask.Share = 0, true, limit.ShareOne
	useful := int64(limit.MaxUnits)
	if v.Instances > 1 {
		useful = max(wholeUnits(v.Rate*seconds+1), v.Cost)
	}
	ask.Plenty = wholeUnits(comesFree * k.rampPlenty)
	ask.Most = min(wholeUnits(comesFree*part), useful)
	ask.Ample = min(wholeUnits(comesFree*part*k.rampMore), useful)
	return true
}

// DenyFor implements [Rule].
func (a Adaptive) DenyFor(_ *View, fits time.Duration, repeats int) time.Duration {
	k := a.constants()
	const shifts = 5 // denyFor·2^5 exceeds denyForMost, so more doublings change nothing
	return min(fits, k.denyFor<<min(repeats, shifts), k.denyForMost)
}

// wholeUnits rounds up to a number of units that can be asked for.
func wholeUnits(v float64) int64 {
	if !(v > 0) {
		return 0
	}
	return int64(min(math.Ceil(v), limit.MaxUnits))
}

// viewOf returns the rule's view of the counter, for a request that lacks units of its cost.
func (o *ownerLeases) viewOf(c *counter, t, cost, lacks int64) View {
	s := o.shard.store
	v := View{
		Tier: c.tier, Cost: cost, Lacks: lacks, Spendable: c.spendable(t), Left: c.tier.Capacity(),
		Rate: c.demand.rate(t), Total: c.supply.total, Saturated: c.supply.saturated,
		Instances: max(s.config.Instances(c.tier.Limit()), 1),
	}
	storeNow := t + o.storeOffset
	end := o.leaseEnd(c, storeNow)
	if end == 0 {
		v.EndsIn = time.Duration(s.entryLife(c.tier)) * time.Microsecond
	} else {
		v.EndsIn = time.Duration(min(end-storeNow, s.lifeOf(c))) * time.Microsecond
		if c.tier.Leasing().Ramps {
			rampEnd := c.tier.RampEnd(o.owner.Name, storeNow)
			v.RampEndsIn = time.Duration(min(rampEnd-storeNow, s.life)) * time.Microsecond
		}
	}
	if end == c.supply.end {
		v.Left, v.LeftAge = c.supply.left, time.Duration(t-c.supply.leftAt)*time.Microsecond
	}
	return v
}

// leaseEnd returns when the window, the period or the slot of the time storeNow ends, by the store's clock; 0 if leases
// are entries, which have no such end. A quota's period must not be computed under the shard's lock, so its end is the
// one that the store's last answer named. If that period is over, the end of the present one is not known, and is taken
// to be as far away as a lease lasts at most.
func (o *ownerLeases) leaseEnd(c *counter, storeNow int64) int64 {
	switch {
	case c.tier.Calendar == nil:
		return c.tier.LeaseEnd(o.owner.Name, storeNow)
	case storeNow < c.supply.end:
		return c.supply.end
	default:
		return storeNow + o.shard.store.lifeOf(c)
	}
}
