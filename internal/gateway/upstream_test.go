package gateway_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluicelimits/sluice/internal/gateway"
)

// upstreams parses what a command line says.
func upstreams(t *testing.T, texts ...string) (all []gateway.Upstream) {
	t.Helper()
	for _, text := range texts {
		u, err := gateway.ParseUpstream(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, u)
	}
	return all
}

// Guarantees which upstream gets a request: one of its host comes before one of any host, and of these the longest path
// of whole segments counts. A request that no upstream is for is answered with 404.
func TestUpstreamOfARequest(t *testing.T) {
	named := func(name string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, name+" "+r.URL.Path)
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	f := newFixture(t, []byte("ipLimits: []\n"), func(c *gateway.Config) {
		c.Upstreams = upstreams(t, "/v2="+named("two"), "api.example.com.="+named("api"), "/v2/deep/="+named("deep"),
			"API.example.com/v2="+named("api two")+"/below", "/only="+named("only"))
	})
	at := f.serve(t)
	for _, c := range []struct{ host, path, want string }{
		{"x.example.com", "/v2", "two /v2"},
		{"x.example.com", "/v2/a", "two /v2/a"},
		{"x.example.com", "/v2/deep", "deep /v2/deep"},
		{"x.example.com", "/v2/deeper", "two /v2/deeper"},
		{"api.example.com.", "/v1", "api /v1"},
		{"x.example.com", "//v2//deep/a", "400"}, // servers read it in different ways
		{"x.example.com", "/v2/%2e%2e/a", "400"},
		{"x.example.com", "/v2/..%2fonly", "400"},
		{"x.example.com", "/only/%61", "only /only/a"},
		{"x.example.com", "/%76%32/a", "400"},
		{"api.example.com", "/v2/deep", "api two /below/v2/deep"},
		{"Api.Example.com:8080", "/v1", "api /v1"},
		{"x.example.com", "/v22", ""},
		{"x.example.com", "/", ""},
	} {
		r, err := http.NewRequest(http.MethodGet, at+c.path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = c.host
		got, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(got.Body)
		if err != nil {
			t.Fatal(err)
		}
		_ = got.Body.Close()
		if c.want == "400" && got.StatusCode == http.StatusBadRequest {
			continue
		}
		if c.want == "" && got.StatusCode == http.StatusNotFound && strings.Contains(string(body), "#no-route") {
			continue
		}
		if string(body) != c.want {
			t.Errorf("%s%s: %d %q, want %q", c.host, c.path, got.StatusCode, body, c.want)
		}
	}
}

// Guarantees that an upstream which could not be meant is refused, with the reason.
func TestParseUpstream(t *testing.T) {
	for text, want := range map[string]string{
		"localhost:3000":               "such as http://localhost:3000",
		"/v2=localhost:3000":           "such as http://localhost:3000",
		"ftp://host":                   "want http://HOST",
		"http://":                      "has no host",
		"":                             "want http://HOST",
		"http://u:secret@host":         "a user or password in the URL",
		"http://h/?a=b":                "a query or fragment",
		"http://h#f":                   "a query or fragment",
		"api.example.com:80=http://h":  "want a host without a port",
		"*.example.com=http://h":       "want a host without a port",
		"/a/../b=http://h":             "want a path such as /v2",
		"/a//b=http://h":               "want a path such as /v2",
		"http://u:secret@host:x/\x7f=": "it is not a URL",
		"u:secret@host:3000":           "want http://HOST",
		"http://h/?token=secret":       "a query or fragment",
		"http://u:secret@h=http://x":   "a user or password",
		"http:u:secret@h":              "has no host",
		"http:///x?token=secret":       "has no host",
		"http://user:secret/x@h":       "it is not a URL",
	} {
		_, err := gateway.ParseUpstream(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	two := upstreams(t, "/v2/=http://a", "/v2=http://b")
	f := newFixture(t, plansText(""), nil)
	_, err := gateway.New(gateway.Config{Authorizer: f.authorizer, Upstreams: two})
	if err == nil || !strings.Contains(err.Error(), "two upstreams are for the same requests, /v2") {
		t.Errorf("two upstreams for one path: %v", err)
	}
}

// Guarantees that calls of gRPC pass, whether unary or streams, without TLS on both sides, with their status in
// trailers. A call that the gateway denies has a status that clients of gRPC understand.
func TestGRPC(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	service, checks := grpc.NewServer(), health.NewServer()
	healthv1.RegisterHealthServer(service, checks)
	go func() { _ = service.Serve(ln) }() // until Stop
	t.Cleanup(service.Stop)
	at := "h2c://" + ln.Addr().String()
	f := newFixture(t, plansText(""), func(c *gateway.Config) { c.Upstreams = upstreams(t, at) })
	conn, err := grpc.NewClient(strings.TrimPrefix(f.serve(t), "http://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	client := healthv1.NewHealthClient(conn)
	as := func(k string) context.Context { return metadata.AppendToOutgoingContext(t.Context(), "x-api-key", k) }

	ctx, cancel := context.WithCancel(as(key("acme")))
	defer cancel()
	watch, err := client.Watch(ctx, &healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []healthv1.HealthCheckResponse_ServingStatus{healthv1.HealthCheckResponse_SERVING,
		healthv1.HealthCheckResponse_NOT_SERVING} {
		if got, err := watch.Recv(); err != nil || got.GetStatus() != want {
			t.Fatalf("the stream has %v, %v; want %v", got, err, want)
		}
		checks.SetServingStatus("", healthv1.HealthCheckResponse_NOT_SERVING)
	}
	for i, c := range []struct {
		key, service string
		want         codes.Code
	}{
		{key("acme"), "", codes.OK},
		{key("acme"), "unknown", codes.NotFound}, // the upstream says so, in a trailer
		{"nonsense", "", codes.Unauthenticated},
		{key("initech"), "", codes.PermissionDenied},
		{key("acme"), "", codes.OK},
		{key("acme"), "", codes.OK},
		{key("acme"), "", codes.ResourceExhausted},
	} {
		var denied metadata.MD // an answer without a message has its headers among the trailers
		_, err := client.Check(as(c.key), &healthv1.HealthCheckRequest{Service: c.service}, grpc.Trailer(&denied))
		if status.Code(err) != c.want {
			t.Errorf("call %d: %v, want %v", i+1, err, c.want)
		}
		if c.want == codes.ResourceExhausted && (fmt.Sprint(denied["retry-after"]) != "[1]" ||
			!strings.Contains(err.Error(), "limited")) {
			t.Errorf("the denial has %v and says %v", denied, err)
		}
	}
}

// Guarantees that an answer is passed on while the upstream still writes it.
func TestAnswersStream(t *testing.T) {
	seen := make(chan bool)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "first")
		_ = http.NewResponseController(w).Flush()
		<-seen
		_, _ = io.WriteString(w, " second")
	}))
	t.Cleanup(upstream.Close)
	f := newFixture(t, plansText(""), func(c *gateway.Config) { c.Upstreams = upstreams(t, upstream.URL) })
	r, err := http.NewRequest(http.MethodGet, f.serve(t)+"/x", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Api-Key", key("acme"))
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	first := make([]byte, len("first"))
	if _, err := io.ReadFull(got.Body, first); err != nil || string(first) != "first" {
		t.Fatalf("the first part is %q, %v", first, err)
	}
	close(seen)
	if rest, err := io.ReadAll(got.Body); err != nil || string(rest) != " second" {
		t.Errorf("the second part is %q, %v", rest, err)
	}
}

// Guarantees that a connection is passed on in both directions once it speaks WebSocket.
func TestWebSocket(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" {
			w.WriteHeader(http.StatusUpgradeRequired)
			return
		}
		conn, both, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"+
			"Upgrade: websocket\r\nX-RateLimit-Limit: 999\r\n\r\n")
		_, _ = io.Copy(conn, both) // what the client sends, until it closes
	}))
	t.Cleanup(upstream.Close)
	f := newFixture(t, plansText(""), func(c *gateway.Config) { c.Upstreams = upstreams(t, upstream.URL) })
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.serve(t), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "GET /chat HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"X-Api-Key: %s\r\n\r\n", key("acme"))
	if err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewReader(conn)
	got, err := http.ReadResponse(answers, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	if got.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("the answer is %v", got)
	}
	if limits := got.Header["X-Ratelimit-Limit"]; len(limits) != 1 || limits[0] != "5" {
		t.Errorf("the answer has the limits %q, want that of the decision alone", limits)
	}
	for _, message := range []string{"one\n", "two\n"} {
		if _, err := io.WriteString(conn, message); err != nil {
			t.Fatal(err)
		}
		if back, err := answers.ReadString('\n'); err != nil || back != message {
			t.Fatalf("%q came back as %q, %v", message, back, err)
		}
	}
}

