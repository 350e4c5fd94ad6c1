package apigw

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"github.com/sluicelimits/sluice/internal/request/answer"
)

// ReadContext reads the context of an authorizer's answer as a backend receives it: the JSON object
// requestContext.authorizer, or its member "lambda" if there is one (payload 2.0). REST APIs turn numbers and booleans
// into strings. Unknown members are ignored, because API Gateway adds some. The error wraps ErrContext.
//
// Values is empty. Problem is nil if the denial came without a body; see [Answer.Body].
func ReadContext(data []byte) (*Answer, error) {
	object, ok := parse(data, MaxEventBytes)
	if !ok {
		return nil, distrust("too large, too deep, or not JSON")
	}
	r := contextReader{}
	if inner, found := r.fields(object)["lambda"]; r.err == nil && found {
		object = inner
	}
	f := r.fields(object)
	a := &Answer{
		Tenant: r.name(f, ContextTenant), Subject: r.name(f, ContextSubject), Plan: r.name(f, ContextPlan),
		KeyID:     r.name(f, ContextKeyID),
		Anonymous: r.flag(f, ContextAnonymous), StoreFailed: r.flag(f, ContextStoreFailed),
		Header: answer.Header{Limit: r.line(f, ContextLimit), Remaining: r.line(f, ContextRemaining),
			Reset:     r.line(f, ContextReset),
			RateLimit: r.line(f, ContextRateLimit), Policy: r.line(f, ContextPolicy),
			RetryAfter: r.line(f, ContextRetryAfter)},
		Instance: r.line(f, ContextInstance),
	}
	if problem := r.line(f, ContextProblem); problem != "" {
		a.Problem = []byte(problem)
	}
	decision := r.text(f, ContextDecision)
	if r.err != nil {
		return nil, r.err
	}
	if err := readKind(a, decision); err != nil {
		return nil, err
	}
	if err := coherent(a); err != nil {
		return nil, err
	}
	return a, nil
}

// ReadRequestContext is ReadContext for the member "authorizer" of a requestContext. The error wraps ErrContext.
func ReadRequestContext(data []byte) (*Answer, error) {
	object, ok := parse(data, MaxEventBytes)
	if !ok {
		return nil, distrust("too large, too deep, or not JSON")
	}
	r := contextReader{}
	context, found := r.fields(object)["authorizer"]
	switch {
	case r.err != nil:
		return nil, r.err
	case !found:
		return nil, distrust("there is none")
	}
	return ReadContext([]byte(context.raw))
}

// ReadProxyEvent is ReadContext for an event that API Gateway sends to a Lambda function behind it, which may be as
// large as Lambda accepts. It also returns the version of the event's format: "2.0", "1.0", or "" for REST and
// WebSocket APIs. The error wraps ErrContext.
func ReadProxyEvent(data []byte) (a *Answer, version string, err error) {
	root, ok := parse(data, math.MaxInt)
	if !ok {
		return nil, "", distrust("the event is nested too deep, or not JSON")
	}
	if root.first() != '{' {
		return nil, "", distrust("the event is not an object")
	}
	var r contextReader
	var context value
	seen := 0
	root.members(func(name string, v value) {
		switch name {
		case "requestContext":
			context = v
			seen++
		case "version":
			if v.first() != '"' || version != "" {
				r.fail("version is not one string")
			}
			version = v.text()
		}
	})
	switch {
	case r.err != nil:
		return nil, "", r.err
	case seen != 1:
		return nil, version, distrust("the event has not one requestContext")
	}
	a, err = ReadRequestContext([]byte(context.raw))
	return a, version, err
}

// contextReader keeps the first error.
type contextReader struct{ err error }

// fields returns the members of an object. It refuses a member that occurs twice, because programs differ in which one
// they read.
func (r *contextReader) fields(object value) map[string]value {
	f := make(map[string]value)
	if object.first() != '{' {
		r.fail("not an object")
		return f
	}
	object.members(func(name string, v value) {
		if _, twice := f[name]; twice {
			r.fail("a value that is there twice")
		}
		f[name] = v
	})
	return f
}

func (r *contextReader) fail(what string) {
	if r.err == nil {
		r.err = distrust("%s", what)
	}
}

// text returns a scalar in the form in which REST APIs pass it on.
func (r *contextReader) text(f map[string]value, name string) string {
	switch v := f[name]; v.first() {
	case 0, 'n': // absent, or null
		return ""
	case '"':
		return v.text()
	case 't', 'f':
		return v.raw
	case '{', '[':
	default:
		if n, _ := strconv.ParseFloat(v.raw, 64); n == math.Trunc(n) {
			return v.raw
		}
	}
	r.fail(name + " is no scalar")
	return ""
}

// line returns a text of printable ASCII. The encoder writes nothing else, and other bytes could end the line of a
// header.
func (r *contextReader) line(f map[string]value, name string) string {
	s := r.text(f, name)
	if strings.IndexFunc(s, func(c rune) bool { return c < ' ' || c > '~' }) >= 0 {
		r.fail(name + " is not printable ASCII")
		return ""
	}
	return s
}

func (r *contextReader) name(f map[string]value, name string) string {
	s, err := readName(r.text(f, name))
	if err != nil {
		r.fail(name + " is not percent-encoded as the authorizer does it")
	}
	return s
}

func (r *contextReader) flag(f map[string]value, name string) bool {
	switch r.text(f, name) {
	case "true":
		return true
	case "", "false":
		return false
	}
	r.fail(name + " is no truth value")
	return false
}

// Body returns the problem of a denial: the body that came with it, or one without what only the limiter knew.
func (a *Answer) Body() []byte {
	body := a.Problem
	if len(body) == 0 || !json.Valid(body) {
		p := answer.Problem{Kind: a.Kind, Instance: a.Instance}
		if strings.ContainsAny(a.Instance, `"\`) {
			p.Instance = ""
		}
		body = p.Append(nil)
	}
	return body
}

// value is the text of a JSON value, without white space around it.
type value struct{ raw string }

// parse returns the value that data holds. It returns false if data has more than most bytes, is not JSON, or is nested
// deeper than [tooDeep] allows.
func parse(data []byte, most int) (value, bool) {
	if len(data) > most || tooDeep(data) {
		return value{}, false
	}
	r := reader{s: string(data), maxDepth: maxBrackets}
	r.space()
	v, ok := r.value()
	return v, ok && r.i == len(r.s)
}

// value reads a value.
func (r *reader) value() (value, bool) {
	from := r.i
	ok := r.skip()
	return value{strings.TrimRight(r.s[from:r.i], " \t\r\n")}, ok
}

// first returns the first byte, which tells the type; 0 if the value is absent.
func (v value) first() byte {
	if v.raw == "" {
		return 0
	}
	return v.raw[0]
}

// text returns the text of a string.
func (v value) text() string {
	r := reader{s: v.raw}
	raw, escaped, _ := r.quoted()
	return text(raw, escaped)
}

// members calls f for each member of an object.
func (v value) members(f func(name string, v value)) {
	r := reader{s: v.raw, maxDepth: maxBrackets}
	r.object(func(name string, escaped bool) bool {
		member, ok := r.value()
		f(text(name, escaped), member)
		return ok
	})
}
