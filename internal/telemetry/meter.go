package telemetry

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
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
	c    Config
	head string
	dims string

	mu     sync.Mutex
	counts []meterCount
	times  []meterTimes
	lost   int64 // metrics whose names are not valid, or that are too many
}

type meterCount struct {
	name string
	n    int64
}

type meterTimes struct {
	name string
	took histogram
}

// NewMeter checks the configuration and makes a meter. Totals and Gauges must be nil. The error names the field.
func NewMeter(c Config) (*Meter, error) {
	if c.Totals != nil || c.Gauges != nil {
		return nil, errors.New("telemetry: a Meter takes no Totals and Gauges; they are for a Recorder")
	}
	r, err := New(c)
	if err != nil {
		return nil, err
	}
	return &Meter{c: r.c, head: r.head, dims: r.dims}, nil
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
	i := slices.IndexFunc(m.counts, func(c meterCount) bool { return c.name == name })
	switch {
	case i >= 0:
		m.counts[i].n += n
	case m.room(name):
		m.counts = append(m.counts, meterCount{name, n})
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
	i := slices.IndexFunc(m.times, func(t meterTimes) bool { return t.name == name })
	if i < 0 && m.room(name) {
		i = len(m.times)
		m.times = append(m.times, meterTimes{name: name})
	}
	if i >= 0 {
		m.times[i].took.add(d)
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
	m.counts, m.times, m.lost = nil, nil, 0
	m.mu.Unlock()
	var l lineBuilder
	for _, c := range counts {
		if is := metered()[c.name]; is.LineOnly || c.n == 0 && !is.Always {
			l.member(c.name, c.n)
		} else {
			l.number(c.name, unitCount, c.n)
		}
	}
	l.some("telemetry_names_lost", lost)
	for i := range times {
		if metered()[times[i].name].LineOnly {
			l.longest(times[i].name, &times[i].took)
		} else {
			l.distribution(times[i].name, unitSeconds, stepSeconds[:], times[i].took[:])
		}
	}
	if len(l.numbers)+len(l.arrays) == 0 {
		return nil
	}
	out := []byte{'{'}
	if len(l.definitions) > 0 {
		out = append(out, `"_aws":{"Timestamp":`...)
		out = strconv.AppendInt(out, clampedSecond(now)*1000, 10)
		out = l.directive(out, m.head)
	}
	out = l.members(out, m.dims)
	if _, err := m.c.Writer.Write(out); err != nil {
		return fmt.Errorf("telemetry: write a line: %w", err)
	}
	return nil
}
