package dev

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/sluicelimits/sluice/internal/limiter/metrics"
	"github.com/sluicelimits/sluice/internal/telemetry"
)

// gather returns the metrics of /_sluice/metrics, for Prometheus: the decisions of each gateway, the results of the
// calls of its stores, and the metrics of the functions of the control plane.
func (f *process) gather() []metrics.Metric {
	var all []metrics.Metric
	for _, c := range f.all() {
		cell := metrics.Label{Name: "cell", Value: c.Name}
		own := c.decided.Append(nil, "sluice_decision_seconds",
			"Decisions by reason, and how long they took.",
			func(reason string) []metrics.Label {
				return []metrics.Label{{Name: "reason", Value: reason}}
			})
		totals := c.recorder.Totals()
		for _, outcome := range slices.Sorted(maps.Keys(totals)) {
			own = append(own, metrics.Metric{Name: "sluice_gateway_requests_total", Kind: metrics.Counter,
				Help: "Requests to a local gateway, by outcome.", Value: float64(totals[outcome]),
				Labels: []metrics.Label{{Name: "outcome", Value: string(outcome)}}})
		}
		own = c.counters.Calls.Append(own)
		if c.counters.Chain != nil {
			own = metrics.AppendChain(own, c.counters.Chain)
		}
		for i := range own {
			own[i].Labels = append(own[i].Labels, cell)
		}
		all = append(all, own...)
	}
	for _, v := range f.plane.Metrics() {
		all = append(all, functionMetrics(v)...)
	}
	all = metrics.AppendProcess(all)
	// The samples of one metric must follow each other, and each cell and function has brought its own.
	slices.SortStableFunc(all, func(x, y metrics.Metric) int { return cmp.Compare(x.Name, y.Name) })
	return all
}

// functionMetrics is a metric of docs/metrics.md. A spread becomes its median, its 99th percentile and its maximum.
func functionMetrics(v telemetry.MetricValue) []metrics.Metric {
	m := metrics.Metric{Name: "sluice_" + v.Name, Kind: metrics.Gauge, Value: v.Value,
		Help:   "See docs/metrics.md: " + v.Name + ".",
		Labels: []metrics.Label{{Name: "function", Value: v.Function}}}
	if v.Cell != "" {
		m.Labels = append(m.Labels, metrics.Label{Name: "cell", Value: v.Cell})
	}
	switch v.Form { //nolint:exhaustive // the other forms are gauges of one value
	case telemetry.Counted:
		m.Name, m.Kind = strings.TrimSuffix(m.Name, "_total")+"_total", metrics.Counter
	case telemetry.Spread:
		var out []metrics.Metric
		for _, q := range []struct {
			name  string
			value float64
		}{{"0.5", v.Value}, {"0.99", v.P99}, {"1", v.Most}} {
			one := m
			one.Labels = append(slices.Clip(m.Labels), metrics.Label{Name: "quantile", Value: q.name})
			one.Value = q.value
			out = append(out, one)
		}
		return out
	}
	return []metrics.Metric{m}
}
