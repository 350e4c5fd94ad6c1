package dynamodb

import (
	"fmt"
	"math/big"
	"math/rand/v2"

	"github.com/sluicelimits/sluice/internal/limit"
)

// tokenBucket has the fields e (the time at which the level was zero, in 1/num µs), t (the time of the last charge), and r
// (the rate by which e is counted). Once something was refunded it has b (all that was refunded, in grains) and u (when last);
// while units are leased, z (when their slot ends) and q (e as it would be without them).
type tokenBucket struct{}

func (tokenBucket) decode(_ *limit.Tier, p *limit.Params, f fields) (limit.State, error) {
	st, err := decodeTokenBucket(p, f)
	return st.State(), err
}

// bucketState turns the empty time e into a level at a time: that of the last charge, as far as it is known. A level that
// is further below zero than anything of ours takes it is one at the time at which it is zero, for the core to repair.
func decodeTokenBucket(p *limit.Params, f fields) (st limit.TokenBucketState, err error) {
	if st.Rate, err = f.intIn(fieldRate, 1, maxAmount); err != nil {
		return st, err
	}
	if st.AsOf, err = f.intIn(fieldChargedAt, -maxTime, maxTime); err != nil {
		return st, err
	}
	e, ok := f[fieldEmptyTime]
	if !ok {
		return st, fmt.Errorf("field %q is missing", fieldEmptyTime)
	}
	num := rateNumerator(st.Rate, p)
	level := multiplyAdd(st.AsOf, num, 0)
	level.Sub(level, e)
	if debt := new(big.Int).Mul(big.NewInt(-maxDebtBursts*p.Capacity), big.NewInt(rateDenominator(st.Rate, p))); level.Cmp(debt) < 0 {
		empty := ceilQuotient(e, big.NewInt(num))
		if !empty.IsInt64() || empty.Int64() > maxTime {
			return st, fmt.Errorf("field %q is %s, which is no time", fieldEmptyTime, e)
		}
		st.AsOf = empty.Int64()
		level = multiplyAdd(st.AsOf, num, 0)
		level.Sub(level, e)
	}
	if !level.IsInt64() || level.Int64() > maxAmount || level.Int64() < -maxAmount {
		return st, fmt.Errorf("fields %q and %q make a level of %s", fieldEmptyTime, fieldChargedAt, level)
	}
	st.Level = level.Int64()
	if f[fieldRefunded] != nil {
		if st.Refunds.Total, err = f.intIn(fieldRefunded, 0, 1<<62); err != nil {
			return st, err
		}
		if st.Refunds.Last, err = f.intIn(fieldRefundedAt, -maxTime, maxTime); err != nil {
			return st, err
		}
	}
	return st, decodeLeased(p, f, &st)
}

// leasedOf adds to a bucket's state what of it is leased.
func decodeLeased(p *limit.Params, f fields, st *limit.TokenBucketState) error {
	if f[fieldSlotEnd] == nil && f[fieldTotalEmptyTime] == nil {
		return nil
	}
	until, err := f.intIn(fieldSlotEnd, -maxTime, maxTime)
	if err != nil {
		return err
	}
	q, ok := f[fieldTotalEmptyTime]
	if !ok {
		return fmt.Errorf("field %q is missing", fieldTotalEmptyTime)
	}
	leased, rest := new(big.Int).Sub(f[fieldEmptyTime], q), new(big.Int)
	leased.QuoRem(leased, big.NewInt(rateDenominator(st.Rate, p)), rest)
	if rest.Sign() != 0 || leased.Sign() < 0 || !leased.IsInt64() || leased.Int64() > maxAmount {
		return fmt.Errorf("fields %q and %q hold %s units, and a rest of %s", fieldEmptyTime, fieldTotalEmptyTime, leased, rest)
	}
	if leased.Sign() > 0 {
		st.Leased = limit.Leased{Units: leased.Int64(), Until: until}
	}
	return nil
}

// perMicrosecond is the numerator of a rate in units per µs, in lowest terms.
func rateNumerator(rate int64, p *limit.Params) int64 {
	a, b := rate, p.Period
	for b != 0 {
		a, b = b, a%b
	}
	return rate / a
}

