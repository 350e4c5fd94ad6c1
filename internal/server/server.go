// Package server runs the servers of a process: of the rate limit service, a gRPC server for Envoy; of the proxy, an
// HTTP server for its clients; and of both an HTTP server for programs that ask about calls, and HTTP servers with
// diagnostics for operators.
//
//	gRPC    envoy.service.ratelimit.v3, grpc.health.v1, reflection
//	proxy   everything that the upstreams answer; GET /_sluice/healthz
//	HTTP    POST /json, GET /healthcheck, POST /v1/…
//	debug   /rlconfig, /stats, /metrics, /healthcheck
//	pprof   /debug/pprof/, if wanted
//
// Of the proxy, the HTTP and debug servers have no /json, /rlconfig and /stats.
//
// The paths and their responses are those of envoyproxy/ratelimit, except for /metrics, which is in Prometheus's text
// format, and for /v1, which is Sluice's own API (package limits).
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/sluicelimits/sluice/internal/gateway"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/redact"
	"github.com/sluicelimits/sluice/internal/server/limits"
	"github.com/sluicelimits/sluice/internal/server/rls"
)

// Bounds on what clients can occupy.
const (
	// DefaultMaxConnections is the largest number of connections of each server if Config.MaxConnections is 0.
	DefaultMaxConnections = 2000

	// DefaultMaxMessage is the largest request, in bytes, if Config.MaxMessage is 0. Envoy's have some hundred bytes.
	DefaultMaxMessage = 64 << 10

	// StreamWorkers is how many goroutines wait for gRPC requests. While all of them are busy, each further request
	// gets a new goroutine, whose stack has to grow. With 2 workers and requests on 32 connections that took a sixth of
	// the server's processor time (make figures ONLY=rls_of_ceiling).
	StreamWorkers = 256

	maxStreams       = 250     // requests at once on one connection; clients open more connections if they need to
	readBuffer       = 8 << 10 // bytes of each gRPC connection; the default is 32 KiB, for 2,000 connections 64 MB
	windowBytes      = 65_535  // that a client may send on a gRPC stream before the server reads them; HTTP/2's default
	maxHeaderBytes   = 8 << 10 // of one request
	handshakeTimeout = 5 * time.Second
	requestTimeout   = 10 * time.Second // to read a request over HTTP, and to write its response
	cutFor           = 2 * time.Second  // for requests of the proxy that were cut off to end
	idleTimeout      = 2 * time.Minute  // an HTTP connection without requests is closed after this time

	// After pingAfter without traffic, the server pings the client of a gRPC connection. It closes the connection if no
	// answer comes within pingTimeout.
	pingAfter, pingTimeout = 30 * time.Second, 10 * time.Second

	// minPingInterval is the shortest interval at which clients may ping the server. Envoy's shortest setting is 1 s.
	minPingInterval = time.Second
)

// MutualTLSMaxAge is a sensible Config.MaxAge if clients need certificates: for this long, a client whose authority is
// no longer admitted can go on with a connection that it has.
const MutualTLSMaxAge = 10 * time.Minute

// DefaultGrace is how long requests in flight may take after the server has begun to stop.
const DefaultGrace = 15 * time.Second

// HealthName is the name of the service in grpc.health.v1, beside "" for the server as a whole.
const HealthName = "ratelimit"