// Guarantees that an upstream may answer before it has read the request, whose body then still arrives as a whole, and
// that both sides can talk in turn.
func TestBothWaysAtOnce(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		if err := c.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		for lines := bufio.NewReader(r.Body); ; {
			line, err := lines.ReadString('\n')
			_, _ = io.WriteString(w, line)
			_ = c.Flush()
			if err != nil {
				return
			}
		}
	}))
	t.Cleanup(upstream.Close)
	f := newFixture(t, plansText(""), func(c *gateway.Config) { c.Upstreams = upstreams(t, upstream.URL) })
	body, lines := io.Pipe()
	r, err := http.NewRequest(http.MethodPost, f.serve(t)+"/x", body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Api-Key", key("acme"))
	go func() { _, _ = io.WriteString(lines, "one\n") }()
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	back := bufio.NewReader(got.Body)
	for _, want := range []string{"one\n", "two\n", "three\n"} {
		if want != "one\n" {
			if _, err := io.WriteString(lines, want); err != nil {
				t.Fatal(err)
			}
		}
		if line, err := back.ReadString('\n'); err != nil || line != want {
			t.Fatalf("%q came back as %q, %v", want, line, err)
		}
	}
	_ = lines.Close()
	if rest, err := io.ReadAll(back); err != nil || len(rest) > 0 {
		t.Errorf("after the end: %q, %v", rest, err)
	}
}

