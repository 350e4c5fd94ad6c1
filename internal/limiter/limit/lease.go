package limit

import (
	"fmt"
	"slices"
)

// LeaseRequest asks for more of one tier than the request spends: a lease, which the caller spends later without asking
// the store. The bounds of the algorithms hold for units at the time at which they are spent, at any time until the
// lease ends. The file of each algorithm says where leased units are counted, so that this is so.
//
// A ramp is a lease of units of which not all are free yet, but will be when the slot ends. They come free evenly: a
// token bucket refills, and the previous window of a sliding window weighs less as time passes. The caller spends them
// as evenly, along a straight line. The line begins at the time of the decision with the units that are free then, and
// ends at the end of the slot with all units of the ramp. At both ends the units fit, and so they fit at each time
// between them. All ramps of a counter end together, so the same is true of the sum of several ramps.
//
// ATTENTION: With the zero LeaseRequest any cost up to the tier's capacity is admitted, however full the counter is,
// and nothing is charged, because Need is 0.
type LeaseRequest struct {
	// Need is how many units of the cost the counter must have room for, 0..cost. They are charged. The caller takes
	// the others from a lease that it has, or from the ramp that it asks for. With 0, Admits of the result says nothing
	// about the counter: the caller must then check whether its lease suffices.
	Need int64

	// The next five fields give the size of the lease, in units, if Need fits. left is what is left of the tier after
	// Need. The lease has
	//
	//	min(max(min(most, left·Share/ShareOne), Least), left)
	//
	// units, where most is Ample if left ≥ Plenty, and Most otherwise. All five are 0 if no lease is wanted.

	Least  int64 // the size is at least Least, if that many units are left
	Most   int64 // the size is at most Most, if fewer than Plenty units are left
	Ample  int64 // the size is at most Ample, if Plenty or more units are left
	Plenty int64 // how many units must be left for Ample to take the place of Most; 0: Ample always does
	Share  int64 // the size is at most left·Share/ShareOne, 0..ShareOne, unless Least is more

	Life int64 // µs; sliding_log and sliding_buckets: how long the lease is to last, 0..period
	Ramp bool  // token_bucket and sliding_window: the lease may be a ramp: left is what will be left when the slot ends

	// Correction changes what is counted before Need is evaluated. Below zero it gives back units of a lease that were
	// not spent, and CorrectionAt is the At of that [Lease]. Above zero it charges units that were admitted without the
	// store, and CorrectionAt is the time at which they were admitted (µs since 1970). The caller has to leave out
	// units that a token bucket has refilled since; CorrectionAt is then the time up to which it has done so. Nothing
	// is corrected if units of that window, slot, entry or time no longer count. [AtDecision] stands for the time of
	// the decision, by the store's clock.
	//
	// A correction takes effect only if the result is charged. After a denial it must be sent again.
	//
	// A leaky_bucket leases nothing. A Correction below zero brings its next free time forward, to the present time at
	// most, whatever CorrectionAt is. An operator can empty the counter in this way.
	Correction, CorrectionAt int64
}

// AtDecision is the [LeaseRequest].CorrectionAt of units that are charged, or given back, at the time of the decision:
// they count where a charge of this decision would count. The caller need not know the store's clock. Units cannot be
// given back in this way to a token bucket, nor to a log or buckets of a sliding window: those would have to be named
// by their slot or entry.
const AtDecision = 2 * maxExact

// ShareOne is the Share of a lease that may have all that is left.
const ShareOne = 1 << 10

// Lease says what was leased of a tier.
type Lease struct {
	Units   int64 // units beyond what the request needed
	Upfront int64 // how many of Units may be spent at once; the others come free evenly until Until
	Until   int64 // when the lease ends, µs since 1970 by the store's clock

	// At names where the units are counted, for LeaseRequest.CorrectionAt. µs since 1970.
	//
	//	fixed_window, sliding_window, quota   the start of the window or calendar period
	//	token_bucket                          the end of the slot, which is Until
	//	sliding_log, sliding_buckets          the time of the entry
	At int64
}

