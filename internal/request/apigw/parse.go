package apigw

import (
	"errors"
	"fmt"
	"net/textproto"
	"strings"
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
func Parse(data []byte) (*Event, error) {
	if len(data) > MaxEventBytes {
		return nil, refuse("%d bytes, at most %d are read", len(data), MaxEventBytes)
	}
	r := reader{s: string(data), maxDepth: maxDepth}
	var event raw
	r.space()
	object := r.next() == '{'
	var ok bool
	if object {
		ok = event.readRoot(&r)
	} else {
		ok = r.skip()
	}
	switch {
	case r.deep:
		return nil, refuse("nested more than %d deep", maxDepth)
	case !ok || r.i < len(r.s):
		return nil, refuse("not valid JSON")
	case !object:
		return nil, refuse("not a JSON object")
	case event.err != nil:
		return nil, event.err
	}
	shape, err := event.shape()
	if err != nil {
		return nil, err
	}
	return event.event(shape)
}

// field is a string of the event, or absent. null counts as absent, because the gateway's test console sends it.
type field struct {
	value string
	set   bool
}

// part is the place of an object or a list that is read later, when the shape of the event is known. The zero part is
// absent.
type part struct {
	first   byte // of its text
	text    string
	members int // of an object
}

func (p *part) set() bool { return p.first != 0 }

// raw holds the fields of an event that matter, before its shape is known.
type raw struct {
	typ, version                        field
	methodARN, routeARN, token          field
	resource, path, httpMethod, rawPath field
	routeKey                            field
	headers, cookies                    part
	multi                               lines // of multiValueHeaders

	context, identity, http                        bool // the event has such an object
	api, stage, requestID, eventType, contextRoute field
	identityIP, httpIP, contextMethod              field

	err error // the first wrong field
}

// readRoot reads the fields that matter, checks the rest, and reports whether the text is JSON.
func (p *raw) readRoot(r *reader) bool {
	return r.object(func(name string, escaped bool) bool {
		switch text(name, escaped) {
		case "type":
			return p.readField(r, "type", &p.typ)
		case "version":
			return p.readField(r, "version", &p.version)
		case "methodArn":
			return p.readField(r, "methodArn", &p.methodARN)
		case "routeArn":
			return p.readField(r, "routeArn", &p.routeARN)
		case "authorizationToken":
			return p.readField(r, "authorizationToken", &p.token)
		case "resource":
			return p.readField(r, "resource", &p.resource)
		case "path":
			return p.readField(r, "path", &p.path)
		case "httpMethod":
			return p.readField(r, "httpMethod", &p.httpMethod)
		case "rawPath":
			return p.readField(r, "rawPath", &p.rawPath)
		case "routeKey":
			return p.readField(r, "routeKey", &p.routeKey)
		case "headers":
			return p.readPart(r, "headers", &p.headers)
		case "multiValueHeaders":
			return p.readMulti(r)
		case "cookies":
			return p.readPart(r, "cookies", &p.cookies)
		case "requestContext":
			return p.readObject(r, "requestContext", &p.context, p.readContext)
		}
		return r.skip()
	})
}

func (p *raw) readContext(r *reader, name string) bool {
	switch name {
	case "apiId":
		return p.readField(r, "requestContext.apiId", &p.api)
	case "stage":
		return p.readField(r, "requestContext.stage", &p.stage)
	case "requestId":
		return p.readField(r, "requestContext.requestId", &p.requestID)
	case "eventType":
		return p.readField(r, "requestContext.eventType", &p.eventType)
	case "routeKey":
		return p.readField(r, "requestContext.routeKey", &p.contextRoute)
	case "identity":
		return p.readObject(r, "requestContext.identity", &p.identity, p.readIdentity)
	case "http":
		return p.readObject(r, "requestContext.http", &p.http, p.readHTTP)
	}
	return r.skip()
}

func (p *raw) readIdentity(r *reader, name string) bool {
	if name == "sourceIp" {
		return p.readField(r, "requestContext.identity.sourceIp", &p.identityIP)
	}
	return r.skip()
}

func (p *raw) readHTTP(r *reader, name string) bool {
	switch name {
	case "method":
		return p.readField(r, "requestContext.http.method", &p.contextMethod)
	case "sourceIp":
		return p.readField(r, "requestContext.http.sourceIp", &p.httpIP)
	}
	return r.skip()
}

// wrong keeps the first wrong field. Reading goes on, to find out whether the text is JSON.
func (p *raw) wrong(format string, args ...any) {
	if p.err == nil {
		p.err = refuse(format, args...)
	}
}

// readField reads a string. It refuses a field that occurs twice, as the functions below do, because programs differ in
// which one they read.
func (p *raw) readField(r *reader, name string, to *field) bool {
	switch r.next() {
	case '"':
		raw, escaped, ok := r.quoted()
		if to.set {
			p.wrong("%s stands there twice", name)
		}
		if ok {
			*to = field{text(raw, escaped), true}
		}
		return ok
	case 'n':
	default:
		p.wrong("%s is not a string", name)
	}
	return r.skip()
}

// readPart keeps the place of a value, for later.
func (p *raw) readPart(r *reader, name string, to *part) bool {
	first, from := r.next(), r.i
	members, ok := 0, false
	if first == '{' {
		members, ok = r.skipObject()
	} else {
		ok = r.skip()
	}
	switch {
	case first == 'n' || !ok:
	case to.set():
		p.wrong("%s stands there twice", name)
	default:
		*to = part{first, r.s[from:r.i], members}
	}
	return ok
}

// readMulti reads multiValueHeaders at once, because all shapes that have this object take their headers from it.
func (p *raw) readMulti(r *reader) bool {
	const name = "multiValueHeaders"
	first := r.next()
	switch {
	case first == 'n':
		return r.skip()
	case p.multi.set:
		p.wrong("%s stands there twice", name)
		return r.skip()
	}
	p.multi.set = true
	if first != '{' {
		p.multi.wrong("%s is not an object", name)
		return r.skip()
	}
	return p.multi.read(r, name, '[', p.headers.members) // headers comes first in the event and has the same names
}

// readObject reads an object. It calls a function for the value of each member.
func (p *raw) readObject(r *reader, name string, there *bool, member func(*reader, string) bool) bool {
	switch r.next() {
	case '{':
		if *there {
			p.wrong("%s stands there twice", name)
		}
		*there = true
		return r.object(func(name string, escaped bool) bool { return member(r, text(name, escaped)) })
	case 'n':
	default:
		p.wrong("%s is not an object", name)
	}
	return r.skip()
}

// shape returns the shape of the event. It refuses an event that has fields of two shapes.
func (p *raw) shape() (Shape, error) {
	switch {
	case !p.typ.set:
		return 0, p.notOurs()
	case p.typ.value == "TOKEN":
		return RESTToken, p.without("type is TOKEN", names{
			{"version", p.version.set}, {"routeArn", p.routeARN.set}, {"requestContext", p.context},
			{"headers", p.headers.set()}, {"multiValueHeaders", p.multi.set}, {"httpMethod", p.httpMethod.set},
			{"path", p.path.set}, {"rawPath", p.rawPath.set}})
	case p.typ.value != "REQUEST":
		return 0, refuse("type is neither TOKEN nor REQUEST")
	case !p.context:
		return 0, refuse("type is REQUEST, but requestContext is missing")
	case p.version.set:
		return p.httpShape()
	case p.eventType.set || p.contextRoute.set:
		return p.socketShape()
	}
	return RESTRequest, p.without("type is REQUEST without version, as of a REST API", names{
		{"routeArn", p.routeARN.set}, {"rawPath", p.rawPath.set}, {"requestContext.http", p.http}})
}

func (p *raw) httpShape() (Shape, error) {
	switch p.version.value {
	case "1.0":
		return HTTP1, p.without("version is 1.0", names{
			{"routeArn", p.routeARN.set}, {"rawPath", p.rawPath.set}, {"requestContext.eventType", p.eventType.set},
			{"requestContext.http", p.http}})
	case "2.0":
		return HTTP2, p.without("version is 2.0", names{
			{"methodArn", p.methodARN.set}, {"path", p.path.set}, {"httpMethod", p.httpMethod.set},
			{"requestContext.eventType", p.eventType.set}, {"requestContext.identity.sourceIp", p.identityIP.set}})
	}
	return 0, refuse("version is neither 1.0 nor 2.0")
}

func (p *raw) socketShape() (Shape, error) {
	if p.eventType.value != "CONNECT" || p.contextRoute.value != "$connect" {
		return 0, refuse("a WebSocket event that is not of $connect, the only route that is authorized")
	}
	return WebSocket, p.without("requestContext.eventType is CONNECT", names{
		{"routeArn", p.routeARN.set}, {"path", p.path.set}, {"httpMethod", p.httpMethod.set},
		{"rawPath", p.rawPath.set},
		{"requestContext.http", p.http}})
}

// notOurs returns an error that says what an event without a type may be instead: the function may be attached to the
// wrong source.
func (p *raw) notOurs() error {
	switch {
	case p.context && (p.httpMethod.set || p.rawPath.set || p.eventType.set):
		return refuse(
			"type is missing: it looks like the event of an integration or a function URL, not of an authorizer")
	case p.methodARN.set || p.routeARN.set:
		return refuse("type is missing")
	}
	return refuse("type, methodArn and routeArn are missing")
}

type names []struct {
	name string
	set  bool
}

// without refuses an event that has one of the fields.
func (p *raw) without(because string, fields names) error {
	for _, f := range fields {
		if f.set {
			return refuse("%s, but there is %s", because, f.name)
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
func (p *raw) event(shape Shape) (*Event, error) {
	e := &Event{Shape: shape, API: p.api.value, Stage: p.stage.value, RequestID: ownRequestID(p.requestID.value),
		HasContext: shape != RESTToken}
	arnField, given := "methodArn", p.methodARN
	if shape == HTTP2 {
		arnField, given = "routeArn", p.routeARN
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
		err = p.fromToken(e, a)
	case HTTP2:
		err = p.fromHTTP2(e, a)
	case WebSocket:
		err = p.fromSocket(e)
	default:
		err = p.fromRequest(e, a)
	}
	if err != nil {
		return nil, err
	}
	e.Trace = trace(e.Header["X-Amzn-Trace-Id"])
	return e, nil
}

func (p *raw) fromToken(e *Event, a arn) error {
	if !p.token.set {
		return refuse("type is TOKEN, but authorizationToken is missing")
	}
	token := p.token.value
	if t := textproto.TrimString(token); t != "" && !strings.ContainsAny(t, " \t") {
		token = "Bearer " + t
	}
	e.Method, e.Path = a.method, a.path
	e.Header = map[string][]string{"Authorization": {token}}
	return nil
}

// fromRequest reads the two shapes with httpMethod and path.
func (p *raw) fromRequest(e *Event, a arn) error {
	if err := require(names{{"httpMethod", p.httpMethod.value != ""}, {"path", p.path.set},
		{"requestContext.identity.sourceIp", p.identityIP.set}}); err != nil {
		return err
	}
	e.Method, e.Peer, e.Route = p.httpMethod.value, p.identityIP.value, p.resource.value
	e.Path = requestPath(e, p.path.value, a)
	return p.readHeaders(e)
}

func (p *raw) fromHTTP2(e *Event, a arn) error {
	if err := require(names{{"rawPath", p.rawPath.set}, {"requestContext.http.method", p.contextMethod.value != ""},
		{"requestContext.http.sourceIp", p.httpIP.set}}); err != nil {
		return err
	}
	e.Method, e.Peer, e.Route = p.contextMethod.value, p.httpIP.value, p.routeKey.value
	e.Path = requestPath(e, p.rawPath.value, a)
	if err := p.readHeaders(e); err != nil {
		return err
	}
	return p.readCookies(e)
}

func (p *raw) fromSocket(e *Event) error {
	if err := require(names{{"requestContext.identity.sourceIp", p.identityIP.set}}); err != nil {
		return err
	}
	e.Method, e.Path, e.Peer, e.Route = "GET", "/$connect", p.identityIP.value, p.contextRoute.value
	return p.readHeaders(e)
}

// require refuses an event that has not all of the fields.
func require(fields names) error {
	for _, f := range fields {
		if !f.set {
			return refuse("%s is missing", f.name)
		}
	}
	return nil
}

// lines are the values of an object of headers. The zero value is absent.
type lines struct {
	set     bool
	members int                 // of the object
	header  map[string][]string // by canonical name
	err     error               // the first wrong member; it matters only if the shape has headers
}

func (l *lines) wrong(format string, args ...any) {
	if l.err == nil {
		l.err = refuse(format, args...)
	}
}

// read reads an object of headers whose values begin with the byte first: a string, or a list of strings. about is an
// estimate of the number of members, for allocation. It reports whether the text is JSON.
func (l *lines) read(r *reader, name string, first byte, about int) bool {
	l.header = make(map[string][]string, about)
	all := make([]string, 0, about+4) // the one allocation for all values, as long as few names have several
	return r.object(func(raw string, escaped bool) bool {
		l.members++
		key := canonical(text(raw, escaped))
		before := len(all)
		var ok, good bool
		switch {
		case r.next() != first:
			l.wrong("%s holds a value of the wrong type", name)
			ok = r.skip()
		case first == '[':
			if all, good, ok = appendStrings(all, r); !good {
				l.wrong("%s holds a value that is not a list of strings", name)
			}
		default:
			raw, escaped, ok = r.quoted()
			all = append(all, text(raw, escaped))
		}
		if had := l.header[key]; had != nil {
			l.header[key] = append(had, all[before:]...)
		} else if len(all) > before {
			l.header[key] = all[before:len(all):len(all)]
		}
		return ok
	})
}

// readHeaders takes the headers from multiValueHeaders if there are any, because headers has only the last line of each
// name.
func (p *raw) readHeaders(e *Event) error {
	from := &p.multi
	if !from.set || from.err == nil && from.members == 0 {
		from = &lines{}
		switch p.headers.first {
		case 0:
			from.header = map[string][]string{}
		case '{':
			from.read(&reader{s: p.headers.text, maxDepth: maxDepth}, "headers", '"', p.headers.members)
		default:
			from.wrong("headers is not an object")
		}
	}
	e.Header = from.header
	return from.err
}

func (p *raw) readCookies(e *Event) error {
	if !p.cookies.set() {
		return nil
	}
	good := p.cookies.first == '['
	if good {
		e.Cookies, good, _ = appendStrings(nil, &reader{s: p.cookies.text, maxDepth: maxDepth})
	}
	if !good {
		return refuse("cookies is not a list of strings")
	}
	if len(e.Cookies) > 0 && e.Header["Cookie"] == nil {
		e.Header["Cookie"] = []string{strings.Join(e.Cookies, "; ")}
	}
	return nil
}

// appendStrings reads a list of strings. good is false if the list has other values, which are ignored. ok says whether
// the text is JSON.
func appendStrings(to []string, r *reader) (_ []string, good, ok bool) {
	good = true
	ok = r.array(func() bool {
		if r.next() != '"' {
			good = false
			return r.skip()
		}
		raw, escaped, ok := r.quoted()
		to = append(to, text(raw, escaped))
		return ok
	})
	return to, good, ok
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
