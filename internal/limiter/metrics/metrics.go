// Package metrics holds the values that a process reports to a monitoring system, and writes them in Prometheus's text
// format or sends them by OpenTelemetry's protocol (OTLP). It needs neither project's library, so that a program that
// uses Sluice links no second one beside its own.
package metrics

import (
	"cmp"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/breaker"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
)

// Kind says what the value of a metric means. Its texts are those of Prometheus.
type Kind string

// The kinds.
const (
	Counter   Kind = "counter"   // only grows, from 0 at the start of the process
	Gauge     Kind = "gauge"     // a level that rises and falls
	Histogram Kind = "histogram" // how often values of each size were observed
)

// Metric is one value, or one histogram, with its labels. Metrics of one name have the same kind, help and names of
// labels, and follow each other in a list.
type Metric struct {
	Name   string
	Help   string // one sentence
	Kind   Kind
	Labels []Label

	Value float64 // of a counter or a gauge

	Buckets []Bucket // of a histogram, by bound; observations above the last bound are in Count alone
	Sum     float64  // of all observations of a histogram
	Count   uint64   // of observations of a histogram
}

// Label names one part of what a metric is about.
type Label struct{ Name, Value string }

// Bucket is a part of a histogram.
type Bucket struct {
	UpTo  float64 // the upper bound of the observations that Count counts, in the unit of the metric
	Count uint64  // observations of at most UpTo, since the start of the process
}

// bounds are the upper bounds of a histogram's buckets, in seconds: from a decision in memory to a call that times out.
var bounds = [...]float64{25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3,
	250e-3, 1, 2.5, 10}

// Durations counts durations in a histogram. It is safe for concurrent use. The zero Durations is ready for use.
type Durations struct {
	buckets [len(bounds) + 1]atomic.Int64 // the last one is above all bounds
	nanos   atomic.Int64
}

// Observe counts a duration.
func (d *Durations) Observe(took time.Duration) {
	i, _ := slices.BinarySearch(bounds[:], took.Seconds())
	d.buckets[i].Add(1)
	d.nanos.Add(int64(took))
}

// metric returns the histogram with its name and labels.
func (d *Durations) metric(name, help string, labels []Label) Metric {
	m := Metric{Name: name, Help: help, Kind: Histogram, Labels: labels, Buckets: make([]Bucket, len(bounds)),
		Sum: float64(d.nanos.Load()) / 1e9}
	for i, bound := range bounds {
		m.Count += uint64(d.buckets[i].Load())
		m.Buckets[i] = Bucket{bound, m.Count}
	}
	m.Count += uint64(d.buckets[len(bounds)].Load())
	return m
}

// Table has a histogram for each set of labels that was observed. It bounds nothing: labels must come from a small set.
// It is safe for concurrent use. The zero Table is ready for use.
type Table[L comparable] struct {
	mu  sync.RWMutex
	all map[L]*Durations
}

// At returns the histogram of the labels, which it adds if need be.
func (t *Table[L]) At(labels L) *Durations {
	t.mu.RLock()
	d := t.all[labels]
	t.mu.RUnlock()
	if d != nil {
		return d
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = map[L]*Durations{}
	}
	if d = t.all[labels]; d == nil {
		d = new(Durations)
		t.all[labels] = d
	}
	return d
}

// Append appends a metric for each set of labels, ordered by the values of the labels.
func (t *Table[L]) Append(to []Metric, name, help string, labels func(L) []Label) []Metric {
	from := len(to)
	t.mu.RLock()
	for l, d := range t.all {
		to = append(to, d.metric(name, help, labels(l)))
	}
	t.mu.RUnlock()
	slices.SortFunc(to[from:], func(x, y Metric) int {
		return slices.CompareFunc(x.Labels, y.Labels, func(a, b Label) int { return cmp.Compare(a.Value, b.Value) })
	})
	return to
}

// StoreCalls counts the calls of stores. The zero StoreCalls is ready for use.
type StoreCalls struct{ table Table[storeCall] }

type storeCall struct {
	store  string
	failed bool
}

// Observe counts a call. It is for resilience.ChainConfig.Observe.
func (c *StoreCalls) Observe(store string, took time.Duration, failed bool) {
	c.table.At(storeCall{store, failed}).Observe(took)
}

// Append appends the metrics of the calls.
func (c *StoreCalls) Append(to []Metric) []Metric {
	return c.table.Append(to, "sluice_store_call_seconds", "Calls of the stores of counters.",
		func(s storeCall) []Label {
			return []Label{{"store", s.store}, {"failed", strconv.FormatBool(s.failed)}}
		})
}

// family appends values of one metric that differ in one label.
func family(to []Metric, kind Kind, name, help, label string, values ...value) []Metric {
	for _, v := range values {
		to = append(to, Metric{Name: name, Help: help, Kind: kind, Labels: []Label{{label, v.label}}, Value: v.value})
	}
	return to
}

type value struct {
	label string
	value float64
}

// AppendChain appends what a store chain counts: decisions from leases, what the fallback limiter decided, the state of
// circuit breakers, and the instance count.
func AppendChain(to []Metric, c *resilience.Chain) []Metric {
	if c.Leases != nil {
		s := c.Leases.Stats()
		to = family(to, Counter, "sluice_lease_decisions_total",
			"Decisions of the lease layer: from leases alone, and those that called a store.", "how",
			value{"admitted_from_leases", float64(s.Local - s.Denied)}, value{"denied_from_memory", float64(s.Denied)},
			value{"called", float64(s.Calls)})
		to = append(to, Metric{Name: "sluice_lease_units_lost_total", Kind: Counter, Value: float64(s.Lost),
			Help: "Units that were leased, and neither spent nor given back."})
	}
	f := c.Fallback.Stats()
	to = family(to, Counter, "sluice_fallback_decisions_total",
		"Decisions that the store did not make, by what applied instead.", "policy",
		value{"backstop", float64(f.Backstop)}, value{"open", float64(f.Open)}, value{"closed", float64(f.Closed)})
	to = append(to, Metric{Name: "sluice_fallback_units_lost_total", Kind: Counter, Value: float64(f.Dropped),
		Help: "Units that were admitted while the store did not answer, and never charged to it afterwards."})
	for _, b := range c.Breakers {
		open := 0.0
		if b.State() != breaker.Closed {
			open = 1
		}
		to = family(to, Gauge, "sluice_breaker_open",
			"1 while the circuit breaker of a store makes no calls, or only probes.", "store", value{b.Name(), open})
	}
	return append(to, Metric{Name: "sluice_instances", Kind: Gauge, Value: float64(c.Instances.Count()),
		Help: "Processes that share the store, as far as is known."})
}

// AppendProcess appends goroutines and memory of this process, under the names that Prometheus's Go client has for
// them.
func AppendProcess(to []Metric) []Metric {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return append(to,
		Metric{Name: "go_goroutines", Help: "Goroutines.", Kind: Gauge, Value: float64(runtime.NumGoroutine())},
		Metric{Name: "go_memstats_alloc_bytes", Help: "Bytes of objects that are allocated and not freed.", Kind: Gauge,
			Value: float64(memory.Alloc)},
		Metric{Name: "go_memstats_sys_bytes", Help: "Bytes that the process has from the system.", Kind: Gauge,
			Value: float64(memory.Sys)})
}
