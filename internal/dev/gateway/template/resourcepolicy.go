package template

import (
	"slices"

	"github.com/sluicelimits/sluice/internal/dev/gateway/stage"
)

// resourcePolicy reads the resource policy of a REST API, of which the local gateway knows those statements that deny
// everybody but some the whole API.
func (r *reader) resourcePolicy(p *properties) (all []stage.Denial) {
	policy := p.part("Policy")
	if policy == nil {
		return nil
	}
	policy.must("Version", "2012-10-17")
	statements := policy.parts("Statement")
	if len(statements) == 0 {
		policy.problem("Statement", "the policy has none")
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

// must holds that a member of a policy has the value.
func (p *properties) must(name, value string) {
	if s := p.text(name); s != value {
		p.problem(name, "the local gateway knows %s, got %s", value, shown(s))
	}
}

// denial reads a condition of one operator and one key.
func (p *properties) denial() (d stage.Denial) {
	for _, known := range []struct {
		operator, key string
		to            *[]string
	}{
		{"StringNotEquals", "aws:PrincipalAccount", &d.Accounts},
		{"ArnNotLike", "aws:PrincipalArn", &d.Principals},
		{"NotIpAddress", "aws:SourceIp", &d.Addresses},
	} {
		if of := p.part(known.operator); of != nil {
			*known.to = of.oneOrMore(known.key)
			of.end()
		}
	}
	p.end()
	return d
}

// oneOrMore is a member that is a text or a list of texts.
func (p *properties) oneOrMore(name string) []string {
	if n := p.node(name); n != nil && n.form == list {
		return p.texts(name)
	}
	return slices.DeleteFunc([]string{p.text(name)}, func(s string) bool { return s == "" })
}
