// Package middleware puts Sluice in front of any http.Handler. [Limit] decides by itself. [Behind] is for a service
// behind API Gateway, where Sluice's authorizer has decided already. It gives clients the answer that the gateway
// cannot give.
//
// Both remove from a request the headers by which services trust Sluice (X-Sluice-…, RateLimit…, X-RateLimit-…), write
// the caller in their place, percent-encoded, and tell it to handlers by [FromContext]. Both set the rate-limit headers
// of each answer last, and so replace what the handler wrote there. Handlers can flush, hijack and stream as without
// them.
//
// Answers that the handler does not write have a body of type application/problem+json. CORS preflight requests carry
// no credential: put the handler for them in front.
package middleware

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/caller"
	"github.com/sluicelimits/sluice/internal/plan/route"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/forward"
)

// Caller says who calls.
type Caller = caller.Caller

// FromContext returns the caller. It returns false if neither Limit nor Behind is in front of the handler.
func FromContext(ctx context.Context) (Caller, bool) { return caller.FromContext(ctx) }

// Option changes [Limit].
type Option func(*options)

type options struct {
	identify func(*http.Request) (sluice.Identity, error)
	costs    func(*http.Request) sluice.Costs
	observe  func(*http.Request, *sluice.Decision)
	reserve  time.Duration
	used     func(*http.Request, *Response) sluice.Costs
	methods  []string // that are served; none: every method
}

// WithIdentity is for a program with an authentication of its own. f returns who calls, and API keys and tokens are
// ignored. f is called after the ipLimits let the request pass. Its error is sluice.ErrNoCredential or ErrUnidentified,
// or wraps one of them. Any other error is answered with a 401. The 401 has a WWW-Authenticate header only if a handler
// in front of Limit has set one.
func WithIdentity(f func(*http.Request) (sluice.Identity, error)) Option {
	return func(o *options) { o.identify = f }
}

// WithCosts sets a function that returns what a request spends, by unit. It is called before the decision. The plan
// says the cost in a unit that the function does not name, so leave out what is not known, such as a ContentLength of
// -1. Never let a client choose a cost: a header is the client's, unless your own edge sets it.
func WithCosts(f func(*http.Request) sluice.Costs) Option {
	return func(o *options) { o.costs = f }
}

// WithObserver calls f with each decision, before the request is answered or reaches the handler. It is for logs and
// metrics.
func WithObserver(f func(*http.Request, *sluice.Decision)) Option {
	return func(o *options) { o.observe = f }
}

// Response is what a handler has answered.
type Response struct {
	Status int         // 0 if the handler took over the connection, or aborted before it answered
	Header http.Header // as sent
	Bytes  int64       // of the body, as sent
}

// WithReservation makes a reservation of each request's costs, which lasts for ttl, 0 < ttl ≤ sluice.MaxReservation,
// and settles it when the handler has returned, or has aborted the answer by http.ErrAbortHandler, as a reverse proxy
// does if the client has gone away. used returns what the request has used, by unit; it is not called after any other
// panic, and the costs then count as used. If used is nil, the handler settles the reservation of [Decision]. See
// [sluice.Limiter.Settle].
func WithReservation(ttl time.Duration, used func(*http.Request, *Response) sluice.Costs) Option {
	return func(o *options) { o.reserve, o.used = ttl, used }
}

// WithMethods replaces the list of methods that reach the handler, which is GET, HEAD, POST, PUT, PATCH, DELETE and
// OPTIONS. Without arguments, every method does: a handler that does the work of GET for an unknown method then serves
// it uncounted by limits that name GET.
func WithMethods(methods ...string) Option {
	return func(o *options) {
		o.methods = nil
		for _, m := range methods {
			o.methods = append(o.methods, route.CanonicalMethod(m))
		}
	}
}