// Config sets up a [Server].
type Config struct {
	RateLimits *rls.Service    // required unless Proxy is set
	Limits     *limits.Service // Sluice's own API; if nil, it is not served

	Metrics *Metrics          // served at /metrics; if nil, New makes one
	Chain   *resilience.Chain // the stores, for Metrics; nil if counters are in memory

	// The addresses to listen on: host:port, or for GRPC also unix:PATH. A server whose address is "" does not run.
	GRPC, HTTP, Debug string
	Pprof             string // of Go's profiles, which everybody who reaches the address can make the server compute

	// Proxy answers the requests to the address Listen, with the time that they need. Both are set, or none.
	Proxy  http.Handler
	Listen string

	TLS            *tls.Config   // of GRPC, HTTP and Proxy; if nil, plain text
	MaxConnections int           // of each server; 0 selects DefaultMaxConnections
	MaxMessage     int           // largest request, in bytes; 0 selects DefaultMaxMessage
	MaxAge         time.Duration // of a connection, so that clients find new servers; 0: without bound

	// DrainFor is how long the server still takes requests after it has begun to report that it is not healthy. In this
	// time, load balancers find out.
	DrainFor time.Duration
	Grace    time.Duration // for the requests in flight after DrainFor; 0 selects DefaultGrace

	// Ready is closed when the stores have answered for the first time. Until then the server reports that it is not
	// healthy, and answers requests with the error Unavailable, because nobody knows what other instances have
	// admitted. If nil, the server is ready at once.
	Ready <-chan struct{}

	Log *slog.Logger // if nil, slog.Default()
}

// Server runs the servers. Make it with [Listen].
type Server struct {
	c       Config
	health  *health.Server
	ready   atomic.Bool // see Config.Ready
	serving atomic.Bool
	grpc    *grpc.Server
	parts   []part
	budget  *budget

	stopping context.Context // ends after Config.DrainFor, when the server stops taking requests
	stop     context.CancelFunc
}

// part is the gRPC server or one of the HTTP servers.
type part struct {
	name     string
	listener net.Listener
	serve    func(net.Listener) error
	stop     func(context.Context) error // waits for requests in flight
	cut      func()                      // closes all connections at once
}

// Listen opens the listeners. The error names the address. Call [Server.Serve] next.
func Listen(c Config) (*Server, error) {
	if c.RateLimits == nil && c.Proxy == nil {
		return nil, errors.New("server: RateLimits or Proxy is missing")
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Metrics == nil {
		c.Metrics = new(Metrics)
	}
	if c.MaxConnections == 0 {
		c.MaxConnections = DefaultMaxConnections
	}
	if c.MaxMessage == 0 {
		c.MaxMessage = DefaultMaxMessage
	}
	if c.Grace == 0 {
		c.Grace = DefaultGrace
	}
	s := &Server{c: c, health: health.NewServer(), budget: newBudget(c.MaxMessage, c.Log)}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.setServing(false)
	err := errors.Join(s.addGRPC(), s.addProxy(), s.addHTTP("HTTP", c.HTTP, s.clientHandler(), c.TLS),
		s.addHTTP("debug", c.Debug, s.debugHandler(), nil), s.addHTTP("pprof", c.Pprof, s.profiles(), nil))
	if err == nil && len(s.parts) == 0 {
		err = errors.New("server: no address to listen on")
	}
	if err != nil {
		for _, p := range s.parts {
			_ = p.listener.Close() // nothing was served
		}
		return nil, err
	}
	return s, nil
}

// Addr returns the address of the server with the name "gRPC", "proxy", "HTTP", "debug" or "pprof", or nil if that
// server does not run.
func (s *Server) Addr(name string) net.Addr {
	for _, p := range s.parts {
		if p.name == name {
			return p.listener.Addr()
		}
	}
	return nil
}

func (s *Server) listen(name, address string, encrypted *tls.Config) (net.Listener, error) {
	listener, err := listenAt("--"+strings.ToLower(name), address)
	if err != nil {
		return nil, err
	}
	listener = s.budget.wrap(name, listener, s.c.MaxConnections)
	if encrypted != nil {
		listener = tls.NewListener(listener, encrypted)
	}
	return listener, nil
}

func (s *Server) addGRPC() error {
	if s.c.GRPC == "" || s.c.RateLimits == nil {
		return nil
	}
	listener, err := s.listen("gRPC", s.c.GRPC, nil)
	if err != nil {
		return err
	}
	options := []grpc.ServerOption{
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.NumStreamWorkers(StreamWorkers),
		grpc.MaxRecvMsgSize(s.c.MaxMessage),
		grpc.StaticStreamWindowSize(windowBytes),
		grpc.StaticConnWindowSize(windowBytes),
		grpc.ReadBufferSize(readBuffer),
		grpc.StatsHandler(s.budget),
		grpc.InTapHandle(s.budget.open),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: pingAfter, Timeout: pingTimeout, MaxConnectionAge: s.c.MaxAge, MaxConnectionAgeGrace: s.c.Grace,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime: minPingInterval, PermitWithoutStream: true,
		}),
		grpc.ChainUnaryInterceptor(s.c.Metrics.intercept, s.recoverPanic, s.refuseUntilReady),
		grpc.ChainStreamInterceptor(s.endStreams),
	}
	if s.c.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(s.c.TLS)))
	}
	s.grpc = grpc.NewServer(options...)
	rlsv3.RegisterRateLimitServiceServer(s.grpc, s.c.RateLimits)
	healthv1.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	s.budget.registerMethods(s.grpc)
	s.parts = append(s.parts, part{name: "gRPC", listener: listener, serve: s.grpc.Serve, cut: s.grpc.Stop,
		stop: func(ctx context.Context) error {
			done := make(chan struct{})
			go func() { s.grpc.GracefulStop(); close(done) }()
			select {
			case <-done:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}})
	return nil
}

