package middleware_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/middleware"
)

const limits = `
plans: [ { id: p, limits: [ { id: burst, algorithm: token_bucket, rate: 1, period: 1h, burst: 5 } ] } ]
tenants: [ { id: acme, plan: p }, { id: initech, plan: p, suspended: true } ]
routes: [ { pathPattern: "/product/*" }, { pathPattern: "/stream" } ]
`

func newLimiter(t testing.TB, text string) *sluice.Limiter {
	t.Helper()
	var keys strings.Builder
	for _, tenant := range []string{"acme", "initech"} {
		keys.WriteString("  - { id: k-" + tenant + ", tenant: " + tenant + ", subject: ci, pepper: dev, hash: " +
			identity.HashKey(identity.DevPepper(), identity.ExampleKey(tenant)) + " }\n")
	}
	l, err := sluice.New(sluice.Config{PlansData: []byte(text + "keys:\n" + keys.String()),
		Peppers: map[string][]byte{"dev": identity.DevPepper()},
		Log:     slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}

func serve(t testing.TB, h http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(io.Discard, nil), slog.LevelError)
	s.Start()
	t.Cleanup(s.Close)
	return s
}

func request(t testing.TB, method, target string, header ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, target, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header[header[i]] = append(r.Header[header[i]], header[i+1])
	}
	return r
}

// answered is an answer whose body was read.
type answered struct {
	StatusCode int
	Status     string
	Header     http.Header
}

// do sends a request and reads the whole answer.
func do(t testing.TB, r *http.Request) (answered, string) {
	t.Helper()
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answered{resp.StatusCode, resp.Status, resp.Header}, string(body)
}

func key(tenant string) []string { return []string{"X-Api-Key", identity.ExampleKey(tenant)} }

var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })

// Guarantees that headers and body of the answer in each case are those of the local gateway and the deployed
// authorizer.
func TestLimitAnswers(t *testing.T) {
	url := serve(t, middleware.Limit(newLimiter(t, limits))(ok)).URL
	for range 5 {
		if resp, body := do(t, request(t, "GET", url+"/product/1", key("acme")...)); resp.StatusCode != 200 ||
			body != "ok" || resp.Header.Get("X-Ratelimit-Limit") != "5" {
			t.Fatalf("%s %s %v", resp.Status, body, resp.Header)
		}
	}
	for _, c := range []struct {
		name, path string
		header     []string
		status     int
		typ        string // part of the problem's type
		challenge  string
	}{
		{"limited", "/product/1", key("acme"), 429, "quota-exceeded", ""},
		{"no credential", "/product/1", nil, 401, "no-credential", `Bearer realm="sluice"`},
		{"bad credential", "/product/1", []string{"X-Api-Key", "slk_x"}, 401, "bad-credential",
			`error="invalid_token"`},
		{"two keys", "/product/1", append(key("acme"), key("acme")...), 401, "bad-credential", "Bearer"},
		{"suspended", "/product/1", key("initech"), 403, "tenant-suspended", ""},
		{"no route", "/other", key("acme"), 404, "no-route", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, method := range []string{"GET", "HEAD", "OPTIONS", "POST"} {
				resp, body := do(t, request(t, method, url+c.path, c.header...))
				h := resp.Header
				if resp.StatusCode != c.status || h.Get("Content-Type") != "application/problem+json" ||
					h.Get("Cache-Control") != "no-store" ||
					!strings.Contains(h.Get("WWW-Authenticate"), c.challenge) ||
					!strings.Contains(h.Get("Access-Control-Expose-Headers"), "Retry-After") {
					t.Errorf("%s: %s %v", method, resp.Status, h)
				}
				if (h.Get("Retry-After") != "") != (c.status == 429) {
					t.Errorf("%s: Retry-After is %q", method, h.Get("Retry-After"))
				}
				if method == "HEAD" {
					if body != "" {
						t.Errorf("HEAD has a body: %s", body)
					}
					continue
				}
				var p struct {
					Type, Title, Instance string
					Status                int
				}
				if err := json.Unmarshal([]byte(body), &p); err != nil || p.Status != c.status ||
					!strings.Contains(p.Type, c.typ) || p.Title == "" || p.Instance == "" {
					t.Errorf("%s: %s, %v", method, body, err)
				}
			}
		})
	}
}

