package apigateway

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/gateway/front"
)

type callKey struct{}

// callOf returns the call in the context of a request; nil if there is none.
func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// integrate passes an authorized request to the integration of its route.
func (c *call) integrate(w *front.Response) {
	switch c.route.Integration.Type {
	case Mock:
		c.finish(c.route.mockStatus, w.Header())
		c.send(w, c.route.mockStatus, nil)
	case AWSProxy:
		c.invokeBackend(w)
	default:
		c.proxy(w)
	}
}

// proxy makes the request of an HTTP_PROXY or ECHO, and passes it on: to the URL of an HTTP_PROXY, or to the echo.
func (c *call) proxy(w *front.Response) {
	r := c.r.WithContext(context.WithValue(c.r.Context(), callKey{}, c))
	r.Header = c.header.Clone()
	delete(r.Header, "Host")
	if m := c.route.Integration.Method; m != "" {
		r.Method = m
	}
	c.apply(c.route.requestChanges, r.Header, false)
	target := c.target()
	u, err := url.Parse(target)
	if err != nil || u.Host == "" {
		c.s.c.Log.Warn("the integration's URL is not valid with the values of its parameters", "route", c.route.Key,
			"request", c.id)
		c.fail(w, failureOf(apiConfiguration))
		return
	}
	u.RawQuery = c.r.URL.RawQuery
	r.URL = u
	if _, echoes := c.route.backend.(*front.Echo); echoes {
		w.Last = finisher{c} // for a proxy, Modify maps the headers of the answer
	}
	c.route.backend.ServeHTTP(w, r)
}

// target returns the URL to which the request is passed: that of the integration, with its placeholders replaced, or
// for an ECHO without a URL the client's path.
func (c *call) target() string {
	g := &c.route.Integration
	if g.URL == "" {
		return "http://echo" + (&url.URL{Path: c.path}).EscapedPath()
	}
	return placeholder.ReplaceAllStringFunc(g.URL, func(name string) string {
		v := c.parameters[name[1:len(name)-1]]
		for _, m := range c.route.requestChanges {
			if m.path && "{"+m.name+"}" == name {
				v, _ = m.value(c)
			}
		}
		if c.s.d.Kind != HTTP {
			v = unescape(v) // the path of an HTTP API is decoded already
		}
		return (&url.URL{Path: v}).EscapedPath() // keeps slashes, which the value of {proxy+} has
	})
}

// prepareProxy makes the backend of a route. The requests that it serves already have the URL and the headers that the
// upstream gets.
func (s *serving) prepareProxy(r *route) {
	if r.Integration.Type == Echo {
		r.backend = &front.Echo{Message: "Allowed. There is no upstream, so this is the request that it would have " +
			"seen.", Refuse: s.Refuse, Tenant: tenantOfCaller}
		return
	}
	r.backend = front.NewProxy(front.Proxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.Host = ""
			for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Proto"} {
				p.Out.Header[name] = p.In.Header[name]
			}
			// The proxy has removed the headers that the client names in Connection. The mapped ones must not be
			// removed.
			for _, m := range r.requestChanges {
				if v := p.In.Header[m.name]; v != nil && !m.path {
					p.Out.Header[m.name] = v
				}
			}
		},
		Modify: func(resp *http.Response) error {
			if c := callOf(resp.Request.Context()); c != nil && resp.StatusCode >= 200 {
				c.finish(resp.StatusCode, resp.Header)
			}
			return nil
		},
		Refuse: s.Refuse, Timeout: time.Duration(r.Integration.TimeoutMillis) * time.Millisecond, Log: s.c.Log,
	})
}

// finisher maps the headers of the built-in echo's answer.
type finisher struct{ c *call }

// Set implements the interface of [front.Response].Last.
func (f finisher) Set(h http.Header) {
	if f.c.failure.name == "" {
		f.c.finish(http.StatusOK, h)
	}
}

// invokeBackend calls the function behind a route.
func (c *call) invokeBackend(w *front.Response) {
	g := &c.route.Integration
	var body []byte
	if c.r.Body != nil {
		var err error
		if body, err = io.ReadAll(c.r.Body); err != nil {
			kind, _ := front.BodyKind(err)
			c.fail(w, failureFor(kind))
			return
		}
	}
	ctx, cancel := context.WithTimeout(c.r.Context(),
		time.Duration(g.TimeoutMillis)*time.Millisecond)
	defer cancel()
	out, err := invoke(ctx, c.route.function, c.proxyEvent(g.Payload, body).bytes())
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		c.s.c.Log.Warn("the function behind a route did not answer in time", "route", c.route.Key, "request", c.id)
		c.fail(w, failureOf(integrationTimeout))
		return
	case err != nil:
		c.backendFailed(w, err)
		return
	}
	reply, err := readReply(out, c.s.d.Kind == HTTP && g.Payload == "2.0")
	if err != nil {
		c.backendFailed(w, err)
		return
	}
	reply.send(c, w)
}

