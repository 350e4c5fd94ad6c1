package limit

// LeakyBucket spaces requests evenly: it admits a cost if its slot has come, and the next slot is then cost·period/rate
// later. In any time t it admits at most rate·t + the largest cost. Source: the generic cell rate algorithm of ITU-T
// I.371, annex A, without tolerance.
//
// It has no units to lease: each decision asks the store.
const LeakyBucket Algorithm = 6

// It cannot be divided: slots of several counters come at the same time.
var leakyBucketKind = kind{
	name: "leaky_bucket", letter: 'l', amountField: amountRate, largest: MaxUnits, indivisible: true, new: newLeakyBucket,
}

type leakyBucket struct {
	rate, period int64 // units, µs
	num, den     int64 // rate/period in lowest terms: num/den units per µs
	atOnce       int64 // the largest cost of the limit's requests, units
}

// LeakyBucketState is the state of a leaky bucket.
type LeakyBucketState struct {
	Slot     int64 // the next slot is free from here on, µs since 1970,
	Fraction int64 // and this many 1/Num µs
	Num      int64 // the numerator of the rate by which Fraction is counted; 0: the bucket was never used
}

// LeakyBucket is the state as one of a leaky bucket.
func (s *State) LeakyBucket() LeakyBucketState {
	return LeakyBucketState{Slot: s.a, Fraction: s.b, Num: s.c}
}

// State is the inverse of [State.LeakyBucket].
func (st LeakyBucketState) State() State { return State{a: st.Slot, b: st.Fraction, c: st.Num} }

// leakySeen is what a decision has seen of a leaky bucket, before its charge.
type leakySeen struct{ slot, fraction, now int64 }

func (r *Result) leakySeen() leakySeen {
	return leakySeen{slot: r.seen.a, fraction: r.seen.b, now: r.seen.c}
}

func (v leakySeen) write(r *Result) { r.seen = numbers{a: v.slot, b: v.fraction, c: v.now} }

func newLeakyBucket(t *Tier, l *Limit, bad report) algorithm {
	b := &leakyBucket{rate: t.Threshold, period: t.Period.Microseconds(), atOnce: max(l.MaxCost, 1)}
	b.num, b.den = lowestTerms(b.rate, b.period)
	largest := min(b.rate, b.atOnce)
	if !productFits(largest, b.den) {
		bad("rate", "%d per %s with a cost of up to %d cannot be counted exactly (%d·%d is not below 2^52): "+
			"use a rounder rate or a shorter period", b.rate, t.Period, largest, largest, b.den)
		return b
	}
	if most := b.most(); most < b.rate { // the rate admits more than slots can be counted in
		l.costMost = min(l.costMost, most)
	}
	return b
}

// most is the largest number of units that the bucket can count with: the rate, or fewer if so many slots pass 2^52.
func (b *leakyBucket) most() int64 { return min(b.rate, (maxExact-1)/b.den) }

// after is the slot, with its fraction, that comes units/rate·period after the time at.
func (b *leakyBucket) after(at, units int64) (slot, fraction int64) {
	spent := units * b.den
	return at + spent/b.num, spent % b.num
}

// next is the slot of the state, with a fraction that is counted at the present rate: another one is rounded up.
func (b *leakyBucket) next(st LeakyBucketState) (slot, fraction int64) {
	switch {
	case st.Num == 0:
		return longAgo, 0
	case st.Num != b.num && st.Fraction > 0:
		return st.Slot + 1, 0
	}
	return st.Slot, st.Fraction
}

func (b *leakyBucket) evaluate(s *State, now int64, r *Result) bool {
	st := s.LeakyBucket()
	if st.Slot-b.period-maxSkew > now {
		return false
	}
	slot, fraction := b.next(st)
	leakySeen{slot, fraction, now}.write(r)
	if r.Never = r.Cost > b.rate; r.Never {
		return true
	}
	if fraction > 0 {
		slot++
	}
	if r.Admits = slot <= now; !r.Admits {
		r.RetryAt = slot
	}
	return true
}

func (b *leakyBucket) repair(s *State, now int64, _ *Result) {
	*s = LeakyBucketState{Slot: now + b.period, Num: s.LeakyBucket().Num}.State()
}