// Guarantees that a limit is exact over HTTP with 64 concurrent clients.
func TestLimitIsExact(t *testing.T) {
	text := strings.Replace(limits, "burst: 5", "burst: 100", 1)
	url := serve(t, middleware.Limit(newLimiter(t, text))(ok)).URL
	var allowed atomic.Int64
	var running sync.WaitGroup
	for range 64 {
		running.Go(func() {
			for range 5 {
				if resp, _ := do(t, request(t, "GET", url+"/product/1", key("acme")...)); resp.StatusCode == 200 {
					allowed.Add(1)
				}
			}
		})
	}
	running.Wait()
	if n := allowed.Load(); n != 100 {
		t.Errorf("%d of 320 allowed, want exactly 100", n)
	}
}

// Guarantees that headers by which a client pretends to be a caller never reach the handler, in any spelling, also if a
// Connection header names ours; that handlers in front of the middleware still see the client's headers; and that names
// cannot add a header line.
func TestForgedHeaders(t *testing.T) {
	const evil = "evil\r\nX-Admin: 1"
	var seen, behindProxy http.Header
	var who middleware.Caller
	inner := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { behindProxy = r.Header.Clone() }))
	target, err := url.Parse(inner.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header.Clone()
		who, _ = middleware.FromContext(r.Context())
		proxy.ServeHTTP(w, r)
	})
	limit := middleware.Limit(newLimiter(t, limits),
		middleware.WithIdentity(func(*http.Request) (sluice.Identity, error) {
			return sluice.Identity{Tenant: evil, Subject: "é", Plan: "p"}, nil
		}))(next)
	outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limit.ServeHTTP(w, r)
		if r.Header.Get("X-Sluice-Tenant") != "acme" {
			t.Errorf("the request of the handler in front was changed: %v", r.Header)
		}
	})
	resp, _ := do(t, request(t, "GET", serve(t, outer).URL+"/product/1", "X-Sluice-Tenant", "acme", "x_sluice_tenant",
		"acme", "X-Sluice-Anonymous", "true",
		"X-Sluice-Caller", "d=allowed;t=acme", "X-Ratelimit-Remaining", "99", "X-Own", "kept", "Connection",
		"X-Sluice-Tenant"))
	if resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	for _, h := range []http.Header{seen, behindProxy} {
		for name, values := range h {
			lower := strings.ReplaceAll(strings.ToLower(name), "_", "-")
			ours := strings.HasPrefix(lower, "x-sluice-") || strings.HasPrefix(lower, "x-ratelimit") ||
				lower == "x-admin"
			if ours && (name != "X-Sluice-Tenant" || values[0] != "evil%0D%0AX-Admin%3A%201") &&
				(name != "X-Sluice-Subject" || values[0] != "%C3%A9") &&
				(name != "X-Sluice-Plan" || values[0] != "p") || ours && len(values) != 1 {
				t.Errorf("the handler sees %s: %q", name, values)
			}
		}
		if h.Get("X-Sluice-Tenant") == "" || h.Get("X-Own") != "kept" {
			t.Errorf("the handler sees %v", h)
		}
	}
	if who.Tenant != evil || who.Plan != "p" {
		t.Errorf("caller %+v", who)
	}
}

// Guarantees that the limiter's headers replace those of the handler, or of its backend, with the same names, and that
// interim responses have none.
func TestHeadersHaveTheLastWord(t *testing.T) {
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Link", "</a.css>; rel=preload")
		h.Del("X-RateLimit-Limit")
		w.WriteHeader(http.StatusEarlyHints)
		h["X-RateLimit-Limit"], h["X-Ratelimit-Remaining"] = []string{"1000000"}, []string{"1000000", "2"}
		h.Set("RateLimit", `"upstream";r=1`)
		h.Set("Access-Control-Expose-Headers", "X-Own")
		w.WriteHeader(http.StatusTeapot)
	})
	resp, _ := do(t, request(t, "GET", serve(t, middleware.Limit(newLimiter(t, limits))(next)).URL+"/product/1",
		key("acme")...))
	h := resp.Header
	if resp.StatusCode != http.StatusTeapot || len(h.Values("X-Ratelimit-Limit")) != 1 ||
		h.Get("X-Ratelimit-Limit") != "5" ||
		len(h.Values("X-Ratelimit-Remaining")) != 1 || !strings.HasPrefix(h.Get("Ratelimit"), `"burst";r=4`) ||
		len(h.Values("Access-Control-Expose-Headers")) != 2 {
		t.Errorf("%s %v", resp.Status, h)
	}
}

