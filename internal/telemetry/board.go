package telemetry

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Board keeps the metrics of a process that writes no lines, such as a local control plane. It keeps the numbers since
// its start, for people to look at. It is safe for concurrent use. Make it with [NewBoard].
type Board struct {
	known map[string]Metric // by name

	mu     sync.Mutex
	meters map[meterOf]*Tally
}

type meterOf struct{ function, cell string }

// MetricValue is the current value of a metric on a board.
type MetricValue struct {
	Function string `json:"function"`
	Cell     string `json:"cell,omitempty"` // "" if the metric belongs to no cell
	Name     string `json:"name"`
	Unit     string `json:"unit"`
	Form     Form   `json:"form"`

	Value float64 `json:"value"` // of a count, the sum; of a level, the newest value; of a spread, the median
	N     int64   `json:"n"`     // how many values were recorded; 1 for a level that is looked up
	P99   float64 `json:"p99,omitempty"`
	// of a spread, the maximum; its relative error is at most 9.2 %, as that of the other two
	Most float64 `json:"most,omitempty"`
}

// NewBoard returns a board without numbers.
func NewBoard() *Board {
	b := &Board{known: map[string]Metric{}, meters: map[meterOf]*Tally{}}
	for _, m := range Metrics() {
		b.known[m.Name] = m
	}
	return b
}

// Meter returns the tally of a function, and of a cell or "". It keeps the metrics of cells that were removed.
func (b *Board) Meter(function, cell string) *Tally {
	b.mu.Lock()
	defer b.mu.Unlock()
	of := meterOf{function, cell}
	if b.meters[of] == nil {
		b.meters[of] = &Tally{board: b, counts: map[string]*tallied{}, levels: map[string]float64{},
			times: map[string]*histogram{}}
	}
	return b.meters[of]
}

// Tally counts for a board what a [Meter] would write.
type Tally struct {
	board *Board

	mu     sync.Mutex
	counts map[string]*tallied
	levels map[string]float64
	times  map[string]*histogram
}

type tallied struct{ sum, last, n int64 }

// Count adds n to a count, or sets a level to n.
func (t *Tally) Count(name string, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.counts[name]
	if c == nil {
		c = &tallied{}
		t.counts[name] = c
	}
	c.sum, c.last, c.n = c.sum+n, n, c.n+1
}

// SetLevel sets a level that is not a whole number, in the unit of the metric.
func (t *Tally) SetLevel(name string, value float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.levels[name] = value
}

// Took adds a duration to a distribution.
func (t *Tally) Took(name string, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.times[name] == nil {
		t.times[name] = &histogram{}
	}
	t.times[name].add(d)
}

// values returns all metrics of a tally.
func (t *Tally) values(of meterOf) (all []MetricValue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, c := range t.counts {
		out := MetricValue{Function: of.function, Cell: of.cell, Name: name, Unit: unitCount,
			Form: cmp.Or(t.board.known[name].Form, Counted), Value: float64(c.sum), N: c.n}
		if out.Form == Level {
			out.Value = float64(c.last)
		}
		all = append(all, out)
	}
	for name, value := range t.levels {
		all = append(all, MetricValue{Function: of.function, Cell: of.cell, Name: name,
			Unit: cmp.Or(t.board.known[name].Unit, unitNone), Form: Level, Value: value, N: 1})
	}
	for name, h := range t.times {
		out := MetricValue{Function: of.function, Cell: of.cell, Name: name, Unit: unitSeconds, Form: Spread,
			N: h.sum()}
		out.Value, out.P99, out.Most = h.seconds(0.5), h.seconds(0.99), h.seconds(1)
		all = append(all, out)
	}
	return all
}

// All returns every metric that has a value, ordered by function, cell and name.
func (b *Board) All() []MetricValue {
	b.mu.Lock()
	meters := make(map[meterOf]*Tally, len(b.meters))
	for of, t := range b.meters {
		meters[of] = t
	}
	b.mu.Unlock()
	all := []MetricValue{}
	for of, t := range meters {
		all = append(all, t.values(of)...)
	}
	slices.SortFunc(all, func(x, y MetricValue) int {
		return cmp.Or(cmp.Compare(x.Function, y.Function), cmp.Compare(x.Cell, y.Cell), cmp.Compare(x.Name, y.Name))
	})
	return all
}

func (h *histogram) sum() (n int64) {
	for _, c := range h {
		n += c
	}
	return n
}

// seconds returns the quantile of a part between 0 and 1.
func (h *histogram) seconds(part float64) float64 {
	rank, seen := max(int64(math.Ceil(part*float64(h.sum()))), 1), int64(0)
	for i, n := range h {
		if seen += n; seen >= rank {
			v, _ := strconv.ParseFloat(stepSeconds[i], 64) // stepSeconds holds valid numbers
			return v
		}
	}
	return 0
}
