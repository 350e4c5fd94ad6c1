package limit

import "fmt"

// LeaseRequest asks for more of one tier than the request spends: a lease, which the caller spends later without asking. The
// bounds of the algorithms hold for what is spent, however late within the lease that is. How, each algorithm's file says.
//
// A ramp leases units that are not free yet. What a bucket refills, and what the previous window of a sliding one loses in
// weight, comes free along a straight line. So a charge that fits at the end of the slot may be spent along a straight line up
// to there. All ramps of a counter end together, and so their sum stays below the line if it does at both ends.
//
// The zero LeaseRequest takes nothing, not even what the request costs: see Need.
type LeaseRequest struct {
	Need int64 // units that the request lacks, 0..its cost; the caller has leased the others before

	// How much to lease where Need fits, units: Most, or Ample where at least Plenty are left, but no more than Share/ShareOne
	// of what is left; at least Least in any case; never more than is left.
	Least, Most, Ample, Plenty, Share int64

	Life int64 // µs; sliding_log and sliding_buckets: how long the lease is to last, 0..period
	Ramp bool  // token_bucket and sliding_window: what is left is taken as of the end of the slot

	// Correction changes what is counted in the window, slot or entry of CorrectionAt, before anything else and whatever the
	// limit says, if that is still open. Below zero it gives unspent units of a lease back, and CorrectionAt is [Lease].At.
	// Above zero it counts units that were admitted without the store, at the time CorrectionAt (µs since 1970). A
	// leaky_bucket's slot comes earlier by the units that are given back, whatever CorrectionAt says, and is free now at the
	// earliest.
	Correction, CorrectionAt int64
}

// ShareOne is the whole, in which LeaseRequest.Share counts.
const ShareOne = 1 << 10

// Lease is what was leased of a tier.
type Lease struct {
	Units   int64 // leased beyond what the request lacked
	Upfront int64 // of Units, those that may be spent at once; the others come free evenly until Until
	Until   int64 // when the lease ends, µs since 1970 by the store's clock
	At      int64 // names the window, slot or entry that counts it, for LeaseRequest.CorrectionAt
}

const mostCounted = 2 * MaxUnits // units; where a correction stops counting

// wantsLease reports whether the request wants anything beyond Need.
func (a *LeaseRequest) wantsLease() bool { return a.Least > 0 || a.Most > 0 || a.Ample > 0 }

// units is how much of what is left is leased.
func (a *LeaseRequest) units(left int64) int64 {
	if left <= 0 {
		return 0
	}
	most := a.Most
	if left >= a.Plenty {
		most = a.Ample
	}
	return min(max(min(most, left*a.Share/ShareOne), a.Least), left)
}

// Largest is the most units that the lease may have.
func (a *LeaseRequest) Largest() int64 { return max(a.Least, a.Most, a.Ample) }

// checkLeases reports what is wrong with q.Leases, if there are any.
func (q *Request) checkLeases() error {
	i := 0
	for c := range q.Charges {
		l := q.Charges[c].Limit
		for j := range l.Tiers {
			if i >= len(q.Leases) {
				return fmt.Errorf("%w: %d leases are asked for, and there are more tiers", ErrInvalidRequest, len(q.Leases))
			}
			if a := &q.Leases[i]; !a.sound(&l.Tiers[j], q.Charges[c].Cost) {
				return fmt.Errorf("%w: lease of limit %s, tier %d: %+v for a cost of %d", ErrInvalidRequest, l.ID, j+1, *a, q.Charges[c].Cost)
			}
			i++
		}
	}
	if i != len(q.Leases) {
		return fmt.Errorf("%w: %d leases are asked for, and there are %d tiers", ErrInvalidRequest, len(q.Leases), i)
	}
	return nil
}

func (a *LeaseRequest) sound(t *Tier, cost int64) bool {
	for _, units := range [...]int64{a.Need, a.Least, a.Most, a.Ample, a.Plenty} {
		if units < 0 || units > MaxUnits {
			return false
		}
	}
	can := t.Leasing()
	switch {
	case a.Need > cost, a.Share < 0 || a.Share > ShareOne, a.Life < 0,
		a.Correction < -MaxUnits || a.Correction > MaxUnits, a.CorrectionAt < -2*maxExact || a.CorrectionAt > 2*maxExact:
		return false
	case can.None && a.wantsLease(), a.Ramp && !can.Ramps:
		return false
	case can.None || can.Ends:
		return a.Life == 0
	}
	return a.Life <= t.Period.Microseconds()
}

// Leasing says how a tier is leased.
type Leasing struct {
	None    bool  // there is nothing to lease
	Ends    bool  // leases end at a time of the tier's own: the end of a window, period or slot. Else Life says when
	Longest int64 // µs; the longest time to that end; 0 for a quota
	Ramps   bool  // there are ramps
	Step    int64 // µs; a ramp comes free in steps of it; 0: in no steps
	Apart   bool  // leased units are counted apart from those of requests: units that were not leased cannot be spent later
	Refills bool  // units become free all the time, so only what is leased tells how fast the counter is used
	Weighs  bool  // what is used in a window makes the next one smaller
}

// Leasing says how the tier is leased.
func (t *Tier) Leasing() Leasing { return t.counts.leasing() }