// Guarantees that handlers, other middleware and tests find every header of an answer by Header.Get: its name is in
// Go's canonical form, whether the request is admitted or denied.
func TestHeadersAreCanonical(t *testing.T) {
	found := func(h http.Header) {
		t.Helper()
		for name := range h {
			if name != http.CanonicalHeaderKey(name) {
				t.Errorf("the header %s is not found by Get", name)
			}
		}
		if left := h.Get("RateLimit"); !strings.HasPrefix(left, `"burst";r=`) || h.Get("X-RateLimit-Limit") != "5" {
			t.Errorf("RateLimit is %q, X-RateLimit-Limit %q", left, h.Get("X-RateLimit-Limit"))
		}
	}
	h := middleware.Limit(newLimiter(t, limits))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		found(w.Header())
	}))
	denied := false
	for range 6 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request(t, "GET", "http://127.0.0.1/product/1", key("acme")...))
		found(w.Header())
		denied = denied || w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") != ""
	}
	if !denied {
		t.Error("no request was denied with Retry-After")
	}
}

// Guarantees that a panic of the handler reaches the server, that no partial response is written, and that the next
// request is served.
func TestPanic(t *testing.T) {
	url := serve(t,
		middleware.Limit(newLimiter(t, limits))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == "POST" {
				panic("on purpose")
			}
			ok(w, r)
		}))).URL
	if resp, err := http.DefaultTransport.RoundTrip(request(t, "POST", url+"/product/1", key("acme")...)); err == nil {
		resp.Body.Close()
		t.Errorf("a panicking handler was answered with %s", resp.Status)
	}
	if resp, _ := do(t, request(t, "GET", url+"/product/1", key("acme")...)); resp.StatusCode != 200 ||
		resp.Header.Get("X-Ratelimit-Remaining") != "3" {
		t.Errorf("after a panic: %s, %s left; want 3, for the request that panicked was made", resp.Status,
			resp.Header.Get("X-Ratelimit-Remaining"))
	}
}

// Guarantees that a stream is sent piece by piece, by Flusher, by ResponseController, and from a reader.
func TestStreams(t *testing.T) {
	release := make(chan struct{})
	url := serve(t,
		middleware.Limit(newLimiter(t, limits))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			flush := http.NewResponseController(w).Flush
			if f, is := w.(http.Flusher); is && r.URL.RawQuery == "flusher" {
				flush = func() error { f.Flush(); return nil }
			}
			if _, err := io.Copy(w, struct{ io.Reader }{strings.NewReader("one\n")}); err != nil {
				t.Error(err)
			}
			if err := flush(); err != nil {
				t.Error(err)
			}
			<-release
			_, _ = io.WriteString(w, "two\n")
		}))).URL
	for _, query := range []string{"flusher", "controller"} {
		resp, err := http.DefaultTransport.RoundTrip(request(t, "GET", url+"/stream?"+query, key("acme")...))
		if err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(resp.Body)
		if line, err := in.ReadString('\n'); line != "one\n" || err != nil ||
			resp.Header.Get("X-Ratelimit-Limit") != "5" {
			t.Errorf("%s: %q, %v, %v", query, line, err, resp.Header)
		}
		release <- struct{}{}
		if rest, err := io.ReadAll(in); string(rest) != "two\n" || err != nil {
			t.Errorf("%s: then %q, %v", query, rest, err)
		}
		resp.Body.Close()
	}
}

// Guarantees that a handler can hijack the connection and set its deadlines.
func TestHijack(t *testing.T) {
	url := serve(t,
		middleware.Limit(newLimiter(t, limits))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Errorf("SetWriteDeadline: %v", err)
			}
			hijack := http.NewResponseController(w).Hijack
			if h, is := w.(http.Hijacker); is && r.URL.RawQuery == "hijacker" {
				hijack = h.Hijack
			}
			conn, _, err := hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn,
				"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello")
		}))).URL
	for _, query := range []string{"hijacker", "controller"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "GET /stream?"+query+" HTTP/1.1\r\nHost: x\r\nX-API-Key: "+
			identity.ExampleKey("acme")+"\r\n\r\n")
		if all, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(all), "HTTP/1.1 101 ") ||
			!strings.HasSuffix(string(all), "\r\n\r\nhello") {
			t.Errorf("%s: %q, %v", query, all, err)
		}
	}
}

