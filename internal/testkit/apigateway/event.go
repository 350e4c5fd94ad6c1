package apigateway

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// maxHeaderBytes is API Gateway's bound of the request line and all header values together.
const maxHeaderBytes = 10240

// call is one request as API Gateway sees it.
type call struct {
	s      *Stage
	r      *http.Request
	now    time.Time
	id     string
	peer   string      // the address of the client's end of the connection, without port
	header http.Header // the client's headers and those that API Gateway adds, with Host
	query  []pair      // decoded, in the order in which they were sent

	// fullPath is the path with the stage, and path is the path without it. On a REST API both are as the client sent
	// them. An HTTP API decodes them, and cuts them at an encoded question mark. This behaviour was observed; it is not
	// documented.
	fullPath, path string

	route      *route
	parameters map[string]string
	granted    grant
	accessKey  string  // the id of the key with which the request is signed, in place of the user's unique id
	userARN    string  // the user who signed the request; "" if the route has no AWS_IAM
	failure    failure // what the gateway answers itself
}

// pair is one parameter of the query.
type pair struct{ name, value string }

// newCall reads the request. It returns false if the path is not below the path of the stage. It adds the headers that
// API Gateway adds: the client's address at the end of X-Forwarded-For, the port and scheme that every API has, and a
// trace id.
func (s *Stage) newCall(r *http.Request) (*call, bool) {
	c := &call{s: s, r: r, now: time.Now().UTC(), id: newID(), fullPath: r.URL.EscapedPath(),
		header: r.Header.Clone()}
	if peer, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		c.peer = peer.Addr().Unmap().WithZone("").String()
	}
	for parameter := range strings.FieldsFuncSeq(r.URL.RawQuery, func(c rune) bool { return c == '&' }) {
		name, value, _ := strings.Cut(parameter, "=")
		c.query = append(c.query, pair{unquery(name), unquery(value)})
	}
	separator := map[bool]string{true: ",", false: ", "}[s.d.Kind == HTTP]
	c.header["Host"] = []string{r.Host}
	c.header["X-Forwarded-For"] = []string{strings.Join(append(slices.Clone(c.header["X-Forwarded-For"]), c.peer),
		separator)}
	c.header["X-Forwarded-Port"], c.header["X-Forwarded-Proto"] = []string{"443"}, []string{"https"}
	c.header["X-Amzn-Trace-Id"] = []string{fmt.Sprintf("Root=1-%08x-%x", c.now.Unix(), rand.Text()[:12])}
	rest, ok := strings.CutPrefix(c.fullPath, s.d.Prefix())
	if c.path = rest; rest == "" {
		c.path = "/"
	}
	if s.d.Kind == HTTP {
		c.fullPath, c.path = decoded(c.fullPath), decoded(c.path)
	}
	return c, ok && c.path[0] == '/'
}

// newID returns an id in the form of a UUID.
func newID() string {
	b := fmt.Sprintf("%x", rand.Text())
	return b[:8] + "-" + b[8:12] + "-" + b[12:16] + "-" + b[16:20] + "-" + b[20:32]
}

// decoded returns a path as an HTTP API decodes it: see call.fullPath.
func decoded(path string) string {
	path, _, _ = strings.Cut(unescape(path), "?")
	return path
}

// unescape and unquery leave a text as it is that cannot be decoded.
func unescape(s string) string {
	if out, err := url.PathUnescape(s); err == nil {
		return out
	}
	return s
}

func unquery(s string) string {
	if out, err := url.QueryUnescape(s); err == nil {
		return out
	}
	return s
}

// headerBytes returns the length of the request line and of the values of the client's headers.
func (c *call) headerBytes() int {
	n := len(c.r.Method) + len(c.r.RequestURI) + len(c.r.Proto) + len(c.r.Host)
	for _, lines := range c.r.Header {
		n += len(strings.Join(lines, ""))
	}
	return n
}

// requestHeader returns a header as requestContext has it. If it has several lines, a REST API uses the last line, and
// an HTTP API joins all of them.
func (c *call) requestHeader(name string) string {
	lines := c.header[name]
	if c.s.d.Kind == HTTP || len(lines) == 0 {
		return strings.Join(lines, ",")
	}
	return lines[len(lines)-1]
}

func (c *call) requestTime() string { return c.now.Format("02/Jan/2006:15:04:05 -0700") }