// perUnit is the denominator of a rate in units per µs, in lowest terms: what a unit is, in a bucket's level.
func rateDenominator(rate int64, p *limit.Params) int64 {
	return p.Period / (rate / rateNumerator(rate, p))
}

func (tokenBucket) encode(p *limit.Params, state *limit.State, _ int64) fields {
	st := state.TokenBucket()
	f := fields{fieldEmptyTime: emptyTime(p, &st), fieldChargedAt: big.NewInt(st.AsOf), fieldRate: big.NewInt(st.Rate)}
	if st.Refunds != (limit.Refunds{}) {
		f[fieldRefunded], f[fieldRefundedAt] = big.NewInt(st.Refunds.Total), big.NewInt(st.Refunds.Last)
	}
	if st.Leased.Units != 0 {
		f[fieldTotalEmptyTime] = multiplyAdd(st.Leased.Units, -rateDenominator(st.Rate, p), 0)
		f[fieldTotalEmptyTime].Add(f[fieldTotalEmptyTime], f[fieldEmptyTime])
		f[fieldSlotEnd] = big.NewInt(st.Leased.Until)
	}
	return f
}

func emptyTime(p *limit.Params, st *limit.TokenBucketState) *big.Int {
	return multiplyAdd(st.AsOf, rateNumerator(st.Rate, p), -st.Level)
}

// lasts: what is leased makes room only when its slot ends.
func (tokenBucket) relevantFor(_ *limit.Tier, p *limit.Params, st *limit.State, now int64) int64 {
	return max(st.TokenBucket().AsOf-now, 0) + 2*p.FullIn + p.Slot
}

func (tokenBucket) largestFields(*limit.Tier) fields {
	at, count, long := big.NewInt(-maxTime), big.NewInt(maxAmount), longestNumber()
	return fields{fieldEmptyTime: long, fieldRate: count, fieldChargedAt: at, fieldRefunded: at, fieldRefundedAt: at, fieldTotalEmptyTime: long, fieldSlotEnd: at}
}

func (tokenBucket) newCounterBytes(*limit.Tier) int { return 78 } // with a lease

// bucketCharge is the charge of a token bucket.
type bucketCharge struct {
	*counterCharge
	before limit.TokenBucketState
}

func (tokenBucket) charge(c *counterCharge, u counterUpdate) {
	(&bucketCharge{c, c.before.TokenBucket()}).addTo(u)
}

const (
	slackDivisor    = 32     // a bucket that several writers charge at once is held to be at most 1 − 1/slackParts full,
	minSlackBurst   = 128    // if its burst is at least this many units
	maxClockSpread  = 10_000 // µs; about how old what a writer knows is, at most
	minStampSpreads = 5      // the stamp of such a bucket moves by at least so many times that
)

// lookahead is how far apart writers' times may lie, µs: less than what the slack takes to refill.
func (b *bucketCharge) clockSpread() int64 {
	return min(maxClockSpread, b.params.Full/slackDivisor/b.params.Num/4)
}

// drawn is a time, µs, of at least least: another one for each writer, so that one of them does first what all would.
func drawTime(least int64) int64 { return int64((1 + rand.ExpFloat64()) * float64(least)) }

// tokenBucket keeps e, the time at which the level was zero, in 1/num µs: the level at a time is min(full, time·num −
// e), whatever the burst is by then. A charge adds to e. Where the bucket has run over, e is moved up first.
func (b *bucketCharge) addTo(u counterUpdate) {
	p := &b.params
	spent := new(big.Int).Mul(big.NewInt(b.need), big.NewInt(p.Den))
	switch {
	case b.stored != nil && b.before.Rate != b.tier.Threshold:
		b.compareWhole(u)
		return
	case b.leaseRequest != nil || b.stored[fieldSlotEnd] != nil:
		b.addLeased(u)
		return
	case b.stored != nil:
		u.require(u.fieldIsAbsent(fieldSlotEnd))
	}
	if b.contended && b.stored != nil && b.addContended(u, spent) {
		return
	}
	full := multiplyAdd(b.now, p.Num, -p.Full) // e of a bucket that is full now
	if b.stored == nil || b.stored[fieldEmptyTime].Cmp(full) <= 0 && b.before.AsOf <= b.now {
		b.addFull(u, full, new(big.Int).Add(full, spent))
		return
	}
	at := max(b.now, b.before.AsOf) // a clock that is behind decides at the counter's own time
	if b.stored[fieldEmptyTime].Cmp(multiplyAdd(at, p.Num, -p.Full)) < 0 {
		b.compareWhole(u)
		return
	}
	u.requireEqual(fieldRate, b.stored[fieldRate])
	u.require(u.compare(fieldEmptyTime, ">=", multiplyAdd(at, p.Num, -p.Full)))
	u.require(u.compare(fieldEmptyTime, "<=", new(big.Int).Sub(multiplyAdd(at, p.Num, 0), spent)))
	u.addToField(fieldEmptyTime, spent)
	if at > b.now {
		b.requireTime(u)
		return
	}
	u.require(u.compare(fieldChargedAt, "<=", big.NewInt(at)))
	u.setField(fieldChargedAt, big.NewInt(at))
}

