package metrics_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/metrics"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
)

// full is a store that has no room for another counter.
type full struct{ *memory.Store }

func (full) Decide(context.Context, *limit.Request, time.Time, *limit.Decision) error {
	return limit.ErrFull
}

// Guarantees that units count as lost if they were admitted without the store and cannot be charged to it later.
func TestLostUnits(t *testing.T) {
	below := memorytest.New(t)
	chain, err := resilience.NewChain(resilience.ChainConfig{Rates: resilience.NamedStore{Name: "full",
		Store: full{below}}, Frozen: true, NoLeases: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	l := limittest.MustNew(t, limit.Limit{ID: "l", Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: 100, Period: time.Hour}}})
	req := &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: "acme"},
		Charges: []limit.Charge{{Limit: l, Cost: 7}}}
	var d limit.Decision
	if err := chain.Decide(t.Context(), req, time.Now(), &d); err != nil || !d.Allowed {
		t.Fatalf("allowed %t, %v; want the fallback limiter to admit the request", d.Allowed, err)
	}
	var out bytes.Buffer
	if err := metrics.WriteText(&out, metrics.AppendChain(nil, chain)); err != nil {
		t.Fatal(err)
	}
	if want := "\nsluice_fallback_units_lost_total 7\n"; !strings.Contains(out.String(), want) {
		t.Errorf("no %q in\n%s", want, &out)
	}
}

// Guarantees the lines of each kind of metric, and that a bucket counts observations of exactly its bound.
func TestWriteText(t *testing.T) {
	var table metrics.Table[string]
	for _, took := range []time.Duration{0, 25 * time.Microsecond, 26 * time.Microsecond, time.Minute} {
		table.At("x").Observe(took)
	}
	all := table.Append(nil, "h_seconds", `a \ and a`+"\nline", func(l string) []metrics.Label {
		return []metrics.Label{{Name: "l", Value: l}}
	})
	all = append(all, metrics.Metric{Name: "c_total", Help: "C.", Kind: metrics.Counter, Value: 1e21},
		metrics.Metric{Name: "c_total", Help: "C.", Kind: metrics.Counter, Value: 2,
			Labels: []metrics.Label{{Name: "a", Value: "\"\\\n\xff"}, {Name: "b"}}})
	var out bytes.Buffer
	if err := metrics.WriteText(&out, all); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"# HELP h_seconds a \\\\ and a\\nline\n# TYPE h_seconds histogram\n",
		"h_seconds_bucket{l=\"x\",le=\"2.5e-05\"} 2\nh_seconds_bucket{l=\"x\",le=\"5e-05\"} 3\n",
		"h_seconds_bucket{l=\"x\",le=\"10\"} 3\nh_seconds_bucket{l=\"x\",le=\"+Inf\"} 4\n" +
			"h_seconds_sum{l=\"x\"} 60.000051\nh_seconds_count{l=\"x\"} 4\n" +
			"# HELP c_total C.\n# TYPE c_total counter\nc_total 1e+21\nc_total{a=\"\\\"\\\\\\n\uFFFD\",b=\"\"} 2\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

// Guarantees that the exporter sends at once when it ends, that a collector that refuses is reported once until it
// accepts again, and that bad endpoints are refused.
func TestExporter(t *testing.T) {
	for _, endpoint := range []string{"", "127.0.0.1:4318", "ftp://a", "http://", "http://a\x7f"} {
		if _, err := metrics.NewExporter(metrics.ExporterConfig{Endpoint: endpoint}); err == nil {
			t.Errorf("the endpoint %q is accepted, want an error", endpoint)
		}
	}
	status, bodies := http.StatusOK, []string{}
	collector := func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies = append(bodies, r.Method+" "+r.URL.Path+" "+r.Header.Get("Content-Type")+" "+string(body))
		w.WriteHeader(status)
	}
	server := httptest.NewServer(http.HandlerFunc(collector))
	defer server.Close()
	log := new(bytes.Buffer)
	e, err := metrics.NewExporter(metrics.ExporterConfig{Endpoint: server.URL + "/otlp", Service: "s", Version: "1",
		Every: time.Hour, Log: slog.New(slog.NewTextHandler(log, nil)), Gather: func() []metrics.Metric {
			return []metrics.Metric{{Name: "g", Kind: metrics.Gauge, Value: 2}}
		}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, status = range []int{500, 503, 200, 202} {
		e.Run(ctx)
	}
	if len(bodies) != 4 || !strings.HasPrefix(bodies[0], "POST /otlp/v1/metrics application/json {") ||
		!json.Valid([]byte(bodies[0][strings.Index(bodies[0], "{"):])) {
		t.Errorf("the exporter sent %q, want one request with valid JSON", bodies)
	}
	if n, again := strings.Count(log.String(), "cannot be sent"), strings.Count(log.String(), "sent again"); n != 1 ||
		again != 1 {
		t.Errorf("the log has these lines, want one about the refusal, and one that the collector accepts again:\n%s",
			log)
	}
}

// Guarantees that many values are sent in several requests, each below what a collector accepts, and each value once.
func TestExporterSplits(t *testing.T) {
	const collectorAccepts = 20 << 20 // bytes, of the OpenTelemetry collector by default
	label := strings.Repeat("x", 590)
	all := []metrics.Metric{{Name: "first", Kind: metrics.Gauge}}
	for i := range 60_000 {
		all = append(all, metrics.Metric{Name: "many", Kind: metrics.Counter, Value: float64(i),
			Labels: []metrics.Label{{Name: "key", Value: label}}})
	}
	seen := map[float64]int{}
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || len(body) > collectorAccepts {
			t.Errorf("a request has %d bytes, %v", len(body), err)
		}
		var request struct {
			ResourceMetrics []struct {
				ScopeMetrics []struct {
					Metrics []struct {
						Name string
						Sum  struct{ DataPoints []struct{ AsDouble float64 } }
					}
				}
			}
		}
		if err := json.Unmarshal(body, &request); err != nil {
			t.Error(err)
			return
		}
		for _, m := range request.ResourceMetrics[0].ScopeMetrics[0].Metrics {
			for _, p := range m.Sum.DataPoints {
				seen[p.AsDouble]++
			}
		}
	}))
	defer collector.Close()
	e, err := metrics.NewExporter(metrics.ExporterConfig{Endpoint: collector.URL,
		Gather: func() []metrics.Metric { return all }})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Send(t.Context(), time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	for i := range 60_000 {
		if seen[float64(i)] != 1 {
			t.Fatalf("the value %d arrived %d times, want once", i, seen[float64(i)])
		}
	}
}
