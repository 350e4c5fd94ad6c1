package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/forward"
	"github.com/sluicelimits/sluice/internal/request/redact"
)

// tooLarge reports whether an error says that the body of a request is too large.
func tooLarge(err error) bool {
	var e *http.MaxBytesError
	return errors.As(err, &e)
}

// clientBody is the body of a request. If it cannot be read, that is the client's fault and not the upstream's, so Read
// returns a clientError.
type clientBody struct{ io.ReadCloser }

type clientError struct{ error }

func (e *clientError) Unwrap() error { return e.error }

// Read implements [io.Reader].
func (b *clientBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &clientError{err}
	}
	return n, err
}

// upstreamFailed answers a request that the upstream did not answer.
func (g *Gateway) upstreamFailed(w *response, r *http.Request, b *backend, err error) {
	kind, timeout := answer.UpstreamDown, net.Error(nil)
	ofBody := errors.As(err, new(*clientError))
	switch {
	case tooLarge(err):
		kind = answer.TooLarge
	case ofBody:
		kind = answer.BadRequest
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // the client has gone: nobody to answer, and the upstream did nothing wrong
	case errors.As(err, &timeout) && timeout.Timeout():
		kind = answer.UpstreamTimeout
	}
	instance := answer.NewInstance()
	if !ofBody {
		g.warn(instance, b, err)
	}
	g.refuse(w, r, kind, instance)
}

// warn logs that an upstream failed, once a second at most: while it is away, every request to it fails. A path can
// name a tenant's things, so it is not logged.
func (g *Gateway) warn(instance string, b *backend, err error) {
	if notLogged, ok := b.failures.Admit(time.Now()); ok {
		g.c.Log.Warn("the upstream did not answer: start the service of --upstream, or correct its URL", "upstream",
			b.String(), "instance", instance, "error", redact.Text(err.Error()), "not_logged", notLogged)
	}
}

// echo takes the place of an upstream: it reads the body, and answers with the request that an upstream would have got.
func (g *Gateway) echo(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		kind := answer.BadRequest
		if tooLarge(err) {
			kind = answer.TooLarge
		}
		g.refuse(responseOf(w), r, kind, answer.NewInstance())
		return
	}
	body, err := json.MarshalIndent(struct {
		Message   string      `json:"message"`
		Method    string      `json:"method"`
		Path      string      `json:"path"`
		Query     string      `json:"query,omitempty"`
		Tenant    string      `json:"tenant"`
		BodyBytes int64       `json:"bodyBytes"`
		Headers   http.Header `json:"headers"`
	}{"Allowed. There is no upstream (--upstream), so this is the request that it would have got.", r.Method,
		r.URL.EscapedPath(), r.URL.RawQuery, r.Header.Get(forward.Tenant), n, r.Header}, "", "  ")
	if err != nil { // not reached: strings and numbers always marshal
		panic(fmt.Sprintf("echo: %v", err))
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(append(body, '\n')) // fails only if the client has gone
}