// Guarantees that one counted request is one request of a backend that would change the protocol: a reverse proxy
// behind the middleware passes on WebSocket alone.
func TestUpgradesAreNotForwarded(t *testing.T) {
	backend := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if upgrade := r.Header.Get("Upgrade"); upgrade != "" {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(conn,
				"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+upgrade+"\r\n\r\n")
			conn.Close()
		}
	}))
	to, err := url.Parse(backend.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	for name, h := range map[string]http.Handler{
		"Limit":  middleware.Limit(newLimiter(t, limits))(proxy),
		"Behind": middleware.Behind(middleware.MappedHeaders)(proxy),
	} {
		front := serve(t, h).URL
		for upgrade, want := range map[string]int{"h2c": 200, "h2c, websocket": 200, "TLS/1.0": 200, "WebSocket": 101} {
			resp, _ := do(t, request(t, "GET", front+"/stream", append(key("acme"), "X-Sluice-Caller",
				"d=allowed;t=acme", "Connection", "Upgrade", "Upgrade", upgrade, "Http2-Settings", "AAMAAABk")...))
			if resp.StatusCode != want {
				t.Errorf("%s: the upgrade to %s is answered with %s, want %d", name, upgrade, resp.Status, want)
			}
		}
	}
}

// plainWriter has only the methods of http.ResponseWriter.
type plainWriter struct{ http.ResponseWriter }

// Guarantees that the handler's writer has exactly the optional methods of the server's writer, because handlers decide
// by them how to answer.
func TestNothingIsPromised(t *testing.T) {
	for _, c := range []struct {
		name             string
		w                http.ResponseWriter
		flushes, hijacks bool
	}{
		{"plain", plainWriter{httptest.NewRecorder()}, false, false},
		{"recorder", httptest.NewRecorder(), true, false},
	} {
		middleware.Limit(newLimiter(t, limits))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, flushes := w.(http.Flusher)
			_, hijacks := w.(http.Hijacker)
			if flushes != c.flushes || hijacks != c.hijacks {
				t.Errorf("%s: flushes %v, hijacks %v", c.name, flushes, hijacks)
			}
			if _, _, err := http.NewResponseController(w).Hijack(); !errors.Is(err, http.ErrNotSupported) {
				t.Errorf("%s: Hijack: %v", c.name, err)
			}
		})).ServeHTTP(c.w, request(t, "GET", "/product/1", key("acme")...))
	}
}

// Guarantees that an observer is called once for each request, before it is answered, and that nothing can be refunded
// that was not charged.
func TestObserver(t *testing.T) {
	var seen []sluice.Reason
	h := middleware.Limit(newLimiter(t, limits),
		middleware.WithObserver(func(_ *http.Request, d *sluice.Decision) { seen = append(seen, d.Reason) }))(ok)
	for _, r := range []*http.Request{request(t, "GET", "/product/1", key("acme")...), request(t, "GET", "/product/1"),
		request(t, "GET", "/x", key("acme")...)} {
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	if len(seen) != 3 || seen[0] != sluice.Allowed || seen[1] != sluice.NoCredential || seen[2] != sluice.NoRoute {
		t.Errorf("observed %v", seen)
	}
	if d, found := middleware.Decision(context.Background()); found {
		t.Errorf("Decision of a bare context: %+v", d)
	}
}

// Guarantees that the costs that a program names are charged to the limits of their units, that a unit that it leaves
// out costs what the plan says, and that a cost that cannot be charged is not the client's mistake.
func TestCosts(t *testing.T) {
	text := strings.Replace(limits, "burst: 5 }", "burst: 5 }, { id: sent, unit: bytes, cost: 40, "+
		"algorithm: fixed_window, threshold: 100, period: 1h }", 1)
	h := middleware.Limit(newLimiter(t, text), middleware.WithCosts(func(r *http.Request) sluice.Costs {
		if r.ContentLength == 0 {
			return nil
		}
		return sluice.Costs{"bytes": r.ContentLength, "unknown": 1}
	}))(ok)
	for i, step := range []struct {
		body   string
		status int
		left   string
	}{{strings.Repeat("x", 60), 200, `"sent";r=40`}, {"", 200, `"sent";r=0`}, {"x", 429, `"sent";r=0`}} {
		r := request(t, "PUT", "/product/1", key("acme")...)
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(step.body)), int64(len(step.body))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != step.status || !strings.Contains(w.Header().Get("RateLimit"), step.left) ||
			!strings.Contains(w.Header().Get("RateLimit-Policy"), `qu="content-bytes"`) {
			t.Errorf("step %d: %d, %v; want %d, %s", i+1, w.Code, w.Header(), step.status, step.left)
		}
	}
	r := request(t, "PUT", "/product/1", key("acme")...)
	r.ContentLength = -1
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != 500 {
		t.Errorf("a cost of -1: %d, want 500", w.Code)
	}
}

