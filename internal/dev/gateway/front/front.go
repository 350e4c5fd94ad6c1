// Package front holds what all local gateways have in common: the server, the reserved pages below /_sluice/, recovery
// from panics, bounds of request bodies, and the proxy to an upstream.
package front

import (
	"cmp"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/plan/route"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/redact"
)

// DefaultMaxBodyBytes is API Gateway's bound of a request body, too.
const DefaultMaxBodyBytes = 10 << 20

// Handler is the part in which gateways differ.
type Handler interface {
	// Serve answers a request that is not for a reserved page. If request bodies are bounded, r.Body is.
	Serve(w *Response, r *http.Request)
	// Refuse answers a request that cannot be served. kind is one of answer.BadRequest, TooLarge, SlowBody, Internal,
	// UpstreamDown and UpstreamTimeout. instance is the URI of this occurrence; a line in the log may name it, too.
	Refuse(w *Response, r *http.Request, kind answer.Kind, instance string)
}

// Config sets up a [Front].
type Config struct {
	Handler      Handler      // required
	LivePage     http.Handler // gets requests below /_sluice/, with that prefix removed; nil: there is no live page
	Audience     Audience     // who may see the live page; default Loopback
	MaxBodyBytes int64        // of a request; 0 selects DefaultMaxBodyBytes, below 0 there is no bound
	Methods      []string     // that are served, in upper case; nil selects route.UsualMethods, empty: every method
	Log          *slog.Logger // default slog.Default()
}

// Front is the http.Handler of a gateway. It is safe for concurrent use. Make it with [New].
type Front struct {
	c      Config
	panics atomic.Int64
}

// New makes a front.
func New(c Config) *Front {
	if c.MaxBodyBytes == 0 {
		c.MaxBodyBytes = DefaultMaxBodyBytes
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Methods == nil {
		c.Methods = route.UsualMethods()
	}
	if c.LivePage != nil {
		c.LivePage = http.StripPrefix(strings.TrimSuffix(reservedPrefix, "/"), c.LivePage)
	}
	return &Front{c: c}
}

// Panics returns how many requests ended in a panic that was caught.
func (f *Front) Panics() int64 { return f.panics.Load() }

// ServeHTTP implements http.Handler. It catches and logs a panic of the handler, and answers the request nevertheless.
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out := &Response{ResponseWriter: w}
	defer f.recover(out, r)
	switch bounded := f.c.MaxBodyBytes > 0; {
	case reserved(r.URL.Path):
		f.serveReserved(out, r)
	// Neither a CONNECT nor an opaque URL has a path that limits could match.
	case r.Method == http.MethodConnect || r.URL.Opaque != "",
		len(f.c.Methods) > 0 && !route.IsOneOf(f.c.Methods, r.Method):
		f.c.Handler.Refuse(out, r, answer.BadRequest, answer.NewInstance())
	case bounded && r.ContentLength > f.c.MaxBodyBytes:
		f.c.Handler.Refuse(out, r, answer.TooLarge, answer.NewInstance())
	default:
		if bounded && r.Body != nil && r.ContentLength != 0 {
			r.Body = http.MaxBytesReader(w, r.Body, f.c.MaxBodyBytes)
		}
		f.c.Handler.Serve(out, r)
	}
}

// recover logs a panic. If the answer has not begun, it answers with 500; otherwise it cuts the connection.
func (f *Front) recover(w *Response, r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if p == http.ErrAbortHandler { //nolint:errorlint // net/http compares the same value: a handler asks to be cut off
		panic(p)
	}
	f.panics.Add(1)
	instance := answer.NewInstance()
	f.c.Log.Error("the gateway panicked while it served a request", "instance", instance, "method", r.Method,
		"path", Bounded(r.URL.Path), "panic", p, "stack", redact.Text(string(debug.Stack())))
	if w.status != 0 {
		panic(http.ErrAbortHandler) // part of the answer was sent: only a cut connection tells the client of the error
	}
	f.c.Handler.Refuse(w, r, answer.Internal, instance)
}

// Response sets headers right before an answer is sent, so that they replace those of a backend. It remembers the
// status.
type Response struct {
	http.ResponseWriter
	// Last.Set is called with the headers of the final answer before they are sent; nil changes nothing.
	Last   interface{ Set(http.Header) }
	status int // 0 while nothing was sent
}

// ResponseOf returns w if it is a Response already, and otherwise a new Response around it.
func ResponseOf(w http.ResponseWriter) *Response {
	if out, ok := w.(*Response); ok {
		return out
	}
	return &Response{ResponseWriter: w}
}

// Unwrap lets http.ResponseController use the methods of the server's writer.
func (w *Response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader adds the headers to the final answer. An interim one (1xx) passes as it is.
func (w *Response) WriteHeader(status int) {
	if status >= 200 && w.status == 0 {
		w.status = status
		if w.Last != nil {
			w.Last.Set(w.Header())
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *Response) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(b)
}

// Bounded cuts a text of a client for logs and pages, to 200 bytes.
func Bounded(s string) string {
	const most = 200 // long enough for most paths, short enough for a line of a log
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}

// NewServer returns a server for h that slow clients cannot hold up. bodyTimeout is how long the server waits for the
// body of a request; each KiB that arrives adds a second, up to bodyTimeout. 0 selects DefaultBodyTimeout; below 0
// there is no bound. After that time, reading the body fails with ErrSlowBody, and the connection is closed after the
// answer. There is no bound for an answer, for an upstream that accepts a body slowly, and for an upgraded connection.
func NewServer(h http.Handler, bodyTimeout time.Duration, log *slog.Logger) *http.Server {
	if bodyTimeout >= 0 {
		h = limitWaiting(h, cmp.Or(bodyTimeout, DefaultBodyTimeout))
	}
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(redact.Handler{Handler: log.Handler()}, slog.LevelWarn),
	}
}
