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

func (tokenBucket) state(_ *limit.Tier, p *limit.Params, f fields) (limit.State, error) {
	st, err := bucketState(p, f)
	return st.State(), err
}

// bucketState turns the empty time e into a level at a time: that of the last charge, as far as it is known. A level that
// is further below zero than anything of ours takes it is one at the time at which it is zero, for the core to repair.
func bucketState(p *limit.Params, f fields) (st limit.TokenBucketState, err error) {
	if st.Rate, err = f.int("r", 1, maxAmount); err != nil {
		return st, err
	}
	if st.AsOf, err = f.int("t", -maxTime, maxTime); err != nil {
		return st, err
	}
	e, ok := f["e"]
	if !ok {
		return st, fmt.Errorf("field %q is missing", "e")
	}
	num := perMicrosecond(st.Rate, p)
	level := scaled(st.AsOf, num, 0)
	level.Sub(level, e)
	if debt := new(big.Int).Mul(big.NewInt(-mostDebt*p.Capacity), big.NewInt(perUnit(st.Rate, p))); level.Cmp(debt) < 0 {
		empty := ceilQuotient(e, big.NewInt(num))
		if !empty.IsInt64() || empty.Int64() > maxTime {
			return st, fmt.Errorf("field %q is %s, which is no time", "e", e)
		}
		st.AsOf = empty.Int64()
		level = scaled(st.AsOf, num, 0)
		level.Sub(level, e)
	}
	if !level.IsInt64() || level.Int64() > maxAmount || level.Int64() < -maxAmount {
		return st, fmt.Errorf("fields %q and %q make a level of %s", "e", "t", level)
	}
	st.Level = level.Int64()
	if f["b"] != nil {
		if st.Refunds.Total, err = f.int("b", 0, 1<<62); err != nil {
			return st, err
		}
		if st.Refunds.Last, err = f.int("u", -maxTime, maxTime); err != nil {
			return st, err
		}
	}
	return st, leasedOf(p, f, &st)
}

// leasedOf adds to a bucket's state what of it is leased.
func leasedOf(p *limit.Params, f fields, st *limit.TokenBucketState) error {
	if f["z"] == nil && f["q"] == nil {
		return nil
	}
	until, err := f.int("z", -maxTime, maxTime)
	if err != nil {
		return err
	}
	q, ok := f["q"]
	if !ok {
		return fmt.Errorf("field %q is missing", "q")
	}
	held, rest := new(big.Int).Sub(f["e"], q), new(big.Int)
	held.QuoRem(held, big.NewInt(perUnit(st.Rate, p)), rest)
	if rest.Sign() != 0 || held.Sign() < 0 || !held.IsInt64() || held.Int64() > maxAmount {
		return fmt.Errorf("fields %q and %q hold %s units, and a rest of %s", "e", "q", held, rest)
	}
	if held.Sign() > 0 {
		st.Leased = limit.Leased{Units: held.Int64(), Until: until}
	}
	return nil
}

// perMicrosecond is the numerator of a rate in units per µs, in lowest terms.
func perMicrosecond(rate int64, p *limit.Params) int64 {
	a, b := rate, p.Period
	for b != 0 {
		a, b = b, a%b
	}
	return rate / a
}

// perUnit is the denominator of a rate in units per µs, in lowest terms: what a unit is, in a bucket's level.
func perUnit(rate int64, p *limit.Params) int64 { return p.Period / (rate / perMicrosecond(rate, p)) }

func (tokenBucket) fields(p *limit.Params, state *limit.State, _ int64) fields {
	st := state.TokenBucket()
	f := fields{"e": emptyTime(p, &st), "t": big.NewInt(st.AsOf), "r": big.NewInt(st.Rate)}
	if st.Refunds != (limit.Refunds{}) {
		f["b"], f["u"] = big.NewInt(st.Refunds.Total), big.NewInt(st.Refunds.Last)
	}
	if st.Leased.Units != 0 {
		f["q"] = scaled(st.Leased.Units, -perUnit(st.Rate, p), 0)
		f["q"].Add(f["q"], f["e"])
		f["z"] = big.NewInt(st.Leased.Until)
	}
	return f
}

func emptyTime(p *limit.Params, st *limit.TokenBucketState) *big.Int {
	return scaled(st.AsOf, perMicrosecond(st.Rate, p), -st.Level)
}

// lasts: what is leased makes room only when its slot ends.
func (tokenBucket) lasts(_ *limit.Tier, p *limit.Params, st *limit.State, now int64) int64 {
	return max(st.TokenBucket().AsOf-now, 0) + 2*p.FullIn + p.SlotLength
}

func (tokenBucket) widest(*limit.Tier) fields {
	at, count, long := big.NewInt(-maxTime), big.NewInt(maxAmount), longest()
	return fields{"e": long, "r": count, "t": at, "b": at, "u": at, "q": long, "z": at}
}

func (tokenBucket) bytes(*limit.Tier) int { return 78 } // with a lease

// bucketCharge is the charge of a token bucket.
type bucketCharge struct {
	*charge
	pre limit.TokenBucketState
}

func (tokenBucket) charge(g *charge, c counter) {
	(&bucketCharge{g, g.pre.TokenBucket()}).tokenBucket(c)
}

