package route_test

import (
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/sluicelimits/sluice/internal/plan/route"

	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

func caseInsensitive(t testing.TB, s string) route.Pattern { return pattern(t, s).AnyCase() }

// TestAnyCase guarantees that a limit that ignores case matches every spelling of a path in another case, encoded or
// not, and no other paths.
func TestAnyCase(t *testing.T) {
	for _, tt := range []struct {
		raw, pattern string
		want         bool
	}{
		{"/product/1", "/product/*", true},
		{"/PRODUCT/1", "/product/*", true},
		{"/Product/1", "/product/*", true},
		{"/product/1", "/PRODUCT/*", true},
		{"/%50roduct/1", "/product/*", true},
		{"/%2550roduct/1", "/product/*", true},
		{"/x/../pRODUCT/1", "/product/*", true},
		{"/pRODUCT/..", "/product/*", true},
		{"/V1;a/Product%2F1", "/v1/product/{id}", true},
		{"/CAF%C3%89/1", "/café/*", true},
		{"/%E2%84%AAey", "/key", true},      // the Kelvin sign
		{"/%C5%BFecret", "/secret", true},   // the long s
		{"/adm%C4%B1n", "/ADMIN", true},     // the Turkish dotless i
		{"/ADM%C4%B0N/x", "/admin/*", true}, // and the dotted one
		{"/Σ/Ω", "/ς/Ω", true},              // both lower cases of sigma; the ohm sign
		{"/A-1/b_2", "/a-1/B_2", true},
		{"/a\xffB", "/A%FFb", true},
		{"/PRODUCTS/1", "/product/*", false},
		{"/STRASSE", "/straße", false},
		{"/a\xfeB", "/A%FFb", false},
		{"/a[", "/a%7B", false}, // these differ in one bit, as A and a do
		{"/a@", "/a%60", false},
	} {
		path, p := route.Clean(tt.raw), caseInsensitive(t, tt.pattern)
		if got := p.Matches(&path); got != tt.want {
			t.Errorf("%s in any case matches %q: %t, want %t", tt.pattern, tt.raw, got, tt.want)
		}
		found := len(route.NewIndex([]route.Rule{{Pattern: p}}).Match(nil, "GET", &path)) == 1
		if found != tt.want {
			t.Errorf("the index of %s in any case finds %q: %t, want %t", tt.pattern, tt.raw, found, tt.want)
		}
	}
}

// TestAnyCaseRunes guarantees that a letter equals every letter that some server treats as equal, and that a pattern
// is reported as having no case only if that is true: a missing letter would let requests avoid every limit with that
// letter.
func TestAnyCaseRunes(t *testing.T) {
	soak.SkipUnderRace(t)
	equal := func(a, b rune) {
		if a != b && route.FoldRune(a) != route.FoldRune(b) {
			t.Errorf("%U and %U differ in case alone, but FoldRune gives different letters", a, b)
		}
	}
	circles := map[rune][]rune{}
	for r := range rune(unicode.MaxRune + 1) {
		equal(r, unicode.ToUpper(r))
		equal(r, unicode.ToLower(r))
		equal(r, unicode.ToTitle(r))
		equal(r, unicode.SimpleFold(r))
		circles[route.FoldRune(r)] = append(circles[route.FoldRune(r)], r)
	}
	cased := 0
	for _, circle := range circles {
		for _, r := range circle {
			if len(circle) > 1 && !route.HasCase(string(r)) {
				t.Errorf("%U is one of the equal letters %q, but HasCase says that it has no case", r, circle)
			}
		}
		cased += len(circle) - 1
	}
	if cased < 1000 || len(circles['k']) != 3 || len(circles['i']) != 4 {
		t.Errorf("%d letters have another case, want 1000 or more; k has %q and i has %q, want 3 and 4 letters", cased,
			circles['k'], circles['i'])
	}
}

// TestAnyCasePattern guarantees that AnyCase keeps the name of a limit's counters, and does not change a pattern
// without letters.
func TestAnyCasePattern(t *testing.T) {
	for text, want := range map[string]bool{
		"/Product/{Id}": true, "/1/{Name}/**": false, "/*": false, "/": false, "/%C3%89": true, "/%FF": false,
	} {
		p, exact := caseInsensitive(t, text), pattern(t, text)
		if p.String() != exact.String() || p.IsZero() {
			t.Errorf("AnyCase of the pattern %s = %q, want the same text", text, p)
		}
		if exact.HasCase() != want || p.HasCase() != want || p.IsAnyCase() != want || exact.IsAnyCase() {
			t.Errorf("%s: it has a case: %t, in any case: %t; want %t", text, exact.HasCase(), p.IsAnyCase(), want)
		}
		same := route.Covers(route.Rule{Pattern: exact}, route.Rule{Pattern: p})
		if same == want {
			t.Errorf("%s covers itself in any case: %t, want %t", text, same, !want)
		}
	}
	if zero := (route.Pattern{}).AnyCase(); !zero.IsZero() || zero.HasCase() {
		t.Error("AnyCase of the zero Pattern is not the zero Pattern")
	}
}

// TestAnyCaseDoesNotAllocate guarantees that matching regardless of case does not allocate, also for segments in
// capitals.
func TestAnyCaseDoesNotAllocate(t *testing.T) {
	rules := rules500(t)
	for i := range rules {
		rules[i].Pattern = rules[i].Pattern.AnyCase()
	}
	x, buffer := route.NewIndex(rules), make([]int32, 0, 64)
	for _, raw := range []string{"/v1/svc244/42/items/7", "/V1/SVC244/42/Items/7"} {
		var got []int32
		allocs := testing.AllocsPerRun(100, func() {
			path := route.Clean(raw)
			got = x.Match(buffer[:0], "GET", &path)
		})
		if allocs != 0 || !slices.Equal(got, matches500) {
			t.Errorf("%s: %v allocations and the matches %v, want none and %v", raw, allocs, got, matches500)
		}
	}
	long := "/" + strings.Repeat("K", 1000)
	path := route.Clean(long)
	if p := caseInsensitive(t, strings.ToLower(long)); !p.Matches(&path) {
		t.Error("a pattern in any case does not match a long segment")
	}
	x = route.NewIndex([]route.Rule{{Pattern: caseInsensitive(t, strings.ToLower(long))}})
	if got := x.Match(nil, "", &path); len(got) != 1 {
		t.Error("an index in any case does not find a long segment")
	}
}
