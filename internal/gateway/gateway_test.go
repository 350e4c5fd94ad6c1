package gateway_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/cell/planfile"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/gateway"
	"github.com/sluicelimits/sluice/internal/limiter/inflight"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/logtest"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// evil is the id of a tenant which, if it were not encoded, would be read in a header as a list, as markup or as text
// that is not ASCII. (Plans files do not allow control characters in ids; TestEncode tests them.)
const evil = "a%0d%0aX-Evil: 1, \"b\"<script>é\u2028\U0001F600"

const plans = `
plans:
  - id: free
    limits:
      - { id: burst, algorithm: token_bucket, rate: 1, period: 1s, burst: 5 }
      - { id: put, match: { methods: [PUT] }, tiers: [ { period: 1s, threshold: 2 }, { period: 10s, threshold: 3 } ] }
      - { id: hidden, tiers: [ { period: 1s, threshold: 1 } ], mode: shadow }
tenants:
  - { id: acme, plan: free }
  - { id: initech, plan: free, suspended: true }
  - { id: %s, plan: free }
ipLimits:
  - { id: per-address, algorithm: token_bucket, rate: 50, period: 1s, burst: 100 }
keys:
`

func plansText(extra string) []byte {
	text := fmt.Sprintf(plans, strconv.QuoteToASCII(evil))
	for i, tenant := range []string{"acme", "initech", evil} {
		text += fmt.Sprintf("  - { id: k%d, tenant: %s, subject: ci, hash: %s, pepper: dev }\n", i,
			strconv.QuoteToASCII(tenant),
			identity.HashKey(identity.DevPepper(), identity.ExampleKey(tenant)))
	}
	return []byte(text + extra)
}

// clock is a clock that a test sets.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

type fixture struct {
	*gateway.Gateway
	*clock
	logs       *logtest.Buffer
	log        *slog.Logger
	authorizer *authorizer.Authorizer
}

