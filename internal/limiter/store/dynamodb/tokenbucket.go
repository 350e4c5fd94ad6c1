package dynamodb

import (
	"fmt"
	"math/big"
	"math/rand/v2"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// tokenBucket implements the algorithm token_bucket. Its main field is f, the "full time": the time at which the
// bucket is full if nothing is charged, in 1/num µs. What is missing at a time is max(0, f − time·num), so time
// refills the bucket without a write, a charge adds to f, and a change of the burst leaves f as it is. The package
// comment lists the other fields; leasedbucket.go charges buckets of which units are leased.
type tokenBucket struct{}

func (tokenBucket) decode(_ *limit.Tier, p *limit.Params, f fields) (limit.State, error) {
	st, err := decodeTokenBucket(p, f)
	return st.State(), err
}

// decodeTokenBucket returns what was missing as of the last charge. If that is more than this package ever writes, it
// is the work of a clock that leapt ahead. It is returned as nothing missing at the full time, which lies in the
// future: the core repairs that.
func decodeTokenBucket(p *limit.Params, f fields) (st limit.TokenBucketState, err error) {
	if st.Rate, err = f.intIn(fieldRate, 1, maxAmount); err != nil {
		return st, err
	}
	if st.AsOf, err = f.intIn(fieldChargedAt, -maxTime, maxTime); err != nil {
		return st, err
	}
	full, ok := f[fieldFullTime]
	if !ok {
		return st, fmt.Errorf("field %q is missing", fieldFullTime)
	}
	num := rateNumerator(st.Rate, p)
	missing := multiplyAdd(st.AsOf, -num, 0)
	missing.Add(missing, full)
	if missing.Cmp(big.NewInt(maxAmount)) > 0 {
		at := ceilQuotient(full, big.NewInt(num))
		if !at.IsInt64() || at.Int64() > maxTime {
			return st, fmt.Errorf("field %q is %s, which is no time", fieldFullTime, full)
		}
		st.AsOf = at.Int64()
		missing.Add(multiplyAdd(st.AsOf, -num, 0), full)
	}
	if !missing.IsInt64() || missing.Int64() < -maxAmount {
		return st, fmt.Errorf("by the fields %q and %q, %s are missing", fieldFullTime, fieldChargedAt, missing)
	}
	st.Missing = missing.Int64()
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

// decodeLeased sets what is leased in a bucket's state.
func decodeLeased(p *limit.Params, f fields, st *limit.TokenBucketState) error {
	if f[fieldSlotEnd] == nil && f[fieldTotalFullTime] == nil {
		return nil
	}
	until, err := f.intIn(fieldSlotEnd, -maxTime, maxTime)
	if err != nil {
		return err
	}
	q, ok := f[fieldTotalFullTime]
	if !ok {
		return fmt.Errorf("field %q is missing", fieldTotalFullTime)
	}
	leased, rest := new(big.Int).Sub(f[fieldFullTime], q), new(big.Int)
	leased.QuoRem(leased, big.NewInt(rateDenominator(st.Rate, p)), rest)
	if rest.Sign() != 0 || leased.Sign() < 0 || !leased.IsInt64() || leased.Int64() > maxAmount {
		return fmt.Errorf("fields %q and %q hold %s units, and a rest of %s",
			fieldFullTime, fieldTotalFullTime, leased, rest)
	}
	if leased.Sign() > 0 {
		st.Leased = limit.Leased{Units: leased.Int64(), Until: until}
	}
	late, ok := f[fieldLateFullTime]
	if !ok {
		return nil
	}
	level := new(big.Int).Sub(q, late)
	if level.Sign() < 0 || !level.IsInt64() || level.Int64() > maxAmount {
		return fmt.Errorf("fields %q and %q leave %s for late returns", fieldTotalFullTime, fieldLateFullTime, level)
	}
	ended, err := f.intIn(fieldLateSlotEnd, -maxTime, maxTime)
	if level.Sign() > 0 {
		st.Late = limit.Late{Level: level.Int64(), Ended: ended}
	}
	return err
}

// rateNumerator returns the numerator of a rate, in units per µs and in lowest terms.
func rateNumerator(rate int64, p *limit.Params) int64 {
	a, b := rate, p.Period
	for b != 0 {
		a, b = b, a%b
	}
	return rate / a
}

// rateDenominator returns the denominator of a rate, in units per µs and in lowest terms. It is how many grains of a
// level make a unit.
func rateDenominator(rate int64, p *limit.Params) int64 {
	return p.Period / (rate / rateNumerator(rate, p))
}

func (tokenBucket) encode(p *limit.Params, state *limit.State, now int64) fields {
	st := state.TokenBucket()
	f := fields{fieldFullTime: fullTime(p, &st), fieldChargedAt: big.NewInt(st.AsOf), fieldRate: big.NewInt(st.Rate)}
	if st.Refunds != (limit.Refunds{}) {
		f[fieldRefunded], f[fieldRefundedAt] = big.NewInt(st.Refunds.Total), big.NewInt(st.Refunds.Last)
	}
	if st.Leased.Units != 0 || st.Late != (limit.Late{}) {
		if st.Leased.Units == 0 { // late units may come back only during a slot, which may be empty
			slot := max(now, st.AsOf) - p.SlotOffset
			st.Leased.Until = slot - slot%p.SlotLength + p.SlotLength + p.SlotOffset
		}
		f[fieldTotalFullTime] = multiplyAdd(st.Leased.Units, -rateDenominator(st.Rate, p), 0)
		f[fieldTotalFullTime].Add(f[fieldTotalFullTime], f[fieldFullTime])
		f[fieldSlotEnd] = big.NewInt(st.Leased.Until)
	}
	if st.Late != (limit.Late{}) {
		f[fieldLateFullTime] = new(big.Int).Sub(f[fieldTotalFullTime], big.NewInt(st.Late.Level))
		f[fieldLateSlotEnd] = big.NewInt(st.Late.Ended)
	}
	return f
}

// fullTime returns the field f of a state.
func fullTime(p *limit.Params, st *limit.TokenBucketState) *big.Int {
	return multiplyAdd(st.AsOf, rateNumerator(st.Rate, p), st.Missing)
}

// relevantFor includes the slot: leased units make room only when their slot ends.
func (tokenBucket) relevantFor(_ *limit.Tier, p *limit.Params, st *limit.State, now int64) int64 {
	bucket := st.TokenBucket()
	return max(bucket.AsOf-now, 0) + max(2*p.FullIn, bucket.Missing/rateNumerator(bucket.Rate, p)) + p.SlotLength
}

func (tokenBucket) largestFields(*limit.Tier) fields {
	at, count, long := big.NewInt(-maxTime), big.NewInt(maxAmount), longestNumber()
	return fields{
		fieldFullTime: long, fieldRate: count, fieldChargedAt: at, fieldRefunded: at, fieldRefundedAt: at,
		fieldTotalFullTime: long, fieldSlotEnd: at, fieldLateFullTime: long, fieldLateSlotEnd: at,
	}
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
	// A bucket that several processes charge at once is filled to at most 1 − 1/slackDivisor of its burst. The rest is
	// called the slack.
	slackDivisor = 32
	// units; a smaller burst, whose slack would be below 4 units, is always filled completely
	minSlackBurst = 128
	// µs; how far the clocks of processes that charge the same bucket are assumed to differ at most
	maxClockSpread = 10_000
	// Processes that charge the same bucket move its field t forward by at least this many clockSpreads at a time.
	minStampSpreads = 5
	// grains; half of the total of refunds at which the core begins at 0. Nobody adds to a larger total without
	// comparing it
	maxRefunded = 1 << 59
)

// clockSpread returns how far apart the times of two processes may lie, µs. It is at most a quarter of the time in
// which the slack refills, so that all of them see the slack.
func (b *bucketCharge) clockSpread() int64 {
	return min(maxClockSpread, b.params.Full/slackDivisor/b.params.Num/4)
}

// drawTime returns a random time, µs. It is at least least, and twice as long on average. Each process draws its own
// time, so that usually one process acts first, and the others then need not do the same.
func (b *bucketCharge) drawTime(least int64) int64 {
	return int64((1 + rand.ExpFloat64()) * float64(least))
}

// addTo adds the charge to the update. If the bucket has run over since the last charge, f is raised before the charge.
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
	full := multiplyAdd(b.now, p.Num, 0) // the full time of a bucket that is full now
	if b.stored == nil || b.stored[fieldFullTime].Cmp(full) <= 0 && b.before.AsOf <= b.now {
		b.addFull(u, full, new(big.Int).Add(full, spent))
		return
	}
	at := max(b.now, b.before.AsOf) // a process whose clock is behind decides by the counter's time
	if b.stored[fieldFullTime].Cmp(multiplyAdd(at, p.Num, 0)) < 0 {
		b.compareWhole(u)
		return
	}
	u.requireEqual(fieldRate, b.stored[fieldRate])
	u.require(u.compare(fieldFullTime, ">=", multiplyAdd(at, p.Num, 0)))
	u.require(u.compare(fieldFullTime, "<=", new(big.Int).Sub(multiplyAdd(at, p.Num, p.Full), spent)))
	u.addToField(fieldFullTime, spent)
	if at > b.now {
		b.requireTime(u)
		return
	}
	u.require(u.compare(fieldChargedAt, "<=", big.NewInt(at)))
	u.setField(fieldChargedAt, big.NewInt(at))
}

// addContended adds the charge of a bucket that other processes charge at the same time. Neither their charges nor
// small differences between the clocks make its condition fail. The field t moves forward only now and then: the
// process that draws the shortest time moves it (see drawTime). A process whose clock is behind decides as of t, less
// one clockSpread, because another process may have moved t back by that much. addContended reports false, and adds
// nothing, for a bucket that may run over at any moment and is too small for lowerNearlyFull.
func (b *bucketCharge) addContended(u counterUpdate, spent *big.Int) bool {
	p, spread := &b.params, b.clockSpread()
	if !b.stored[fieldChargedAt].IsInt64() {
		return false
	}
	seen := b.stored[fieldChargedAt].Int64() - spread
	at := max(b.now, seen)
	full := multiplyAdd(at, p.Num, 0)
	ahead := new(big.Int).Sub(b.stored[fieldFullTime], full)
	ahead.Quo(ahead, big.NewInt(p.Num))                   // µs until the bucket is full
	latest, slack := at+spread, p.Full/slackDivisor/p.Num // µs in which the slack refills
	canLower := p.Capacity >= minSlackBurst && b.need < p.Capacity-p.Capacity/slackDivisor
	switch {
	case canLower && ahead.Cmp(big.NewInt(min(b.drawTime(spread), slack))) < 0:
		latest = at + slack
		b.lowerNearlyFull(u, full, spent)
	case ahead.Cmp(big.NewInt(spread)) < 0:
		return false
	default:
		if ahead.IsInt64() {
			latest = at + max(spread, ahead.Int64()/4*3)
		}
		u.require(u.compare(fieldFullTime, ">=", multiplyAdd(latest, p.Num, 0)))
		u.require(u.compare(fieldFullTime, "<=", new(big.Int).Sub(multiplyAdd(at, p.Num, p.Full), spent)))
		u.addToField(fieldFullTime, spent)
	}
	u.requireEqual(fieldRate, b.stored[fieldRate])
	if seen > b.now {
		u.require(u.compare(fieldChargedAt, ">=", big.NewInt(seen)))
	}
	if b.now-b.stored[fieldChargedAt].Int64() > b.drawTime(minStampSpreads*spread) {
		latest = at + spread
		u.setField(fieldChargedAt, big.NewInt(b.now))
	}
	u.require(u.compare(fieldChargedAt, "<=", big.NewInt(latest)))
	return true
}

// lowerNearlyFull charges a bucket that is full or soon will be. Other processes cannot know whether such a bucket has
// run over since the last charge, and a wrong assumption costs a write unit. One process therefore lowers the level to
// 31/32 of the burst (see slackDivisor), shortly before the others would have to. Until the rest has refilled, a charge
// is a plain addition for every process. The limit loses at most that part of its burst, and nothing too much is
// admitted.
func (b *bucketCharge) lowerNearlyFull(u counterUpdate, full, spent *big.Int) {
	lowered := new(big.Int).Add(full, big.NewInt(b.params.Full/slackDivisor))
	u.require(u.compare(fieldFullTime, "<=", lowered))
	u.setField(fieldFullTime, lowered.Add(lowered, spent))
}

// addFull charges a bucket that is full now, or that was never used. after is the full time after the charge. A stored
// full time of at most full also means that nobody has charged at a time after now.
func (b *bucketCharge) addFull(u counterUpdate, full, after *big.Int) {
	rate, stamp := big.NewInt(b.tier.Threshold), big.NewInt(b.now)
	isFull := u.compare(fieldRate, "=", rate) + " AND " + u.compare(fieldFullTime, "<=", full) +
		" AND " + u.compare(fieldChargedAt, "<=", big.NewInt(b.now))
	if b.stored != nil { // the fields of refunds stay as they are
		u.require(isFull)
		u.setField(fieldFullTime, after)
		u.setField(fieldChargedAt, stamp)
		return
	}
	isPlain := u.fieldIsAbsent(fieldRefunded) + " AND " + u.fieldIsAbsent(fieldSlotEnd)
	u.require("(" + u.isAbsent() + " OR (" + isFull + " AND " + isPlain + "))")
	u.replace(fields{fieldFullTime: after, fieldChargedAt: stamp, fieldRate: rate})
}

// requireTime requires that the counter's time is still the stored one. If decodeTokenBucket took that time from f
// instead of t, f must be unchanged, too.
func (b *bucketCharge) requireTime(u counterUpdate) {
	u.requireEqual(fieldChargedAt, b.stored[fieldChargedAt])
	if b.stored[fieldChargedAt].Cmp(big.NewInt(b.before.AsOf)) < 0 {
		u.requireEqual(fieldFullTime, b.stored[fieldFullTime])
	}
}

func (tokenBucket) refund(c *counterRefund, u counterUpdate) {
	(&bucketRefund{c, c.before.TokenBucket(), c.after.TokenBucket()}).addTo(u)
}

// bucketRefund is the refund of a token bucket.
type bucketRefund struct {
	*counterRefund
	before, after limit.TokenBucketState
}

// addTo lowers the full time, which raises the level, and requires that the bucket does not run over by it. How much
// is refunded depends on the earlier refunds, so these must be unchanged. If units are leased, the total must not run
// over (see leasedBucketCharge).
func (b *bucketRefund) addTo(u counterUpdate) {
	p := &b.params
	give := new(big.Int).Sub(fullTime(p, &b.before), fullTime(p, &b.after))
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
	least := multiplyAdd(b.after.AsOf, p.Num, 0)
	lowered := fieldFullTime
	if hasSlot {
		lowered = fieldTotalFullTime
		u.requireEqual(fieldSlotEnd, b.stored[fieldSlotEnd])
		u.addToField(fieldTotalFullTime, new(big.Int).Neg(give))
		if late := b.stored[fieldLateFullTime]; late != nil {
			u.requireEqual(fieldLateFullTime, late)
			u.addToField(fieldLateFullTime, new(big.Int).Neg(give))
		}
	} else {
		u.require(u.fieldIsAbsent(fieldSlotEnd))
	}
	u.require(u.compare(lowered, ">=", least.Add(least, give)))
	if before := b.stored[fieldRefunded]; before != nil {
		u.requireEqual(fieldRefunded, before)
	} else {
		u.require(u.fieldIsAbsent(fieldRefunded))
	}
	u.addToField(fieldFullTime, new(big.Int).Neg(give))
	u.setField(fieldChargedAt, at)
	u.setField(fieldRefunded, big.NewInt(b.after.Refunds.Total))
	u.setField(fieldRefundedAt, big.NewInt(b.after.Refunds.Last))
}

// addRelease gives back units that are leased. The bucket leases at least so many if f − q is at least as large. A
// condition cannot subtract, so both fields are compared with a value between them.
func (b *bucketRefund) addRelease(u counterUpdate, give *big.Int) {
	spare := new(big.Int).Sub(b.stored[fieldFullTime], b.stored[fieldTotalFullTime])
	spare.Rsh(spare.Sub(spare, give), 1)
	sum := new(big.Int).Add(b.stored[fieldTotalFullTime], spare)
	u.requireEqual(fieldRate, b.stored[fieldRate])
	u.requireEqual(fieldSlotEnd, b.stored[fieldSlotEnd])
	u.require(u.compare(fieldTotalFullTime, "<=", sum))
	u.require(u.compare(fieldFullTime, ">=", sum.Add(sum, give)))
	u.addToField(fieldFullTime, new(big.Int).Neg(give))
}