// Limit decides about each request before the handler. It answers 401 without a good credential, 403 to tenants that
// may not call, 404 for routes that the plans do not declare, and 429 over a limit.
//
// Three kinds of requests are answered with 400 and reach neither the limits nor the handler: a method that is not on
// the list of [WithMethods], such as TRACE or FOO; a target that is a URL inside a URL; and a path that leads above the
// root in any way in which a server might read it, as "/../a" and "/..%2Fa" do. A reverse proxy with a base path behind
// Limit would turn the last kind into a path that no limit has counted. If a proxy replaces the beginning of a path,
// put Limit behind that proxy: Limit must see the path that the backend serves.
//
// A request that takes a place of a limit with concurrency keeps it until the handler has returned or panicked. So a
// handler that takes over the connection must not return before it has served it.
//
// Without issuers of tokens and without API keys in the plans, credentials are not checked, and the handler gets each
// as it was sent. The anonymousPlan applies to all requests. Plans that consist of ipLimits and routes alone limit
// addresses and nothing else. If there are plans or tenants but no anonymousPlan, everybody gets a 401, because nobody
// can be identified.
func Limit(limiter *sluice.Limiter, opts ...Option) func(http.Handler) http.Handler {
	o := options{methods: route.UsualMethods()}
	for _, opt := range opts {
		opt(&o)
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if uncountable(r.URL) || len(o.methods) > 0 && !route.IsOneOf(o.methods, r.Method) {
				problem := answer.Problem{Kind: answer.BadRequest, Instance: answer.NewInstance()}
				answer.Write(w, problem.Kind, problem.Append(nil))
				return
			}
			req := sluice.RequestOf(r)
			if o.costs != nil {
				req.Costs = o.costs(r)
			}
			req.ReserveFor = o.reserve
			if o.identify != nil {
				req.Identify = func(context.Context) (sluice.Identity, error) { return o.identify(r) }
			}
			d := limiter.Authorize(r.Context(), req)
			defer limiter.Hold(d.Reservation())() // it ends after the settlement, which gives places back, too
			if o.observe != nil {
				o.observe(r, &d)
			}
			if !d.Allowed {
				write := answer.Write
				if o.identify != nil {
					write = answer.WriteUnchallenged
				}
				refuse(w, &d, write)
				return
			}
			ctx := context.WithValue(r.Context(), decisionKey{}, &d)
			var ended func(*Response)
			if o.used != nil && o.reserve > 0 {
				ended = func(answered *Response) { settle(limiter, r, &d, o.used(r, answered)) }
			}
			pass(next, w, r.WithContext(ctx), d.SetHeaders,
				&Caller{Tenant: d.Tenant, Subject: d.Subject, Plan: d.Plan, KeyID: d.KeyID,
					Anonymous: d.Anonymous, StoreFailed: d.StoreFailed}, ended)
		})
	}
}

// settle settles the reservation of a request that was answered. An error is logged: the answer has been sent.
func settle(limiter *sluice.Limiter, r *http.Request, d *sluice.Decision, used sluice.Costs) {
	if _, err := limiter.Settle(context.WithoutCancel(r.Context()), d.Reservation(), used); err != nil {
		slog.Warn("what a request has used could not be settled; its costs count as used", "tenant", d.Tenant,
			"error", err)
	}
}

// uncountable reports whether a handler may read another path in a URL than the limits do. A reverse proxy forwards a
// URL inside a URL as it is, and a path that leads above the root leaves the base path of a reverse proxy.
func uncountable(u *url.URL) bool {
	path := route.Clean(u.EscapedPath())
	return u.Opaque != "" || path.Climbs()
}

func refuse(w http.ResponseWriter, d *sluice.Decision, write func(http.ResponseWriter, answer.Kind, []byte)) {
	kind, ok := answer.ParseKind(string(d.Reason))
	if !ok || kind == answer.Allowed { // not reached: each reason is the name of a kind
		kind = answer.Internal
	}
	d.SetHeaders(w.Header())
	write(w, kind, d.Problem())
}

type decisionKey struct{}

