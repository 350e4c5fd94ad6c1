// Package gateway is the local HTTP gateway: it asks the authorizer about every request and passes what is allowed to an
// upstream, or to a built-in echo.
package gateway

import (
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/answer"
	"github.com/sluicelimits/sluice/internal/livepage"
)

// DefaultMaxBodyBytes is what API Gateway takes, too.
const DefaultMaxBodyBytes = 10 << 20

// Config sets up a [Gateway].
type Config struct {
	Authorizer   *authorizer.Authorizer // required
	Upstream     *url.URL               // nil is the echo
	TrustedHops  int                    // as the authorizer's: with it the upstream sees the whole X-Forwarded-For
	Recorder     *livepage.Recorder     // nil records nothing
	LivePage     http.Handler           // at /_sluice/, with the prefix stripped; nil is none
	Audience     Audience               // of the live page; default Loopback
	MaxBodyBytes int64                  // of a request; 0 is DefaultMaxBodyBytes, below 0 no bound
	Log          *slog.Logger           // default slog.Default()
}

// Gateway is an http.Handler. It is safe for concurrent use. Make it with [New].
type Gateway struct {
	c        Config
	backend  http.Handler
	livePage http.Handler
	panics   atomic.Int64
}

// New makes a gateway.
func New(c Config) (*Gateway, error) {
	if c.Authorizer == nil {
		return nil, errors.New("gateway: Authorizer is missing")
	}
	if c.MaxBodyBytes == 0 {
		c.MaxBodyBytes = DefaultMaxBodyBytes
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	g := &Gateway{c: c, backend: http.HandlerFunc(echo)}
	if c.Upstream != nil {
		if err := CheckUpstream(c.Upstream); err != nil {
			return nil, err
		}
		g.backend = g.newProxy()
	}
	if c.LivePage != nil {
		g.livePage = http.StripPrefix(strings.TrimSuffix(reservedPrefix, "/"), c.LivePage)
	}
	return g, nil
}

// Panics is how many requests ended in a panic that was caught.
func (g *Gateway) Panics() int64 { return g.panics.Load() }

// ServeHTTP answers one request. Whatever a request holds, it has an answer: a panic is caught, logged and answered.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out := &response{ResponseWriter: w}
	defer g.recover(out, r)
	switch {
	case reserved(r.URL.Path):
		g.serveReserved(out, r)
	case r.Method == http.MethodConnect:
		writeProblem(out, answer.BadRequest, answer.NewInstance())
	case g.c.MaxBodyBytes > 0 && r.ContentLength > g.c.MaxBodyBytes:
		writeProblem(out, answer.TooLarge, answer.NewInstance())
	default:
		g.serve(out, r)
	}
}

func (g *Gateway) serve(w *response, r *http.Request) {
	req := authorizer.Request{Method: r.Method, Path: r.URL.EscapedPath(), Header: r.Header, Peer: r.RemoteAddr}
	a := g.c.Authorizer.Authorize(r.Context(), &req)
	defer a.Release()
	g.observe(a, r)
	w.limits = &a.Header
	a.Header.Set(w.Header())
	if !a.Allowed() {
		g.logDenied(a, r)
		writeBody(w, a.Kind, a.AppendProblem(make([]byte, 0, 768)))
		return
	}
	if g.c.MaxBodyBytes > 0 && r.Body != nil && r.ContentLength != 0 {
		r.Body = http.MaxBytesReader(w.ResponseWriter, r.Body, g.c.MaxBodyBytes)
	}
	cleanHeaders(r.Header, a)
	g.backend.ServeHTTP(w, r)
}

// recover turns a panic into a 500, where the answer has not begun, and a line in the log.
func (g *Gateway) recover(w *response, r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if p == http.ErrAbortHandler { //nolint:errorlint // the very value is how a handler asks to cut the connection
		panic(p)
	}
	g.panics.Add(1)
	instance := answer.NewInstance()
	g.c.Log.Error("a request made the gateway panic", "instance", instance, "method", r.Method, "path", bounded(r.URL.Path),
		"panic", p, "stack", redact(string(debug.Stack())))
	if w.status != 0 {
		panic(http.ErrAbortHandler) // half an answer is out: cutting the connection is the only way to say so
	}
	writeProblem(w, answer.Internal, instance)
}

func (g *Gateway) logDenied(a *authorizer.Answer, r *http.Request) {
	g.c.Log.DebugContext(r.Context(), "denied", "outcome", a.Kind.String(), "tenant", a.Tenant, "method", r.Method,
		"path", bounded(a.Path()), "source", a.Source, "instance", a.Instance)
}

// observe tells the live page.
func (g *Gateway) observe(a *authorizer.Answer, r *http.Request) {
	if g.c.Recorder == nil {
		return
	}
	g.c.Recorder.Observe(&livepage.Observation{At: a.At, Outcome: outcome(a), Tenant: a.Tenant, Method: r.Method,
		Path: a.Path(), Decision: a.Decision(), IPDecision: a.IPDecision()})
}

func outcome(a *authorizer.Answer) livepage.Outcome {
	switch a.Kind {
	case answer.Allowed:
		return livepage.Allowed
	case answer.IPLimited:
		return livepage.IPLimited
	case answer.Limited, answer.NeverFits:
		return livepage.Limited
	case answer.NoCredential, answer.BadCredential:
		return livepage.Unauthorized
	case answer.NoRoute:
		return livepage.NotFound
	case answer.Unavailable, answer.Unidentified:
		return livepage.StoreFailed
	default:
		return livepage.Forbidden
	}
}

// writeProblem answers a request that no limits were asked about.
func writeProblem(w *response, k answer.Kind, instance string) {
	if w.limits == nil {
		w.limits = new(answer.Header)
	}
	p := answer.Problem{Kind: k, Instance: instance}
	writeBody(w, k, p.Append(nil))
}

func writeBody(w *response, k answer.Kind, body []byte) {
	h := w.Header()
	h.Set("Content-Type", answer.ContentType)
	h.Set("Cache-Control", "no-store") // a cached 429 would outlast its wait
	h.Set("X-Content-Type-Options", "nosniff")
	switch k {
	case answer.NoCredential:
		h.Set("WWW-Authenticate", `Bearer realm="sluice"`)
	case answer.BadCredential:
		h.Set("WWW-Authenticate", `Bearer realm="sluice", error="invalid_token"`)
	default: // no credential is asked for
	}
	w.WriteHeader(k.Status())
	_, _ = w.Write(append(body, '\n')) // the client may be gone, and there is nobody else to tell
}

// response sets the rate-limit headers at the last moment, over whatever the backend said, and remembers the status.
type response struct {
	http.ResponseWriter
	limits *answer.Header
	status int // 0 as long as nothing was sent
}

// Unwrap lets http.ResponseController reach what the server's own writer can do.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader adds the headers to the final answer. An interim one (1xx) passes as it is.
func (w *response) WriteHeader(status int) {
	if status >= 200 && w.status == 0 {
		w.status = status
		if w.limits != nil {
			w.limits.Set(w.Header())
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *response) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(b)
}

// bounded cuts a text for logs and pages.
func bounded(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}

// NewServer wraps a handler in a server that a slow or greedy client cannot hold up.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(redactor{log.Handler()}, slog.LevelWarn),
	}
}
