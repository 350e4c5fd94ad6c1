package limit

import "math/bits"

// TokenBucket admits a cost if the bucket holds as many units. The bucket holds at most burst units and refills evenly, by
// rate units in a period. In any time t it admits at most burst + rate·t. Source: the token bucket of RFC 2697, section 3,
// with continuous refill.
//
// Refill and cost are exact integers, because a level is counted in grains: a unit is den grains, and num grains flow in
// each µs, where num/den is rate/period in lowest terms.
//
// A bucket may lease units, which a process spends later without asking. Units that are leased and not yet spent must
// not make room for refill, or burst + rate·t would not hold: level + leased units ≤ burst. They are therefore counted as
// leased until their slot ends. Slots lie on a grid of time, so that all leases of a bucket end together.
const TokenBucket Algorithm = 5

// Sliding buckets and a sliding log admit the threshold in a period, and a bucket its burst and what a period refills.
var tokenBucketKind = kind{
	name: "token_bucket", letter: 't', amountField: amountRate, largest: MaxUnits, hasBurst: true, new: newTokenBucket,
	stricter: []Algorithm{SlidingBuckets, SlidingLog},
}

// tokenBucket has the numbers of a tier.
type tokenBucket struct {
	rate, period, burst int64 // units, µs, units
	num, den            int64 // num grains flow in a µs, and den grains are a unit
	full                int64 // the level of a full bucket, grains
	fullIn              int64 // from empty to full, µs
	slot                int64 // the length of a slot, in which leases end together, µs
}

// TokenBucketState is the state of a token bucket.
type TokenBucketState struct {
	Rate  int64 // the rate by which Level is counted, units per period; 0: the bucket was never used
	AsOf  int64 // the time of Level, µs since 1970
	Level int64 // grains. Below zero, at least -burst, if units were leased ahead of the refill or replayed after an outage

	Refunds Refunds
	Leased  Leased
	Late    Late
}

// Refunds is what was ever refunded to a token bucket. A later refund of another charge takes account of it.
type Refunds struct {
	Total int64 // grains; a change of the rate adds refundEra to it, after which no receipt from before gives anything back
	Last  int64 // when, µs since 1970
}

// Leased is what of a token bucket is leased in the present slot.
type Leased struct {
	Units int64
	Until int64 // the end of the slot, µs since 1970
}

// Late is what of the slot that ended last may still be given back, see lateAt.
type Late struct {
	Level int64 // grains
	Ended int64 // when the slot ended, µs since 1970
}

const (
	minSlot   = 1_000     // µs
	maxSlot   = 2_000_000 // µs
	refundEra = maxExact  // grains; above all that a bucket can hold
)

// TokenBucket is the state as one of a token bucket.
func (s *State) TokenBucket() TokenBucketState {
	st := TokenBucketState{Rate: s.c, AsOf: s.a, Level: s.b}
	if x := s.extra; x != nil {
		st.Refunds, st.Leased, st.Late = x.refunds, x.leased, x.late
	}
	return st
}

// State is the inverse of [State.TokenBucket].
func (st TokenBucketState) State() State {
	var s State
	st.write(&s)
	return s
}

// bucketLevel is what every used bucket has: the numbers of its State.
type bucketLevel struct{ asOf, grains, rate int64 }

func (s *State) bucketLevel() bucketLevel { return bucketLevel{asOf: s.a, grains: s.b, rate: s.c} }

func (l bucketLevel) write(s *State) { s.a, s.b, s.c = l.asOf, l.grains, l.rate }

func (st *TokenBucketState) write(s *State) {
	bucketLevel{st.AsOf, st.Level, st.Rate}.write(s)
	if s.extra != nil || st.Refunds != (Refunds{}) || st.Leased != (Leased{}) || st.Late != (Late{}) {
		x := s.ensureExtra()
		x.refunds, x.leased, x.late = st.Refunds, st.Leased, st.Late
	}
}

// bucketSeen is what a decision has seen of a token bucket, as of its time and before its charge.
type bucketSeen struct {
	asOf, level int64 // level in grains
	leased      int64 // in the slot that has not ended, grains
	leasedUntil int64 // the end of that slot; 0 if nothing is leased
}

