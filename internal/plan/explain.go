package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan/route"
)

// Status says what a limit does with a request.
type Status string

// What a limit does with a request.
const (
	Applies   Status = "applies"   // charged, and may deny
	Reports   Status = "reports"   // a shadow limit: counted apart, never denies
	NoMatch   Status = "no match"  // the limit's match does not match the request
	Displaced Status = "displaced" // another limit of its group applies
	Free      Status = "free"      // the request spends 0 of it, so it is not asked
	// mode off
	IsOff Status = "off"
)

// Verdict says what one limit does with a request, and why.
type Verdict struct {
	Limit  *Effective
	Status Status
	Why    string       // one sentence without a full stop
	Charge limit.Charge // zero unless Status is Applies or Reports
}

// Explain returns, for every limit of the set and in its order, whether the limit applies to the request, and why. The
// result agrees with AppendCharges.
func (s *Set) Explain(a *Attributes) []Verdict {
	path := a.Path
	if path == nil {
		path = &rootPath
	}
	charges := s.AppendCharges(nil, a)
	spending := *a
	spending.Costs = s.UnitCosts()
	apply := s.AppendCharges(nil, &spending) // also those of which the request spends 0
	out := make([]Verdict, len(s.Limits))
	for i, e := range s.Limits {
		v := &out[i]
		v.Limit = e
		for _, c := range charges {
			if c.Limit == e.Limit {
				v.Charge = c
			}
		}
		matches := e.matches(a.Method, path)
		switch {
		case v.Charge.Limit != nil && e.Limit.Mode == limit.Shadow:
			v.Status, v.Why = Reports, s.whyMatch(e, path)+"; mode shadow: counted apart, never denies"
		case v.Charge.Limit != nil:
			v.Status, v.Why = Applies, s.whyMatch(e, path)
		case !matches:
			v.Status, v.Why = NoMatch, e.whyNot(a.Method, path)
		case e.Limit.Mode == limit.Off:
			v.Status, v.Why = IsOff, "mode off"
		case slices.ContainsFunc(apply, func(c limit.Charge) bool { return c.Limit == e.Limit }):
			v.Status, v.Why = Free, e.whyFree(a)
		default:
			v.Status, v.Why = Displaced, s.whyDisplaced(e, apply)
		}
	}
	return out
}

func (e *Effective) matches(method string, path *route.Path) bool {
	return len(route.NewIndex([]route.Rule{e.spec.rule}).Match(nil, method, path)) > 0
}

func (s *Set) whyMatch(e *Effective, path *route.Path) string {
	why := "every request"
	rule := e.spec.rule
	switch hasPattern := e.spec.pattern.set; {
	case hasPattern && len(rule.Methods) > 0:
		why = strings.Join(rule.Methods, ", ") + " " + pathText(rule)
	case hasPattern:
		why = "any method, " + pathText(rule)
	case len(rule.Methods) > 0:
		why = strings.Join(rule.Methods, ", ") + ", any path"
	}
	switch {
	case path.Ambiguous() && !rule.Any:
		why += "; the path can be read in too many ways, so it counts for every pattern"
	case e.Group != "":
		why += "; the most specific in group " + e.Group
	}
	return why
}

func (e *Effective) whyNot(method string, path *route.Path) string {
	rule := e.spec.rule
	anyMethod := rule
	anyMethod.Methods = nil
	if len(route.NewIndex([]route.Rule{anyMethod}).Match(nil, method, path)) > 0 {
		return fmt.Sprintf("method %s is not %s", configfile.Clip(method), strings.Join(rule.Methods, " or "))
	}
	return fmt.Sprintf("path %s is not %s", configfile.Clip(path.String()), pathText(rule))
}

// whyFree says why the request spends 0 of the limit.
func (e *Effective) whyFree(a *Attributes) string {
	if _, named := a.Costs[e.Limit.Unit]; named {
		return "the request costs 0 " + e.Limit.Unit
	}
	return "the request names no cost in " + e.Limit.Unit + ", and the plan's cost is " + e.Cost.String()
}

// whyDisplaced names the limit of the group that applies in place of e.
func (s *Set) whyDisplaced(e *Effective, charges []limit.Charge) string {
	for _, o := range s.Limits {
		if o.Group != e.Group || o.Limit.Mode != limit.Enforce {
			continue
		}
		for _, c := range charges {
			if c.Limit == o.Limit {
				return fmt.Sprintf("group %s: limit %s is more specific", e.Group, o.Limit.ID)
			}
		}
	}
	return "group " + e.Group + ": another limit is more specific"
}