// mostCounted is the highest count that a correction can reach, in units. A sliding window has a smaller bound.
const mostCounted = 2 * MaxUnits

// wantsLease reports whether the request wants any units beyond Need.
func (a *LeaseRequest) wantsLease() bool { return a.Least > 0 || a.Most > 0 || a.Ample > 0 }

// units returns how many of the units that are left are leased, by the formula of [LeaseRequest].
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

// Largest returns the largest number of units that the lease may have.
func (a *LeaseRequest) Largest() int64 { return max(a.Least, a.Most, a.Ample) }

// checkLeases reports what is wrong with q.Leases, which must not be empty.
func (q *Request) checkLeases() error {
	i := 0
	for c := range q.Charges {
		l := q.Charges[c].Limit
		for j := range l.Tiers {
			if i >= len(q.Leases) {
				return fmt.Errorf("%w: %d leases are asked for, and there are more tiers", ErrInvalidRequest,
					len(q.Leases))
			}
			if a := &q.Leases[i]; !a.sound(&l.Tiers[j], q.Charges[c].Cost) {
				return fmt.Errorf("%w: lease of limit %s, tier %d: %+v for a cost of %d", ErrInvalidRequest, l.ID, j+1,
					*a,
					q.Charges[c].Cost)
			}
			i++
		}
	}
	if i != len(q.Leases) {
		return fmt.Errorf("%w: %d leases are asked for, and there are %d tiers", ErrInvalidRequest, len(q.Leases), i)
	}
	return nil
}