func (r *Result) bucket() bucketSeen {
	n := &r.seen
	return bucketSeen{asOf: n.a, level: n.b, leased: n.c, leasedUntil: n.d}
}

func (v bucketSeen) write(r *Result) { r.seen = numbers{v.asOf, v.level, v.leased, v.leasedUntil} }

// refunded is Refunds.Total before the decision, grains.
func (r *Result) refunded() int64 { return r.alsoSeen }

func (r *Result) setRefunded(total int64) { r.alsoSeen = total }

func newTokenBucket(t *Tier, _ *Limit, bad report) algorithm {
	if t.Burst == 0 {
		t.Burst = t.Threshold
	}
	b := &tokenBucket{rate: t.Threshold, period: t.Period.Microseconds(), burst: t.Burst}
	if b.burst < 1 || b.burst > MaxUnits {
		bad("burst", "%d is outside 1..%d", b.burst, int64(MaxUnits))
		return b
	}
	b.num, b.den = lowestTerms(b.rate, b.period)
	if !productFits(b.burst, b.den) {
		bad("burst", "%d with %d per %s cannot be counted exactly (%d·%d is not below 2^52): "+
			"use a rounder rate, a shorter period or a smaller burst", b.burst, b.rate, t.Period, b.burst, b.den)
		return b
	}
	b.full = b.burst * b.den
	b.fullIn = ceilDiv(b.full, b.num)
	// A slot lasts for half of what the bucket holds. What is leased in a slot then leaves room for the refill of that time.
	b.slot = min(max(b.fullIn/2, minSlot), maxSlot)
	return b
}

func (b *tokenBucket) evaluate(s *State, now int64, r *Result) bool {
	l, refunded := s.bucketLevel(), int64(0)
	if l.asOf-maxSkew > now {
		return false
	}
	var seen bucketSeen
	if x := s.extra; x == nil && l.rate == b.rate { // as most buckets are
		seen.asOf, seen.level = b.refilled(b.full, l.asOf, l.grains, now)
	} else {
		if x != nil {
			if x.leased.Until-maxSlot-maxSkew > now {
				return false
			}
			refunded = x.refunds.Total
		}
		seen = b.asOf(s, now)
	}
	seen.write(r)
	r.setRefunded(refunded)
	if r.Never = r.Cost > b.burst; r.Never {
		return true
	}
	need := r.need * b.den
	if r.Admits = seen.level >= need; !r.Admits {
		r.RetryAt = b.reaches(seen, need)
	}
	return true
}

// asOf is the bucket as of now, or as of the time of its state if that is later: its time only moves forward.
func (b *tokenBucket) asOf(s *State, now int64) bucketSeen {
	l := s.bucketLevel()
	if l.rate == 0 { // never used
		return bucketSeen{asOf: now, level: b.full}
	}
	at, level := l.asOf, l.grains
	if l.rate != b.rate {
		level = b.rescaled(level, l.rate)
	}
	if s.extra == nil {
		at, level = b.refilled(b.full, at, level, now)
		return bucketSeen{asOf: at, level: level}
	}
	if units := min(s.extra.leased.Units, b.burst); units > 0 { // a burst that has shrunk since may be less than is leased
		leased, until := units*b.den, s.extra.leased.Until
		if max(now, at) < until {
			at, level = b.refilled(b.full-leased, at, level, now)
			return bucketSeen{asOf: at, level: level, leased: leased, leasedUntil: until}
		}
		if at < until {
			at, level = b.refilled(b.full-leased, at, level, until)
		}
	}
	at, level = b.refilled(b.full, at, level, now)
	return bucketSeen{asOf: at, level: level}
}

// refunds returns what was ever refunded.
func (s *State) refunds() Refunds {
	if s.extra == nil {
		return Refunds{}
	}
	return s.extra.refunds
}

// refilled is the level of the time at, as of now, in a bucket that holds at most full. The level only falls if it was
// above full.
func (b *tokenBucket) refilled(full, at, level, now int64) (int64, int64) {
	elapsed := now - at
	if elapsed <= 0 {
		return at, min(level, full)
	}
	if elapsed >= b.fullIn && (level >= 0 || elapsed > (full-level)/b.num) { // the product might not fit
		return now, full
	}
	return now, min(level+elapsed*b.num, full)
}

