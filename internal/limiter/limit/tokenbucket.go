package limit

import "math/bits"

// TokenBucket admits a cost if the bucket holds as many units. The bucket holds at most burst units and refills evenly,
// by rate units in a period. In any time t it admits at most burst + rate·t. Source: the token bucket of RFC 2697,
// section 3, with continuous refill.
//
// Refill and cost are exact integers, because a level is counted in grains: a unit is den grains, and num grains flow
// in each µs, where num/den is rate/period in lowest terms. With a rate of 3 units in 2 s, a unit is 2,000,000 grains,
// and 3 grains flow in each µs.
//
// The state says how much the bucket misses until it is full, not how much it holds: what was consumed stays consumed
// when the burst changes. If 5 of a burst of 5 are missing and the burst becomes 50, the bucket holds 45. If 50 of a
// burst of 50 are missing and the burst becomes 5, the level is -45, and rises to 0 before anything is admitted.
//
// A bucket may lease units, which a process spends later without asking. Units that are leased and not yet spent must
// not make room for refill, or burst + rate·t would not hold. So the bucket counts what is leased apart from its level,
// and keeps level + leased ≤ burst, until the slot of the lease ends. The bucket does not know which leased units have
// been spent, so it counts all of them. Slots are intervals on a grid of time: all leases of a bucket end together.
const TokenBucket Algorithm = 5

var tokenBucketKind = kind{
	name: "token_bucket", letter: 't', amountField: amountRate, largest: MaxUnits, hasBurst: true, new: newTokenBucket,
	// In one period these two admit the threshold, and a token bucket its burst and the rate.
	stricter: []Algorithm{SlidingBuckets, SlidingLog},
}

// tokenBucket has the numbers of a tier.
type tokenBucket struct {
	rate, period, burst int64 // units, µs, units
	num, den            int64 // num grains flow in a µs, and den grains are a unit
	full                int64 // the level of a full bucket: burst·den, grains
	fullIn              int64 // the time from empty to full, µs
	slotLength          int64 // of the intervals in which leases end together, µs
}

// TokenBucketState is the state of a token bucket.
type TokenBucketState struct {
	Rate int64 // units per period, the rate whose grains Missing is in; 0: the bucket was never used
	AsOf int64 // the time of Missing, µs since 1970

	// Missing is what the bucket misses until it is full, in grains, 0..2^53. It is above full after a ramp was leased,
	// after a replay, and if the burst was larger before.
	Missing int64

	Refunds Refunds
	Leased  Leased
	Late    Late
}

// Refunds is what refunds and late returns of leases have put back into a token bucket. A receipt notes the total as of
// its charge, so a refund learns what others put back since then.
type Refunds struct {
	Total int64 // grains, 0..refundEras·refundEra−1. Once it is above 0, each change of the rate adds refundEra
	Last  int64 // when Total changed last, µs since 1970
}

// Leased is what of a token bucket is leased in the slot that ends at Until, which may be over.
type Leased struct {
	Units int64
	Until int64 // µs since 1970
}

// Late is what may still be given back of the leases whose slot ended last, see lateAt.
type Late struct {
	Level int64 // grains
	Ended int64 // when the slot ended, µs since 1970
}

const (
	minSlot = 1_000     // µs
	maxSlot = 2_000_000 // µs

	// refundEra is more grains than a bucket can hold. A receipt from before it was added finds that more was refunded
	// since its charge than the bucket holds. Its units and its headroom together are at most what the bucket holds, so
	// it gives nothing back.
	refundEra = maxExact

	// refundEras is how many eras there are until the total begins at 0 again. A receipt from before that finds a
	// smaller total than its own, and gives nothing back.
	refundEras = 256
)

// plus is the total after so many more grains, at most refundEra, were refunded.
func (r Refunds) plus(grains, at int64) Refunds {
	return Refunds{Total: (r.Total + grains) % (refundEras * refundEra), Last: at}
}

