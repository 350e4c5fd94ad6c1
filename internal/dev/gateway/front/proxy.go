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
	"time"

	"github.com/sluicelimits/sluice/internal/request/answer"
)

const (
	dialTimeout = 5 * time.Second
	slowAfter   = time.Minute // until an upstream's headers are there
)

// CheckUpstream says what is wrong with an upstream's address, if anything.
func CheckUpstream(u *url.URL) error {
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("upstream %q: want http://HOST or https://HOST", u.Redacted())
	case u.Hostname() == "":
		return fmt.Errorf("upstream %q has no host", u.Redacted())
	case u.User != nil:
		return fmt.Errorf("upstream %q: a password in the address is not supported", u.Redacted())
	case u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("upstream %q: a query or fragment is not supported", u.Redacted())
	}
	return nil
}

// Proxy sets up [NewProxy].
type Proxy struct {
	Rewrite func(*httputil.ProxyRequest)
	Modify  func(*http.Response) error // of the upstream's answer; nil leaves it as it is

	// Refuse answers where the upstream did not, as [Handler.Refuse] does.
	Refuse  func(w *Response, r *http.Request, kind answer.Kind, instance string)
	Timeout time.Duration // until the upstream's headers are there; 0 is a minute
	Log     *slog.Logger
}

// NewProxy passes requests to an upstream. Bodies stream in both directions, upgrades (WebSocket) work.
func NewProxy(p Proxy) http.Handler {
	if p.Timeout == 0 {
		p.Timeout = slowAfter
	}
	return &httputil.ReverseProxy{
		Rewrite:        p.Rewrite,
		ModifyResponse: p.Modify,
		Transport: &http.Transport{
			DialContext:           (&net.Dialer{Timeout: dialTimeout}).DialContext,
			ResponseHeaderTimeout: p.Timeout,
			MaxIdleConnsPerHost:   256,
			IdleConnTimeout:       90 * time.Second,
			ForceAttemptHTTP2:     true,
			DisableCompression:    true, // what the client asked for, it gets as the upstream sent it
		},
		ErrorHandler: p.failed,
		ErrorLog:     log.New(proxyLog{p.Log}, "", 0),
	}
}

// BodyKind is the answer to a request whose body cannot be read: TooLarge, SlowBody, or else BadRequest and false.
func BodyKind(err error) (kind answer.Kind, known bool) {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return answer.TooLarge, true
	case errors.Is(err, ErrSlowBody):
		return answer.SlowBody, true
	}
	return answer.BadRequest, false
}

func (p *Proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	kind, timeout := answer.UpstreamDown, net.Error(nil)
	if errors.Is(err, context.Canceled) && cameTooLate(r.Context()) {
		err = ErrSlowBody
	}
	body, ofBody := BodyKind(err)
	switch {
	case ofBody:
		kind = body
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // the client is gone: there is nobody to answer, and nothing wrong upstream
	case errors.As(err, &timeout) && timeout.Timeout():
		kind = answer.UpstreamTimeout
	}
	instance := answer.NewInstance()
	if !ofBody {
		p.Log.Warn("the upstream did not answer", "instance", instance, "method", r.Method, "path",
			Bounded(r.URL.Path), "error", redact(err.Error()))
	}
	p.Refuse(ResponseOf(w), r, kind, instance)
}

// proxyLog takes the few lines that the reverse proxy writes itself.
type proxyLog struct{ log *slog.Logger }

func (l proxyLog) Write(b []byte) (int, error) {
	l.log.Warn("proxy", "message", redact(string(b)))
	return len(b), nil
}

// TenantHeader is where a backend finds the tenant, percent-encoded.
const TenantHeader = "X-Sluice-Tenant"

// Echo stands in for an upstream: it answers with what one would have seen.
type Echo struct {
	Message string
	Refuse  func(w *Response, r *http.Request, kind answer.Kind, instance string) // as [Handler.Refuse] does
	// who the backend takes for the caller; default TenantHeader
	Tenant func(http.Header) string
}

// ServeHTTP reads the body to its end.
func (e *Echo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		kind, _ := BodyKind(err)
		e.Refuse(ResponseOf(w), r, kind, answer.NewInstance())
		return
	}
	tenant := e.Tenant
	if tenant == nil {
		tenant = func(h http.Header) string { return h.Get(TenantHeader) }
	}
	body, err := json.MarshalIndent(struct {
		Message   string      `json:"message"`
		Method    string      `json:"method"`
		Path      string      `json:"path"`
		Query     string      `json:"query,omitempty"`
		Tenant    string      `json:"tenant"`
		BodyBytes int64       `json:"bodyBytes"`
		Headers   http.Header `json:"headers"`
	}{e.Message, r.Method, r.URL.EscapedPath(), r.URL.RawQuery, tenant(r.Header), n, r.Header}, "", "  ")
	if err != nil { // not reached: strings and numbers always marshal
		panic(fmt.Sprintf("echo: %v", err))
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(append(body, '\n')) // the client may be gone
}