// reaches is the first time at which the bucket holds so many grains. Until the leases end it holds no more than full less
// what is leased.
func (b *tokenBucket) reaches(seen bucketSeen, grains int64) int64 {
	at, level := seen.asOf, seen.level
	if room := b.full - seen.leased; seen.leased > 0 && grains > room {
		at, level = b.refilled(room, at, level, max(at, seen.leasedUntil))
	}
	return at + ceilDiv(grains-level, b.num)
}

// rescaled is a level that was counted at another rate, in the grains of this one. It is rounded down, and cut to the
// burst, also below zero. The products pass 64 bits, so they are taken in 128.
func (b *tokenBucket) rescaled(level, rate int64) int64 {
	_, from := lowestTerms(rate, b.period)
	grains := uint64(max(level, -level))
	if int64(grains)/from >= b.burst {
		if level < 0 {
			return -b.full
		}
		return b.full
	}
	hi, lo := bits.Mul64(grains, uint64(b.den))
	q, rest := bits.Div64(hi, lo, uint64(from)) // the quotient is below full, so hi < from
	if level >= 0 {
		return int64(q)
	}
	if rest > 0 {
		q++
	}
	return -int64(q)
}

func (b *tokenBucket) repair(s *State, now int64, _ *Result) {
	l := s.bucketLevel()
	l.asOf = min(l.asOf, now)
	l.write(s)
	if x := s.extra; x != nil {
		if x.leased.Until > now+b.slot {
			s.setLeased(Leased{x.leased.Units, now + b.slot})
		}
		x.late = Late{}
	}
}

func (b *tokenBucket) charge(s *State, _ int64, r *Result) {
	seen := r.bucket()
	if s.extra != nil {
		b.settle(s, seen)
		r.setRefunded(s.extra.refunds.Total)
	}
	bucketLevel{seen.asOf, seen.level - r.need*b.den, b.rate}.write(s)
}

// settle brings what a bucket has beside its level up to the time of seen, before anything is written to the level: leases
// whose slot has ended become late, and a changed rate begins a new era of refunds.
func (b *tokenBucket) settle(s *State, seen bucketSeen) {
	x := s.extra
	if x.refunds.Total > 0 && s.bucketLevel().rate != b.rate {
		x.refunds = Refunds{Total: x.refunds.Total + refundEra, Last: seen.asOf}
	}
	x.late = b.lateAt(s, seen)
	if x.leased.Until <= seen.asOf {
		x.leased = Leased{}
	}
}

// lateAt is what of the slot that ended last may still be given back.
//
// Had the units never been leased, the level would be higher by them at the slot's end, and from then on until the bucket
// is full. So what may come back is the least room that there was above the level since then. Charges and new leases leave
// that room as it is: they lower the level, and what may be held above it, alike. Refunds raise the level, which is seen
// here the next time, before anything lowers it. It may come back for the length of one slot.
func (b *tokenBucket) lateAt(s *State, seen bucketSeen) Late {
	if s.extra == nil || s.bucketLevel().rate != b.rate {
		return Late{}
	}
	late := s.extra.late
	if l := s.extra.leased; l.Units > 0 && l.Until <= seen.asOf {
		late = Late{Level: min(l.Units, b.burst) * b.den, Ended: l.Until}
	}
	if late.Ended > seen.asOf || seen.asOf >= late.Ended+b.slot {
		return Late{}
	}
	late.Level = min(late.Level, b.full-seen.leased-seen.level)
	if late.Level <= 0 {
		return Late{}
	}
	return late
}

func (b *tokenBucket) freshAt(s *State) int64 {
	l := s.bucketLevel()
	if l.rate == 0 {
		return longAgo
	}
	at, level := l.asOf, l.grains
	if l.rate != b.rate {
		level = b.rescaled(level, l.rate)
	}
	if level < b.full {
		at += ceilDiv(b.full-level, b.num)
	}
	if x := s.extra; x != nil {
		at = max(at, x.refunds.Last+b.fullIn) // a receipt from before the last refund must find that refund
		if x.leased.Units > 0 {               // what is leased has not made room for refill
			at = max(at, x.leased.Until+ceilDiv(min(x.leased.Units, b.burst)*b.den, b.num))
		}
	}
	return at
}

