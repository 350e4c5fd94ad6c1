package plan

import (
	"errors"
	"slices"

	"github.com/sluicelimits/sluice/internal/route"
)

var methodNames = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}

// matchOf reads match: {methods, pathPattern}.
func (r *reader) matchOf(o object, s *spec, layer string) {
	s.rule.Any = true
	v, ok := o.get("match")
	if !ok {
		return
	}
	if m, ok := r.object(v, matchSchema); ok {
		s.methods, s.pattern, s.rule = r.routeRule(m, layer)
	}
}

// routeRule reads methods and pathPattern of a match or a route.
func (r *reader) routeRule(o object, layer string) (methods field[[]string], pattern field[string], rule route.Rule) {
	rule.Any = true
	methods = take(o, "methods", layer, r.methods)
	rule.Methods = methods.v
	pattern = take(o, "pathPattern", layer, func(v value) (string, bool) {
		s, ok := r.text(v)
		if !ok {
			return "", false
		}
		p, err := route.ParsePattern(s)
		if err != nil {
			var bad *route.SyntaxError
			if errors.As(err, &bad) {
				r.problem(v, "pattern %s, character %d: %s", quote(s), bad.Position, bad.Message)
			} else {
				r.problem(v, "pattern %s: %v", quote(s), err)
			}
			return "", false
		}
		rule.Pattern, rule.Any = p, false
		return p.String(), true
	})
	return methods, pattern, rule
}

func (r *reader) methods(v value) ([]string, bool) {
	items, ok := []value{v}, true
	if isList(v) {
		if items, ok = r.list(v, "methods"); !ok {
			return nil, false
		}
	}
	if len(items) == 0 {
		r.problem(v, "no method is named, so nothing matches: leave methods out for any")
		return nil, false
	}
	out := make([]string, 0, len(items))
	for _, item := range items {
		m, good := choice(r, item, func(s string) (string, bool) { return s, slices.Contains(methodNames, s) }, methodNames)
		switch {
		case !good:
			ok = false
		case slices.Contains(out, m):
			r.problem(item, "%s is there twice", m)
			ok = false
		default:
			out = append(out, m)
		}
	}
	return out, ok
}
