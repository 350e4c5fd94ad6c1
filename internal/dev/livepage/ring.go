package livepage

// The page shows two windows, each as a ring of cells: the last minute by the second, the last ten minutes by ten
// seconds. A window is the cell of now and the 59 before it, so the longer one covers 590 to 600 s.
const (
	windowCount = 2
	cellCount   = 60
	// counters in a cell: the outcomes of requests, and how many were degraded; limits use the first three
	lanes = 8
)

var (
	windowIDs   = [windowCount]string{"minute", "ten_minutes"}
	stepSeconds = [windowCount]int64{1, 10}
)

type cell [lanes]uint32

// ring holds the counts of the newest cellCount steps of time. The zero ring is empty.
type ring struct {
	newest int64 // number of the newest cell since 1970
	cells  [cellCount]cell
}

// add counts one in a lane at step. A step older than the ring is dropped; a newer one moves the ring on.
func (r *ring) add(step int64, lane int) {
	if step > r.newest {
		r.advance(step)
	}
	if step > r.newest-cellCount {
		r.cells[index(step)][lane]++
	}
}

// advance empties the cells between the newest step and the given one, which becomes the newest.
func (r *ring) advance(step int64) {
	if step-r.newest >= cellCount {
		r.cells = [cellCount]cell{}
	} else {
		for s := r.newest + 1; s <= step; s++ {
			r.cells[index(s)] = cell{}
		}
	}
	r.newest = step
}

// at is the cell of a step; empty for one that the ring does not hold.
func (r *ring) at(step int64) cell {
	if step > r.newest || step <= r.newest-cellCount {
		return cell{}
	}
	return r.cells[index(step)]
}

// total sums the window that ends with step.
func (r *ring) total(step int64) (sum [lanes]uint64) {
	for s := max(step, r.newest) - cellCount + 1; s <= min(step, r.newest); s++ {
		for lane, n := range r.cells[index(s)] {
			sum[lane] += uint64(n)
		}
	}
	return sum
}

func index(step int64) int64 { return floorMod(step, cellCount) }

// series is the same counts in every window's ring.
type series [windowCount]ring

func (s *series) add(second int64, lane int) {
	for i := range s {
		s[i].add(floorDiv(second, stepSeconds[i]), lane)
	}
}

// idle reports that no window which ends at second, or later, holds anything.
func (s *series) idle(second int64) bool {
	last := len(s) - 1
	return s[last].newest <= floorDiv(second, stepSeconds[last])-cellCount
}

func (s *series) totals(second int64) (sums [windowCount][lanes]uint64) {
	for i := range s {
		sums[i] = s[i].total(floorDiv(second, stepSeconds[i]))
	}
	return sums
}

func floorDiv(a, b int64) int64 { return (a - floorMod(a, b)) / b }

func floorMod(a, b int64) int64 {
	m := a % b
	if m < 0 {
		m += b
	}
	return m
}

// name tells counted things apart: a tenant called "others" is not the others.
type name struct {
	kind Kind
	text string
}

// table keeps a series for each of a bounded number of names. Names that do not fit share the rest.
type table struct {
	rows  map[name]*series
	rest  series
	most  int
	swept int64 // second of the last sweep
}

// at is the series to count n in.
func (t *table) at(n name, second int64) *series {
	if s, ok := t.rows[n]; ok {
		return s
	}
	if len(n.text) > maxNameBytes || (len(t.rows) >= t.most && !t.sweep(second)) {
		return &t.rest
	}
	s := new(series)
	t.rows[name{n.kind, clone(n.text)}] = s
	return s
}

// sweep forgets names without a count in any window, looking at most once a second, and reports whether there is room.
func (t *table) sweep(second int64) bool {
	if second == t.swept {
		return false
	}
	t.swept = second
	for n, s := range t.rows {
		if s.idle(second) {
			delete(t.rows, n)
		}
	}
	return len(t.rows) < t.most
}
