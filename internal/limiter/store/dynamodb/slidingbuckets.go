package dynamodb

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"strconv"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// slidingBuckets implements the algorithm sliding_buckets. Each bucket is a field of its own, named by bucketName. The
// other fields are w (the newest bucket), s (the sum of all buckets) and x, which rises with each charge to a bucket
// more than a period before the newest.
type slidingBuckets struct{ relevantUntilFresh }

// reservedField holds the fields that are no buckets.
var reservedField = map[string]bool{fieldNewest: true, fieldSum: true, fieldLateCharges: true}

// bucketName returns the name of a bucket's field. It needs no alias in an expression: it consists of letters and
// digits, and no reserved word of DynamoDB contains a digit.
func bucketName(index int64) string {
	if index < 0 {
		return "b1" + strconv.FormatInt(-index, 36)
	}
	return "b0" + strconv.FormatInt(index, 36)
}

// bucketIndex is the inverse of bucketName. It reports false for a name that bucketName does not return.
func bucketIndex(name string) (int64, bool) {
	if len(name) < 3 {
		return 0, false
	}
	index, err := strconv.ParseInt(name[2:], 36, 64)
	if err != nil {
		return 0, false
	}
	if name[1] == '1' {
		index = -index
	}
	return index, bucketName(index) == name
}

func (slidingBuckets) decode(_ *limit.Tier, p *limit.Params, f fields) (limit.State, error) {
	st, err := decodeBuckets(p, f)
	return st.State(), err
}

// decodeBuckets reads the fields of a counter.
func decodeBuckets(p *limit.Params, f fields) (st limit.LogState, err error) {
	if _, err := f.intIn(fieldNewest, -maxTime, maxTime); err != nil {
		return st, err
	}
	if _, err := f.intIn(fieldLateCharges, 0, maxAmount); err != nil {
		return st, err
	}
	if st.Sum, err = f.intIn(fieldSum, 0, maxAmount); err != nil {
		return st, err
	}
	sum := int64(0)
	for name := range f {
		if reservedField[name] {
			continue
		}
		index, ok := bucketIndex(name)
		if !ok || index > maxTime/p.Width || index < -maxTime/p.Width {
			return st, fmt.Errorf("field %.40q is no bucket", name)
		}
		units, err := f.intIn(name, 0, maxAmount)
		if err != nil {
			return st, err
		}
		if sum += units; sum > maxAmount {
			return st, fmt.Errorf("the buckets hold more than %d", int64(maxAmount))
		}
		st.Entries = append(st.Entries, limit.Entry{At: index * p.Width, Units: units})
	}
	if sum != st.Sum {
		return st, fmt.Errorf("field %q is %d, but the buckets hold %d", fieldSum, st.Sum, sum)
	}
	slices.SortFunc(st.Entries, func(a, b limit.Entry) int { return cmp.Compare(a.At, b.At) })
	return st, nil
}

func (slidingBuckets) encode(p *limit.Params, state *limit.State, now int64) fields {
	st := state.Log()
	f := fields{
		fieldNewest: big.NewInt(newestBucket(p, &st, now)), fieldSum: big.NewInt(st.Sum),
		fieldLateCharges: new(big.Int),
	}
	for _, e := range st.Entries {
		f[bucketName(floorQuotient(e.At, p.Width))] = big.NewInt(e.Units)
	}
	return f
}

// newestBucket returns the value of the field w: the bucket of now, or an earlier one if a stored bucket would not
// count any more by then.
func newestBucket(p *limit.Params, st *limit.LogState, now int64) int64 {
	newest := floorQuotient(now, p.Width)
	if len(st.Entries) > 0 {
		newest = min(newest, floorQuotient(st.Entries[0].At, p.Width)+p.Buckets)
	}
	return newest
}

func (slidingBuckets) largestFields(t *limit.Tier) fields {
	at, count := big.NewInt(-maxTime), big.NewInt(maxAmount)
	f := fields{fieldNewest: at, fieldSum: count, fieldLateCharges: count}
	for i := range int64(2*t.Buckets + 4) {
		f[bucketName(maxTime/1000-i)] = count
	}
	return f
}

func (slidingBuckets) newCounterBytes(t *limit.Tier) int { return 30 + 12*(t.Buckets+2) }

// bucketsCharge is the charge of a sliding_buckets counter.
type bucketsCharge struct {
	*counterCharge
	before, after limit.LogState
}

func (slidingBuckets) charge(c *counterCharge, u counterUpdate) {
	(&bucketsCharge{c, c.before.Log(), c.after.Log()}).addTo(u)
}

// maxComparedBuckets is how many buckets may have ended since the last charge for the condition to compare them one by
// one. If there are more, it compares the counter as a whole.
const maxComparedBuckets = 16

