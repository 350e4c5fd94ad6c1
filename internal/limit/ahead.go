package limit

import (
	"fmt"
	"slices"
)

// Ahead asks for more of one tier than the request spends: a lease, which the caller spends later without asking. The
// bounds of the algorithms hold for what is spent, however late within the lease that is:
//
//	fixed_window, quota  leased units count in the window or period in which they are granted, and end with it
//	sliding_window       so, too: after the grant the last window only weighs less
//	sliding_log, -buckets units are stamped at the lease's end, so that they count for as long as the last of them would
//	token_bucket         level + outstanding ≤ burst: what is outstanding is held, and does not make room for refill, until
//	                     its slot ends. Slots lie on a grid, so that the leases of a bucket end together. What was not
//	                     spent by then may come back for one slot more: as much of it as the bucket would hold now, had it
//	                     never been leased
//	leaky_bucket         is never leased
//
// Ramp leases what is not free yet. What a bucket refills, and what the last window of a sliding one loses in weight, comes
// free along a straight line; so a charge that fits at the slot's end may be spent along a straight line up to there. All
// ramps of a counter end together, and so their sum stays below the line if it does at both ends.
//
// The zero Ahead takes nothing, not even what the request costs: see Need.
type Ahead struct {
	Need int64 // units that the request lacks, 0..its cost; the caller has the others in hand

	// How much to lease where Need fits, units: Most, or Ample where at least Plenty are left, but no more than Share/ShareOne
	// of what is left; at least Least in any case; never more than is left.
	Least, Most, Ample, Plenty, Share int64

	Life int64 // µs; sliding_log and sliding_buckets: how long the lease is to last, 0..period
	Ramp bool  // token_bucket and sliding_window: what is left is taken as of the end of the slot

	// Adjust corrects what is counted in the window, stamp or slot of AdjustAt, before anything else and whatever the limit
	// says, if that is still open; of a bucket's slot also for as long again after it, if it is the last that was leased in.
	// Below zero it gives unspent units of a lease back, and AdjustAt is the lease's At. Above zero it counts units that were
	// admitted without the store, at the time AdjustAt (µs since 1970). A leaky_bucket's slot comes earlier by the units that
	// are given back, whatever AdjustAt says, and is free now at the earliest.
	Adjust, AdjustAt int64
}

// ShareOne is the whole, in which Ahead.Share counts.
const ShareOne = 1 << 10

// Grant is what a tier was charged ahead.
type Grant struct {
	Units   int64 // leased beyond what the request lacked
	Upfront int64 // of Units, those that may be spent at once; the others come free evenly until Until
	Until   int64 // when the lease ends, µs since 1970 by the store's clock
	At      int64 // names the window, stamp or slot, for Ahead.AdjustAt
}

// Bounds of the slots of token buckets and sliding windows.
const (
	minSlot   = 1_000     // µs
	maxSlot   = 2_000_000 // µs
	leastRamp = 8         // slots in a sliding window

	mostCounted = 2 * MaxUnits // where an Adjust stops counting
)

// leases reports whether the request wants anything beyond Need.
func (a *Ahead) leases() bool { return a.Least > 0 || a.Most > 0 || a.Ample > 0 }