// sound reports whether the tier can have such a lease for a request of that cost.
func (a *LeaseRequest) sound(t *Tier, cost int64) bool {
	for _, units := range [...]int64{a.Need, a.Least, a.Most, a.Ample, a.Plenty} {
		if units < 0 || units > MaxUnits {
			return false
		}
	}
	can := t.Leasing()
	switch {
	case a.Need > cost, a.Share < 0 || a.Share > ShareOne, a.Life < 0,
		a.Correction < -MaxUnits || a.Correction > MaxUnits, a.CorrectionAt < -2*maxExact ||
			a.CorrectionAt > 2*maxExact:
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
	None    bool  // the tier has no leases
	Ends    bool  // leases end at the end of a window, period or slot; otherwise when [LeaseRequest].Life is over
	Longest int64 // from a grant to that end at most, µs, but see LeaseEnd; 0 for a quota, and if not Ends
	Ramps   bool  // a lease may be a ramp
	Step    int64 // the length of the steps in which the units of a ramp come free, µs; 0: continuously
	Refills bool  // units come free all the time, so only what is leased tells how fast the counter is used
	Weighs  bool  // units that are used in a window reduce what the next window admits

	// Apart says that leased units are counted apart from those of requests: in the slot of a token bucket, or in the
	// entry of a log at the end of the lease. Units that were charged to a request can therefore not be kept as a
	// lease.
	Apart bool
}

// Leasing says how the tier is leased.
func (t *Tier) Leasing() Leasing { return t.counts.leasing() }

// LeaseEnd returns when a lease that is granted now ends, µs since 1970; 0 if [Leasing].Ends is false. If the tier has
// a calendar, LeaseEnd must not be called under a lock, see [Tier.CalendarPeriod].
//
// It knows the tier, and not the state of the counter. A lease ends later if the counter's time is ahead of now, or if
// it joins a slot of a token bucket that began when slots were longer, before a change of rate or burst. Such a slot
// ends at most two seconds after the counter's time. Lease.Until is the end that counts.
func (t *Tier) LeaseEnd(owner string, now int64) int64 {
	end, _ := t.counts.leaseEnd(owner, now)
	return end
}

// RampEnd returns when a ramp that is granted now ends, µs since 1970. The restrictions of LeaseEnd apply.
func (t *Tier) RampEnd(owner string, now int64) int64 {
	_, end := t.counts.leaseEnd(owner, now)
	return end
}

// Leftover holds the unspent units of a lease of one counter, together with the state of that counter when the store
// granted the lease. It is a plain value: its holder guards it against concurrent use, and knows when the lease ends.
// The zero Leftover has no units, and no state of a counter.
type Leftover struct {
	Units int64 // leased units that are not spent yet
	At    int64 // [Lease].At of the lease; 0: nothing was leased

	// The counter after the lease was granted, as if all leased units had been spent: these fields of its Result.
	tier     *Tier // nil: no state is known
	other    bool
	leaseAt  int64
	alsoSeen int64
	seen     numbers
	window   span
}

// result returns the state of the counter that l holds as a Result.
func (l *Leftover) result() Result {
	return Result{Tier: l.tier, Other: l.other, leaseAt: l.leaseAt, alsoSeen: l.alsoSeen, seen: l.seen,
		window: l.window}
}

// Known reports whether l holds the state of a counter.
func (l *Leftover) Known() bool { return l.tier != nil }

// Keep sets Units and At of l, for instance to those of an older lease that is still held. The state of the counter
// stays.
func (l *Leftover) Keep(units, at int64) {
	l.Units, l.At = units, at
	if l.tier != nil && l.tier.Leasing().Apart {
		l.leaseAt = at
	}
}

// Other reports that the counter is the one shared by all values beyond the limit's bound.
func (l *Leftover) Other() bool { return l.other }

// InStore returns how many units remained in the store after it granted the lease. Others may have taken some of them
// since.
func (l *Leftover) InStore() int64 {
	if l.tier == nil {
		return 0
	}
	r := l.result()
	return r.Remaining()
}

// fades is what the algorithms have of which units come free all the time.
type fades interface {
	// fitsAt returns when so many units fit, if nothing more is charged than r says; a time in the past if they do.
	fitsAt(r *Result, units int64) int64

	// age brings the numbers of r up to now, which is not before their time, if nothing was charged since.
	age(r *Result, now int64)

	// hold notes in r that so many units are leased in the slot of the decision.
	hold(r *Result, units int64)
}

// FitsAt returns a time at which the store has room for the cost, µs since 1970, if all leased units are spent and
// nobody else charges. Of a log, of buckets and of a window it is the time at which nothing is used any more.
func (l *Leftover) FitsAt(cost int64) int64 {
	if l.tier == nil {
		return 0
	}
	r := l.result()
	if f, ok := l.tier.counts.(fades); ok && cost <= l.tier.capacity {
		return f.fitsAt(&r, cost)
	}
	return r.ResetAt() // a cost above the capacity never fits
}

// GiveBack takes unspent units off l that the store gets back.
func (l *Leftover) GiveBack(units int64) {
	l.Units -= units
	l.AddUsed(-units)
}

// Rebind makes l a Leftover of the tier t, which must have the identity and the numbers of the tier that l had.
func (l *Leftover) Rebind(t *Tier) {
	if l.tier != nil {
		l.tier = t
	}
}

// AddUsed adds units to the used ones: units that the store had not counted when it granted the lease.
func (l *Leftover) AddUsed(units int64) {
	if l.tier == nil {
		return
	}
	r := l.result()
	r.addUsed(units)
	l.seen = r.seen
}

// Leftover returns the state of the counter of result i, and Lease(i).At. Its Units are 0. The caller sets them, to
// Lease(i).Units and, if the decision was allowed, the units that the request needed.
func (d *Decision) Leftover(i int) Leftover {
	r := d.Results[i]
	r.addUsed(r.Charged)
	if f, ok := r.Tier.counts.(fades); ok {
		f.hold(&r, d.Leased(i))
	}
	return Leftover{
		At: d.Lease(i).At, tier: r.Tier, other: r.Other, leaseAt: r.leaseAt, alsoSeen: r.alsoSeen, seen: r.seen,
		window: r.window,
	}
}

// BeginLeased empties d for a request that is decided without the store, from leases. The caller then adds the results,
// one after the other, by [Evaluation.FromLeftover].
func (d *Decision) BeginLeased(req *Request, now int64, id ReceiptID) *Evaluation {
	d.Allowed, d.Never, d.RetryAt, d.ID, d.denier, d.Degraded = true, false, 0, id, -1, false
	d.Owner, d.Now, d.charges, d.asked = req.Owner, now, req.Charges, nil
	d.Results, d.granted = d.Results[:0], d.granted[:0]
	return (*Evaluation)(d)
}

// FromLeftover adds the result of the next tier. chargeIndex is the index of the tier's charge in the request, and l is
// the caller's lease of the tier. If retryAt is 0 the tier admits the cost; otherwise it denies it until retryAt, µs
// since 1970. After the last result the caller calls [Evaluation.ChargeLeftover] for each result that is to be charged.
func (e *Evaluation) FromLeftover(chargeIndex int, l *Leftover, retryAt int64) {
	n := len(e.Results)
	if n == cap(e.Results) {
		e.Results = append(e.Results, Result{})
	}
	e.Results = e.Results[:n+1]
	r := &e.Results[n]
	l.fill(r, chargeIndex, e.charges[chargeIndex].Cost, e.Now)
	r.Admits, r.RetryAt = retryAt == 0, retryAt
	if r.Cost > r.Tier.capacity {
		r.Admits, r.Never, r.RetryAt = false, true, 0
	}
	if !r.Admits {
		// The lease may have enough units, of which too many are part of a ramp and not free yet. Remaining must not
		// include those: it is set to one less than the denied cost. Less than nothing may be used if the store lost
		// the counter after it granted the lease.
		if left := r.Tier.capacity - r.Tier.counts.used(r); left >= r.Cost {
			r.addUsed(left - (r.Cost - 1))
		}
		if r.Remaining() == r.Cost-1 { // the next unit is the one that is lacking
			r.moreFrom = r.RetryAt
		}
		if !r.shadow {
			e.Allowed = false
			e.deny(n, r)
		}
	}
}

// SpendLeftover is FromLeftover and ChargeLeftover in one, for a request that all its tiers admit from leases. It makes
// result i that of l's tier, and takes the cost off l.Units, which must be enough. The caller must have made room for
// the results by [Evaluation.Expect].
func (e *Evaluation) SpendLeftover(i, chargeIndex int, l *Leftover) {
	r, cost := &e.Results[i], e.charges[chargeIndex].Cost
	l.fill(r, chargeIndex, cost, e.Now)
	r.Admits, r.Charged = true, cost
	l.Units -= cost
}

// fill makes r the result of a decision from l: the unspent units do not count as used.
func (l *Leftover) fill(r *Result, chargeIndex int, cost, now int64) {
	t := l.tier
	r.clear(t, int16(chargeIndex), cost, t.shadow)
	r.leaseAt, r.alsoSeen, r.window, r.Other = l.leaseAt, l.alsoSeen, l.window, l.other
	r.seen = numbers{l.seen.a, l.seen.amount - l.Units*t.perUnit, l.seen.c, l.seen.d}
	if f, ok := t.counts.(fades); ok {
		f.age(r, now)
	}
}

// MoreFrom says that the caller's lease has no more units for result i before the given time, µs since 1970, though
// more come free in the counter.
func (e *Evaluation) MoreFrom(i int, at int64) { e.Results[i].moreFrom = at }

// Expect makes room for n results, which the caller then sets, each by [Evaluation.SpendLeftover].
func (e *Evaluation) Expect(n int) {
	if cap(e.Results) < n {
		e.Results = slices.Grow(e.Results, n)
	}
	e.Results = e.Results[:n]
}

// ChargeLeftover marks result i as charged, and returns how many units the caller must take off its lease. It must be
// called only for results for which [Evaluation.Charges] is true.
func (e *Evaluation) ChargeLeftover(i int) int64 {
	r := &e.Results[i]
	r.Charged = r.Cost
	return r.Cost
}

// Credit takes off the count of result i units that the caller has leased and not spent, and evaluates anew whether the
// cost fits. It is for [Store.Peek]. Call [Evaluation.Settle] after the last Credit.
func (e *Evaluation) Credit(i int, units int64) {
	r := &e.Results[i]
	r.addUsed(-units)
	if !r.Admits && !r.Never && r.Remaining() >= r.Cost {
		r.Admits, r.RetryAt = true, 0
	}
}
