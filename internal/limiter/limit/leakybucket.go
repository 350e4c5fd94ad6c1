package limit

// LeakyBucket spaces requests evenly: it admits a cost if the next free time has come. The next free time is then
// cost·period/rate after the time of the charge. In any time t it admits at most rate·t/period + the largest cost.
// Source: the generic cell rate algorithm of ITU-T I.371, annex A, without tolerance.
//
// It has no units to lease: each decision asks the store.
const LeakyBucket Algorithm = 6

// A limit cannot be divided: two counters, each with half of the rate, could admit requests at the same instant.
var leakyBucketKind = kind{
	name: "leaky_bucket", letter: 'l', amountField: amountRate, largest: MaxUnits, indivisible: true,
	new: newLeakyBucket,
}

type leakyBucket struct {
	rate, period int64 // units, µs
	num, den     int64 // rate/period in lowest terms: num/den units per µs
}

// LeakyBucketState is the state of a leaky bucket. NextFree + Fraction/Num is the time, in µs since 1970, from which on
// the next cost is admitted.
type LeakyBucketState struct {
	NextFree int64 // µs since 1970
	Fraction int64 // in 1/Num µs, 0..Num-1
	Num      int64 // the numerator of the rate, in lowest terms, at the last charge; 0: the bucket was never used
}

// LeakyBucket returns s as the state of a leaky bucket.
func (s *State) LeakyBucket() LeakyBucketState {
	return LeakyBucketState{NextFree: s.a, Fraction: s.b, Num: s.c}
}

// State is the inverse of [State.LeakyBucket].
func (st LeakyBucketState) State() State { return State{a: st.NextFree, b: st.Fraction, c: st.Num} }

// leakySeen is what a decision has seen of a leaky bucket before its charge. now is the time of the decision.
type leakySeen struct{ nextFree, fraction, now int64 }

func (r *Result) leakySeen() leakySeen {
	return leakySeen{nextFree: r.seen.a, fraction: r.seen.c, now: r.seen.d}
}

func (v leakySeen) write(r *Result) { r.seen = numbers{a: v.nextFree, c: v.fraction, d: v.now} }

func newLeakyBucket(t *Tier, l *Limit, bad report) algorithm {
	b := &leakyBucket{rate: t.Threshold, period: t.Period.Microseconds()}
	b.num, b.den = lowestTerms(b.rate, b.period)
	if l.Unit != Requests {
		bad("algorithm", "%s cannot count %s: it can owe no more than one period, and a request may turn out to use "+
			"more than it was charged; use token_bucket", t.Algorithm, l.Unit)
		return b
	}
	largest := min(b.rate, max(l.MaxCost, 1))
	if !productFits(largest, b.den) {
		bad("rate", "%d per %s with a cost of up to %d cannot be counted exactly (%d·%d is not below 2^52): "+
			"use a rounder rate or a shorter period", b.rate, t.Period, largest, largest, b.den)
		return b
	}
	if most := b.most(); most < b.rate { // costs above most could not be counted exactly
		l.costMost = min(l.costMost, most)
	}
	return b
}

// most returns the largest number of units that the bucket can count with: the rate, or less if units·den would reach
// 2^52.
func (b *leakyBucket) most() int64 { return min(b.rate, (maxExact-1)/b.den) }

// after returns the time units·period/rate after the time given by the parameter at, with its fraction of a µs.
func (b *leakyBucket) after(at, units int64) (nextFree, fraction int64) {
	spent := units * b.den
	return at + spent/b.num, spent % b.num
}

// nextFree returns the next free time of the state. A fraction that was counted at another rate is rounded up to a
// whole µs.
func (b *leakyBucket) nextFree(st LeakyBucketState) (nextFree, fraction int64) {
	switch {
	case st.Num == 0:
		return longAgo, 0
	case st.Num != b.num && st.Fraction > 0:
		return st.NextFree + 1, 0
	}
	return st.NextFree, st.Fraction
}

func (b *leakyBucket) evaluate(s *State, now int64, r *Result) bool {
	st := s.LeakyBucket()
	if st.NextFree-b.period-maxSkew > now {
		return false
	}
	nextFree, fraction := b.nextFree(st)
	leakySeen{nextFree, fraction, now}.write(r)
	if r.Never = r.Cost > b.rate; r.Never {
		return true
	}
	if fraction > 0 {
		nextFree++
	}
	if r.Admits = nextFree <= now; !r.Admits {
		r.RetryAt = nextFree
	}
	return true
}

// repair moves the next free time to one period from now, the latest that a charge can set.
func (b *leakyBucket) repair(s *State, now int64, _ *Result) {
	*s = LeakyBucketState{NextFree: now + b.period, Num: s.LeakyBucket().Num}.State()
}

