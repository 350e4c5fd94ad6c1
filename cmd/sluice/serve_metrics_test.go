package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluicelimits/sluice/internal/limiter/metrics"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// Guarantees that every metric of the Grafana dashboard exists in the service with a store that leases, and every label
// and every value of a label that the dashboard selects.
func TestGrafana(t *testing.T) {
	text, err := os.ReadFile("../../examples/envoy/grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct{ List []struct{ Definition string } }
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	redis := redistest.Start(t)
	s := startServe(t, "--config", limitsFile(t, 3), "--redis", redis.Addr, "--redis-deadline", "10s")
	for range 5 {
		s.ask(t, "tenant", "acme")
	}
	_, _, exposed := get(t, s.debug+"/metrics", "")
	expressions := 0
	check := func(where, expr string) {
		expressions++
		for _, m := range regexp.MustCompile(`((?:sluice|go)_[a-z_]+)(?:\{([^}]*)\})?`).FindAllStringSubmatch(expr,
			-1) {
			if !regexp.MustCompile(`(?m)^` + m[1] + `[{ ]`).MatchString(exposed) {
				t.Errorf("%s: the service has no metric %s", where, m[1])
			}
			for _, l := range regexp.MustCompile(`(\w+)(=~|!=|=)"([^"]*)"`).FindAllStringSubmatch(m[2], -1) {
				if l[1] == "job" || l[1] == "instance" { // Prometheus adds these
					continue
				}
				for value := range strings.SplitSeq(l[3], "|") {
					if !strings.Contains(exposed, l[1]+`="`+value+`"`) {
						t.Errorf("%s: no metric has %s=%q", where, l[1], value)
					}
				}
			}
			for _, by := range regexp.MustCompile(`by \(([^)]*)\)`).FindAllStringSubmatch(expr, -1) {
				for label := range strings.SplitSeq(by[1], ", ") {
					if label != "instance" && !strings.Contains(exposed, label+`="`) {
						t.Errorf("%s: no metric has the label %s", where, label)
					}
				}
			}
		}
	}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			check(p.Title, target.Expr)
		}
	}
	for _, v := range dashboard.Templating.List {
		check("variables", v.Definition)
	}
	if expressions < 20 {
		t.Errorf("only %d expressions were found in the dashboard", expressions)
	}
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range regexp.MustCompile(`(?m)^# TYPE (\S+)`).FindAllStringSubmatch(exposed, -1) {
		if !strings.Contains(string(text), family[1]) {
			t.Errorf("the dashboard does not show %s", family[1])
		}
		if !strings.Contains(string(page), "`"+family[1]+"`") {
			t.Errorf("docs/metrics.md does not list %s", family[1])
		}
	}
	if t.Failed() {
		t.Log(exposed)
	}
}

// startCollector starts an OpenTelemetry collector. The returned function gives the bodies of the requests that it got.
func startCollector(t *testing.T) (url string, got func() []string) {
	t.Helper()
	var mu sync.Mutex
	var bodies []string
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		bodies = append(bodies, string(body))
	}))
	t.Cleanup(collector.Close)
	return collector.URL, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return bodies
	}
}

// checkExported checks that a collector got one request, with each metric of a text in Prometheus's format.
func checkExported(t *testing.T, bodies []string, exposed string) {
	t.Helper()
	if len(bodies) != 1 {
		t.Fatalf("the collector got %d requests, want 1", len(bodies))
	}
	families := regexp.MustCompile(`(?m)^# TYPE (\S+)`).FindAllStringSubmatch(exposed, -1)
	for _, family := range families {
		if !strings.Contains(bodies[0], `"name":"`+family[1]+`"`) {
			t.Errorf("the collector did not get %s", family[1])
		}
	}
	if len(families) == 0 {
		t.Errorf("Prometheus gets no metric: %s", exposed)
	}
}

// Guarantees that a service that ends sends the metrics of its last requests to the OpenTelemetry collector of --otlp,
// with the same names as in /metrics.
func TestServeOTLP(t *testing.T) {
	url, got := startCollector(t)
	s := startServe(t, "--config", limitsFile(t, 3), "--otlp", url, "--otlp-every", "1h")
	for range 4 {
		s.ask(t, "tenant", "acme")
	}
	_, _, exposed := get(t, s.debug+"/metrics", "")
	s.stop()
	if err := <-s.done; err != nil {
		t.Fatal(err)
	}
	bodies := got()
	checkExported(t, bodies, exposed)
	if !strings.Contains(bodies[0], `"value":{"stringValue":"OVER_LIMIT"}`) {
		t.Errorf("the last request is missing in %s", bodies[0])
	}
	if got := sluice(t, "", "serve", "--config", limitsFile(t, 1), "--otlp", "nowhere"); got.code == 0 ||
		!strings.Contains(got.stderr, `--otlp "nowhere": the endpoint is not a URL`) {
		t.Errorf("a wrong --otlp: exit %d, %s", got.code, got.stderr)
	}
}

// Guarantees that /_sluice/metrics of sluice dev is in Prometheus's format, whatever Accept says, with the decisions of
// the gateway, each metric in one block.
func TestDevPrometheus(t *testing.T) {
	r := startDev(t)
	if code, _, _ := get(t, r.base+"/product/1", ""); code != http.StatusOK && code != http.StatusUnauthorized {
		t.Errorf("a request to be counted: status %d", code)
	}
	ask := func(accept string) (string, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.base+"/_sluice/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", accept)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("the metrics: status %d, headers %v, %v", resp.StatusCode, resp.Header, err)
		}
		return resp.Header.Get("Content-Type"), string(body)
	}
	kind, text := ask("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1")
	if kind != metrics.TextType {
		t.Errorf("Prometheus gets %s", kind)
	}
	for _, want := range []string{`sluice_gateway_requests_total{outcome="`, `sluice_decision_seconds_count{reason="`,
		"go_goroutines "} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("the metrics lack %s:\n%s", want, text)
		}
	}
	var families []string
	for _, f := range regexp.MustCompile(`(?m)^# TYPE (\S+)`).FindAllStringSubmatch(text, -1) {
		families = append(families, f[1])
	}
	if !slices.IsSorted(families) || len(slices.Compact(slices.Clone(families))) != len(families) {
		t.Errorf("metrics are not in one block each: %q", families)
	}
	if kind, _ := ask("application/json"); kind != metrics.TextType {
		t.Errorf("a client that prefers JSON gets %s", kind)
	}
	if code, _, _ := get(t, r.base+"/_sluice/metrics/x", ""); code != http.StatusNotFound {
		t.Errorf("a page below that of the metrics: status %d", code)
	}
	if err := r.finish(t); err != nil {
		t.Error(err)
	}
}
