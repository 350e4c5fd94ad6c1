package apigw

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicelimits/sluice/internal/request/answer"
)

// ErrUnauthorized is what the Lambda handler must return as it is where [Encoder.Append] does: a REST or WebSocket API
// answers 401 if the error's text is exactly this, and 500 at any other. What an HTTP API answers to it is documented
// nowhere, so its authorizers never return it.
//
//nolint:staticcheck // the text is API Gateway's, capital letter and all
var ErrUnauthorized = errors.New("Unauthorized")

// What API Gateway takes. The size of a result is documented for WebSocket APIs, and kept for all. The length is that
// of a policy's Resource, in characters; bytes are never fewer.
const (
	MaxAnswerBytes   = 8 << 10
	maxResourceBytes = 512
)

// The names of values in the context: in mapping templates $context.authorizer.NAME, in header mappings
// context.authorizer.NAME, in a Lambda proxy event requestContext.authorizer.NAME (payload 2.0:
// authorizer.lambda.NAME).
//
// They are listed in the order in which they are written, and further values follow in theirs. One that there is no
// more room for is left out whole, so where the bounds cut, they cut what stands later. A backend that sees the calls
// which were denied, by [Encoder.PassDenials], must take any decision but "allowed", and none, for a denial.
const (
	ContextDecision    = "decision"   // answer.Kind's name: "allowed", "limited", …; always there
	ContextHTTPStatus  = "httpStatus" // number: what the client is to get, 200 where allowed; always there
	ContextTenant      = "tenant"     // percent-encoded, as are subject, plan and keyId; "" is left out
	ContextSubject     = "subject"
	ContextPlan        = "plan"
	ContextKeyID       = "keyId"
	ContextAnonymous   = "anonymous"   // true; else left out
	ContextStoreFailed = "storeFailed" // true where limits were checked without their store; else left out
	ContextMode        = "mode"        // "shadow" or "off" where limits deny nobody; else left out
	// answer.Kind's name: in shadow, what a limit's denial would have been; else left out
	ContextSpared = "spared"
	// true where the decision was made on a configuration that is older than it may be; else left out
	ContextConfigStale = "configStale"
	// name of the limit that denied or has least left, as in rateLimit: "burst", "put-product/10s", "ip:per-address"
	ContextBinding = "binding"
	// the value of the header Retry-After; so the next three, and rateLimit and -Policy
	ContextRetryAfter  = "retryAfter"
	ContextLimit       = "rateLimitLimit"
	ContextRemaining   = "rateLimitRemaining"
	ContextReset       = "rateLimitReset"
	ContextProblemType = "problemType" // URI of the problem's type; a denial only, as are instance and problem
	ContextInstance    = "instance"
	// the binding limit first; where there is no room for all, as many as there is
	ContextRateLimit = "rateLimit"
	ContextPolicy    = "rateLimitPolicy" // then lists the same as rateLimit
	ContextProblem   = "problem"         // application/problem+json, the whole body; a JSON text in a string

	// ContextProblemMembers is the members of the problem, with a comma before each one, for the gateway responses of
	// REST APIs. It has a body begin an object and end it, so that a denial which is not the authorizer's is answered
	// with JSON, too.
	ContextProblemMembers = "problemMembers"

	ContextLeftOut = "leftOut" // number of values that there was no room for, or whose names were bad; else left out
)

// taken are the names that a Value cannot have: ours, and those that API Gateway itself fills in beside a context.
var taken = []string{ContextDecision, ContextHTTPStatus, ContextCaller, ContextTenant, ContextSubject, ContextPlan,
	ContextKeyID, ContextAnonymous,
	ContextStoreFailed, ContextMode, ContextSpared, ContextConfigStale, ContextBinding, ContextRetryAfter, ContextLimit,
	ContextRemaining, ContextReset, ContextProblemType, ContextInstance,
	ContextRateLimit, ContextPolicy, ContextProblem, ContextProblemMembers, ContextLeftOut,
	"principalId", "integrationLatency", "integrationStatus", "latency", "requestId", "status", "error", "claims",
	"scopes"}

