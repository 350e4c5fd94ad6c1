package server_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
	"github.com/sluicelimits/sluice/internal/server"
	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
	"github.com/sluicelimits/sluice/internal/server/rls"
	"github.com/sluicelimits/sluice/internal/testkit/logtest"
)

const file = "domain: d\ndescriptors:\n  - {key: a, rate_limit: {unit: year, requests_per_unit: 2}}\n"

// service returns a service with the configuration file, on the store. If store is nil, counters are in memory.
func service(t testing.TB, store limit.Store) *rls.Service {
	t.Helper()
	if store == nil {
		var err error
		if store, err = memory.New(memory.Config{}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := rls.New(rls.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	config, err := envoyconfig.Load([]envoyconfig.File{{Name: "f", Data: []byte(file)}}, envoyconfig.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.SetConfig(config)
	return s
}

// running is a server that serves, with the functions that end it.
type running struct {
	*server.Server
	stop  context.CancelFunc
	again chan struct{}
	ended chan error
}

func start(t testing.TB, c server.Config) *running {
	t.Helper()
	c.GRPC, c.HTTP, c.Debug = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	s, err := server.Listen(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	r := &running{Server: s, stop: stop, again: make(chan struct{}), ended: make(chan error, 1)}
	done := make(chan struct{})
	go func() {
		r.ended <- s.Serve(ctx, r.again)
		close(done)
	}()
	t.Cleanup(func() { stop(); <-done })
	return r
}

func (r *running) dial(t testing.TB, c credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(r.Addr("gRPC").String(), grpc.WithTransportCredentials(c))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func request(value string) *rlsv3.RateLimitRequest {
	return &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "a", Value: value}}}}}
}

func (r *running) http(t testing.TB, server, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+r.Addr(server).String()+path,
		strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// Guarantees that clients get decisions and health over gRPC and HTTP, and operators the diagnostics.
func TestServe(t *testing.T) {
	r := start(t, server.Config{RateLimits: service(t, nil), Pprof: "127.0.0.1:0"})
	conn := r.dial(t, insecure.NewCredentials())
	client := rlsv3.NewRateLimitServiceClient(conn)
	for i, want := range []rlsv3.RateLimitResponse_Code{1, 1, 2} {
		out, err := client.ShouldRateLimit(t.Context(), request("x"), grpc.WaitForReady(true))
		if err != nil || out.GetOverallCode() != want {
			t.Errorf("request %d: %v, %v; want %s", i, out, err, want)
		}
	}
	if _, err := client.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{}); status.Code(err) != codes.Unknown ||
		status.Convert(err).Message() != "rate limit domain must not be empty" {
		t.Errorf("an empty request: %v, want an error about its domain", err)
	}
	if _, err := client.ShouldRateLimit(t.Context(), request(strings.Repeat("x",
		5<<20))); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a request of 5 MiB: %v, want ResourceExhausted", err)
	}
	for _, name := range []string{"", server.HealthName} {
		h, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{Service: name})
		if err != nil || h.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v, %v", name, h, err)
		}
	}
	if names := reflected(t, conn); !strings.Contains(names, "envoy.service.ratelimit.v3.RateLimitService") {
		t.Errorf("reflection lists %s", names)
	}

	const body = `{"domain": "d", "descriptors": [{"entries": [{"key": "a", "value": "x"}]}]}`
	for _, c := range []struct {
		server, method, path, body string
		status                     int
		want                       string
	}{
		{"HTTP", "POST", "/json", body, 429, `"overallCode":"OVER_LIMIT"`},
		{"HTTP", "POST", "/json", strings.ReplaceAll(body, "x", "y"), 200, `"overallCode":"OK"`},
		{"HTTP", "POST", "/json", "{", 400, "Bad Request: the body is not a request in JSON: unexpected EOF"},
		{"HTTP", "POST", "/json", strings.ReplaceAll(body, "domain", "domian"), 400, `unknown field "domian"`},
		{"HTTP", "POST", "/json", "{}", 400, "Bad Request: rate limit domain must not be empty\n"},
		{"HTTP", "POST", "/json", strings.ReplaceAll(body, "x", "\xff"), 400, "Bad Request: the body is not "},
		{"HTTP", "GET", "/healthcheck", "", 200, "OK"},
		{"HTTP", "POST", "/v1/check", "{}", 404, "no plans: start it with --plans or --config-table"},
		{"HTTP", "GET", "/rlconfig", "", 404, ""},
		{"debug", "GET", "/rlconfig", "", 200, "d.a: unit=YEAR requests_per_unit=2, shadow_mode: false, quota_mode: " +
			"false\n"},
		{"debug", "GET", "/stats", "", 200, "ratelimit.service.rate_limit.d.a.over_limit: 2\n"},
		{"debug", "GET", "/", "", 200, "/rlconfig"},
		{"debug", "POST", "/rlconfig", "", 200, "requests_per_unit=2"},
		{"debug", "POST", "/stats", "", 200, "over_limit: 2\n"},
		{"debug", "POST", "/", "", 200, "/rlconfig"},
		{"debug", "GET", "/healthcheck", "", 200, "OK"},
		{"debug", "GET", "/none", "", 404, ""},
		{"pprof", "GET", "/debug/pprof/goroutine?debug=1", "", 200, "goroutine"},
		{"pprof", "POST", "/debug/pprof/symbol", "", 200, "num_symbols"},
		{"pprof", "GET", "/debug/pprof/none", "", 404, ""},
	} {
		code, text := r.http(t, c.server, c.method, c.path, c.body)
		if code != c.status || !strings.Contains(strings.ReplaceAll(text, `": "`, `":"`), c.want) {
			t.Errorf("%s %s %.50q: %d %s; want %d with %s", c.method, c.path, c.body, code, text, c.status, c.want)
		}
	}
}