// charge sets the next free time as of now. The cost is admitted, so the old next free time is not after now.
func (b *leakyBucket) charge(s *State, now int64, r *Result) {
	if r.need == 0 {
		return
	}
	nextFree, fraction := b.after(now, r.need)
	*s = LeakyBucketState{nextFree, fraction, b.num}.State()
}

func (b *leakyBucket) freshAt(s *State) int64 {
	st := s.LeakyBucket()
	if st.Num == 0 {
		return longAgo
	}
	return st.NextFree + 1
}

// used returns 0 or the whole rate: until the next free time the bucket has room for nothing.
func (b *leakyBucket) used(r *Result) int64 {
	seen := r.leakySeen()
	free := seen.nextFree < seen.now || seen.nextFree == seen.now && seen.fraction == 0
	if r.Charged == 0 && free {
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
		seen.nextFree++
	}
	return max(seen.nextFree, seen.now)
}

// moreAt is, if nothing is used, the next free time that a charge of the whole rate would set: one period from now.
func (b *leakyBucket) moreAt(r *Result) int64 {
	if b.used(r) <= 0 {
		return r.leakySeen().now + b.period
	}
	return b.resetAt(r)
}

// perUnit is 0: a leaky bucket leases no units, so there are none to add or to take off.
func (b *leakyBucket) perUnit() int64 { return 0 }

func (b *leakyBucket) receipt(r *Result, e *ReceiptEntry) {
	e.at = r.leakySeen().now
	e.nextFree, e.fraction = b.after(e.at, r.Charged)
	e.end = e.nextFree + 1
}

// refund moves the next free time back, if it is still the one that the charge set. Once another charge has been
// admitted, the wait that the refund would shorten is over.
func (b *leakyBucket) refund(s *State, e *ReceiptEntry, units, _ int64) int64 {
	if s.LeakyBucket() != (LeakyBucketState{e.nextFree, e.fraction, b.num}) {
		return 0
	}
	nextFree, fraction := b.after(e.at, e.Units-units)
	*s = LeakyBucketState{nextFree, fraction, b.num}.State()
	return units
}

func (b *leakyBucket) offer(*State, string, int64, *LeaseRequest, *Result) Lease { return Lease{} }

func (b *leakyBucket) chargeLease(*State, *Result, *Lease) {}

// returnUnspent moves the next free time back by the given units, to now at most. As many units as the largest charge
// can have move it to now in any case: because of rounding and replays, it may lie further ahead than these units
// reach.
func (b *leakyBucket) returnUnspent(s *State, units, _, now int64, _ span) {
	st := s.LeakyBucket()
	if st.Num == 0 || st.NextFree < now {
		return
	}
	nextFree, fraction := b.nextFree(st)
	if units >= b.most() {
		nextFree, fraction = now, 0
	} else {
		back := units * b.den
		nextFree, fraction = nextFree-back/b.num, fraction-back%b.num
		if fraction < 0 {
			nextFree, fraction = nextFree-1, fraction+b.num
		}
	}
	if nextFree < now {
		nextFree, fraction = now, 0
	}
	*s = LeakyBucketState{nextFree, fraction, b.num}.State()
}

// replay moves the next free time later by the given units, to one period from now at most. The bucket admits nothing
// before.
func (b *leakyBucket) replay(s *State, units, at, now int64, _ span) int64 {
	if now-at >= b.period {
		return 0
	}
	st := s.LeakyBucket()
	nextFree, fraction := b.nextFree(st)
	if st.Num == 0 || st.NextFree < now {
		nextFree, fraction = now, 0
	}
	units = min(units, b.most())
	spent := units*b.den + fraction
	later := min(nextFree+spent/b.num, now+b.period)
	*s = LeakyBucketState{later, spent % b.num, b.num}.State()
	if later < now+b.period {
		return units
	}
	return min(units, scaledUp(max(later-nextFree, 0), b.num, b.den))
}

func (b *leakyBucket) leasing() Leasing { return Leasing{None: true} }

func (b *leakyBucket) leaseEnd(string, int64) (lease, ramp int64) { return 0, 0 }

// counting: a cost of the whole rate moves the next free time one period ahead.
func (b *leakyBucket) counting() Counting {
	return Counting{Lasts: b.period, Windows: 1}
}

func (b *leakyBucket) forgottenAt(_ string, at int64) int64 { return at + b.period }

func (b *leakyBucket) params(string) Params { return Params{Period: b.period, Num: b.num, Den: b.den} }

func (b *leakyBucket) leasedInSlot(*Result, int64) int64 { return 0 }
