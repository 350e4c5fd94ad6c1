package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"github.com/sluicelimits/sluice/internal/answer"
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

// newProxy passes requests to the upstream. Bodies stream in both directions, upgrades (WebSocket) work.
func (g *Gateway) newProxy() http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(g.c.Upstream)
			for _, name := range identityHeaders { // a client can name any header in Connection, and that takes it out
				if v := p.In.Header[name]; v != nil {
					p.Out.Header[name] = v
				}
			}
			if g.c.TrustedHops > 0 { // what the operator's own proxies said; else it is a client's claim, and is dropped
				p.Out.Header["X-Forwarded-For"] = p.In.Header["X-Forwarded-For"]
			}
			p.SetXForwarded()
		},
		Transport: &http.Transport{
			DialContext:           (&net.Dialer{Timeout: dialTimeout}).DialContext,
			ResponseHeaderTimeout: slowAfter,
			MaxIdleConnsPerHost:   256,
			IdleConnTimeout:       90 * time.Second,
			ForceAttemptHTTP2:     true,
			DisableCompression:    true, // what the client asked for, it gets as the upstream sent it
		},
		ErrorHandler: g.upstreamFailed,
		ErrorLog:     log.New(proxyLog{g}, "", 0),
	}
}

func (g *Gateway) upstreamFailed(w http.ResponseWriter, r *http.Request, err error) {
	out, ok := w.(*response)
	if !ok {
		out = &response{ResponseWriter: w}
	}
	kind, timeout := answer.UpstreamDown, net.Error(nil)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		kind = answer.TooLarge
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // the client is gone: there is nobody to answer, and nothing wrong upstream
	case errors.As(err, &timeout) && timeout.Timeout():
		kind = answer.UpstreamTimeout
	}
	instance := answer.NewInstance()
	if kind != answer.TooLarge {
		g.c.Log.Warn("the upstream did not answer", "instance", instance, "method", r.Method, "path", bounded(r.URL.Path), "error", redact(err.Error()))
	}
	writeProblem(out, kind, instance)
}

// proxyLog takes the few lines that the reverse proxy writes itself.
type proxyLog struct{ g *Gateway }

func (l proxyLog) Write(b []byte) (int, error) {
	l.g.c.Log.Warn("proxy", "message", redact(string(b)))
	return len(b), nil
}

// echo stands in for an upstream: it answers with what one would have seen.
func echo(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		kind := answer.BadRequest
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			kind = answer.TooLarge
		}
		if out, ok := w.(*response); ok {
			writeProblem(out, kind, answer.NewInstance())
		}
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
	}{"Allowed. There is no upstream (--upstream), so this is what it would have seen.", r.Method, r.URL.EscapedPath(),
		r.URL.RawQuery, r.Header.Get(tenantHeader), n, r.Header}, "", "  ")
	if err != nil { // not reached: strings and numbers always marshal
		panic(fmt.Sprintf("echo: %v", err))
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(append(body, '\n')) // the client may be gone
}
