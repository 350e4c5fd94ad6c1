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
// Config.UpstreamTimeout is 0. It also limits each write to an upstream.
const DefaultUpstreamTimeout = time.Minute

const (
	// The longest waits for a connection, for its TLS, and for the answer to a ping; and how long nothing may come on a
	// connection of HTTP/2 before it is sent a ping. A shorter timeout of the upstream takes the place of each.
	connectTimeout = 5 * time.Second
	pingAfter      = 15 * time.Second

	bufferBytes = 32 << 10 // the size of the buffers that net/http/httputil would make itself
)

// Upstream is a service behind the gateway, with the host and the path of the requests that go to it.
type Upstream struct {
	Host string   // of requests, in lower case, without a port; "": any host
	Path string   // that requests begin with, in whole segments, such as /v2; "": any path
	URL  *url.URL // http, https, or h2c (HTTP/2 without TLS); its path is put before that of a request
}

// ParseUpstream reads URL, for all requests, or [HOST][/PATH]=URL, for requests to that host and below that path.
func ParseUpstream(text string) (Upstream, error) {
	var u Upstream
	to := text
	show := func(part string) string { // hides a part if the text may have a password or a token in it
		if strings.ContainsAny(text, "@?") {
			return "…"
		}
		return part
	}
	if before, after, ok := strings.Cut(text, "="); ok && !strings.Contains(before, "://") {
		to = after
		at := strings.IndexByte(before+"/", '/')
		u.Host = strings.TrimSuffix(strings.ToLower(before[:at]), ".")
		u.Path = strings.TrimRight(before[at:], "/")
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
		return u, errors.New("it is not a URL") // the cause may quote a part of a password
	}
	return u, u.check()
}

// String returns the host and the path of the requests that the upstream gets, such as "api.example.com/v2".
func (u Upstream) String() string { return u.Host + cmp.Or(u.Path, "/") }

// check returns an error if the URL cannot be that of an upstream. The error does not contain the URL, which may have a
// password in it.
func (u Upstream) check() error {
	switch to := u.URL; {
	case !slices.Contains([]string{"http", "https", "h2c"}, to.Scheme):
		return fmt.Errorf("the scheme %q: want http://HOST, https://HOST, or h2c://HOST for HTTP/2 without TLS",
			to.Scheme)
	case to.Hostname() == "":
		return errors.New("the URL has no host")
	case to.User != nil:
		return errors.New("a user or password in the URL is not supported")
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

// backends makes the handlers, in the order in which find tries them: those with a host come before those for any host,
// and then longer paths before shorter ones.
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
			ModifyResponse: func(answered *http.Response) error {
				if answered.StatusCode == http.StatusSwitchingProtocols {
					// The proxy adds these to the headers that the gateway has set, and sends no other answer after
					// this one, so that the gateway cannot replace them.
					for _, name := range answer.Names {
						answered.Header.Del(name)
					}
				}
				return nil
			},
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

// buffers is a pool of buffers for copying the bodies of answers. Without it, the proxy would allocate 32 KiB for each
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
			if err != nil {
				return nil, err
			}
			return &upstreamConn{conn, timeout}, nil
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

// upstreamConn is a connection on which each write must end within the timeout. Otherwise an upstream of HTTP/1 that no
// longer reads could hold a request for ever: net/http notices that an HTTP/1 client has gone only after its body was
// read.
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

// backend returns the handler for a request, which is the echo if there are no upstreams. If no upstream is for it, or
// if its path can be read in ways that lead to different upstreams, backend returns nil and what to answer.
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

// find returns the first upstream for a host and one reading of a path, or nil.
func (g *Gateway) find(host, path string) *backend {
	for _, b := range g.toUpstreams {
		rest, begins := strings.CutPrefix(path, b.Path)
		if begins && (rest == "" || rest[0] == '/' || b.Path == "") && (b.Host == "" || b.Host == host) {
			return b
		}
	}
	return nil
}

// rewrite makes the request to an upstream from a request that the limits admit.
func (g *Gateway) rewrite(p *httputil.ProxyRequest, to *url.URL) {
	p.SetURL(to)
	p.Out.URL.RawQuery = p.In.URL.RawQuery // it may be signed; the proxy drops parameters that it cannot parse
	for name := range p.Out.Header {
		switch strings.ToLower(strings.ReplaceAll(name, "_", "-")) {
		case "x-original-url", "x-rewrite-url": // some servers use the path in these, and read _ as -
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
