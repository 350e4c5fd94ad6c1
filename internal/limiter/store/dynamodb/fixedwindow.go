package dynamodb

import (
	"math/big"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// fixedWindow implements the algorithm fixed_window. Its fields are w (start of the window) and n (its count) and, from
// the second window on, o and p (start and count of the window that was charged before).
type fixedWindow struct{ relevantUntilFresh }

func (fixedWindow) decode(_ *limit.Tier, p *limit.Params, f fields) (limit.State, error) {
	var st limit.WindowState
	err := f.readInt(fieldStart, -maxTime, maxTime, &st.Start)
	if err == nil {
		err = f.readInt(fieldCount, 0, maxAmount, &st.Count)
	}
	if err == nil && f[fieldPreviousStart] != nil {
		st.Previous, err = previousCount(p, f, st.Start)
	}
	return st.State(), err
}

// previousCount returns the count of the window right before the one that starts at start. It is the field p if o is
// the start of that window, and 0 if the window charged before lies further back.
func previousCount(p *limit.Params, f fields, start int64) (int64, error) {
	before, err := f.intIn(fieldPreviousStart, -2*maxTime, start-p.Period)
	if err != nil {
		return 0, err
	}
	count, err := f.intIn(fieldPrevious, 0, maxAmount)
	if before <= start-2*p.Period {
		count = 0
	}
	return count, err
}

func (fixedWindow) encode(p *limit.Params, state *limit.State, _ int64) fields {
	st := state.Window()
	f := fields{fieldStart: big.NewInt(st.Start), fieldCount: big.NewInt(st.Count)}
	if st.Previous != 0 {
		f[fieldPrevious], f[fieldPreviousStart] = big.NewInt(st.Previous), big.NewInt(st.Start-p.Period)
	}
	return f
}

func (fixedWindow) charge(c *counterCharge, u counterUpdate) { newWindowCharge(c).addFixedWindow(u) }

func (fixedWindow) refund(c *counterRefund, u counterUpdate) {
	c.subtractCount(u, fieldCount, c.before.Window().Count-c.after.Window().Count)
}

func (fixedWindow) largestFields(*limit.Tier) fields { return largestWindowFields() }

func (fixedWindow) newCounterBytes(*limit.Tier) int { return 25 + previousWindowBytes }

// largestWindowFields returns all fields of fixed_window, sliding_window and quota, each as long as it can be.
func largestWindowFields() fields {
	at, count := big.NewInt(-maxTime), big.NewInt(maxAmount)
	return fields{fieldStart: at, fieldCount: count, fieldPrevious: count, fieldPreviousStart: at, fieldEnd: at}
}

// windowCharge is the charge of a fixed_window or sliding_window.
type windowCharge struct {
	*counterCharge
	before, after limit.WindowState
}

func newWindowCharge(c *counterCharge) *windowCharge {
	return &windowCharge{c, c.before.Window(), c.after.Window()}
}

// isOffGrid reports whether the stored window does not start where the limit's windows start, because the limit's align
// has changed. Such a window is compared as a whole.
func (w *windowCharge) isOffGrid() bool {
	return floorMod(w.after.Start-w.params.Offset, w.params.Period) != 0
}

// addFixedWindow adds the charge to the update. If a new window begins, the count of the last one moves from n to p by
// a reference, so charges that this process has not seen move, too. In contrast to addSlidingWindow, the last window
// need not be the one that was seen, because the field o says which window p counts.
func (w *windowCharge) addFixedWindow(u counterUpdate) {
	period := w.params.Period
	switch {
	case w.stored == nil:
		w.likelyStale = true
		u.require("(" + u.isAbsent() + " OR " + u.compare(fieldStart, "<=", big.NewInt(w.after.Start-2*period)) + ")")
		u.replace(w.newFields())
	case w.isOffGrid() || w.before.Start > w.after.Start-period && w.before.Start < w.after.Start:
		// In the second case the stored window overlaps the current one: the limit's align has changed.
		w.compareWhole(u)
	case w.after.Start == w.before.Start:
		w.sameWindow(u)
	default:
		w.nextWindow(u)
	}
}

// nextWindow begins a new window. A correction of the window right before it, if that is the stored one, goes into its
// count.
func (w *windowCharge) nextWindow(u counterUpdate) {
	w.likelyStale = true
	before, correction := big.NewInt(w.after.Start-w.params.Period), int64(0)
	if w.before.Start > w.after.Start-2*w.params.Period {
		correction = w.after.Previous - w.before.Count
	}
	switch {
	case w.isCutShort(correction) || correction == 0 && w.after.Previous != 0 && w.after.Previous != w.before.Count:
		w.compareWhole(u)
		return
	case correction != 0:
		u.requireEqual(fieldStart, w.stored[fieldStart])
		if correction < 0 {
			u.require(u.compare(fieldCount, ">=", big.NewInt(-correction)))
		}
	default:
		u.require(u.compare(fieldStart, "<=", before))
	}
	u.copyField(fieldPrevious, fieldCount, big.NewInt(correction))
	u.copyField(fieldPreviousStart, fieldStart, new(big.Int))
	u.setField(fieldCount, big.NewInt(w.after.Count))
	u.setField(fieldStart, big.NewInt(w.after.Start))
}

// sameWindow adds to the count of the stored window.
func (w *windowCharge) sameWindow(u counterUpdate) {
	correction := w.after.Count - w.before.Count - w.chargedUnits()
	previous := w.after.Previous - w.before.Previous
	if w.isCutShort(correction) || previous != 0 && (w.stored[fieldPrevious] == nil || w.isCutShort(previous)) {
		w.compareWhole(u)
		return
	}
	u.requireEqual(fieldStart, w.stored[fieldStart])
	w.addToCount(u, correction)
	w.correctPrevious(u)
}

// correctPrevious corrects the count of the window before the current one. The caller has required that the current
// window is the stored one.
func (w *windowCharge) correctPrevious(u counterUpdate) {
	if correction := w.after.Previous - w.before.Previous; correction != 0 {
		u.require(u.compare(fieldPrevious, ">=", big.NewInt(max(-correction, 0))))
		u.addToField(fieldPrevious, big.NewInt(correction))
	}
}