// together charges a bucket that others charge at the same time, so that neither their charges nor their clocks, which
// differ by a little, disturb it. The counter's own time moves on in steps then, by whoever is drawn first; a clock that
// is behind decides at that time, as ever, less the lookahead by which a step may have gone back. It reports false where
// the bucket is so full that it may run over at any moment, and too small for nearlyFull.
func (b *bucketCharge) addContended(u counterUpdate, spent *big.Int) bool {
	p, spread := &b.params, b.clockSpread()
	if !b.stored[fieldChargedAt].IsInt64() {
		return false
	}
	seen := b.stored[fieldChargedAt].Int64() - spread
	at := max(b.now, seen)
	full := multiplyAdd(at, p.Num, -p.Full)
	ahead := new(big.Int).Sub(b.stored[fieldEmptyTime], full)
	ahead.Quo(ahead, big.NewInt(p.Num)) // µs until the bucket is full
	latest := at + spread
	canLower := p.Capacity >= minSlackBurst && b.need < p.Capacity-p.Capacity/slackDivisor
	switch {
	case canLower && ahead.Cmp(big.NewInt(drawTime(spread))) < 0:
		latest = at + p.Full/slackDivisor/p.Num
		b.lowerNearlyFull(u, full, spent)
	case ahead.Cmp(big.NewInt(spread)) < 0:
		return false
	default:
		if ahead.IsInt64() {
			latest = at + max(spread, ahead.Int64()/4*3)
		}
		u.require(u.compare(fieldEmptyTime, ">=", multiplyAdd(latest, p.Num, -p.Full)))
		u.require(u.compare(fieldEmptyTime, "<=", new(big.Int).Sub(multiplyAdd(at, p.Num, 0), spent)))
		u.addToField(fieldEmptyTime, spent)
	}
	u.requireEqual(fieldRate, b.stored[fieldRate])
	if seen > b.now {
		u.require(u.compare(fieldChargedAt, ">=", big.NewInt(seen)))
	}
	if b.now-b.stored[fieldChargedAt].Int64() > drawTime(minStampSpreads*spread) {
		latest = at + spread
		u.setField(fieldChargedAt, big.NewInt(b.now))
	}
	u.require(u.compare(fieldChargedAt, "<=", big.NewInt(latest)))
	return true
}

// nearlyFull charges a bucket that is full, or soon would be. Whether such a bucket has run over since the others'
// charges is what a writer cannot know, and to guess it wrong costs a write unit. So one writer, drawn by lot shortly
// before the others would have to, moves the level down to 31/32 of the burst: until that has refilled, a charge is the
// same sum for every writer. A burst is cut by at most that part, and nothing is ever admitted by it.
func (b *bucketCharge) lowerNearlyFull(u counterUpdate, full, spent *big.Int) {
	level := new(big.Int).Add(full, big.NewInt(b.params.Full/slackDivisor))
	u.require(u.compare(fieldEmptyTime, "<=", level))
	u.setField(fieldEmptyTime, level.Add(level, spent))
}