// Answer is the outcome of one request. The strings may hold anything; what is written of them is printable ASCII.
type Answer struct {
	Kind                         answer.Kind
	Header                       answer.Header
	Tenant, Subject, Plan, KeyID string // "" where not known
	Anonymous, StoreFailed       bool
	ConfigStale                  bool
	Mode                         string      // "shadow" or "off" where limits deny nobody; empty is left out
	Spared                       answer.Kind // in shadow, what a limit's denial would have been
	Instance                     string      // URI of this occurrence; "" where allowed
	Problem                      []byte      // body of a denial, as answer.Problem writes it; empty is left out
	Values                       []Value     // further values of the context, the most important first
}

// Value is one value of the context. Make it with [Text], [Name], [Number] or [Bool].
type Value struct {
	name, text string
	quoted     bool
}

// Text is a value of printable ASCII; bytes that are not come percent-encoded, so that it can stand in a header. The
// name is of A-Z a-z 0-9 _, at most 64 of them, begins with a letter, and is none of the Context constants.
func Text(name, value string) Value { return Value{name, ascii(value), true} }

// Name is a value that somebody chose: all but A-Z a-z 0-9 - . _ ~ is percent-encoded, so that each has one spelling.
func Name(name, value string) Value { return Value{name, encode(value), true} }

// Number is a whole number. Beyond 2^53 readers that count in floating point lose digits.
func Number(name string, value int64) Value {
	return Value{name, strconv.FormatInt(value, 10), false}
}

// Bool is a truth value.
func Bool(name string, value bool) Value { return Value{name, strconv.FormatBool(value), false} }

// Encoder writes answers. The zero Encoder is ready for use. It is safe for concurrent use once it is filled in.
type Encoder struct {
	// PassDenials names, by id, the APIs in whose backend our middleware stands: a denial lets the request through to
	// it, with the decision in the context, so that the client gets the true 429, 403 or 401. Without that middleware
	// it is an open door, so the default, none, is a Deny, which an HTTP API answers with 403. It goes for HTTP and
	// WebSocket APIs; on REST APIs a gateway response does it, and the entry has no effect. No or a bad credential is a
	// 401 of a REST or WebSocket API either way.
	PassDenials []string
}

// Append appends the answer to the event, at most MaxAnswerBytes of JSON, or returns ErrUnauthorized, which is then the
// answer. Assumption: missing-credential.
func (n *Encoder) Append(b []byte, e *Event, a *Answer) ([]byte, error) {
	if e.Unauthorized(a.Kind) {
		return b, ErrUnauthorized
	}
	allow := a.Kind == answer.Allowed || e.passes() && slices.Contains(n.PassDenials, e.API)
	w := writer{b: b, start: len(b)}
	if e.Shape == HTTP2 {
		w.raw(`{"isAuthorized":`)
		w.b = strconv.AppendBool(w.b, allow)
	} else {
		w.policy(e, a, allow)
	}
	w.context(a, !e.passes())
	return append(w.b, '}'), nil
}

// Unauthorized reports whether the answer to the event is [ErrUnauthorized]: where no credential or a bad one came, by
// an API of a kind that documents what it makes of that error.
func (e *Event) Unauthorized(k answer.Kind) bool {
	return (k == answer.NoCredential || k == answer.BadCredential) && e.Shape != HTTP1 && e.Shape != HTTP2
}

func (e *Event) passes() bool { return e.Shape == HTTP1 || e.Shape == HTTP2 || e.Shape == WebSocket }

// writer appends one answer and keeps to its size.
type writer struct {
	b       []byte
	start   int
	values  int
	leftOut int64
}

func (w *writer) raw(s string) { w.b = append(w.b, s...) }

