package dynamodb

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"strconv"

	"github.com/sluicelimits/sluice/internal/limit"
)

// slidingBuckets has a field for each bucket, named by its number, and w (the newest bucket), s (the sum of all), and x, which
// a charge to a bucket that other writers do not look for raises.
type slidingBuckets struct{ lastsFresh }

// reservedField are the fields of a sliding_buckets counter that are no buckets.
var reservedField = map[string]bool{"w": true, "s": true, "x": true}

// bucketName is a field that needs no alias in an expression: letters and digits, and no reserved word has a digit.
func bucketName(index int64) string {
	if index < 0 {
		return "b1" + strconv.FormatInt(-index, 36)
	}
	return "b0" + strconv.FormatInt(index, 36)
}

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

func (slidingBuckets) state(_ *limit.Tier, p *limit.Params, f fields) (limit.State, error) {
	st, err := bucketsOf(p, f)
	return st.State(), err
}

func bucketsOf(p *limit.Params, f fields) (st limit.LogState, err error) {
	if _, err := f.int("w", -maxTime, maxTime); err != nil {
		return st, err
	}
	if _, err := f.int("x", 0, maxAmount); err != nil {
		return st, err
	}
	if st.Sum, err = f.int("s", 0, maxAmount); err != nil {
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
		units, err := f.int(name, 0, maxAmount)
		if err != nil {
			return st, err
		}
		if sum += units; sum > maxAmount {
			return st, fmt.Errorf("the buckets hold more than %d", int64(maxAmount))
		}
		st.Entries = append(st.Entries, limit.Entry{At: index * p.Width, Units: units})
	}
	if sum != st.Sum {
		return st, fmt.Errorf("field %q is %d, but the buckets hold %d", "s", st.Sum, sum)
	}
	slices.SortFunc(st.Entries, func(a, b limit.Entry) int { return cmp.Compare(a.At, b.At) })
	return st, nil
}

func (slidingBuckets) fields(p *limit.Params, state *limit.State, now int64) fields {
	st := state.Log()
	f := fields{"w": big.NewInt(newestBucket(p, &st, now)), "s": big.NewInt(st.Sum), "x": new(big.Int)}
	for _, e := range st.Entries {
		f[bucketName(floorQuotient(e.At, p.Width))] = big.NewInt(e.Units)
	}
	return f
}

// newestBucket is the latest bucket for which every stored one still counts.
func newestBucket(p *limit.Params, st *limit.LogState, now int64) int64 {
	newest := floorQuotient(now, p.Width)
	if len(st.Entries) > 0 {
		newest = min(newest, floorQuotient(st.Entries[0].At, p.Width)+p.Buckets)
	}
	return newest
}

func (slidingBuckets) widest(t *limit.Tier) fields { // they reach a period back, and with leases a period ahead
	at, count := big.NewInt(-maxTime), big.NewInt(maxAmount)
	f := fields{"w": at, "s": count, "x": count}
	for i := range int64(2*t.Buckets + 4) {
		f[bucketName(maxTime/1000-i)] = count
	}
	return f
}

func (slidingBuckets) bytes(t *limit.Tier) int { return 30 + 12*(t.Buckets+2) }

// bucketsCharge is the charge of sliding buckets.
type bucketsCharge struct {
	*charge
	pre, post limit.LogState
}

func (slidingBuckets) charge(g *charge, c counter) {
	(&bucketsCharge{g, g.pre.Log(), g.post.Log()}).slidingBuckets(c)
}

const maxPinned = 16 // buckets that expire at once and are pinned one by one