// TokenBucket is the state as one of a token bucket.
func (s *State) TokenBucket() TokenBucketState {
	st := TokenBucketState{Rate: s.c, AsOf: s.a, Missing: s.b}
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

// bucketMissing is what every used bucket has: the three numbers of its State.
type bucketMissing struct{ asOf, grains, rate int64 }

func (s *State) bucketMissing() bucketMissing {
	return bucketMissing{asOf: s.a, grains: s.b, rate: s.c}
}

func (m bucketMissing) write(s *State) { s.a, s.b, s.c = m.asOf, m.grains, m.rate }

// setLevel writes the level of a time. If the state misses more than the present burst by a faster rate, and still
// does, it keeps that rate (see missing).
//
// If the rate of the state changes, receipts from before give nothing back from now on. A bucket to which nothing was
// ever refunded has no total that could say so: its receipts are refused while another rate applies, and are valid
// again if the old rate comes back.
func (b *tokenBucket) setLevel(s *State, asOf, level int64) {
	is, _, keeps := b.byFasterRate(s.bucketMissing(), asOf, level)
	if !keeps {
		is = bucketMissing{asOf, b.full - level, b.rate}
	}
	is.replace(s)
}

// byFasterRate returns what a bucket of the given level misses, in grains of the rate of its state, and how many of
// these are a unit. It returns false if the state need not keep that rate, see setLevel.
func (b *tokenBucket) byFasterRate(was bucketMissing, asOf, level int64) (is bucketMissing, den int64, keeps bool) {
	if level >= 0 || was.rate <= b.rate {
		return bucketMissing{}, 0, false
	}
	num, den := lowestTerms(was.rate, b.period)
	if was.grains/den < b.burst {
		return bucketMissing{}, 0, false
	}
	return bucketMissing{asOf, b.burst*den + scaledUp(-level, num, b.num), was.rate}, den, true
}

// replace writes what is missing. If the rate changes, receipts from before give nothing back, see setLevel.
func (m bucketMissing) replace(s *State) {
	was := s.bucketMissing()
	m.write(s)
	if x := s.extra; x != nil && x.refunds.Total > 0 && m.rate != was.rate {
		x.refunds = x.refunds.plus(refundEra, m.asOf)
	}
}

func (st *TokenBucketState) write(s *State) {
	bucketMissing{st.AsOf, st.Missing, st.Rate}.write(s)
	if s.extra != nil || st.Refunds != (Refunds{}) || st.Leased != (Leased{}) || st.Late != (Late{}) {
		x := s.ensureExtra()
		x.refunds, x.leased, x.late = st.Refunds, st.Leased, st.Late
	}
}

// bucketSeen is what a decision has seen of a token bucket, as of its time. The charge of the request is not in it. A
// lease that the decision grants is in level, and not in leased.
type bucketSeen struct {
	asOf, level int64 // µs since 1970, grains
	leased      int64 // in the slot that has not ended, grains
	leasedUntil int64 // the end of that slot, µs since 1970; 0 if nothing is leased
}

func (r *Result) bucket() bucketSeen {
	n := &r.seen
	return bucketSeen{asOf: n.a, level: n.amount, leased: n.c, leasedUntil: n.d}
}

func (v bucketSeen) write(r *Result) { r.seen = numbers{v.asOf, v.level, v.leased, v.leasedUntil} }

// refunded is Refunds.Total as of the charge, grains.
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
	// A slot lasts for half of the time in which an empty bucket fills, within minSlot and maxSlot. Until it ends,
	// nothing refills in place of leased units. If the level and the leased units together are at most half of the
	// bucket, the bucket is not full before the slot ends, and so loses no refill.
	b.slotLength = min(max(b.fullIn/2, minSlot), maxSlot)
	return b
}

func (b *tokenBucket) evaluate(s *State, now int64, r *Result) bool {
	m := s.bucketMissing()
	if m.asOf-maxSkew > now {
		return false
	}
	var seen bucketSeen
	if s.extra == nil && m.rate == b.rate { // what seenAt comes to for most buckets
		seen.asOf, seen.level = b.refilled(b.full, m.asOf, b.full-m.grains, now)
	} else {
		// No slot is longer than maxSlot, whatever the burst was then.
		if x := s.extra; x != nil && x.leased.Until-maxSlot-maxSkew > now {
			return false
		}
		seen = b.seenAt(s, now)
	}
	seen.write(r)
	r.setRefunded(s.refunds().Total)
	if r.Never = r.Cost > b.burst; r.Never {
		return true
	}
	need := r.need * b.den
	if r.Admits = seen.level >= need; !r.Admits {
		r.RetryAt = b.reaches(seen, need)
	}
	return true
}

