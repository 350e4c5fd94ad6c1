package main

import (
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

// startProxy runs the command on free ports, and waits until it is ready.
func startProxy(t *testing.T, args ...string) *serving {
	t.Helper()
	s := launch(t, append([]string{"proxy", "--listen", "127.0.0.1:0"}, args...)...)
	s.proxy = "http://" + s.address("proxy")
	untilReady(s.debug)
	return s
}

// proxyPlans writes plans with 3 requests a year for each tenant and returns the file.
func proxyPlans(t *testing.T, threshold int) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "plans.yaml")
	write(t, file, fmt.Sprintf("plans: [ { id: p, limits: [ { id: l, algorithm: fixed_window, threshold: %d, "+
		"period: 8784h } ] } ]\ntenants: [ { id: acme, plan: p }, { id: globex, plan: p } ]\n"+
		"keys: [ { id: k1, tenant: acme, hash: %s, pepper: dev } ]\n", threshold,
		identity.HashKey(identity.DevPepper(), identity.ExampleKey("acme"))))
	return file
}

// named starts a service that answers with its name.
func named(t *testing.T, name string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, name+" for "+r.Header.Get("X-Sluice-Tenant"))
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// Guarantees what docs/proxy.md shows: JWTs of an issuer and API keys say who calls, each tenant has its limit,
// requests get to the upstream of their path, the log says why a credential is refused and never what it was, the
// metrics count decisions, and services of the operator can ask /v1.
func TestProxy(t *testing.T) {
	signer := tokentest.NewEC("k1", elliptic.P256())
	keys := httptest.NewServer(tokentest.Publishing(signer))
	t.Cleanup(keys.Close)
	issuers := filepath.Join(t.TempDir(), "issuers.json")
	write(t, issuers, fmt.Sprintf(`[{"issuer":%q,"audiences":[%q],"jwksUrl":%q,"allTenants":true}]`, tokentest.Issuer,
		tokentest.Audience, keys.URL))
	s := startProxy(t, "--plans", proxyPlans(t, 3), "--issuers", issuers, "--http", "127.0.0.1:0", "--upstream",
		named(t, "all"), "--upstream", "/product="+named(t, "products"))
	now := time.Now()
	token := func(pairs ...any) []string {
		return []string{"Authorization", "Bearer " + signer.Sign(tokentest.Claims(now, tokentest.With(pairs...)))}
	}
	key := []string{"X-API-Key", identity.ExampleKey("acme")}
	for i, c := range []struct {
		sends  []string
		status int
		says   string
	}{
		{token("tenant_id", "globex"), 200, "products for globex"},
		{key, 200, "products for acme"},
		{token(), 200, "products for acme"},
		{nil, 401, "no-credential"},
		{token("exp", now.Add(-time.Hour).Unix()), 401, "bad-credential"},
		{token("aud", "another"), 401, "bad-credential"},
		{[]string{"X-API-Key", identity.NewKey()}, 401, "bad-credential"},
		{key, 200, "products for acme"},
		{key, 429, "quota-exceeded"},
		{token("tenant_id", "globex"), 200, "products for globex"},
	} {
		if status, body := getWith(t, s.proxy, c.sends); status != c.status || !strings.Contains(body, c.says) {
			t.Errorf("call %d: %d %s, want %d and %q", i+1, status, body, c.status, c.says)
		}
	}
	log := s.stderr.String()
	for _, reason := range []string{"token_expired", "token_audience", "key_unknown"} {
		if !strings.Contains(log, "reason="+reason) {
			t.Errorf("the log does not say %s:\n%s", reason, log)
		}
	}
	if strings.Contains(log, "eyJ") || strings.Contains(log, "slk_") {
		t.Errorf("the log has a credential:\n%s", log)
	}
	_, _, metrics := get(t, s.debug+"/metrics", "")
	for reason, n := range map[string]int{"allowed": 5, "limited": 1, "bad_credential": 3} {
		line := fmt.Sprintf("sluice_decision_seconds_count{reason=%q} %d", reason, n)
		if !strings.Contains(metrics, line) {
			t.Errorf("the metrics lack %s:\n%s", line, metrics)
		}
	}
	resp, err := http.Post("http://"+s.address("HTTP")+"/v1/check", "application/json",
		strings.NewReader(`{"call": {"tenant": "globex"}}`))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close() // it was read
	if err != nil || !strings.Contains(string(text), `"allowed":true`) {
		t.Errorf("/v1/check: %s, %v", text, err)
	}
}