// addProxy adds the server of Config.Proxy. Its connections may be slow, idle for long, and send and get any number of
// bytes, so that it bounds their number only.
func (s *Server) addProxy() error {
	if s.c.Proxy == nil {
		return nil
	}
	listener, err := listenAt("--listen", s.c.Listen)
	if err != nil {
		return err
	}
	listener = netutil.LimitListener(listener, s.c.MaxConnections)
	if s.c.TLS != nil {
		listener = tls.NewListener(listener, s.c.TLS)
	}
	var inFlight handlers
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer inFlight.begin()()
		switch {
		case r.URL.Path == gateway.HealthPath:
			s.healthcheck(w, r)
		case !s.ready.Load():
			w.Header().Set("Retry-After", "1")
			p := answer.Problem{Kind: answer.Unavailable, Instance: answer.NewInstance()}
			answer.Write(w, answer.Unavailable, p.Append(nil))
		default:
			s.c.Proxy.ServeHTTP(w, r)
		}
	})
	server := gateway.NewServer(s.endOldConnections(handler), s.c.Log)
	requests, endRequests := context.WithCancel(context.Background())
	server.BaseContext = func(net.Listener) context.Context { return requests }
	server.ConnContext = withBegin
	s.parts = append(s.parts, part{name: "proxy", listener: listener, serve: server.Serve,
		stop: func(ctx context.Context) error {
			// Shutdown does not wait for connections that speak another protocol by now, such as WebSocket.
			return errors.Join(server.Shutdown(ctx), inFlight.wait(ctx))
		},
		cut: func() {
			endRequests()
			_ = server.Close()
			ctx, cancel := context.WithTimeout(context.Background(), cutFor)
			defer cancel()
			_ = inFlight.wait(ctx) // they give places of limits back
		}})
	return nil
}

// handlers counts the requests that are being handled.
type handlers struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when n falls to 0; nil: nobody waits
}

// begin counts a request until the function that it returns is called.
func (h *handlers) begin() (end func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n++
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.n--; h.n == 0 && h.none != nil {
			close(h.none)
			h.none = nil
		}
	}
}

// wait waits until no request is being handled.
func (h *handlers) wait(ctx context.Context) error {
	h.mu.Lock()
	if h.n == 0 {
		h.mu.Unlock()
		return nil
	}
	if h.none == nil {
		h.none = make(chan struct{})
	}
	none := h.none
	h.mu.Unlock()
	select {
	case <-none:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Server) addHTTP(name, address string, handler http.Handler, encrypted *tls.Config) error {
	if address == "" {
		return nil
	}
	listener, err := s.listen(name, address, onlyHTTP1(encrypted))
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: s.endOldConnections(handler), ConnContext: withBegin, ConnState: s.budget.connState,
		ReadHeaderTimeout: handshakeTimeout, ReadTimeout: requestTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:       slog.NewLogLogger(redact.Handler{Handler: s.c.Log.Handler()}, slog.LevelDebug),
	}
	if name != "pprof" { // the operator chooses how long a profile takes
		server.WriteTimeout = requestTimeout
	}
	s.parts = append(s.parts, part{name: name, listener: listener, serve: server.Serve, stop: server.Shutdown,
		cut: func() { _ = server.Close() }})
	return nil
}

