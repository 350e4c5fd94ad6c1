package dynamodb

import (
	"math/big"

	"github.com/sluicelimits/sluice/internal/limit"
)

// charge is one counter that a write is to charge, as the writer believes it to be.
type charge struct {
	tier      *limit.Tier
	params    limit.Params
	cost      int64
	now       int64
	old       fields      // in the view; nil: none
	pre       limit.State // old, as the core knows it, repaired
	post      limit.State // after the charge
	repaired  bool        // old has the mark of a clock that leapt ahead
	contended bool        // others charge the same item at the same time

	// most is the largest count that the counter may have in state pre, or, where next is set, may have had in the window
	// before, for the core to admit the cost.
	most func(next bool) int64
}

// guess adds to the write the condition under which the core admits the cost, whatever the counter holds by then as long
// as it is of the class that was guessed, and the assignments that make of it what the core would.
func (g *charge) guess(c counter) {
	switch {
	case g.repaired:
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

func (g *charge) fixedWindow(c counter) {
	if g.old != nil && g.post.At == g.pre.At {
		c.mustBe("w", g.old["w"])
		c.require(c.compare("n", "<=", big.NewInt(g.tier.Threshold-g.cost)))
		c.add("n", big.NewInt(g.cost))
		return
	}
	c.require("(" + c.absent() + " OR " + c.compare("w", "<", big.NewInt(g.post.At)) + ")")
	c.replace(g.fresh())
}

func (g *charge) quota(c counter) {
	if g.old != nil && g.post.At == g.pre.At && g.post.M == g.pre.M {
		c.mustBe("w", g.old["w"])
		c.mustBe("e", g.old["e"])
		c.require(c.compare("n", "<=", big.NewInt(g.tier.Threshold-g.cost)))
		c.add("n", big.NewInt(g.cost))
		return
	}
	c.require("(" + c.absent() + " OR " + c.compare("e", "<=", big.NewInt(g.now)) + ")")
	c.replace(g.fresh())
}

// slidingWindow pins the last window's count while the window lasts. At the edge it moves the count over by reference, so
// that charges of the old window that the writer has not seen are not lost.
func (g *charge) slidingWindow(c counter) {
	switch {
	case g.old != nil && g.post.At == g.pre.At:
		c.mustBe("w", g.old["w"])
		c.mustBe("p", g.old["p"])
		c.require(c.compare("n", "<=", big.NewInt(g.most(false))))
		c.add("n", big.NewInt(g.cost))
	case g.old != nil && g.pre.At >= g.post.At-g.params.Period:
		c.mustBe("w", g.old["w"])
		c.require(c.compare("n", "<=", big.NewInt(g.most(true))))
		c.copy("p", "n")
		c.set("n", big.NewInt(g.cost))
		c.set("w", big.NewInt(g.post.At))
	default:
		c.require("(" + c.absent() + " OR " + c.compare("w", "<", big.NewInt(g.post.At-g.params.Period)) + ")")
		c.replace(g.fresh())
	}
}

// tokenBucket keeps e, the time at which the level was zero, in 1/num µs: the level at a time is min(full, time·num − e),
// whatever the burst is by then. A charge adds to e. Where the bucket has run over, e is moved up first.
func (g *charge) tokenBucket(c counter) {
	p := &g.params
	spent := new(big.Int).Mul(big.NewInt(g.cost), big.NewInt(p.Den))
	if g.old != nil && !g.sameRate() {
		g.exact(c)
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
	switch {
	case at > g.now:
		g.pinStamp(c)
	case g.contended: // a stamp would only make writers whose clocks differ by a little disturb each other
		c.require(c.compare("t", "<=", big.NewInt(at)))
	default:
		c.require(c.compare("t", "<=", big.NewInt(at)))
		c.set("t", big.NewInt(at))
	}
}

// fullBucket charges a bucket that is full now, or that was never used. An e so low also means that nobody has charged at a
// time after now.
func (g *charge) fullBucket(c counter, full, e *big.Int) {
	rate := big.NewInt(g.tier.Threshold)
	stamp := big.NewInt(g.now)
	if g.contended {
		stamp = new(big.Int)
	}
	isFull := c.compare("r", "=", rate) + " AND " + c.compare("e", "<=", full) + " AND " + c.compare("t", "<=", big.NewInt(g.now))
	if g.old != nil { // what was refunded stays as it is
		c.require(isFull)
		c.set("e", e)
		c.set("t", stamp)
		return
	}
	c.require("(" + c.absent() + " OR (" + isFull + " AND attribute_not_exists(" + c.path("b") + ")))")
	c.replace(fields{"e": e, "t": stamp, "r": rate})
}

// pinStamp requires that the counter's own time is the one that was seen. Where it is not t but e that is ahead, both count.
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
	if g.old != nil && !g.sameRate() {
		g.exact(c)
		return
	}
	c.require("(" + c.absent() + " OR (" + c.compare("r", "=", big.NewInt(g.params.Num)) +
		" AND " + c.compare("s", "<=", scaled(g.now, g.params.Num, 0)) + "))")
	c.replace(g.fresh())
}

// slidingBuckets keeps the sum of all buckets. Within the newest bucket a charge is a comparison with the sum. The first charge
// of a later bucket takes those that no longer count off the sum; it knows them, since a change to a bucket other than the
// newest is counted in x.
func (g *charge) slidingBuckets(c counter) {
	if g.old == nil {
		c.require(c.absent())
		c.replace(g.fresh())
		return
	}
	p, cost := &g.params, big.NewInt(g.cost)
	newest, current := g.old["w"].Int64(), floorQuotient(g.now, p.Width)
	c.mustBe("w", g.old["w"])
	room := big.NewInt(g.tier.Threshold - g.cost)
	if current <= newest {
		c.require(c.compare("s", "<=", room))
		c.add("s", cost)
		c.addNew(bucketName(current), cost)
		if current < newest {
			c.add("x", one)
		}
		return
	}
	c.mustBe("x", g.old["x"])
	expired, pinned := int64(0), false
	for _, stamp := range g.pre.Stamps {
		index := floorQuotient(stamp.At, p.Width)
		if index >= current-p.Buckets {
			break
		}
		expired += stamp.Units
		pinned = pinned || index >= newest
		c.drop(bucketName(index))
	}
	if pinned { // the newest bucket goes too, and others may just have charged it
		c.mustBe("s", g.old["s"])
	}
	c.require(c.compare("s", "<=", room.Add(room, big.NewInt(expired))))
	c.add("s", new(big.Int).Sub(cost, big.NewInt(expired)))
	c.addNew(bucketName(current), cost)
	c.set("w", big.NewInt(current))
}