// Guarantees that with --trusted-hops the ipLimits count the address that the operator's proxy names, and without it
// that of the connection.
func TestProxyTrustsHops(t *testing.T) {
	plans := filepath.Join(t.TempDir(), "plans.yaml")
	write(t, plans, "ipLimits: [ { id: once, algorithm: fixed_window, threshold: 1, period: 8784h } ]\n")
	for hops, want := range map[string]int{"0": http.StatusTooManyRequests, "1": http.StatusOK} {
		s := startProxy(t, "--plans", plans, "--trusted-hops", hops, "--upstream", named(t, "all"))
		for i, address := range []string{"203.0.113.1", "203.0.113.2"} {
			status, body := getWith(t, s.proxy, []string{"X-Forwarded-For", address})
			if i == 0 && status != http.StatusOK || i == 1 && status != want {
				t.Errorf("%s hops, address %d: %d %s, want 200, then %d", hops, i+1, status, body, want)
			}
		}
	}
}

// Guarantees that two proxies with one Redis hold a limit together, to the unit.
func TestProxiesShareRedis(t *testing.T) {
	redis := redistest.Start(t)
	file := filepath.Join(t.TempDir(), "proxy.yaml")
	write(t, file, fmt.Sprintf("redis: %q\nredisDeadline: 10s\nmaxInstances: 2\nplans: [%q]\nupstream:\n  /: %q\n",
		redis.Addr, proxyPlans(t, 100), named(t, "all")))
	both := []*serving{startProxy(t, "--config", file), startProxy(t, "--config", file, "--leases=false")}
	var admitted atomic.Int64
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for range 20 {
				status, body := getWith(t, both[i%2].proxy, []string{"X-API-Key", identity.ExampleKey("acme")})
				switch status {
				case http.StatusOK:
					admitted.Add(1)
				case http.StatusTooManyRequests:
				default:
					t.Errorf("status %d: %s", status, body)
				}
			}
		})
	}
	group.Wait()
	if n := admitted.Load(); n > 100 || n < 90 {
		t.Errorf("%d of 100 were admitted", n)
	}
}

// Guarantees that TLS is spoken with HTTP/2, that a renewed certificate is used without a restart, that the log and a
// metric tell of one that expires, and that a health check and the requests under way outlive the signal to stop.
func TestProxyTLS(t *testing.T) {
	entered, leave := make(chan bool), make(chan bool)
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		entered <- true
		<-leave
	}))
	t.Cleanup(upstream.Close)
	cert, key := certificateFiles(t)
	s := startProxy(t, "--tls-cert", cert, "--tls-key", key, "--plans", proxyPlans(t, 100), "--upstream", upstream.URL,
		"--drain", "100ms")
	s.waitFor(t, "has expired or soon will")
	_, _, metrics := get(t, s.debug+"/metrics", "")
	if !strings.Contains(metrics, "\nsluice_certificate_expiry_seconds ") {
		t.Errorf("no metric of the certificate:\n%s", metrics)
	}
	pem, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{RootCAs: roots}}}
	t.Cleanup(client.CloseIdleConnections)
	at := "https://" + s.address("proxy")
	r, err := http.NewRequest(http.MethodGet, at+"/x", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-API-Key", identity.ExampleKey("acme"))
	ended := make(chan error, 1)
	go func() {
		got, err := client.Do(r)
		if err == nil {
			_ = got.Body.Close()
			if got.StatusCode != http.StatusOK || got.ProtoMajor != 2 {
				err = fmt.Errorf("status %d by %s", got.StatusCode, got.Proto)
			}
		}
		ended <- err
	}()
	<-entered
	health := func() int {
		got, err := client.Get(at + "/_sluice/healthz")
		if err != nil {
			t.Fatal(err)
		}
		_ = got.Body.Close()
		return got.StatusCode
	}
	if code := health(); code != http.StatusOK {
		t.Errorf("the health check is answered with %d", code)
	}
	s.stop()
	s.waitFor(t, "stopping")
	if code := health(); code != http.StatusInternalServerError {
		t.Errorf("while it stops, the health check is answered with %d", code)
	}
	close(leave)
	if err := <-ended; err != nil {
		t.Errorf("the request under way ended with %v", err)
	}
	if err := <-s.done; err != nil {
		t.Errorf("the proxy ended with %v", err)
	}
}

