package limit

// WindowState is the state of a fixed or a sliding window.
type WindowState struct {
	Start    int64 // of the current window, µs since 1970
	Count    int64 // units charged in it
	Previous int64 // units charged in the window before it
}

// Window returns s as the state of a fixed or sliding window.
func (s *State) Window() WindowState { return WindowState{Start: s.a, Count: s.b, Previous: s.c} }

// State is the inverse of [State.Window].
func (st WindowState) State() State { return State{a: st.Start, b: st.Count, c: st.Previous} }

// windowSeen is what a decision has seen of the windows, as of its time. charge does not change it; see Result.Charged.
type windowSeen struct {
	start, count, previous int64
	weight                 int64 // how many units the previous window counts for
}

func (r *Result) windowSeen() windowSeen {
	n := &r.seen
	return windowSeen{start: n.a, count: n.amount, previous: n.c, weight: n.d}
}

func (v windowSeen) write(r *Result) { r.seen = numbers{v.start, v.count, v.previous, v.weight} }

// windows is what fixed and sliding windows have in common: windows of one length on a grid of time. The grid begins at
// 1970, or, with align: tenant, at a time that is shifted for each owner.
//
// The windows of a limit move to another grid when its align changes. Stored windows of the old grid then overlap those
// of the new one, and nobody knows when within a window its units were charged. Three rules make sure that no window of
// either grid admits too much:
//   - An old window that has begun stays the current one until the first start of the new grid after its own start.
//   - The new window that then begins overlaps the old one, and starts with the whole count of the old one.
//   - While the old window is the current one, the whole count of the window before it counts, too.
//
// So after a change of align a limit may deny early for up to two periods, and never admits too much.
type windows struct {
	threshold int64
	period    int64 // µs
	shifted   bool  // the grid is shifted by a hash of the owner's name
}

func newWindows(t *Tier, l *Limit) windows {
	return windows{threshold: t.Threshold, period: t.Period.Microseconds(), shifted: l.AlignOwner}
}

// window returns the window of the owner's grid that contains now.
func (w *windows) window(owner string, now int64) span {
	offset := w.offset(owner)
	start := floorTo(now-offset, w.period) + offset
	return span{start, start + w.period}
}

// offset returns where an owner's windows begin, µs after multiples of the period since 1970. It is the same in each
// process.
func (w *windows) offset(owner string) int64 {
	if !w.shifted {
		return 0
	}
	return int64(hashText(owner) % uint64(w.period))
}

// asOf returns the state as of now: the start of the current window, its count, and the count of the window before it.
// The parameter own is the start of the window of the owner's grid that contains now. A stored window that starts later
// stays the current one: a faster clock has begun it, or it is of a grid that the owner had before.
func (w *windows) asOf(s *State, own int64) windowSeen {
	switch st := s.Window(); {
	case st.Start >= own:
		return windowSeen{start: st.Start, count: st.Count, previous: st.Previous}
	case st.Start > own-w.period: // the stored window is of another grid, and overlaps the one at own
		return windowSeen{start: own, count: st.Count, previous: st.Previous}
	case st.Start > own-2*w.period: // the stored window is the one before own, or overlaps that one
		return windowSeen{start: own, previous: st.Count}
	}
	return windowSeen{start: own}
}

// offGrid reports whether a window that starts at start is of another grid than the one that starts at own, and later.
func (w *windows) offGrid(start, own int64) bool { return start > own && (start-own)%w.period != 0 }

// nextOnGrid returns the start of the next window of the owner's grid, if the current window is of a grid that the
// owner had before; otherwise 0.
func (w *windows) nextOnGrid(r *Result) int64 {
	if own := r.window.start; w.offGrid(r.windowSeen().start, own) {
		return own + w.period
	}
	return 0
}

// misdated reports whether only a clock that was far ahead can have written the start of the window.
func (w *windows) misdated(s *State, now int64) bool { return s.Window().Start-maxSkew > now }

// repair moves the start of the window back by whole periods, to the last such time that is not after now.
func (w *windows) repair(s *State, now int64, _ *Result) {
	st := s.Window()
	st.Start -= ceilDiv(st.Start-now, w.period) * w.period
	*s = st.State()
}

func (w *windows) charge(s *State, _ int64, r *Result) {
	seen := r.windowSeen()
	*s = WindowState{Start: seen.start, Count: seen.count + r.need, Previous: seen.previous}.State()
}

func (w *windows) used(r *Result) int64 {
	seen := r.windowSeen()
	return seen.weight + seen.count + r.Charged
}

func (w *windows) perUnit() int64 { return 1 }

// chargeLease adds the leased units to the count of the current window, in which charge has put s.
func (w *windows) chargeLease(s *State, r *Result, granted *Lease) {
	st := s.Window()
	st.Count += granted.Units
	*s = st.State()
	r.addUsed(granted.Units)
}

// correct adds units, which may be negative, to the count of the window that contains the time given by the parameter
// at, if that is the current window or the one before it. AtDecision is in the current window. The parameter own is as
// for asOf. The count is kept within 0..most. correct returns by how much it has changed.
func (w *windows) correct(s *State, units, at, own, most int64) int64 {
	v := w.asOf(s, own)
	before := v.count + v.previous
	if at == AtDecision {
		at = v.start
	}
	switch floorTo(at-v.start, w.period) {
	case 0:
		v.count = min(max(v.count+units, 0), most)
	case -w.period:
		v.previous = min(max(v.previous+units, 0), most)
	}
	*s = WindowState{v.start, v.count, v.previous}.State()
	return v.count + v.previous - before
}

func (w *windows) leasedInSlot(*Result, int64) int64 { return 0 }
