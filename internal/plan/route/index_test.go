package route_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/plan/route"
)

// matchByScan matches by comparing every rule.
func matchByScan(rules []route.Rule, method string, path *route.Path) []int32 {
	var found []int32
	for i, r := range rules {
		methodFits := len(r.Methods) == 0 || slices.ContainsFunc(r.Methods, func(m string) bool {
			return strings.EqualFold(m, method)
		})
		if methodFits && (r.Any || r.Pattern.Matches(path)) {
			found = append(found, int32(i))
		}
	}
	return found
}

// TestIndexMethods guarantees that a method selects its limits, and that no spelling of a method avoids them.
func TestIndexMethods(t *testing.T) {
	p := pattern(t, "/a")
	rules := []route.Rule{
		{Methods: []string{"GET"}, Pattern: p},
		{Methods: []string{"put", "PATCH"}, Pattern: p},
		{Pattern: p},
		{Any: true, Methods: []string{"HEAD"}},
		{Any: true},
		{}, // the zero Pattern
	}
	for i := range 80 { // more methods than the index has bits for
		rules = append(rules, route.Rule{Methods: []string{fmt.Sprintf("X%d", i)}, Pattern: p})
	}
	x, path := route.NewIndex(rules), route.Clean("/a")
	for method, want := range map[string][]int32{
		"GET":     {0, 2, 4, 5},
		"get":     {0, 2, 4, 5},
		"PUT":     {1, 2, 4, 5},
		"PATCH":   {1, 2, 4, 5},
		"HEAD":    {2, 3, 4, 5},
		"DELETE":  {2, 4, 5},
		"":        {2, 4, 5},
		"GET ":    {2, 4, 5},
		"X0":      {2, 4, 5, 6},
		"X58":     {2, 4, 5, 64},
		"X59":     {2, 4, 5, 65},
		"x79":     {2, 4, 5, 85},
		"X80":     {2, 4, 5},
		"\u017fs": {2, 4, 5},
	} {
		if got := x.Match(nil, method, &path); !slices.Equal(got, want) {
			t.Errorf("Match of %q /a = %v, want %v", method, got, want)
		}
	}
}

// TestMatchForm guarantees that rules that match the same form overlap, so that in a group the most specific of them
// is defined, and that the matches of all forms together are those of Match.
func TestMatchForm(t *testing.T) {
	rules := []route.Rule{
		{Pattern: pattern(t, "/product/*")},
		{Pattern: pattern(t, "/product/bulk")},
		{Pattern: pattern(t, "/b/*")},
		{Any: true},
	}
	x := route.NewIndex(rules)
	for _, tt := range []struct {
		raw  string
		want [][]int32 // by form
		all  []int32
	}{
		{"/product/bulk", [][]int32{{0, 1, 3}}, []int32{0, 1, 3}},
		{"/product/%62ulk", [][]int32{{0, 3}, {0, 1, 3}}, []int32{0, 1, 3}},
		{"/product;x/1", [][]int32{{3}, {0, 3}, {3}}, []int32{0, 3}},
		{"/product/", [][]int32{{3}, {0}}, []int32{0, 3}},
		{"/product/bulk/", [][]int32{{0, 1, 3}, nil}, []int32{0, 1, 3}},
		{"/b/1//", [][]int32{{2, 3}, nil, nil}, []int32{2, 3}},
		{"/", [][]int32{{3}, nil}, []int32{3}},
		{"/product/..%2F..%2Fb%2Fx", nil, []int32{0, 2, 3}},
	} {
		path := route.Clean(tt.raw)
		var union []int32
		for i := range path.NumForms() {
			got := x.MatchForm(nil, "GET", &path, i)
			if tt.want != nil && (i >= len(tt.want) || !slices.Equal(got, tt.want[i])) {
				t.Errorf("MatchForm of %q, form %q = %v, want %v", tt.raw, path.Form(i), got, tt.want[i])
			}
			for _, a := range got {
				for _, b := range got {
					if !route.Overlap(rules[a], rules[b]) {
						t.Errorf("form %q of %q matches %s and %s, which do not overlap",
							path.Form(i), tt.raw, show(rules[a]), show(rules[b]))
					}
				}
			}
			union = append(union, got...)
		}
		slices.Sort(union)
		if union = slices.Compact(union); !slices.Equal(union, tt.all) {
			t.Errorf("forms of %q match %v, want %v", tt.raw, union, tt.all)
		}
		if got := x.Match([]int32{9, 8}, "GET", &path); !slices.Equal(got, append([]int32{9, 8}, tt.all...)) {
			t.Errorf("Match of %q appended to [9 8] = %v, want %v behind it", tt.raw, got, tt.all)
		}
	}
}

