package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluicelimits/sluice"
)

// Guarantees that Prometheus's own checks accept the metrics, and that its library writes what Limiter.WriteMetrics
// writes, but for the order of the lines.
func TestExample(t *testing.T) {
	plans, err := os.ReadFile("../plans/public.yaml")
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := sluice.New(sluice.Config{PlansData: plans, Measure: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = limiter.Close(t.Context()) }()
	api := handler(limiter)
	for range 3 {
		api.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/a", nil))
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector{limiter})
	var own bytes.Buffer
	if err := limiter.WriteMetrics(&own); err != nil {
		t.Fatal(err)
	}
	if err := testutil.GatherAndCompare(registry, &own); err != nil {
		t.Error(err)
	}
	seen := httptest.NewRecorder()
	api.ServeHTTP(seen, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if want := `sluice_decision_seconds_count{reason="allowed"} 3`; !bytes.Contains(seen.Body.Bytes(), []byte(want)) {
		t.Errorf("no %s in\n%s", want, seen.Body)
	}
}
