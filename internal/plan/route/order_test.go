package route_test

import (
	"cmp"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/plan/route"

	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// anyCaseMark in the text of a pattern makes the whole pattern match regardless of case.
const anyCaseMark = "~"

// universe returns every rule of up to three segments over a small alphabet, with some lists of methods, and every
// request that can distinguish two of them: paths of up to four segments, including a segment that no rule names. Only
// first segments have the mark, which keeps the numbers of pairs and triples of rules small.
func universe(t testing.TB) (rules []route.Rule, paths []route.Path, methods []string) {
	t.Helper()
	texts := []string{"/", "/**"}
	level := []string{""}
	for depth := range 3 {
		var next []string
		for _, prefix := range level {
			pieces := []string{"/a", "/b", "/*"}
			if depth == 0 {
				pieces = append(pieces, "/"+anyCaseMark+"a")
			}
			for _, s := range pieces {
				next = append(next, prefix+s)
				texts = append(texts, prefix+s, prefix+s+"/**")
			}
		}
		level = next
	}
	lists := [][]string{nil, {"GET"}, {"put"}, {"GET", "PUT"}}
	for i, text := range texts {
		p := pattern(t, strings.ReplaceAll(text, anyCaseMark, ""))
		if strings.Contains(text, anyCaseMark) {
			p = p.AnyCase()
		}
		rules = append(rules, route.Rule{Methods: lists[i%len(lists)], Pattern: p})
		if i%5 == 0 {
			rules = append(rules, route.Rule{Methods: lists[(i+1)%len(lists)], Pattern: p})
		}
	}
	for _, list := range lists {
		rules = append(rules, route.Rule{Methods: list, Any: true}, route.Rule{Methods: list})
	}
	raws := []string{""}
	for first := 0; len(raws) < 1+5+25+125+625; {
		next := len(raws)
		for _, prefix := range raws[first:next] {
			raws = append(raws, prefix+"/a", prefix+"/A", prefix+"/b", prefix+"/B", prefix+"/other")
		}
		first = next
	}
	for _, raw := range raws {
		paths = append(paths, route.Clean(raw))
	}
	return rules, paths, []string{"GET", "PUT", "OTHER"}
}

// requests returns, for each rule, which requests match it with the first form of their path, according to an index of
// that rule only.
func requests(rules []route.Rule, paths []route.Path, methods []string) [][]bool {
	matches := make([][]bool, len(rules))
	for i := range rules {
		x := route.NewIndex(rules[i : i+1])
		for p := range paths {
			for _, m := range methods {
				matches[i] = append(matches[i], len(x.MatchForm(nil, m, &paths[p], 0)) == 1)
			}
		}
	}
	return matches
}

// TestOverlapCovers guarantees that Overlap and Covers agree with the list of all requests. A wrong Overlap accepts a
// tie, after which chance decides which limit of a group applies; a wrong Covers refuses a valid plan as unreachable,
// or accepts a limit that never applies.
func TestOverlapCovers(t *testing.T) {
	soak.SkipUnderRace(t)
	rules, paths, methods := universe(t)
	matches := requests(rules, paths, methods)
	overlaps, covers := 0, 0
	for i, a := range rules {
		for j, b := range rules {
			wantOverlap, wantCovers := false, true
			for r := range matches[i] {
				wantOverlap = wantOverlap || matches[i][r] && matches[j][r]
				wantCovers = wantCovers && (matches[i][r] || !matches[j][r])
			}
			if got := route.Overlap(a, b); got != wantOverlap {
				t.Errorf("Overlap(%s, %s) = %t, want %t", show(a), show(b), got, wantOverlap)
			}
			if got := route.Covers(a, b); got != wantCovers {
				t.Errorf("Covers(%s, %s) = %t, want %t", show(a), show(b), got, wantCovers)
			}
			overlaps, covers = overlaps+oneIf(wantOverlap), covers+oneIf(wantCovers)
		}
	}
	if pairs := len(rules) * len(rules); overlaps < pairs/10 || covers < pairs/50 || overlaps > pairs*9/10 {
		t.Errorf("of %d pairs of rules, %d overlap and %d cover each other: the test shows too little", pairs,
			overlaps, covers)
	}
}

func oneIf(b bool) int {
	if b {
		return 1
	}
	return 0
}

func show(r route.Rule) string {
	if r.Any {
		return "any"
	}
	s := r.Pattern.String()
	if r.Pattern.IsAnyCase() {
		s = anyCaseMark + s
	}
	for _, m := range r.Methods {
		s += " " + m
	}
	return s
}

// TestCompareLaws guarantees that the most specific limit does not depend on the order of the limits in the file: the
// order is total, and a rule that matches strictly fewer paths is more specific.
func TestCompareLaws(t *testing.T) {
	rules, _, _ := universe(t)
	for _, a := range rules {
		for _, b := range rules {
			ab := route.Compare(a, b)
			if ba := route.Compare(b, a); cmp.Compare(ab, 0) != -cmp.Compare(ba, 0) {
				t.Fatalf("Compare(%s, %s) = %d, but the other way round %d", show(a), show(b), ab, ba)
			}
			onlyPaths := func(r route.Rule) route.Rule { r.Methods = nil; return r }
			pathA, pathB := onlyPaths(a), onlyPaths(b)
			wider := route.Covers(pathA, pathB) && !route.Covers(pathB, pathA)
			if wider && ab <= 0 {
				t.Fatalf("%s covers the paths of %s and more, but Compare gives %d", show(a), show(b), ab)
			}
			for _, c := range rules {
				if ab <= 0 && route.Compare(b, c) <= 0 && route.Compare(a, c) > 0 {
					t.Fatalf("Compare is not transitive over %s, %s, %s", show(a), show(b), show(c))
				}
			}
		}
	}
}

// TestCompare guarantees the order that the design defines.
func TestCompare(t *testing.T) {
	rule := func(path string, methods ...string) route.Rule {
		return route.Rule{Pattern: pattern(t, path), Methods: methods}
	}
	for _, tt := range []struct {
		name string
		a, b route.Rule
		want int
	}{
		{"literal beats star", rule("/a/b"), rule("/a/*"), -1},
		{"literal beats name", rule("/a/b"), rule("/a/{x}"), -1},
		{"literal beats one in any case", rule("/a/*"), route.Rule{Pattern: caseInsensitive(t, "/a/b")}, -1},
		{"one in any case beats star", route.Rule{Pattern: caseInsensitive(t, "/a/b")}, rule("/a/*"), 1},
		{"any case, the same letters", route.Rule{Pattern: caseInsensitive(t, "/a")},
			route.Rule{Pattern: caseInsensitive(t, "/A")}, 0},
		{"star and name are equal", rule("/a/*"), rule("/a/{x}"), 0},
		{"star beats tail", rule("/a/*"), rule("/a/**"), -1},
		{"end beats tail", rule("/a"), rule("/a/**"), -1},
		{"longer tail beats shorter", rule("/a/b/**"), rule("/a/**"), -1},
		{"left decides", rule("/a/*/*"), rule("/*/b/c"), -1},
		{"crosswise, left decides", rule("/a/*"), rule("/*/b"), -1},
		{"tail behind a literal beats a long one behind a star", rule("/a/**"), rule("/*/b/c/d"), -1},
		{"path before method", rule("/a/b"), rule("/a/*", "GET"), -1},
		{"method beats any", rule("/a", "GET"), rule("/a"), -1},
		{"lists of methods are equal", rule("/a", "GET"), rule("/a", "GET", "PUT"), 0},
		{"any path is least", rule("/**"), route.Rule{Any: true}, -1},
		{"any path with a method is still least", rule("/**"), route.Rule{Any: true, Methods: []string{"GET"}}, -1},
		{"any path, method beats any", route.Rule{Any: true, Methods: []string{"GET"}}, route.Rule{Any: true}, -1},
		{"zero pattern is any path", route.Rule{}, route.Rule{Any: true}, 0},
		{"root beats tail", rule("/"), rule("/**"), -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := cmp.Compare(route.Compare(tt.a, tt.b), 0); got != tt.want {
				t.Errorf("Compare(%s, %s) = %d, want %d", show(tt.a), show(tt.b), got, tt.want)
			}
			if got := cmp.Compare(route.Compare(tt.b, tt.a), 0); got != -tt.want {
				t.Errorf("Compare(%s, %s) = %d, want %d", show(tt.b), show(tt.a), got, -tt.want)
			}
		})
	}
}