const (
	slackParts = 32     // a bucket that several writers charge at once is held to be at most 1 − 1/slackParts full,
	slackLeast = 128    // if its burst is at least this many units
	mostAhead  = 10_000 // µs; about how old what a writer knows is, at most
	stampSteps = 5      // the stamp of such a bucket moves by at least so many times that
)

// lookahead is how far apart writers' times may lie, µs: less than what the slack takes to refill.
func (g *bucketCharge) lookahead() int64 {
	return min(mostAhead, g.params.Full/slackParts/g.params.Num/4)
}

// drawn is a time, µs, of at least least: another one for each writer, so that one of them does first what all would.
func drawn(least int64) int64 { return int64((1 + rand.ExpFloat64()) * float64(least)) }

// tokenBucket keeps e, the time at which the level was zero, in 1/num µs: the level at a time is min(full, time·num −
// e), whatever the burst is by then. A charge adds to e. Where the bucket has run over, e is moved up first.
func (g *bucketCharge) tokenBucket(c counter) {
	p := &g.params
	spent := new(big.Int).Mul(big.NewInt(g.need), big.NewInt(p.Den))
	switch {
	case g.old != nil && g.pre.Rate != g.tier.Threshold:
		g.exact(c)
		return
	case g.ask != nil || g.old["z"] != nil:
		g.heldBucket(c)
		return
	case g.old != nil:
		c.require(c.without("z"))
	}
	if g.contended && g.old != nil && g.together(c, spent) {
		return
	}
	full := scaled(g.now, p.Num, -p.Full) // e of a bucket that is full now
	if g.old == nil || g.old["e"].Cmp(full) <= 0 && g.pre.AsOf <= g.now {
		g.fullBucket(c, full, new(big.Int).Add(full, spent))
		return
	}
	at := max(g.now, g.pre.AsOf) // a clock that is behind decides at the counter's own time
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

// together charges a bucket that others charge at the same time, so that neither their charges nor their clocks, which
// differ by a little, disturb it. The counter's own time moves on in steps then, by whoever is drawn first; a clock that
// is behind decides at that time, as ever, less the lookahead by which a step may have gone back. It reports false where
// the bucket is so full that it may run over at any moment, and too small for nearlyFull.
func (g *bucketCharge) together(c counter, spent *big.Int) bool {
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
func (g *bucketCharge) nearlyFull(c counter, full, spent *big.Int) {
	level := new(big.Int).Add(full, big.NewInt(g.params.Full/slackParts))
	c.require(c.compare("e", "<=", level))
	c.set("e", level.Add(level, spent))
}

// fullBucket charges a bucket that is full now, or that was never used. An e so low also means that nobody has
// charged at a time after now.
func (g *bucketCharge) fullBucket(c counter, full, e *big.Int) {
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
func (g *bucketCharge) pinStamp(c counter) {
	c.mustBe("t", g.old["t"])
	if g.old["t"].Cmp(big.NewInt(g.pre.AsOf)) < 0 {
		c.mustBe("e", g.old["e"])
	}
}

func (tokenBucket) giveBack(g *giving, c counter) {
	(&bucketGiving{g, g.pre.TokenBucket(), g.post.TokenBucket()}).level(c)
}

// bucketGiving is the way back of a token bucket.
type bucketGiving struct {
	*giving
	pre, post limit.TokenBucketState
}

// level lowers the empty time, which raises the level, as long as the bucket does not run over. What was refunded
// before decides how much it is, so that is pinned. Where units are held, they and the level together must not run over.
func (g *bucketGiving) level(c counter) {
	p := &g.params
	give := new(big.Int).Sub(emptyTime(p, &g.pre), emptyTime(p, &g.post))
	held := g.old["z"] != nil
	switch {
	case give.Sign() <= 0, held && g.old["z"].Cmp(big.NewInt(max(g.now, g.post.AsOf))) <= 0:
		g.whole(c)
		return
	case held && g.pre.Refunds == g.post.Refunds:
		g.release(c, give)
		return
	}
	at := big.NewInt(g.post.AsOf)
	c.mustBe("r", g.old["r"])
	c.require(c.compare("t", "<=", at))
	least := scaled(g.post.AsOf, p.Num, -p.Full)
	sum := "e"
	if held {
		sum = "q"
		c.mustBe("z", g.old["z"])
		c.add("q", new(big.Int).Neg(give))
	} else {
		c.require(c.without("z"))
	}
	c.require(c.compare(sum, ">=", least.Add(least, give)))
	if before := g.old["b"]; before != nil {
		c.mustBe("b", before)
	} else {
		c.require(c.without("b"))
	}
	c.add("e", new(big.Int).Neg(give))
	c.set("t", at)
	c.set("b", big.NewInt(g.post.Refunds.Total))
	c.set("u", big.NewInt(g.post.Refunds.Last))
}

// release gives back units that are held. The bucket holds that much if e is that far ahead of q.
func (g *bucketGiving) release(c counter, give *big.Int) {
	spare := new(big.Int).Sub(g.old["e"], g.old["q"])
	spare.Rsh(spare.Sub(spare, give), 1)
	sum := new(big.Int).Add(g.old["q"], spare)
	c.mustBe("r", g.old["r"])
	c.mustBe("z", g.old["z"])
	c.require(c.compare("q", "<=", sum))
	c.require(c.compare("e", ">=", sum.Add(sum, give)))
	c.add("e", new(big.Int).Neg(give))
}