// Guarantees that a request is charged what its response turns out to have used, whatever the handler does, and that
// the estimate stays if the handler panics.
func TestReservation(t *testing.T) {
	text := strings.Replace(limits, "burst: 5 }", "burst: 5 }, { id: sent, unit: bytes, cost: 40, "+
		"algorithm: fixed_window, threshold: 1000, period: 1h }", 1)
	limiter := newLimiter(t, text)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Query().Get("do") {
		case "write":
			_, _ = w.Write(make([]byte, 100))
		case "copy":
			w.WriteHeader(http.StatusAccepted)
			_, _ = io.Copy(w, io.LimitReader(zeros{}, 70))
		case "abort":
			_, _ = w.Write(make([]byte, 30))
			panic(http.ErrAbortHandler)
		case "panic":
			panic("a defect")
		}
	})
	var seen middleware.Response
	h := middleware.Limit(limiter, middleware.WithReservation(time.Minute,
		func(_ *http.Request, resp *middleware.Response) sluice.Costs {
			seen = *resp
			return sluice.Costs{"bytes": resp.Bytes}
		}))(handler)
	left := int64(1000)
	for _, step := range []struct {
		do     string
		status int
		bytes  int64
	}{{"write", 200, 100}, {"copy", 202, 70}, {"nothing", 200, 0}, {"abort", 200, 30}, {"panic", 0, 40}} {
		func() {
			defer func() { _ = recover() }()
			seen = middleware.Response{}
			ctx, cancel := context.WithCancel(t.Context())
			r := request(t, "GET", "/product/1?do="+step.do, key("acme")...).WithContext(ctx)
			defer cancel()
			h.ServeHTTP(httptest.NewRecorder(), r)
		}()
		left -= step.bytes
		d := limiter.Peek(t.Context(), sluice.Identity{Tenant: "acme"}, sluice.Request{Path: "/product/1",
			Costs: sluice.Costs{"requests": 0, "bytes": 1}})
		if d.Remaining != left || seen.Status != step.status || step.do != "panic" && seen.Bytes != step.bytes {
			t.Errorf("%s: saw %+v, and %d bytes are left, want %d", step.do, seen, d.Remaining, left)
		}
	}
}

// zeros is an endless body.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// Guarantees that a request whose target is a URL inside a URL does not reach the handler: it has no path that a limit
// could count, and a reverse proxy behind the middleware would forward the inner URL.
func TestOpaqueTargets(t *testing.T) {
	reached := 0
	h := middleware.Limit(newLimiter(t, limits))(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached++ }))
	for _, target := range []string{"x:http://other/product/1", "x:y:http://other/product/1", "x:product/1"} {
		u, err := url.Parse(target)
		if err != nil {
			t.Fatal(err)
		}
		r := request(t, "GET", "/", "X-API-Key", identity.ExampleKey("acme"))
		r.URL, r.RemoteAddr = u, "192.0.2.1:1"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "bad-request") || reached != 0 {
			t.Errorf("%s: %d %s, and %d requests reached the handler", target, w.Code, w.Body, reached)
		}
		if got := sluice.RequestOf(r).Path; !strings.HasSuffix(got, "product/1") {
			t.Errorf("%s: the path to be counted is %q", target, got)
		}
	}
}

// Guarantees that a method that is not on the list does not reach the handler, which may do the work of GET for it,
// while a limit on GET does not count it. WithMethods replaces the list, and lets every method pass if it names none.
func TestMethods(t *testing.T) {
	for _, tt := range []struct {
		name    string
		options []middleware.Option
		passes  []string
		refused []string
	}{
		{"by default", nil, []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "get"},
			[]string{"TRACE", "CONNECT", "QUERY", "GETX", "FOO", "PROPFIND", "", "GET "}},
		{"a list", []middleware.Option{middleware.WithMethods("GET", "propfind")}, []string{"GET", "PROPFIND"},
			[]string{"POST", "TRACE"}},
		{"every method", []middleware.Option{middleware.WithMethods()}, []string{"GET", "TRACE", "FOO"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var reached []string
			const plans = "plans: [ { id: p, limits: [] } ]\n" +
				"tenants: [ { id: acme, plan: p }, { id: initech, plan: p } ]\n"
			h := middleware.Limit(newLimiter(t, plans), tt.options...)(
				http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { reached = append(reached, r.Method) }))
			for _, method := range append(slices.Clone(tt.passes), tt.refused...) {
				r := request(t, "GET", "/free", key("acme")...)
				r.Method, r.RemoteAddr = method, "192.0.2.1:1"
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if slices.Contains(tt.refused, method) && (w.Code != http.StatusBadRequest ||
					!strings.Contains(w.Body.String(), "bad-request")) {
					t.Errorf("%q: %d %s, want 400", method, w.Code, w.Body)
				}
			}
			if !slices.Equal(reached, tt.passes) {
				t.Errorf("%q reached the handler, want %q", reached, tt.passes)
			}
		})
	}
}

