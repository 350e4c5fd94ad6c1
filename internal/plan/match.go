package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan/route"
)

// methodNames are the standard methods.
var methodNames = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}

// match says which requests a limit counts, or a route serves.
type match struct {
	methods field[[]string]
	pattern field[route.Pattern]
	routeOptions
	rule route.Rule // methods and pattern, with the options applied
}

// routeOptions say which other spellings of a request a match counts. An option that is not written is off, so that a
// stored document without the option keeps its meaning.
type routeOptions struct {
	caseInsensitive field[bool] // match paths regardless of case
	impliesHead     field[bool] // match HEAD if GET is named
}

var (
	methodsKey = bind(key[match]{name: "methods", usual: "any", doc: "`" + strings.Join(methodNames, " ") + "`"},
		kind[[]string]{"list, or one", (*reader).methods}, func(m *match) *field[[]string] { return &m.methods })
	patternKey = bind(key[match]{name: "pathPattern", usual: "any",
		doc: "`/product/*` and `/product/{id}`: one segment; `/product/**`: any tail, also none"},
		kind[route.Pattern]{"pattern", (*reader).pattern}, func(m *match) *field[route.Pattern] { return &m.pattern })

	routeKeys = mappingOf("a route", nil, methodsKey, patternKey)
	matchKeys = mappingOf("a match", nil, methodsKey, patternKey,
		bind(key[match]{name: "caseInsensitive", usual: "that of the plan, else false",
			doc: "the letters of `pathPattern` match in any case"}, booleanKind,
			func(m *match) *field[bool] { return &m.caseInsensitive }),
		bind(key[match]{name: "impliesHead", usual: "that of the plan, else false",
			doc: "if `methods` has `GET` and not `HEAD`, HEAD counts as GET"}, booleanKind,
			func(m *match) *field[bool] { return &m.impliesHead }),
	)
)

// matchOf reads the match of a limit. An option that is absent is taken from options.
func (r *reader) matchOf(o object, layer string, options routeOptions) match {
	m := match{routeOptions: options}
	m.rule.Any = true
	v, ok := o.Get("match")
	if !ok {
		return m
	}
	if _, ok := matchKeys.read(r, v, &m, layer); !ok {
		return m
	}
	m.setRule()
	if m.caseInsensitive.v {
		m.rule.Pattern = m.rule.Pattern.AnyCase()
	}
	if m.impliesHead.v && m.lacksHead() {
		m.rule.Methods = append(slices.Clone(m.rule.Methods), "HEAD")
	}
	return m
}

// setRule makes the rule of the methods and the pattern.
func (m *match) setRule() {
	m.rule = route.Rule{Methods: m.methods.v, Pattern: m.pattern.v, Any: !m.pattern.set || m.pattern.bad}
}

// lacksHead reports whether the match names GET and not HEAD.
func (m *match) lacksHead() bool {
	return slices.Contains(m.methods.v, "GET") && !slices.Contains(m.methods.v, "HEAD")
}

// warnOfSpellings reports the limits of a list that a request avoids with another spelling, in one warning. It leaves
// out limits whose author has written the option, either way. at is where the warning is placed; where says in which
// mapping the options can be written.
func (r *reader) warnOfSpellings(specs []*spec, at place, where string) {
	var paths, heads []string
	for _, s := range specs {
		if s.matchBad() || s.mode.v == limit.Off {
			continue
		}
		if !s.caseInsensitive.set && s.rule.Pattern.HasCase() {
			paths = append(paths, s.id.v)
		}
		if !s.impliesHead.set && s.lacksHead() {
			heads = append(heads, s.id.v)
		}
	}
	var escapes, missing []string
	if len(paths) > 0 {
		escapes = append(escapes, "a path in another case does if the backend ignores case ("+limitsText(paths)+")")
		missing = append(missing, "caseInsensitive")
	}
	if len(heads) > 0 {
		escapes = append(escapes, "HEAD does where only GET is named ("+limitsText(heads)+")")
		missing = append(missing, "impliesHead")
	}
	if len(missing) > 0 {
		r.warnAt(at, "requests may pass limits uncounted: %s; "+
			"write %s: true %s to count them, or false if they are not to be counted",
			strings.Join(escapes, ", and "), strings.Join(missing, ": true and "), where)
	}
}

// warnOfMethods reports limits that name methods, if no enforcing limit of the list counts the other methods on their
// path, in one warning. It leaves out limits of paths whose declared routes name the methods that are served.
func (r *reader) warnOfMethods(specs []*spec, routes []route.Rule, at place) {
	var ids, free []string
	for _, s := range specs {
		if s.matchBad() || s.mode.v == limit.Off || len(s.rule.Methods) == 0 || routesNameMethods(routes, s.rule) {
			continue
		}
		missing := slices.DeleteFunc(route.UsualMethods(), func(m string) bool {
			one := s.rule
			one.Methods = []string{m}
			return slices.ContainsFunc(specs, func(o *spec) bool {
				return !o.matchBad() && o.mode.v == limit.Enforce && route.Covers(o.rule, one) || o == s &&
					slices.Contains(s.rule.Methods, m)
			})
		})
		if len(missing) == 0 {
			continue
		}
		ids = append(ids, s.id.v)
		for _, m := range missing {
			if !slices.Contains(free, m) {
				free = append(free, m)
			}
		}
	}
	if len(ids) > 0 {
		r.warnAt(at, "%s: no limit counts %s on the same paths, and many backends answer any method as they answer GET"+
			"; add a limit without methods, or declare routes with the methods that are served", limitsText(ids),
			strings.Join(free, ", "))
	}
}

// routesNameMethods reports whether routes are declared, and all that overlap the path of the rule name methods.
func routesNameMethods(routes []route.Rule, rule route.Rule) bool {
	rule.Methods = nil
	return len(routes) > 0 && !slices.ContainsFunc(routes, func(o route.Rule) bool {
		return len(o.Methods) == 0 && route.Overlap(o, rule)
	})
}

// limitsText names up to three limits and gives the number of the others.
func limitsText(ids []string) string {
	const most = 3
	text := "limits "
	if len(ids) == 1 {
		text = "limit "
	}
	if len(ids) <= most {
		return text + strings.Join(ids, ", ")
	}
	return fmt.Sprintf("%s%s and %d more", text, strings.Join(ids[:most], ", "), len(ids)-most)
}

func (r *reader) pattern(v value) (route.Pattern, bool) {
	s, ok := r.Text(v)
	if !ok {
		return route.Pattern{}, false
	}
	p, err := route.ParsePattern(s)
	var bad *route.SyntaxError
	if errors.As(err, &bad) {
		r.Problem(v, "pattern %s, character %d: %s", configfile.Quote(s), bad.Position, bad.Message)
	}
	return p, err == nil
}

func (r *reader) methods(v value) ([]string, bool) {
	items, ok := []value{v}, true
	if isList(v) {
		if items, ok = r.List(v, "methods"); !ok {
			return nil, false
		}
	}
	if len(items) == 0 {
		r.Problem(v, "no method is named, so nothing matches: leave methods out for any")
		return nil, false
	}
	out := make([]string, 0, len(items))
	for _, item := range items {
		m, good := choice(r, item, func(s string) (string, bool) { return s, slices.Contains(methodNames, s) },
			methodNames)
		switch {
		case !good:
			ok = false
		case slices.Contains(out, m):
			r.Problem(item, "%s is there twice", m)
			ok = false
		default:
			out = append(out, m)
		}
	}
	return out, ok
}
