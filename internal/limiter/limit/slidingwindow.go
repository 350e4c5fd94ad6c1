package limit

// SlidingWindow counts the current window in full and, of the previous window, the share that lies within the last
// period: ⌈previous·(period−elapsed)/period⌉ + count + cost ≤ threshold. It assumes that the units of the previous
// window came evenly; at worst an interval as long as the period has twice the threshold. Source: the sliding window
// counter of Cloudflare ("How we built rate limiting capable of scaling to millions of domains", 2017).
//
// Leased units count in the window in which they are leased. Leases end with the window. From then on the units are
// part of the previous window, whose weight only falls.
const SlidingWindow Algorithm = 2

// Sliding buckets and a sliding log admit at most the threshold in any interval as long as the period; a sliding window
// may admit more.
var slidingWindowKind = kind{
	name: "sliding_window", letter: 'w', amountField: amountThreshold, largest: MaxSlidingUnits, new: newSlidingWindow,
	stricter: []Algorithm{SlidingBuckets, SlidingLog},
}

type slidingWindow struct {
	windows
	tick       int64 // µs; the time between two changes of the weight
	ticks      int64 // whole ticks in a period
	slotLength int64 // µs; all ramps that are granted in a slot end with it. Other leases end with the window
}

const (
	maxTicks = 1 << 20 // the most ticks in a period, so that count·ticks stays below 2^52
	minSlots = 8       // the least number of slots in a period
)

func newSlidingWindow(t *Tier, l *Limit, _ report) algorithm {
	w := &slidingWindow{windows: newWindows(t, l)}
	w.tick = weightTick(w.period)
	w.ticks = w.period / w.tick
	w.slotLength = ceilDiv(w.period, max(minSlots, ceilDiv(w.period, maxSlot)))
	return w
}

// weightTick returns the resolution of the weight, µs: the smallest of 1, 2, 5, 10, 20, 50, … that divides the period
// into at most 2^20 ticks. If there is none, or if it makes less than 2^16 ticks, the resolution is period/2^20 rounded
// up.
//
// The remaining time is rounded up to ticks, and the number of ticks in the period is rounded down, so the weight is
// never too small. If the tick divides the period, the weight is exact at every multiple of the tick.
func weightTick(period int64) int64 {
	for p := int64(1); p <= period; p *= 10 {
		for _, m := range [...]int64{1, 2, 5} {
			if tick := m * p; period/tick <= maxTicks && period%tick == 0 {
				if period/tick < maxTicks/16 {
					return ceilDiv(period, maxTicks) // a round tick would be too coarse
				}
				return tick
			}
		}
	}
	return ceilDiv(period, maxTicks)
}

func (w *slidingWindow) evaluate(s *State, now int64, r *Result) bool {
	if w.misdated(s, now) {
		return false
	}
	own := r.window.start
	seen := w.asOf(s, own)
	seen.weight = w.weight(seen, own, now)
	seen.write(r)
	if r.Never = r.Cost > w.threshold; r.Never {
		return true
	}
	if r.Admits = seen.weight+seen.count+r.need <= w.threshold; r.Admits {
		return true
	}
	start := seen.start
	if w.offGrid(start, own) { // the next window of the owner's grid starts with these counts, see windows
		start = own + w.period
	}
	r.RetryAt = max(start, w.weighsAtMost(w.threshold-r.need, start, seen.count, seen.previous))
	return true
}

// weight returns for how many units the previous window counts at the time given by the parameter at:
// ⌈previous·(period−elapsed)/period⌉, in ticks. If the current window is of another grid, that is its whole count, see
// windows.
func (w *slidingWindow) weight(seen windowSeen, own, at int64) int64 {
	if w.offGrid(seen.start, own) {
		return seen.previous
	}
	left := max(seen.start+w.period-at, 0)
	return ceilDiv(seen.previous*min(ceilDiv(left, w.tick), w.ticks), w.ticks)
}

// weighsAtMost returns the first time at which no more than most units count, if nothing is charged. The windows must
// count more than most now, or it may divide by zero. It solves previous·ticksLeft ≤ room·ticks, in the window that
// begins at start if that has a solution, otherwise in the next one.
func (w *slidingWindow) weighsAtMost(most, start, count, previous int64) int64 {
	if room := most - count; room >= 0 {
		return start + w.period - w.tick*min(w.ticks, room*w.ticks/previous)
	}
	return start + 2*w.period - w.tick*min(w.ticks, most*w.ticks/count)
}

// freshAt is one period later than the stored count weighs anything, for the reason that fixedWindow.freshAt gives.
func (w *slidingWindow) freshAt(s *State) int64 { return s.Window().Start + 3*w.period }

