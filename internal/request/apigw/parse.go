package apigw

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/textproto"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
)

// MaxEventBytes bounds an event. API Gateway accepts 10,240 bytes of headers, and as many of path and query. An event
// contains each of them up to four times, with escapes.
const MaxEventBytes = 512 << 10

// ErrEvent means that an event has none of the five shapes, or is not complete. Errors that wrap it name the field, and
// never contain a value of the event.
var ErrEvent = errors.New("not an API Gateway authorizer event")

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrEvent}, args...)...)
}

// Parse reads an event. It keeps no reference to data. It ignores unknown fields, because API Gateway adds fields from
// time to time.
//
// It does not use encoding/json with the types of package events of aws-lambda-go, because they would hide that a field
// occurs twice. They would also take most of an authorizer's time, since every request of a client causes an event;
// BenchmarkBaseline compares.
func Parse(data []byte) (*Event, error) {
	if len(data) > MaxEventBytes {
		return nil, refuse("%d bytes, at most %d are read", len(data), MaxEventBytes)
	}
	if tooDeep(data) {
		return nil, refuse("nested more than %d deep", maxDepth)
	}
	text := string(data)
	if !gjson.Valid(text) {
		return nil, refuse("not valid JSON")
	}
	root := gjson.Parse(text)
	if !root.IsObject() {
		return nil, refuse("not a JSON object")
	}
	event := raw{}
	if err := event.read("", root); err != nil {
		return nil, err
	}
	shape, err := event.shape()
	if err != nil {
		return nil, err
	}
	return event.event(shape)
}

// raw holds the fields of an event that matter, by their paths, before its shape is known. null counts as absent,
// because the gateway's test console sends it.
type raw map[string]gjson.Result

// The paths of the fields that matter. stringFields must be strings. objectFields must be objects, and some of their
// members matter. laterFields may have several types, and are read once the shape is known.
var (
	stringFields = strings.Fields(`type version methodArn routeArn authorizationToken resource path httpMethod rawPath
		routeKey requestContext.apiId requestContext.stage requestContext.requestId requestContext.eventType
		requestContext.routeKey requestContext.identity.sourceIp requestContext.http.method
		requestContext.http.sourceIp`)
	objectFields = []string{"requestContext", "requestContext.identity", "requestContext.http"}
	laterFields  = []string{"headers", "multiValueHeaders", "cookies"}
)

// fieldsOf holds the paths of the fields that matter: first by the path of the object that they are in, which is "" for
// the event itself, and then by their name in it.
var fieldsOf = func() map[string]map[string]string {
	all := map[string]map[string]string{"": {}}
	for _, path := range objectFields {
		all[path] = map[string]string{}
	}
	for _, path := range slices.Concat(stringFields, objectFields, laterFields) {
		dot := strings.LastIndexByte(path, '.')
		all[path[:max(dot, 0)]][path[dot+1:]] = path
	}
	return all
}()

// read stores the members that matter of the object at the path of. It refuses an event in which such a member occurs
// twice, because programs differ in which of the two they use, and an event in which it has the wrong type.
func (p raw) read(of string, object gjson.Result) (err error) {
	fields := fieldsOf[of]
	object.ForEach(func(name, value gjson.Result) bool {
		path, matters := fields[text(name)]
		if !matters || value.Type == gjson.Null {
			return true
		}
		_, inner := fieldsOf[path]
		switch {
		case p.has(path):
			err = refuse("%s stands there twice", path)
		case inner && !value.IsObject():
			err = refuse("%s is not an object", path)
		case inner:
			p[path] = value
			err = p.read(path, value)
		case value.Type != gjson.String && !slices.Contains(laterFields, path):
			err = refuse("%s is not a string", path)
		default:
			p[path] = value
		}
		return err == nil
	})
	return err
}

func (p raw) has(path string) bool { _, there := p[path]; return there }

