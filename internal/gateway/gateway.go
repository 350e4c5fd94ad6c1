// Package gateway is the HTTP gateway of sluice proxy and sluice dev: it asks the authorizer about every request and
// passes what is allowed to an upstream, or to a built-in echo.
package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/limiter/inflight"
	"github.com/sluicelimits/sluice/internal/plan/route"
	"github.com/sluicelimits/sluice/internal/request/answer"
)

// Config sets up a [Gateway].
type Config struct {
	Authorizer *authorizer.Authorizer // required
	Upstreams  []Upstream             // no two for the same host and path; none: the echo
	// as for the authorizer; above 0, the upstream gets the client's X-Forwarded-For
	TrustedHops     int
	UpstreamTimeout time.Duration    // for the headers of an upstream's answer; 0 selects DefaultUpstreamTimeout
	MaxBody         int64            // largest body of a request, in bytes; 0: any
	Places          *inflight.Keeper // nil: nobody gives places of limits with concurrency back
	// Decided is called after each decision with its duration; nil calls nothing. The answer is valid until it returns.
	Decided  func(a *authorizer.Answer, r *http.Request, took time.Duration)
	LivePage http.Handler // gets requests below /_sluice/, with that prefix removed; nil: no live page
	Audience Audience     // who may see the live page; default Loopback
	Log      *slog.Logger // default slog.Default()
}

// Gateway is the http.Handler of the local gateway. It is safe for concurrent use. Make it with [New].
type Gateway struct {
	c           Config
	toUpstreams []*backend // none: the echo
	buffers     buffers
	panics      atomic.Int64
}

// New makes a gateway.
func New(c Config) (*Gateway, error) {
	if c.Authorizer == nil {
		return nil, errors.New("gateway: Authorizer is missing")
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.LivePage != nil {
		c.LivePage = http.StripPrefix(strings.TrimSuffix(reservedPrefix, "/"), c.LivePage)
	}
	g := &Gateway{c: c}
	var err error
	if g.toUpstreams, err = g.backends(); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	return g, nil
}

// Panics returns how many requests ended in a panic that was caught.
func (g *Gateway) Panics() int64 { return g.panics.Load() }

// serve asks the authorizer about a request that is not for a reserved page, and passes it on or denies it. A path that
// leads above the root is refused without asking.
func (g *Gateway) serve(w *response, r *http.Request) {
	path := r.URL.EscapedPath()
	clean := route.Clean(path)
	if clean.Climbs() { // such a path could lead out of the path of an upstream
		g.refuse(w, r, answer.BadRequest, answer.NewInstance())
		return
	}
	req := authorizer.Request{Method: r.Method, Path: path, Header: r.Header, Peer: r.RemoteAddr}
	began := time.Now()
	a := g.c.Authorizer.Authorize(r.Context(), &req)
	defer a.Release()
	if g.c.Decided != nil {
		g.c.Decided(a, r, time.Since(began))
	}
	w.last = &a.Header
	a.Header.Set(w.Header())
	if !a.Allowed() {
		g.logDenied(a, r)
		a.LogRefusal(r.Context())
		write(w, r, a.Kind, a.AppendProblem(make([]byte, 0, 768)))
		return
	}
	backend, kind := g.backend(r, &clean)
	if backend == nil {
		g.refuse(w, r, kind, answer.NewInstance())
		return
	}
	if d := a.Decision(); d != nil && g.c.Places != nil && inflight.HoldFor(d) > 0 {
		defer g.c.Places.Take(d.Receipt()).Hold()()
	}
	cleanHeaders(r.Header, a)
	if r.ProtoMajor == 1 {
		// The upstream may answer before it has read the body. Without this, net/http would then throw a part of the
		// body away. The error says that the writer is not one of net/http.
		_ = http.NewResponseController(w).EnableFullDuplex()
	}
	if r.Body != nil {
		r.Body = &clientBody{r.Body}
	}
	backend.ServeHTTP(w, r)
}

// refuse answers with a problem, and with the RateLimit headers if there was a decision. instance is the URI of this
// occurrence; a line in the log may name it, too.
func (g *Gateway) refuse(w *response, r *http.Request, k answer.Kind, instance string) {
	if w.last == nil {
		w.last = new(answer.Header)
	}
	p := answer.Problem{Kind: k, Instance: instance}
	write(w, r, k, p.Append(nil))
}

func (g *Gateway) logDenied(a *authorizer.Answer, r *http.Request) {
	g.c.Log.DebugContext(r.Context(), "denied", "outcome", a.Kind.String(), "tenant", a.Tenant, "method", r.Method,
		"path", bounded(a.Path()), "source", a.Source, "instance", a.Instance)
}