// LeaseEnd is when a lease that is granted now ends at the latest, and RampEnd when a ramp does, µs since 1970. Both are zero
// if leases have no end of their own. Of a limit with a calendar they must not be asked under a lock, see
// [Tier.CalendarPeriod].
func (t *Tier) LeaseEnd(owner string, now int64) int64 {
	end, _ := t.counts.leaseEnd(owner, now)
	return end
}

// RampEnd is when a ramp that is granted now ends. See LeaseEnd.
func (t *Tier) RampEnd(owner string, now int64) int64 {
	_, end := t.counts.leaseEnd(owner, now)
	return end
}

// Leftover is what is left of units of one counter that were leased, and what the store said of that counter when it granted
// them. It is a plain value: its holder guards it, and knows when it ends. The zero Leftover has nothing.
type Leftover struct {
	Units int64 // not spent yet
	At    int64 // names the window, slot or entry that counts them, for [LeaseRequest].CorrectionAt; 0: nothing was leased

	seen Result // after the lease was granted, as if no unit of it were left
}

// Known reports whether the store has said anything of the counter.
func (l *Leftover) Known() bool { return l.seen.Tier != nil }

// Keep makes units and the window at, of a lease that was there before, those of l, which is what the store has said since.
func (l *Leftover) Keep(units, at int64) {
	l.Units, l.At = units, at
	if l.seen.Tier != nil && l.seen.Tier.Leasing().Apart {
		l.seen.leaseAt = at
	}
}

// Other reports that the counter is the one shared by all values beyond the limit's bound.
func (l *Leftover) Other() bool { return l.seen.Other }

// InStore is what remained in the store when it granted, units: what others may have by now is not known.
func (l *Leftover) InStore() int64 {
	if l.seen.Tier == nil {
		return 0
	}
	return l.seen.Remaining()
}

// Rebind makes it one of another tier of the same identity and numbers.
func (l *Leftover) Rebind(t *Tier) {
	if l.seen.Tier != nil {
		l.seen.Tier = t
	}
}

// AddUsed says that so many units are used, too, which what the store said leaves out.
func (l *Leftover) AddUsed(units int64) {
	if l.seen.Tier != nil {
		l.seen.Tier.counts.addUsed(&l.seen, units)
	}
}

// Leftover is what the store said of result i, and the window of what it leased, without any units. Those are the need,
// where the decision was allowed, and Lease(i).Units.
func (d *Decision) Leftover(i int) Leftover {
	r := &d.Results[i]
	l := Leftover{At: d.Lease(i).At, seen: *r}
	l.seen.Charged = 0
	r.Tier.counts.addUsed(&l.seen, r.Charged)
	return l
}

// BeginLeased empties d for a request that is decided from leftovers, one result after the other, by FromLeftover.
func (d *Decision) BeginLeased(req *Request, now int64, id ReceiptID) *Evaluation {
	d.Allowed, d.Never, d.RetryAt, d.ID, d.denier, d.Degraded = true, false, 0, id, -1, false
	d.Owner, d.Now, d.charges, d.asked = req.Owner, now, req.Charges, nil
	d.Results, d.granted = d.Results[:0], d.granted[:0]
	return (*Evaluation)(d)
}

// FromLeftover adds the result of the next tier, which is one of charge: admitted, out of the lease, or denied until retryAt
// where that is above 0. The caller takes the units off the lease if all are admitted, after the last result was added.
func (e *Evaluation) FromLeftover(charge int, l *Leftover, retryAt int64) {
	n := len(e.Results)
	if n == cap(e.Results) {
		e.Results = append(e.Results, Result{})
	}
	e.Results = e.Results[:n+1]
	r := &e.Results[n]
	*r = l.seen
	r.Cost, r.Charged, r.chargeIndex = e.charges[charge].Cost, 0, int16(charge)
	r.Admits, r.Never, r.RetryAt = retryAt == 0, false, retryAt
	counts := r.Tier.counts
	counts.addUsed(r, -l.Units)
	if r.Cost > r.Tier.capacity {
		r.Admits, r.Never, r.RetryAt = false, true, 0
	}
	if !r.Admits {
		if left := r.Remaining(); left >= r.Cost { // of a ramp, not to be spent yet: no cost up to that is admitted now
			counts.addUsed(r, left-(r.Cost-1))
		}
		if !r.shadow {
			e.Allowed = false
			e.deny(n, r)
		}
	}
}

// ChargeLeftover marks result i, which [Evaluation.Charges] says is to be charged, as charged, and returns the units that the
// caller takes off its lease.
func (e *Evaluation) ChargeLeftover(i int) int64 {
	r := &e.Results[i]
	r.Charged = r.Cost
	return r.Cost
}

// Credit says that units, of what the counter of result i counts, are leased to the asker and left, and evaluates anew whether
// the cost fits. It is for a peek; call [Evaluation.Settle] after the last one.
func (e *Evaluation) Credit(i int, units int64) {
	r := &e.Results[i]
	r.Tier.counts.addUsed(r, -units)
	if !r.Admits && !r.Never && r.Remaining() >= r.Cost {
		r.Admits, r.RetryAt = true, 0
	}
}