// charge: the cost is admitted, so the slot is not after now.
func (b *leakyBucket) charge(s *State, now int64, r *Result) {
	if r.need == 0 {
		return
	}
	slot, fraction := b.after(now, r.need)
	*s = LeakyBucketState{slot, fraction, b.num}.State()
}

func (b *leakyBucket) freshAt(s *State) int64 {
	st := s.LeakyBucket()
	if st.Num == 0 {
		return longAgo
	}
	return st.Slot + 1
}

// used: between two slots the bucket has room for nothing.
func (b *leakyBucket) used(r *Result) int64 {
	seen := r.leakySeen()
	come := seen.slot < seen.now || seen.slot == seen.now && seen.fraction == 0
	if r.Charged == 0 && come {
		return 0
	}
	return b.rate
}

func (b *leakyBucket) resetAt(r *Result) int64 {
	seen := r.leakySeen()
	if r.Charged > 0 {
		return seen.now + ceilDiv(r.Charged*b.den, b.num)
	}
	if seen.fraction > 0 {
		seen.slot++
	}
	return max(seen.slot, seen.now)
}

// moreAt: if nothing is used, it is when as many units as the rate would have left room, a period from now.
func (b *leakyBucket) moreAt(r *Result) int64 {
	if b.used(r) <= 0 {
		return r.leakySeen().now + b.period
	}
	return b.resetAt(r)
}

// addUsed does nothing: a leaky bucket leases no units, so there are none to add or to take off.
func (b *leakyBucket) addUsed(*Result, int64) {}

func (b *leakyBucket) receipt(r *Result, e *ReceiptEntry) {
	e.at = r.leakySeen().now
	e.slot, e.fraction = b.after(e.at, r.Charged)
	e.end = e.slot + 1
}

// refund moves the slot back, if it is still the one that the charge set: once another charge has been admitted, the wait
// that the refund would shorten has been served.
func (b *leakyBucket) refund(s *State, e *ReceiptEntry, units, _ int64) int64 {
	if s.LeakyBucket() != (LeakyBucketState{e.slot, e.fraction, b.num}) {
		return 0
	}
	slot, fraction := b.after(e.at, e.Units-units)
	*s = LeakyBucketState{slot, fraction, b.num}.State()
	return units
}

func (b *leakyBucket) offer(*State, string, int64, *LeaseRequest, *Result) Lease { return Lease{} }

func (b *leakyBucket) chargeLease(*State, *Result, *Lease) {}

// returnUnspent moves the slot back by the units, to now at most. As many as a charge can have free it now, for rounding and
// replays may have put it further off than they reach.
func (b *leakyBucket) returnUnspent(s *State, units, _, now int64, _ span) {
	st := s.LeakyBucket()
	if st.Num == 0 || st.Slot < now {
		return
	}
	slot, fraction := b.next(st)
	if units >= b.most() {
		slot, fraction = now, 0
	} else {
		back := units * b.den
		slot, fraction = slot-back/b.num, fraction-back%b.num
		if fraction < 0 {
			slot, fraction = slot-1, fraction+b.num
		}
	}
	if slot < now {
		slot, fraction = now, 0
	}
	*s = LeakyBucketState{slot, fraction, b.num}.State()
}

// replay moves the slot on by the units, to a period from now at most, for the bucket admits nothing until then.
func (b *leakyBucket) replay(s *State, units, at, now int64, _ span) {
	if now-at >= b.period {
		return
	}
	st := s.LeakyBucket()
	slot, fraction := b.next(st)
	if st.Num == 0 || st.Slot < now {
		slot, fraction = now, 0
	}
	spent := min(units, b.most())*b.den + fraction
	*s = LeakyBucketState{min(slot+spent/b.num, now+b.period), spent % b.num, b.num}.State()
}

func (b *leakyBucket) leasing() Leasing { return Leasing{None: true} }

func (b *leakyBucket) leaseEnd(string, int64) (lease, ramp int64) { return 0, 0 }

// counting: a cost of the whole rate moves the next slot one period ahead.
func (b *leakyBucket) counting() Counting {
	return Counting{AtOnce: b.atOnce, Lasts: b.period, Windows: 1}
}

func (b *leakyBucket) forgottenAt(_ string, at int64) int64 { return at + b.period }

func (b *leakyBucket) params(string) Params { return Params{Period: b.period, Num: b.num, Den: b.den} }

func (b *leakyBucket) leasedInSlot(*Result, int64) int64 { return 0 }
