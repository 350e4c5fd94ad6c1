package dynamodb

import (
	"math/big"

	"github.com/sluicelimits/sluice/internal/limit"
)

// fixedWindow has the fields w (the start of the window), n (its count), and, from its second window on, p and o: the count
// and the start of the window charged before it.
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

// lastCount is the count of the window before the one that starts at start: that of the window charged before it, unless
// that one is too old for the core to remember. See [limit.State].
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

// widestWindow has the fields of all algorithms that count by windows.
func largestWindowFields() fields {
	at, count := big.NewInt(-maxTime), big.NewInt(maxAmount)
	return fields{fieldStart: at, fieldCount: count, fieldPrevious: count, fieldPreviousStart: at, fieldEnd: at}
}

// windowCharge is the charge of a fixed or sliding window.
type windowCharge struct {
	*counterCharge
	before, after limit.WindowState
}

func newWindowCharge(c *counterCharge) *windowCharge {
	return &windowCharge{c, c.before.Window(), c.after.Window()}
}

// offGrid reports whether the window to charge is of another grid than the limit's, from before a change of its align. Such
// a window is compared as a whole.
func (w *windowCharge) isOffGrid() bool {
	return floorMod(w.after.Start-w.params.Offset, w.params.Period) != 0
}

// fixedWindow moves the count over by reference at the edge, as slidingWindow does, but does not require that the window it
// ends is the one that was seen: the field o says which window the field p counts, so any older one will do.
func (w *windowCharge) addFixedWindow(u counterUpdate) {
	period := w.params.Period
	switch {
	case w.stored == nil:
		w.likelyStale = true
		u.require("(" + u.isAbsent() + " OR " + u.compare(fieldStart, "<=", big.NewInt(w.after.Start-2*period)) + ")")
		u.replace(w.newFields())
	case w.isOffGrid() || w.before.Start > w.after.Start-period && w.before.Start < w.after.Start: // the windows of two grids overlap
		w.compareWhole(u)
	case w.after.Start == w.before.Start:
		w.sameWindow(u)
	default:
		w.nextWindow(u)
	}
}

// nextWindow begins a window. A correction of the window before it, if that is the one that was seen, goes into its count.
func (w *windowCharge) nextWindow(u counterUpdate) {
	w.likelyStale = true
	before, adjusted := big.NewInt(w.after.Start-w.params.Period), int64(0)
	if w.before.Start > w.after.Start-2*w.params.Period {
		adjusted = w.after.Previous - w.before.Count
	}
	switch {
	case w.isCutShort(adjusted) || adjusted == 0 && w.after.Previous != 0 && w.after.Previous != w.before.Count:
		w.compareWhole(u)
		return
	case adjusted != 0:
		u.requireEqual(fieldStart, w.stored[fieldStart])
		if adjusted < 0 {
			u.require(u.compare(fieldCount, ">=", big.NewInt(-adjusted)))
		}
	default:
		u.require(u.compare(fieldStart, "<=", before))
	}
	u.copyField(fieldPrevious, fieldCount, big.NewInt(adjusted))
	u.copyField(fieldPreviousStart, fieldStart, new(big.Int))
	u.setField(fieldCount, big.NewInt(w.after.Count))
	u.setField(fieldStart, big.NewInt(w.after.Start))
}

// sameWindow adds to the count of the window that was seen.
func (w *windowCharge) sameWindow(u counterUpdate) {
	adjusted := w.after.Count - w.before.Count - w.totalUnits()
	if w.isCutShort(adjusted) || w.after.Previous != w.before.Previous && (w.stored[fieldPrevious] == nil || w.isCutShort(w.after.Previous-w.before.Previous)) {
		w.compareWhole(u)
		return
	}
	u.requireEqual(fieldStart, w.stored[fieldStart])
	w.addToCount(u, adjusted)
	w.correctPrevious(u)
}

// adjustLast corrects the count of the window before the current one, which is of the same counter as the pinned window.
func (w *windowCharge) correctPrevious(u counterUpdate) {
	if correction := w.after.Previous - w.before.Previous; correction != 0 {
		u.require(u.compare(fieldPrevious, ">=", big.NewInt(max(-correction, 0))))
		u.addToField(fieldPrevious, big.NewInt(correction))
	}
}
