package apigateway

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
	peer           string      // the address of the client's end of the connection, without port
	header         http.Header // the client's headers and those that API Gateway adds, with Host
	query          []pair      // decoded, in the order in which they were sent

	// fullPath is the path with the stage or base path, and path is the path without it. On a REST API both are as the
	// client sent them. An HTTP API decodes them, and cuts them at an encoded question mark. This behaviour was
	// observed; it is not documented.
	fullPath, path string

	route      *route
	parameters map[string]string
	granted    grant
	accessKey  string  // the id of the key with which the request is signed, in place of the user's unique id
	userARN    string  // the user who signed the request; "" if the route has no AWS_IAM
	failure    failure // what the gateway answers itself; without a name if the integration answers
}

// pair is one parameter of the query.
type pair struct{ name, value string }

// newCall reads the request. It returns false if the path is not below the path of the stage.
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

// decoded returns a path as an HTTP API decodes it: see call.fullPath.
func decoded(path string) string {
	path, _, _ = strings.Cut(unescape(path), "?")
	return path
}

// readHeader sets c.header to the client's headers and those that API Gateway adds: the client's address at the end of
// X-Forwarded-For, the port and scheme that every API has, and a trace id.
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

// traceID returns the trace id of a request. If the client sent a valid trace id, it is kept, and a part for this
// request is added, as AWS documents it for load balancers. Otherwise traceID returns a new trace id.
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

// tooLarge reports whether the request line and the values of the client's headers are longer than API Gateway allows.
func (c *call) tooLarge() bool {
	n := len(c.r.Method) + len(c.r.RequestURI) + len(c.r.Proto) + len(c.r.Host)
	for _, lines := range c.r.Header {
		for _, l := range lines {
			n += len(l)
		}
	}
	return n > maxHeaderBytes
}

// parseQuery returns the parameters of a query in their order, on which the order of lists in events depends. A name or
// value that cannot be decoded stays as it is.
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

// requestHeader returns the value that an expression has for a header. If the header has several lines, a REST API uses
// the last line, and an HTTP API joins all of them.
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

// domainName returns the host of the API as events name it. It does not depend on the name by which a client reaches
// this process.
func (c *call) domainName() string {
	return c.s.d.API + ".execute-api." + c.s.d.Region + ".amazonaws.com"
}

func (c *call) domainPrefix() string {
	prefix, _, _ := strings.Cut(c.domainName(), ".")
	return prefix
}

func (c *call) requestTime() string { return c.now.Format("02/Jan/2006:15:04:05 -0700") }

// resource returns the path of the route, with its parameters in braces. For the catch-all route of an HTTP API, which
// has no path, it returns the key of the route.
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

// arn returns the ARN of the request. An authorizer gets it, and its policy must name it.
func (c *call) arn() string {
	method, path := c.r.Method, c.path
	if c.s.d.Kind == WebSocket {
		method, path = connectRoute, ""
	}
	return "arn:aws:execute-api:" + c.s.d.Region + ":" + c.s.d.Account + ":" + c.s.d.API + "/" + c.s.d.Stage + "/" +
		method + path
}