// quoted writes a JSON string. Escapes are those of encoding/json, with those for HTML.
func (w *writer) quoted(s string) {
	before := len(w.b)
	w.b = append(w.b, '"')
	from := 0
	for i := range len(s) {
		c := s[i]
		switch {
		case unescaped[c]:
			continue
		case c == '"' || c == '\\':
			w.b = append(append(w.b, s[from:i]...), '\\', c)
			from = i + 1
		default: // rare: all but ARNs is printable ASCII
			all, _ := json.Marshal(s) // a string is always encoded
			w.b = append(w.b[:before], all...)
			return
		}
	}
	w.b = append(append(w.b, s[from:]...), '"')
}

func (w *writer) policy(e *Event, a *Answer, allow bool) {
	w.raw(`{"principalId":"`)
	w.raw(principal(a))
	w.raw(`","policyDocument":{"Version":"2012-10-17","Statement":[{"Action":"execute-api:Invoke","Effect":`)
	if allow {
		w.raw(`"Allow"`)
	} else {
		w.raw(`"Deny"`)
	}
	w.raw(`,"Resource":`)
	w.quoted(resource(e.ARN))
	w.raw(`}]}`)
}

// maxNameBytes bounds an encoded name: 128 bytes, the longest that a plan takes, each of them encoded.
const maxNameBytes = 3 * 128

// principal needs no escapes.
func principal(a *Answer) string {
	tenant, subject := encode(a.Tenant), encode(a.Subject)
	switch {
	case a.Anonymous:
		return "(anonymous)"
	case tenant == "" || len(tenant) > maxNameBytes:
		return "(unknown)"
	case subject == "" || len(subject) > maxNameBytes:
		return tenant
	}
	return tenant + "/" + subject
}

// resource is the ARN as a policy may name it. One that is too long ends in a wildcard: a policy is about the one
// request it was asked for, as long as results are not cached (Assumption: cache-off). "${" would begin a policy
// variable, so "?", which is any one character, stands for its dollar.
func resource(arn string) string {
	if strings.Contains(arn, "${") {
		arn = strings.ReplaceAll(arn, "${", "?{")
	}
	if len(arn) <= maxResourceBytes {
		return arn
	}
	cut := maxResourceBytes - 1
	for cut > 0 && arn[cut]&0xc0 == 0x80 { // in the middle of a character
		cut--
	}
	return arn[:cut] + "*"
}

// reserve is kept for what ends an answer: ,"leftOut":999}} and more.
const reserve = 32

func (w *writer) room() int { return MaxAnswerBytes - reserve - (len(w.b) - w.start) }

// context writes the values. rest is a REST API, whose gateway responses are made of them.
func (w *writer) context(a *Answer, rest bool) {
	w.raw(`,"context":{`)
	w.add(Value{ContextDecision, a.Kind.String(), true})
	w.add(Number(ContextHTTPStatus, int64(a.Kind.Status())))
	w.add(caller(a))
	w.named(ContextTenant, a.Tenant)
	w.named(ContextSubject, a.Subject)
	w.named(ContextPlan, a.Plan)
	w.named(ContextKeyID, a.KeyID)
	if a.Anonymous {
		w.add(Bool(ContextAnonymous, true))
	}
	if a.StoreFailed {
		w.add(Bool(ContextStoreFailed, true))
	}
	w.texted(ContextMode, a.Mode)
	if a.Spared != answer.Allowed {
		w.add(Value{ContextSpared, a.Spared.String(), true})
	}
	if a.ConfigStale {
		w.add(Bool(ContextConfigStale, true))
	}
	w.texted(ContextBinding, bindingName(a.Header.RateLimit))
	w.texted(ContextRetryAfter, a.Header.RetryAfter)
	w.texted(ContextLimit, a.Header.Limit)
	w.texted(ContextRemaining, a.Header.Remaining)
	w.texted(ContextReset, a.Header.Reset)
	w.texted(ContextProblemType, a.Kind.Type())
	w.texted(ContextInstance, a.Instance)
	bodies := problemBodies(a, rest)
	w.lists(ascii(a.Header.RateLimit), ascii(a.Header.Policy), bodies)
	for _, v := range bodies {
		left := w.leftOut
		if w.add(v); w.leftOut > left { // what does not fit once does not fit twice
			break
		}
	}
	w.further(a.Values)
	if w.leftOut > 0 {
		w.raw(`,"` + ContextLeftOut + `":`)
		w.b = strconv.AppendInt(w.b, min(w.leftOut, 999), 10)
	}
	w.raw("}")
}

