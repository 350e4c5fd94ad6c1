package apigateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/sluicelimits/sluice/internal/testkit/lambdahost"
)

// maxSocketAnswer is the documented bound of an authorizer's answer on a WebSocket API, in bytes.
const maxSocketAnswer = 8 << 10

// grant holds the parts of an authorizer's answer that later steps use. It is also set if the request was denied.
type grant struct {
	principal string            // "" if the answer is a simple response
	context   map[string]scalar // nil if there was no answer
}

// scalar is a value in the context of an authorizer's answer.
type scalar struct {
	text string          // as header mappings, templates and the events of REST APIs have it
	json json.RawMessage // as the function wrote it
}

// accessKey matches the id of the access key in the Authorization header of a signed request.
var accessKey = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=([^/]+)/`)

// authorize asks the authorizer of the route, or finds the user who signed the request if the route has AWS_IAM. It
// returns nil if the request may pass, and otherwise the answer to it. The error says that the authorizer failed.
//
// If the authorizer's error has exactly the text "Unauthorized", or the function reported an error with this message,
// the client gets 401. Any other error is a failure. Assumption: missing-credential.
func (c *call) authorize() (*failure, error) {
	if c.route.Authorization == AWSIAM {
		m := accessKey.FindStringSubmatch(c.r.Header.Get("Authorization"))
		if m == nil || c.s.c.Callers[m[1]] == "" {
			return &missingToken, nil
		}
		c.accessKey, c.userARN = m[1], c.s.c.Callers[m[1]]
		return nil, nil
	}
	if c.route.Authorizer == "" {
		return nil, nil
	}
	a := c.s.d.Authorizers[c.route.Authorizer]
	out, err := c.s.c.Functions[a.Function].Invoke(c.r.Context(), c.authorizerEvent(&a).bytes())
	if err != nil {
		var reported *lambdahost.Error
		if errors.As(err, &reported) && reported.Kind == lambdahost.Reported && reported.Message == "Unauthorized" ||
			err.Error() == "Unauthorized" {
			return &unauthorized, nil
		}
		return &authorizerFailure, err
	}
	allowed, denied, err := c.interpret(&a, out)
	switch {
	case err != nil:
		return &authorizerConfiguration, err
	case denied:
		return &accessDenied, nil
	case !allowed:
		f := accessDenied
		f.message = "User is not authorized to access this resource"
		return &f, nil
	}
	return nil, nil
}

// interpret parses an authorizer's answer, and keeps its context in c.granted. An error means that the answer is not
// valid.
func (c *call) interpret(a *Authorizer, out []byte) (allowed, denied bool, err error) {
	if c.s.d.Kind == WebSocket && len(out) > maxSocketAnswer {
		return false, false, fmt.Errorf("the authorizer's answer has %d bytes; a WebSocket API accepts at most %d",
			len(out), maxSocketAnswer)
	}
	var answer struct {
		Principal  string                     `json:"principalId"`
		Policy     *policy                    `json:"policyDocument"`
		Authorized *bool                      `json:"isAuthorized"`
		Context    map[string]json.RawMessage `json:"context"`
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return false, false, errors.New("the authorizer's answer is not readable") // the cause would name its content
	}
	c.granted = grant{answer.Principal, make(map[string]scalar, len(answer.Context))}
	for name, raw := range answer.Context {
		v := scalar{string(raw), raw}
		switch {
		case strings.ContainsRune("{[n", rune(raw[0])): // an object, a list or null makes the whole answer invalid
			return false, false, fmt.Errorf("the value of %q in the authorizer's context is not a string, number or "+
				"boolean", name)
		case raw[0] == '"':
			if err := json.Unmarshal(raw, &v.text); err != nil {
				return false, false, err
			}
		}
		c.granted.context[name] = v
	}
	switch {
	case a.Simple && answer.Authorized == nil:
		return false, false, errors.New("the authorizer's answer has no isAuthorized")
	case a.Simple:
		return *answer.Authorized, !*answer.Authorized, nil
	case answer.Principal == "" || answer.Policy == nil:
		return false, false, errors.New("the authorizer's answer has no principalId or no policyDocument")
	}
	return answer.Policy.evaluate(c.arn())
}

// policy is the part of an IAM policy that Sluice's authorizer writes.
type policy struct {
	Version   string
	Statement []struct{ Effect, Action, Resource string }
}

// evaluate returns whether a statement allows and whether one denies to invoke the ARN.
func (p *policy) evaluate(arn string) (allowed, denied bool, err error) {
	if p.Version != "2012-10-17" || p.Statement == nil {
		return false, false, errors.New("the policy has no Statement, or another Version than 2012-10-17")
	}
	for _, s := range p.Statement {
		if s.Effect != "Allow" && s.Effect != "Deny" || s.Action != "execute-api:Invoke" || s.Resource == "" {
			return false, false, errors.New("the policy has a statement that this model does not know")
		}
		parts := slices.Collect(strings.SplitSeq(s.Resource, "*"))
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		if regexp.MustCompile("(?s)^" + strings.Join(parts, ".*") + "$").MatchString(arn) {
			allowed, denied = allowed || s.Effect == "Allow", denied || s.Effect == "Deny"
		}
	}
	return allowed && !denied, denied, nil
}
