package dynamodb

import (
	"math/big"
	"math/rand/v2"

	"github.com/sluicelimits/sluice/internal/limit"
)

// charge is one counter that a write is to charge, as the writer believes it to be.
type charge struct {
	tier      *limit.Tier
	params    limit.Params
	need      int64               // units that must fit
	ahead     *limit.LeaseRequest // nil: none
	grant     limit.Lease         // what is charged beyond the need
	now       int64
	old       fields      // in the view; nil: none
	pre       limit.State // old, as the core knows it, repaired
	post      limit.State // after the charge
	repaired  bool        // old has the mark of a clock that leapt ahead
	contended bool        // others charge the same item at the same time

	doubtful bool // what was guessed is likely to be wrong where others charge the item, see look
	tight    bool // there is less room than for twice what is taken
}

// taken is all that is charged, units.
func (g *charge) taken() int64 { return g.need + g.grant.Units }

// leases reports whether what is taken is a lease, and not spent.
func (g *charge) leases() bool { return g.ahead != nil && g.ahead.Largest() > 0 }

// adjust is what the request corrects, units.
func (g *charge) adjust() int64 {
	if g.ahead == nil {
		return 0
	}
	return g.ahead.Correction
}

// ramps reports whether some of what is taken comes free later.
func (g *charge) ramps() bool { return g.ahead != nil && g.ahead.Ramp && g.grant.Units > 0 }

// guess adds to the write the condition under which the core admits the cost, whatever the counter holds by then as
// long as it is of the class that was guessed, and the assignments that make of it what the core would.
// With whole it compares the whole counter instead.
func (g *charge) guess(c counter, whole bool) {
	switch {
	case g.repaired || whole:
		g.exact(c)
	case g.tier.Algorithm == limit.FixedWindow:
		g.fixedWindow(c)
	case g.tier.Algorithm == limit.Quota:
		g.quota(c)
	case g.tier.Algorithm == limit.SlidingWindow:
		g.slidingWindow(c)
	case g.tier.Algorithm == limit.TokenBucket:
		g.tokenBucket(c)
	case g.tier.Algorithm == limit.LeakyBucket:
		g.leakyBucket(c)
	default:
		g.slidingBuckets(c)
	}
}

// exact compares and sets the whole counter.
func (g *charge) exact(c counter) {
	g.doubtful = true
	if g.tier.Algorithm == limit.LeakyBucket && g.post.M == 0 { // units came back to a bucket that nobody used: its slot is free
		g.post = limit.State{At: g.now, M: g.params.Num}
	}
	c.isUnchanged(g.old)
	f := fieldsOf(g.tier, &g.params, &g.post, g.now)
	if x := g.old["x"]; x != nil {
		f["x"] = new(big.Int).Add(x, one)
	}
	c.replace(f)
}

var one = big.NewInt(1)

func (g *charge) fresh() fields {
	return fieldsOf(g.tier, &g.params, &g.post, g.now)
}

// offGrid reports whether the window to charge is of another grid than the limit's, from before a change of its align. Such
// a window is compared as a whole.
func (g *charge) offGrid() bool { return floorMod(g.post.At-g.params.Offset, g.params.Period) != 0 }

// fixedWindow moves the count over by reference at the edge, as slidingWindow does, but does not require that the window it
// ends is the one that was seen: the field o says which window the field p counts, so any older one will do.
func (g *charge) fixedWindow(c counter) {
	period := g.params.Period
	switch {
	case g.old == nil:
		g.doubtful = true
		c.require("(" + c.absent() + " OR " + c.compare("w", "<=", big.NewInt(g.post.At-2*period)) + ")")
		c.replace(g.fresh())
	case g.offGrid() || g.pre.At > g.post.At-period && g.pre.At < g.post.At: // the windows of two grids overlap
		g.exact(c)
	case g.post.At == g.pre.At:
		g.sameWindow(c, "w")
	default:
		g.nextWindow(c)
	}
}