// FuzzIndexMatchesScan guarantees that the tree finds every rule that a comparison of all rules finds: a limit with a
// missed rule would not be enforced.
func FuzzIndexMatchesScan(f *testing.F) {
	f.Add("/a/*\n/a/b\nPUT /**\n/{x}/b/**\nany", "GET", "/a/./b")
	f.Add("/a\n/a/**\n/\n/*/*/c", "PUT", `/a;x\b%2Fc`)
	f.Add("get /%2A\n/%25/é", "gEt", "/%2a")
	f.Add("anycase /a/B\n/a/b\n/*/b\nanycase PUT /A/**\nanycase /*/B", "PUT", "/A/b")
	f.Add("anycase /k\nanycase /i/**", "GET", "/%E2%84%AA/../%C4%B1")
	f.Fuzz(func(t *testing.T, lines, method, raw string) {
		var rules []route.Rule
		for line := range strings.SplitSeq(lines, "\n") {
			var r route.Rule
			words := strings.Fields(line)
			inAnyCase := len(words) > 1 && words[0] == "anycase"
			if inAnyCase {
				words = words[1:]
			}
			if len(words) > 1 {
				r.Methods = words[:len(words)-1]
			}
			if line == "any" {
				r.Any = true
			} else if p, err := route.ParsePattern(patternOf(words)); err == nil {
				if r.Pattern = p; inAnyCase {
					r.Pattern = p.AnyCase()
				}
			} else {
				continue
			}
			rules = append(rules, r)
		}
		if !isASCII(method + lines) {
			return // scan folds with strings.ToUpper
		}
		path := route.Clean(raw)
		got, want := route.NewIndex(rules).Match(nil, method, &path), matchByScan(rules, method, &path)
		if !slices.Equal(got, want) {
			t.Fatalf("%s %q (forms %q) against %q: index %v, scan %v", method, raw, path.Forms(), lines, got, want)
		}
	})
}

func patternOf(words []string) string {
	if len(words) == 0 {
		return ""
	}
	return words[len(words)-1]
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r > 127 })
}

// rules500 returns 500 rules as a big API may have them: those of its services, and ten wide ones that match many
// requests.
func rules500(t testing.TB) []route.Rule {
	t.Helper()
	var rules []route.Rule
	for i := range 490 {
		rules = append(rules, route.Rule{
			Methods: []string{[]string{"GET", "PUT", "POST", "DELETE"}[i%4]},
			Pattern: pattern(t, fmt.Sprintf("/v1/svc%03d/{id}/items/*", i/2)),
		})
	}
	for i, wide := range []string{
		"/**", "/v1/**", "/v1/*/**", "/*/*/*/items/*", "/v1/{svc}/{id}/**", "/v2/**", "/*", "/v1/*/x", "/admin/**",
	} {
		rules = append(rules, route.Rule{Methods: [][]string{nil, {"GET", "HEAD"}}[i%2], Pattern: pattern(t, wide)})
	}
	return append(rules, route.Rule{Any: true})
}

// matches500 are the rules that GET /v1/svc244/42/items/7 matches: one service's, five wide ones and the one for any
// path.
var matches500 = []int32{488, 490, 491, 492, 493, 494, 499}

// TestMatchDoesNotAllocate guarantees that matching does not allocate, since garbage of each request adds latency for
// every tenant.
func TestMatchDoesNotAllocate(t *testing.T) {
	x, buffer := route.NewIndex(rules500(t)), make([]int32, 0, 64)
	odd := route.Clean("/v1/svc244/4%202/items/7;x")
	for _, tt := range []struct {
		name string
		run  func() []int32
	}{
		{"clean and match", func() []int32 {
			path := route.Clean("/v1/svc244/42/items/7")
			return x.Match(buffer[:0], "GET", &path)
		}},
		{"trailing slash", func() []int32 {
			path := route.Clean("/v1/svc244/42/items/7/")
			return x.Match(buffer[:0], "GET", &path)
		}},
		{"match of an odd path that is cleaned already", func() []int32 { return x.Match(buffer[:0], "GET", &odd) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []int32
			if allocs := testing.AllocsPerRun(100, func() { got = tt.run() }); allocs != 0 {
				t.Errorf("%v allocations, want 0", allocs)
			}
			if !slices.Equal(got, matches500) {
				t.Errorf("matches %v, want %v", got, matches500)
			}
		})
	}
}
