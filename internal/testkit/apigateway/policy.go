package apigateway

//lint:file-ignore ST1005 the errors begin with names of a policy's members

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// policy is an IAM policy in the answer of an authorizer.
type policy struct {
	Version   string          `json:"Version"`
	Statement json.RawMessage `json:"Statement"` // a statement or a list of statements
}

type statement struct {
	Sid      string
	Effect   string
	Action   texts
	Resource texts

	// Members that IAM evaluates and this package does not. A policy that has one of them is refused.
	Condition, NotAction, NotResource, Principal, NotPrincipal json.RawMessage
}

// texts is a string or a list of strings.
type texts []string

// UnmarshalJSON accepts a string and a list of strings.
func (t *texts) UnmarshalJSON(data []byte) error {
	if data[0] == '"' {
		*t = make(texts, 1)
		return json.Unmarshal(data, &(*t)[0])
	}
	return json.Unmarshal(data, (*[]string)(t))
}

const invoking = "execute-api:Invoke"

// evaluate returns the verdict of the policy about invoking the ARN. If a Deny matches, the verdict is explicitDeny;
// else if an Allow matches, it is allow. An error means that the policy is not valid, or that only IAM can evaluate it.
func (p *policy) evaluate(arn string) (verdict, error) {
	if p.Version != "2012-10-17" && p.Version != "2008-10-17" && p.Version != "" {
		return 0, errors.New("the policy's Version is neither 2012-10-17 nor 2008-10-17")
	}
	var statements []statement
	switch trimmed := bytes.TrimSpace(p.Statement); {
	case len(trimmed) == 0:
		return 0, errors.New("the policy has no Statement")
	case trimmed[0] == '{':
		statements = make([]statement, 1)
		if err := json.Unmarshal(trimmed, &statements[0]); err != nil {
			return 0, fmt.Errorf("the policy's Statement: %s", describeJSON(err))
		}
	default:
		if err := json.Unmarshal(trimmed, &statements); err != nil {
			return 0, fmt.Errorf("the policy's Statement: %s", describeJSON(err))
		}
	}
	out := implicitDeny
	for i := range statements {
		s := &statements[i]
		if err := s.check(); err != nil {
			return 0, fmt.Errorf("the policy's Statement %d: %w", i+1, err)
		}
		if !s.matches(arn) {
			continue
		}
		if s.Effect == "Deny" {
			out = explicitDeny
		} else if out != explicitDeny {
			out = allow
		}
	}
	return out, nil
}

func (s *statement) check() error {
	switch {
	case s.Effect != "Allow" && s.Effect != "Deny":
		return errors.New("Effect is neither Allow nor Deny")
	case len(s.Action) == 0:
		return errors.New("Action is missing")
	case len(s.Resource) == 0:
		return errors.New("Resource is missing")
	case s.Condition != nil || s.NotAction != nil || s.NotResource != nil || s.Principal != nil ||
		s.NotPrincipal != nil:
		return errors.New("has a Condition, Principal, NotPrincipal, NotAction or NotResource, which the local " +
			"gateway cannot evaluate")
	}
	for _, r := range s.Resource {
		if strings.Contains(r, "${") {
			return errors.New("Resource holds a policy variable, which the local gateway cannot evaluate")
		}
		if r != "*" && !strings.HasPrefix(r, "arn:") {
			return errors.New("Resource is neither * nor an ARN")
		}
	}
	return nil
}

func (s *statement) matches(arn string) bool {
	action, resource := false, false
	for _, a := range s.Action {
		action = action || glob(strings.ToLower(a), strings.ToLower(invoking))
	}
	for _, r := range s.Resource {
		resource = resource || glob(r, arn)
	}
	return action && resource
}

// glob reports whether a whole text matches a pattern, in which * matches any number of characters, slashes and colons
// included, and ? matches one character. At worst it takes time in proportion to the product of both lengths.
func glob(pattern, s string) bool {
	p, t := []rune(pattern), []rune(s)
	i, j, star, from := 0, 0, -1, 0
	for j < len(t) {
		switch {
		case i < len(p) && p[i] == '*':
			star, from = i, j
			i++
		case i < len(p) && (p[i] == '?' || p[i] == t[j]):
			i++
			j++
		case star >= 0:
			from++
			i, j = star+1, from
		default:
			return false
		}
	}
	for i < len(p) && p[i] == '*' {
		i++
	}
	return i == len(p)
}
