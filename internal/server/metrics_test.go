package server_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluicelimits/sluice/internal/server"
)

var (
	metricHead = regexp.MustCompile(`^# (?:HELP ([a-z_]+) \S.*|TYPE ([a-z_]+) (?:counter|gauge|histogram))$`)
	metricLine = regexp.MustCompile(`^([a-z_]+)((?:\{[a-z]+="(?:[^"\\\n]|\\.)*"(?:,[a-z]+="(?:[^"\\\n]|\\.)*")*\}` +
		`)?) (\S+)$`)
)

// readMetrics reads Prometheus's text format. It fails the test unless every metric has a HELP and a TYPE before it, no
// sample is repeated, and every value is a number.
func readMetrics(t *testing.T, text string) map[string]float64 {
	t.Helper()
	families, samples := map[string]bool{}, map[string]float64{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if head := metricHead.FindStringSubmatch(line); head != nil {
			if head[1] != "" && families[head[1]] {
				t.Errorf("the metric %s has two descriptions, want one", head[1])
			}
			families[head[1]+head[2]] = true
			continue
		}
		sample := metricLine.FindStringSubmatch(line)
		if sample == nil {
			t.Fatalf("this line is not of Prometheus's text format: %q", line)
		}
		base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(sample[1], "")
		if !families[sample[1]] && !families[base] {
			t.Errorf("%s has no TYPE", sample[1])
		}
		value, err := strconv.ParseFloat(sample[3], 64)
		if err != nil {
			t.Error(err)
		}
		if _, twice := samples[sample[1]+sample[2]]; twice {
			t.Errorf("the sample %s%s is written twice, want once", sample[1], sample[2])
		}
		samples[sample[1]+sample[2]] = value
	}
	return samples
}

// Guarantees that /metrics is in Prometheus's format, whatever clients send, and that it counts requests by method and
// code.
func TestMetrics(t *testing.T) {
	r := start(t, server.Config{RateLimits: service(t, nil)})
	client := rlsv3.NewRateLimitServiceClient(r.dial(t, insecure.NewCredentials()))
	for range 3 {
		if _, err := client.ShouldRateLimit(t.Context(), request("x"), grpc.WaitForReady(true)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{}); err == nil {
		t.Error("an empty request returns no error, want one")
	}
	r.http(t, "HTTP", "POST", "/json",
		`{"domain": "d", "descriptors": [{"entries": [{"key": "a", "value": "\"\\\n{}"}], "limit": {"unit": "DAY", `+
			`"requestsPerUnit": 1}}]}`)
	r.http(t, "HTTP", "POST", "/json",
		`{"domain": "d", "descriptors": [{"entries": [{"key": "a", "value": "x"}]}]}`)
	r.http(t, "HTTP", "GET", "/nowhere", "")
	code, text := r.http(t, "debug", "GET", "/metrics", "")
	if code != 200 {
		t.Fatalf("status %d", code)
	}
	got := readMetrics(t, text)
	const method = `/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`
	for name, want := range map[string]float64{
		`sluice_request_seconds_count{method="` + method + `",code="OK"}`:            2,
		`sluice_request_seconds_count{method="` + method + `",code="OVER_LIMIT"}`:    1,
		`sluice_request_seconds_count{method="` + method + `",code="Unknown"}`:       1,
		`sluice_request_seconds_bucket{method="` + method + `",code="OK",le="+Inf"}`: 2,
		`sluice_request_seconds_count{method="POST /json",code="200"}`:               1,
		`sluice_request_seconds_count{method="POST /json",code="OVER_LIMIT"}`:        1,
		`sluice_request_seconds_count{method="other",code="404"}`:                    1,
		`sluice_rate_limit_errors_total{cause="request"}`:                            1,
		`sluice_hits_total{key="d.a",outcome="over_limit"}`:                          2,
		`sluice_hits_total{key="d.a_\"\\_{}",outcome="within_limit"}`:                1,
		`sluice_config_loads_total{result="success"}`:                                1,
	} {
		if n, ok := got[name]; !ok || n != want {
			t.Errorf("%s is %v, want %v", name, n, want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}
