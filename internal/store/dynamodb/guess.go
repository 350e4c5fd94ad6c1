package dynamodb

import (
	"math/big"

	"github.com/sluicelimits/sluice/internal/limit"
)

// charge is one counter that a write is to charge, as the writer believes it to be.
type charge struct {
	tier      *limit.Tier
	params    limit.Params
	need      int64               // units that must fit
	ask       *limit.LeaseRequest // nil: none
	lease     limit.Lease         // what is charged beyond the need
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
func (g *charge) taken() int64 { return g.need + g.lease.Units }

// leases reports whether what is taken is a lease, and not spent.
func (g *charge) leases() bool { return g.ask != nil && g.ask.Largest() > 0 }

// adjust is what the request corrects, units.
func (g *charge) adjust() int64 {
	if g.ask == nil {
		return 0
	}
	return g.ask.Correction
}

// ramps reports whether some of what is taken comes free later.
func (g *charge) ramps() bool { return g.ask != nil && g.ask.Ramp && g.lease.Units > 0 }

// guess adds to the write the condition under which the core admits the cost, whatever the counter holds by then as
// long as it is of the class that was guessed, and the assignments that make of it what the core would.
// With whole it compares the whole counter instead.
func (g *charge) guess(c counter, whole bool) {
	if g.repaired || whole {
		g.exact(c)
		return
	}
	of(g.tier).charge(g, c)
}

// exact compares and sets the whole counter.
func (g *charge) exact(c counter) {
	g.doubtful = true
	c.isUnchanged(g.old)
	f := of(g.tier).fields(&g.params, &g.post, g.now)
	if x := g.old["x"]; x != nil {
		f["x"] = new(big.Int).Add(x, one)
	}
	c.replace(f)
}

var one = big.NewInt(1)

func (g *charge) fresh() fields {
	return of(g.tier).fields(&g.params, &g.post, g.now)
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

// addCount adds to the count n what is taken, and the correction.
func (g *charge) addCount(c counter, adjusted int64) {
	g.fits(c, "n", adjusted, g.tier.Threshold-g.taken(), 2*limit.MaxUnits)
	c.add("n", big.NewInt(adjusted+g.taken()))
}

// claim is units that must be free at a time.
type claim struct{ at, units int64 }

// claims are all that is taken, by when it must be free. Of a ramp nothing may be: then the counter may be more than full
// now, by other ramps that come free until the same time.
func (g *charge) claims() []claim {
	now, all := g.need+g.lease.Upfront, claim{g.lease.Until, g.taken()}
	switch {
	case !g.ramps():
		return []claim{{g.now, g.taken()}}
	case now == 0:
		return []claim{all}
	}
	return []claim{{g.now, now}, all}
}
