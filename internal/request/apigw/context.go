package apigw

import (
	"encoding/json"
	"math"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sluicelimits/sluice/internal/request/answer"
)

// readContext reads the context of an authorizer's answer: the member "lambda" of the object if there is one (payload
// 2.0), and otherwise the object.
func readContext(object gjson.Result) (*Answer, error) {
	r := contextReader{}
	f := r.fields(object)
	if inner, found := f["lambda"]; found {
		f = r.fields(inner)
	}
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

// ReadRequestContext reads the context of an authorizer's answer as a backend receives it, in the member "authorizer"
// of a requestContext. REST APIs turn numbers and booleans into strings. Unknown members are ignored, because API
// Gateway adds some. The error wraps ErrContext.
//
// Values is empty. Problem is nil if the denial came without a body; see [Answer.Body].
func ReadRequestContext(data []byte) (*Answer, error) {
	object, err := parse(data, MaxEventBytes)
	if err != nil {
		return nil, err
	}
	return readRequestContext(object)
}

func readRequestContext(object gjson.Result) (*Answer, error) {
	r := contextReader{}
	context, found := r.fields(object)["authorizer"]
	switch {
	case r.err != nil:
		return nil, r.err
	case !found:
		return nil, distrust("there is none")
	}
	return readContext(context)
}

// ReadProxyEvent is ReadRequestContext for an event that API Gateway sends to a Lambda function behind it, which may be
// as large as Lambda accepts. It also returns the version of the event's format: "2.0", "1.0", or "" for REST and
// WebSocket APIs. The error wraps ErrContext.
func ReadProxyEvent(data []byte) (a *Answer, version string, err error) {
	root, err := parse(data, math.MaxInt)
	if err != nil {
		return nil, "", err
	}
	r := contextReader{}
	f := r.fields(root)
	v, versioned := f["version"]
	context, found := f["requestContext"]
	switch {
	case r.err != nil:
		return nil, "", r.err
	case versioned && v.Type != gjson.String:
		return nil, "", distrust("version is not a string")
	case !found:
		return nil, text(v), distrust("the event has no requestContext")
	}
	a, err = readRequestContext(context)
	return a, text(v), err
}

// parse reads a text of at most that many bytes.
func parse(data []byte, most int) (gjson.Result, error) {
	if len(data) > most || tooDeep(data) || !gjson.ValidBytes(data) {
		return gjson.Result{}, distrust("too large, too deep, or not JSON")
	}
	return gjson.ParseBytes(data), nil
}

// contextReader keeps the first error.
type contextReader struct{ err error }

// fields returns the members of an object. It refuses a member that occurs twice, because programs differ in which one
// they read.
func (r *contextReader) fields(object gjson.Result) map[string]gjson.Result {
	f := make(map[string]gjson.Result)
	if !object.IsObject() {
		r.fail("not an object")
		return f
	}
	object.ForEach(func(name, v gjson.Result) bool {
		if _, twice := f[text(name)]; twice {
			r.fail("a value that is there twice")
		}
		f[text(name)] = v
		return true
	})
	return f
}

func (r *contextReader) fail(what string) {
	if r.err == nil {
		r.err = distrust("%s", what)
	}
}

// text returns a scalar in the form in which REST APIs pass it on.
func (r *contextReader) text(f map[string]gjson.Result, name string) string {
	switch v := f[name]; {
	case v.Type == gjson.Null: // or absent
		return ""
	case v.Type == gjson.String:
		return text(v)
	case v.IsBool(), v.Type == gjson.Number && v.Num == math.Trunc(v.Num):
		return v.Raw
	}
	r.fail(name + " is no scalar")
	return ""
}

// line returns a text of printable ASCII. The encoder writes nothing else, and other bytes could end the line of a
// header.
func (r *contextReader) line(f map[string]gjson.Result, name string) string {
	s := r.text(f, name)
	if strings.IndexFunc(s, func(c rune) bool { return c < ' ' || c > '~' }) >= 0 {
		r.fail(name + " is not printable ASCII")
		return ""
	}
	return s
}

func (r *contextReader) name(f map[string]gjson.Result, name string) string {
	s, err := readName(r.text(f, name))
	if err != nil {
		r.fail(name + " is not percent-encoded as the authorizer does it")
	}
	return s
}

func (r *contextReader) flag(f map[string]gjson.Result, name string) bool {
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
