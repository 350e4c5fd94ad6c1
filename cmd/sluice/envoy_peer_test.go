package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const peerLimits = `
domain: rl
descriptors:
  - key: category
    value: account
    rate_limit: {replaces: [{name: one}, {name: two}], unit: year, requests_per_unit: 4}
  - key: source
    value: proxy
    descriptors:
      - {key: destination, value: more, rate_limit: {replaces: [{name: banned}], unit: year, requests_per_unit: 2}}
      - {key: destination, value: other, rate_limit: {name: two, unit: year, requests_per_unit: 2}}
  - key: foo
    descriptors:
      - {key: bar, value: banned, rate_limit: {name: banned, unit: year, requests_per_unit: 0}}
      - {key: bar, value: one, rate_limit: {name: one, unit: year, requests_per_unit: 1}}
      - {key: baz, value: strict, rate_limit: {unit: year, requests_per_unit: 3}}
      - {key: baz, value: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: unspec, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: service, value: quota_1, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: service, value: quota_2, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: service, value: tokens, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
  - key: service
    value: several_1
    quota_mode: true
    rate_limit: {unit: year, requests_per_unit: 1}
    metadata: {quota: {name: several_1}}
  - key: service
    value: several_2
    quota_mode: true
    rate_limit: {unit: year, requests_per_unit: 2}
    metadata: {quota: {name: several_2}}
`

// Guarantees that the eight end-to-end scenarios of envoyproxy/ratelimit have their outcome behind a real Envoy, with
// the default settings and dynamic metadata: a simple request, a limit, shadow_mode, the statistics of a value, quotas,
// replaces, tokens that are reported when a request is over, and such tokens of several services.
func TestEnvoyPeerScenarios(t *testing.T) {
	envoyProgram(t)
	file := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(file, []byte(peerLimits), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServe(t, "--config", file, "--dynamic-metadata")
	_, port, err := net.SplitHostPort(s.conn.Target())
	if err != nil {
		t.Fatal(err)
	}
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Envoy writes into this header which service has quota, by the metadata of the answer.
		_, _ = io.WriteString(w, "from "+r.Header.Get("X-Quota"))
	}))
	t.Cleanup(upstream.Close)
	e := startEnvoyWith(t, "testdata/envoy/peer.yaml.tmpl", map[string]any{"Service": port,
		"Upstream": upstream.Listener.Addr().(*net.TCPAddr).Port})
	ask := func(path, headers, want string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, e.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for pair := range strings.FieldsSeq(headers) {
			name, value, _ := strings.Cut(pair, "=")
			req.Header.Set(name, value)
		}
		resp, err := e.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close() // it was read
		got := string(body)
		if resp.StatusCode != http.StatusOK {
			got = strconv.Itoa(resp.StatusCode)
		}
		if err != nil || !strings.HasPrefix(got, want) {
			t.Errorf("%s with %s: %q, %v; want %q", path, headers, got, err, want)
		}
	}
	hits := func(key string) int {
		_, _, text := get(t, s.debug+"/stats", "")
		m := regexp.MustCompile(`rate_limit\.rl\.` + key + `: (\d+)`).FindStringSubmatch(text)
		if m == nil {
			return 0
		}
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	reported := func(key string, want int) { // Envoy reports after it has answered
		t.Helper()
		waitWithin(t, "the report of "+key, func() error {
			if n := hits("service_" + key + `\.total_hits`); n != want {
				return fmt.Errorf("%d hits, want %d", n, want)
			}
			return nil
		})
	}
	const ok, denied = "from ", "429"
	ask("/headers", "foo=test baz=shadow", ok)
	for _, want := range []string{ok, ok, ok, denied, denied} {
		ask("/headers", "foo=pelle baz=strict", want)
	}
	for range 6 {
		ask("/headers", "foo=pelle baz=shadow", ok)
	}
	for _, want := range []string{ok, ok, denied} {
		ask("/headers", "unspec=value", want)
	}
	if n := hits(`unspec_value\.over_limit`); n != 1 {
		t.Errorf("over_limit of the value is %d, want 1", n)
	}
	for _, want := range []string{ok, ok, denied} {
		ask("/quota", "", want)
	}
	ask("/headers", "foo=a bar=banned", denied)
	ask("/headers", "foo=a bar=banned source=proxy destination=other", denied)
	for _, want := range []string{ok, ok, denied} {
		ask("/headers", "foo=a bar=banned source=proxy destination=more", want)
	}
	for _, want := range []string{ok, ok, ok, ok, denied} {
		ask("/headers", "foo=b bar=one source=proxy destination=other category=account", want)
	}
	for _, want := range []string{ok, denied} {
		ask("/headers", "foo=b bar=one", want)
	}
	for i, want := range []string{ok, ok, ok} {
		ask("/tokens", "", want)
		reported("tokens", i+1)
	}
	ask("/tokens", "", denied)
	for i := range 2 {
		ask("/several", "", "from several_1")
		reported("several_1", i+1)
	}
	for i := range 3 {
		ask("/several", "", "from several_2")
		reported("several_2", i+1)
	}
	ask("/several", "", denied)
}
