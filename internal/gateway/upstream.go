package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/plan/route"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/forward"
	"github.com/sluicelimits/sluice/internal/request/redact"
)

// DefaultUpstreamTimeout is how long the gateway waits for the headers of an upstream's answer if
// Config.UpstreamTimeout is 0.
const DefaultUpstreamTimeout = time.Minute

const (
	// The longest waits for a connection, for its TLS, and for the answer to a ping; and how long nothing may come on a
	// connection of HTTP/2 before it is sent a ping. A shorter timeout of the upstream takes the place of each.
	connectTimeout = 5 * time.Second
	pingAfter      = 15 * time.Second

	bufferBytes = 32 << 10 // as many as net/http/httputil takes
)

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
	show := func(part string) string { // without what may be a password
		if strings.ContainsAny(text, "@?") {
			return "…"
		}
		return part
	}
	if before, after, ok := strings.Cut(text, "="); ok && !strings.Contains(before, "://") {
		to = after
		at := strings.IndexByte(before+"/", '/')
		u.Host, u.Path = strings.ToLower(before[:at]), strings.TrimRight(before[at:], "/")
		if strings.ContainsAny(u.Host, ":*@ ") {
			return u, fmt.Errorf("%q: want a host without a port, such as api.example.com, or no host for all",
				show(before))
		}
		if clean := route.Clean(u.Path); u.Path != "" && (clean.String() != u.Path || clean.Climbs()) {
			return u, fmt.Errorf("%q: want a path such as /v2, without a query, .. and //", show(before))
		}
	}
	if _, _, err := net.SplitHostPort(to); err == nil && !strings.Contains(to, "//") {
		return u, fmt.Errorf("%q is not a URL: want http://HOST, https://HOST or h2c://HOST, such as http://%[1]s",
			show(to))
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
		return fmt.Errorf("the scheme %q: want http://HOST, https://HOST, or h2c://HOST for HTTP/2 without TLS",
			to.Scheme)
	case to.Hostname() == "":
		return fmt.Errorf("%q has no host", to.Redacted())
	case to.User != nil:
		return fmt.Errorf("%q: a user or password in the URL is not supported", to.Redacted())
	case to.RawQuery != "" || to.Fragment != "":
		return errors.New("a query or fragment is not supported")
	}
	return nil
}

// backend is an upstream with the handler that passes requests to it.
type backend struct {
	Upstream
	http.Handler
	failures clock.Throttle // of the log
}

// backends makes the handlers, in the order in which a request looks for its own: those of one host come before those
// of any host, and longer paths before shorter ones.
func (g *Gateway) backends() ([]*backend, error) {
	timeout := cmp.Or(g.c.UpstreamTimeout, DefaultUpstreamTimeout)
	usual, unencryptedHTTP2 := newTransport(timeout), newTransport(timeout)
	unencryptedHTTP2.Protocols = new(http.Protocols)
	unencryptedHTTP2.Protocols.SetUnencryptedHTTP2(true)
	var all []*backend
	for _, u := range g.c.Upstreams {
		if err := u.check(); err != nil {
			return nil, fmt.Errorf("upstream %w", err)
		}
		if slices.ContainsFunc(all, func(b *backend) bool { return b.Host == u.Host && b.Path == u.Path }) {
			return nil, fmt.Errorf("two upstreams are for the same requests, %s: give each its own host or path", u)
		}
		to, transport := *u.URL, usual
		if to.Scheme == "h2c" {
			to.Scheme, transport = "http", unencryptedHTTP2
		}
		b := &backend{Upstream: u}
		b.Handler = &httputil.ReverseProxy{
			Rewrite:    func(p *httputil.ProxyRequest) { g.rewrite(p, &to) },
			Transport:  transport,
			BufferPool: &g.buffers,
			ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
				g.upstreamFailed(responseOf(w), r, b, err)
			},
			ErrorLog: slog.NewLogLogger(redact.Handler{Handler: g.c.Log.Handler()}, slog.LevelWarn),
		}
		all = append(all, b)
	}
	slices.SortStableFunc(all, func(a, b *backend) int {
		return cmp.Or(cmp.Compare(min(len(b.Host), 1), min(len(a.Host), 1)), cmp.Compare(len(b.Path), len(a.Path)))
	})
	return all, nil
}

// buffers hold parts of bodies while they are passed on. Without a pool, the proxy makes garbage of 32 KiB for each
// request.
type buffers struct{ pool sync.Pool }

// Get implements [httputil.BufferPool].
func (b *buffers) Get() []byte {
	if kept, ok := b.pool.Get().(*[bufferBytes]byte); ok {
		return kept[:]
	}
	return make([]byte, bufferBytes)
}

// Put implements [httputil.BufferPool].
func (b *buffers) Put(used []byte) { b.pool.Put((*[bufferBytes]byte)(used)) }

func newTransport(timeout time.Duration) *http.Transport {
	connect := min(timeout, connectTimeout)
	return &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{Timeout: connect}).DialContext(ctx, network, address)
			return &upstreamConn{conn, timeout}, err
		},
		TLSHandshakeTimeout:   connect,
		ResponseHeaderTimeout: timeout,
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: min(timeout, pingAfter), PingTimeout: connect},
		MaxIdleConnsPerHost:   256,
		IdleConnTimeout:       90 * time.Second,
		ForceAttemptHTTP2:     true,
		DisableCompression:    true, // the client gets the encoding that the upstream sent
	}
}

// upstreamConn is a connection to an upstream. What is sent must make progress: an upstream that reads no more would
// otherwise hold the request for ever, since net/http notices that the client has gone only when its body was read.
type upstreamConn struct {
	net.Conn
	timeout time.Duration
}

// Write implements [net.Conn].
func (c *upstreamConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.timeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// backend returns the handler for a request. If no upstream is for it, or its path leads to several, depending on how
// it is read, backend returns nil and the answer.
func (g *Gateway) backend(r *http.Request, path *route.Path) (http.Handler, answer.Kind) {
	if len(g.toUpstreams) == 0 {
		return http.HandlerFunc(g.echo), answer.Allowed
	}
	host := strings.ToLower(r.Host)
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(host, ".")
	first := g.find(host, path.Form(0))
	for i := 1; i < path.NumForms(); i++ {
		if g.find(host, path.Form(i)) != first {
			return nil, answer.BadRequest
		}
	}
	if first == nil {
		return nil, answer.NoRoute
	}
	return first, answer.Allowed
}

// find returns the upstream for one reading of a path, or nil.
func (g *Gateway) find(host, path string) *backend {
	for _, b := range g.toUpstreams {
		rest, begins := strings.CutPrefix(path, b.Path)
		if begins && (rest == "" || rest[0] == '/' || b.Path == "") && (b.Host == "" || b.Host == host) {
			return b
		}
	}
	return nil
}

// rewrite makes the request to an upstream from an admitted request.
func (g *Gateway) rewrite(p *httputil.ProxyRequest, to *url.URL) {
	p.SetURL(to)
	p.Out.URL.RawQuery = p.In.URL.RawQuery // as the client wrote it: it may be signed
	for name := range p.Out.Header {
		switch strings.ToLower(strings.ReplaceAll(name, "_", "-")) {
		case "x-original-url", "x-rewrite-url": // some backends serve their path instead
			delete(p.Out.Header, name)
		}
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
	for _, name := range []string{"X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v := p.In.Header[name]; g.c.TrustedHops > 0 && v != nil {
			p.Out.Header[name] = v
		}
	}
}
