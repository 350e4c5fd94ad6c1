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

// Meter counts what a function does that is none of the authorizer's affair, and writes it as one EMF line when it is
// told to: for functions that are called once for many things. It has the dimensions of its Config, and no others.
// Names of metrics are the program's own words, never anything that came in. Its zero value is not used; a nil Meter
// counts nothing. It is safe for concurrent use.
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

// metered are the numbers that a Meter writes, by name; their functions tell those of one name alike.
var metered = sync.OnceValue(func() map[string]Metric {
	all := map[string]Metric{}
	for _, m := range Metrics() {
		if !slices.Contains(m.Functions, inAuthorizer) {
			all[m.Name] = m
		}
	}
	return all
})

// Count adds to a count. Adding 0 has the line tell 0: as a metric where the list says that it is always told
// ([Metric].Always), otherwise as a member that costs nothing.
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

// Took adds a time to a distribution of seconds. A negative one, of a clock that is behind another, counts as the
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

// room reports whether there may be another metric of this name.
func (m *Meter) room(name string) bool {
	if !isName(name, maxLimitID, "_") || len(m.counts)+len(m.times) >= maxMeters {
		m.lost++
		return false
	}
	return true
}

// Flush writes what was counted since the last one as a line with the time now, and begins anew. Where nothing was, it
// writes nothing; where none of it is a metric, a line of JSON without a directive. The error is the writer's; what was
// counted is then lost.
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
