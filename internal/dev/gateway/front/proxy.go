package front

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/redact"
)

const (
	dialTimeout = 5 * time.Second
	slowAfter   = time.Minute // for the headers of the upstream's answer
)

// CheckUpstream returns an error if u is not the base URL of an upstream.
func CheckUpstream(u *url.URL) error {
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("upstream %q: want http://HOST or https://HOST", u.Redacted())
	case u.Hostname() == "":
		return fmt.Errorf("upstream %q has no host", u.Redacted())
	case u.User != nil:
		return fmt.Errorf("upstream %q: a user or password in the URL is not supported", u.Redacted())
	case u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("upstream %q: a query or fragment is not supported", u.Redacted())
	}
	return nil
}

// Proxy sets up [NewProxy].
type Proxy struct {
	Rewrite func(*httputil.ProxyRequest)
	// Refuse answers a request that the upstream did not answer, as [Handler.Refuse] does.
	Refuse func(w *Response, r *http.Request, kind answer.Kind, instance string)
	Log    *slog.Logger
	Hint   string // says what to do if the upstream does not answer, for the log; may be empty
}

// NewProxy returns a handler that passes requests to an upstream. It streams bodies in both directions, and passes
// upgrades to WebSocket.
func NewProxy(p Proxy) http.Handler {
	failures := &proxyFailures{Proxy: p}
	return &httputil.ReverseProxy{
		Rewrite: p.Rewrite,
		Transport: &http.Transport{
			DialContext:           (&net.Dialer{Timeout: dialTimeout}).DialContext,
			ResponseHeaderTimeout: slowAfter,
			MaxIdleConnsPerHost:   256,
			IdleConnTimeout:       90 * time.Second,
			ForceAttemptHTTP2:     true,
			DisableCompression:    true, // the client gets the encoding that the upstream sent
		},
		ErrorHandler: failures.answer,
		ErrorLog:     log.New(proxyLog{p.Log}, "", 0),
	}
}

// bodyKind returns the kind of answer to a request whose body cannot be read. known is false for an error that is
// neither about the size of the body nor about its time.
func bodyKind(err error) (kind answer.Kind, known bool) {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return answer.TooLarge, true
	case errors.Is(err, ErrSlowBody):
		return answer.SlowBody, true
	}
	return answer.BadRequest, false
}

// proxyFailures answers requests that the upstream did not answer.
type proxyFailures struct {
	Proxy
	warned  atomic.Int64 // when the last warning was logged, in seconds since 1970
	skipped atomic.Int64 // failures since then
}

func (p *proxyFailures) answer(w http.ResponseWriter, r *http.Request, err error) {
	kind, timeout := answer.UpstreamDown, net.Error(nil)
	if errors.Is(err, context.Canceled) && cameTooLate(r.Context()) {
		err = ErrSlowBody
	}
	body, ofBody := bodyKind(err)
	switch {
	case ofBody:
		kind = body
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // the client has gone: nobody to answer, and the upstream did nothing wrong
	case errors.As(err, &timeout) && timeout.Timeout():
		kind = answer.UpstreamTimeout
	}
	instance := answer.NewInstance()
	if !ofBody {
		p.warn(instance, err)
	}
	p.Refuse(ResponseOf(w), r, kind, instance)
}

// warn logs a failure once a second at most: while the upstream is away, every request fails. A path can name a
// tenant's things, so it is not logged.
func (p *proxyFailures) warn(instance string, err error) {
	now, last := time.Now().Unix(), p.warned.Load()
	if now == last || !p.warned.CompareAndSwap(last, now) {
		p.skipped.Add(1)
		return
	}
	p.Log.Warn("the upstream did not answer"+p.Hint, "instance", instance, "error", redact.Text(err.Error()),
		"not_logged", p.skipped.Swap(0))
}

// proxyLog logs the lines that httputil.ReverseProxy writes by itself.
type proxyLog struct{ log *slog.Logger }

func (l proxyLog) Write(b []byte) (int, error) {
	l.log.Warn("proxy", "message", redact.Text(string(b)))
	return len(b), nil
}

// TenantHeader is the header in which a backend gets the tenant, percent-encoded.
const TenantHeader = "X-Sluice-Tenant"

// Echo takes the place of an upstream: it answers with the request that an upstream would have got.
type Echo struct {
	Message string
	Refuse  func(w *Response, r *http.Request, kind answer.Kind, instance string) // as [Handler.Refuse] does
}

// ServeHTTP reads the body to its end.
func (e *Echo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		kind, _ := bodyKind(err)
		e.Refuse(ResponseOf(w), r, kind, answer.NewInstance())
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
	}{e.Message, r.Method, r.URL.EscapedPath(), r.URL.RawQuery, r.Header.Get(TenantHeader), n, r.Header}, "", "  ")
	if err != nil { // not reached: strings and numbers always marshal
		panic(fmt.Sprintf("echo: %v", err))
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(append(body, '\n')) // fails only if the client has gone
}