// nextWindow begins a window. A correction of the window before it, if that is the one that was seen, goes into its count.
func (g *charge) nextWindow(c counter) {
	g.doubtful = true
	before, adjusted := big.NewInt(g.post.At-g.params.Period), int64(0)
	if g.pre.At > g.post.At-2*g.params.Period {
		adjusted = g.post.M - g.pre.N
	}
	switch {
	case g.isCut(adjusted) || adjusted == 0 && g.post.M != 0 && g.post.M != g.pre.N:
		g.exact(c)
		return
	case adjusted != 0:
		c.mustBe("w", g.old["w"])
		if adjusted < 0 {
			c.require(c.compare("n", ">=", big.NewInt(-adjusted)))
		}
	default:
		c.require(c.compare("w", "<=", before))
	}
	c.copy("p", "n", big.NewInt(adjusted))
	c.copy("o", "w", new(big.Int))
	c.set("n", big.NewInt(g.post.N))
	c.set("w", big.NewInt(g.post.At))
}

func (g *charge) quota(c counter) {
	if g.old != nil && g.post.At == g.pre.At && g.post.M == g.pre.M {
		g.sameWindow(c, "w", "e")
		return
	}
	g.doubtful = true
	c.require("(" + c.absent() + " OR " + c.compare("e", "<=", big.NewInt(g.now)) + ")")
	c.replace(g.fresh())
}

// sameWindow adds to the count of the window that the pinned fields name.
func (g *charge) sameWindow(c counter, pinned ...string) {
	adjusted := g.post.N - g.pre.N - g.taken()
	if g.isCut(adjusted) || g.post.M != g.pre.M && (g.old["p"] == nil || g.isCut(g.post.M-g.pre.M)) {
		g.exact(c)
		return
	}
	for _, field := range pinned {
		c.mustBe(field, g.old[field])
	}
	g.fits(c, "n", adjusted, g.tier.Threshold-g.taken(), 2*limit.MaxUnits)
	c.add("n", big.NewInt(adjusted+g.taken()))
	g.adjustLast(c)
}

// adjustLast corrects the count of the window before the current one, which is of the same counter as the pinned window.
func (g *charge) adjustLast(c counter) {
	if last := g.post.M - g.pre.M; last != 0 {
		c.require(c.compare("p", ">=", big.NewInt(max(-last, 0))))
		c.add("p", big.NewInt(last))
	}
}

// isCut reports whether a correction, of which this much was effective, met a bound of the counter.
func (g *charge) isCut(effective int64) bool { return effective != 0 && effective != g.adjust() }

// fits requires of a count that the correction stays within 0..top, and that what is taken fits: the count, once it is
// corrected, is at most most.
func (g *charge) fits(c counter, field string, adjusted, most, top int64) {
	if g.taken() == 0 {
		most = top
	}
	if left := most - adjusted - g.old[field].Int64(); left < g.taken() {
		g.doubtful, g.tight = true, true
	}
	c.require(c.compare(field, "<=", big.NewInt(most-adjusted)))
	if adjusted < 0 {
		c.require(c.compare(field, ">=", big.NewInt(-adjusted)))
	}
}

// slidingWindow goes by the most that the last window's count can be while the window lasts. At the edge it moves the count over by
// reference, so that charges of the old window that the writer has not seen are not lost.
func (g *charge) slidingWindow(c counter) {
	switch {
	case g.old != nil && g.offGrid():
		g.exact(c)
	case g.old != nil && g.post.At == g.pre.At:
		adjusted := g.post.N - g.pre.N - g.taken()
		if g.isCut(adjusted) || g.isCut(g.post.M-g.pre.M) {
			g.exact(c)
			return
		}
		c.mustBe("w", g.old["w"])
		c.require(c.compare("p", "<=", g.old["p"])) // others may have given some of it back: it weighs less then
		g.fits(c, "n", adjusted, g.mostBeside(g.post.M), limit.MaxSlidingUnits)
		c.add("n", big.NewInt(adjusted+g.taken()))
		g.adjustLast(c)
	case g.old != nil && g.pre.At > g.post.At-g.params.Period: // the windows of two grids overlap
		g.exact(c)
	case g.old != nil && g.pre.At > g.post.At-2*g.params.Period:
		g.doubtful = true
		adjusted := g.post.M - g.pre.N // of the last window
		if g.isCut(adjusted) {
			g.exact(c)
			return
		}
		c.mustBe("w", g.old["w"])
		g.fits(c, "n", adjusted, g.mostBefore(g.post.N-g.taken()), limit.MaxSlidingUnits)
		c.copy("p", "n", big.NewInt(adjusted))
		c.set("n", big.NewInt(g.post.N))
		c.set("w", big.NewInt(g.post.At))
	default:
		g.doubtful = true
		c.require("(" + c.absent() + " OR " + c.compare("w", "<=", big.NewInt(g.post.At-2*g.params.Period)) + ")")
		c.replace(g.fresh())
	}
}

