package livepage

import "strings"

// The page shows two windows: the last minute in steps of a second, and the last ten minutes in steps of ten seconds.
// Each is a ring of cells, one for each step. A window consists of the present cell and the 59 before it, so the longer
// window covers 590 to 600 s.
const (
	windowCount = 2
	cellCount   = 60
	lanes       = 8 // number of counters in a cell: see laneAllowed and the others
)

var (
	windowIDs   = [windowCount]string{"minute", "ten_minutes"}
	stepSeconds = [windowCount]int64{1, 10}
)

// cell holds the counters of one step.
type cell [lanes]uint32

// ring holds the counts of the newest cellCount steps. The zero ring is empty.
type ring struct {
	newest int64 // number of the newest cell since 1970
	cells  [cellCount]cell
}

// add adds 1 to a counter of the cell of a step. A step older than the ring is ignored; a newer step becomes the newest
// one of the ring.
func (r *ring) add(step int64, lane int) {
	if step > r.newest {
		r.advance(step)
	}
	if step > r.newest-cellCount {
		r.cells[index(step)][lane]++
	}
}

// advance empties the cells after the newest step, up to the given step, which becomes the newest.
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

// total sums up the window that ends with step.
func (r *ring) total(step int64) (sum [lanes]uint64) {
	for s := max(step, r.newest) - cellCount + 1; s <= min(step, r.newest); s++ {
		for lane, n := range r.cells[index(s)] {
			sum[lane] += uint64(n)
		}
	}
	return sum
}

func index(step int64) int64 { return floorMod(step, cellCount) }

// series counts the same requests in two rings, one for each window.
type series [windowCount]ring

func (s *series) add(second int64, lane int) {
	for i := range s {
		s[i].add(floorDiv(second, stepSeconds[i]), lane)
	}
}

// idle reports whether no window that ends at second, or later, holds a count.
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

// name identifies what is counted. Its kind tells apart a tenant called "others" and the row of all other tenants.
type name struct {
	kind Kind
	text string
}

// table keeps a series for each of a bounded number of names. Names that do not fit are counted together, in rest.
type table struct {
	rows  map[name]*series
	rest  series
	most  int
	swept int64 // the second in which sweep last ran
}

// at returns the series in which to count n.
func (t *table) at(n name, second int64) *series {
	if s, ok := t.rows[n]; ok {
		return s
	}
	if len(n.text) > maxNameBytes || (len(t.rows) >= t.most && !t.sweep(second)) {
		return &t.rest
	}
	s := new(series)
	t.rows[name{n.kind, strings.Clone(n.text)}] = s
	return s
}

// sweep removes names without a count in any window, at most once a second, and reports whether there is room in the
// table.
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
