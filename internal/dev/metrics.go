package dev

import (
	"cmp"
	"maps"
	"slices"

	"github.com/sluicelimits/sluice/internal/limiter/metrics"
)

// gather returns the metrics of /_sluice/metrics, for Prometheus: the decisions of each gateway, and the results
// of the calls of its stores.
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
	all = metrics.AppendProcess(all)
	// The samples of one metric must follow each other, and each cell has brought its own.
	slices.SortStableFunc(all, func(x, y metrics.Metric) int { return cmp.Compare(x.Name, y.Name) })
	return all
}
