package apigw

import (
	"math"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sluicelimits/sluice/internal/answer"
)

// ReadContext reads the context of an authorizer's answer as a backend is given it: the JSON object requestContext.authorizer, or
// what is below "lambda" in it where that is there (payload 2.0). REST APIs make strings of numbers and truth values. What it
// does not know it passes over, since API Gateway adds to it. The error wraps ErrContext.
//
// Values is empty. Problem is nil where the denial has no body of its own; see [Answer.Body].
func ReadContext(data []byte) (*Answer, error) {
	if len(data) > MaxEventBytes || tooDeep(data) || !gjson.ValidBytes(data) {
		return nil, distrust("too large, too deep, or not JSON")
	}
	r := contextReader{}
	object := gjson.ParseBytes(data)
	if inner := r.fields(object)["lambda"]; r.err == nil && inner.Exists() {
		object = inner
	}
	f := r.fields(object)
	a := &Answer{
		Tenant: r.name(f, ContextTenant), Subject: r.name(f, ContextSubject), Plan: r.name(f, ContextPlan), KeyID: r.name(f, ContextKeyID),
		Anonymous: r.flag(f, ContextAnonymous), StoreFailed: r.flag(f, ContextStoreFailed),
		Header: answer.Header{Limit: r.line(f, ContextLimit), Remaining: r.line(f, ContextRemaining), Reset: r.line(f, ContextReset),
			RateLimit: r.line(f, ContextRateLimit), Policy: r.line(f, ContextPolicy), RetryAfter: r.line(f, ContextRetryAfter)},
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

// ReadRequestContext is ReadContext of the member "authorizer" of a requestContext. The error wraps ErrContext.
func ReadRequestContext(data []byte) (*Answer, error) {
	if len(data) > MaxEventBytes || tooDeep(data) || !gjson.ValidBytes(data) {
		return nil, distrust("too large, too deep, or not JSON")
	}
	r := contextReader{}
	context, found := r.fields(gjson.ParseBytes(data))["authorizer"]
	switch {
	case r.err != nil:
		return nil, r.err
	case !found:
		return nil, distrust("there is none")
	}
	return ReadContext([]byte(context.Raw))
}

// ReadProxyEvent is ReadContext of an event as API Gateway sends it to a Lambda behind it, which may be as large as a Lambda
// takes, and the version of its format: "2.0", "1.0", or "" of REST and WebSocket APIs. The error wraps ErrContext.
func ReadProxyEvent(data []byte) (a *Answer, version string, err error) {
	if tooDeep(data) || !gjson.ValidBytes(data) {
		return nil, "", distrust("the event is nested too deep, or not JSON")
	}
	var r contextReader
	var context gjson.Result
	seen := 0
	root := gjson.ParseBytes(data)
	if !root.IsObject() {
		return nil, "", distrust("the event is not an object")
	}
	root.ForEach(func(key, v gjson.Result) bool {
		switch key.Str {
		case "requestContext":
			context = v
			seen++
		case "version":
			if v.Type != gjson.String || version != "" {
				r.fail("version is not one string")
			}
			version = v.Str
		}
		return true
	})
	switch {
	case r.err != nil:
		return nil, "", r.err
	case seen != 1:
		return nil, version, distrust("the event has not one requestContext")
	}
	a, err = ReadRequestContext([]byte(context.Raw))
	return a, version, err
}

// contextReader keeps the first thing that is wrong.
type contextReader struct{ err error }

// fields are the members of an object. One that is there twice is refused, since readers differ on which one counts.
func (r *contextReader) fields(object gjson.Result) map[string]gjson.Result {
	f := make(map[string]gjson.Result)
	if !object.IsObject() {
		r.fail("not an object")
		return f
	}
	object.ForEach(func(key, v gjson.Result) bool {
		if _, twice := f[key.Str]; twice {
			r.fail("a value that is there twice")
		}
		f[key.Str] = v
		return true
	})
	return f
}

func (r *contextReader) fail(what string) {
	if r.err == nil {
		r.err = distrust("%s", what)
	}
}

// text is a scalar as REST APIs hand it on.
func (r *contextReader) text(f map[string]gjson.Result, name string) string {
	switch v := f[name]; v.Type {
	case gjson.Null: // absent, too
		return ""
	case gjson.String:
		return v.Str
	case gjson.True, gjson.False:
		return v.Raw
	case gjson.Number:
		if v.Num == math.Trunc(v.Num) {
			return v.Raw
		}
	case gjson.JSON:
	}
	r.fail(name + " is no scalar")
	return ""
}

// line is a text of printable ASCII, which is all that the encoder writes: what else comes could end a header's line.
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

// Body is the problem of a denial: the one that came with it, or one without what only the limiter knew.
func (a *Answer) Body() []byte {
	body := a.Problem
	if len(body) == 0 || !gjson.ValidBytes(body) {
		p := answer.Problem{Kind: a.Kind, Instance: a.Instance}
		if strings.ContainsAny(a.Instance, `"\`) {
			p.Instance = ""
		}
		body = p.Append(nil)
	}
	return body
}