// Guarantees that a path that leads above the root does not reach the handler: a reverse proxy with a base path would
// turn it into a path that no limit has counted.
func TestPathsAboveTheRoot(t *testing.T) {
	backend := serve(t,
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the backend was reached") }))
	to, err := url.Parse(backend.URL + "/api")
	if err != nil {
		t.Fatal(err)
	}
	const plans = `
plans:
  - id: public
    limits: [ { id: product, match: { pathPattern: "/product/*" }, tiers: [ { period: 1h, threshold: 1 } ] } ]
tenants: [ { id: acme, plan: public }, { id: initech, plan: public } ]
`
	h := middleware.Limit(newLimiter(t, plans))(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) },
	})
	for _, target := range []string{
		"/../api/product/1", "/%2e%2e/api/product/1", "/..;/api/product/1", "/..%5Capi/product/1",
	} {
		r := request(t, "GET", "/", key("acme")...)
		if r.URL, err = url.ParseRequestURI(target); err != nil {
			t.Fatal(err)
		}
		r.RemoteAddr = "192.0.2.1:1"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "bad-request") {
			t.Errorf("%s: %d %s, want 400", target, w.Code, w.Body)
		}
	}
}

// Guarantees that a program with an authentication of its own tells its clients nothing of Sluice's API keys: neither
// the body nor WWW-Authenticate names a way to send them. A challenge that the program has set stays.
func TestOwnIdentityHasNoChallenge(t *testing.T) {
	for _, err := range []error{sluice.ErrNoCredential, errors.New("no such session")} {
		limited := middleware.Limit(newLimiter(t, limits), middleware.WithIdentity(
			func(*http.Request) (sluice.Identity, error) { return sluice.Identity{}, err }))(ok)
		for _, own := range []string{"", "Session"} {
			url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if own != "" {
					w.Header().Set("WWW-Authenticate", own)
				}
				limited.ServeHTTP(w, r)
			})).URL
			resp, body := do(t, request(t, "GET", url+"/product/1"))
			if resp.StatusCode != 401 || resp.Header.Get("WWW-Authenticate") != own ||
				resp.Header.Get("Content-Type") != "application/problem+json" ||
				strings.Contains(body, "API key") || strings.Contains(body, "Bearer") {
				t.Errorf("%v, own challenge %q: %s %v %s; want a 401 with that challenge, and nothing of API keys", err,
					own, resp.Status, resp.Header, body)
			}
		}
	}
}

// Guarantees that a request keeps its place while its handler runs, and no longer: whether the handler returns, panics,
// aborts, or sees that the client has gone away.
func TestPlaces(t *testing.T) {
	text := strings.Replace(limits, "limits: [", "limits: [ { id: in-flight, concurrency: 1, holdFor: 30s },", 1)
	entered, leave := make(chan string), make(chan string)
	h := middleware.Limit(newLimiter(t, text))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		entered <- r.URL.Path
		select {
		case <-r.Context().Done():
		case how := <-leave:
			if how != "return" {
				panic(how)
			}
		}
	}))
	for _, how := range []string{"return", "panic", "go away"} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan any)
		go func() {
			defer func() { ended <- recover() }()
			r := request(t, "GET", "/product/1", key("acme")...).WithContext(ctx)
			h.ServeHTTP(httptest.NewRecorder(), r)
		}()
		<-entered
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request(t, "GET", "/product/1", key("acme")...))
		if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" {
			t.Errorf("%s: a second request gets %d, Retry-After %q", how, w.Code, w.Header().Get("Retry-After"))
		}
		if how != "go away" {
			leave <- how
		} else {
			cancel()
		}
		<-ended
		cancel()
	}
	go func() { <-entered; leave <- "return" }()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, request(t, "GET", "/product/1", key("acme")...))
	if w.Code != http.StatusOK {
		t.Errorf("after all have ended: %d", w.Code)
	}
}
