package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/plan/route"
	"github.com/sluicelimits/sluice/internal/request/forward"
	"github.com/sluicelimits/sluice/internal/request/redact"
)

// DefaultUpstreamTimeout is how long the gateway waits for the headers of an upstream's answer if
// Config.UpstreamTimeout is 0.
const DefaultUpstreamTimeout = time.Minute

const dialTimeout = 5 * time.Second

// Upstream is a service behind the gateway, and says which requests it gets.
type Upstream struct {
	Host string   // of requests, without a port; "": any host
	Path string   // the first segments of the path of requests, such as /v2; "": any path
	URL  *url.URL // http, https, or h2c for HTTP/2 without TLS; its path precedes that of requests
}

// ParseUpstream reads URL or [HOST][/PATH]=URL.
func ParseUpstream(text string) (Upstream, error) {
	var u Upstream
	to := text
	if before, after, ok := strings.Cut(text, "="); ok && !strings.Contains(before, "://") {
		to = after
		at := strings.IndexByte(before+"/", '/')
		u.Host, u.Path = strings.ToLower(before[:at]), strings.TrimRight(before[at:], "/")
		if strings.ContainsAny(u.Host, ":*@ ") {
			return u, fmt.Errorf("%q: want a host without a port, such as api.example.com, or no host for all", before)
		}
		if clean := route.Clean(u.Path); u.Path != "" && (clean.String() != u.Path || clean.Climbs()) {
			return u, fmt.Errorf("%q: want a path such as /v2, without a query, .. and //", before)
		}
	}
	if _, _, err := net.SplitHostPort(to); err == nil && !strings.Contains(to, "//") {
		return u, fmt.Errorf("%q is not a URL: want http://HOST, https://HOST or h2c://HOST, such as http://%[1]s", to)
	}
	var err error
	if u.URL, err = url.Parse(to); err != nil {
		if in := new(url.Error); errors.As(err, &in) {
			err = in.Err // without the URL, which may have a password in it
		}
		return u, fmt.Errorf("it is not a URL: %w", err)
	}
	return u, u.check()
}

// String names the requests that the upstream gets, as in "api.example.com/v2".
func (u Upstream) String() string { return u.Host + cmp.Or(u.Path, "/") }

// check returns an error if the URL is not the base URL of an upstream.
func (u Upstream) check() error {
	switch to := u.URL; {
	case !slices.Contains([]string{"http", "https", "h2c"}, to.Scheme):
		return fmt.Errorf("%q: want http://HOST, https://HOST, or h2c://HOST for HTTP/2 without TLS", to.Redacted())
	case to.Hostname() == "":
		return fmt.Errorf("%q has no host", to.Redacted())
	case to.User != nil:
		return fmt.Errorf("%q: a user or password in the URL is not supported", to.Redacted())
	case to.RawQuery != "" || to.Fragment != "":
		return fmt.Errorf("%q: a query or fragment is not supported", to.Redacted())
	}
	return nil
}

// backend is an upstream with the handler that passes requests to it.
type backend struct {
	Upstream
	http.Handler
}

// backends makes the handlers, in the order in which a request looks for its own: those of one host come before those
// of any host, and longer paths before shorter ones.
func (g *Gateway) backends() ([]backend, error) {
	timeout := cmp.Or(g.c.UpstreamTimeout, DefaultUpstreamTimeout)
	usual, unencryptedHTTP2 := newTransport(timeout), newTransport(timeout)
	unencryptedHTTP2.Protocols = new(http.Protocols)
	unencryptedHTTP2.Protocols.SetUnencryptedHTTP2(true)
	var all []backend
	for _, u := range g.c.Upstreams {
		if err := u.check(); err != nil {
			return nil, fmt.Errorf("upstream %w", err)
		}
		if slices.ContainsFunc(all, func(b backend) bool { return b.Host == u.Host && b.Path == u.Path }) {
			return nil, fmt.Errorf("two upstreams are for the same requests, %s: give each its own host or path", u)
		}
		to, transport := *u.URL, usual
		if to.Scheme == "h2c" {
			to.Scheme, transport = "http", unencryptedHTTP2
		}
		all = append(all, backend{u, &httputil.ReverseProxy{
			Rewrite:   func(p *httputil.ProxyRequest) { g.rewrite(p, &to) },
			Transport: transport,
			ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
				g.upstreamFailed(responseOf(w), r, u, err)
			},
			ErrorLog: slog.NewLogLogger(redact.Handler{Handler: g.c.Log.Handler()}, slog.LevelWarn),
		}})
	}
	slices.SortStableFunc(all, func(a, b backend) int {
		return cmp.Or(cmp.Compare(min(len(b.Host), 1), min(len(a.Host), 1)), cmp.Compare(len(b.Path), len(a.Path)))
	})
	return all, nil
}

func newTransport(timeout time.Duration) *http.Transport {
	return &http.Transport{
		DialContext:           (&net.Dialer{Timeout: dialTimeout}).DialContext,
		ResponseHeaderTimeout: timeout,
		MaxIdleConnsPerHost:   256,
		IdleConnTimeout:       90 * time.Second,
		ForceAttemptHTTP2:     true,
		DisableCompression:    true, // the client gets the encoding that the upstream sent
	}
}

// backend returns the handler for a request, or nil if no upstream is for it.
func (g *Gateway) backend(r *http.Request, path *route.Path) http.Handler {
	if len(g.toUpstreams) == 0 {
		return http.HandlerFunc(g.echo)
	}
	host := strings.ToLower(r.Host)
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	asked := path.String()
	for i := range g.toUpstreams {
		b := &g.toUpstreams[i]
		rest, begins := strings.CutPrefix(asked, b.Path)
		if begins && (rest == "" || rest[0] == '/' || b.Path == "") && (b.Host == "" || b.Host == host) {
			return b
		}
	}
	return nil
}

// rewrite makes the request to an upstream from an admitted request.
func (g *Gateway) rewrite(p *httputil.ProxyRequest, to *url.URL) {
	p.SetURL(to)
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
