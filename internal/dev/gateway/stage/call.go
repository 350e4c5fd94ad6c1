package stage

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// maxHeaderBytes is API Gateway's bound of the request line and all header values together.
const maxHeaderBytes = 10240

// call is one request as API Gateway sees it.
type call struct {
	s              *serving
	r              *http.Request
	now            time.Time
	id, extendedID string
	trace          string
	peer           string      // the address of the connection's other end, without port
	header         http.Header // the client's and those that API Gateway adds, Host included
	query          []pair      // in the order sent, decoded

	// fullPath is the path with stage or base path, and path without. On a REST API they are as sent; an HTTP API
	// decodes them, and cuts them at a question mark that was encoded. Both is observed, and not documented.
	fullPath, path string

	route      *route
	parameters map[string]string
	granted    grant
	signer     *Credential // who signed; nil where the route has no AWS_IAM
	accessKey  string      // the id of the signer's
	failure    failure     // that is being answered
}

type pair struct{ name, value string }

// newCall reads the request. It reports false for a path that is not below the stage's.
func (s *serving) newCall(r *http.Request) (*call, bool) {
	c := &call{s: s, r: r, now: s.c.Now().UTC(), fullPath: r.URL.EscapedPath()}
	c.id, c.extendedID = requestIDs(s.d.Kind)
	c.peer = r.RemoteAddr
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		c.peer = host
	}
	if a, err := netip.ParseAddr(c.peer); err == nil {
		c.peer = a.Unmap().WithZone("").String()
	}
	c.query = parseQuery(r.URL.RawQuery)
	c.readHeader()
	prefix := s.d.Prefix()
	rest, ok := strings.CutPrefix(c.fullPath, prefix)
	if !ok || rest != "" && rest[0] != '/' {
		return c, false
	}
	if rest == "" {
		rest = "/"
	}
	c.path = rest
	if s.d.Kind == HTTP {
		c.fullPath, c.path = decoded(c.fullPath), decoded(c.path)
	}
	return c, true
}

func decoded(path string) string {
	path, _, _ = strings.Cut(unescape(path), "?")
	return path
}

// readHeader adds what API Gateway adds: the address at the end of X-Forwarded-For, port and scheme as of every API, a
// trace id.
func (c *call) readHeader() {
	h := c.r.Header.Clone()
	if h == nil {
		h = make(http.Header)
	}
	h["Host"] = []string{c.r.Host}
	separator := ", "
	if c.s.d.Kind == HTTP {
		separator = ","
	}
	h["X-Forwarded-For"] = []string{strings.Join(append(slices.Clone(h["X-Forwarded-For"]), c.peer), separator)}
	h["X-Forwarded-Port"] = []string{"443"}
	h["X-Forwarded-Proto"] = []string{"https"}
	c.trace = traceID(strings.Join(h["X-Amzn-Trace-Id"], ","), c.now)
	h["X-Amzn-Trace-Id"] = []string{c.trace}
	c.header = h
}

var traceRoot = regexp.MustCompile(`^[A-Za-z0-9=;:_.-]{0,256}$`)

// traceID keeps a client's trace and adds its own part, as AWS's balancers document it; without one, or with one that
// is none, it begins a trace.
func traceID(sent string, now time.Time) string {
	own := fmt.Sprintf("1-%08x-%s", now.Unix(), hex.EncodeToString(random(12)))
	if strings.Contains(sent, "Root=") && traceRoot.MatchString(sent) {
		return "Self=" + own + ";" + sent
	}
	return "Root=" + own
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}

func requestIDs(k Kind) (id, extended string) {
	extended = base64.StdEncoding.EncodeToString(random(11))
	if k != REST {
		return extended, extended
	}
	b := random(16)
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]), extended
}

// tooLarge reports whether the request line and the values of the client's headers are more than API Gateway takes.
func (c *call) tooLarge() bool {
	n := len(c.r.Method) + len(c.r.RequestURI) + len(c.r.Proto) + len(c.r.Host)
	for _, lines := range c.r.Header {
		for _, l := range lines {
			n += len(l)
		}
	}
	return n > maxHeaderBytes
}

// parseQuery keeps the order, which the order of lists in events depends on. What cannot be decoded stays as it is.
func parseQuery(raw string) []pair {
	var out []pair
	for raw != "" {
		var one string
		one, raw, _ = strings.Cut(raw, "&")
		if one == "" {
			continue
		}
		name, value, _ := strings.Cut(one, "=")
		out = append(out, pair{unquery(name), unquery(value)})
	}
	return out
}

func unquery(s string) string {
	if out, err := url.QueryUnescape(s); err == nil {
		return out
	}
	return s
}

// requestHeader is a header as an expression sees it: of several lines a REST API takes the last, an HTTP API all.
func (c *call) requestHeader(name string) (string, bool) {
	lines := c.header[name]
	if len(lines) == 0 {
		return "", false
	}
	if c.s.d.Kind == HTTP {
		return strings.Join(lines, ","), true
	}
	return lines[len(lines)-1], true
}

func (c *call) queryValue(name string) (string, bool) {
	var all []string
	for _, p := range c.query {
		if p.name == name {
			all = append(all, p.value)
		}
	}
	switch {
	case len(all) == 0:
		return "", false
	case c.s.d.Kind == HTTP:
		return strings.Join(all, ","), true
	}
	return all[len(all)-1], true
}

// domainName is what an API's events call its host: its own, whatever name this process is reached by.
func (c *call) domainName() string {
	return c.s.d.API + ".execute-api." + c.s.d.Region + ".amazonaws.com"
}

func (c *call) domainPrefix() string {
	prefix, _, _ := strings.Cut(c.domainName(), ".")
	return prefix
}

func (c *call) requestTime() string { return c.now.Format("02/Jan/2006:15:04:05 -0700") }

// resource is the path of the route as REST APIs name it; on an HTTP API's catch-all route it is that route's key.
func (c *call) resource() string {
	switch {
	case c.route == nil:
		return ""
	case c.route.target.path == "":
		return c.route.Key
	}
	return c.route.target.path
}

func (c *call) routeKey() string {
	if c.route == nil {
		return ""
	}
	return c.route.Key
}

// arn names the request to an authorizer, and what a policy must name.
func (c *call) arn() string {
	method, path := c.r.Method, c.path
	if c.s.d.Kind == WebSocket {
		method, path = connectRoute, ""
	}
	return "arn:aws:execute-api:" + c.s.d.Region + ":" + c.s.d.Account + ":" + c.s.d.API + "/" + c.s.d.Stage + "/" +
		method + path
}