// seenAt is the bucket as of now, or as of the time of its state if that is later. If the rate was changed, the bucket
// refills by the present rate from the time of its state on, since nobody knows when the change was.
func (b *tokenBucket) seenAt(s *State, now int64) bucketSeen {
	m := s.bucketMissing()
	if m.rate == 0 { // never used
		return bucketSeen{asOf: now, level: b.full}
	}
	at, level := m.asOf, b.full-b.missing(m)
	if s.extra == nil {
		at, level = b.refilled(b.full, at, level, now)
		return bucketSeen{asOf: at, level: level}
	}
	if leased := b.leasedGrains(s); leased > 0 {
		until := s.extra.leased.Until
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

func (s *State) refunds() Refunds {
	if s.extra == nil {
		return Refunds{}
	}
	return s.extra.refunds
}

func (s *State) leased() Leased {
	if s.extra == nil {
		return Leased{}
	}
	return s.extra.leased
}

// refilled brings the level of the time at up to now, or leaves it at that time if now is earlier. The bucket holds at
// most full grains; a level above that is cut.
func (b *tokenBucket) refilled(full, at, level, now int64) (asOf, refilled int64) {
	elapsed := now - at
	if elapsed <= 0 {
		return at, min(level, full)
	}
	// it is full; elapsed·num may not fit 64 bits
	if elapsed >= b.fullIn && (level >= 0 || elapsed > (full-level)/b.num) {
		return now, full
	}
	return now, min(level+elapsed*b.num, full)
}

// reaches is the first time at which the bucket holds so many grains, if nothing is charged. Until its slot of leases
// ends, it holds at most full − leased.
func (b *tokenBucket) reaches(seen bucketSeen, grains int64) int64 {
	at, level := seen.asOf, seen.level
	if most := b.full - seen.leased; seen.leased > 0 && grains > most {
		at, level = b.refilled(most, at, level, max(at, seen.leasedUntil))
	}
	return at + ceilDiv(grains-level, b.num)
}

// missing returns the grains that the bucket misses as of the time of its state.
//
// If the rate was changed, what is missing of the present burst stays missing, in units. What is missing beyond that,
// because the burst was lowered, refills at the faster of the two rates. So no wait is longer than the bucket of before
// takes to fill, and then the present one. And while processes with the old and with the new limit charge in turn, they
// together admit no more than the larger limit does.
//
// The period is the same for both rates, because it is part of the counter's identity.
func (b *tokenBucket) missing(m bucketMissing) int64 {
	if m.rate == b.rate {
		return m.grains
	}
	num, den := lowestTerms(m.rate, b.period)
	if m.grains/den < b.burst {
		return scaledUp(m.grains, b.den, den)
	}
	beyond := m.grains - b.burst*den
	if m.rate > b.rate {
		return b.full + scaledUp(beyond, b.num, num)
	}
	return b.full + scaledUp(beyond, b.den, den)
}

// scaledUp returns v·a/by, rounded up, at most maxExact. v must be at least 0, the others above 0. The product may
// exceed 64 bits, so it is computed in 128.
func scaledUp(v, a, by int64) int64 {
	hi, lo := bits.Mul64(uint64(v), uint64(a))
	if hi >= uint64(by) {
		return maxExact
	}
	q, rest := bits.Div64(hi, lo, uint64(by))
	if rest > 0 {
		q++
	}
	return int64(min(q, maxExact))
}

// leasedGrains returns what is leased in the slot of the state, which may be over. If the burst was lowered, this may
// be more than the bucket holds when it is full, but it is never more than what is missing. If the rate was lowered,
// too, what is missing beyond the burst counts for less (see missing). Then all that is missing is leased, also the
// part of a unit: otherwise that part would refill before the slot ends.
func (b *tokenBucket) leasedGrains(s *State) int64 {
	missing := b.missing(s.bucketMissing())
	if units := s.leased().Units; units <= missing/b.den {
		return units * b.den
	}
	return missing
}

// repair keeps what is missing and the leased units, and moves those times that no correct clock could have set: the
// time of the state after now, a slot's end more than a slot's length after now. It drops what might still be returned
// of an earlier slot, because nobody can tell when that ended.
func (b *tokenBucket) repair(s *State, now int64, _ *Result) {
	m := s.bucketMissing()
	m.asOf = min(m.asOf, now)
	m.write(s)
	if x := s.extra; x != nil {
		if x.leased.Until > now+b.slotLength {
			s.setLeased(Leased{x.leased.Units, now + b.slotLength})
		}
		x.late = Late{}
		x.refunds.Last = min(x.refunds.Last, now)
	}
}

func (b *tokenBucket) charge(s *State, _ int64, r *Result) {
	seen := r.bucket()
	b.closeSlot(s, seen)
	b.setLevel(s, seen.asOf, seen.level-r.need*b.den)
	r.setRefunded(s.refunds().Total)
}

// closeSlot brings the extra of a bucket up to the time of seen. It is called before a level is written. If the slot of
// the leases has ended, they become late.
func (b *tokenBucket) closeSlot(s *State, seen bucketSeen) {
	x := s.extra
	if x == nil {
		return
	}
	x.late = b.lateAt(s, seen)
	if x.leased.Until <= seen.asOf {
		x.leased = Leased{}
	}
}

// lateAt is what may still be given back of the leases whose slot ended last, as of the time of seen. It is nothing
// once a slot's length has passed since then.
//
// If the unspent units had not been leased, the level at the slot's end would be higher by that number. It would stay
// higher until it reached the top of the bucket, where refill is lost. So what may come back is at most the least room
// that was above the level at any time since. For example, a bucket of 10 holds 4 when the slot ends, and 3 units were
// not spent. It refills to 9, and then 5 are charged. With the 3 units it would have been full before the charge, and
// would hold 5. It holds 4, so 1 unit may come back, for which there was room above the 9.
//
// The level only rises, by refill or by a refund, until something lowers it. Whatever lowers it calls lateAt before
// that, by closeSlot, and so no room is missed. The bucket does not know which units were spent, so it begins
// with all leased ones; whoever gives back names how many were not.
func (b *tokenBucket) lateAt(s *State, seen bucketSeen) Late {
	if s.extra == nil || s.bucketMissing().rate != b.rate {
		return Late{}
	}
	late := s.extra.late
	if l := s.extra.leased; l.Units > 0 && l.Until <= seen.asOf {
		late = Late{Level: b.leasedGrains(s), Ended: l.Until}
	}
	if late.Ended > seen.asOf || seen.asOf >= late.Ended+b.slotLength {
		return Late{}
	}
	late.Level = min(late.Level, b.full-seen.leased-seen.level)
	if late.Level <= 0 {
		return Late{}
	}
	return late
}

func (b *tokenBucket) freshAt(s *State) int64 {
	m := s.bucketMissing()
	if m.rate == 0 {
		return longAgo
	}
	at := m.asOf + ceilDiv(b.missing(m), b.num)
	if x := s.extra; x != nil {
		// receipts are valid for fullIn, and those from before must find the refund
		at = max(at, x.refunds.Last+b.fullIn)
		if x.leased.Units > 0 { // what is leased begins to refill at the end of its slot
			at = max(at, x.leased.Until+ceilDiv(b.leasedGrains(s), b.num))
		}
	}
	return at
}

func (b *tokenBucket) used(r *Result) int64 {
	return b.burst - floorTo(r.bucket().level-r.Charged*b.den, b.den)/b.den
}

func (b *tokenBucket) resetAt(r *Result) int64 {
	seen := r.bucket()
	seen.level -= r.Charged * b.den
	return b.reaches(seen, b.full)
}

// moreAt is when the bucket holds one unit more.
func (b *tokenBucket) moreAt(r *Result) int64 { return b.fitsAt(r, r.Remaining()+1) }

func (b *tokenBucket) fitsAt(r *Result, units int64) int64 {
	seen := r.bucket()
	seen.level = min(seen.level-r.Charged*b.den, b.full)
	return b.reaches(seen, units*b.den)
}

func (b *tokenBucket) age(r *Result, now int64) {
	seen := r.bucket()
	seen.asOf, seen.level = b.refilled(b.full, seen.asOf, seen.level, now)
	seen.write(r)
}

func (b *tokenBucket) hold(r *Result, units int64) {
	if r.leaseAt != 0 {
		seen := r.bucket()
		seen.leased, seen.leasedUntil = units*b.den, r.leaseAt
		seen.write(r)
	}
}

func (b *tokenBucket) perUnit() int64 { return -b.den }

func (b *tokenBucket) receipt(r *Result, e *ReceiptEntry) {
	seen := r.bucket()
	e.at = seen.asOf
	// the charge is counted as leased, and comes back only until the slot ends
	if e.slotEnd = r.leaseAt; e.slotEnd != 0 {
		e.end = e.slotEnd
		return
	}
	e.refundedBefore = r.refunded()
	e.headroom = b.full - seen.level - seen.leased
	e.end = seen.asOf + ceilDiv(e.headroom+r.Charged*b.den, b.num)
}

// refund raises the level by what the bucket would hold more if the charge had not been made, or by less. Without the
// charge, the bucket could have gained its headroom as of the charge before running over. Whatever it has gained beyond
// that since then, by refill or by refunds of other charges, would have been lost, and is not given back. For example,
// a bucket of 10 holds 8, and 5 are charged. When 4 have been refilled it holds 7. Without the charge it would hold 10,
// and would have lost 2 of the 4. So 3 units come back. What was admitted and not refunded never exceeds burst +
// rate·t. Charges that came later would have made room for some of the loss; they are not known, so a busy bucket gives
// back less than it might. If the rate was changed since the charge, nothing is given back. The number of units is
// rounded down.
//
// A bucket that a store has lost and made anew knows the receipts of the lost one only by a total of refunds above its
// own, or a time after its own. Otherwise it may give back units that were charged since.
func (b *tokenBucket) refund(s *State, e *ReceiptEntry, units, now int64) int64 {
	if e.slotEnd != 0 {
		return b.release(s, units, e.slotEnd, now)
	}
	seen := b.seenAt(s, max(now, s.bucketMissing().asOf))
	elapsed, others := seen.asOf-e.at, s.refunds().Total-e.refundedBefore
	// another rate; the clock stepped back; the counter or the total is new
	if s.bucketMissing().rate != b.rate || elapsed < 0 || others < 0 {
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
	b.setLevel(s, seen.asOf, seen.level+grains)
	x := s.ensureExtra()
	x.refunds = x.refunds.plus(grains, seen.asOf)
	return grains / b.den
}

func (b *tokenBucket) offer(s *State, owner string, now int64, ask *LeaseRequest, r *Result) Lease {
	// A lease joins the slot that is open, even if slots have another length by now, so that all leases end together.
	seen, leased := r.bucket(), s.leased()
	if leased.Until <= seen.asOf {
		leased = Leased{Until: b.slotEnd(owner, max(now, seen.asOf))}
	}
	granted := Lease{At: leased.Until, Until: leased.Until}
	if ask.wantsLease() {
		r.leaseAt = leased.Until
	}
	level := seen.level - r.need*b.den
	left := min(floorTo(level, b.den)/b.den, b.burst-leased.Units-r.need)
	granted.Upfront = max(left, 0)
	if ask.Ramp { // what the bucket will hold at the end of the slot; but the lease must not put the level below -full
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

// slotEnd is when the slot that contains now ends. Slots are shifted for each owner, so that not all leases end at
// once.
func (b *tokenBucket) slotEnd(owner string, now int64) int64 {
	offset := b.slotOffset(owner)
	return floorTo(now-offset, b.slotLength) + offset + b.slotLength
}

func (b *tokenBucket) slotOffset(owner string) int64 {
	return int64(hashText(owner) % uint64(b.slotLength))
}

func (b *tokenBucket) chargeLease(s *State, r *Result, granted *Lease) {
	if granted.Units == 0 && r.leaseAt == 0 {
		return
	}
	units := r.need + granted.Units
	if open := s.leased(); open.Until > r.bucket().asOf {
		units += open.Units
	}
	seen := r.bucket()
	b.setLevel(s, seen.asOf, seen.level-(r.need+granted.Units)*b.den)
	s.setLeased(Leased{units, granted.At})
	r.addUsed(granted.Units)
}

func (s *State) setLeased(l Leased) {
	if l.Units == 0 {
		l = Leased{}
	}
	if s.extra != nil || l != (Leased{}) {
		s.ensureExtra().leased = l
	}
}

// returnUnspent returns units that were not spent. Until the slot in which they were leased ends, they move from the
// leased units to the level. For the length of one slot after that, as many come back as lateAt allows.
func (b *tokenBucket) returnUnspent(s *State, units, at, now int64, _ span) {
	if b.release(s, units, at, now) == 0 {
		b.releaseLate(s, units, at, now)
	}
}

// release moves units that are leased in the slot that ends at until back to the level, and returns how many. It need
// not refill the bucket first: the level and the most that it may be rise by the same number.
func (b *tokenBucket) release(s *State, units, until, now int64) int64 {
	if s.extra == nil {
		return 0
	}
	m, leased := s.bucketMissing(), s.leased()
	if m.rate != b.rate || leased.Until != until || max(now, m.asOf) >= leased.Until {
		return 0
	}
	units = min(units, leased.Units)
	m.grains -= units * b.den
	m.write(s)
	s.setLeased(Leased{leased.Units - units, leased.Until})
	return units
}

// releaseLate gives back units of the slot that ended at the time until. They are added to the total of refunds,
// because refunds of other charges must not count on the same headroom.
func (b *tokenBucket) releaseLate(s *State, units, until, now int64) {
	seen := b.seenAt(s, now)
	late := b.lateAt(s, seen)
	if late.Ended != until || late.Level == 0 {
		return
	}
	grains := min(min(units, b.burst)*b.den, late.Level)
	x := s.ensureExtra()
	if x.leased.Until <= seen.asOf {
		x.leased = Leased{}
	}
	b.setLevel(s, seen.asOf, seen.level+grains)
	if late.Level -= grains; late.Level == 0 {
		late = Late{}
	}
	x.late = late
	x.refunds = x.refunds.plus(grains, seen.asOf)
}

// replay takes the units off the present level. The parameter at is the time up to which the caller has left out what
// was refilled since the units were admitted. What has been refilled after that is not left out here. Units as of a
// time more than fullIn ago are ignored. The level does not fall below -full, so that an error of the caller is repaid
// soon; units of AtDecision were used for certain, and take it as low as the state can hold.
func (b *tokenBucket) replay(s *State, units, at, now int64, _ span) int64 {
	if now-at >= b.fullIn || units == 0 {
		return 0
	}
	seen := b.seenAt(s, now)
	b.closeSlot(s, seen)
	if at == AtDecision {
		// The state counts grains of a faster rate. The units are added as such grains: as grains of the present rate,
		// they would be scaled up with what is missing beyond the burst, and become more units.
		if is, den, keeps := b.byFasterRate(s.bucketMissing(), seen.asOf, seen.level); keeps {
			units = min(units, max(0, maxExact-is.grains)/den)
			is.grains += units * den
			is.replace(s)
			return units
		}
	}
	lowest := -b.full
	if at == AtDecision {
		lowest = min(lowest, b.full-maxExact)
	}
	lowest = min(lowest, seen.level)
	level := lowest
	if units <= (seen.level-lowest)/b.den {
		level = seen.level - units*b.den
	}
	if at == AtDecision { // a level below zero comes from these units alone, so setLevel must not scale it
		bucketMissing{seen.asOf, b.full - level, b.rate}.replace(s)
	} else {
		b.setLevel(s, seen.asOf, level)
	}
	return (seen.level - level) / b.den
}

func (b *tokenBucket) params(owner string) Params {
	return Params{
		Period: b.period, Num: b.num, Den: b.den, Full: b.full, FullIn: b.fullIn, SlotLength: b.slotLength,
		SlotOffset: b.slotOffset(owner),
	}
}

func (b *tokenBucket) leasing() Leasing {
	return Leasing{Ends: true, Longest: b.slotLength, Ramps: true, Apart: true, Refills: true}
}

func (b *tokenBucket) leaseEnd(owner string, now int64) (lease, ramp int64) {
	end := b.slotEnd(owner, now)
	return end, end
}

// counting says that a bucket has no windows: units that were charged at some time cannot be told from units that have
// been refilled since.
func (b *tokenBucket) counting() Counting { return Counting{Lasts: b.fullIn} }

func (b *tokenBucket) forgottenAt(_ string, at int64) int64 { return at + b.fullIn }

func (b *tokenBucket) leasedInSlot(r *Result, units int64) int64 {
	return r.bucket().leased/b.den + units
}