// text returns the string at the path, or "" if the event has no string there.
func (p raw) text(path string) string { return text(p[path]) }

// text returns the text of a string. Half a surrogate pair, which gjson would take together with the character after
// it, becomes U+FFFD.
func text(v gjson.Result) string {
	if strings.Contains(v.Raw, `\u`) {
		var s string
		if json.Unmarshal([]byte(v.Raw), &s) == nil {
			return s
		}
	}
	return v.Str
}

// shape returns the shape of the event. It refuses an event that has fields of two shapes.
func (p raw) shape() (Shape, error) {
	switch {
	case !p.has("type"):
		return 0, p.notOurs()
	case p.text("type") == "TOKEN":
		return RESTToken, p.without("type is TOKEN", "version", "routeArn", "requestContext", "headers",
			"multiValueHeaders", "httpMethod", "path", "rawPath")
	case p.text("type") != "REQUEST":
		return 0, refuse("type is neither TOKEN nor REQUEST")
	case !p.has("requestContext"):
		return 0, refuse("type is REQUEST, but requestContext is missing")
	case p.has("version"):
		return p.httpShape()
	case p.has("requestContext.eventType") || p.has("requestContext.routeKey"):
		return p.socketShape()
	}
	return RESTRequest, p.without("type is REQUEST without version, as of a REST API", "routeArn", "rawPath",
		"requestContext.http")
}

func (p raw) httpShape() (Shape, error) {
	switch p.text("version") {
	case "1.0":
		return HTTP1, p.without("version is 1.0", "routeArn", "rawPath", "requestContext.eventType",
			"requestContext.http")
	case "2.0":
		return HTTP2, p.without("version is 2.0", "methodArn", "path", "httpMethod", "requestContext.eventType",
			"requestContext.identity.sourceIp")
	}
	return 0, refuse("version is neither 1.0 nor 2.0")
}

func (p raw) socketShape() (Shape, error) {
	if p.text("requestContext.eventType") != "CONNECT" || p.text("requestContext.routeKey") != "$connect" {
		return 0, refuse("a WebSocket event that is not of $connect, the only route that is authorized")
	}
	return WebSocket, p.without("requestContext.eventType is CONNECT", "routeArn", "path", "httpMethod", "rawPath",
		"requestContext.http")
}

// notOurs returns an error that says what an event without a type may be instead: the function may be attached to the
// wrong source.
func (p raw) notOurs() error {
	switch {
	case p.has("requestContext") && (p.has("httpMethod") || p.has("rawPath") || p.has("requestContext.eventType")):
		return refuse(
			"type is missing: it looks like the event of an integration or a function URL, not of an authorizer")
	case p.has("methodArn") || p.has("routeArn"):
		return refuse("type is missing")
	}
	return refuse("type, methodArn and routeArn are missing")
}

// without refuses an event that has one of the fields.
func (p raw) without(because string, paths ...string) error {
	for _, path := range paths {
		if p.has(path) {
			return refuse("%s, but there is %s", because, path)
		}
	}
	return nil
}

// with refuses an event that has not all of the fields.
func (p raw) with(paths ...string) error {
	for _, path := range paths {
		if !p.has(path) {
			return refuse("%s is missing", path)
		}
	}
	return nil
}

// ownRequestID returns the gateway's request id, or "" for a text of another form. On REST APIs a client can send an id
// of its own, which may contain what must not be logged. REST APIs make UUIDs. The other APIs make about 15 base64
// digits and "=".
func ownRequestID(id string) string {
	if len(id) == 36 && id[8] == '-' && id[13] == '-' && id[18] == '-' && id[23] == '-' &&
		madeOf(id[:8]+id[9:13]+id[14:18]+id[19:23]+id[24:], "0123456789abcdef") {
		return id
	}
	const base64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_"
	if digits, padded := strings.CutSuffix(id, "="); padded && len(digits) >= 12 && len(digits) <= 20 &&
		madeOf(digits, base64) {
		return id
	}
	return ""
}

