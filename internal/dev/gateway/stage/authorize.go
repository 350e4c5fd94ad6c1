package stage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/lambdahost"
)

// Function is a Lambda function. *lambdahost.Host is one, and authorizer.Handler is one in this process.
//
// An error whose text is exactly "Unauthorized", or that the function itself reported with that message, makes a 401 of
// an authorizer's call; any other is a failure. Assumption: missing-credential.
type Function interface {
	Invoke(ctx context.Context, payload []byte) ([]byte, error)
}

// maxSocketAnswer is the documented bound of an authorizer's answer on a WebSocket API, bytes.
const maxSocketAnswer = 8 << 10

// authorizer is one of a description, ready.
type authorizer struct {
	Authorizer
	function Function
}

// grant is what an authorizer said, whether it let the request pass or not.
type grant struct {
	principal string            // "" of a simple response
	context   map[string]scalar // nil where there was no answer
	took      time.Duration
}

// scalar is a value of a context.
type scalar struct {
	text string          // as header mappings, templates and REST APIs see it
	json json.RawMessage // as the function wrote it
}

func (g *grant) values() object {
	out := make(object, len(g.context)+1)
	for name, v := range g.context {
		out[name] = v.json
	}
	return out
}

// with adds the principal, where there is one.
func (g *grant) with(o object) object {
	if g.principal != "" {
		o["principalId"] = g.principal
	}
	return o
}

// refusal is why a request is not authorized.
type refusal struct {
	failure failure
	cause   error // for the log; nil where nothing is wrong
}

// authorize asks the route's authorizer, or who signed. The refusal is nil where the request may pass.
func (c *call) authorize(ctx context.Context) *refusal {
	a := c.route.authorizer
	switch {
	case c.route.Authorization == AWSIAM:
		return c.identify()
	case a == nil:
		return nil
	}
	ctx, cancel := context.WithTimeout(lambdahost.WithTraceID(ctx, c.trace),
		time.Duration(a.TimeoutMillis)*time.Millisecond)
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

// invoke calls a function and waits no longer than the context lasts, whatever the function does. A panic is its error.
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

// interpret reads an authorizer's answer and keeps its context. An error means that the answer is none.
func (c *call) interpret(a *authorizer, out []byte) (verdict, error) {
	if c.s.d.Kind == WebSocket && len(out) > maxSocketAnswer {
		return 0, fmt.Errorf("the authorizer's answer is %d bytes, at most %d are taken", len(out), maxSocketAnswer)
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

// readContext takes strings, numbers and booleans; an object, a list or null makes the whole answer invalid.
func readContext(in map[string]json.RawMessage) (map[string]scalar, error) {
	out := make(map[string]scalar, len(in))
	for name, raw := range in {
		v := scalar{json: raw, text: string(bytes.TrimSpace(raw))}
		switch first := v.text[0]; first {
		case '{', '[', 'n':
			return nil, fmt.Errorf("the authorizer's context has %s, which is no string, number or boolean",
				shown(name))
		case '"':
			if err := json.Unmarshal(raw, &v.text); err != nil {
				return nil, fmt.Errorf("the authorizer's context has %s, which is no string", shown(name))
			}
		}
		out[name] = v
	}
	return out, nil
}

// describeJSON says what is wrong without what the function wrote.
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