// onlyHTTP1 returns a configuration without HTTP/2, which nobody needs beside gRPC: of its connections nobody could say
// when a request is complete. It returns nil for nil.
func onlyHTTP1(c *tls.Config) *tls.Config {
	if c == nil {
		return nil
	}
	c = c.Clone()
	c.NextProtos = []string{"http/1.1"}
	if of := c.GetConfigForClient; of != nil {
		c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			c, err := of(hello)
			return onlyHTTP1(c), err
		}
	}
	return c
}

// beginKey is the key of the time at which a connection over HTTP began, in the contexts of its requests.
type beginKey struct{}

func withBegin(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, beginKey{}, time.Now())
}

// endOldConnections ends a connection over HTTP with the first response after Config.MaxAge.
func (s *Server) endOldConnections(handler http.Handler) http.Handler {
	if s.c.MaxAge == 0 {
		return handler
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if began, ok := r.Context().Value(beginKey{}).(time.Time); ok && time.Since(began) >= s.c.MaxAge {
			w.Header().Set("Connection", "close")
		}
		handler.ServeHTTP(w, r)
	})
}

// recoverPanic logs a panic and turns it into an error: one request must not end the server.
func (s *Server) recoverPanic(
	ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (out any, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.logPanic(p)
			out, err = nil, status.Error(codes.Internal, "internal error")
		}
	}()
	return handle(ctx, req)
}

const notReady = "this instance decides nothing yet: its store of counters has not answered since it started"

// refuseUntilReady answers requests with an error until the stores have answered once. Health checks are answered.
func (s *Server) refuseUntilReady(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (any, error) {
	if _, isHealth := info.Server.(healthv1.HealthServer); !isHealth && !s.ready.Load() {
		return nil, status.Error(codes.Unavailable, notReady)
	}
	return handle(ctx, req)
}

// refuseHTTPUntilReady is refuseUntilReady for requests over HTTP.
func (s *Server) refuseHTTPUntilReady(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.ready.Load() {
			http.Error(w, notReady, http.StatusServiceUnavailable)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// recoverHTTPPanic is recoverPanic for requests over HTTP. If a part of the response has been written, the connection
// is cut, so that the client sees that the response is not complete.
func (s *Server) recoverHTTPPanic(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		response := &statusWriter{ResponseWriter: w}
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if err, isError := p.(error); isError && errors.Is(err, http.ErrAbortHandler) {
				panic(p) // a handler cuts the connection in this way
			}
			s.logPanic(p)
			if response.code != 0 {
				panic(http.ErrAbortHandler)
			}
			http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		}()
		handler.ServeHTTP(response, r)
	})
}

func (s *Server) logPanic(p any) {
	s.c.Log.Error("a request caused a panic and was answered with an error", "panic", p, "stack", string(debug.Stack()))
}

