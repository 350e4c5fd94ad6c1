package plan

import (
	"slices"
	"strings"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan/route"
)

// matcher finds the limits of a set for a request. A plan and all its tenants share one matcher, since it holds
// nothing that an override may change.
type matcher struct {
	index *route.Index
	order []int32 // rule number → index of the limit in the set
	group []int32 // rule number → number of the group, or -1
}

var emptyMatcher = &matcher{index: route.NewIndex(nil)}

// newMatcher numbers the rules so that the limits of a group are adjacent, the most specific first. The matches of a
// request come in ascending numbers, so that one pass over them resolves every group. Limits without a group stay in
// file order.
func newMatcher(specs []*spec) *matcher {
	m := &matcher{}
	var groups []string
	for i, s := range specs {
		name := s.group.v
		if name == "" {
			m.add(i, -1)
			continue
		}
		if slices.Contains(groups, name) {
			continue
		}
		for _, j := range ranked(specs, name) {
			m.add(j, int32(len(groups)))
		}
		groups = append(groups, name)
	}
	rules := make([]route.Rule, len(m.order))
	for i, at := range m.order {
		rules[i] = specs[at].rule
	}
	m.index = route.NewIndex(rules)
	return m
}

func (m *matcher) add(at int, group int32) {
	m.order = append(m.order, int32(at))
	m.group = append(m.group, group)
}

// ranked returns the indexes of a group's limits, the most specific first.
func ranked(specs []*spec, group string) []int {
	var at []int
	for i, s := range specs {
		if s.group.v == group {
			at = append(at, i)
		}
	}
	slices.SortStableFunc(at, func(a, b int) int { return route.Compare(specs[a].rule, specs[b].rule) })
	return at
}

// buildSet makes the limits of a plan, and checks them against each other and against the declared routes.
func (r *reader) buildSet(specs []*spec, routes []route.Rule) *Set {
	reportDuplicates(r, specs, "limit", func(s *spec) field[string] { return s.id })
	if len(specs) > maxLimits {
		r.problemAt(specs[maxLimits].from, "%d limits in one list, want at most %d", len(specs), maxLimits)
		return &Set{Limits: make([]*Effective, len(specs)), match: emptyMatcher}
	}
	set := &Set{Limits: make([]*Effective, len(specs)), match: newMatcher(specs)}
	for i, s := range specs {
		shape := newShape(s)
		if e := r.build(s, shape, nil); e != nil {
			set.Limits[i] = e
			r.warn(s, e)
		}
	}
	if r.reportTies(specs) {
		r.reportUnreachable(specs)
	}
	r.reportUnrouted(specs, routes)
	return set
}

// matchPlace returns where the limit's match is written.
func (s *spec) matchPlace() place {
	switch {
	case s.pattern.set:
		return s.pattern.from
	case s.methods.set:
		return s.methods.from
	}
	return s.from
}

func (s *spec) matchBad() bool { return s.pattern.bad || s.methods.bad || s.group.bad }

// reportTies reports limits of one group that are equally specific for some request. It checks limits of every mode,
// so that no change of a mode can cause a tie later. It returns whether there are no ties.
func (r *reader) reportTies(specs []*spec) bool {
	before := r.Found()
	for i, s := range specs {
		for _, o := range specs[:i] {
			if s.group.v == "" || s.group.v != o.group.v || s.matchBad() || o.matchBad() {
				continue
			}
			if route.Compare(s.rule, o.rule) == 0 && route.Overlap(s.rule, o.rule) {
				r.problemAt(s.matchPlace(), "a tie in group %s: limit %s (line %d) is as specific "+
					"for the same requests", s.group.v, o.id.v, o.from.Line)
				break
			}
		}
	}
	return r.Found() == before
}

// reportUnreachable reports limits that never apply because more specific enforcing limits of their group match every
// request that they match.
func (r *reader) reportUnreachable(specs []*spec) {
	for _, s := range specs {
		if s.group.v == "" || s.matchBad() {
			continue
		}
		var above []route.Rule
		for _, o := range specs {
			if o != s && o.group.v == s.group.v && !o.matchBad() && !o.mode.bad && o.mode.v == limit.Enforce &&
				route.Compare(o.rule, s.rule) < 0 && route.Overlap(o.rule, s.rule) && !leavesCases(o.rule, s.rule) {
				above = append(above, o.rule)
			}
		}
		if len(above) > 0 && !reachable(s.rule, above) {
			r.problemAt(s.matchPlace(), "unreachable: more specific limits of group %s match every request that "+
				"this one does", s.group.v)
		}
	}
}

// leavesCases reports whether some spelling in upper or lower case matches the rule below, which ignores case, and not
// the rule above.
func leavesCases(above, below route.Rule) bool {
	return below.Pattern.IsAnyCase() && above.Pattern.HasCase() && !above.Pattern.IsAnyCase()
}

// Stand-ins for segments and methods that no rule names. A rule that matches a stand-in has a wildcard in its place.
// So if other rules match each request that is made of stand-ins, they match every request.
const (
	anySegment = "any-segment-that-no-pattern-names"
	anyMethod  = "ANY-METHOD-THAT-NO-RULE-NAMES"
)

// reachable reports whether some request matches the rule and none of the rules above.
func reachable(rule route.Rule, above []route.Rule) bool {
	longest := 0
	for _, a := range above {
		longest = max(longest, strings.Count(patternText(a), "/"))
	}
	index := route.NewIndex(above)
	methods := rule.Methods
	if len(methods) == 0 {
		methods = []string{anyMethod}
	}
	for _, raw := range witnesses(patternText(rule), longest+1) {
		path := route.Clean(raw)
		for _, m := range methods {
			if len(index.MatchForm(nil, m, &path, 0)) == 0 {
				return true
			}
		}
	}
	return false
}

// witnesses returns paths that match a pattern: a stand-in at each wildcard, and for "**" every length up to longest
// segments.
func witnesses(pattern string, longest int) []string {
	var b strings.Builder
	tail := false
	for segment := range strings.SplitSeq(strings.TrimPrefix(pattern, "/"), "/") {
		switch {
		case segment == "**":
			tail = true
		case segment == "*" || strings.HasPrefix(segment, "{"):
			b.WriteString("/" + anySegment)
		default:
			b.WriteString("/" + segment)
		}
	}
	out := []string{b.String()}
	for n := 0; tail && n < longest; n++ {
		b.WriteString("/" + anySegment)
		out = append(out, b.String())
	}
	return out
}

// reportUnrouted reports limits that match no request of any declared route.
func (r *reader) reportUnrouted(specs []*spec, routes []route.Rule) {
	if len(routes) == 0 {
		return
	}
	for _, s := range specs {
		if s.rule.Any && len(s.rule.Methods) == 0 || s.matchBad() {
			continue
		}
		if !slices.ContainsFunc(routes, func(o route.Rule) bool { return route.Overlap(s.rule, o) }) {
			r.problemAt(s.matchPlace(), "unreachable: no declared route matches any request that this limit does")
		}
	}
}

// pathText describes the path of a rule.
func pathText(rule route.Rule) string {
	if rule.Pattern.IsAnyCase() {
		return patternText(rule) + " in any case"
	}
	return patternText(rule)
}

// patternText returns the pattern of a rule; "/**" if the rule is for any path.
func patternText(rule route.Rule) string {
	if rule.Any || rule.Pattern.IsZero() {
		return "/**"
	}
	return rule.Pattern.String()
}
