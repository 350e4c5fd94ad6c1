package template

import (
	"slices"

	"github.com/sluicelimits/sluice/internal/dev/gateway/stage"
)

// resourcePolicy reads the resource policy of a REST API. The local gateway only knows statements that deny the whole
// API to everybody but some callers.
func (r *reader) resourcePolicy(p *properties) (all []stage.Denial) {
	policy := p.part("Policy")
	if policy == nil {
		return nil
	}
	policy.must("Version", "2012-10-17")
	statements := policy.parts("Statement")
	if len(statements) == 0 {
		policy.problem("Statement", "the policy has no statement")
	}
	for _, s := range statements {
		s.must("Effect", "Deny")
		s.must("Action", "execute-api:Invoke")
		s.must("Resource", "execute-api:/*")
		if who := s.part("Principal"); who != nil {
			who.must("AWS", "*")
			who.end()
		} else {
			s.problem("Principal", `want {"AWS": "*"}`)
		}
		if condition := s.part("Condition"); condition != nil {
			all = append(all, condition.denial())
		} else {
			s.problem("Condition", "missing: nobody could call the API")
		}
		s.end("Sid")
	}
	policy.end()
	return all
}

// must reports a problem unless a member of a policy has the value.
func (p *properties) must(name, value string) {
	if s := p.text(name); s != value {
		p.problem(name, "the local gateway knows only %s, got %s", value, shown(s))
	}
}

// denial reads the condition of a statement: the callers that it does not deny.
func (p *properties) denial() (d stage.Denial) {
	for _, known := range []struct {
		operator, key string
		to            *[]string
	}{
		{"StringNotEquals", "aws:PrincipalAccount", &d.Accounts},
		{"ArnNotLike", "aws:PrincipalArn", &d.Principals},
		{"NotIpAddress", "aws:SourceIp", &d.Addresses},
	} {
		if condition := p.part(known.operator); condition != nil {
			*known.to = condition.oneOrMore(known.key)
			condition.end()
		}
	}
	p.end()
	return d
}

// oneOrMore returns a member that is a text or a list of texts.
func (p *properties) oneOrMore(name string) []string {
	if n := p.node(name); n != nil && n.form == list {
		return p.texts(name)
	}
	return slices.DeleteFunc([]string{p.text(name)}, func(s string) bool { return s == "" })
}