// Decision returns what Limit decided about the request of a handler. It returns false if Limit is not in
// front of the handler.
func Decision(ctx context.Context) (*sluice.Decision, bool) {
	d, ok := ctx.Value(decisionKey{}).(*sluice.Decision)
	return d, ok
}

// pass calls the handler. It copies the request's headers before it changes them, because handlers in front still read
// them. If ended is not nil, it gets what the handler answered, also if the answer was aborted.
func pass(next http.Handler, w http.ResponseWriter, r *http.Request, last func(http.Header), who *Caller,
	ended func(*Response),
) {
	r = r.WithContext(caller.NewContext(r.Context(), *who))
	r.Header = maps.Clone(r.Header)
	if r.Header == nil {
		r.Header = make(http.Header)
	}
	forward.Write(r.Header, who)
	last(w.Header()) // for a handler that reads these headers, or hijacks
	out := &writer{ResponseWriter: w, last: last}
	if ended == nil {
		next.ServeHTTP(wrap(out), r)
		return
	}
	defer func() {
		cause := recover()
		if cause == nil || cause == http.ErrAbortHandler { //nolint:errorlint // the server compares it in this way
			if cause == nil && !out.sent && !out.hijacked { // the server will answer 200, without a body
				out.status = http.StatusOK
			}
			ended(&Response{Status: out.status, Header: w.Header(), Bytes: out.bytes})
		}
		if cause != nil {
			panic(cause)
		}
	}()
	next.ServeHTTP(wrap(out), r)
}

// writer sets the rate-limit headers just before the response begins.
type writer struct {
	http.ResponseWriter
	last     func(http.Header)
	sent     bool
	hijacked bool
	status   int
	bytes    int64
}

// Unwrap lets http.ResponseController use the methods of the server's own writer.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader adds the headers to the final answer. It passes an interim answer (1xx) unchanged.
func (w *writer) WriteHeader(status int) {
	if status >= 200 {
		w.begin(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *writer) begin(status int) {
	if !w.sent {
		w.sent, w.status = true, status
		w.last(w.Header())
	}
}

func (w *writer) Write(b []byte) (int, error) {
	w.begin(http.StatusOK)
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err
}

// ReadFrom keeps sendfile available to handlers that copy a file.
func (w *writer) ReadFrom(r io.Reader) (int64, error) {
	w.begin(http.StatusOK)
	n, err := io.Copy(w.ResponseWriter, r)
	w.bytes += n
	return n, err
}

// flush and hijack do the work of the methods that http.ResponseController and handlers look for.
func (w *writer) flush() error {
	w.begin(http.StatusOK)
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *writer) hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, both, err := http.NewResponseController(w.ResponseWriter).Hijack()
	w.hijacked = w.hijacked || err == nil
	return conn, both, err
}

type flusher struct{ *writer }

func (f flusher) Flush()            { _ = f.flush() } // the interface has no error
func (f flusher) FlushError() error { return f.flush() }

type hijacker struct{ *writer }

func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) { return h.hijack() }

type both struct{ *writer }

func (b both) Flush()                                       { _ = b.flush() } // the interface has no error
func (b both) FlushError() error                            { return b.flush() }
func (b both) Hijack() (net.Conn, *bufio.ReadWriter, error) { return b.hijack() }

// wrap returns a writer that implements the interfaces that the server's writer implements, and no others. Handlers
// choose by these interfaces how to answer.
func wrap(w *writer) http.ResponseWriter {
	flushes, hijacks := can[http.Flusher](w.ResponseWriter), can[http.Hijacker](w.ResponseWriter)
	switch {
	case flushes && hijacks:
		return both{w}
	case flushes:
		return flusher{w}
	case hijacks:
		return hijacker{w}
	}
	return w
}

// can reports whether a writer, or a writer that it wraps, implements the interface T.
func can[T any](w http.ResponseWriter) bool {
	for {
		if _, ok := w.(T); ok {
			return true
		}
		inner, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return false
		}
		w = inner.Unwrap()
	}
}
