package plan

import (
	"strconv"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// policy is a key of a limit whose value is read, replaced and shown without looking at the other keys of the limit,
// such as mode or cost. Each policy is declared once, in policies. A new one needs an entry there, a field of [spec]
// and of [limit.Limit], and its row in docs/plans.md.
type policy struct {
	key         string
	overridable bool // a tenant may change it
	perValue    bool // limits of ipLimits do not have the key, because they have one counter for each address
	perPlan     bool // limits of ipLimits do not have the key, because they count requests

	read    func(r *reader, o object, s *spec, layer string) // stores in s what o has under the key
	replace func(s, by *spec)                                // stores in s what by has, if by has the key
	mark    func(s *spec) mark                               // where the value of s was written
	text    func(e *Effective) string                        // what explain shows; "" if it shows no line
}

// policies are in the order in which problems and explain name them.
var policies = []policy{
	policyOf(policy{key: "align", text: func(e *Effective) string {
		if !e.spec.align.set {
			return ""
		}
		return map[bool]string{true: "tenant", false: "clock"}[e.spec.align.v]
	}}, func(s *spec) *field[bool] { return &s.align }, func(r *reader, v value) (bool, bool) {
		parse := func(w string) (bool, bool) { return w == "tenant", w == "tenant" || w == "clock" }
		return choice(r, v, parse, []string{"tenant", "clock"})
	}),
	policyOf(policy{key: "mode", overridable: true, text: func(e *Effective) string { return e.Limit.Mode.String() }},
		func(s *spec) *field[limit.Mode] { return &s.mode }, func(r *reader, v value) (limit.Mode, bool) {
			return choice(r, v, limit.ParseMode, []string{"enforce", "shadow", "off"})
		}),
	policyOf(policy{key: "onStoreFailure", overridable: true,
		text: func(e *Effective) string { return e.Limit.OnStoreFailure.String() }},
		func(s *spec) *field[limit.FailurePolicy] { return &s.onFailure },
		func(r *reader, v value) (limit.FailurePolicy, bool) {
			return choice(r, v, limit.ParseFailurePolicy, []string{"backstop", "open", "closed"})
		}),
	policyOf(policy{key: "unit", perPlan: true, text: func(e *Effective) string {
		if !e.spec.unit.set {
			return ""
		}
		return e.Limit.Unit
	}}, func(s *spec) *field[string] { return &s.unit }, (*reader).unit),
	policyOf(policy{key: "cost", overridable: true,
		text: func(e *Effective) string {
			if e.spec.form == formPlaces {
				return "" // each request is one
			}
			return e.Cost.String() + e.Limit.UnitSuffix()
		}},
		func(s *spec) *field[CostRule] { return &s.cost }, (*reader).cost),
	policyOf(policy{key: "exact", text: func(e *Effective) string {
		if !e.spec.exact.set {
			return ""
		}
		return strconv.FormatBool(e.spec.exact.v)
	}}, func(s *spec) *field[bool] { return &s.exact }, (*reader).Boolean),
	policyOf(policy{key: "maxValues", overridable: true, perValue: true, text: func(e *Effective) string {
		if e.Limit.Per == limit.PerTenant {
			return ""
		}
		return strconv.Itoa(e.Limit.MaxValues)
	}}, func(s *spec) *field[int] { return &s.maxValues }, func(r *reader, v value) (int, bool) {
		n, ok := r.Integer(v, 1, 1_000_000)
		return int(n), ok
	}),
}

// policyOf fills in read, replace and mark of a policy. of returns the field of a spec that holds the value, and read
// reads the value.
func policyOf[T any](p policy, of func(*spec) *field[T], read func(*reader, value) (T, bool)) policy {
	p.read = func(r *reader, o object, s *spec, layer string) {
		*of(s) = take(o, p.key, layer, func(v value) (T, bool) { return read(r, v) })
	}
	p.replace = func(s, by *spec) { replace(of(s), *of(by)) }
	p.mark = func(s *spec) mark { return markOf(of(s)) }
	return p
}

// policyKeys returns the keys of the policies that match.
func policyKeys(matches func(*policy) bool) (keys []string) {
	for i := range policies {
		if matches(&policies[i]) {
			keys = append(keys, policies[i].key)
		}
	}
	return keys
}
