package dynamodb

import (
	"math/big"

	"github.com/sluicelimits/sluice/internal/limit"
)

// slidingWindow has the fields w (the start of the window), n (its count), and p (the count of the window before it).
type slidingWindow struct{ relevantUntilFresh }

func (slidingWindow) decode(_ *limit.Tier, _ *limit.Params, f fields) (limit.State, error) {
	var st limit.WindowState
	err := f.readInt(fieldStart, -maxTime, maxTime, &st.Start)
	if err == nil {
		err = f.readInt(fieldCount, 0, maxAmount, &st.Count)
	}
	if err == nil {
		err = f.readInt(fieldPrevious, 0, maxAmount, &st.Previous)
	}
	return st.State(), err
}

func (slidingWindow) encode(_ *limit.Params, state *limit.State, _ int64) fields {
	st := state.Window()
	return fields{fieldStart: big.NewInt(st.Start), fieldCount: big.NewInt(st.Count), fieldPrevious: big.NewInt(st.Previous)}
}

func (slidingWindow) charge(c *counterCharge, u counterUpdate) {
	newWindowCharge(c).addSlidingWindow(u)
}

func (slidingWindow) refund(c *counterRefund, u counterUpdate) {
	pre, post := c.before.Window(), c.after.Window()
	c.subtractCount(u, fieldCount, pre.Count-post.Count)
	c.subtractCount(u, fieldPrevious, pre.Previous-post.Previous)
}

func (slidingWindow) largestFields(*limit.Tier) fields { return largestWindowFields() }

func (slidingWindow) newCounterBytes(*limit.Tier) int { return 34 }

// slidingWindow goes by the most that the last window's count can be while the window lasts. At the edge it moves the count over by
// reference, so that charges of the old window that the writer has not seen are not lost.
func (w *windowCharge) addSlidingWindow(u counterUpdate) {
	switch {
	case w.stored != nil && w.isOffGrid():
		w.compareWhole(u)
	case w.stored != nil && w.after.Start == w.before.Start:
		adjusted := w.after.Count - w.before.Count - w.totalUnits()
		if w.isCutShort(adjusted) || w.isCutShort(w.after.Previous-w.before.Previous) {
			w.compareWhole(u)
			return
		}
		u.requireEqual(fieldStart, w.stored[fieldStart])
		u.require(u.compare(fieldPrevious, "<=", w.stored[fieldPrevious])) // others may have given some of it back: it weighs less then
		w.requireRoom(u, fieldCount, adjusted, w.maxCountBeside(w.after.Previous), limit.MaxSlidingUnits)
		u.addToField(fieldCount, big.NewInt(adjusted+w.totalUnits()))
		w.correctPrevious(u)
	case w.stored != nil && w.before.Start > w.after.Start-w.params.Period: // the windows of two grids overlap
		w.compareWhole(u)
	case w.stored != nil && w.before.Start > w.after.Start-2*w.params.Period:
		w.likelyStale = true
		adjusted := w.after.Previous - w.before.Count // of the last window
		if w.isCutShort(adjusted) {
			w.compareWhole(u)
			return
		}
		u.requireEqual(fieldStart, w.stored[fieldStart])
		w.requireRoom(u, fieldCount, adjusted, w.maxPreviousCount(w.after.Count-w.totalUnits()), limit.MaxSlidingUnits)
		u.copyField(fieldPrevious, fieldCount, big.NewInt(adjusted))
		u.setField(fieldCount, big.NewInt(w.after.Count))
		u.setField(fieldStart, big.NewInt(w.after.Start))
	default:
		w.likelyStale = true
		u.require("(" + u.isAbsent() + " OR " + u.compare(fieldStart, "<=", big.NewInt(w.after.Start-2*w.params.Period)) + ")")
		u.replace(w.newFields())
	}
}

// ticksLeft is what of the last window a sliding one still weighs at a time, in ticks of the period.
func (w *windowCharge) previousWeight(at int64) int64 {
	p := &w.params
	left := max(w.after.Start+p.Period-at, 0)
	return min((left+p.Tick-1)/p.Tick, p.Ticks)
}

// mostBeside is the largest count that a sliding window may have for what is taken to fit, where the last one's is last.
func (w *windowCharge) maxCountBeside(previous int64) int64 {
	most := int64(limit.MaxSlidingUnits)
	for _, demand := range w.demands() {
		weight := (previous*w.previousWeight(demand.at) + w.params.Ticks - 1) / w.params.Ticks
		most = min(most, w.tier.Threshold-weight-demand.units)
	}
	return most
}

// mostBefore is the largest count that the window before may have for what is taken to fit, where this one's is count.
func (w *windowCharge) maxPreviousCount(count int64) int64 {
	most := int64(limit.MaxSlidingUnits)
	for _, demand := range w.demands() {
		room := w.tier.Threshold - count - demand.units
		if ticks := w.previousWeight(demand.at); ticks > 0 {
			most = min(most, max(room, -1)*w.params.Ticks/ticks)
		} else if room < 0 {
			most = -1
		}
	}
	return most
}
