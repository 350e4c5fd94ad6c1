package route_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/plan/route"
)

var (
	longest      = "/" + strings.Repeat("a", route.MaxPatternBytes-1)
	mostSegments = strings.Repeat("/a", route.MaxPatternSegments)
)

// TestParsePattern guarantees the normalised spelling, which names the counter of a limit per endpoint: two spellings
// of one pattern must have the same counter.
func TestParsePattern(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"root", "/", "/"},
		{"any", "/**", "/**"},
		{"literals", "/v1/product", "/v1/product"},
		{"star", "/product/*", "/product/*"},
		{"name", "/v1/organizations/{orgId}/product/*", "/v1/organizations/{orgId}/product/*"},
		{"name with marks", "/{org.id_2-x}", "/{org.id_2-x}"},
		{"tail", "/product/**", "/product/**"},
		{"trailing slash", "/product/*/", "/product/*"},
		{"trailing slash after the tail", "/product/**/", "/product/**"},
		{"encoded letter", "/%70roduct", "/product"},
		{"encoded space", "/a%20b", "/a%20b"},
		{"encoded percent", "/100%25", "/100%25"},
		{"lower-case hex", "/a%3fb", "/a%3Fb"},
		{"encoded star and braces", "/%2a/%7bid%7d", "/%2A/%7Bid%7D"},
		{"encoded backslash", "/a%5cb", "/a%5Cb"},
		{"UTF-8", "/café/*", "/café/*"},
		{"encoded UTF-8", "/caf%C3%A9", "/café"},
		{"encoded invalid UTF-8", "/%ff", "/%FF"},
		{"encoded zero-width space", "/%E2%80%8B", "/%E2%80%8B"},
		{"dots in a name", "/.well-known/..x/...", "/.well-known/..x/..."},
		{"a parameter is a literal", "/a;v=1", "/a;v=1"},
		{"longest", longest, longest},
		{"most segments", strings.Repeat("/a", route.MaxPatternSegments) + "/", mostSegments},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := route.ParsePattern(tt.in)
			if err != nil || p.String() != tt.want || p.IsZero() {
				t.Errorf("ParsePattern(%q) = %q, zero %t, %v; want %q", tt.in, p, p.IsZero(), err, tt.want)
			}
		})
	}
}

// TestParsePatternErrors guarantees that a mistake is reported with its place when the file is loaded: a limit with a
// pattern that never matches would silently never apply.
func TestParsePatternErrors(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		position int
		message  string
	}{
		{"empty", "", 1, "begins with a slash"},
		{"no leading slash", "product/*", 1, "begins with a slash"},
		{"star alone", "*", 1, "begins with a slash"},
		{"tail not last", "/a/**/b", 4, "last segment"},
		{"tail twice", "/**/**", 2, "last segment"},
		{"unclosed brace", "/a/{id", 4, "not closed"},
		{"brace over a slash", "/{a/b}", 2, "not closed"},
		{"empty name", "/a/{}", 4, "no name"},
		{"name and more", "/a/{id}.json", 8, "whole segment"},
		{"more and name", "/a/x{id}", 5, "whole one"},
		{"closing brace alone", "/a}", 3, "whole one"},
		{"greedy name", "/a/{proxy+}", 10, "/** is any tail"},
		{"name with a space", "/{a%20b}", 4, "in a name"},
		{"nested braces", "/{a{b}}", 7, "whole segment"},
		{"brace in a name", "/{a{b}", 4, "in a name"},
		{"star in a name", "/{*}", 3, "in a name"},
		{"duplicate name", "/{id}/x/{id}", 9, "twice"},
		{"star inside", "/a/b*", 5, "inside a longer segment"},
		{"three stars", "/***", 2, "inside a longer segment"},
		{"empty segment", "/a//b", 4, "empty segment"},
		{"only slashes", "//", 2, "empty segment"},
		{"two trailing slashes", "/a//", 4, "empty segment"},
		{"dot", "/a/./b", 4, "resolved before matching"},
		{"dot dot", "/a/..", 4, "resolved before matching"},
		{"encoded dot dot", "/a/%2e%2E/b", 4, "resolved before matching"},
		{"query", "/a?b=c", 3, "no query"},
		{"fragment", "/a#b", 3, "no fragment"},
		{"space", "/a b", 3, "%20"},
		{"backslash", `/a\b`, 3, "%5C"},
		{"line break", "/a\nb", 3, "not a printable character"},
		{"NUL", "/a\x00", 3, "not a printable character"},
		{"zero-width space", "/a\u200b", 3, "not a printable character"},
		{"encoded control character", "/ab%0A", 4, "control character"},
		{"encoded NUL", "/%00", 2, "control character"},
		{"encoded slash", "/a%2Fb", 3, "encoded slash"},
		{"invalid escape", "/a/100%", 7, "hexadecimal"},
		{"invalid escape digits", "/%zz", 2, "hexadecimal"},
		{"invalid UTF-8", "/a\xff", 3, "not valid UTF-8"},
		{"characters, not bytes", "/äöü/é*", 7, "inside a longer segment"},
		{"too long", longest + "a", route.MaxPatternBytes + 1, "longer than 1024 bytes"},
		{"too many segments", mostSegments + "/a", 2*route.MaxPatternSegments + 2, "more than 64"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := route.ParsePattern(tt.in)
			var syntax *route.SyntaxError
			if !errors.As(err, &syntax) {
				t.Fatalf("ParsePattern(%q) = %q, %v; want a SyntaxError", tt.in, p, err)
			}
			if syntax.Position != tt.position || !strings.Contains(syntax.Message, tt.message) ||
				syntax.Pattern != tt.in {
				t.Errorf("ParsePattern(%q): %v; want character %d and %q", tt.in, err, tt.position, tt.message)
			}
			if len(err.Error()) > 300 {
				t.Errorf("ParsePattern(%.40q…): error of %d bytes, want a readable one", tt.in, len(err.Error()))
			}
		})
	}
}

