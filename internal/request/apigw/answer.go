package apigw

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicelimits/sluice/internal/request/answer"
)

// ErrUnauthorized is returned by [Encoder.Append]. The Lambda handler must return it unwrapped: a REST or WebSocket API
// answers 401 if the error's text is exactly this, and 500 otherwise. The behaviour of an HTTP API is not documented,
// so Append never returns it for HTTP APIs.
//
//nolint:staticcheck // the text is API Gateway's, capital letter and all
var ErrUnauthorized = errors.New("Unauthorized")

// Bounds of API Gateway. The size of a result is documented for WebSocket APIs, and used for all. The length is that of
// a policy's Resource, in characters; the length in bytes is never lower.
const (
	MaxAnswerBytes   = 8 << 10
	maxResourceBytes = 512
)

// The names of values in the context. They are available as $context.authorizer.NAME in mapping templates,
// context.authorizer.NAME in header mappings, and requestContext.authorizer.NAME in a Lambda proxy event
// (authorizer.lambda.NAME in payload 2.0).
//
// The names are listed in the order in which they are written. Further values follow. A value without enough room is
// left out as a whole, so later values are left out first. A backend that receives denied calls, by
// [Encoder.PassDenials], must treat a missing decision, and any decision but "allowed", as a denial.
const (
	ContextDecision    = "decision"   // name of the answer.Kind: "allowed", "limited", …; always present
	ContextHTTPStatus  = "httpStatus" // number: the status for the client, 200 if allowed; always present
	ContextTenant      = "tenant"     // percent-encoded, like subject, plan and keyId; left out if ""
	ContextSubject     = "subject"
	ContextPlan        = "plan"
	ContextKeyID       = "keyId"
	ContextAnonymous   = "anonymous"   // true, or left out
	ContextStoreFailed = "storeFailed" // true if a store did not answer and onStoreFailure applied, or left out
	ContextMode        = "mode"        // "shadow" or "off" if limits deny nobody, or left out
	// In mode shadow, the name of the answer.Kind of the denial that was not enforced, or left out.
	ContextShadowDenial = "spared"
	// True if the configuration of the decision is older than it may be, or left out.
	ContextConfigStale = "configStale"
	// The name of the limit that denied, or of the one with the smallest part left, as in rateLimit: "burst",
	// "put-product/10s", "ip:per-address".
	ContextBinding = "binding"
	// The value of the header Retry-After. The next three, rateLimit and rateLimitPolicy are values of headers, too.
	ContextRetryAfter  = "retryAfter"
	ContextLimit       = "rateLimitLimit"
	ContextRemaining   = "rateLimitRemaining"
	ContextReset       = "rateLimitReset"
	ContextProblemType = "problemType" // URI of the problem's type; like instance and problem, only for a denial
	ContextInstance    = "instance"
	// The list of limits, the binding limit first, as many as there is room for.
	ContextRateLimit = "rateLimit"
	ContextPolicy    = "rateLimitPolicy" // the same limits as in rateLimit
	ContextProblem   = "problem"         // the whole body, application/problem+json, as a string

	// ContextProblemMembers holds the members of the problem, with a comma before each, for the gateway responses of
	// REST APIs. Their templates begin and end the object, so that a denial that does not come from the authorizer is
	// answered with JSON, too.
	ContextProblemMembers = "problemMembers"

	ContextLeftOut = "leftOut" // number of values without enough room, or with invalid names; left out if 0
)

// taken are the names that a Value cannot have: the names above, and those that API Gateway itself uses.
var taken = []string{ContextDecision, ContextHTTPStatus, ContextCaller, ContextTenant, ContextSubject, ContextPlan,
	ContextKeyID, ContextAnonymous,
	ContextStoreFailed, ContextMode, ContextShadowDenial, ContextConfigStale, ContextBinding, ContextRetryAfter,
	ContextLimit,
	ContextRemaining, ContextReset, ContextProblemType, ContextInstance,
	ContextRateLimit, ContextPolicy, ContextProblem, ContextProblemMembers, ContextLeftOut,
	"principalId", "integrationLatency", "integrationStatus", "latency", "requestId", "status", "error", "claims",
	"scopes"}

// Answer is the outcome of one request. Its strings may hold any text; they are written as printable ASCII.
type Answer struct {
	Kind                         answer.Kind
	Header                       answer.Header
	Tenant, Subject, Plan, KeyID string // "" if not known
	Anonymous, StoreFailed       bool
	ConfigStale                  bool
	Mode                         string      // "shadow" or "off" if limits deny nobody; otherwise ""
	ShadowDenial                 answer.Kind // in mode shadow, the denial that was not enforced
	Instance                     string      // URI of this denial; "" if allowed
	Problem                      []byte      // body of a denial, as answer.Problem writes it; left out if empty
	Values                       []Value     // further values of the context, the most important first
}