func (b *tokenBucket) used(r *Result) int64 {
	return b.burst - floorTo(r.bucket().level-r.Charged*b.den, b.den)/b.den
}

func (b *tokenBucket) resetAt(r *Result) int64 {
	seen := r.bucket()
	return seen.asOf + ceilDiv(b.full-seen.level+r.Charged*b.den, b.num)
}

// moreAt is when the bucket holds one unit more.
func (b *tokenBucket) moreAt(r *Result) int64 {
	seen := r.bucket()
	seen.level -= r.Charged * b.den
	return b.reaches(seen, (r.Remaining()+1)*b.den)
}

func (b *tokenBucket) addUsed(r *Result, units int64) {
	seen := r.bucket()
	seen.level -= units * b.den
	seen.write(r)
}

func (b *tokenBucket) receipt(r *Result, e *ReceiptEntry) {
	seen := r.bucket()
	e.at = seen.asOf
	if e.slotEnd = r.leaseAt; e.slotEnd != 0 { // spent from a lease: it comes back only until the slot ends
		e.end = e.slotEnd
		return
	}
	e.refundedBefore = r.refunded()
	e.headroom = b.full - seen.level - seen.leased
	e.end = seen.asOf + ceilDiv(e.headroom+r.Charged*b.den, b.num)
}

// refund raises the level by what the bucket would hold more had the charge not been made. Without the charge it could
// have gained headroom before running over. Whatever it gained beyond that, by refill or by refunds of other charges,
// would have been lost, and is not given back. So what was admitted and kept is never more than burst + rate·t. A bucket
// whose rate was changed since the charge gives nothing back. The number of units is rounded down.
func (b *tokenBucket) refund(s *State, e *ReceiptEntry, units, now int64) int64 {
	if e.slotEnd != 0 {
		return b.release(s, units, e.slotEnd, now)
	}
	seen := b.asOf(s, max(now, s.bucketLevel().asOf))
	elapsed, others := seen.asOf-e.at, s.refunds().Total-e.refundedBefore
	if s.bucketLevel().rate != b.rate || elapsed < 0 || others < 0 { // another rate; a clock that leapt back; a counter made anew
		return 0
	}
	gained := b.full
	if elapsed < b.fullIn && others < b.full {
		gained = elapsed*b.num + others
	}
	grains := min(units*b.den-max(0, gained-e.headroom), b.full-seen.leased-seen.level)
	if grains <= 0 {
		return 0
	}
	bucketLevel{seen.asOf, seen.level + grains, b.rate}.write(s)
	s.ensureExtra().refunds.Last = seen.asOf
	s.extra.refunds.Total += grains
	return grains / b.den
}

func (b *tokenBucket) offer(s *State, owner string, now int64, ask *LeaseRequest, r *Result) Lease {
	seen, leased := r.bucket(), Leased{}
	if s.extra != nil && s.extra.leased.Until > seen.asOf {
		leased = s.extra.leased
	} else { // else all leases end together, even if the length of slots was changed meanwhile
		leased.Until = b.slotEnd(owner, max(now, seen.asOf))
	}
	granted := Lease{At: leased.Until, Until: leased.Until}
	if ask.wantsLease() {
		r.leaseAt = leased.Until
	}
	level := seen.level - r.need*b.den
	left := min(floorTo(level, b.den)/b.den, b.burst-leased.Units-r.need)
	granted.Upfront = max(left, 0)
	if ask.Ramp { // what is there at the end of the slot, down to a level of -burst now
		most := floorTo(b.full+level, b.den) / b.den
		_, level = b.refilled(b.full, seen.asOf, level, granted.Until)
		left = min(floorTo(level, b.den)/b.den, b.burst-leased.Units-r.need, most)
	}
	granted.Units = ask.units(left)
	if granted.Upfront = min(granted.Upfront, granted.Units); !ask.Ramp {
		granted.Upfront = granted.Units
	}
	return granted
}

// slotEnd is when the slot of now ends. Slots are shifted for each owner, so that not all leases end at once.
func (b *tokenBucket) slotEnd(owner string, now int64) int64 {
	offset := b.slotOffset(owner)
	return floorTo(now-offset, b.slot) + offset + b.slot
}