func newFixture(t testing.TB, text []byte, change func(*gateway.Config)) *fixture {
	t.Helper()
	f := &fixture{clock: &clock{t: noon}, logs: new(logtest.Buffer)}
	f.log = slog.New(slog.NewTextHandler(f.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	p, err := planfile.Open(planfile.Config{Source: configyaml.Source("test.yaml", text),
		Peppers: map[string][]byte{"dev": identity.DevPepper()}, Log: f.log})
	if err != nil {
		t.Fatal(err)
	}
	store := memorytest.New(t)
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the page") })
	c := gateway.Config{Log: f.log, LivePage: page, MaxBody: 10 << 20,
		Places: &inflight.Keeper{Store: store, Now: f.now, Log: f.log}}
	if change != nil {
		change(&c)
	}
	c.Authorizer, err = authorizer.New(authorizer.Config{Source: authorizer.Current(p.Current), Store: store,
		Now: f.now, Log: f.log, TrustedHops: c.TrustedHops})
	if err != nil {
		t.Fatal(err)
	}
	f.authorizer = c.Authorizer
	if f.Gateway, err = gateway.New(c); err != nil {
		t.Fatal(err)
	}
	return f
}

// serve starts a real server for the gateway.
func (f *fixture) serve(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := gateway.NewServer(f.Gateway, f.log)
	go func() { _ = s.Serve(ln) }() // until Close
	t.Cleanup(func() { _ = s.Close() })
	return "http://" + ln.Addr().String()
}

type reply struct {
	*http.Response
	text string
	body struct {
		Type, Title, Detail, Instance string
		Status                        int
		Violated                      []string `json:"violated-policies"`
		RetryAfterMs                  *int64   `json:"retry-after-ms"`
		Tenant                        string
		BodyBytes                     int64
		Headers                       http.Header
	}
}

// do sends a request. The header arguments are name, value, name, value and so on.
func do(t *testing.T, method, target string, body io.Reader, header ...string) reply {
	t.Helper()
	req, err := http.NewRequest(method, target, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header[header[i]] = append(req.Header[header[i]], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	r := reply{Response: resp, text: string(text)}
	if strings.Contains(resp.Header.Get("Content-Type"), "json") {
		if err := json.Unmarshal(text, &r.body); err != nil {
			t.Fatalf("%s %s: %v in %s", method, target, err, text)
		}
	}
	return r
}

func key(tenant string) string { return identity.ExampleKey(tenant) }

// want checks the status. For an answer of the gateway itself, it also checks that the body is a problem and that the
// headers are well-formed and exposed to scripts.
func (r reply) want(t *testing.T, status int) reply {
	t.Helper()
	if r.StatusCode != status {
		t.Fatalf("status %d, want %d: %s", r.StatusCode, status, r.text)
	}
	if !strings.Contains(r.Header.Get("Access-Control-Expose-Headers"), "RateLimit-Policy") {
		t.Errorf("status %d: headers are not exposed to scripts: %v", status, r.Header)
	}
	for _, name := range []string{"RateLimit", "RateLimit-Policy"} {
		if v := r.Header.Values(name); len(v) > 0 {
			if list, err := httpsfv.UnmarshalList(v); err != nil || len(list) == 0 {
				t.Errorf("header %s: %q is not a structured list: %v", name, v, err)
			}
		}
	}
	if status >= 400 {
		if r.Header.Get("Content-Type") != "application/problem+json" || r.body.Status != status ||
			r.body.Type == "" || r.body.Instance == "" {
			t.Errorf("the body of status %d is not a problem: %v %s", status, r.Header, r.text)
		}
	}
	return r
}

// Guarantees what the README promises a new user: 200s with correct headers, then a 429 with correct times.
func TestAllowedThenLimited(t *testing.T) {
	f := newFixture(t, plansText(""), nil)
	base := f.serve(t)
	for left := 4; left >= 0; left-- {
		r := do(t, "GET", base+"/product/1", nil, "X-Api-Key", key("acme")).want(t, 200)
		if got := r.Header.Get("X-RateLimit-Limit") + " " + r.Header.Get("X-RateLimit-Remaining") + " " +
			r.Header.Get("X-RateLimit-Reset"); got != fmt.Sprintf("5 %d %d", left, 5-left) {
			t.Errorf("limit, remaining and reset are %s, want 5 %d %d", got, left, 5-left)
		}
		if strings.Contains(fmt.Sprint(r.Header), "hidden") {
			t.Errorf("the headers mention a shadow limit: %v", r.Header)
		}
	}
	f.add(250 * time.Millisecond)
	r := do(t, "GET", base+"/product/1", nil, "X-Api-Key", key("acme")).want(t, 429)
	if r.Header.Get("Retry-After") != "1" || *r.body.RetryAfterMs != 750 ||
		!slices.Equal(r.body.Violated, []string{"burst"}) || r.Header.Get("X-RateLimit-Remaining") != "0" {
		t.Errorf("the 429 has Retry-After %q, body %s", r.Header.Get("Retry-After"), r.text)
	}
	f.add(720 * time.Millisecond)
	do(t, "GET", base+"/product/1", nil, "X-Api-Key", key("acme")).want(t, 429)
	f.add(30 * time.Millisecond)
	do(t, "GET", base+"/product/1", nil, "X-Api-Key", key("acme")).want(t, 200)
}

// Guarantees the status, the problem type and the headers of each answer of the gateway itself.
func TestAnswers(t *testing.T) {
	routes := "routes: [ { pathPattern: \"/product/*\" } ]\n"
	for _, c := range []struct {
		name, extra, path string
		header            []string
		status            int
		typ               string
		auth              string
	}{
		{"no credential", "", "/", nil, 401, "#no-credential", `Bearer realm="sluice"`},
		{"bad credential", "", "/", []string{"X-Api-Key", "nonsense"}, 401, "#bad-credential",
			`Bearer realm="sluice", error="invalid_token"`},
		{"bad credential under an anonymous plan", "anonymousPlan: free\n", "/", []string{"X-Api-Key", "nonsense"},
			401, "#bad-credential", `Bearer realm="sluice", error="invalid_token"`},
		{"anonymous", "anonymousPlan: free\n", "/", nil, 200, "", ""},
		{"suspended", "", "/", []string{"X-Api-Key", key("initech")}, 403, "#tenant-suspended", ""},
		{"no route", routes, "/nowhere", []string{"X-Api-Key", key("acme")}, 404, "#no-route", ""},
		{"route", routes, "/product/1", []string{"X-Api-Key", key("acme")}, 200, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			base := newFixture(t, plansText(c.extra), nil).serve(t)
			r := do(t, "GET", base+c.path, nil, c.header...).want(t, c.status)
			if !strings.HasSuffix(r.body.Type, c.typ) || r.Header.Get("WWW-Authenticate") != c.auth {
				t.Errorf("type %q, WWW-Authenticate %q; want …%s, %q", r.body.Type, r.Header.Get("WWW-Authenticate"),
					c.typ, c.auth)
			}
			// every request is charged to the ipLimit, so even these answers have its headers
			if r.Header.Get("RateLimit") == "" {
				t.Errorf("no RateLimit header on a %d", c.status)
			}
		})
	}
}

// Guarantees that an upstream can rely on the X-Sluice headers: those that a client sends are removed, a tenant's id
// cannot add a header, the credential is not passed on, and a client cannot ask for another protocol, over which
// further requests would pass uncounted.
func TestUpstreamSeesOnlyOurWord(t *testing.T) {
	var seen http.Header
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header.Clone()
		w.Header().Set("X-RateLimit-Limit", "999")
		w.Header().Set("RateLimit", "not even a list")
		w.Header().Set("Access-Control-Expose-Headers", "ETag")
		w.WriteHeader(http.StatusEarlyHints) // an interim answer, after which the gateway must still set its headers
		w.WriteHeader(http.StatusTeapot)
	}))
	defer upstream.Close()
	u, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	base := newFixture(t, plansText(""), func(c *gateway.Config) { c.Upstreams = to(u) }).serve(t)
	r := do(t, "GET", base+"/x", nil, "X-Api-Key", key(evil), "X-Sluice-Tenant", "root", "x_sluice_tenant", "root",
		"X-Sluice-Whatever", "1",
		"X-Ratelimit-Limit", "1", "Ratelimit-Policy", "1", "X-Forwarded-For", "1.2.3.4", "Connection",
		"X-Sluice-Tenant, Upgrade", "X-Own", "kept", "Upgrade", "h2c", "X-Original-Url", "/y",
		"X-Rewrite-Url", "/y", "Http2-Settings", "AAMAAABk")
	if r.StatusCode != http.StatusTeapot || r.Header.Get("X-RateLimit-Limit") != "5" ||
		!strings.HasPrefix(r.Header.Get("RateLimit"), `"burst"`) ||
		len(r.Header.Values("RateLimit")) != 1 || !slices.Contains(r.Header.Values("Access-Control-Expose-Headers"),
		"ETag") {
		t.Errorf("status %d, headers %v; want the headers of the decision", r.StatusCode, r.Header)
	}
	for name := range seen {
		switch {
		case name == "X-Sluice-Tenant" || name == "X-Sluice-Subject" || name == "X-Sluice-Plan" ||
			name == "X-Sluice-Key-Id":
		case strings.Contains(strings.ToLower(name), "sluice"), strings.Contains(strings.ToLower(name), "ratelimit"),
			name == "X-Evil", name == "X-Api-Key", name == "Upgrade", name == "Http2-Settings",
			name == "X-Original-Url", name == "X-Rewrite-Url":
			t.Errorf("the upstream saw %s: %q", name, seen[name])
		}
	}
	back, err := url.PathUnescape(seen.Get("X-Sluice-Tenant"))
	if err != nil || back != evil || len(seen["X-Sluice-Tenant"]) != 1 {
		t.Errorf("tenant header %q decodes to %q, %v; want %q", seen["X-Sluice-Tenant"], back, err, evil)
	}
	if seen.Get("X-Forwarded-For") != "127.0.0.1" || seen.Get("X-Own") != "kept" {
		t.Errorf("the upstream got X-Forwarded-For %q and X-Own %q", seen.Get("X-Forwarded-For"), seen.Get("X-Own"))
	}
}

