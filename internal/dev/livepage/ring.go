package livepage

import "strings"

// The page counts the last ten minutes, in a ring of cells, one for each step of ten seconds. The present cell and the
// 59 before it are counted, so the ten minutes are 590 to 600 s.
const (
	stepSeconds = 10
	cellCount   = 60
	lanes       = 8 // number of counters in a cell: see laneAllowed and the others
)

// cell holds the counters of one step.
type cell [lanes]uint32

// ring holds the counts of the newest cellCount steps. The zero ring is empty.
type ring struct {
	newest int64 // number of the newest cell since 1970
	cells  [cellCount]cell
}

// add adds 1 to a counter of the cell of a second. A second older than the ring is ignored; a newer step becomes the
// newest one of the ring.
func (r *ring) add(second int64, lane int) {
	step := second / stepSeconds
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

// total sums up the ten minutes that end with second.
func (r *ring) total(second int64) (sum [lanes]uint64) {
	step := second / stepSeconds
	for s := max(step, r.newest) - cellCount + 1; s <= min(step, r.newest); s++ {
		for lane, n := range r.cells[index(s)] {
			sum[lane] += uint64(n)
		}
	}
	return sum
}

// idle reports whether no cell of the ten minutes that end at second, or later, holds a count.
func (r *ring) idle(second int64) bool { return r.newest <= second/stepSeconds-cellCount }

// index returns the index of a step's cell. The steps of an empty ring are below 0.
func index(step int64) int64 { return (step%cellCount + cellCount) % cellCount }

// name identifies what is counted. Its kind tells apart a tenant called "others" and the row of all other tenants.
type name struct {
	kind Kind
	text string
}

// table keeps a ring for each of a bounded number of names. Names that do not fit are counted together, in rest.
type table struct {
	rows  map[name]*ring
	rest  ring
	most  int
	swept int64 // the second in which sweep last ran
}

// at returns the ring in which to count n.
func (t *table) at(n name, second int64) *ring {
	if s, ok := t.rows[n]; ok {
		return s
	}
	if len(n.text) > maxNameBytes || (len(t.rows) >= t.most && !t.sweep(second)) {
		return &t.rest
	}
	s := new(ring)
	t.rows[name{n.kind, strings.Clone(n.text)}] = s
	return s
}

// sweep removes names without a count in the last ten minutes, at most once a second, and reports whether there is room
// in the table.
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

// totals sums up the counts of every name that has some. Names that did not fit in the table are counted together, as
// KindOthers.
func (t *table) totals(second int64) map[name][lanes]uint64 {
	sums := make(map[name][lanes]uint64, len(t.rows))
	for n, s := range t.rows {
		if !s.idle(second) {
			sums[n] = s.total(second)
		}
	}
	if !t.rest.idle(second) {
		sums[name{KindOthers, ""}] = t.rest.total(second)
	}
	return sums
}