func madeOf(text, alphabet string) bool { return strings.Trim(text, alphabet) == "" }

// event makes the event of a known shape.
func (p raw) event(shape Shape) (*Event, error) {
	e := &Event{Shape: shape, API: p.text("requestContext.apiId"), Stage: p.text("requestContext.stage"),
		RequestID: ownRequestID(p.text("requestContext.requestId")), HasContext: shape != RESTToken}
	arnField := "methodArn"
	if shape == HTTP2 {
		arnField = "routeArn"
	}
	if err := p.with(arnField); err != nil {
		return nil, err
	}
	e.ARN = p.text(arnField)
	a, ok := splitARN(e.ARN, shape)
	if !ok {
		return nil, refuse("%s is not the ARN of a method or route", arnField)
	}
	e.API, e.Stage = cmp.Or(e.API, a.api), cmp.Or(e.Stage, a.stage)
	var err error
	switch shape {
	case RESTToken:
		err = p.fromToken(e, a)
	case HTTP2:
		err = p.fromRequest(e, a, "requestContext.http.method", "rawPath", "requestContext.http.sourceIp", "routeKey")
		if err == nil {
			err = p.readCookies(e)
		}
	case WebSocket:
		err = p.fromSocket(e)
	default:
		err = p.fromRequest(e, a, "httpMethod", "path", "requestContext.identity.sourceIp", "resource")
	}
	if err != nil {
		return nil, err
	}
	e.Trace = trace(e.Header["X-Amzn-Trace-Id"])
	return e, nil
}

func (p raw) fromToken(e *Event, a arn) error {
	if !p.has("authorizationToken") {
		return refuse("type is TOKEN, but authorizationToken is missing")
	}
	token := p.text("authorizationToken")
	if t := textproto.TrimString(token); t != "" && !strings.ContainsAny(t, " \t") {
		token = "Bearer " + t
	}
	e.Method, e.Path = a.method, a.path
	e.Header = map[string][]string{"Authorization": {token}}
	return nil
}

// fromRequest reads the shapes with a method and a path, from the fields at these paths.
func (p raw) fromRequest(e *Event, a arn, method, path, peer, route string) error {
	if err := p.with(method, path, peer); err != nil {
		return err
	}
	e.Method, e.Peer, e.Route = p.text(method), p.text(peer), p.text(route)
	if e.Method == "" {
		return refuse("%s is missing", method)
	}
	e.Path = requestPath(e, p.text(path), a)
	return p.readHeaders(e)
}

func (p raw) fromSocket(e *Event) error {
	const peer = "requestContext.identity.sourceIp"
	if err := p.with(peer); err != nil {
		return err
	}
	e.Method, e.Path, e.Peer, e.Route = "GET", "/$connect", p.text(peer), p.text("requestContext.routeKey")
	return p.readHeaders(e)
}

// readHeaders takes the headers from multiValueHeaders if there are any, because headers has only the last line of each
// name.
func (p raw) readHeaders(e *Event) (err error) {
	const lists = "multiValueHeaders"
	from, object := lists, p[lists]
	if !object.Exists() || object.IsObject() && isEmpty(object) {
		from = "headers"
		object = p[from]
	}
	const usualHeaders = 32 // of a browser; more headers take a little longer
	e.Header = make(map[string][]string, usualHeaders)
	if !object.Exists() {
		return nil
	}
	if !object.IsObject() {
		return refuse("%s is not an object", from)
	}
	all := make([]string, 0, usualHeaders) // of the values; grows only if many names have several
	object.ForEach(func(name, value gjson.Result) bool {
		before := len(all)
		switch {
		case from != lists && value.Type == gjson.String:
			all = append(all, text(value))
		case from != lists || !value.IsArray():
			err = refuse("%s holds a value of the wrong type", from)
		default:
			var good bool
			if all, good = appendStrings(all, value); !good {
				err = refuse("%s holds a value that is not a list of strings", from)
			}
		}
		key := canonical(text(name))
		if had := e.Header[key]; had != nil {
			e.Header[key] = append(had, all[before:]...)
		} else if len(all) > before {
			e.Header[key] = all[before:len(all):len(all)]
		}
		return err == nil
	})
	return err
}

