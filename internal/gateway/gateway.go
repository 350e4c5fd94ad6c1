// Package gateway is the HTTP gateway of sluice proxy and sluice dev: it asks the authorizer about every request and
// passes what is allowed to an upstream, or to a built-in echo.
package gateway

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/limiter/inflight"
	"github.com/sluicelimits/sluice/internal/plan/route"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/forward"
)

// Config sets up a [Gateway].
type Config struct {
	Authorizer *authorizer.Authorizer // required
	Upstream   *url.URL               // nil selects the echo
	// as for the authorizer; above 0, the upstream gets the client's X-Forwarded-For
	TrustedHops int
	Places      *inflight.Keeper // nil: nobody gives places of limits with concurrency back
	// Decided is called after each decision with its duration; nil calls nothing. The answer is valid until it returns.
	Decided  func(a *authorizer.Answer, r *http.Request, took time.Duration)
	LivePage http.Handler // gets requests below /_sluice/, with that prefix removed; nil: no live page
	Audience Audience     // who may see the live page; default Loopback
	Log      *slog.Logger // default slog.Default()
}

// Gateway is the http.Handler of the local gateway. It is safe for concurrent use. Make it with [New].
type Gateway struct {
	c       Config
	backend http.Handler
	panics  atomic.Int64

	warned  atomic.Int64 // when the last failure of the upstream was logged, in seconds since 1970
	skipped atomic.Int64 // failures since then
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
	g.backend = http.HandlerFunc(g.echo)
	if c.Upstream != nil {
		if err := CheckUpstream(c.Upstream); err != nil {
			return nil, err
		}
		g.backend = g.proxy()
	}
	return g, nil
}

// Panics returns how many requests ended in a panic that was caught.
func (g *Gateway) Panics() int64 { return g.panics.Load() }

// rewrite makes the request to the upstream from an admitted request.
func (g *Gateway) rewrite(p *httputil.ProxyRequest) {
	p.SetURL(g.c.Upstream)
	for _, name := range []string{"X-Original-Url", "X-Rewrite-Url"} { // some backends serve their path instead
		delete(p.Out.Header, name)
	}
	for _, name := range forward.Names { // the proxy removes headers that the client names in Connection
		if v := p.In.Header[name]; v != nil {
			p.Out.Header[name] = v
		}
	}
	if g.c.TrustedHops > 0 { // the operator's own proxies wrote it; without them, a client may have forged it
		p.Out.Header["X-Forwarded-For"] = p.In.Header["X-Forwarded-For"]
	}
	p.SetXForwarded()
}

// serve asks the authorizer about a request that is not for a reserved page, and passes it on or denies it. A path that
// leads above the root is refused without asking.
func (g *Gateway) serve(w *response, r *http.Request) {
	path := r.URL.EscapedPath()
	if clean := route.Clean(path); clean.Climbs() { // such a path could lead out of the path of Upstream
		g.refuse(w, answer.BadRequest, answer.NewInstance())
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
		answer.Write(w, a.Kind, a.AppendProblem(make([]byte, 0, 768)))
		return
	}
	if d := a.Decision(); d != nil && g.c.Places != nil && inflight.HoldFor(d) > 0 {
		defer g.c.Places.Take(d.Receipt()).Hold()()
	}
	cleanHeaders(r.Header, a)
	g.backend.ServeHTTP(w, r)
}

// refuse answers with a problem, and with the RateLimit headers if there was a decision. instance is the URI of this
// occurrence; a line in the log may name it, too.
func (g *Gateway) refuse(w *response, k answer.Kind, instance string) {
	if w.last == nil {
		w.last = new(answer.Header)
	}
	p := answer.Problem{Kind: k, Instance: instance}
	answer.Write(w, k, p.Append(nil))
}

func (g *Gateway) logDenied(a *authorizer.Answer, r *http.Request) {
	g.c.Log.DebugContext(r.Context(), "denied", "outcome", a.Kind.String(), "tenant", a.Tenant, "method", r.Method,
		"path", bounded(a.Path()), "source", a.Source, "instance", a.Instance)
}