// fullBucket charges a bucket that is full now, or that was never used. An e so low also means that nobody has
// charged at a time after now.
func (b *bucketCharge) addFull(u counterUpdate, full, e *big.Int) {
	rate, stamp := big.NewInt(b.tier.Threshold), big.NewInt(b.now)
	isFull := u.compare(fieldRate, "=", rate) + " AND " + u.compare(fieldEmptyTime, "<=", full) +
		" AND " + u.compare(fieldChargedAt, "<=", big.NewInt(b.now))
	if b.stored != nil { // what was refunded stays as it is
		u.require(isFull)
		u.setField(fieldEmptyTime, e)
		u.setField(fieldChargedAt, stamp)
		return
	}
	u.require("(" + u.isAbsent() + " OR (" + isFull + " AND " + u.fieldIsAbsent(fieldRefunded) + " AND " + u.fieldIsAbsent(fieldSlotEnd) + "))")
	u.replace(fields{fieldEmptyTime: e, fieldChargedAt: stamp, fieldRate: rate})
}

// pinStamp requires that the counter's own time is the one that was seen. Where it is not t but e that is ahead, both
// count.
func (b *bucketCharge) requireTime(u counterUpdate) {
	u.requireEqual(fieldChargedAt, b.stored[fieldChargedAt])
	if b.stored[fieldChargedAt].Cmp(big.NewInt(b.before.AsOf)) < 0 {
		u.requireEqual(fieldEmptyTime, b.stored[fieldEmptyTime])
	}
}

func (tokenBucket) refund(c *counterRefund, u counterUpdate) {
	(&bucketRefund{c, c.before.TokenBucket(), c.after.TokenBucket()}).addTo(u)
}

// bucketGiving is the way back of a token bucket.
type bucketRefund struct {
	*counterRefund
	before, after limit.TokenBucketState
}

// level lowers the empty time, which raises the level, as long as the bucket does not run over. What was refunded
// before decides how much it is, so that is pinned. Where units are held, they and the level together must not run over.
func (b *bucketRefund) addTo(u counterUpdate) {
	p := &b.params
	give := new(big.Int).Sub(emptyTime(p, &b.before), emptyTime(p, &b.after))
	hasSlot := b.stored[fieldSlotEnd] != nil
	switch {
	case give.Sign() <= 0, hasSlot && b.stored[fieldSlotEnd].Cmp(big.NewInt(max(b.now, b.after.AsOf))) <= 0:
		b.compareWhole(u)
		return
	case hasSlot && b.before.Refunds == b.after.Refunds:
		b.addRelease(u, give)
		return
	}
	at := big.NewInt(b.after.AsOf)
	u.requireEqual(fieldRate, b.stored[fieldRate])
	u.require(u.compare(fieldChargedAt, "<=", at))
	least := multiplyAdd(b.after.AsOf, p.Num, -p.Full)
	lowered := fieldEmptyTime
	if hasSlot {
		lowered = fieldTotalEmptyTime
		u.requireEqual(fieldSlotEnd, b.stored[fieldSlotEnd])
		u.addToField(fieldTotalEmptyTime, new(big.Int).Neg(give))
	} else {
		u.require(u.fieldIsAbsent(fieldSlotEnd))
	}
	u.require(u.compare(lowered, ">=", least.Add(least, give)))
	if before := b.stored[fieldRefunded]; before != nil {
		u.requireEqual(fieldRefunded, before)
	} else {
		u.require(u.fieldIsAbsent(fieldRefunded))
	}
	u.addToField(fieldEmptyTime, new(big.Int).Neg(give))
	u.setField(fieldChargedAt, at)
	u.setField(fieldRefunded, big.NewInt(b.after.Refunds.Total))
	u.setField(fieldRefundedAt, big.NewInt(b.after.Refunds.Last))
}

// release gives back units that are held. The bucket holds that much if e is that far ahead of q.
func (b *bucketRefund) addRelease(u counterUpdate, give *big.Int) {
	spare := new(big.Int).Sub(b.stored[fieldEmptyTime], b.stored[fieldTotalEmptyTime])
	spare.Rsh(spare.Sub(spare, give), 1)
	sum := new(big.Int).Add(b.stored[fieldTotalEmptyTime], spare)
	u.requireEqual(fieldRate, b.stored[fieldRate])
	u.requireEqual(fieldSlotEnd, b.stored[fieldSlotEnd])
	u.require(u.compare(fieldTotalEmptyTime, "<=", sum))
	u.require(u.compare(fieldEmptyTime, ">=", sum.Add(sum, give)))
	u.addToField(fieldEmptyTime, new(big.Int).Neg(give))
}