func isEmpty(object gjson.Result) bool {
	empty := true
	object.ForEach(func(_, _ gjson.Result) bool { empty = false; return false })
	return empty
}

func (p raw) readCookies(e *Event) error {
	list := p["cookies"]
	if !list.Exists() {
		return nil
	}
	cookies, good := appendStrings(nil, list)
	if !good || !list.IsArray() {
		return refuse("cookies is not a list of strings")
	}
	e.Cookies = cookies
	if len(e.Cookies) > 0 && e.Header["Cookie"] == nil {
		e.Header["Cookie"] = []string{strings.Join(e.Cookies, "; ")}
	}
	return nil
}

// appendStrings appends the strings of a list. good is false if the list has a value that is not a string.
func appendStrings(to []string, list gjson.Result) (_ []string, good bool) {
	good = true
	list.ForEach(func(_, value gjson.Result) bool {
		good = value.Type == gjson.String
		to = append(to, text(value))
		return good
	})
	return to, good
}

// usual holds the names that most events have, in two spellings: as the client or API Gateway writes them, and in lower
// case, as in HTTP/2 and HTTP APIs.
var usual = func() map[string]string {
	out := map[string]string{}
	for _, name := range strings.Fields(`
		Accept Accept-Encoding Accept-Language Authorization Cache-Control Content-Length Content-Type Cookie
		Cloudfront-Forwarded-Proto Cloudfront-Is-Desktop-Viewer Cloudfront-Is-Mobile-Viewer
		Cloudfront-Is-Smarttv-Viewer Cloudfront-Is-Tablet-Viewer Cloudfront-Viewer-Asn Cloudfront-Viewer-Country
		Forwarded Host If-None-Match Origin Priority Referer Sec-Ch-Ua Sec-Ch-Ua-Mobile Sec-Ch-Ua-Platform
		Sec-Fetch-Dest Sec-Fetch-Mode Sec-Fetch-Site Sec-Fetch-User Sec-Websocket-Extensions Sec-Websocket-Key
		Sec-Websocket-Version Traceparent Tracestate User-Agent Via X-Amz-Cf-Id X-Amzn-Trace-Id X-Api-Key
		X-Forwarded-For X-Forwarded-Host X-Forwarded-Port X-Forwarded-Proto X-Request-Id
	`) {
		out[name], out[strings.ToLower(name)] = name, name
	}
	for _, name := range strings.Fields(`
		CloudFront-Forwarded-Proto CloudFront-Is-Desktop-Viewer CloudFront-Is-Mobile-Viewer
		CloudFront-Is-SmartTV-Viewer CloudFront-Is-Tablet-Viewer CloudFront-Viewer-ASN CloudFront-Viewer-Country
		Sec-WebSocket-Extensions Sec-WebSocket-Key Sec-WebSocket-Version
	`) {
		out[name] = textproto.CanonicalMIMEHeaderKey(name)
	}
	return out
}()

// canonical returns the canonical form of a header's name, as package textproto defines it.
func canonical(name string) string {
	if known, ok := usual[name]; ok {
		return known
	}
	return textproto.CanonicalMIMEHeaderKey(name)
}

// trace returns the trace header if it is valid. The gateway passes on what a client sends in it, and logs contain it.
func trace(lines []string) string {
	if len(lines) != 1 || len(lines[0]) > 256 {
		return ""
	}
	for i := range len(lines[0]) {
		switch c := lines[0][i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '=', c == ';', c == ':', c == '-',
			c == '_':
		default:
			return ""
		}
	}
	return lines[0]
}