// claim is units that must be free at a time.
type claim struct{ at, units int64 }

// claims are all that is taken, by when it must be free. Of a ramp nothing may be: then the counter may be more than full
// now, by other ramps that come free until the same time.
func (g *charge) claims() []claim {
	now, all := g.need+g.grant.Upfront, claim{g.grant.Until, g.taken()}
	switch {
	case !g.ramps():
		return []claim{{g.now, g.taken()}}
	case now == 0:
		return []claim{all}
	}
	return []claim{{g.now, now}, all}
}

// ticksLeft is what of the last window a sliding one still weighs at a time, in ticks of the period.
func (g *charge) ticksLeft(at int64) int64 {
	p := &g.params
	left := max(g.post.At+p.Period-at, 0)
	return min((left+p.Tick-1)/p.Tick, p.Ticks)
}

// mostBeside is the largest count that a sliding window may have for what is taken to fit, where the last one's is last.
func (g *charge) mostBeside(last int64) int64 {
	most := int64(limit.MaxSlidingUnits)
	for _, claim := range g.claims() {
		weight := (last*g.ticksLeft(claim.at) + g.params.Ticks - 1) / g.params.Ticks
		most = min(most, g.tier.Threshold-weight-claim.units)
	}
	return most
}

// mostBefore is the largest count that the window before may have for what is taken to fit, where this one's is count.
func (g *charge) mostBefore(count int64) int64 {
	most := int64(limit.MaxSlidingUnits)
	for _, claim := range g.claims() {
		room := g.tier.Threshold - count - claim.units
		if ticks := g.ticksLeft(claim.at); ticks > 0 {
			most = min(most, max(room, -1)*g.params.Ticks/ticks)
		} else if room < 0 {
			most = -1
		}
	}
	return most
}

// tokenBucket keeps e, the time at which the level was zero, in 1/num µs: the level at a time is min(full, time·num −
// e), whatever the burst is by then. A charge adds to e. Where the bucket has run over, e is moved up first.
func (g *charge) tokenBucket(c counter) {
	p := &g.params
	spent := new(big.Int).Mul(big.NewInt(g.need), big.NewInt(p.Den))
	switch {
	case g.old != nil && !g.sameRate():
		g.exact(c)
		return
	case g.ahead != nil || g.old["z"] != nil:
		g.heldBucket(c)
		return
	case g.old != nil:
		c.require(c.without("z"))
	}
	if g.contended && g.old != nil && g.together(c, spent) {
		return
	}
	full := scaled(g.now, p.Num, -p.Full) // e of a bucket that is full now
	if g.old == nil || g.old["e"].Cmp(full) <= 0 && g.pre.At <= g.now {
		g.fullBucket(c, full, new(big.Int).Add(full, spent))
		return
	}
	at := max(g.now, g.pre.At) // a clock that is behind decides at the counter's own time
	if g.old["e"].Cmp(scaled(at, p.Num, -p.Full)) < 0 {
		g.exact(c)
		return
	}
	c.mustBe("r", g.old["r"])
	c.require(c.compare("e", ">=", scaled(at, p.Num, -p.Full)))
	c.require(c.compare("e", "<=", new(big.Int).Sub(scaled(at, p.Num, 0), spent)))
	c.add("e", spent)
	if at > g.now {
		g.pinStamp(c)
		return
	}
	c.require(c.compare("t", "<=", big.NewInt(at)))
	c.set("t", big.NewInt(at))
}

