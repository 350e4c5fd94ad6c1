package sluice

import (
	"io"

	"github.com/sluicelimits/sluice/internal/limiter/metrics"
	"github.com/sluicelimits/sluice/internal/request/answer"
)

// Metric is one value that a limiter reports, or one histogram, with its labels.
type Metric = metrics.Metric

// MetricLabel names one part of what a Metric is about.
type MetricLabel = metrics.Label

// MetricBucket is a part of a histogram.
type MetricBucket = metrics.Bucket

// The kinds of a [Metric].
const (
	Counter   = metrics.Counter
	Gauge     = metrics.Gauge
	Histogram = metrics.Histogram
)

// measured is what a limiter counts with Config.Measure.
type measured struct {
	decisions metrics.Table[answer.Kind]
	calls     metrics.StoreCalls
	settled   metrics.Table[string] // by result
}

// Metrics returns what the limiter has counted since its start. Metrics of one name follow each other. Their number is
// bounded, because their labels are reasons and names of stores, never tenants:
//
//	sluice_decision_seconds{reason}         decisions, as a histogram of how long they took; Config.Measure
//	sluice_settlement_seconds{result}       settlements of reservations, as a histogram; Config.Measure
//	sluice_store_call_seconds{store,failed} calls of the stores, as a histogram; Config.Measure
//	sluice_lease_decisions_total{how}       decisions from leases, and those that called a store
//	sluice_lease_units_lost_total           units that were leased, and neither spent nor given back
//	sluice_fallback_decisions_total{policy} decisions that a store did not make, by what applied instead
//	sluice_fallback_units_lost_total        units of such decisions that were never charged to the store
//	sluice_breaker_open{store}              1 while the circuit breaker of a store makes no calls, or only probes
//	sluice_instances                        processes that share the Store, as far as is known
//
// Without a Store only the first two are there. The examples prometheus and opentelemetry hand the metrics on to these
// libraries; a program without one can serve WriteMetrics.
func (l *Limiter) Metrics() []Metric {
	var all []Metric
	if l.measured != nil {
		all = l.measured.decisions.Append(all, "sluice_decision_seconds",
			"Decisions by reason, and how long they took.",
			func(k answer.Kind) []metrics.Label { return []metrics.Label{{Name: "reason", Value: k.String()}} })
		all = l.measured.settled.Append(all, "sluice_settlement_seconds",
			"Settlements of reservations by result, and how long they took.",
			func(result string) []metrics.Label { return []metrics.Label{{Name: "result", Value: result}} })
		all = l.measured.calls.Append(all)
	}
	if l.chain != nil {
		all = metrics.AppendChain(all, l.chain)
	}
	return all
}

// MetricsType is the content type of what [Limiter.WriteMetrics] writes.
const MetricsType = metrics.TextType

// WriteMetrics writes the metrics in Prometheus's text format. The error is that of w.
func (l *Limiter) WriteMetrics(w io.Writer) error { return metrics.WriteText(w, l.Metrics()) }