// Guarantees that a request is answered with 502 if the upstream cannot be reached, and that this answer still has the
// headers of the decision.
func TestUpstreamDown(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &url.URL{Scheme: "http", Host: ln.Addr().String()}
	ln.Close() // now nobody listens at its address
	base := newFixture(t, plansText(""), func(c *gateway.Config) { c.Upstreams = to(u) }).serve(t)
	r := do(t, "GET", base+"/x", nil, "X-Api-Key", key("acme")).want(t, 502)
	if r.Header.Get("X-RateLimit-Remaining") != "4" {
		t.Errorf("the 502 of an allowed request has headers %v", r.Header)
	}
}

// Guarantees that a body above 10 MiB gets 413, whether or not its length is declared.
func TestBodyBound(t *testing.T) {
	body := strings.Repeat("x", 10<<20+1)
	for name, u := range map[string]*url.URL{"echo": nil, "upstream": upstreamThatReads(t)} {
		base := newFixture(t, plansText(""), func(c *gateway.Config) { c.Upstreams = to(u) }).serve(t)
		do(t, "POST", base+"/x", strings.NewReader(body[1:]), "X-Api-Key", key("acme")).want(t, 200)
		do(t, "POST", base+"/x", strings.NewReader(body), "X-Api-Key", key("acme")).want(t, 413)
		chunked := io.MultiReader(strings.NewReader(body)) // without a declared length
		if r := do(t, "POST", base+"/x", chunked, "X-Api-Key", key("acme")); r.StatusCode != 413 {
			t.Errorf("%s: chunked body beyond the bound: %d, want 413: %s", name, r.StatusCode, r.text)
		}
	}
}