// problemBodies are the forms of a denial's body: whole, and for REST APIs by members.
func problemBodies(a *Answer, rest bool) []Value {
	if a.Kind == answer.Allowed || len(a.Problem) == 0 {
		return nil
	}
	all := []Value{Text(ContextProblem, string(a.Problem))}
	if end := len(a.Problem) - 1; rest && end > 1 && a.Problem[0] == '{' && a.Problem[end] == '}' {
		all = append(all, Text(ContextProblemMembers, ","+string(a.Problem[1:end])))
	}
	return all
}

// bindingName is the name of the first item of the list, which is the binding limit's.
func bindingName(rateLimit string) string {
	rest, quoted := strings.CutPrefix(rateLimit, `"`)
	name, _, whole := strings.Cut(rest, `"`)
	if !quoted || !whole {
		return ""
	}
	return name
}

// named writes what a plan or a credential chose. Too long a name must not cost the values behind it.
func (w *writer) named(name, value string) {
	switch v := Name(name, value); {
	case value == "":
	case len(v.text) > maxNameBytes:
		w.leftOut++
	default:
		w.add(v)
	}
}

func (w *writer) texted(name, value string) {
	if value != "" {
		w.add(Text(name, value))
	}
}

// add writes a value where there is room for it.
func (w *writer) add(v Value) {
	before := len(w.b)
	if w.values > 0 {
		w.raw(",")
	}
	w.quoted(v.name)
	w.raw(":")
	if v.quoted {
		w.quoted(v.text)
	} else {
		w.raw(v.text)
	}
	if w.room() < 0 {
		w.b = w.b[:before]
		w.leftOut++
		return
	}
	w.values++
}

// further writes what the caller adds, names that are good and new only.
func (w *writer) further(values []Value) {
	for i, v := range values {
		twice := slices.ContainsFunc(values[:i], func(o Value) bool { return o.name == v.name })
		if twice || !goodName(v.name) || slices.Contains(taken, v.name) {
			w.leftOut++
			continue
		}
		w.add(v)
	}
}

func goodName(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c != '_' && (c < '0' || c > '9')) {
			return false
		}
	}
	return s != "" && len(s) <= 64
}

// lists writes the two lists of limits. They are cut between items, and after the same one, to leave room for what
// follows; the first item of each is the binding limit.
func (w *writer) lists(rateLimit, policy string, bodies []Value) {
	room := w.room() - len(`,"`+ContextRateLimit+`":"","`+ContextPolicy+`":""`)
	for i, v := range bodies {
		size := len(`,"":""`) + len(v.name) + escapedLen(v.text)
		if i > 0 && size > maxProblemBytes { // there may be no room for the first one
			break
		}
		room -= min(size, maxProblemBytes)
	}
	left, policies := rateLimit, policy
	if escapedLen(left)+escapedLen(policies) > room {
		w.leftOut++
		for left != "" || policies != "" {
			l, p := strings.Count(left, ", "), strings.Count(policies, ", ")
			if l == p && escapedLen(left)+escapedLen(policies) <= room {
				break
			}
			if l >= p {
				left = dropLast(left)
			}
			if p >= l {
				policies = dropLast(policies)
			}
		}
	}
	if left != "" {
		w.add(Value{ContextRateLimit, left, true})
	}
	if policies != "" {
		w.add(Value{ContextPolicy, policies, true})
	}
}

// maxProblemBytes is how much of an answer the lists of limits leave to each form of the problem, if that needs it.
const maxProblemBytes = 3 << 10

func dropLast(list string) string { return list[:max(strings.LastIndex(list, ", "), 0)] }

// escapedLen is the length of printable ASCII in a JSON string.
func escapedLen(s string) int {
	n := len(s)
	for i := range len(s) {
		switch s[i] {
		case '"', '\\':
			n++
		case '<', '>', '&':
			n += 5
		}
	}
	return n
}
