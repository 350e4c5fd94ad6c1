package telemetry

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// maxMeters is how many metrics one meter may have. An EMF document may have 100.
const maxMeters = 64

// Meter counts what a function other than the authorizer does, and writes it as one EMF line when Flush is called. It
// is for functions that handle many things in one invocation. It has the dimensions of its Config, and no others. Names
// of metrics are constants of the program, never input. A nil Meter counts nothing. A zero Meter must not be used. It
// is safe for concurrent use.
type Meter struct {
	c Config

	mu     sync.Mutex
	counts map[string]int64
	times  map[string]*histogram
	lost   int64 // metrics whose names are not valid, or that are too many
}

// NewMeter checks the configuration and makes a meter, which does not use Totals and Gauges. The error names the field.
func NewMeter(c Config) (*Meter, error) {
	r, err := New(c)
	if err != nil {
		return nil, err
	}
	return &Meter{c: r.c, counts: map[string]int64{}, times: map[string]*histogram{}}, nil
}

// metered returns the metrics that a Meter writes, by name. Metrics of one name are the same in each function.
var metered = sync.OnceValue(func() map[string]Metric {
	all := map[string]Metric{}
	for _, m := range Metrics() {
		if !slices.Contains(m.Functions, inAuthorizer) {
			all[m.Name] = m
		}
	}
	return all
})

// Count adds n to a count. If the sum is 0, the line has a metric if the list says that it is always written
// ([Metric].Always), and otherwise a plain member, which costs nothing.
func (m *Meter) Count(name string, n int64) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, counted := m.counts[name]; counted || m.room(name) {
		m.counts[name] += n
	}
}

// Took adds a duration to a distribution of seconds. A negative duration, which occurs if clocks differ, counts as the
// shortest.
func (m *Meter) Took(name string, d time.Duration) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.times[name] == nil && m.room(name) {
		m.times[name] = new(histogram)
	}
	if h := m.times[name]; h != nil {
		h.add(d)
	}
}

// room reports whether the meter accepts another metric with this name.
func (m *Meter) room(name string) bool {
	if !isName(name, maxLimitID, "_") || len(m.counts)+len(m.times) >= maxMeters {
		m.lost++
		return false
	}
	return true
}

// Flush writes what was counted since the last call as a line with the time now. It writes nothing if nothing was
// counted. If the line has no metric, it is plain JSON without an EMF directive. The error is the writer's, and what
// was counted is then lost.
func (m *Meter) Flush(now time.Time) error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	counts, times, lost := m.counts, m.times, m.lost
	m.counts, m.times, m.lost = map[string]int64{}, map[string]*histogram{}, 0
	m.mu.Unlock()
	l := newLine()
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if is := metered()[name]; is.LineOnly || counts[name] == 0 && !is.Always {
			l.members[name] = counts[name]
		} else {
			l.metric(name, unitCount, counts[name])
		}
	}
	l.some("telemetry_names_lost", lost)
	for _, name := range slices.Sorted(maps.Keys(times)) {
		if metered()[name].LineOnly {
			l.longest(name, times[name])
		} else {
			l.distribution(name, unitSeconds, stepSeconds[:], times[name][:])
		}
	}
	if len(l.members) == 0 {
		return nil
	}
	out, err := l.encode(&m.c, clampedSecond(now))
	if err != nil {
		return fmt.Errorf("telemetry: make a line: %w", err)
	}
	if _, err := m.c.Writer.Write(out); err != nil {
		return fmt.Errorf("telemetry: write a line: %w", err)
	}
	return nil
}