// to returns the upstreams of a gateway with one upstream for all requests, or none without a URL.
func to(u *url.URL) []gateway.Upstream {
	if u == nil {
		return nil
	}
	return []gateway.Upstream{{URL: u}}
}

func upstreamThatReads(t *testing.T) *url.URL {
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_,
			_ = io.Copy(io.Discard, r.Body)
	}))
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// Guarantees that the live page, which shows the tenants and their requests, is served only to the configured audience.
func TestLivePageAudience(t *testing.T) {
	for _, c := range []struct {
		name     string
		audience gateway.Audience
		peer     string
		host     string
		header   http.Header
		want     int
	}{
		{"this machine", gateway.Loopback, "127.0.0.1:5", "localhost:8080", nil, 200},
		{"this machine, IPv6", gateway.Loopback, "[::1]:5", "[::1]:8080", nil, 200},
		{"another machine", gateway.Loopback, "198.51.100.9:5", "localhost:8080", nil, 403},
		{"another machine behind a proxy on this one", gateway.Loopback, "127.0.0.1:5", "localhost",
			http.Header{"X-Forwarded-For": {"198.51.100.9"}}, 403},
		{"another machine behind a proxy that tells its address", gateway.Loopback, "127.0.0.1:5", "localhost",
			http.Header{"X-Real-Ip": {"198.51.100.9"}}, 403},
		{"a name that was pointed at this machine", gateway.Loopback, "127.0.0.1:5", "evil.example:8080", nil, 403},
		{"all", gateway.All, "198.51.100.9:5", "api.example", nil, 200},
		{"off", gateway.Off, "127.0.0.1:5", "localhost", nil, 404},
	} {
		f := newFixture(t, plansText(""), func(g *gateway.Config) { g.Audience = c.audience })
		for _, path := range []string{"/_sluice/", "/_sluice/data.json"} {
			r := httptest.NewRequest("GET", path, nil)
			r.RemoteAddr, r.Host = c.peer, c.host
			if c.header != nil {
				r.Header = c.header
			}
			w := httptest.NewRecorder()
			f.ServeHTTP(w, r)
			if w.Code != c.want {
				t.Errorf("%s: GET %s = %d, want %d", c.name, path, w.Code, c.want)
			}
		}
		w := httptest.NewRecorder()
		f.ServeHTTP(w, httptest.NewRequest("GET", "/_sluice/healthz", nil))
		if w.Code != 200 {
			t.Errorf("%s: healthz = %d, want 200", c.name, w.Code)
		}
	}
	// The links of the page are relative, so they need the slash.
	f := newFixture(t, plansText(""), func(g *gateway.Config) { g.Audience = gateway.All })
	w := httptest.NewRecorder()
	f.ServeHTTP(w, httptest.NewRequest("GET", "/_sluice", nil))
	if at := w.Header().Get("Location"); w.Code != http.StatusMovedPermanently || at != "/_sluice/" {
		t.Errorf("GET /_sluice = %d to %q, want 301 to /_sluice/", w.Code, at)
	}
}

// Guarantees that a panic ends one request but not the gateway, and that the answer reveals nothing about it.
func TestPanicIsCaught(t *testing.T) {
	f := newFixture(t, plansText(""), func(c *gateway.Config) {
		c.LivePage = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("secret detail") })
	})
	base := f.serve(t)
	r := do(t, "GET", base+"/_sluice/", nil).want(t, 500)
	if strings.Contains(r.text, "secret") || f.Panics() != 1 || !strings.Contains(f.logs.String(), r.body.Instance) {
		t.Errorf("after a panic: body %s, %d panics counted, log %s", r.text, f.Panics(), f.logs)
	}
	do(t, "GET", base+"/x", nil, "X-Api-Key", key("acme")).want(t, 200)
}