// TestMatches guarantees the meaning of patterns. (TestAliases covers other spellings of paths.)
func TestMatches(t *testing.T) {
	for _, tt := range []struct {
		pattern string
		yes, no []string
	}{
		{"/", []string{"/", "", "//", "/a/.."}, []string{"/a", "/%20"}},
		{"/**", []string{"/", "/a", "/a/b/c"}, nil},
		{"/*", []string{"/a", "/a/", "/"}, []string{"/a/b"}},
		{"/product/*", []string{"/product/1", "/product/2", "/product/", "/product//"},
			[]string{"/product", "/product/1/x", "/P/1"}},
		{"/product/*/reviews", []string{"/product/1/reviews", "/product//reviews/"},
			[]string{"/product/reviews", "/product/reviews/", "/product/1/"}},
		{"/product/**", []string{"/product", "/product/", "/product/1", "/product/1/2"}, []string{"/products", "/"}},
		{"/{a}/x", []string{"/1/x", "/x/x"}, []string{"/x", "/x/y", "/1/x/x"}},
		{"/*/x/**", []string{"/1/x", "/1/x/y/z"}, []string{"/1", "/x", "/1/y"}},
		{"/product", []string{"/product", "/product/", "/product?a"}, []string{"/Product", "/product/1", "/produc",
			"/producta"}},
	} {
		p := pattern(t, tt.pattern)
		x := route.NewIndex([]route.Rule{{Pattern: p}})
		check := func(raw string, want bool) {
			path := route.Clean(raw)
			if got := p.Matches(&path); got != want {
				t.Errorf("%s matches %q: %t, want %t", p, raw, got, want)
			}
			if got := len(x.Match(nil, "GET", &path)) == 1; got != want {
				t.Errorf("index of %s matches %q: %t, want %t", p, raw, got, want)
			}
		}
		for _, raw := range tt.yes {
			check(raw, true)
		}
		for _, raw := range tt.no {
			check(raw, false)
		}
	}
	var zero route.Pattern
	if path := route.Clean("/a/b"); !zero.IsZero() || zero.String() != "" || !zero.Matches(&path) {
		t.Errorf("zero Pattern: zero %t, String %q, matches %t; want true, \"\", true",
			zero.IsZero(), zero, zero.Matches(&path))
	}
}

// FuzzPattern guarantees that the printed pattern (in explain, and in names of counters) is the pattern that is
// enforced, and that a pattern of literals matches its own spelling as a path, so that every literal can be matched.
func FuzzPattern(f *testing.F) {
	for _, s := range []string{"/", "/a/*/{b}/**", "/%2A%7B%25%5c%3F/é%ff", "/a;b/%2525", "/{a", "//", "/a%2fb"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := route.ParsePattern(s)
		if err != nil {
			var syntax *route.SyntaxError
			if !errors.As(err, &syntax) || syntax.Position < 1 || syntax.Position > len([]rune(s))+1 {
				t.Fatalf("ParsePattern(%q): %v; want a SyntaxError with a position inside", s, err)
			}
			return
		}
		again, err := route.ParsePattern(p.String())
		if err != nil || again.String() != p.String() {
			t.Fatalf("ParsePattern(%q) prints %q, which parses as %q, %v", s, p, again, err)
		}
		if a, b := (route.Rule{Pattern: p}), (route.Rule{Pattern: again}); !route.Covers(a, b) || !route.Covers(b, a) {
			t.Fatalf("ParsePattern(%q) prints %q, which matches other paths", s, p)
		}
		path := route.Clean(p.String())
		if !p.Matches(&path) {
			t.Fatalf("pattern %q does not match its own spelling as a path: forms %q", p, path.Forms())
		}
	})
}
