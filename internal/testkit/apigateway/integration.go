package apigateway

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"

	"github.com/aws/aws-lambda-go/events"
)

// integrate passes an authorized request to the integration of its route.
func (c *call) integrate(w http.ResponseWriter) {
	switch {
	case c.s.d.Kind == WebSocket: // the connection ends here: no messages are passed
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+
				"websocket\r\n\r\n")
			_ = conn.Close()
		}
	case c.route.Integration.Type == Mock:
		c.finish(c.route.status, w.Header())
		c.send(w, c.route.status, nil)
	case c.route.Integration.Type == AWSProxy:
		c.invokeBackend(w)
	case c.route.Integration.Type == HTTPProxy:
		c.proxy(w)
	default:
		c.echo(w)
	}
}

// finish changes the headers of an integration's answer to those that the client gets.
func (c *call) finish(status int, h http.Header) {
	c.addIDs(h)
	c.apply(c.route.responseChanges[status], h)
}

// backendHeader returns the headers of the request to an HTTP_PROXY.
func (c *call) backendHeader() http.Header {
	h := c.header.Clone()
	delete(h, "Host")
	c.apply(c.route.requestChanges, h)
	return h
}

// echo answers with the headers of the request that an HTTP_PROXY would have made, and with the tenant that a backend
// reads from X-Sluice-Caller, which is the only header that Sluice's middleware trusts.
func (c *call) echo(w http.ResponseWriter) {
	h, tenant := c.backendHeader(), ""
	for member := range strings.SplitSeq(h.Get("X-Sluice-Caller"), ";") {
		if id, ok := strings.CutPrefix(member, "t="); ok {
			tenant = id
		}
	}
	body, err := json.MarshalIndent(map[string]any{"tenant": tenant, "headers": h}, "", " ")
	if err != nil { // not reached: texts always marshal
		panic(err)
	}
	c.finish(http.StatusOK, w.Header())
	c.send(w, http.StatusOK, body)
}

// proxy makes the request of an HTTP_PROXY. A proxy removes the headers that the client names in Connection; those that
// are mapped are set after that.
func (c *call) proxy(w http.ResponseWriter) {
	to, err := url.Parse(c.target())
	if err != nil {
		c.fail(w, integrationFailure)
		return
	}
	to.RawQuery = c.r.URL.RawQuery
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL, p.Out.Host = to, ""
			if m := c.route.Integration.Method; m != "" {
				p.Out.Method = m
			}
			for name, lines := range c.header {
				if strings.HasPrefix(name, "X-Forwarded-") {
					p.Out.Header[name] = lines
				}
			}
			c.apply(c.route.requestChanges, p.Out.Header)
		},
		ModifyResponse: func(r *http.Response) error { c.finish(r.StatusCode, r.Header); return nil },
		ErrorHandler:   func(w http.ResponseWriter, _ *http.Request, _ error) { c.fail(w, integrationFailure) },
		ErrorLog:       log.New(io.Discard, "", 0), // its lines would name addresses
	}
	proxy.ServeHTTP(w, c.r)
}

// target returns the URL of the integration, with its placeholders replaced.
func (c *call) target() string {
	return placeholder.ReplaceAllStringFunc(c.route.Integration.URL, func(name string) string {
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

// invokeBackend calls the function behind a route. If it fails or gives an invalid answer, the client gets 502 from a
// REST API, and 500 from an HTTP API.
func (c *call) invokeBackend(w http.ResponseWriter) {
	g := &c.route.Integration
	body, err := io.ReadAll(c.r.Body)
	var out []byte
	if err == nil {
		out, err = c.s.c.Functions[g.Function].Invoke(c.r.Context(), c.proxyEvent(g.Payload, body).bytes())
	}
	var reply events.APIGatewayV2HTTPResponse // has the members of the others, too
	if err == nil {
		err = json.Unmarshal(out, &reply)
	}
	text := []byte(reply.Body)
	if err == nil && reply.IsBase64Encoded {
		text, err = base64.StdEncoding.DecodeString(reply.Body)
	}
	if err != nil || reply.StatusCode < 200 || reply.StatusCode > 599 {
		c.s.c.Log.Warn("the function behind a route gave no valid answer", "route", c.route.Key, "request", c.id,
			"error", err)
		c.fail(w, badAnswer)
		return
	}
	h := w.Header()
	for name, line := range reply.Headers {
		h.Set(name, line)
	}
	for name, lines := range reply.MultiValueHeaders {
		h[http.CanonicalHeaderKey(name)] = lines
	}
	for _, cookie := range reply.Cookies {
		h.Add("Set-Cookie", cookie)
	}
	if h.Get("Content-Type") == "" {
		h.Set("Content-Type", map[bool]string{true: "text/plain;charset=UTF-8", false: "application/json"}[c.s.d.Kind ==
			HTTP])
	}
	c.finish(reply.StatusCode, h)
	c.send(w, reply.StatusCode, text)
}
