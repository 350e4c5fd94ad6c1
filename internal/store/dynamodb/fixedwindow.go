package dynamodb

import (
	"math/big"

	"github.com/sluicelimits/sluice/internal/limit"
)

// fixedWindow has the fields w (the start of the window), n (its count), and, from its second window on, p and o: the count
// and the start of the window charged before it.
type fixedWindow struct{ lastsFresh }

func (fixedWindow) state(_ *limit.Tier, p *limit.Params, f fields) (limit.State, error) {
	var st limit.WindowState
	err := f.read("w", -maxTime, maxTime, &st.Start)
	if err == nil {
		err = f.read("n", 0, maxAmount, &st.Count)
	}
	if err == nil && f["o"] != nil {
		st.Previous, err = lastCount(p, f, st.Start)
	}
	return st.State(), err
}

// lastCount is the count of the window before the one that starts at start: that of the window charged before it, unless
// that one is too old for the core to remember. See [limit.State].
func lastCount(p *limit.Params, f fields, start int64) (int64, error) {
	before, err := f.int("o", -2*maxTime, start-p.Period)
	if err != nil {
		return 0, err
	}
	last, err := f.int("p", 0, maxAmount)
	if before <= start-2*p.Period {
		last = 0
	}
	return last, err
}

func (fixedWindow) fields(p *limit.Params, state *limit.State, _ int64) fields {
	st := state.Window()
	f := fields{"w": big.NewInt(st.Start), "n": big.NewInt(st.Count)}
	if st.Previous != 0 {
		f["p"], f["o"] = big.NewInt(st.Previous), big.NewInt(st.Start-p.Period)
	}
	return f
}

func (fixedWindow) charge(g *charge, c counter) { newWindowCharge(g).fixedWindow(c) }

func (fixedWindow) giveBack(g *giving, c counter) {
	g.count(c, "n", g.pre.Window().Count-g.post.Window().Count)
}

func (fixedWindow) widest(*limit.Tier) fields { return widestWindow() }

func (fixedWindow) bytes(*limit.Tier) int { return 25 + lastWindowBytes }

// widestWindow has the fields of all algorithms that count by windows.
func widestWindow() fields {
	at, count := big.NewInt(-maxTime), big.NewInt(maxAmount)
	return fields{"w": at, "n": count, "p": count, "o": at, "e": at}
}

// windowCharge is the charge of a fixed or sliding window.
type windowCharge struct {
	*charge
	pre, post limit.WindowState
}

func newWindowCharge(g *charge) *windowCharge {
	return &windowCharge{g, g.pre.Window(), g.post.Window()}
}

// offGrid reports whether the window to charge is of another grid than the limit's, from before a change of its align. Such
// a window is compared as a whole.
func (g *windowCharge) offGrid() bool {
	return floorMod(g.post.Start-g.params.Offset, g.params.Period) != 0
}

// fixedWindow moves the count over by reference at the edge, as slidingWindow does, but does not require that the window it
// ends is the one that was seen: the field o says which window the field p counts, so any older one will do.
func (g *windowCharge) fixedWindow(c counter) {
	period := g.params.Period
	switch {
	case g.old == nil:
		g.doubtful = true
		c.require("(" + c.absent() + " OR " + c.compare("w", "<=", big.NewInt(g.post.Start-2*period)) + ")")
		c.replace(g.fresh())
	case g.offGrid() || g.pre.Start > g.post.Start-period && g.pre.Start < g.post.Start: // the windows of two grids overlap
		g.exact(c)
	case g.post.Start == g.pre.Start:
		g.sameWindow(c)
	default:
		g.nextWindow(c)
	}
}

// nextWindow begins a window. A correction of the window before it, if that is the one that was seen, goes into its count.
func (g *windowCharge) nextWindow(c counter) {
	g.doubtful = true
	before, adjusted := big.NewInt(g.post.Start-g.params.Period), int64(0)
	if g.pre.Start > g.post.Start-2*g.params.Period {
		adjusted = g.post.Previous - g.pre.Count
	}
	switch {
	case g.isCut(adjusted) || adjusted == 0 && g.post.Previous != 0 && g.post.Previous != g.pre.Count:
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
	c.set("n", big.NewInt(g.post.Count))
	c.set("w", big.NewInt(g.post.Start))
}

// sameWindow adds to the count of the window that was seen.
func (g *windowCharge) sameWindow(c counter) {
	adjusted := g.post.Count - g.pre.Count - g.taken()
	if g.isCut(adjusted) || g.post.Previous != g.pre.Previous && (g.old["p"] == nil || g.isCut(g.post.Previous-g.pre.Previous)) {
		g.exact(c)
		return
	}
	c.mustBe("w", g.old["w"])
	g.addCount(c, adjusted)
	g.adjustLast(c)
}

// adjustLast corrects the count of the window before the current one, which is of the same counter as the pinned window.
func (g *windowCharge) adjustLast(c counter) {
	if last := g.post.Previous - g.pre.Previous; last != 0 {
		c.require(c.compare("p", ">=", big.NewInt(max(-last, 0))))
		c.add("p", big.NewInt(last))
	}
}
