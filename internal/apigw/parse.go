package apigw

import (
	"bytes"
	"errors"
	"fmt"
	"net/textproto"
	"strings"

	"github.com/tidwall/gjson"
)

// MaxEventBytes bounds an event. API Gateway takes 10,240 bytes of headers and as much of path and query; an event holds each
// up to four times, and escaped.
const MaxEventBytes = 512 << 10

// maxDepth bounds how deep an event is nested, where it opens more than maxBrackets. Those of API Gateway have five levels.
const (
	maxDepth    = 32
	maxBrackets = 1000
)

// ErrEvent is an event that is not one of the five shapes, or not whole. What wraps it names the field; it never holds a
// value of the event.
var ErrEvent = errors.New("not an API Gateway authorizer event")

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrEvent}, args...)...)
}

// Parse reads an event. It keeps no part of data. Fields that it does not know are passed over, because API Gateway adds some
// from time to time.
func Parse(data []byte) (*Event, error) {
	if len(data) > MaxEventBytes {
		return nil, refuse("%d bytes, at most %d are read", len(data), MaxEventBytes)
	}
	if tooDeep(data) {
		return nil, refuse("nested more than %d deep", maxDepth)
	}
	if !gjson.ValidBytes(data) {
		return nil, refuse("not valid JSON")
	}
	root := gjson.Parse(string(data))
	if !root.IsObject() {
		return nil, refuse("not a JSON object")
	}
	var r raw
	if err := r.readRoot(root); err != nil {
		return nil, err
	}
	shape, err := r.shape()
	if err != nil {
		return nil, err
	}
	return r.event(shape)
}

