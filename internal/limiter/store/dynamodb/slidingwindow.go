package dynamodb

import (
	"math/big"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// slidingWindow implements the algorithm sliding_window. Its fields are w (start of the window), n (its count) and p
// (count of the window before it).
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
	return fields{
		fieldStart: big.NewInt(st.Start), fieldCount: big.NewInt(st.Count), fieldPrevious: big.NewInt(st.Previous),
	}
}

func (slidingWindow) charge(c *counterCharge, u counterUpdate) {
	newWindowCharge(c).addSlidingWindow(u)
}

func (slidingWindow) refund(c *counterRefund, u counterUpdate) {
	before, after := c.before.Window(), c.after.Window()
	c.subtractCount(u, fieldCount, before.Count-after.Count)
	c.subtractCount(u, fieldPrevious, before.Previous-after.Previous)
}

func (slidingWindow) largestFields(*limit.Tier) fields { return largestWindowFields() }

func (slidingWindow) newCounterBytes(*limit.Tier) int { return 34 }

// addSlidingWindow adds the charge to the update. If a new window begins, the count of the last one moves from n to p
// by a reference, so charges that this process has not seen move, too. The condition bounds that count by the largest
// one for which the charge fits.
func (w *windowCharge) addSlidingWindow(u counterUpdate) {
	switch {
	case w.stored != nil && w.isOffGrid():
		w.compareWhole(u)
	case w.stored != nil && w.after.Start == w.before.Start:
		correction := w.after.Count - w.before.Count - w.chargedUnits()
		if w.isCutShort(correction) || w.isCutShort(w.after.Previous-w.before.Previous) {
			w.compareWhole(u)
			return
		}
		u.requireEqual(fieldStart, w.stored[fieldStart])
		// a refund by another process lowers it, and then it weighs less
		u.require(u.compare(fieldPrevious, "<=", w.stored[fieldPrevious]))
		w.requireRoom(u, fieldCount, correction, w.maxCountBeside(w.after.Previous), limit.MaxSlidingUnits)
		u.addToField(fieldCount, big.NewInt(correction+w.chargedUnits()))
		w.correctPrevious(u)
	case w.stored != nil && w.before.Start > w.after.Start-w.params.Period:
		// The stored window overlaps the current one: the limit's align has changed.
		w.compareWhole(u)
	case w.stored != nil && w.before.Start > w.after.Start-2*w.params.Period:
		w.likelyStale = true
		correction := w.after.Previous - w.before.Count // of the window that has just ended
		if w.isCutShort(correction) {
			w.compareWhole(u)
			return
		}
		u.requireEqual(fieldStart, w.stored[fieldStart])
		w.requireRoom(u, fieldCount, correction, w.maxPreviousCount(w.after.Count-w.chargedUnits()),
			limit.MaxSlidingUnits)
		u.copyField(fieldPrevious, fieldCount, big.NewInt(correction))
		u.setField(fieldCount, big.NewInt(w.after.Count))
		u.setField(fieldStart, big.NewInt(w.after.Start))
	default:
		w.likelyStale = true
		isOver := u.compare(fieldStart, "<=", big.NewInt(w.after.Start-2*w.params.Period))
		u.require("(" + u.isAbsent() + " OR " + isOver + ")")
		u.replace(w.newFields())
	}
}

// previousWeight returns how much of the previous window still counts at a time, in ticks of the period.
func (w *windowCharge) previousWeight(at int64) int64 {
	p := &w.params
	left := max(w.after.Start+p.Period-at, 0)
	return min((left+p.Tick-1)/p.Tick, p.Ticks)
}

// maxCountBeside returns the largest count of the current window for which the charge fits, if the previous window has
// this count.
func (w *windowCharge) maxCountBeside(previous int64) int64 {
	largest := int64(limit.MaxSlidingUnits)
	for _, demand := range w.demands() {
		weight := (previous*w.previousWeight(demand.at) + w.params.Ticks - 1) / w.params.Ticks
		largest = min(largest, w.tier.Threshold-weight-demand.units)
	}
	return largest
}

// maxPreviousCount returns the largest count of the previous window for which the charge fits, if the current window
// has this count.
func (w *windowCharge) maxPreviousCount(count int64) int64 {
	largest := int64(limit.MaxSlidingUnits)
	for _, demand := range w.demands() {
		room := w.tier.Threshold - count - demand.units
		if ticks := w.previousWeight(demand.at); ticks > 0 {
			largest = min(largest, max(room, -1)*w.params.Ticks/ticks)
		} else if room < 0 {
			largest = -1
		}
	}
	return largest
}