// addTo adds the charge to the update. While no bucket has expired since the last charge, the condition compares only
// the sum. Otherwise the expired buckets are removed and subtracted from the sum, and the condition requires that they
// hold what was seen. A lease is charged to the bucket in which it ends.
func (b *bucketsCharge) addTo(u counterUpdate) {
	p := &b.params
	if b.stored == nil {
		u.require(u.isAbsent())
		u.replace(b.newFields())
		return
	}
	newest, current := b.stored[fieldNewest].Int64(), floorQuotient(b.now, p.Width)
	oldest := current - p.Buckets // the first bucket that counts
	expired, stale := int64(0), false
	for _, e := range b.before.Entries {
		if floorQuotient(e.At, p.Width) < oldest {
			expired, stale = expired+e.Units, true
		}
	}
	correction := b.after.Sum - b.chargedUnits() - (b.before.Sum - expired)
	if current-newest > maxComparedBuckets || b.isCutShort(correction) {
		b.compareWhole(u)
		return
	}
	u.requireEqual(fieldNewest, b.stored[fieldNewest])
	if stale || current > newest {
		b.likelyStale = true
		u.requireEqual(fieldLateCharges, b.stored[fieldLateCharges])
		// the newest bucket expires as well, and other processes may have charged it meanwhile
		if b.expire(u, newest, oldest) {
			u.requireEqual(fieldSum, b.stored[fieldSum])
		}
		u.setField(fieldNewest, big.NewInt(max(newest, current)))
	}
	if b.chargedUnits() > 0 {
		if room := b.tier.Threshold - b.before.Sum - correction + expired; room < 2*b.chargedUnits() {
			b.likelyStale, b.scarce = true, true
		}
		u.require(u.compare(fieldSum, "<=", big.NewInt(b.tier.Threshold-b.chargedUnits()-correction+expired)))
	}
	u.addToField(fieldSum, big.NewInt(b.chargedUnits()+correction-expired))
	lateCharges := int64(0) // charges to buckets more than a period before the newest, which expire does not compare
	for index, units := range b.unitsPerBucket(current, correction) {
		b.addToBucket(u, index, units, correction)
		if units > 0 && index < newest-p.Buckets {
			lateCharges++
		}
	}
	if lateCharges > 0 {
		u.addToField(fieldLateCharges, big.NewInt(lateCharges))
	}
}

// unitsPerBucket returns what is added to each bucket, by its number.
func (b *bucketsCharge) unitsPerBucket(current, correction int64) map[int64]int64 {
	add := map[int64]int64{}
	if b.chargedUnits() > 0 {
		if b.isLease() {
			current = floorQuotient(b.lease.At, b.params.Width)
		}
		add[current] += b.chargedUnits()
	}
	if correction != 0 {
		at := b.leaseRequest.CorrectionAt
		if at == limit.AtDecision {
			at = b.now
		}
		add[floorQuotient(at, b.params.Width)] += correction
	}
	return add
}

// addToBucket adds units to a bucket. If correction is below zero and concerns this bucket, the bucket must hold as
// many units before. A bucket that is empty afterwards is removed.
func (b *bucketsCharge) addToBucket(u counterUpdate, index, units, correction int64) {
	name := bucketName(index)
	corrects := correction < 0 && index == floorQuotient(b.leaseRequest.CorrectionAt, b.params.Width)
	if !corrects {
		u.addOrCreate(name, big.NewInt(units))
		return
	}
	stored := int64(0)
	for _, e := range b.before.Entries {
		if floorQuotient(e.At, b.params.Width) == index {
			stored = e.Units
		}
	}
	if stored+units == 0 {
		u.requireEqual(name, big.NewInt(stored))
		u.removeField(name)
		return
	}
	least := -correction
	if units == correction { // the bucket must not be left with zero units
		least++
	}
	u.require(u.compare(name, ">=", big.NewInt(least)))
	u.addToField(name, big.NewInt(units))
}

// expire removes the buckets before oldest and requires that they hold what was seen. It reports whether the newest
// bucket is among them.
func (b *bucketsCharge) expire(u counterUpdate, newest, oldest int64) (expiresNewest bool) {
	seen := map[int64]bool{}
	for _, e := range b.before.Entries {
		index := floorQuotient(e.At, b.params.Width)
		if index >= oldest {
			break
		}
		expiresNewest = expiresNewest || index >= newest
		seen[index] = true
		name := bucketName(index)
		u.requireEqual(name, big.NewInt(e.Units))
		u.removeField(name)
	}
	for index := newest - b.params.Buckets; index < oldest; index++ {
		if !seen[index] { // a process whose clock is a little behind may have charged the bucket since
			u.require("attribute_not_exists(" + u.path(bucketName(index)) + ")")
		}
	}
	return expiresNewest
}

// refund takes units off one bucket. A bucket that is empty afterwards is removed.
func (slidingBuckets) refund(c *counterRefund, u counterUpdate) {
	left := map[int64]int64{}
	for _, e := range c.after.Log().Entries {
		left[e.At] = e.Units
	}
	for _, e := range c.before.Log().Entries {
		units, stays := left[e.At]
		if units == e.Units {
			continue
		}
		back := big.NewInt(e.Units - units)
		name := bucketName(floorQuotient(e.At, c.params.Width))
		if stays {
			u.require(u.compare(name, ">", back))
			u.addToField(name, new(big.Int).Neg(back))
		} else {
			u.requireEqual(name, back)
			u.removeField(name)
		}
		u.addToField(fieldSum, new(big.Int).Neg(back))
	}
}