// Guarantees that the proxy knows the plans, tenants and API keys of a cell's config table, with the peppers of
// --pepper.
func TestProxyConfigTable(t *testing.T) {
	endpoint := dynamodbtest.Need(t)
	documents, name, _ := configTableOf(t, endpoint, 1)
	pepper := []byte("a pepper of sixteen bytes or more")
	file := filepath.Join(t.TempDir(), "pepper")
	write(t, file, string(pepper))
	writeDocument(t, documents, 1, plan.KindKey, "k1", fmt.Sprintf(
		`{"hash":%q,"id":"k1","pepper":"p1","tenant":"acme"}`, identity.HashKey(pepper, identity.ExampleKey("acme"))))
	s := startProxy(t, "--config-table", name, "--dynamodb", endpoint, "--dynamodb-table", tableName(t),
		"--dynamodb-deadline", "10s", "--pepper", "p1="+file, "--upstream", named(t, "all"))
	for i, c := range []struct {
		key    string
		status int
	}{{identity.ExampleKey("acme"), 200}, {identity.ExampleKey("acme"), 429}, {identity.NewKey(), 401}} {
		if status, body := getWith(t, s.proxy, []string{"X-API-Key", c.key}); status != c.status {
			t.Errorf("call %d: %d %s, want %d", i+1, status, body, c.status)
		}
	}
}

// Guarantees that whatever is wrong in the file of --config is said with its place, all at once, and that a flag of the
// command line replaces that of the file.
func TestProxyConfig(t *testing.T) {
	dir := t.TempDir()
	file, plans := filepath.Join(dir, "proxy.yaml"), proxyPlans(t, 1)
	for _, c := range []struct {
		text string
		code int
		want []string
	}{
		{"plans: [a.yaml, {}]\n", 1, []string{":1:17: plans[1]: want a text or a number, got a mapping"}},
		{"", 1, []string{":1:1: the file is empty: it needs at least upstream and plans"}},
		{"upstreams: http://h\ntrustedHops: 99\nlisten: [a, {}]\nupstream: {/a: http://x, /a: http://y}\n" +
			"plans: null\nlogFormat: xml\nmaxBody: -1\n", 1, []string{
			`:1:1: unknown key "upstreams" in the file (did you mean "upstream"?)`,
			":2:14: trustedHops: want a number within 0..16", ":3:9: listen: want a text or a number, got a list",
			`:4:26: upstream: key "/a" is there twice`, ":5:8: plans: want a text or a number, got nothing",
			":6:12: logFormat: want text or json", ":7:10: maxBody: want a number of 0 or more"}},
		{"upstream: localhost:3000\n", 1, []string{":1:11: upstream: ", "such as http://localhost:3000"}},
		{"upstream: http://h\n", 2, []string{"sluice: --plans is missing"}},
		{"plans: x.yaml\n", 2, []string{"sluice: --upstream is missing"}},
		{"plans: " + plans + "\nupstream: http://h\nlisten: nonsense\n", 2, []string{
			`:3:9: --listen "nonsense" is not`}},
		{"plans: " + plans + "\nupstream: http://h\nredis: \"redis://u:secret@h\"\nredisUser: u\n", 2,
			[]string{":4:12: --redis-user and the URL of --redis both have a user"}},
		{"plans: " + plans + "\nupstream: {/a: http://h, /a/: http://g}\n", 1, []string{
			"two upstreams are for the same requests, /a"}},
		{"plans: " + plans + "\nupstream: http://h\nissuers: missing.json\n", 1, []string{
			":3:10: --issuers missing.json: there is no such file"}},
	} {
		write(t, file, c.text)
		got := sluice(t, "", "proxy", "--config", file)
		for _, want := range c.want {
			if got.code != c.code || !strings.Contains(got.stderr, want) || strings.Contains(got.stderr, "secret") {
				t.Errorf("%q: exit %d, want %d and %q:\n%s", c.text, got.code, c.code, want, got.stderr)
			}
		}
	}
	write(t, file, "plans: "+plans+"\nupstream: http://127.0.0.1:1\nlisten: nonsense\n")
	s := startProxy(t, "--config", file) // with --listen
	if status, _ := getWith(t, s.proxy, nil); status != http.StatusUnauthorized {
		t.Errorf("status %d", status)
	}
}
