package apigateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/sluicelimits/sluice/internal/testkit/lambdahost"
)

// Function is a Lambda function, such as a *lambdahost.Host, or an authorizer.Handler in this process.
//
// If the function is an authorizer, and its error has exactly the text "Unauthorized", or the function reported an
// error with this message, the client gets 401. Any other error is a failure. Assumption: missing-credential.
type Function interface {
	Invoke(ctx context.Context, payload []byte) ([]byte, error)
}

// maxSocketAnswer is the documented bound of an authorizer's answer on a WebSocket API, in bytes.
const maxSocketAnswer = 8 << 10

// authorizer is an authorizer of the description, with its function.
type authorizer struct {
	Authorizer
	function Function
}

// grant holds the parts of an authorizer's answer that later steps use. It is also set if the request was denied.
type grant struct {
	principal string            // "" if the answer is a simple response
	context   map[string]scalar // nil if there was no answer
	took      time.Duration
}

// scalar is a value in the context of an authorizer's answer.
type scalar struct {
	text string          // as header mappings, templates and the events of REST APIs have it
	json json.RawMessage // as the function wrote it
}

// values returns the context as the function wrote it.
func (g *grant) values() object {
	out := make(object, len(g.context)+1)
	for name, v := range g.context {
		out[name] = v.json
	}
	return out
}

// withPrincipal adds the principal to o, if there is one.
func (g *grant) withPrincipal(o object) object {
	if g.principal != "" {
		o["principalId"] = g.principal
	}
	return o
}

// refusal says why a request is not authorized.
type refusal struct {
	failure failure
	cause   error // for the log; nil if the authorizer works and denied the request
}

// accessKey matches the id of the access key in the Authorization header of a signed request.
var accessKey = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=([^/]+)/`)

// identify finds the user who signed the request.
func (c *call) identify() *refusal {
	m := accessKey.FindStringSubmatch(c.r.Header.Get("Authorization"))
	if m == nil || c.s.c.Callers[m[1]] == "" {
		return &refusal{failure: failureOf(missingToken)}
	}
	c.accessKey, c.userARN = m[1], c.s.c.Callers[m[1]]
	return nil
}

// authorize asks the authorizer of the route, or finds the caller if the route has AWS_IAM. The refusal is nil if
// the request may pass.
func (c *call) authorize(ctx context.Context) *refusal {
	a := c.route.authorizer
	switch {
	case c.route.Authorization == AWSIAM:
		return c.identify()
	case a == nil:
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(a.TimeoutMillis)*time.Millisecond)
	defer cancel()
	began := time.Now()
	out, err := invoke(ctx, a.function, c.authorizerEvent(a).bytes())
	c.granted.took = time.Since(began)
	switch {
	case err != nil && saysUnauthorized(err):
		return &refusal{failure: failureOf(unauthorized)}
	case err != nil:
		return &refusal{failure: failureOf(authorizerFailure), cause: err}
	}
	allowed, err := c.interpret(a, out)
	switch {
	case err != nil:
		return &refusal{failure: failureOf(authorizerConfiguration), cause: err}
	case allowed == implicitDeny:
		f := failureOf(accessDenied)
		f.message = "User is not authorized to access this resource"
		return &refusal{failure: f}
	case allowed == explicitDeny:
		return &refusal{failure: failureOf(accessDenied)}
	}
	return nil
}

// invoke calls a function. It returns when the context ends, even if the function does not. If the function panics,
// invoke returns an error.
func invoke(ctx context.Context, f Function, event []byte) ([]byte, error) {
	type result struct {
		out []byte
		err error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		defer func() {
			if p := recover(); p != nil {
				r = result{nil, errors.New("the function panicked")}
			}
			done <- r
		}()
		r.out, r.err = f.Invoke(ctx, event)
	}()
	select {
	case r := <-done:
		return r.out, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("the function did not answer in time: %w", ctx.Err())
	}
}

func saysUnauthorized(err error) bool {
	const text = "Unauthorized"
	var e *lambdahost.Error
	if errors.As(err, &e) {
		return e.Kind == lambdahost.Reported && e.Message == text
	}
	return err.Error() == text
}

type verdict uint8

const (
	implicitDeny verdict = iota // no statement says anything about the request
	explicitDeny
	allow
)

// interpret parses an authorizer's answer, keeps its context in c.granted, and returns the verdict. An error means that
// the answer is not valid.
func (c *call) interpret(a *authorizer, out []byte) (verdict, error) {
	if c.s.d.Kind == WebSocket && len(out) > maxSocketAnswer {
		return 0, fmt.Errorf("the authorizer's answer has %d bytes; a WebSocket API accepts at most %d", len(out),
			maxSocketAnswer)
	}
	var answer struct {
		Principal  *string                    `json:"principalId"`
		Policy     *policy                    `json:"policyDocument"`
		Authorized *bool                      `json:"isAuthorized"`
		Context    map[string]json.RawMessage `json:"context"`
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return 0, fmt.Errorf("the authorizer's answer is not readable: %s", describeJSON(err))
	}
	values, err := readContext(answer.Context)
	if err != nil {
		return 0, err
	}
	c.granted.context = values
	if a.Simple {
		if answer.Authorized == nil {
			return 0, errors.New("the authorizer's answer has no isAuthorized, and simple responses are enabled")
		}
		if *answer.Authorized {
			return allow, nil
		}
		return explicitDeny, nil
	}
	switch {
	case answer.Principal == nil || *answer.Principal == "":
		return 0, errors.New("the authorizer's answer has no principalId")
	case answer.Policy == nil:
		return 0, errors.New("the authorizer's answer has no policyDocument")
	}
	c.granted.principal = *answer.Principal
	return answer.Policy.evaluate(c.arn())
}

// readContext parses the context of an authorizer's answer. Its values must be strings, numbers or booleans; an object,
// a list or null makes the whole answer invalid.
func readContext(in map[string]json.RawMessage) (map[string]scalar, error) {
	out := make(map[string]scalar, len(in))
	for name, raw := range in {
		v := scalar{json: raw, text: string(bytes.TrimSpace(raw))}
		switch first := v.text[0]; first {
		case '{', '[', 'n':
			return nil, fmt.Errorf("the value of %s in the authorizer's context is not a string, number or boolean",
				strconv.Quote(name))
		case '"':
			if err := json.Unmarshal(raw, &v.text); err != nil {
				return nil, fmt.Errorf("the value of %s in the authorizer's context is not a valid string",
					strconv.Quote(name))
			}
		}
		out[name] = v
	}
	return out, nil
}

// describeJSON returns the text of an error of package json without anything that the function wrote.
func describeJSON(err error) string {
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Sprintf("not JSON at byte %d", syntax.Offset)
	case errors.As(err, &typ):
		return fmt.Sprintf("%s is a %s", typ.Field, typ.Value)
	}
	return err.Error()
}
