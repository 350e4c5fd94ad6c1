// Package front is what every local gateway has around its own answers: the server, the reserved pages, caught panics,
// bounded bodies, and the proxy to what stands behind it.
package front

import (
	"cmp"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/request/answer"
)

// DefaultMaxBodyBytes is what API Gateway takes, too.
const DefaultMaxBodyBytes = 10 << 20

// Handler is a gateway's own part.
type Handler interface {
	// Serve answers a request that is not for a reserved page. Its body is bounded where bodies are.
	Serve(w *Response, r *http.Request)

	// Refuse answers a request that goes no further: kind is one of answer.BadRequest, TooLarge, SlowBody, Internal,
	// UpstreamDown and UpstreamTimeout. instance is the URI of this occurrence, which the log may name.
	Refuse(w *Response, r *http.Request, kind answer.Kind, instance string)
}

// Config sets up a [Front].
type Config struct {
	Handler      Handler      // required
	LivePage     http.Handler // at /_sluice/, with the prefix stripped; nil is none
	Audience     Audience     // of the live page; default Loopback
	MaxBodyBytes int64        // of a request; 0 is DefaultMaxBodyBytes, below 0 no bound
	Log          *slog.Logger // default slog.Default()
}

// Front is an http.Handler. It is safe for concurrent use. Make it with [New].
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
	if c.LivePage != nil {
		c.LivePage = http.StripPrefix(strings.TrimSuffix(reservedPrefix, "/"), c.LivePage)
	}
	return &Front{c: c}
}

// Panics is how many requests ended in a panic that was caught.
func (f *Front) Panics() int64 { return f.panics.Load() }

// ServeHTTP answers one request. Whatever a request holds, it has an answer: a panic is caught, logged and answered.
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out := &Response{ResponseWriter: w}
	defer f.recover(out, r)
	switch bounded := f.c.MaxBodyBytes > 0; {
	case reserved(r.URL.Path):
		f.serveReserved(out, r)
	// the latter is a URL inside a URL, and has no path to count
	case r.Method == http.MethodConnect || r.URL.Opaque != "":
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

// recover turns a panic into a 500, where the answer has not begun, and a line in the log.
func (f *Front) recover(w *Response, r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if p == http.ErrAbortHandler { //nolint:errorlint // the very value is how a handler asks to cut the connection
		panic(p)
	}
	f.panics.Add(1)
	instance := answer.NewInstance()
	f.c.Log.Error("a request made the gateway panic", "instance", instance, "method", r.Method, "path",
		Bounded(r.URL.Path),
		"panic", p, "stack", redact(string(debug.Stack())))
	if w.status != 0 {
		panic(http.ErrAbortHandler) // half an answer is out: cutting the connection is the only way to say so
	}
	f.c.Handler.Refuse(w, r, answer.Internal, instance)
}

// Response sets headers at the last moment, over whatever a backend said, and remembers the status.
type Response struct {
	http.ResponseWriter

	// Last is given the headers of the final answer before they are sent; nil changes nothing.
	Last   interface{ Set(http.Header) }
	status int // 0 as long as nothing was sent
}

// ResponseOf is the writer as a Response: the front's own, unless a handler in between put another around it.
func ResponseOf(w http.ResponseWriter) *Response {
	if out, ok := w.(*Response); ok {
		return out
	}
	return &Response{ResponseWriter: w}
}

// Unwrap lets http.ResponseController reach what the server's own writer can do.
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

// Bounded cuts a text for logs and pages.
func Bounded(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}

// NewServer wraps a handler in a server that a slow or greedy client cannot hold up. bodyTimeout is how long the body
// of a request may keep the server waiting, where each KiB that arrives gives a second back; 0 is DefaultBodyTimeout,
// below 0 no bound. Then reading the body is ErrSlowBody, and the connection is closed after the answer. Answers may
// take any time, as may an upstream that takes a body slowly, and connections that were upgraded.
func NewServer(h http.Handler, bodyTimeout time.Duration, log *slog.Logger) *http.Server {
	if bodyTimeout >= 0 {
		h = limitWaiting(h, cmp.Or(bodyTimeout, DefaultBodyTimeout))
	}
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(redactor{log.Handler()}, slog.LevelWarn),
	}
}
