// Package middleware puts Sluice in front of any http.Handler: [Limit] limits by itself; [Behind] stands in a service
// behind API Gateway, where Sluice's authorizer has decided already, and gives clients the answer that the gateway
// cannot.
//
// Both remove from a request the headers by which services believe Sluice (X-Sluice-…, RateLimit…, X-RateLimit-…),
// write who calls in their place, percent-encoded, and tell handlers by [FromContext]. Both set the rate-limit headers
// of each answer at the last moment, over what the handler said. Handlers flush, hijack and stream as they do without.
//
// Answers that are not the handler's have a body of type application/problem+json. Preflight requests of CORS carry no
// credential: handlers for those stand in front.
package middleware

import (
	"bufio"
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/caller"
	"github.com/sluicelimits/sluice/internal/plan/route"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/forward"
)

// Caller is who calls.
type Caller = caller.Caller

// FromContext is who calls; false where neither Limit nor Behind stands before the handler.
func FromContext(ctx context.Context) (Caller, bool) { return caller.FromContext(ctx) }

// Option changes [Limit].
type Option func(*options)

type options struct {
	identify func(*http.Request) (sluice.Identity, error)
	observe  func(*http.Request, *sluice.Decision)
}

// WithIdentity is for a program with an authentication of its own: f says who calls, and API keys and tokens are not
// looked at. It is called after the ipLimits let the request pass. Its error is sluice.ErrNoCredential or
// ErrUnidentified, or wraps one of them; any other is a 401.
func WithIdentity(f func(*http.Request) (sluice.Identity, error)) Option {
	return func(o *options) { o.identify = f }
}

// WithObserver has f called with each decision, before it is answered or handed on, for logs and metrics.
func WithObserver(f func(*http.Request, *sluice.Decision)) Option {
	return func(o *options) { o.observe = f }
}

// Limit decides about each request before the handler: 401 without a good credential, 403 for tenants that may not
// call, 404 for routes that the plans do not declare, 429 over a limit.
//
// Two kinds of requests are a 400 and reach neither the limits nor the handler: a target that is a URL inside a URL,
// and a path that leads above the root in any way in which a server might read it, as "/../a" and "/..%2Fa" do. A
// reverse proxy with a base path behind Limit would turn the latter into a path that no limit has counted. If a proxy
// replaces the beginning of a path by another one, put Limit behind the part that does so: it must see the path that
// the backend serves.
//
// Without issuers of tokens and without API keys in the plans, no credential is judged, and the handler gets each as it
// was sent. Requests are then under the anonymousPlan. Plans that consist of ipLimits and routes alone limit addresses
// and nothing else; plans or tenants without an anonymousPlan are a 401 for everybody, since nothing can tell who
// calls.
func Limit(limiter *sluice.Limiter, opts ...Option) func(http.Handler) http.Handler {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if uncountable(r.URL) {
				problem := answer.Problem{Kind: answer.BadRequest, Instance: answer.NewInstance()}
				answer.Write(w, problem.Kind, problem.Append(nil))
				return
			}
			req := sluice.RequestOf(r)
			if o.identify != nil {
				req.Identify = func(context.Context) (sluice.Identity, error) { return o.identify(r) }
			}
			d := limiter.Authorize(r.Context(), req)
			if o.observe != nil {
				o.observe(r, &d)
			}
			if !d.Allowed {
				refuse(w, d.Reason, &d)
				return
			}
			ctx := context.WithValue(r.Context(), decisionKey{}, &d)
			pass(next, w, r.WithContext(ctx), d.SetHeaders,
				&Caller{Tenant: d.Tenant, Subject: d.Subject, Plan: d.Plan, KeyID: d.KeyID,
					Anonymous: d.Anonymous, StoreFailed: d.StoreFailed})
		})
	}
}

// uncountable reports whether a handler may read another path in a URL than the limits do: a reverse proxy hands on a
// URL inside a URL as it is, and one with a base path is led out of it by a path that climbs above the root.
func uncountable(u *url.URL) bool {
	path := route.Clean(u.EscapedPath())
	return u.Opaque != "" || path.Climbs()
}

func refuse(w http.ResponseWriter, reason sluice.Reason, d *sluice.Decision) {
	kind, ok := answer.ParseKind(string(reason))
	if !ok || kind == answer.Allowed { // not reached: a reason is the name of a kind
		kind = answer.Internal
	}
	d.SetHeaders(w.Header())
	answer.Write(w, kind, d.Problem())
}

type decisionKey struct{}

// Decision is what Limit decided about the request of a handler, for refunds; false behind anything but Limit.
func Decision(ctx context.Context) (*sluice.Decision, bool) {
	d, ok := ctx.Value(decisionKey{}).(*sluice.Decision)
	return d, ok
}

// pass hands a request on. The request's headers are copied before they are changed: who stands in front still reads
// them.
func pass(next http.Handler, w http.ResponseWriter, r *http.Request, last func(http.Header), who *Caller) {
	r = r.WithContext(caller.NewContext(r.Context(), *who))
	r.Header = maps.Clone(r.Header)
	if r.Header == nil {
		r.Header = make(http.Header)
	}
	forward.Write(r.Header, who)
	last(w.Header()) // for a handler that looks, or hijacks
	next.ServeHTTP(wrap(&writer{ResponseWriter: w, last: last}), r)
}

// writer sets the rate-limit headers at the last moment.
type writer struct {
	http.ResponseWriter
	last func(http.Header)
	sent bool
}

// Unwrap lets http.ResponseController reach what the server's own writer can do.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader adds the headers to the final answer. An interim one (1xx) passes as it is.
func (w *writer) WriteHeader(status int) {
	if status >= 200 {
		w.begin()
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *writer) begin() {
	if !w.sent {
		w.sent = true
		w.last(w.Header())
	}
}

func (w *writer) Write(b []byte) (int, error) {
	w.begin()
	return w.ResponseWriter.Write(b)
}

// ReadFrom keeps sendfile for handlers that copy a file.
func (w *writer) ReadFrom(r io.Reader) (int64, error) {
	w.begin()
	return io.Copy(w.ResponseWriter, r)
}

// FlushError and the next are what http.ResponseController and handlers that ask for the interfaces find.
func (w *writer) flush() error {
	w.begin()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *writer) hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.ResponseWriter).Hijack()
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

// wrap offers a handler what the server's writer can do, and nothing that it cannot: handlers decide by that how to
// answer.
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

// can reports whether a writer, or one that it wraps, has the interface.
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