// Guarantees that an upstream that does not read a request, does not answer, or does not speak TLS, is given up after
// the timeout, and that a client that sends no sound body is told so, and not that the upstream is away.
func TestUpstreamStalls(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept() // and nothing is read
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
		}
	}()
	f := newFixture(t, plansText(""), func(c *gateway.Config) {
		c.Upstreams = upstreams(t, "http://"+ln.Addr().String(), "/reads="+upstreamThatReads(t).String(),
			"/tls=https://"+ln.Addr().String())
		c.UpstreamTimeout, c.MaxBody = 100*time.Millisecond, 0
	})
	at := f.serve(t)
	large := strings.NewReader(strings.Repeat("x", 32<<20)) // more than the buffers of the network hold
	do(t, http.MethodPost, at+"/x", large, "X-Api-Key", key("acme")).want(t, http.StatusGatewayTimeout)
	for _, path := range []string{"/x", "/tls"} {
		do(t, http.MethodGet, at+path, nil, "X-Api-Key", key("acme")).want(t, http.StatusGatewayTimeout)
	}

	conn, err := net.Dial("tcp", strings.TrimPrefix(at, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "POST /reads HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nX-Api-Key: %s\r\n\r\n"+
		"ZZ\r\n", key("acme"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	if got.StatusCode != http.StatusBadRequest {
		t.Errorf("a body that is not chunked is answered with %d", got.StatusCode)
	}
	if n := strings.Count(f.logs.String(), "the upstream did not answer"); n < 2 || n > 4 ||
		strings.Contains(f.logs.String(), "upstream=/reads") {
		t.Errorf("%d lines of the log about the upstream, want those of the two that stall:\n%s", n, f.logs)
	}
}

// Guarantees that the upstream gets the query as the client wrote it, since it may be signed, and from proxies that the
// operator trusts also the scheme and the host that the client used.
func TestUpstreamGetsWhatWasSent(t *testing.T) {
	seen := make(chan *http.Request, 1)
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r }))
	t.Cleanup(upstream.Close)
	for hops, want := range []string{"http 127.0.0.1", "https pub.example.com"} {
		f := newFixture(t, plansText(""), func(c *gateway.Config) {
			c.Upstreams, c.TrustedHops = upstreams(t, upstream.URL), hops
		})
		at := f.serve(t)
		const query = "z=1&a=2;b=3&q=100%&s=a%zz"
		do(t, http.MethodGet, at+"/x?"+query, nil, "X-Api-Key", key("acme"), "X-Forwarded-Proto", "https",
			"X-Forwarded-Host", "pub.example.com", "X_original_url", "/y")
		r := <-seen
		host, _, _ := strings.Cut(r.Header.Get("X-Forwarded-Host"), ":")
		if got := r.Header.Get("X-Forwarded-Proto") + " " + host; got != want || r.URL.RawQuery != query ||
			r.Header["X_original_url"] != nil {
			t.Errorf("behind %d proxies the upstream got %q, %q and %v, want %q and %q", hops, got, r.URL.RawQuery,
				r.Header, want, query)
		}
	}
}

// Guarantees that a connection of HTTP/2 that has become silent is given up, and that later requests get a new one.
func TestSilentConnection(t *testing.T) {
	service := grpc.NewServer()
	healthv1.RegisterHealthServer(service, health.NewServer())
	back, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = service.Serve(back) }() // until Stop
	t.Cleanup(service.Stop)
	relay, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = relay.Close() })
	silent := make(chan struct{}) // closed: the first connection passes nothing on
	go func() {
		for first := true; ; first = false {
			from, err := relay.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", back.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { _, _ = from.Close(), to.Close() })
			pass := func(to io.Writer, from io.Reader) {
				buf := make([]byte, 4096)
				for {
					n, err := from.Read(buf)
					if err != nil {
						return
					}
					select {
					case <-silent:
						if first {
							continue
						}
					default:
					}
					_, _ = to.Write(buf[:n])
				}
			}
			go pass(to, from)
			go pass(from, to)
		}
	}()
	f := newFixture(t, []byte("ipLimits: []\n"), func(c *gateway.Config) {
		c.Upstreams, c.UpstreamTimeout = upstreams(t, "h2c://"+relay.Addr().String()), 200*time.Millisecond
	})
	conn, err := grpc.NewClient(strings.TrimPrefix(f.serve(t), "http://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	client := healthv1.NewHealthClient(conn)
	if _, err := client.Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	close(silent)
	for range 10 {
		if _, err = client.Check(t.Context(), &healthv1.HealthCheckRequest{}); err == nil {
			return
		}
	}
	t.Errorf("ten requests after the connection has become silent, the last one fails with %v", err)
}