// tooDeep is what keeps the validator, which recurses, from a stack that a small function's memory does not hold. Few events
// open as many brackets as could be a danger, so few are looked through.
func tooDeep(data []byte) bool {
	if bytes.Count(data, []byte("["))+bytes.Count(data, []byte("{")) <= maxBrackets {
		return false
	}
	depth, quoted := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted:
			if c == '\\' {
				i++
			} else if c == '"' {
				quoted = false
			}
		case c == '"':
			quoted = true
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// text is a field that was looked for: a string, or absent. null is absent, as the gateway's test console sends it.
type text struct {
	value string
	set   bool
}

// raw is what an event holds of the fields that matter, before it is known which shape it has.
type raw struct {
	typ, version                        text
	methodARN, routeARN, token          text
	resource, path, httpMethod, rawPath text
	routeKey                            text
	headers, multi, cookies, context    gjson.Result

	api, stage, requestID, eventType, contextRoute text
	http                                           gjson.Result
	identityIP, httpIP, contextMethod              text
}

func (r *raw) readRoot(root gjson.Result) error {
	err := eachField(root, "", func(name string) (*text, *gjson.Result) {
		switch name {
		case "type":
			return &r.typ, nil
		case "version":
			return &r.version, nil
		case "methodArn":
			return &r.methodARN, nil
		case "routeArn":
			return &r.routeARN, nil
		case "authorizationToken":
			return &r.token, nil
		case "resource":
			return &r.resource, nil
		case "path":
			return &r.path, nil
		case "httpMethod":
			return &r.httpMethod, nil
		case "rawPath":
			return &r.rawPath, nil
		case "routeKey":
			return &r.routeKey, nil
		case "headers":
			return nil, &r.headers
		case "multiValueHeaders":
			return nil, &r.multi
		case "cookies":
			return nil, &r.cookies
		case "requestContext":
			return nil, &r.context
		}
		return nil, nil
	})
	if err != nil || !r.context.Exists() {
		return err
	}
	return r.readContext()
}

func (r *raw) readContext() error {
	var identity gjson.Result
	err := eachField(r.context, "requestContext.", func(name string) (*text, *gjson.Result) {
		switch name {
		case "apiId":
			return &r.api, nil
		case "stage":
			return &r.stage, nil
		case "requestId":
			return &r.requestID, nil
		case "eventType":
			return &r.eventType, nil
		case "routeKey":
			return &r.contextRoute, nil
		case "identity":
			return nil, &identity
		case "http":
			return nil, &r.http
		}
		return nil, nil
	})
	if err != nil {
		return err
	}
	if identity.Exists() {
		err = eachField(identity, "requestContext.identity.", func(name string) (*text, *gjson.Result) {
			if name == "sourceIp" {
				return &r.identityIP, nil
			}
			return nil, nil
		})
	}
	if err != nil || !r.http.Exists() {
		return err
	}
	return eachField(r.http, "requestContext.http.", func(name string) (*text, *gjson.Result) {
		switch name {
		case "method":
			return &r.contextMethod, nil
		case "sourceIp":
			return &r.httpIP, nil
		}
		return nil, nil
	})
}

// eachField fills in the fields of an object that field names a place for: a string, or a value that is looked into later. A
// field that stands there twice is refused, since readers differ on which one counts.
func eachField(object gjson.Result, prefix string, field func(name string) (*text, *gjson.Result)) error {
	if !object.IsObject() {
		return refuse("%s is not an object", strings.TrimSuffix(prefix, "."))
	}
	var err error
	object.ForEach(func(key, v gjson.Result) bool {
		str, inner := field(key.Str)
		switch {
		case str == nil && inner == nil, v.Type == gjson.Null:
		case str != nil && str.set || inner != nil && inner.Exists():
			err = refuse("%s%s stands there twice", prefix, key.Str)
		case inner != nil:
			*inner = v
		case v.Type != gjson.String:
			err = refuse("%s%s is not a string", prefix, key.Str)
		default:
			*str = text{v.Str, true}
		}
		return err == nil
	})
	return err
}

// shape tells what the event is by what it holds, and refuses one that holds what two shapes would.
func (r *raw) shape() (Shape, error) {
	switch {
	case !r.typ.set:
		return 0, r.notOurs()
	case r.typ.value == "TOKEN":
		return RESTToken, r.without("type is TOKEN", names{
			{"version", r.version.set}, {"routeArn", r.routeARN.set}, {"requestContext", r.context.Exists()},
			{"headers", r.headers.Exists()}, {"multiValueHeaders", r.multi.Exists()}, {"httpMethod", r.httpMethod.set},
			{"path", r.path.set}, {"rawPath", r.rawPath.set}})
	case r.typ.value != "REQUEST":
		return 0, refuse("type is neither TOKEN nor REQUEST")
	case !r.context.Exists():
		return 0, refuse("type is REQUEST, but requestContext is missing")
	case r.version.set:
		return r.httpShape()
	case r.eventType.set || r.contextRoute.set:
		return r.socketShape()
	}
	return RESTRequest, r.without("type is REQUEST without version, as of a REST API", names{
		{"routeArn", r.routeARN.set}, {"rawPath", r.rawPath.set}, {"requestContext.http", r.http.Exists()}})
}

func (r *raw) httpShape() (Shape, error) {
	switch r.version.value {
	case "1.0":
		return HTTP1, r.without("version is 1.0", names{
			{"routeArn", r.routeARN.set}, {"rawPath", r.rawPath.set}, {"requestContext.eventType", r.eventType.set}, {"requestContext.http", r.http.Exists()}})
	case "2.0":
		return HTTP2, r.without("version is 2.0", names{
			{"methodArn", r.methodARN.set}, {"path", r.path.set}, {"httpMethod", r.httpMethod.set},
			{"requestContext.eventType", r.eventType.set}, {"requestContext.identity.sourceIp", r.identityIP.set}})
	}
	return 0, refuse("version is neither 1.0 nor 2.0")
}

func (r *raw) socketShape() (Shape, error) {
	if r.eventType.value != "CONNECT" || r.contextRoute.value != "$connect" {
		return 0, refuse("a WebSocket event that is not of $connect, the only route that is authorized")
	}
	return WebSocket, r.without("requestContext.eventType is CONNECT", names{
		{"routeArn", r.routeARN.set}, {"path", r.path.set}, {"httpMethod", r.httpMethod.set}, {"rawPath", r.rawPath.set},
		{"requestContext.http", r.http.Exists()}})
}

// notOurs says what an event without a type may be instead: functions are attached to the wrong thing.
func (r *raw) notOurs() error {
	switch {
	case r.context.Exists() && (r.httpMethod.set || r.rawPath.set || r.eventType.set):
		return refuse("type is missing: it looks like the event of an integration or a function URL, not of an authorizer")
	case r.methodARN.set || r.routeARN.set:
		return refuse("type is missing")
	}
	return refuse("type, methodArn and routeArn are missing")
}

type names []struct {
	name string
	set  bool
}

// without refuses an event that holds one of the fields.
func (r *raw) without(because string, fields names) error {
	for _, f := range fields {
		if f.set {
			return refuse("%s, but there is %s", because, f.name)
		}
	}
	return nil
}

// event fills in an event of a known shape.
func (r *raw) event(shape Shape) (*Event, error) {
	e := &Event{Shape: shape, API: r.api.value, Stage: r.stage.value, RequestID: r.requestID.value, HasContext: shape != RESTToken}
	arnField, given := "methodArn", r.methodARN
	if shape == HTTP2 {
		arnField, given = "routeArn", r.routeARN
	}
	if !given.set {
		return nil, refuse("%s is missing", arnField)
	}
	e.ARN = given.value
	a, ok := splitARN(e.ARN, shape)
	if !ok {
		return nil, refuse("%s is not the ARN of a method or route", arnField)
	}
	if e.API == "" {
		e.API = a.api
	}
	if e.Stage == "" {
		e.Stage = a.stage
	}
	var err error
	switch shape {
	case RESTToken:
		err = r.fromToken(e, a)
	case HTTP2:
		err = r.fromHTTP2(e, a)
	case WebSocket:
		err = r.fromSocket(e)
	default:
		err = r.fromRequest(e, a)
	}
	if err != nil {
		return nil, err
	}
	e.Trace = trace(e.Header["X-Amzn-Trace-Id"])
	return e, nil
}

func (r *raw) fromToken(e *Event, a arn) error {
	if !r.token.set {
		return refuse("type is TOKEN, but authorizationToken is missing")
	}
	token := r.token.value
	if t := textproto.TrimString(token); t != "" && !strings.ContainsAny(t, " \t") {
		token = "Bearer " + t
	}
	e.Method, e.Path = a.method, a.path
	e.Header = map[string][]string{"Authorization": {token}}
	return nil
}

// fromRequest is for the two shapes with httpMethod and path.
func (r *raw) fromRequest(e *Event, a arn) error {
	if err := require(names{{"httpMethod", r.httpMethod.value != ""}, {"path", r.path.set},
		{"requestContext.identity.sourceIp", r.identityIP.set}}); err != nil {
		return err
	}
	e.Method, e.Peer, e.Route = r.httpMethod.value, r.identityIP.value, r.resource.value
	e.Path = requestPath(e, r.path.value, a)
	return r.readHeaders(e)
}

func (r *raw) fromHTTP2(e *Event, a arn) error {
	if err := require(names{{"rawPath", r.rawPath.set}, {"requestContext.http.method", r.contextMethod.value != ""},
		{"requestContext.http.sourceIp", r.httpIP.set}}); err != nil {
		return err
	}
	e.Method, e.Peer, e.Route = r.contextMethod.value, r.httpIP.value, r.routeKey.value
	e.Path = requestPath(e, r.rawPath.value, a)
	if err := r.readHeaders(e); err != nil {
		return err
	}
	return r.readCookies(e)
}

func (r *raw) fromSocket(e *Event) error {
	if err := require(names{{"requestContext.identity.sourceIp", r.identityIP.set}}); err != nil {
		return err
	}
	e.Method, e.Path, e.Peer, e.Route = "GET", "/$connect", r.identityIP.value, r.contextRoute.value
	return r.readHeaders(e)
}

// require refuses an event that lacks one of the fields.
func require(fields names) error {
	for _, f := range fields {
		if !f.set {
			return refuse("%s is missing", f.name)
		}
	}
	return nil
}

// readHeaders takes multiValueHeaders where there are any, which hold every line; headers hold only the last of each name.
func (r *raw) readHeaders(e *Event) error {
	field, from := "multiValueHeaders", r.multi
	if !hasFields(from) && from.IsObject() || !from.Exists() {
		field, from = "headers", r.headers
	}
	e.Header = make(map[string][]string, 32)
	if !from.Exists() {
		return nil
	}
	if !from.IsObject() {
		return refuse("%s is not an object", field)
	}
	lines := make([]string, 0, 32) // the one allocation for all values, as long as there are few
	var err error
	from.ForEach(func(key, v gjson.Result) bool {
		name := textproto.CanonicalMIMEHeaderKey(key.Str)
		before := len(lines)
		switch {
		case v.Type == gjson.String && field == "headers":
			lines = append(lines, v.Str)
		case v.IsArray() && field != "headers":
			lines, err = appendStrings(lines, v, "multiValueHeaders holds a value that is not a list of strings")
		default:
			err = refuse("%s holds a value of the wrong type", field)
		}
		if had := e.Header[name]; had != nil {
			e.Header[name] = append(had, lines[before:]...)
		} else if len(lines) > before {
			e.Header[name] = lines[before:len(lines):len(lines)]
		}
		return err == nil
	})
	return err
}

func (r *raw) readCookies(e *Event) error {
	if !r.cookies.Exists() {
		return nil
	}
	const wrong = "cookies is not a list of strings"
	if !r.cookies.IsArray() {
		return refuse(wrong)
	}
	var err error
	e.Cookies, err = appendStrings(nil, r.cookies, wrong)
	if len(e.Cookies) > 0 && e.Header["Cookie"] == nil {
		e.Header["Cookie"] = []string{strings.Join(e.Cookies, "; ")}
	}
	return err
}

func appendStrings(to []string, list gjson.Result, wrong string) ([]string, error) {
	var err error
	list.ForEach(func(_, v gjson.Result) bool {
		if v.Type != gjson.String {
			err = refuse("%s", wrong)
			return false
		}
		to = append(to, v.Str)
		return true
	})
	return to, err
}

// hasFields reports whether an object has any.
func hasFields(object gjson.Result) (found bool) {
	object.ForEach(func(_, _ gjson.Result) bool {
		found = true
		return false
	})
	return found
}

// trace takes the trace header if it is one: what a client sends there is handed on by the gateway, and it ends in logs.
func trace(lines []string) string {
	if len(lines) != 1 || len(lines[0]) > 256 {
		return ""
	}
	for i := range len(lines[0]) {
		switch c := lines[0][i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '=', c == ';', c == ':', c == '-', c == '_':
		default:
			return ""
		}
	}
	return lines[0]
}
