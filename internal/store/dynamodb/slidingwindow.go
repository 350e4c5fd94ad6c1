package dynamodb

import (
	"math/big"

	"github.com/sluicelimits/sluice/internal/limit"
)

// slidingWindow has the fields w (the start of the window), n (its count), and p (the count of the window before it).
type slidingWindow struct{ lastsFresh }

func (slidingWindow) state(_ *limit.Tier, _ *limit.Params, f fields) (limit.State, error) {
	var st limit.WindowState
	err := f.read("w", -maxTime, maxTime, &st.Start)
	if err == nil {
		err = f.read("n", 0, maxAmount, &st.Count)
	}
	if err == nil {
		err = f.read("p", 0, maxAmount, &st.Previous)
	}
	return st.State(), err
}

func (slidingWindow) fields(_ *limit.Params, state *limit.State, _ int64) fields {
	st := state.Window()
	return fields{"w": big.NewInt(st.Start), "n": big.NewInt(st.Count), "p": big.NewInt(st.Previous)}
}

func (slidingWindow) charge(g *charge, c counter) { newWindowCharge(g).slidingWindow(c) }

func (slidingWindow) giveBack(g *giving, c counter) {
	pre, post := g.pre.Window(), g.post.Window()
	g.count(c, "n", pre.Count-post.Count)
	g.count(c, "p", pre.Previous-post.Previous)
}

func (slidingWindow) widest(*limit.Tier) fields { return widestWindow() }

func (slidingWindow) bytes(*limit.Tier) int { return 34 }

// slidingWindow goes by the most that the last window's count can be while the window lasts. At the edge it moves the count over by
// reference, so that charges of the old window that the writer has not seen are not lost.
func (g *windowCharge) slidingWindow(c counter) {
	switch {
	case g.old != nil && g.offGrid():
		g.exact(c)
	case g.old != nil && g.post.Start == g.pre.Start:
		adjusted := g.post.Count - g.pre.Count - g.taken()
		if g.isCut(adjusted) || g.isCut(g.post.Previous-g.pre.Previous) {
			g.exact(c)
			return
		}
		c.mustBe("w", g.old["w"])
		c.require(c.compare("p", "<=", g.old["p"])) // others may have given some of it back: it weighs less then
		g.fits(c, "n", adjusted, g.mostBeside(g.post.Previous), limit.MaxSlidingUnits)
		c.add("n", big.NewInt(adjusted+g.taken()))
		g.adjustLast(c)
	case g.old != nil && g.pre.Start > g.post.Start-g.params.Period: // the windows of two grids overlap
		g.exact(c)
	case g.old != nil && g.pre.Start > g.post.Start-2*g.params.Period:
		g.doubtful = true
		adjusted := g.post.Previous - g.pre.Count // of the last window
		if g.isCut(adjusted) {
			g.exact(c)
			return
		}
		c.mustBe("w", g.old["w"])
		g.fits(c, "n", adjusted, g.mostBefore(g.post.Count-g.taken()), limit.MaxSlidingUnits)
		c.copy("p", "n", big.NewInt(adjusted))
		c.set("n", big.NewInt(g.post.Count))
		c.set("w", big.NewInt(g.post.Start))
	default:
		g.doubtful = true
		c.require("(" + c.absent() + " OR " + c.compare("w", "<=", big.NewInt(g.post.Start-2*g.params.Period)) + ")")
		c.replace(g.fresh())
	}
}

// ticksLeft is what of the last window a sliding one still weighs at a time, in ticks of the period.
func (g *windowCharge) ticksLeft(at int64) int64 {
	p := &g.params
	left := max(g.post.Start+p.Period-at, 0)
	return min((left+p.Tick-1)/p.Tick, p.Ticks)
}

// mostBeside is the largest count that a sliding window may have for what is taken to fit, where the last one's is last.
func (g *windowCharge) mostBeside(last int64) int64 {
	most := int64(limit.MaxSlidingUnits)
	for _, claim := range g.claims() {
		weight := (last*g.ticksLeft(claim.at) + g.params.Ticks - 1) / g.params.Ticks
		most = min(most, g.tier.Threshold-weight-claim.units)
	}
	return most
}

// mostBefore is the largest count that the window before may have for what is taken to fit, where this one's is count.
func (g *windowCharge) mostBefore(count int64) int64 {
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
