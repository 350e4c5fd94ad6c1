package telemetry

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"
)

// maxMeters is how many metrics one meter may have; an EMF document may have 100.
const maxMeters = 64

// Meter counts what a function does that is none of the authorizer's affair, and writes it as one EMF line when it is told to:
// for functions that are called once for many things. It has the dimensions of its Config, and no others. Names of metrics are
// the program's own words, never anything that came in. Its zero value is not used; a nil Meter counts nothing. It is safe for
// concurrent use.
type Meter struct {
	c    Config
	head string
	dims string

	mu     sync.Mutex
	counts []meterCount
	times  []meterTimes
	lost   int64 // names that were none, or too many
}

type meterCount struct {
	name string
	n    int64
}

type meterTimes struct {
	name string
	took histogram
}

// NewMeter checks the configuration, of which Totals is not used, and makes a meter. The error names the field.
func NewMeter(c Config) (*Meter, error) {
	if c.Totals != nil || c.Gauges != nil {
		return nil, errors.New("telemetry: Totals and Gauges are for a Recorder")
	}
	r, err := New(c)
	if err != nil {
		return nil, err
	}
	return &Meter{c: r.c, head: r.head, dims: r.dims}, nil
}

// Count adds to a count. Adding 0 has the line tell 0, so that an alarm can tell "none" from "not known".
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

// Took adds a time to a distribution of seconds. A negative one, of a clock that is behind another, counts as the shortest.
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

// room reports whether there may be another metric of this name.
func (m *Meter) room(name string) bool {
	if !isName(name, maxLimitID, "_") || len(m.counts)+len(m.times) >= maxMeters {
		m.lost++
		return false
	}
	return true
}

// Flush writes what was counted since the last one as a line with the time now, and begins anew. Where nothing was, it writes
// nothing. The error is the writer's; what was counted is then lost.
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
		l.number(c.name, unitCount, c.n)
	}
	l.some("telemetry_names_lost", lost)
	for i := range times {
		l.distribution(times[i].name, unitSeconds, stepSeconds[:], times[i].took[:])
	}
	if len(l.definitions) == 0 {
		return nil
	}
	out := strconv.AppendInt([]byte(`{"_aws":{"Timestamp":`), clampedSecond(now)*1000, 10)
	out = l.finish(out, m.head, m.dims)
	if _, err := m.c.Writer.Write(out); err != nil {
		return fmt.Errorf("telemetry: write a line: %w", err)
	}
	return nil
}