// startOnGrid returns the start of the window from which on the counts weigh less as time passes: that of the current
// window or, if that is of a grid that the owner had before, of the next window of the owner's grid, which starts with
// these counts.
func (w *slidingWindow) startOnGrid(r *Result) int64 {
	if next := w.nextOnGrid(r); next != 0 {
		return next
	}
	return r.windowSeen().start
}

func (w *slidingWindow) resetAt(r *Result) int64 {
	seen, start := r.windowSeen(), w.startOnGrid(r)
	if seen.count+r.Charged > 0 {
		return start + 2*w.period
	}
	return start + w.period
}

// moreAt is, if nothing is used, when the first unit would come free if the whole threshold was charged now.
func (w *slidingWindow) moreAt(r *Result) int64 {
	seen, start, used := r.windowSeen(), w.startOnGrid(r), w.used(r)
	if used <= 0 {
		return w.weighsAtMost(w.threshold-1, start, w.threshold, 0)
	}
	return w.weighsAtMost(min(used, w.threshold)-1, start, seen.count+r.Charged, seen.previous)
}

func (w *slidingWindow) fitsAt(r *Result, units int64) int64 {
	seen, most := r.windowSeen(), w.threshold-units
	if w.used(r) <= most {
		return longAgo
	}
	return w.weighsAtMost(most, w.startOnGrid(r), seen.count+r.Charged, seen.previous)
}

func (w *slidingWindow) age(r *Result, now int64) {
	seen := r.windowSeen()
	seen.weight = w.weight(seen, r.window.start, now)
	seen.write(r)
}

func (w *slidingWindow) hold(*Result, int64) {}

func (w *slidingWindow) receipt(r *Result, e *ReceiptEntry) {
	e.at = r.windowSeen().start
	e.end = e.at + 2*w.period
}

// refund takes the units off the window that was charged, which is the current or the previous one.
func (w *slidingWindow) refund(s *State, e *ReceiptEntry, units, _ int64) int64 {
	st, back := s.Window(), int64(0)
	switch st.Start {
	case e.at:
		back = uncount(&st.Count, units)
	case e.at + w.period:
		back = uncount(&st.Previous, units)
	}
	*s = st.State()
	return back
}

func (w *slidingWindow) offer(_ *State, _ string, now int64, ask *LeaseRequest, r *Result) Lease {
	seen := r.windowSeen()
	left := w.threshold - seen.weight - seen.count - r.need
	granted := Lease{At: seen.start, Until: seen.start + w.period}
	if !ask.Ramp {
		granted.Units = ask.units(left)
		granted.Upfront = granted.Units
		return granted
	}
	granted.Until = w.rampEnd(seen.start, now)
	granted.Units = ask.units(w.threshold - w.weight(seen, r.window.start, granted.Until) - seen.count - r.need)
	granted.Upfront = min(max(left, 0), granted.Units)
	return granted
}

// rampEnd returns when ramps that are granted now end: at the end of the present slot, or of the window that begins at
// start if that is earlier.
func (w *slidingWindow) rampEnd(start, now int64) int64 {
	end := start + (floorTo(max(now-start, 0), w.slotLength) + w.slotLength)
	return min(end, start+w.period)
}

func (w *slidingWindow) returnUnspent(s *State, units, at, _ int64, window span) {
	w.correct(s, -units, at, window.start, MaxSlidingUnits)
}

func (w *slidingWindow) replay(s *State, units, at, _ int64, window span) int64 {
	return w.correct(s, units, at, window.start, MaxSlidingUnits)
}

func (w *slidingWindow) leasing() Leasing {
	return Leasing{Ends: true, Longest: w.period, Ramps: true, Step: w.tick, Weighs: true}
}

func (w *slidingWindow) leaseEnd(owner string, now int64) (lease, ramp int64) {
	window := w.window(owner, now)
	return window.end, w.rampEnd(window.start, now)
}

// counting: an interval that touches two windows can admit the threshold in each, at worst. A charge counts for up to
// two periods, and for up to three after a change of align, see windows.
func (w *slidingWindow) counting() Counting {
	return Counting{Lasts: 3 * w.period, Windows: 2}
}

// forgottenAt is one period after the end of the window that contains the last µs before the time at: in the window
// after its own a charge still weighs.
func (w *slidingWindow) forgottenAt(owner string, at int64) int64 {
	return w.window(owner, at-1).end + w.period
}

func (w *slidingWindow) params(owner string) Params {
	return Params{Period: w.period, Offset: w.offset(owner), Tick: w.tick, Ticks: w.ticks, SlotLength: w.slotLength}
}