func (b *tokenBucket) slotOffset(owner string) int64 { return int64(hashText(owner) % uint64(b.slot)) }

func (b *tokenBucket) chargeLease(s *State, r *Result, granted *Lease) {
	if granted.Units == 0 && r.leaseAt == 0 {
		return
	}
	units := r.need + granted.Units
	if s.extra != nil && s.extra.leased.Until > r.bucket().asOf {
		units += s.extra.leased.Units
	}
	l := s.bucketLevel()
	l.grains -= granted.Units * b.den
	l.write(s)
	s.setLeased(Leased{units, granted.At})
	b.addUsed(r, granted.Units)
}

// setLeased sets what is leased.
func (s *State) setLeased(l Leased) {
	if l.Units == 0 {
		l = Leased{}
	}
	if s.extra != nil || l != (Leased{}) {
		s.ensureExtra().leased = l
	}
}

// returnUnspent: in the slot in which the units were leased they go from the leased ones to the level. For one slot more, as
// many of them come back as the bucket would hold more had they never been leased.
func (b *tokenBucket) returnUnspent(s *State, units, at, now int64, _ span) {
	if b.release(s, units, at, now) == 0 {
		b.releaseLate(s, units, at, now)
	}
}

// release moves units that are leased in the slot that ends at until back to the level, and returns how many.
func (b *tokenBucket) release(s *State, units, until, now int64) int64 {
	if s.extra == nil {
		return 0
	}
	l, leased := s.bucketLevel(), s.extra.leased
	if l.rate != b.rate || leased.Until != until || max(now, l.asOf) >= leased.Until {
		return 0
	}
	units = min(units, leased.Units)
	l.grains += units * b.den
	l.write(s)
	s.setLeased(Leased{leased.Units - units, leased.Until})
	return units
}

// releaseLate gives back units of the slot that ended at the time ended. Like a refund it takes of the room that other
// refunds have.
func (b *tokenBucket) releaseLate(s *State, units, ended, now int64) {
	seen := b.asOf(s, now)
	late := b.lateAt(s, seen)
	if late.Ended != ended || late.Level == 0 {
		return
	}
	grains := min(min(units, b.burst)*b.den, late.Level)
	x := s.ensureExtra()
	if x.leased.Until <= seen.asOf {
		x.leased = Leased{}
	}
	bucketLevel{seen.asOf, seen.level + grains, b.rate}.write(s)
	if late.Level -= grains; late.Level == 0 {
		late = Late{}
	}
	x.late = late
	x.refunds = Refunds{Total: x.refunds.Total + grains, Last: seen.asOf}
}

// replay takes the units off the level, down to -burst: the bucket admits nothing until they are refilled.
func (b *tokenBucket) replay(s *State, units, at, now int64, _ span) {
	if now-at >= b.fullIn || units == 0 {
		return
	}
	seen := b.asOf(s, now)
	if s.extra != nil {
		b.settle(s, seen)
	}
	level := max(seen.level-min(units, 2*b.burst)*b.den, min(seen.level, -b.full))
	bucketLevel{seen.asOf, level, b.rate}.write(s)
}

func (b *tokenBucket) params(owner string) Params {
	return Params{
		Period: b.period, Num: b.num, Den: b.den, Full: b.full, FullIn: b.fullIn, SlotLength: b.slot, SlotOffset: b.slotOffset(owner),
	}
}

func (b *tokenBucket) leasing() Leasing {
	return Leasing{Ends: true, Longest: b.slot, Ramps: true, Apart: true, Refills: true}
}

func (b *tokenBucket) leaseEnd(owner string, now int64) (lease, ramp int64) {
	end := b.slotEnd(owner, now)
	return end, end
}

// counting: a bucket has no windows, and after a correction nobody knows how much of it has been refilled meanwhile.
func (b *tokenBucket) counting() Counting { return Counting{AtOnce: b.burst, Lasts: b.fullIn} }

func (b *tokenBucket) forgottenAt(_ string, at int64) int64 { return at + b.fullIn }

func (b *tokenBucket) leasedInSlot(r *Result, units int64) int64 {
	return r.bucket().leased/b.den + units
}