const (
	slackParts = 32     // a bucket that several writers charge at once is held to be at most 1 − 1/slackParts full,
	slackLeast = 128    // if its burst is at least this many units
	mostAhead  = 10_000 // µs; about how old what a writer knows is, at most
	stampSteps = 5      // the stamp of such a bucket moves by at least so many times that
)

// lookahead is how far apart writers' times may lie, µs: less than what the slack takes to refill.
func (g *charge) lookahead() int64 {
	return min(mostAhead, g.params.Full/slackParts/g.params.Num/4)
}

// drawn is a time, µs, of at least least: another one for each writer, so that one of them does first what all would.
func drawn(least int64) int64 { return int64((1 + rand.ExpFloat64()) * float64(least)) }

// together charges a bucket that others charge at the same time, so that neither their charges nor their clocks, which
// differ by a little, disturb it. The counter's own time moves on in steps then, by whoever is drawn first; a clock that
// is behind decides at that time, as ever, less the lookahead by which a step may have gone back. It reports false where
// the bucket is so full that it may run over at any moment, and too small for nearlyFull.
func (g *charge) together(c counter, spent *big.Int) bool {
	p, look := &g.params, g.lookahead()
	if !g.old["t"].IsInt64() {
		return false
	}
	seen := g.old["t"].Int64() - look
	at := max(g.now, seen)
	full := scaled(at, p.Num, -p.Full)
	ahead := new(big.Int).Sub(g.old["e"], full)
	ahead.Quo(ahead, big.NewInt(p.Num)) // µs until the bucket is full
	latest := at + look
	nearly := p.Capacity >= slackLeast && g.need < p.Capacity-p.Capacity/slackParts
	switch {
	case nearly && ahead.Cmp(big.NewInt(drawn(look))) < 0:
		latest = at + p.Full/slackParts/p.Num
		g.nearlyFull(c, full, spent)
	case ahead.Cmp(big.NewInt(look)) < 0:
		return false
	default:
		if ahead.IsInt64() {
			latest = at + max(look, ahead.Int64()/4*3)
		}
		c.require(c.compare("e", ">=", scaled(latest, p.Num, -p.Full)))
		c.require(c.compare("e", "<=", new(big.Int).Sub(scaled(at, p.Num, 0), spent)))
		c.add("e", spent)
	}
	c.mustBe("r", g.old["r"])
	if seen > g.now {
		c.require(c.compare("t", ">=", big.NewInt(seen)))
	}
	if g.now-g.old["t"].Int64() > drawn(stampSteps*look) {
		latest = at + look
		c.set("t", big.NewInt(g.now))
	}
	c.require(c.compare("t", "<=", big.NewInt(latest)))
	return true
}

// nearlyFull charges a bucket that is full, or soon would be. Whether such a bucket has run over since the others'
// charges is what a writer cannot know, and to guess it wrong costs a write unit. So one writer, drawn by lot shortly
// before the others would have to, moves the level down to 31/32 of the burst: until that has refilled, a charge is the
// same sum for every writer. A burst is cut by at most that part, and nothing is ever admitted by it.
func (g *charge) nearlyFull(c counter, full, spent *big.Int) {
	level := new(big.Int).Add(full, big.NewInt(g.params.Full/slackParts))
	c.require(c.compare("e", "<=", level))
	c.set("e", level.Add(level, spent))
}

// fullBucket charges a bucket that is full now, or that was never used. An e so low also means that nobody has
// charged at a time after now.
func (g *charge) fullBucket(c counter, full, e *big.Int) {
	rate, stamp := big.NewInt(g.tier.Threshold), big.NewInt(g.now)
	isFull := c.compare("r", "=", rate) + " AND " + c.compare("e", "<=", full) +
		" AND " + c.compare("t", "<=", big.NewInt(g.now))
	if g.old != nil { // what was refunded stays as it is
		c.require(isFull)
		c.set("e", e)
		c.set("t", stamp)
		return
	}
	c.require("(" + c.absent() + " OR (" + isFull + " AND " + c.without("b") + " AND " + c.without("z") + "))")
	c.replace(fields{"e": e, "t": stamp, "r": rate})
}

