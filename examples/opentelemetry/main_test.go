package main

import (
	"os"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/sluicelimits/sluice"
)

// Guarantees that a reader of OpenTelemetry's SDK gets each decision once, in a histogram.
func TestExample(t *testing.T) {
	plans, err := os.ReadFile("../plans/two-plans.yaml")
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := sluice.New(sluice.Config{PlansData: plans, Measure: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = limiter.Close(t.Context()) }()
	for range 3 {
		limiter.Decide(t.Context(), sluice.Identity{Tenant: "acme"}, sluice.Request{Method: "GET", Path: "/product/1"})
	}
	reader := metric.NewManualReader(metric.WithProducer(&producer{limiter: limiter, began: time.Now()}))
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	defer func() { _ = provider.Shutdown(t.Context()) }()
	var got metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.ScopeMetrics) != 1 || len(got.ScopeMetrics[0].Metrics) != 1 {
		t.Fatalf("%+v", got)
	}
	m := got.ScopeMetrics[0].Metrics[0]
	h, ok := m.Data.(metricdata.Histogram[float64])
	if !ok || m.Name != "sluice_decision_seconds" || len(h.DataPoints) != 1 {
		t.Fatalf("%+v", m)
	}
	p, n := h.DataPoints[0], uint64(0)
	for _, count := range p.BucketCounts {
		n += count
	}
	reason, _ := p.Attributes.Value("reason")
	if p.Count != 3 || n != 3 || p.Sum <= 0 || len(p.BucketCounts) != len(p.Bounds)+1 ||
		reason.AsString() != "allowed" {
		t.Errorf("%+v", p)
	}
}
