package limit

// FixedWindow counts the units of the current window, and admits a cost if the count stays within the threshold. It is
// exact inside a window; an interval that lies across two windows may have twice the threshold.
//
// Leased units count in the window in which they are leased. Leases end with the window.
const FixedWindow Algorithm = 1

// A sliding algorithm never admits more than a fixed window with the same threshold and period. Where two fixed windows
// meet, both thresholds are admitted; a sliding algorithm still counts units of the first window.
var fixedWindowKind = kind{
	name: "fixed_window", letter: 'f', amountField: amountThreshold, largest: MaxUnits, new: newFixedWindow,
	stricter: []Algorithm{SlidingWindow, SlidingBuckets, SlidingLog},
}

type fixedWindow struct{ windows }

func newFixedWindow(t *Tier, l *Limit, _ report) algorithm { return &fixedWindow{newWindows(t, l)} }

func (w *fixedWindow) evaluate(s *State, now int64, r *Result) bool {
	if w.misdated(s, now) {
		return false
	}
	own := r.window.start
	seen := w.asOf(s, own)
	off := w.offGrid(seen.start, own) // the stored window is of a grid that the owner had before, see windows
	if off {
		seen.weight = seen.previous
	}
	seen.write(r)
	if r.Never = r.Cost > w.threshold; r.Never {
		return true
	}
	if r.Admits = seen.weight+seen.count+r.need <= w.threshold; r.Admits {
		return true
	}
	switch {
	case !off:
		r.RetryAt = seen.start + w.period
	case seen.count+r.need <= w.threshold: // the next window of the owner's grid starts with this count
		r.RetryAt = own + w.period
	default:
		r.RetryAt = own + 2*w.period
	}
	return true
}

// freshAt returns the end of the window after the stored one. After a change of align the count of the stored window
// goes into a window of the new grid, which ends up to a period later. A state does not tell whether align has changed.
func (w *fixedWindow) freshAt(s *State) int64 { return s.Window().Start + 2*w.period }

// resetAt returns the end of the window. If the window is of a grid that the owner had before, its count goes into the
// next window of the owner's grid, and nothing is used once that ends, see windows.
func (w *fixedWindow) resetAt(r *Result) int64 {
	seen, next := r.windowSeen(), w.nextOnGrid(r)
	if next == 0 {
		return seen.start + w.period
	}
	if seen.count+r.Charged > 0 {
		return next + w.period
	}
	return next
}

// moreAt returns the end of the window. If the window is of a grid that the owner had before, less may count once the
// next window of the owner's grid begins: the count without the weight.
func (w *fixedWindow) moreAt(r *Result) int64 {
	next, count := w.nextOnGrid(r), r.windowSeen().count+r.Charged
	if next != 0 && count < min(w.used(r), w.threshold) {
		return next
	}
	if next != 0 {
		return next + w.period
	}
	return w.resetAt(r)
}

func (w *fixedWindow) receipt(r *Result, e *ReceiptEntry) {
	e.at = r.windowSeen().start
	e.end = e.at + w.period
}

func (w *fixedWindow) refund(s *State, e *ReceiptEntry, units, _ int64) int64 {
	st := s.Window()
	if st.Start != e.at {
		return 0
	}
	back := uncount(&st.Count, units)
	*s = st.State()
	return back
}

func (w *fixedWindow) offer(_ *State, _ string, _ int64, ask *LeaseRequest, r *Result) Lease {
	seen := r.windowSeen()
	units := ask.units(w.threshold - seen.weight - seen.count - r.need)
	return Lease{Units: units, Upfront: units, At: seen.start, Until: seen.start + w.period}
}

func (w *fixedWindow) returnUnspent(s *State, units, at, _ int64, window span) {
	w.correct(s, -units, at, window.start, mostCounted)
}

func (w *fixedWindow) replay(s *State, units, at, _ int64, window span) int64 {
	return w.correct(s, units, at, window.start, mostCounted)
}

func (w *fixedWindow) leasing() Leasing { return Leasing{Ends: true, Longest: w.period} }

func (w *fixedWindow) leaseEnd(owner string, now int64) (lease, ramp int64) {
	end := w.window(owner, now).end
	return end, end
}

// counting: an interval that touches two windows can admit the threshold in each. A charge counts for up to two periods
// after a change of align, see windows.
func (w *fixedWindow) counting() Counting {
	return Counting{Lasts: 2 * w.period, Windows: 1}
}

// forgottenAt returns the end of the window that contains the last µs before the time at.
func (w *fixedWindow) forgottenAt(owner string, at int64) int64 { return w.window(owner, at-1).end }

func (w *fixedWindow) params(owner string) Params {
	return Params{Period: w.period, Offset: w.offset(owner)}
}
