package gateway

import (
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sluicelimits/sluice/internal/plan/route"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/redact"
)

// ServeHTTP implements http.Handler. It catches and logs a panic, and answers the request
// nevertheless.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out := &response{ResponseWriter: w}
	defer g.recover(out, r)
	switch {
	case reserved(r.URL.Path):
		g.serveReserved(out, r)
	// Neither a CONNECT nor an opaque URL has a path that limits could match.
	case r.Method == http.MethodConnect || r.URL.Opaque != "",
		!route.IsOneOf(route.UsualMethods(), r.Method):
		g.refuse(out, r, answer.BadRequest, answer.NewInstance())
	case g.c.MaxBody > 0 && r.ContentLength > g.c.MaxBody:
		g.refuse(out, r, answer.TooLarge, answer.NewInstance())
	default:
		if g.c.MaxBody > 0 && r.Body != nil && r.ContentLength != 0 {
			r.Body = http.MaxBytesReader(w, r.Body, g.c.MaxBody)
		}
		g.serve(out, r)
	}
}

// recover logs a panic. If the answer has not begun, it answers with 500; otherwise it cuts the connection.
func (g *Gateway) recover(w *response, r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if p == http.ErrAbortHandler { //nolint:errorlint // net/http compares the same value: a handler asks to be cut off
		panic(p)
	}
	g.panics.Add(1)
	instance := answer.NewInstance()
	g.c.Log.Error("the gateway panicked while it served a request", "instance", instance, "method", r.Method,
		"path", bounded(r.URL.Path), "panic", p, "stack", redact.Text(string(debug.Stack())))
	if w.status != 0 {
		panic(http.ErrAbortHandler) // part of the answer was sent: only a cut connection tells the client of the error
	}
	g.refuse(w, r, answer.Internal, instance)
}

// response sets headers right before an answer is sent, so that they replace those of a backend. It remembers the
// status.
type response struct {
	http.ResponseWriter
	last   *answer.Header // written to the final answer before it is sent; nil changes nothing
	status int            // 0 while nothing was sent
}

// responseOf returns w if it is a response already, and otherwise a new response around it.
func responseOf(w http.ResponseWriter) *response {
	if out, ok := w.(*response); ok {
		return out
	}
	return &response{ResponseWriter: w}
}

// Unwrap lets http.ResponseController use the methods of the server's writer.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader adds the headers to the final answer. An interim one (1xx) passes as it is.
func (w *response) WriteHeader(status int) {
	if status >= 200 && w.status == 0 {
		w.status = status
		if w.last != nil {
			w.last.Set(w.Header())
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

// bounded cuts a text of a client for logs and pages, to 200 bytes.
func bounded(s string) string {
	const most = 200 // long enough for most paths, short enough for a line of a log
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}

// NewServer returns a server for h, which takes HTTP/1.1 and HTTP/2, also without TLS, as gRPC needs. There is no bound
// on the time of a body, of an answer, and of an upgraded connection.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Protocols:         protocols,
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(redact.Handler{Handler: log.Handler()}, slog.LevelWarn),
	}
}

// write answers a request that no upstream answers with a problem. A client that speaks gRPC gets a status of gRPC
// instead: it would take any status of HTTP but 200 for a failure of the connection.
func write(w *response, r *http.Request, k answer.Kind, body []byte) {
	if kind := r.Header.Get("Content-Type"); r.ProtoMajor != 2 || !strings.HasPrefix(kind, "application/grpc") {
		answer.Write(w, k, body)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/grpc")
	h.Set("Grpc-Status", strconv.Itoa(int(grpcCode(k.Status()))))
	h.Set("Grpc-Message", "sluice: "+k.String())
	w.WriteHeader(http.StatusOK)
}

// grpcCode returns the code of gRPC for an answer of the gateway with a status of HTTP.
func grpcCode(status int) codes.Code {
	switch status {
	case http.StatusBadRequest:
		return codes.InvalidArgument
	case http.StatusUnauthorized:
		return codes.Unauthenticated
	case http.StatusForbidden:
		return codes.PermissionDenied
	case http.StatusNotFound:
		return codes.NotFound
	case http.StatusTooManyRequests, http.StatusRequestEntityTooLarge:
		return codes.ResourceExhausted
	case http.StatusInternalServerError:
		return codes.Internal
	default:
		return codes.Unavailable
	}
}