// slidingBuckets keeps the sum of all buckets. While none of them has expired a charge is a comparison with the sum.
// Else it takes those that have off the sum, and requires that they are as they were seen. A lease is charged to the bucket
// in which it ends.
func (g *bucketsCharge) slidingBuckets(c counter) {
	p := &g.params
	if g.old == nil {
		c.require(c.absent())
		c.replace(g.fresh())
		return
	}
	newest, current := g.old["w"].Int64(), floorQuotient(g.now, p.Width)
	oldest := current - p.Buckets // the first that counts
	expired, stale := int64(0), false
	for _, e := range g.pre.Entries {
		if floorQuotient(e.At, p.Width) < oldest {
			expired, stale = expired+e.Units, true
		}
	}
	adjusted := g.post.Sum - g.taken() - (g.pre.Sum - expired)
	if current-newest > maxPinned || g.isCut(adjusted) {
		g.exact(c)
		return
	}
	c.mustBe("w", g.old["w"])
	if stale || current > newest {
		g.doubtful = true
		c.mustBe("x", g.old["x"])
		if g.expire(c, newest, oldest) { // the newest bucket goes too, and others may just have charged it
			c.mustBe("s", g.old["s"])
		}
		c.set("w", big.NewInt(max(newest, current)))
	}
	if g.taken() > 0 {
		if room := g.tier.Threshold - g.pre.Sum - adjusted + expired; room < 2*g.taken() {
			g.doubtful, g.tight = true, true
		}
		c.require(c.compare("s", "<=", big.NewInt(g.tier.Threshold-g.taken()-adjusted+expired)))
	}
	c.add("s", big.NewInt(g.taken()+adjusted-expired))
	late := int64(0) // charges to buckets that writers at the newest one do not look for: later than a period
	for index, units := range g.perBucket(current, adjusted) {
		g.addToBucket(c, index, units, adjusted)
		if units > 0 && index < newest-p.Buckets {
			late++
		}
	}
	if late > 0 {
		c.add("x", big.NewInt(late))
	}
}

// perBucket is what is added to each bucket.
func (g *bucketsCharge) perBucket(current, adjusted int64) map[int64]int64 {
	add := map[int64]int64{}
	if g.taken() > 0 {
		if g.leases() {
			current = floorQuotient(g.lease.At, g.params.Width)
		}
		add[current] += g.taken()
	}
	if adjusted != 0 {
		add[floorQuotient(g.ask.CorrectionAt, g.params.Width)] += adjusted
	}
	return add
}

// addToBucket adds units to a bucket, of which adjusted, if they are below zero, must be there before. One that is then
// empty goes.
func (g *bucketsCharge) addToBucket(c counter, index, units, adjusted int64) {
	name := bucketName(index)
	adjusts := adjusted < 0 && index == floorQuotient(g.ask.CorrectionAt, g.params.Width)
	if !adjusts {
		c.addNew(name, big.NewInt(units))
		return
	}
	held := int64(0)
	for _, e := range g.pre.Entries {
		if floorQuotient(e.At, g.params.Width) == index {
			held = e.Units
		}
	}
	if held+units == 0 {
		c.mustBe(name, big.NewInt(held))
		c.drop(name)
		return
	}
	least := -adjusted
	if units == adjusted { // it would be left empty
		least++
	}
	c.require(c.compare(name, ">=", big.NewInt(least)))
	c.add(name, big.NewInt(units))
}

// expire drops the buckets before oldest and requires that they hold what was seen. It reports whether the newest bucket is
// among them.
func (g *bucketsCharge) expire(c counter, newest, oldest int64) (last bool) {
	held := map[int64]bool{}
	for _, e := range g.pre.Entries {
		index := floorQuotient(e.At, g.params.Width)
		if index >= oldest {
			break
		}
		last = last || index >= newest
		held[index] = true
		name := bucketName(index)
		c.mustBe(name, big.NewInt(e.Units))
		c.drop(name)
	}
	for index := newest - g.params.Buckets; index < oldest; index++ {
		if !held[index] { // a clock that is a little behind may have charged it since
			c.require("attribute_not_exists(" + c.path(bucketName(index)) + ")")
		}
	}
	return last
}

// giveBack takes units off one bucket. One that is then empty goes.
func (slidingBuckets) giveBack(g *giving, c counter) {
	left := map[int64]int64{}
	for _, e := range g.post.Log().Entries {
		left[e.At] = e.Units
	}
	for _, e := range g.pre.Log().Entries {
		units, stays := left[e.At]
		if units == e.Units {
			continue
		}
		back := big.NewInt(e.Units - units)
		name := bucketName(floorQuotient(e.At, g.params.Width))
		if stays {
			c.require(c.compare(name, ">", back))
			c.add(name, new(big.Int).Neg(back))
		} else {
			c.mustBe(name, back)
			c.drop(name)
		}
		c.add("s", new(big.Int).Neg(back))
	}
}
