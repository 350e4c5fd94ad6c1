package otlppeer_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	colmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	metricsv1 "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sluicelimits/sluice/internal/limiter/metrics"
)

// Guarantees that what is sent is a message of OTLP: every field is known to OpenTelemetry's own types, 64-bit integers
// are in the form of JSON that OTLP demands, and counts, bounds and times say what was observed.
func TestOTLP(t *testing.T) {
	var body []byte
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ = io.ReadAll(r.Body)
	}))
	defer collector.Close()
	var table metrics.Table[string]
	table.At("x").Observe(30 * time.Microsecond)
	table.At("x").Observe(time.Minute)
	table.At("y").Observe(time.Millisecond)
	e, err := metrics.NewExporter(metrics.ExporterConfig{Endpoint: collector.URL, Service: "sluice", Version: "1",
		Attributes: map[string]string{"host.name": "h"}, Gather: func() []metrics.Metric {
			all := table.Append(nil, "h_seconds", "H.", func(l string) []metrics.Label {
				return []metrics.Label{{Name: "l", Value: l}}
			})
			return append(all, metrics.Metric{Name: "c_total", Help: "C.", Kind: metrics.Counter, Value: 7,
				Labels: []metrics.Label{{Name: "a", Value: "\xff"}}}, metrics.Metric{Name: "g", Kind: metrics.Gauge})
		}})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if err := e.Send(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	var got colmetrics.ExportMetricsServiceRequest
	if err := protojson.Unmarshal(body, &got); err != nil { // strict: an unknown field is an error
		t.Fatalf("%v in %s", err, body)
	}
	of := got.GetResourceMetrics()[0]
	names := map[string]string{}
	for _, a := range of.GetResource().GetAttributes() {
		names[a.GetKey()] = a.GetValue().GetStringValue()
	}
	if names["service.name"] != "sluice" || names["service.version"] != "1" || names["host.name"] != "h" {
		t.Errorf("resource %v", names)
	}
	all := of.GetScopeMetrics()[0].GetMetrics()
	if len(all) != 3 {
		t.Fatalf("%d metrics in %s", len(all), body)
	}
	const cumulative = metricsv1.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE
	h := all[0].GetHistogram()
	p := h.GetDataPoints()[0]
	sum := uint64(0)
	for _, n := range p.GetBucketCounts() {
		sum += n
	}
	if all[0].GetName() != "h_seconds" || all[0].GetUnit() != "s" || h.GetAggregationTemporality() != cumulative ||
		len(h.GetDataPoints()) != 2 || p.GetCount() != 2 || sum != 2 || p.GetBucketCounts()[1] != 1 ||
		len(p.GetBucketCounts()) != len(p.GetExplicitBounds())+1 || p.GetSum() < 60 ||
		p.GetTimeUnixNano() != uint64(now.UnixNano()) || p.GetStartTimeUnixNano() > p.GetTimeUnixNano() {
		t.Errorf("histogram %v", all[0])
	}
	c := all[1].GetSum()
	if !c.GetIsMonotonic() || c.GetAggregationTemporality() != cumulative || c.GetDataPoints()[0].GetAsDouble() != 7 ||
		c.GetDataPoints()[0].GetAttributes()[0].GetValue().GetStringValue() != "\uFFFD" {
		t.Errorf("counter %v", all[1])
	}
	if len(all[2].GetGauge().GetDataPoints()) != 1 {
		t.Errorf("gauge %v", all[2])
	}
}
