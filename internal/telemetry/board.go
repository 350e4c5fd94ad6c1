package telemetry

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Board has the metrics of a process in which there is nobody to read lines: it keeps their numbers since its start,
// for people to look at. It is safe for concurrent use. Make it with [NewBoard].
type Board struct {
	known map[string]Metric // by their names

	mu     sync.Mutex
	meters map[meterOf]*Tally
}

type meterOf struct{ function, cell string }

// Told is how a metric of a board stands.
type Told struct {
	Function string `json:"function"`
	Cell     string `json:"cell,omitempty"` // empty where it is of none
	Name     string `json:"name"`
	Unit     string `json:"unit"`
	Form     Form   `json:"form"`

	Value float64 `json:"value"` // of a count the sum, of a level the newest; of a spread the median
	N     int64   `json:"n"`     // how often it was told; 1 of what is looked up when it is asked for
	P99   float64 `json:"p99,omitempty"`
	Most  float64 `json:"most,omitempty"` // of a spread; like the others with a relative error of at most 9.2 %
}

// NewBoard makes one without numbers.
func NewBoard() *Board {
	b := &Board{known: map[string]Metric{}, meters: map[meterOf]*Tally{}}
	for _, m := range Metrics() {
		b.known[m.Name] = m
	}
	return b
}

// Meter is the one of a function, and of a cell or "". Metrics of cells that are gone stay.
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

// Tally counts what a [Meter] would write.
type Tally struct {
	board *Board

	mu     sync.Mutex
	counts map[string]*tallied
	levels map[string]float64
	times  map[string]*histogram
}

type tallied struct{ sum, last, n int64 }

// Count adds to a count, or says how a level stands.
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

// Stands says how a level stands that is no whole number, in the unit that the metric has.
func (t *Tally) Stands(name string, value float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.levels[name] = value
}

// Took adds a time to a distribution.
func (t *Tally) Took(name string, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.times[name] == nil {
		t.times[name] = &histogram{}
	}
	t.times[name].add(d)
}

// told is all of a tally.
func (t *Tally) told(of meterOf) (all []Told) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, c := range t.counts {
		out := Told{Function: of.function, Cell: of.cell, Name: name, Unit: unitCount,
			Form: cmp.Or(t.board.known[name].Form, Counted), Value: float64(c.sum), N: c.n}
		if out.Form == Level {
			out.Value = float64(c.last)
		}
		all = append(all, out)
	}
	for name, value := range t.levels {
		all = append(all, Told{Function: of.function, Cell: of.cell, Name: name,
			Unit: cmp.Or(t.board.known[name].Unit, unitNone), Form: Level, Value: value, N: 1})
	}
	for name, h := range t.times {
		out := Told{Function: of.function, Cell: of.cell, Name: name, Unit: unitSeconds, Form: Spread, N: h.sum()}
		out.Value, out.P99, out.Most = h.seconds(0.5), h.seconds(0.99), h.seconds(1)
		all = append(all, out)
	}
	return all
}

// All is every metric that was told, by function, cell and name.
func (b *Board) All() []Told {
	b.mu.Lock()
	meters := make(map[meterOf]*Tally, len(b.meters))
	for of, t := range b.meters {
		meters[of] = t
	}
	b.mu.Unlock()
	all := []Told{}
	for of, t := range meters {
		all = append(all, t.told(of)...)
	}
	slices.SortFunc(all, func(x, y Told) int {
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

// seconds is the time that a part of all did not pass.
func (h *histogram) seconds(part float64) float64 {
	rank, seen := max(int64(math.Ceil(part*float64(h.sum()))), 1), int64(0)
	for i, n := range h {
		if seen += n; seen >= rank {
			v, _ := strconv.ParseFloat(stepSeconds[i], 64) // it was written so
			return v
		}
	}
	return 0
}
