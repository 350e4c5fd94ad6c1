package route_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/plan/route"
)

func pattern(t testing.TB, s string) route.Pattern {
	t.Helper()
	p, err := route.ParsePattern(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// aliases are spellings that some server reads as a path that the pattern matches. Each of them avoids the limits of
// some real router or filter.
var aliases = []struct{ name, raw, pattern string }{
	{"plain", "/product/1", "/product/*"},
	{"another id", "/product/2", "/product/*"},
	{"trailing slash", "/product/1/", "/product/*"},
	{"trailing slashes", "/product/1///", "/product/*"},
	{"no leading slash", "product/1", "/product/*"},
	{"encoded leading slash, empty segment for a parameter", "%2fproduct/%2Freviews", "/product/*/reviews"},
	{"doubly encoded leading slash, empty segment for a parameter", "%252Fproduct//reviews", "/product/*/reviews"},
	{"encoded leading backslash, empty segment for a parameter", "%5Cproduct//reviews", "/product/*/reviews"},
	{"leading backslash, empty segment for a parameter", `\product//reviews`, "/product/*/reviews"},
	{"white space, encoded leading slash, then an empty segment", "\xa0%2Fproduct//reviews", "/product/*/reviews"},
	{"absolute form, encoded leading slash, then an empty segment", "x:%2Fproduct//reviews", "/product/*/reviews"},
	{"double slash", "//product/1", "/product/*"},
	{"double slash inside", "/product//1", "/product/*"},
	{"empty segment for a parameter", "/product/", "/product/*"},
	{"empty segments for a parameter", "/product//", "/product/*"},
	{"empty segment for a parameter in the middle", "/product//reviews", "/product/*/reviews"},
	{"empty segment for a parameter at the beginning", "//reviews/1", "/*/reviews/*"},
	{"empty segment for two parameters", "/product//", "/product/*/*"},
	{"empty segment for a parameter, a dot behind it", "/product//.", "/product/*"},
	{"encoded slash, then an empty segment", "/product%2F%2Freviews", "/product/*/reviews"},
	{"the root for a parameter", "/", "/*"},
	{"the root for a parameter, and a query", "/?x", "/*"},
	{"dot", "/product/./1", "/product/*"},
	{"dot at the end", "/product/1/.", "/product/*"},
	{"dot dot", "/product/x/../1", "/product/*"},
	{"dot as the id", "/product/.", "/product/*"},
	{"dot dot as the id", "/product/..", "/product/*"},
	{"dot dot as the id, trailing slashes", "/product//..//", "/product/*"},
	{"dot as the id, more below it", "/product/./reviews", "/product/*/reviews"},
	{"encoded dot as the id, decoded by a gateway that splits first", "/%70roduct/%2e", "/product/*"},
	{"encoded dots as the id, decoded by a gateway that splits first", "/%70roduct/%2E.", "/product/*"},
	{"dot dot at the end", "/product/1/x/..", "/product/*"},
	{"above the root", "/../../product/1", "/product/*"},
	{"encoded slash", "/product%2F1", "/product/*"},
	{"encoded slash, lower case", "/product%2f1", "/product/*"},
	{"encoded letter", "/%70roduct/1", "/product/*"},
	{"encoded dots", "/a/%2e%2e/product/1", "/product/*"},
	{"half encoded dots", "/a/.%2E/product/1", "/product/*"},
	{"encoded dots and slashes", "/a%2f..%2fproduct%2f1", "/product/*"},
	{"encoded letter, encoded slash in the id (servers that split first)", "/%70roduct/a%2Fb", "/product/*"},
	{"encoded dots, encoded slash in the id", "/x/%2e%2e/product/a%2Fb", "/product/*"},
	{"encoded slash as separator before a real dot dot", "/a/%2e%2e%2F../product", "/a/product"},
	{"dots resolved before decoding", "/a/%2e%2e/../product/1", "/a/product/*"},
	{"dots resolved after decoding", "/a/%2e%2e/../product/1", "/product/*"},
	{"empty segment popped before merging", "/product//../1", "/product/*"},
	{"empty segment merged before popping", "/product/x//../1", "/product/*"},
	{"double encoding", "/product%252F1", "/product/*"},
	{"double encoded dots", "/a/%252e%252e/product/1", "/product/*"},
	{"triple encoding", "/%252570roduct/1", "/product/*"},
	{"encoded percent in pieces", "/%%37%30roduct/1", "/product/*"},
	{"merged by one proxy, backslashes turned and dots resolved by the next", `/product/1/x//..\/..`, "/product/1"},
	{"matrix parameter", "/product;a=b/1", "/product/*"},
	{"matrix parameter on the id", "/product/1;a=b", "/product/1"},
	{"matrix parameter alone", "/product/;a=b/1", "/product/1"},
	{"matrix parameter on dot dot", "/a/..;/product/1", "/product/*"},
	{"matrix parameter kept by a proxy that resolves dots", "/x/..;/../product/1", "/x/product/*"},
	{"encoded matrix parameter", "/product%3Ba=b/1", "/product/*"},
	{"encoded slash in a matrix parameter", "/product;a%2Fb/1", "/product/*"},
	{"encoded matrix parameter with an encoded slash", "/product%3Bx%2Fy/1", "/product/*"},
	{"encoded matrix parameter ended by an encoded slash", "/product%3Bx%2F1", "/product/*"},
	{"semicolon before a query", "/product/1;/x", "/product/1"},
	{"semicolon before a query, alone", "/product;", "/product"},
	{"semicolon before a query that ends a parameter", "/product/;x/1/reviews", "/product/*"},
	{"semicolon before a query with dots", "/product/1;/../../x", "/product/1"},
	{"semicolon behind dots that are kept", "/product/..;/reviews", "/product/*"},
	{"encoded semicolon before a query", "/product/1%3B/x", "/product/1"},
	{"encoded semicolon, lower case", "/product/1%3b%2Fx", "/product/1"},
	{"double encoded semicolon", "/product/1%253B/x", "/product/1"},
	{"backslash", `/product\1`, "/product/*"},
	{"backslashes only", `\product\1`, "/product/*"},
	{"encoded backslash", "/product%5C1", "/product/*"},
	{"backslash dot dot", `/a\..\product\1`, "/product/*"},
	{"backslash is a character", `/product/a\b`, "/product/*"},
	{"NUL", "/product/1\x00/x/y", "/product/1"},
	{"encoded NUL", "/product/1%00.html", "/product/1"},
	{"NUL is a character", "/product/1%00", "/product/*"},
	{"query", "/product/1?x=/a/b", "/product/1"},
	{"fragment", "/product/1#/a/b", "/product/1"},
	{"fragment behind an escape", "/%70roduct/1#/a/b", "/product/1"},
	{"question mark decoded by a gateway", "/x?/../product/1", "/product/*"},
	{"fragment is a character", "/x#/../product/1", "/product/*"},
	{"encoded question mark", "/product/1%3Fx/y", "/product/1"},
	{"authority", "//evil.example/product/1", "/product/*"},
	{"authority with more slashes", "///evil.example/product/1", "/product/*"},
	{"authority with backslashes", `\\evil.example\product\1`, "/product/*"},
	{"absolute form", "http://api.example/product/1", "/product/*"},
	{"absolute form without a path", "http://api.example?x", "/"},
	{"absolute form, a query as authority", "http://api.example?/product/1", "/"},
	{"absolute form, a query in the authority", "http://api.example?/product/1", "/product/1"},
	{"absolute form, authority ended by a backslash", `http://api.example\product\1`, "/product/1"},
	{"absolute form without an authority", "http:/product/1", "/product/1"},
	{"absolute form without an authority, encoded slash", "http:%2Fproduct/1", "/product/1"},
	{"line break at the end", "/product/1%0a", "/product/1"},
	{"line break at the end, double encoded", "/product/1%250A", "/product/1"},
	{"bytes that are not UTF-8 dropped", "/prod%ffuct/1%C3", "/product/1"},
	{"white space dropped from the request line", "\t/product/1\f", "/product/1"},
	{"white space of Latin-1 dropped from the request line", "\xa0%2fproduct/1\x85", "/product/1"},
	{"a star is a character", "/product/*", "/product/*"},
	{"a brace is a character", "/product/{id}", "/product/*"},
	{"two stars are characters", "/product/**", "/product/*"},
	{"a star for a literal", "/product/%2A", "/product/%2A"},
	{"invalid escape", "/product/%zz", "/product/%25zz"},
	{"cut escape", "/product/%2", "/product/*"},
	{"invalid UTF-8", "/product/\xff", "/product/%FF"},
	{"encoded invalid UTF-8", "/product/%ff", "/product/%FF"},
	{"UTF-8", "/caf%C3%A9/1", "/café/*"},
	{"space", "/a%20b/1", "/a%20b/*"},
	{"percent", "/100%25", "/100%25"},
	{"everything at once", `//x;y/%252e%252e/.//product%3Bz/%31`, "/product/1"},
}

// TestAliases guarantees that every spelling that a server reads as a path is subject to the limits of that path. A
// client can avoid a limit with a row that fails.
func TestAliases(t *testing.T) {
	for _, tt := range aliases {
		t.Run(tt.name, func(t *testing.T) {
			path := route.Clean(tt.raw)
			if path.Ambiguous() {
				t.Fatalf("Clean(%q) is ambiguous; want its forms", tt.raw)
			}
			p := pattern(t, tt.pattern)
			if !p.Matches(&path) {
				t.Errorf("Clean(%q) has the forms %q; want one that matches %s", tt.raw, path.Forms(), p)
			}
			x := route.NewIndex([]route.Rule{{Pattern: pattern(t, "/other")}, {Pattern: p}})
			if got := x.Match(nil, "GET", &path); !slices.Equal(got, []int32{1}) {
				t.Errorf("index of /other and %s on %q: got %v, want [1]", p, tt.raw, got)
			}
		})
	}
}

// TestCleanForms guarantees that a path has exactly its expected forms: a missing form lets a client avoid limits, and
// an additional one charges clients to unrelated limits.
func TestCleanForms(t *testing.T) {
	for _, tt := range []struct {
		name, raw string
		want      []string
	}{
		{"nothing", "", []string{"/"}},
		{"root", "/", []string{"/"}},
		{"slashes", "///", []string{"/", "//", "///"}},
		{"clean", "/v1/product/1", []string{"/v1/product/1"}},
		{"case is kept", "/V1/Product", []string{"/V1/Product"}},
		{"trailing slash", "/v1/", []string{"/v1", "/v1/"}},
		{"double slash inside", "/a//b", []string{"/a/b", "/a//b"}},
		{"double slash inside, trailing slash", "/a//b/", []string{"/a/b", "/a//b/", "/a//b", "/a/b/"}},
		{"dots that are names", "/.well-known/..a/...", []string{"/.well-known/..a/..."}},
		{"dot dot", "/a/b/../c", []string{"/a/c", "/a/b/../c"}},
		{"dot", "/a/./b/", []string{"/a/b", "/a/b/", "/a/./b", "/a/./b/"}},
		{"to the root", "/a/..", []string{"/", "/a/.."}},
		{"above the root", "/..", []string{"/", "/.."}},
		{"encoded dot", "/a/%2E", []string{"/a/%2E", "/a", "/a/", "/a/."}},
		{"space", "/a%20b", []string{"/a%20b", "/a b"}},
		{"encoded slash", "/a%2Fb", []string{"/a%2Fb", "/a/b"}},
		{"parameter, or query", "/a;v=1/b", []string{"/a;v=1/b", "/a/b", "/a"}},
		{"query", "/a/?b=c", []string{"/a", "/a/", "/a/?b=c"}},
		{"invalid escapes", "/%/%4/%zz", []string{"/%/%4/%zz"}},
		{"missing slash", "a", []string{"/a"}},
		{"star", "*", []string{"/*"}},
		{"absolute form", "http://h/a", []string{"/a", "/h/a", "//h/a", "/http:/h/a", "/http://h/a"}},
		{"authority or empty segment", "//h/a", []string{"/h/a", "//h/a", "/a"}},
		{"empty segment and dot dot", "/a//../b", []string{"/b", "/a/b", "/a/../b", "/a//../b"}},
		{"slash and letter", "/%61%2Fb", []string{"/%61%2Fb", "/a/b", "/a%2Fb", "/%61/b"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := route.Clean(tt.raw)
			got := path.Forms()
			slices.Sort(got[1:])
			slices.Sort(tt.want[1:])
			if !slices.Equal(got, tt.want) || path.Ambiguous() {
				t.Errorf("Clean(%q) = %q, ambiguous %t; want %q", tt.raw, got, path.Ambiguous(), tt.want)
			}
		})
	}
	if zero := (route.Path{}); zero.String() != "/" || zero.NumForms() != 1 {
		t.Errorf("zero Path: String %q, %d forms; want \"/\" and 1", zero.String(), zero.NumForms())
	}
}

// TestClimbs guarantees that a path is reported as leading above the root exactly if some reading of it does.
func TestClimbs(t *testing.T) {
	for raw, want := range map[string]bool{
		"": false, "/": false, "/a/..": false, "/a/../": false, "/a//..": false, "/a/b/../../c": false,
		"/..a/...": false,
		"/a?b=/..": false, "/a/%2e%2e": false, "/a/b/..%2F..%2Fc": false, "//h/a/..": false, "http://h/a/..": false,
		"/..": true, "..": true, "/../a": true, "/a/../..": true, "/a//../../b": true, "//..": true, "/./..": true,
		"/%2e.": true, "/%252E%252E": true, "/..;/a": true, "/a/..;v=1/../b": true, "/..%2fa": true, "/..%5Ca": true,
		`/\..\a`: true, "/..%00": true, "/..%3Fa": true, "/..%23a": true, "http://h/..": true, "//h/..": true,
		"//h/a/../..":  true,
		"/a?/../../..": true,
		"/%2e%2e/a;" + strings.Repeat("b", 16_500): true, // too long for following every reading
	} {
		if path := route.Clean(raw); path.Climbs() != want {
			t.Errorf("Clean(%q).Climbs() = %t, want %t", raw, path.Climbs(), want)
		}
	}
}

// TestAmbiguous guarantees that a path that is built to exhaust the analysis matches everything, so that it avoids no
// limit, and that ordinary paths, even strange ones, are never treated in this way.
func TestAmbiguous(t *testing.T) {
	nested := "/" + strings.Repeat("%25", 100) + "70roduct"
	for i := range 200 {
		nested += fmt.Sprintf("/%%%s2e%%2f;\\..//%d", strings.Repeat("25", i), i)
	}
	for _, tt := range []struct {
		name, raw string
		want      bool
	}{
		{"deep encoding", "/%" + strings.Repeat("25", 100) + "70roduct/1", true},
		{"long and encoded", "/" + strings.Repeat("%41", 30_000), true},
		{"everything nested", nested, true},
		{"long and clean", "/" + strings.Repeat("a/", 1<<20), false},
		{"long with dots", "/" + strings.Repeat("a/../", 2000) + "product", false},
		{"four kilobytes of encoded text", "/search/" + strings.Repeat("%C3%A9", 680), false},
		{"encoded URL", "/proxy/https%3A%2F%2Fex.example%2Fa%20b%3Bv=1%3Fq%3Dc%26r%3D%252Fd%2523%23top", false},
		{"encoded URL in a query", "/login?next=https%3A%2F%2Fex.example%2Fa%3Fq%3Dc%26r%3D%252Fd%2523top", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := route.Clean(tt.raw)
			if path.Ambiguous() != tt.want {
				t.Fatalf("Clean(%.80q…) has %d forms, ambiguous %t; want %t",
					tt.raw, path.NumForms(), path.Ambiguous(), tt.want)
			}
			p := pattern(t, "/elsewhere/entirely")
			x := route.NewIndex([]route.Rule{
				{Pattern: p},
				{Methods: []string{"PUT"}, Pattern: p},
				{Any: true},
				{Methods: []string{"GET"}, Pattern: p},
			})
			want := []int32{2}
			if tt.want {
				want = []int32{0, 2, 3}
			}
			if got := x.Match(nil, "GET", &path); !slices.Equal(got, want) {
				t.Errorf("Match of %.80q… = %v, want %v", tt.raw, got, want)
			}
			if got := x.MatchForm(nil, "GET", &path, 0); !slices.Equal(got, want) {
				t.Errorf("MatchForm of %.80q… = %v, want %v", tt.raw, got, want)
			}
			if got := p.Matches(&path); got != tt.want {
				t.Errorf("%s matches %.80q…: %t, want %t", p, tt.raw, got, tt.want)
			}
		})
	}
}

// FuzzClean guarantees that the first form is really normalised (a limit's literal would not match it otherwise), that
// cleaning the shown form again changes nothing, that cleaning a form adds no new forms, and that the work is bounded.
func FuzzClean(f *testing.F) {
	for _, s := range []string{
		"", "/", "//a/../b/./", "/a%2F..%2fb", `\..\x;y/%00?#`, "http://h/a", "/%25%32%65", "\xff%c0%ae",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		path := route.Clean(raw)
		if again := route.Clean(path.String()); again.String() != path.String() {
			t.Fatalf("Clean(%q) prints %q, and Clean of that prints %q; want the same", raw, path.String(),
				again.String())
		}
		if n := path.NumForms(); n > 4*route.MaxReadings {
			t.Fatalf("Clean(%q) has %d forms, want at most %d", raw, n, 4*route.MaxReadings)
		}
		forms := path.Forms()
		for i, form := range forms {
			checkNormal(t, raw, form, i == 0)
			if slices.Contains(forms[:i], form) {
				t.Fatalf("Clean(%q) has the form %q twice, want once", raw, form)
			}
			if last := form[len(form)-1]; last <= ' ' || last == 0x85 || last == 0xa0 || strings.HasSuffix(form, "//") {
				continue // white space, and one slash of several, are dropped only from the path that came
			}
			inner := route.Clean(form)
			for _, g := range inner.Forms() {
				if !path.Ambiguous() && !slices.Contains(forms, g) {
					t.Fatalf("Clean(%q) has the form %q, which can be read as %q; it has only %q", raw, form, g, forms)
				}
			}
		}
	})
}

func checkNormal(t *testing.T, raw, form string, first bool) {
	t.Helper()
	segments := strings.Split(form, "/")
	if segments[0] != "" {
		t.Fatalf("Clean(%q) has the form %q, want a leading slash", raw, form)
	}
	for _, s := range segments[1:] {
		if first && form != "/" && (s == "" || s == "." || s == "..") {
			t.Fatalf("Clean(%q) has the form %q with a segment %q, want none", raw, form, s)
		}
	}
}