// endStreams ends the streams of health checks once the server stops and they have told that it is not healthy, and
// those of reflection once it stops. Clients keep such streams open for as long as they are connected, so the server
// would wait for them in vain.
func (s *Server) endStreams(
	service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler,
) error {
	if info.FullMethod != healthv1.Health_Watch_FullMethodName {
		ended := make(chan error, 1)
		go func() { ended <- handle(service, stream) }() // it ends with the stream
		select {
		case err := <-ended:
			return err
		case <-s.stopping.Done():
			return status.Error(codes.Unavailable, "the service stops")
		}
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	w := &watch{ServerStream: stream, ctx: ctx, cancel: cancel, stopping: s.stopping}
	defer context.AfterFunc(s.stopping, w.endIfTold)()
	return handle(service, w)
}

// watch is the stream of a health check that has its own context.
type watch struct {
	grpc.ServerStream
	ctx      context.Context
	cancel   context.CancelFunc
	stopping context.Context
	told     atomic.Bool // the last message did not say SERVING
}

// Context implements [grpc.ServerStream].
func (w *watch) Context() context.Context { return w.ctx }

// SendMsg implements [grpc.ServerStream].
func (w *watch) SendMsg(m any) error {
	err := w.ServerStream.SendMsg(m)
	if health, ok := m.(*healthv1.HealthCheckResponse); ok {
		w.told.Store(health.GetStatus() != healthv1.HealthCheckResponse_SERVING)
	}
	if w.stopping.Err() != nil {
		w.endIfTold()
	}
	return err
}

// endIfTold ends the stream if the client knows that the server is not healthy.
func (w *watch) endIfTold() {
	if w.told.Load() {
		w.cancel()
	}
}

// setServing sets whether health checks report the server as healthy.
func (s *Server) setServing(serving bool) {
	state := healthv1.HealthCheckResponse_NOT_SERVING
	if serving {
		state = healthv1.HealthCheckResponse_SERVING
	}
	s.serving.Store(serving)
	s.health.SetServingStatus("", state)
	s.health.SetServingStatus(HealthName, state)
}

// Serve serves until the context ends. Then health checks report that the server is not healthy, but it takes requests
// for Config.DrainFor. After that it ends the streams of health checks, and waits for the requests in flight, for
// Config.Grace at most. A value on again ends both waits: Serve then closes all connections and returns.
func (s *Server) Serve(ctx context.Context, again <-chan struct{}) error {
	if s.c.Ready == nil { // before the first request can arrive
		s.becomeReady()
	}
	failed := make(chan error, len(s.parts))
	var running sync.WaitGroup
	for _, p := range s.parts {
		s.c.Log.Info("listening", "server", p.name, "address", p.listener.Addr().String())
		running.Go(func() {
			if err := p.serve(p.listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("%s server: %w", p.name, err)
			}
		})
	}
	sweeping, endSweeping := context.WithCancel(context.Background())
	defer endSweeping()
	go s.budget.run(sweeping)
	err := s.untilStopped(ctx, failed)
	s.setServing(false)
	if err == nil {
		err = s.drain(again)
	} else {
		s.cut()
	}
	running.Wait()
	return err
}

// untilStopped reports that the server is healthy once it is ready, and waits until the context ends or a server fails,
// whose error it returns.
func (s *Server) untilStopped(ctx context.Context, failed <-chan error) error {
	ready := s.c.Ready
	for {
		select {
		case <-ready:
			ready = nil
			s.becomeReady()
		case err := <-failed:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *Server) becomeReady() {
	s.ready.Store(true)
	s.setServing(true)
}

// drain stops the servers as described at Serve.
func (s *Server) drain(again <-chan struct{}) error {
	s.c.Log.Info("stopping: health checks fail from now on, and requests in flight may finish", "drain", s.c.DrainFor,
		"grace", s.c.Grace)
	if s.c.DrainFor > 0 {
		wait := time.NewTimer(s.c.DrainFor)
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-again:
			s.cut()
			return errCut
		}
	}
	s.stop()
	ctx, cancel := context.WithTimeout(context.Background(), s.c.Grace)
	defer cancel()
	stopped := make(chan error, len(s.parts))
	for _, p := range s.parts {
		go func() { stopped <- p.stop(ctx) }()
	}
	for range s.parts {
		select {
		case err := <-stopped:
			if err != nil {
				s.cut()
				return fmt.Errorf("requests were still in flight after %s and were cut off", s.c.Grace)
			}
		case <-again:
			s.cut()
			return errCut
		}
	}
	return nil
}

var errCut = errors.New("stopped at once by a second signal; requests in flight were cut off")

func (s *Server) cut() {
	for _, p := range s.parts {
		p.cut()
	}
}