// Guarantees that no log line holds the address of a caller or a key, whichever error occurs.
func TestLogsHoldNoAddressAndNoKey(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() { // an upstream that closes every connection
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	f := newFixture(t, plansText(""), func(c *gateway.Config) {
		c.Upstreams, c.TrustedHops = to(&url.URL{Scheme: "http", Host: ln.Addr().String()}), 1
		c.LivePage, c.Audience = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("x") }), gateway.All
	})
	base := f.serve(t)
	strange := identity.NewKey()
	for range 8 {
		for _, k := range []string{key("acme"), key("initech"), strange, "garbage"} {
			for _, from := range []string{"203.0.113.7", "2001:db8:aa::1", "[2001:db8:bb::1]:80", "nonsense"} {
				do(t, "GET", base+"/product/1", nil, "X-Api-Key", k, "X-Forwarded-For", from)
				do(t, "GET", base+"/product/1", nil, "Authorization", "Bearer "+k, "X-Forwarded-For", from)
			}
		}
	}
	do(t, "GET", base+"/_sluice/", nil)
	conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "GARBAGE\r\n\r\n")
	_, _ = bufio.NewReader(conn).ReadString('\n')
	conn.Close()
	gateway.NewServer(f.Gateway, f.log).ErrorLog.Printf("http: TLS handshake error from 203.0.113.7:1234 and " +
		"[2001:db8:aa::1]:5: EOF")

	text := f.logs.String()
	if !strings.Contains(text, "denied") || !strings.Contains(text, "the upstream did not answer: start the service "+
		"of --upstream, or correct its URL") ||
		!strings.Contains(text, "panic") || !strings.Contains(text, "TLS handshake") {
		t.Fatalf("the log lacks an expected line: %s", text)
	}
	for _, secret := range []string{"203.0.113.7", "2001:db8:", "127.0.0.1", strange, "slk_", key("acme")} {
		if i := strings.Index(text, secret); i >= 0 {
			t.Errorf("the log holds %q: …%s…", secret, text[max(0, i-200):min(len(text), i+100)])
		}
	}
}

// Guarantees that limits are exact over real connections: of concurrent requests of one tenant, exactly as many are
// admitted as its limit allows.
func TestConcurrentRequests(t *testing.T) {
	f := newFixture(t, plansText(""), nil)
	base := f.serve(t)
	var mu sync.Mutex
	codes := map[int]int{}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 5 {
				r := do(t, "GET", base+"/product/1", nil, "X-Api-Key", key("acme"))
				mu.Lock()
				codes[r.StatusCode]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if codes[200] != 5 || codes[429] != 75 {
		t.Errorf("statuses %v, want 5 × 200 and 75 × 429", codes)
	}
}

// FuzzRequest checks that whatever net/http reads as a request gets an answer: no panic, a valid status, valid headers.
func FuzzRequest(f *testing.F) {
	f.Add([]byte("GET /product/1 HTTP/1.1\r\nHost: x\r\nX-Api-Key: k\r\n\r\n"))
	f.Add([]byte("GET /%2e%2e//a%00 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer\r\nX-Forwarded-For: ,,\r\n\r\n"))
	f.Add([]byte("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"))
	f.Add([]byte("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n"))
	f.Add([]byte("POST http://other/_sluice/ HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"))
	f.Add([]byte("GET /_sluice/../x HTTP/1.0\r\n\r\n"))
	fix := newFixture(f, plansText("anonymousPlan: free\n"), func(c *gateway.Config) { c.TrustedHops = 1 })
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
		if err != nil {
			return
		}
		r.RemoteAddr = "198.51.100.9:1"
		w := httptest.NewRecorder()
		fix.ServeHTTP(w, r)
		if w.Code < 200 || fix.Panics() > 0 {
			t.Fatalf("%q: status %d, %d panics: %s", raw, w.Code, fix.Panics(), fix.logs)
		}
		for name, values := range w.Header() {
			for _, v := range values {
				if strings.ContainsAny(v, "\r\n\x00") {
					t.Fatalf("%q: header %s is %q", raw, name, v)
				}
			}
		}
	})
}

// Guarantees that a request keeps its place until the upstream has answered it, and no longer.
func TestPlaces(t *testing.T) {
	entered, leave := make(chan bool), make(chan bool)
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		entered <- true
		<-leave
	}))
	t.Cleanup(upstream.Close)
	at, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(plansText("")), "limits:\n",
		"limits:\n      - { id: in-flight, concurrency: 1, holdFor: 30s }\n", 1)
	f := newFixture(t, []byte(text), func(c *gateway.Config) { c.Upstreams = to(at) })
	send := func() int {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/product/1", http.NoBody)
		r.Header.Set("X-Api-Key", identity.ExampleKey("acme"))
		f.ServeHTTP(w, r)
		return w.Code
	}
	for range 3 {
		first := make(chan int)
		go func() { first <- send() }()
		<-entered
		if code := send(); code != http.StatusTooManyRequests {
			t.Errorf("a second request is answered with %d", code)
		}
		leave <- true
		if code := <-first; code != http.StatusOK {
			t.Errorf("the first request is answered with %d", code)
		}
	}
}