// Value is a value of the context. Make it with [Text], [Name], [Number] or [Bool].
type Value struct {
	name, text string
	quoted     bool
}

// Text makes a value of printable ASCII. Other bytes are percent-encoded, so that the value can be used in a header.
// The name has 1..64 characters of A-Z a-z 0-9 _, begins with a letter, and is not one of the Context constants.
func Text(name, value string) Value { return Value{name, ascii(value), true} }

// Name makes a value of a name that somebody chose. All characters but A-Z a-z 0-9 - . _ ~ are percent-encoded, so that
// each name has one spelling.
func Name(name, value string) Value { return Value{name, encode(value), true} }

// Number makes a value of an integer. Above 2^53, programs that read it as a floating-point number lose digits.
func Number(name string, value int64) Value {
	return Value{name, strconv.FormatInt(value, 10), false}
}

// Bool makes a value of a boolean.
func Bool(name string, value bool) Value { return Value{name, strconv.FormatBool(value), false} }

// Encoder writes answers. The zero Encoder is ready to use. It is safe for concurrent use if its fields do not change.
type Encoder struct {
	// PassDenials lists the ids of the APIs whose backends have our middleware. A denial then lets the request pass to
	// the backend, with the decision in the context, and the client gets the true 429, 403 or 401. Without that
	// middleware, such an API lets everybody pass. By default, a denial is a Deny, which an HTTP API answers with 403.
	// The field has an effect for HTTP and WebSocket APIs; REST APIs use gateway responses instead. A REST or WebSocket
	// API answers a missing or bad credential with 401 in either case.
	PassDenials []string
}

// Append appends the answer to the event, at most MaxAnswerBytes of JSON. If the answer is ErrUnauthorized, it returns
// that error. Assumption: missing-credential.
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

// Unauthorized reports whether the answer to the event is [ErrUnauthorized]: the credential is missing or bad, and the
// kind of API documents what it makes of that error.
func (e *Event) Unauthorized(k answer.Kind) bool {
	return (k == answer.NoCredential || k == answer.BadCredential) && e.Shape != HTTP1 && e.Shape != HTTP2
}

func (e *Event) passes() bool { return e.Shape == HTTP1 || e.Shape == HTTP2 || e.Shape == WebSocket }

// writer appends one answer and bounds its size.
type writer struct {
	b       []byte
	start   int
	values  int
	leftOut int64
}

func (w *writer) raw(s string) { w.b = append(w.b, s...) }

// quoted writes a JSON string with the same escapes as encoding/json, including those for HTML.
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
		default: // rare, because all strings but ARNs are printable ASCII
			all, _ := json.Marshal(s) // a string always has a JSON form
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

// maxNameBytes bounds an encoded name: 128 bytes, the longest that a plan accepts, each of them percent-encoded.
const maxNameBytes = 3 * 128

// principal returns the principalId. It needs no escapes.
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

// resource returns the ARN in the form that a policy may name. An ARN that is too long is cut and ends in a wildcard:
// results are not cached, so the policy applies only to this request (Assumption: cache-off). "${" would begin a policy
// variable, so "?", which matches any one character, replaces the dollar.
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

// reserve is the room for the end of an answer: ,"leftOut":999}} and more.
const reserve = 32

func (w *writer) room() int { return MaxAnswerBytes - reserve - (len(w.b) - w.start) }

// context writes the values. rest says that the API is a REST API, whose gateway responses need the members of the
// problem.
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
	if a.ShadowDenial != answer.Allowed {
		w.add(Value{ContextShadowDenial, a.ShadowDenial.String(), true})
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
		if w.add(v); w.leftOut > left { // do not count the same value as left out twice
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

// problemBodies returns the forms of a denial's body: the whole body, and for REST APIs its members.
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

// bindingName returns the name of the first item of the list, which is the binding limit.
func bindingName(rateLimit string) string {
	rest, quoted := strings.CutPrefix(rateLimit, `"`)
	name, _, whole := strings.Cut(rest, `"`)
	if !quoted || !whole {
		return ""
	}
	return name
}

// named writes a name that a plan or a credential chose. It bounds the length, so that a long name does not take the
// room of later values.
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

// add writes a value if there is room.
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

// further writes the caller's values, if their names are valid and not used yet.
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

// lists writes the two lists of limits. They are cut after the same item, to leave room for the following values. The
// first item of each is the binding limit.
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

// maxProblemBytes is how much room the lists of limits leave for each form of the problem, if the problem needs it.
const maxProblemBytes = 3 << 10

func dropLast(list string) string { return list[:max(strings.LastIndex(list, ", "), 0)] }

// escapedLen returns the length of printable ASCII in a JSON string.
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