// resource returns the path of the route, with its parameters in braces. For the catch-all route of an HTTP API, which
// has no path, it returns the key of the route.
func (c *call) resource() string {
	if c.route.resource == "" {
		return c.route.Key
	}
	return c.route.resource
}

// arn returns the ARN of the request. An authorizer gets it, and its policy must name it.
func (c *call) arn() string {
	tail := c.r.Method + c.path
	if c.s.d.Kind == WebSocket {
		tail = connectRoute
	}
	d := c.s.d
	return "arn:aws:execute-api:" + d.Region + ":" + d.Account + ":" + d.API + "/" + d.Stage + "/" + tail
}

// object is a JSON object. Its keys are written in order, so that two events of the same request are the same bytes.
type object map[string]any

func (o object) bytes() []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(o); err != nil { // not reached: strings, numbers and lists of them always marshal
		panic(fmt.Sprintf("event: %v", err))
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// authorizerEvent returns the event with which an authorizer's function is called.
func (c *call) authorizerEvent(a *Authorizer) object {
	switch {
	case c.s.d.Kind == HTTP && a.Payload == "2.0":
		o := c.http2()
		o["type"], o["routeArn"], o["identitySource"] = "REQUEST", c.arn(), nil
		return o
	case c.s.d.Kind == HTTP:
		o := c.http1()
		delete(o, "multiValueHeaders")
		delete(o, "multiValueQueryStringParameters")
		o["type"], o["methodArn"] = "REQUEST", c.arn()
		o["identitySource"], o["authorizationToken"] = nil, nil
		return o
	case c.s.d.Kind == WebSocket:
		return object{"type": "REQUEST", "methodArn": c.arn(), "headers": last(c.header), "multiValueHeaders": c.header,
			"queryStringParameters": c.lastQuery(), "multiValueQueryStringParameters": c.multiQuery(),
			"stageVariables": object{}, "requestContext": c.socketContext()}
	}
	o := c.restEvent()
	o["type"], o["methodArn"] = "REQUEST", c.arn()
	// These are {} if they are empty.
	o["queryStringParameters"], o["multiValueQueryStringParameters"] = c.lastQuery(), c.multiQuery()
	o["pathParameters"], o["stageVariables"] = c.parameters, object{}
	return o
}

// restEvent returns the members that all events of a REST API have.
func (c *call) restEvent() object {
	return object{
		"resource": c.resource(), "path": c.path, "httpMethod": c.r.Method,
		"headers": last(c.header), "multiValueHeaders": c.header,
		"queryStringParameters": orNull(c.lastQuery()), "multiValueQueryStringParameters": orNull(c.multiQuery()),
		"pathParameters": orNull(c.parameters), "stageVariables": nil,
		"requestContext": c.restContext(),
	}
}

func (c *call) restContext() object {
	identity := object{"sourceIp": c.peer, "userAgent": c.requestHeader("User-Agent"),
		"cognitoAuthenticationProvider": nil, "cognitoAuthenticationType": nil, "cognitoIdentityId": nil,
		"cognitoIdentityPoolId": nil, "principalOrgId": nil, "apiKey": nil, "apiKeyId": nil,
		"accountId": nil, "caller": nil, "userArn": nil}
	if c.userARN != "" {
		identity["accountId"], identity["caller"], identity["userArn"] = c.s.d.Account, c.accessKey, c.userARN
	}
	id := c.route.id
	if c.s.d.Kind == HTTP {
		id = c.route.Key
	} else if key := c.requestHeader("X-Api-Key"); key != "" {
		identity["apiKey"] = key
	}
	return c.withCommon(object{"extendedRequestId": c.id, "httpMethod": c.r.Method, "path": c.fullPath,
		"protocol": c.r.Proto, "requestTime": c.requestTime(), "requestTimeEpoch": c.now.UnixMilli(), "resourceId": id,
		"resourcePath": c.resource(), "identity": identity})
}

func (c *call) socketContext() object {
	o := c.withCommon(object{"routeKey": connectRoute, "eventType": "CONNECT", "messageDirection": "IN",
		"extendedRequestId": c.id, "connectionId": c.id, "connectedAt": c.now.UnixMilli(),
		"requestTime": c.requestTime(), "requestTimeEpoch": c.now.UnixMilli(),
		"identity": object{"sourceIp": c.peer, "userAgent": c.requestHeader("User-Agent")}})
	delete(o, "accountId")
	delete(o, "domainPrefix")
	return o
}

// withCommon adds the members that requestContext has in events of every kind.
func (c *call) withCommon(o object) object {
	o["accountId"], o["apiId"], o["stage"], o["requestId"] = c.s.d.Account, c.s.d.API, c.s.d.Stage, c.id
	// The host of the API does not depend on the name by which a client reaches this process.
	o["domainPrefix"], o["domainName"] = c.s.d.API, c.s.d.API+".execute-api."+c.s.d.Region+".amazonaws.com"
	return o
}

// http1 returns the event of an HTTP API with payload 1.0. It is like that of a REST API, with names of headers in
// lower case.
func (c *call) http1() object {
	o := c.restEvent()
	multi, joined := make(map[string][]string), make(map[string]string)
	for name, lines := range c.header {
		multi[strings.ToLower(name)], joined[strings.ToLower(name)] = lines, strings.Join(lines, ",")
	}
	o["version"], o["headers"], o["multiValueHeaders"] = "1.0", joined, multi
	o["path"] = c.fullPath // contains the stage
	return o
}

// http2 returns the event of an HTTP API with payload 2.0.
func (c *call) http2() object {
	headers, joined := make(map[string]string), make(map[string]string)
	for name, lines := range c.header {
		headers[strings.ToLower(name)] = strings.Join(lines, ",")
	}
	for _, p := range c.query {
		if v, ok := joined[p.name]; ok {
			p.value = v + "," + p.value
		}
		joined[p.name] = p.value
	}
	path := c.s.d.Prefix() + c.path
	o := object{"version": "2.0", "routeKey": c.route.Key, "rawPath": path, "rawQueryString": c.r.URL.RawQuery,
		"headers": headers,
		"requestContext": c.withCommon(object{"routeKey": c.route.Key, "time": c.requestTime(),
			"timeEpoch": c.now.UnixMilli(), "http": object{"method": c.r.Method, "path": path, "protocol": c.r.Proto,
				"sourceIp": c.peer, "userAgent": c.requestHeader("User-Agent")}}),
	}
	if lines := c.header["Cookie"]; len(lines) > 0 {
		delete(headers, "cookie")
		var cookies []string
		for one := range strings.SplitSeq(strings.Join(lines, ";"), ";") {
			if one = strings.TrimSpace(one); one != "" {
				cookies = append(cookies, one)
			}
		}
		o["cookies"] = cookies
	}
	for name, values := range map[string]map[string]string{"queryStringParameters": joined,
		"pathParameters": c.parameters} {
		if len(values) > 0 {
			o[name] = values
		}
	}
	return o
}

// proxyEvent returns the event with which the Lambda function behind a route is called.
func (c *call) proxyEvent(payload string, body []byte) object {
	o, typed, texts := c.http2, make(object), make(object)
	for name, v := range c.granted.context {
		typed[name], texts[name] = v.json, v.text
	}
	if c.granted.principal != "" {
		typed["principalId"], texts["principalId"] = c.granted.principal, c.granted.principal
	}
	decision := object{"lambda": typed}
	switch {
	case c.s.d.Kind == REST:
		o, decision = c.restEvent, texts
	case payload == "1.0":
		o, decision = c.http1, typed
	}
	event := o()
	if c.granted.context != nil {
		event["requestContext"].(object)["authorizer"] = decision
	}
	event["body"], event["isBase64Encoded"] = nil, !utf8.Valid(body) // other bytes cannot be text in JSON
	switch {
	case !utf8.Valid(body):
		event["body"] = base64.StdEncoding.EncodeToString(body)
	case len(body) > 0:
		event["body"] = string(body)
	}
	return event
}

// last returns the last line of each header, as events of a REST API have it in headers.
func last(h map[string][]string) map[string]string {
	out := make(map[string]string, len(h))
	for name, lines := range h {
		if len(lines) > 0 {
			out[name] = lines[len(lines)-1]
		}
	}
	return out
}

func (c *call) multiQuery() map[string][]string {
	out := make(map[string][]string)
	for _, p := range c.query {
		out[p.name] = append(out[p.name], p.value)
	}
	return out
}

func (c *call) lastQuery() map[string]string { return last(c.multiQuery()) }

// orNull returns the map, or nil if it is empty: events of integrations have null then.
func orNull[V any](m map[string]V) any {
	if len(m) == 0 {
		return nil
	}
	return m
}