// Guarantees that nothing which a web page can make a browser send is answered: not by a page of another site, and on
// a loopback address not by one whose name points at this machine (DNS rebinding). Programs send neither header.
func TestWebPages(t *testing.T) {
	r := start(t, server.Config{RateLimits: service(t, nil), Pprof: "127.0.0.1:0"})
	const body = `{"domain": "d", "descriptors": [{"entries": [{"key": "a", "value": "x"}]}]}`
	send := func(part, method, path, host, header, value string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+r.Addr(part).String()+path,
			strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = cmp.Or(host, req.Host)
		if header != "" {
			req.Header.Set(header, value)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	surfaces := []struct{ part, method, path string }{
		{"HTTP", "POST", "/json"}, {"HTTP", "POST", "/v1/check"}, {"HTTP", "POST", "/v1/refund"},
		{"HTTP", "GET", "/healthcheck"}, {"HTTP", "OPTIONS", "/json"}, {"HTTP", "GET", "/none"},
		{"debug", "GET", "/rlconfig"}, {"debug", "POST", "/rlconfig"}, {"debug", "GET", "/stats"},
		{"debug", "GET", "/metrics"}, {"debug", "GET", "/"},
		{"pprof", "GET", "/debug/pprof/"}, {"pprof", "GET", "/debug/pprof/heap"},
	}
	for _, from := range []struct{ host, header, value string }{
		{"", "Origin", "http://evil.example"}, {"", "Origin", "null"}, {"", "Origin", ""},
		{"", "Origin", "http://localhost:3000"}, {"", "Sec-Fetch-Site", "cross-site"},
		{"", "Sec-Fetch-Site", "same-site"}, {"", "Sec-Fetch-Site", ""},
		{"evil.example", "", ""}, {"evil.example:8080", "", ""}, {"127.0.0.1.evil.example:8080", "", ""},
		{"localhost.evil.example", "Sec-Fetch-Site", "same-origin"},
	} {
		for _, s := range surfaces {
			if got := send(s.part, s.method, s.path, from.host, from.header, from.value); got != http.StatusForbidden {
				t.Errorf("%s %s with Host %q, %s %q: %d, want 403", s.method, s.path, from.host, from.header,
					from.value, got)
			}
		}
	}
	for _, from := range []struct{ host, header, value string }{
		{"localhost:1", "", ""}, {"LOCALHOST", "", ""}, {"[::1]:8080", "", ""}, {"192.0.2.1:8080", "", ""},
		{"", "Sec-Fetch-Site", "none"}, {"", "Sec-Fetch-Site", "same-origin"},
	} {
		for _, s := range surfaces {
			if got := send(s.part, s.method, s.path, from.host, from.header, from.value); got == http.StatusForbidden {
				t.Errorf("%s %s with Host %q, %s %q: 403", s.method, s.path, from.host, from.header, from.value)
			}
		}
	}
	_, stats := r.http(t, "debug", "GET", "/stats", "")
	if want := "ratelimit.service.rate_limit.d.a.total_hits: 6\n"; !strings.Contains(stats, want) {
		t.Errorf("want %q, the hits of the programs only:\n%s", want, stats)
	}
	if code, text := r.http(t, "debug", "GET", "/debug/pprof/heap", ""); code != http.StatusNotFound {
		t.Errorf("a profile on the debug port: %d %.80q, want 404", code, text)
	}
}

// Guarantees that a server on an address that other machines reach answers to any name, but not to web pages.
func TestWebPagesOnEveryAddress(t *testing.T) {
	s, err := server.Listen(server.Config{RateLimits: service(t, nil), HTTP: ":0", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { _ = s.Serve(ctx, nil); close(done) }()
	defer func() { stop(); <-done }()
	for origin, want := range map[string]int{"": http.StatusOK, "http://ratelimit:8080": http.StatusForbidden} {
		_, port, err := net.SplitHostPort(s.Addr("HTTP").String())
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:"+port+"/json",
			strings.NewReader(`{"domain": "d"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "ratelimit:8080"
		if origin != "" {
			req.Header.Set("Origin", origin)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if want == http.StatusOK && resp.StatusCode == http.StatusForbidden || want == http.StatusForbidden &&
			resp.StatusCode != want {
			t.Errorf("with Origin %q: %d, want %d", origin, resp.StatusCode, want)
		}
	}
}

func reflected(t *testing.T, conn *grpc.ClientConn) string {
	t.Helper()
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	list := &reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{},
	}
	if err := stream.Send(list); err != nil {
		t.Fatal(err)
	}
	out, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.CloseSend() // the stream ends with the connection
	return out.String()
}

// gate is a store whose decisions wait until the test lets them pass.
type gate struct {
	limit.Store
	arrived, open chan struct{}
}

func (g *gate) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	g.arrived <- struct{}{}
	<-g.open
	return g.Store.Decide(ctx, req, now, d)
}

// Guarantees that a server that stops is reported as not healthy, lets the request in flight finish, and takes no new
// requests, and that a second signal ends the wait.
func TestDrain(t *testing.T) {
	for _, cut := range []bool{false, true} {
		inner := memorytest.New(t)
		g := &gate{inner, make(chan struct{}), make(chan struct{})}
		r := start(t, server.Config{RateLimits: service(t, g)})
		conn := r.dial(t, insecure.NewCredentials())
		watch, err := healthv1.NewHealthClient(conn).Watch(t.Context(), &healthv1.HealthCheckRequest{},
			grpc.WaitForReady(true))
		if err != nil {
			t.Fatal(err)
		}
		health := func(want healthv1.HealthCheckResponse_ServingStatus) {
			t.Helper()
			for {
				h, err := watch.Recv()
				if err != nil {
					t.Fatal(err)
				}
				if h.GetStatus() == want {
					return
				}
			}
		}
		health(healthv1.HealthCheckResponse_SERVING)
		var answer error
		var asked sync.WaitGroup
		asked.Go(func() {
			_, answer = rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request("x"))
		})
		<-g.arrived
		if _, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context()); err != nil {
			t.Fatal(err) // it stays open, and holds up nothing
		}
		r.stop()
		health(healthv1.HealthCheckResponse_NOT_SERVING)
		if cut {
			close(r.again)
			if err := <-r.ended; err == nil || !strings.Contains(err.Error(), "second signal") {
				t.Errorf("Serve after the second signal = %v, want an error that says so", err)
			}
			asked.Wait()
			if answer == nil {
				t.Error("the request in flight is answered, want it cut off by the second signal")
			}
			close(g.open)
			continue
		}
		close(g.open)
		asked.Wait()
		if answer != nil {
			t.Errorf("the request in flight ended with %v, want an answer", answer)
		}
		for err == nil { // the server ends the stream of the health check
			_, err = watch.Recv()
		}
		if err := <-r.ended; err != nil {
			t.Errorf("Serve = %v, want no error", err)
		}
	}
}

// panicking is a store whose decisions panic.
type panicking struct{ limit.Store }

func (panicking) Decide(context.Context, *limit.Request, time.Time, *limit.Decision) error {
	panic("on purpose")
}

// Guarantees that a request that makes the server panic is answered with an error over gRPC and HTTP, is logged and
// counted, and that the server goes on.
func TestPanic(t *testing.T) {
	log := new(logtest.Buffer)
	r := start(t, server.Config{RateLimits: service(t, panicking{}), Log: slog.New(slog.NewTextHandler(log, nil))})
	const body = `{"domain": "d", "descriptors": [{"entries": [{"key": "a", "value": "x"}]}]}`
	if code, text := r.http(t, "HTTP", "POST", "/json", body); code != http.StatusInternalServerError ||
		strings.Contains(text, "on purpose") {
		t.Errorf("over HTTP: status %d, %q", code, text)
	}
	client := rlsv3.NewRateLimitServiceClient(r.dial(t, insecure.NewCredentials()))
	if _, err := client.ShouldRateLimit(t.Context(), request("x"), grpc.WaitForReady(true)); status.Code(err) !=
		codes.Internal {
		t.Errorf("over gRPC: %v", err)
	}
	if n := strings.Count(log.String(), "on purpose"); n != 2 {
		t.Errorf("the log names the panics %d times, want 2:\n%s", n, log.String())
	}
	_, text := r.http(t, "debug", "GET", "/metrics", "")
	got := readMetrics(t, text)
	for _, name := range []string{`{method="POST /json",code="500"}`,
		`{method="/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",code="Internal"}`} {
		if got["sluice_request_seconds_count"+name] != 1 {
			t.Errorf("sluice_request_seconds_count%s is %v, want 1", name, got["sluice_request_seconds_count"+name])
		}
	}
}

// atDebug calls a function when the server says that its last part listens, while the others serve already.
type atDebug struct {
	slog.Handler
	call func()
}

func (h *atDebug) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if r.Message == "listening" && a.Value.String() == "debug" {
			h.call()
		}
		return true
	})
	return nil
}

// Guarantees that a server that waits for no store decides its first request, however early that is.
func TestReadyAtOnce(t *testing.T) {
	var s *server.Server
	asked := make(chan int, 1)
	early := &atDebug{Handler: slog.NewTextHandler(io.Discard, nil), call: func() {
		r := &running{Server: s}
		const body = `{"domain": "d", "descriptors": [{"entries": [{"key": "a", "value": "x"}]}]}`
		code, _ := r.http(t, "HTTP", "POST", "/json", body)
		asked <- code
	}}
	s, err := server.Listen(server.Config{RateLimits: service(t, nil), Log: slog.New(early), GRPC: "127.0.0.1:0",
		HTTP: "127.0.0.1:0", Debug: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, nil) }()
	if code := <-asked; code != http.StatusOK {
		t.Errorf("a request before the server has said where it listens: status %d", code)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// rawCodec sends bytes as they are, in place of a message.
type rawCodec struct{}

func (rawCodec) Name() string                  { return "proto" }
func (rawCodec) Marshal(v any) ([]byte, error) { return v.([]byte), nil }
func (rawCodec) Unmarshal([]byte, any) error   { return nil }

// Guarantees that a request over gRPC whose texts are not UTF-8, or which is no message at all, is answered with an
// error, and that the connection goes on.
func TestInvalidMessages(t *testing.T) {
	r := start(t, server.Config{RateLimits: service(t, nil)})
	conn := r.dial(t, insecure.NewCredentials())
	valid, err := proto.Marshal(request("x"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		sent []byte
		want codes.Code
	}{
		{"a domain that is not UTF-8", append([]byte{0x0a, 1, 0xff}, valid[3:]...), codes.Internal},
		{"a value that is not UTF-8", bytes.Replace(valid, []byte("x"), []byte{0xff}, 1), codes.Internal},
		{"half a message", valid[:len(valid)-1], codes.Internal},
		{"no message", []byte("hello"), codes.Internal},
		{"a valid message", valid, codes.OK},
	} {
		err := conn.Invoke(t.Context(), rlsv3.RateLimitService_ShouldRateLimit_FullMethodName, c.sent, new([]byte),
			grpc.ForceCodec(rawCodec{}), grpc.WaitForReady(true))
		if status.Code(err) != c.want {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
}

// Guarantees that Listen fails if an address is in use, with an error that names it, or if there is no address, and
// that it leaves no listener open.
func TestListenErrors(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	s := service(t, nil)
	at := taken.Addr().String()
	inUse := func(flag string) string {
		return "listen on " + at + ": another program uses that port, perhaps a 'sluice dev' or 'sluice serve' that " +
			"still runs. End it, or choose another port with " + flag
	}
	_, err = server.Listen(server.Config{RateLimits: s, GRPC: "127.0.0.1:0", HTTP: at})
	if err == nil || err.Error() != inUse("--http") {
		t.Errorf("Listen at an address in use = %v, want an error that names it, and the flag", err)
	}
	_, err = server.Listen(server.Config{RateLimits: s, GRPC: at, HTTP: at, Debug: "nowhere"})
	if want := inUse("--grpc") + "\n" + inUse("--http"); !strings.HasPrefix(fmt.Sprint(err), want) {
		t.Errorf("Listen at two addresses in use = %v, want %s", err, want)
	}
	if want := "--debug nowhere: listen tcp: address nowhere"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Listen at a bad address = %v, want %q", err, want)
	}
	socket := "unix:" + filepath.Join(t.TempDir(), "rls.sock")
	listener, err := net.Listen("unix", strings.TrimPrefix(socket, "unix:"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	if _, err := server.Listen(server.Config{RateLimits: s, GRPC: socket}); err == nil ||
		!strings.HasPrefix(err.Error(), "--grpc "+socket+": there is such a file already") {
		t.Errorf("Listen at a socket in use = %v, want an error that says so", err)
	}
	if _, err := server.Listen(server.Config{RateLimits: s}); err == nil {
		t.Error("Listen without an address returns no error, want one")
	}
	if _, err := server.Listen(server.Config{GRPC: "127.0.0.1:0"}); err == nil {
		t.Error("Listen without a service returns no error, want one")
	}
}

// Guarantees that gRPC also listens on a Unix socket.
func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rls.sock")
	s, err := server.Listen(server.Config{RateLimits: service(t, nil), GRPC: "unix:" + path,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, nil) }()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request("x"),
		grpc.WaitForReady(true)); err != nil || out.GetOverallCode() != rlsv3.RateLimitResponse_OK {
		t.Errorf("%v, %v", out, err)
	}
	_ = conn.Close()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// authority signs certificates for a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	a.cert, a.key, a.pem = a.sign("authority", nil)
	return a
}

// sign makes a certificate that the parent has signed. If parent is nil, it is the certificate of an authority.
func (a *authority) sign(name string, parent *authority) (*x509.Certificate, *ecdsa.PrivateKey, []byte) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0,
			1)}, DNSNames: []string{name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	signer, signKey := template, key
	if parent == nil {
		template.IsCA, template.BasicConstraintsValid = true, true
	} else {
		signer, signKey = parent.cert, parent.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, signer, &key.PublicKey, signKey)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// files writes a certificate and its key, signed by the authority.
func (a *authority) files(dir, name string) (cert, key string) {
	a.t.Helper()
	_, private, text := a.sign(name, a)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	write(a.t, cert, text)
	write(a.t, key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	return cert, key
}

func write(t testing.TB, name string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Guarantees that with mutual TLS only clients of the right authority are answered, over gRPC and HTTP, that new
// connections use reloaded certificates, and that an invalid file changes nothing.
func TestMutualTLS(t *testing.T) {
	dir := t.TempDir()
	servers, clients, others := newAuthority(t), newAuthority(t), newAuthority(t)
	cert, key := servers.files(dir, "server")
	trusted := filepath.Join(dir, "clients.pem")
	write(t, trusted, clients.pem)
	log := new(bytes.Buffer)
	certs, err := server.OpenCertificates(cert, key, trusted, "", slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, server.Config{RateLimits: service(t, nil), TLS: certs.Config()})
	ask := func(of *authority, name string) error {
		roots := x509.NewCertPool()
		roots.AddCert(servers.cert)
		config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		if of != nil {
			pair, err := tls.LoadX509KeyPair(of.files(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			config.Certificates = []tls.Certificate{pair}
		}
		_, err := rlsv3.NewRateLimitServiceClient(r.dial(t, credentials.NewTLS(config))).ShouldRateLimit(t.Context(),
			request(name))
		get := &http.Client{Transport: &http.Transport{TLSClientConfig: config.Clone()}}
		defer get.CloseIdleConnections()
		resp, httpErr := get.Get("https://" + r.Addr("HTTP").String() + "/healthcheck")
		if httpErr == nil {
			_ = resp.Body.Close() // its content does not matter
		}
		if (err == nil) != (httpErr == nil) {
			t.Errorf("%s: gRPC says %v, HTTP says %v", name, err, httpErr)
		}
		return err
	}
	if err := ask(clients, "friend"); err != nil {
		t.Errorf("a client of the authority: %v", err)
	}
	if err := ask(others, "stranger"); err == nil {
		t.Error("a client with a certificate of another authority is answered, want it refused")
	}
	if err := ask(nil, "nobody"); err == nil {
		t.Error("a client without a certificate is answered, want it refused")
	}
	write(t, trusted, others.pem)
	if err := certs.Reload(); err != nil {
		t.Fatal(err)
	}
	if err := ask(others, "new"); err != nil {
		t.Errorf("a client of the new authority: %v", err)
	}
	if err := ask(clients, "old"); err == nil {
		t.Error("a client with a certificate of the old authority is answered, want it refused")
	}
	write(t, trusted, []byte("nothing"))
	if err := certs.Reload(); err == nil || !strings.Contains(log.String(), "last good ones stay in force") {
		t.Errorf("a bad file: %v, log %s", err, log)
	}
	if err := ask(others, "still"); err != nil {
		t.Errorf("after a bad file: %v", err)
	}
	if _, err := server.OpenCertificates(cert, cert, "", "", slog.Default()); err == nil {
		t.Error("OpenCertificates accepts a file without a key, want an error")
	}
}

// Guarantees that, if a subject alternative name is required, only clients whose certificate has it are admitted, also
// after the certificates were read again.
func TestClientSAN(t *testing.T) {
	dir := t.TempDir()
	servers, clients := newAuthority(t), newAuthority(t)
	cert, key := servers.files(dir, "server")
	trusted := filepath.Join(dir, "clients.pem")
	write(t, trusted, clients.pem)
	pair, err := tls.LoadX509KeyPair(clients.files(dir, "envoy.example"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(servers.cert)
	for san, admitted := range map[string]bool{"": true, "envoy.example": true, "127.0.0.1": true, "127.0.0.2": false,
		"other.example": false, "example": false, "a.envoy.example": false} {
		certs, err := server.OpenCertificates(cert, key, trusted, san, slog.Default())
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			near, far := net.Pipe()
			client := tls.Client(near, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1",
				Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})
			go func() {
				_, _ = io.Copy(io.Discard, client) // the server decides
			}()
			if err := tls.Server(far, certs.Config()).HandshakeContext(t.Context()); (err == nil) != admitted {
				t.Errorf("the name %q is required: %v, want admitted %v", san, err, admitted)
			}
			_ = near.Close() // both ends are of this test
			if err := certs.Reload(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Guarantees that connections over HTTP serve further requests until they are as old as Config.MaxAge,
// and end with the next response.
func TestConnectionAge(t *testing.T) {
	servers := newAuthority(t)
	cert, key := servers.files(t.TempDir(), "server")
	certs, err := server.OpenCertificates(cert, key, "", "", slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(servers.cert)
	for age, kept := range map[time.Duration]bool{0: true, time.Hour: true, time.Nanosecond: false} {
		r := start(t, server.Config{RateLimits: service(t, nil), TLS: certs.Config(), MaxAge: age})
		get := &http.Client{Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}
		connections := map[string]bool{}
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
			connections[i.Conn.LocalAddr().String()] = true
		}})
		const requests = 3
		for range requests {
			url := "https://" + r.Addr("HTTP").String() + "/healthcheck"
			ask, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := get.Do(ask)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Error(err)
			}
			_ = resp.Body.Close() // it was read to its end
		}
		get.CloseIdleConnections()
		if used := len(connections); kept && used != 1 || !kept && used != requests {
			t.Errorf("maximal age %s: %d requests used %d connections", age, requests, used)
		}
	}
}

// Guarantees that no body makes /json panic or answer anything but 200, 429 or 400.
func FuzzJSON(f *testing.F) {
	r := start(f, server.Config{RateLimits: service(f, nil)})
	f.Add(`{"domain": "d", "descriptors": [{"entries": [{"key": "a", "value": "x"}], "hitsAddend": "3", ` +
		`"isNegativeHits": true}], "hitsAddend": 5}`)
	f.Add(`{"domain": "d", "descriptors": [{"limit": {"unit": 77}}, {}]}`)
	f.Add(`{"descriptors": null}`)
	f.Fuzz(func(t *testing.T, body string) {
		if code, text := r.http(t, "HTTP", "POST", "/json", body); code != 200 && code != 429 && code != 400 {
			t.Errorf("%q: %d %s", body, code, text)
		}
	})
}

// Guarantees that the connection of a client stays open after it called a method that does not exist.
func TestUnknownMethod(t *testing.T) {
	r := start(t, server.Config{RateLimits: service(t, nil)})
	conn := r.dial(t, insecure.NewCredentials())
	err := conn.Invoke(t.Context(), "/none.Service/None", request("x"), new(rlsv3.RateLimitResponse),
		grpc.WaitForReady(true))
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("a method that does not exist: %v", err)
	}
	if open := r.SweepThrice(); open != 1 {
		t.Errorf("%d connections are open, want 1", open)
	}
}