// backendFailed answers a request whose function failed or gave an invalid answer: with 502 on a REST API, and 500 on
// an HTTP API.
func (c *call) backendFailed(w *front.Response, err error) {
	c.s.c.Log.Warn("the function behind a route gave no valid answer", "route", c.route.Key, "request", c.id, "error",
		err)
	f := failureOf(apiConfiguration)
	f.status = http.StatusBadGateway
	f.name = "" // this failure has no gateway response of its own: only DEFAULT_5XX changes the answer
	c.fail(w, f)
}

// reply is a function's answer to a proxy event.
type reply struct {
	status  int
	headers http.Header
	body    []byte
}

// proxyReply is the JSON form of a function's answer.
type proxyReply struct {
	Status  *json.Number               `json:"statusCode"`
	Headers map[string]json.RawMessage `json:"headers"`
	Multi   map[string][]string        `json:"multiValueHeaders"`
	Cookies []string                   `json:"cookies"`
	Body    *string                    `json:"body"`
	Base64  bool                       `json:"isBase64Encoded"`
}

// readReply parses a function's answer. With payload 2.0, any other JSON value is the body of an answer with status
// 200.
func readReply(out []byte, v2 bool) (*reply, error) {
	var in proxyReply
	err := json.Unmarshal(out, &in)
	formed := err == nil && in.Status != nil
	switch {
	case !formed && v2 && json.Valid(out):
		return &reply{http.StatusOK, http.Header{"Content-Type": {"application/json"}}, out}, nil
	case err != nil:
		return nil, errors.New("the function's answer is not readable: " + describeJSON(err))
	case !formed:
		return nil, errors.New("the function's answer has no statusCode")
	}
	r := &reply{headers: make(http.Header)}
	if r.status, err = strconv.Atoi(in.Status.String()); err != nil || r.status < 200 || r.status > 599 {
		return nil, errors.New("the function's answer has a statusCode that is not 200 to 599")
	}
	if err := r.readHeaders(&in); err != nil {
		return nil, err
	}
	if in.Body != nil {
		r.body = []byte(*in.Body)
	}
	if in.Base64 {
		if r.body, err = base64.StdEncoding.DecodeString(string(r.body)); err != nil {
			return nil, errors.New("the function's answer has a body that is not base64")
		}
	}
	return r, nil
}

// readHeaders reads headers, multiValueHeaders and cookies. A line that is in both forms of headers is sent once.
func (p *reply) readHeaders(in *proxyReply) error {
	for name, lines := range in.Multi {
		for _, l := range lines {
			if err := p.add(name, l); err != nil {
				return err
			}
		}
	}
	for name, raw := range in.Headers {
		text := strings.TrimSpace(string(raw))
		switch {
		case text == "null" || text == "":
			continue
		case text[0] == '{' || text[0] == '[':
			return errors.New("the function's answer has a header that is no text")
		case text[0] == '"':
			if err := json.Unmarshal(raw, &text); err != nil {
				return errors.New("the function's answer has a header that is no text")
			}
		}
		canonical, _ := headerName(name)
		if lines := p.headers[canonical]; len(lines) > 0 && lines[len(lines)-1] == text {
			continue
		}
		if err := p.add(name, text); err != nil {
			return err
		}
	}
	for _, cookie := range in.Cookies {
		if err := p.add("Set-Cookie", cookie); err != nil {
			return err
		}
	}
	return nil
}

func (p *reply) add(name, value string) error {
	canonical, ok := headerName(name)
	if !ok || !sendable(value) {
		return errors.New("the function's answer has a header that cannot be sent")
	}
	p.headers[canonical] = append(p.headers[canonical], value)
	return nil
}

// unsent lists the headers of a function's answer that are not sent: they describe the connection or a length, and this
// server writes them itself.
var unsent = []string{"Connection", "Content-Length", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

func (p *reply) send(c *call, w *front.Response) {
	for _, name := range unsent {
		delete(p.headers, name)
	}
	h := w.Header()
	for name, lines := range p.headers {
		h[name] = lines
	}
	if h["Content-Type"] == nil {
		h["Content-Type"] = []string{"application/json"}
		if c.s.d.Kind == HTTP {
			h["Content-Type"] = []string{"text/plain;charset=UTF-8"}
		}
	}
	c.finish(p.status, h)
	c.send(w, p.status, p.body)
}

// tenantOfCaller returns the tenant that a backend reads from X-Sluice-Caller, which is the only header that Sluice's
// middleware trusts.
func tenantOfCaller(h http.Header) string {
	lines := h["X-Sluice-Caller"]
	if len(lines) != 1 {
		return ""
	}
	for member := range strings.SplitSeq(lines[0], ";") {
		if tenant, ok := strings.CutPrefix(member, "t="); ok {
			return tenant
		}
	}
	return ""
}