// offer is how much of what is left is leased.
func (a *Ahead) offer(left int64) int64 {
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
func (a *Ahead) Largest() int64 { return max(a.Least, a.Most, a.Ample) }

// checkAhead reports what is wrong with q.Ahead, if there is any.
func (q *Request) checkAhead() error {
	i := 0
	for c := range q.Charges {
		l := q.Charges[c].Limit
		for j := range l.Tiers {
			if i >= len(q.Ahead) {
				return fmt.Errorf("%w: %d leases are asked for, and there are more tiers", ErrInvalidRequest, len(q.Ahead))
			}
			if a := &q.Ahead[i]; !a.sound(&l.Tiers[j], q.Charges[c].Cost) {
				return fmt.Errorf("%w: lease of limit %s, tier %d: %+v for a cost of %d", ErrInvalidRequest, l.ID, j+1, *a, q.Charges[c].Cost)
			}
			i++
		}
	}
	if i != len(q.Ahead) {
		return fmt.Errorf("%w: %d leases are asked for, and there are %d tiers", ErrInvalidRequest, len(q.Ahead), i)
	}
	return nil
}

func (a *Ahead) sound(t *Tier, cost int64) bool {
	for _, units := range [...]int64{a.Need, a.Least, a.Most, a.Ample, a.Plenty} {
		if units < 0 || units > MaxUnits {
			return false
		}
	}
	switch {
	case a.Need > cost, a.Share < 0 || a.Share > ShareOne, a.Life < 0,
		a.Adjust < -MaxUnits || a.Adjust > MaxUnits, a.AdjustAt < -2*maxExact || a.AdjustAt > 2*maxExact:
		return false
	case t.Algorithm == LeakyBucket:
		return !a.leases() && !a.Ramp && a.Life == 0
	case t.Algorithm == SlidingLog || t.Algorithm == SlidingBuckets:
		return !a.Ramp && a.Life <= t.period
	}
	return a.Life == 0 && (!a.Ramp || t.Algorithm == TokenBucket || t.Algorithm == SlidingWindow)
}

// slotEnd is when the slot of now ends, in which a token bucket's leases are held: on a grid that is shifted for each
// owner, so that not all come back at once.
func (t *Tier) slotEnd(owner string, now int64) int64 {
	offset := t.slotOffset(owner)
	return floorTo(now-offset, t.slot) + offset + t.slot
}

// held is what of a token bucket is leased, units, and until when.
func (s *State) held() (units, until int64) {
	if len(s.Stamps) < 2 {
		return 0, 0
	}
	return s.Stamps[1].Units, s.Stamps[1].At
}

// hold sets what of a token bucket is leased.
func (s *State) hold(units, until int64) {
	if units == 0 {
		s.stampAs(1, Stamp{})
		return
	}
	s.stampAs(1, Stamp{until, units})
}

// late is what of a token bucket's slot that ended last may still come back, 1/den units, and when it ended.
func (s *State) late() (level, ended int64) {
	if len(s.Stamps) < 3 {
		return 0, 0
	}
	return s.Stamps[2].Units, s.Stamps[2].At
}

func (s *State) setLate(level, ended int64) {
	if level <= 0 {
		s.stampAs(2, Stamp{})
		return
	}
	s.stampAs(2, Stamp{ended, level})
}

// stampAs sets one of a token bucket's stamps. None that is zero is kept behind the first.
func (s *State) stampAs(i int, stamp Stamp) {
	if stamp == (Stamp{}) && i >= len(s.Stamps) {
		return
	}
	if len(s.Stamps) <= i {
		s.Stamps = slices.Grow(s.Stamps, 3-len(s.Stamps))
		for len(s.Stamps) <= i {
			s.Stamps = append(s.Stamps, Stamp{})
		}
	}
	s.Stamps[i] = stamp
	for n := len(s.Stamps); n > 1 && s.Stamps[n-1] == (Stamp{}); n-- {
		s.Stamps = s.Stamps[:n-1]
	}
}

// grant fills what the evaluated result would lease, were it allowed.
func (t *Tier) grant(s *State, owner string, now int64, a *Ahead, r *Result, g *Grant) {
	*g = Grant{}
	r.slot = 0
	if !r.Admits && !r.shadow {
		return
	}
	left := int64(0)
	switch t.Algorithm {
	case FixedWindow:
		left, g.At, g.Until = t.Threshold-r.background-r.n-r.need, r.at, r.at+t.period
	case Quota:
		left, g.At, g.Until = t.Threshold-r.n-r.need, r.at, r.m
	case SlidingWindow:
		left, g.At, g.Until = t.Threshold-r.background-r.n-r.need, r.at, r.at+t.period
		if a.Ramp {
			g.Until = t.rampEnd(r.at, now)
			g.Upfront = max(left, 0)
			left = t.Threshold - t.lastWeight(r.at, r.m, t.windowStart(owner, now), g.Until) - r.n - r.need
		}
	case SlidingLog, SlidingBuckets:
		left, g.Until = t.Threshold-r.n-r.need, now+a.Life
		g.At = g.Until
		if t.Algorithm == SlidingBuckets {
			g.At = floorTo(g.Until, t.width)
		}
		if a.leases() {
			r.slot = g.At
		}
	case TokenBucket:
		held, until := s.held()
		if g.Until = until; until <= r.at { // else, even where the slots have changed meanwhile, all end together
			held, g.Until = 0, t.slotEnd(owner, max(now, r.at))
		}
		g.At = g.Until
		level := r.n - r.need*t.den
		left = min(floorTo(level, t.den)/t.den, t.capacity-held-r.need)
		if a.Ramp {
			g.Upfront = max(left, 0)
			most := floorTo(t.full+level, t.den) / t.den // down to -burst
			_, level = refilledTo(t.full, t.num, r.at, level, g.Until)
			left = min(floorTo(level, t.den)/t.den, t.capacity-held-r.need, most)
		}
		if a.leases() {
			r.slot = g.At
		}
	case LeakyBucket:
		return
	}
	g.Units = a.offer(left)
	if a.Ramp {
		g.Upfront = min(g.Upfront, g.Units)
	} else {
		g.Upfront = g.Units
	}
}

// rampEnd is when the ramps of a sliding window that starts at start end.
func (t *Tier) rampEnd(start, now int64) int64 {
	end := start + (floorTo(max(now-start, 0), t.slot) + t.slot)
	return min(end, start+t.period)
}

// deriveSlot sets the length of the slots in which leases are held.
func (t *Tier) deriveSlot() {
	switch t.Algorithm {
	case TokenBucket: // half of what the bucket holds: what is leased in a slot then leaves room for what it refills meanwhile
		t.slot = min(max(t.fullIn/2, minSlot), maxSlot)
	case SlidingWindow:
		t.slot = ceilDiv(t.period, max(leastRamp, ceilDiv(t.period, maxSlot)))
	default:
		t.slot = t.period
	}
}

// lease takes what was granted from s, after the need was.
func (t *Tier) lease(s *State, r *Result, g *Grant) {
	if g.Units == 0 && r.slot == 0 {
		return
	}
	switch t.Algorithm {
	case TokenBucket:
		held, until := s.held()
		if until <= r.at {
			held = 0
		}
		s.N -= g.Units * t.den
		s.hold(held+r.need+g.Units, g.At)
		r.n -= g.Units * t.den
	case SlidingLog, SlidingBuckets:
		s.N += g.Units
		if g.Units > 0 {
			s.insert(Stamp{g.At, g.Units})
		}
		r.n += g.Units
		r.m = max(r.m, t.leaves(g.At))
	case LeakyBucket:
	default:
		s.N += g.Units
		r.n += g.Units
	}
}

// adjust corrects s by what Ahead.Adjust says. See there. r is the result of the decision, of the time now.
func (t *Tier) adjust(s *State, owner string, units, at, now int64, r *Result) {
	switch t.Algorithm {
	case FixedWindow, SlidingWindow:
		t.adjustWindow(s, owner, units, at, now)
	case Quota:
		if (s.M == 0 && s.N == 0) || now >= s.M {
			s.At, s.M, s.N = r.start, r.end, 0
		}
		if at >= s.At && at < s.M {
			s.N = min(max(s.N+units, 0), mostCounted)
		}
	case SlidingLog, SlidingBuckets:
		t.adjustStamps(s, units, at, now)
	case TokenBucket:
		t.adjustTokenBucket(s, units, at, now)
	case LeakyBucket:
		switch {
		case units < 0:
			t.hasten(s, -units, now)
		case now-at < t.period:
			t.owe(s, units, now)
		}
	}
}

// adjustWindow corrects the count of the window that contains at, if that is the current one or the one before it.
func (t *Tier) adjustWindow(s *State, owner string, units, at, now int64) {
	s.At, s.N, s.M = t.window(s, t.windowStart(owner, now))
	most := int64(mostCounted)
	if t.Algorithm == SlidingWindow {
		most = MaxSlidingUnits
	}
	switch floorTo(at-s.At, t.period) {
	case 0:
		s.N = min(max(s.N+units, 0), most)
	case -t.period:
		s.M = min(max(s.M+units, 0), most)
	}
}

func (t *Tier) adjustStamps(s *State, units, at, now int64) {
	if t.Algorithm == SlidingBuckets {
		at = floorTo(at, t.width)
	}
	if at < t.oldest(now) || at > now+t.period {
		return
	}
	if units > 0 {
		units = min(units, max(mostCounted-s.N, 0))
		s.N += units
		s.insert(Stamp{at, units})
		return
	}
	for i := range s.Stamps {
		if s.Stamps[i].At == at {
			back := takeBack(&s.Stamps[i].Units, -units)
			s.N -= back
			if s.Stamps[i].Units == 0 {
				s.Stamps = append(s.Stamps[:i], s.Stamps[i+1:]...)
			}
			return
		}
	}
}

// adjustTokenBucket: units that come back were held, so level and outstanding together stay what they were.
func (t *Tier) adjustTokenBucket(s *State, units, at, now int64) {
	if units < 0 {
		if t.release(s, -units, at, now) == 0 {
			t.releaseLate(s, -units, at, now)
		}
		return
	}
	if now-at >= t.fullIn || units == 0 {
		return
	}
	var r Result
	t.evaluateTokenBucket(s, now, &r)
	if t.refundedElsewise(s) {
		s.Stamps[0] = Stamp{r.at, r.background + maxExact}
	}
	late, ended := t.lateAt(s, &r)
	if _, until := s.held(); until <= r.at {
		s.hold(0, 0)
	}
	s.setLate(late, ended)
	s.At, s.N, s.M = r.at, max(r.n-min(units, 2*t.capacity)*t.den, min(r.n, -t.full)), t.Threshold
}

// release puts units that are held in the slot that ends at until back into the bucket, and returns how many.
func (t *Tier) release(s *State, units, until, now int64) int64 {
	held, end := s.held()
	if s.M != t.Threshold || end != until || max(now, s.At) >= end {
		return 0
	}
	units = min(units, held)
	s.N += units * t.den
	s.hold(held-units, end)
	return units
}

// lateAt is what of the slot that ended last may still come back, 1/den units, and when that slot ended. r is the bucket
// evaluated, before it is charged.
//
// Had the units never been leased, the level would be higher by them at the slot's end, and from then on until the bucket
// is full: so what may come back is the least room that there was above the level since. Charges and new leases leave that
// room as it is, for they lower the level and what is held above it alike. Refunds raise the level, which is seen here the
// next time, before anything lowers it.
func (t *Tier) lateAt(s *State, r *Result) (level, ended int64) {
	if s.M != t.Threshold {
		return 0, 0
	}
	if held, until := s.held(); held > 0 && until <= r.at {
		level, ended = min(held, t.capacity)*t.den, until
	} else {
		level, ended = s.late()
	}
	if ended > r.at || r.at >= ended+t.slot {
		return 0, 0
	}
	return max(min(level, t.full-r.m-r.n), 0), ended
}

// releaseLate puts units of the slot that ended at the time ended back into the bucket. Like a refund it takes of the room that
// other refunds have.
func (t *Tier) releaseLate(s *State, units, ended, now int64) {
	var r Result
	t.evaluateTokenBucket(s, now, &r)
	level, of := t.lateAt(s, &r)
	if of != ended || level == 0 {
		return
	}
	give := min(min(units, t.capacity)*t.den, level)
	if _, until := s.held(); until <= r.at {
		s.hold(0, 0)
	}
	s.At, s.N = r.at, r.n+give
	s.setLate(level-give, ended)
	s.stampAs(0, Stamp{r.at, r.background + give})
}

// owe moves a leaky bucket's slot by units that were admitted elsewhere; by a period at most, for it admits nothing until
// then.
func (t *Tier) owe(s *State, units, now int64) {
	slot, frac := s.At, s.N
	if s.M == 0 || slot < now {
		slot, frac = now, 0
	} else if s.M != t.num && frac > 0 {
		slot, frac = slot+1, 0
	}
	spent := min(units, t.Threshold, (maxExact-1)/t.den)*t.den + frac
	s.At, s.N, s.M = min(slot+spent/t.num, now+t.period), spent%t.num, t.num
}

// hasten moves a leaky bucket's slot back by units, to now at most. As many as a charge can have free it now, for rounding and
// what was owed may have put it further than they reach.
func (t *Tier) hasten(s *State, units, now int64) {
	if s.M == 0 || s.At < now {
		return
	}
	slot, frac := s.At, s.N
	if s.M != t.num && frac > 0 {
		slot, frac = slot+1, 0
	}
	if units >= min(t.Threshold, (maxExact-1)/t.den) {
		slot, frac = now, 0
	} else {
		back := units * t.den
		slot, frac = slot-back/t.num, frac-back%t.num
		if frac < 0 {
			slot, frac = slot-1, frac+t.num
		}
	}
	if slot < now {
		slot, frac = now, 0
	}
	s.At, s.N, s.M = slot, frac, t.num
}