// pinStamp requires that the counter's own time is the one that was seen. Where it is not t but e that is ahead, both
// count.
func (g *charge) pinStamp(c counter) {
	c.mustBe("t", g.old["t"])
	if g.old["t"].Cmp(big.NewInt(g.pre.At)) < 0 {
		c.mustBe("e", g.old["e"])
	}
}

// sameRate reports whether the counter's level or slot is counted in the fractions of the limit's rate.
func (g *charge) sameRate() bool {
	if g.tier.Algorithm == limit.TokenBucket {
		return g.pre.M == g.tier.Threshold
	}
	return g.pre.M == g.params.Num
}

// leakyBucket has one class: the slot has come, however long ago.
func (g *charge) leakyBucket(c counter) {
	if g.old != nil && !g.sameRate() || g.adjust() != 0 {
		g.exact(c)
		return
	}
	c.require("(" + c.absent() + " OR (" + c.compare("r", "=", big.NewInt(g.params.Num)) +
		" AND " + c.compare("s", "<=", scaled(g.now, g.params.Num, 0)) + "))")
	c.replace(g.fresh())
}

const maxPinned = 16 // buckets that expire at once and are pinned one by one

// slidingBuckets keeps the sum of all buckets. While none of them has expired a charge is a comparison with the sum.
// Else it takes those that have off the sum, and requires that they are as they were seen. A lease is charged to the bucket
// in which it ends.
func (g *charge) slidingBuckets(c counter) {
	p := &g.params
	if g.old == nil {
		c.require(c.absent())
		c.replace(g.fresh())
		return
	}
	newest, current := g.old["w"].Int64(), floorQuotient(g.now, p.Width)
	oldest := current - p.Buckets // the first that counts
	expired, stale := int64(0), false
	for _, stamp := range g.pre.Stamps {
		if floorQuotient(stamp.At, p.Width) < oldest {
			expired, stale = expired+stamp.Units, true
		}
	}
	adjusted := g.post.N - g.taken() - (g.pre.N - expired)
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
		if room := g.tier.Threshold - g.pre.N - adjusted + expired; room < 2*g.taken() {
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
func (g *charge) perBucket(current, adjusted int64) map[int64]int64 {
	add := map[int64]int64{}
	if g.taken() > 0 {
		if g.leases() {
			current = floorQuotient(g.grant.At, g.params.Width)
		}
		add[current] += g.taken()
	}
	if adjusted != 0 {
		add[floorQuotient(g.ahead.CorrectionAt, g.params.Width)] += adjusted
	}
	return add
}

// addToBucket adds units to a bucket, of which adjusted, if they are below zero, must be there before. One that is then
// empty goes.
func (g *charge) addToBucket(c counter, index, units, adjusted int64) {
	name := bucketName(index)
	adjusts := adjusted < 0 && index == floorQuotient(g.ahead.CorrectionAt, g.params.Width)
	if !adjusts {
		c.addNew(name, big.NewInt(units))
		return
	}
	held := int64(0)
	for _, stamp := range g.pre.Stamps {
		if floorQuotient(stamp.At, g.params.Width) == index {
			held = stamp.Units
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
func (g *charge) expire(c counter, newest, oldest int64) (last bool) {
	held := map[int64]bool{}
	for _, stamp := range g.pre.Stamps {
		index := floorQuotient(stamp.At, g.params.Width)
		if index >= oldest {
			break
		}
		last = last || index >= newest
		held[index] = true
		name := bucketName(index)
		c.mustBe(name, big.NewInt(stamp.Units))
		c.drop(name)
	}
	for index := newest - g.params.Buckets; index < oldest; index++ {
		if !held[index] { // a clock that is a little behind may have charged it since
			c.require("attribute_not_exists(" + c.path(bucketName(index)) + ")")
		}
	}
	return last
}
