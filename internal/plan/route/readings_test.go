package route_test

import (
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/plan/route"

	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

var (
	slashes   = regexp.MustCompile(`/+`)
	anyEscape = regexp.MustCompile(`%[0-9a-fA-F]{2}`)
	notSlash  = regexp.MustCompile(`%([013-9a-fA-F][0-9a-fA-F]|2[0-9a-eA-E])`)
	slashOnly = regexp.MustCompile(`%(2[fF]|5[cC])`)
	params    = regexp.MustCompile(`(?s);[^/]*`)
	authority = regexp.MustCompile(`(?s)^//+[^/]*/?`)
)

// servers are changes that proxies and servers make to a path. Each is written in another way than in the package.
var servers = []func(string) string{
	0: func(s string) string { return slashes.ReplaceAllLiteralString(s, "/") },
	1: resolveDots,
	2: func(s string) string { return unescape(s, anyEscape) },
	3: func(s string) string { // every escape but a slash: split first, then decode each segment
		return unescape(s, notSlash)
	},
	4:  func(s string) string { return unescape(s, slashOnly) },
	5:  func(s string) string { return params.ReplaceAllLiteralString(s, "") },
	6:  func(s string) string { return strings.Join(strings.Split(s, `\`), "/") },
	7:  func(s string) string { return strings.SplitN(s, "?", 2)[0] },
	8:  func(s string) string { return strings.SplitN(s, "#", 2)[0] },
	9:  func(s string) string { return strings.SplitN(s, "\x00", 2)[0] },
	10: func(s string) string { return authority.ReplaceAllLiteralString(s, "/") },
	11: func(s string) string { return strings.SplitN(s, ";", 2)[0] },
	12: func(s string) string { return strings.TrimSuffix(s, "\n") },
	13: func(s string) string { return strings.ToValidUTF8(s, "") },
	14: func(s string) string { // Go's own mux
		if clean := path.Clean(s); clean == "/" || !strings.HasSuffix(s, "/") {
			return clean
		}
		return path.Clean(s) + "/"
	},
}

func unescape(s string, which *regexp.Regexp) string {
	return which.ReplaceAllStringFunc(s, func(escape string) string {
		decoded, err := url.PathUnescape(escape)
		if err != nil {
			panic(err)
		}
		return decoded
	})
}

// resolveDots is remove_dot_segments of RFC 3986, on a list of segments.
func resolveDots(s string) string {
	in := strings.Split(s, "/")[1:]
	var out []string
	for i, segment := range in {
		if segment == ".." {
			out = out[:max(0, len(out)-1)]
		}
		if segment != "." && segment != ".." {
			out = append(out, segment)
		} else if i == len(in)-1 {
			out = append(out, "")
		}
	}
	return "/" + strings.Join(out, "/")
}

// plainForm returns the path that a simple router sees after it has merged slashes.
func plainForm(s string) string {
	return path.Clean("/" + s)
}

// base is a base path that a proxy puts in front of a path.
const base = "/base"

// checkBase fails unless what a server reads behind a base path is the base path followed by a form of the path, or
// the path is reported as climbing.
func checkBase(t *testing.T, raw string, cleaned *route.Path, read string) {
	t.Helper()
	below, ok := strings.CutPrefix(plainForm(read), base)
	if below == "" {
		below = "/"
	}
	if (!ok || !slices.Contains(cleaned.Forms(), below)) && !cleaned.Climbs() {
		t.Fatalf("%q behind %s can be read as %q, but is not reported as climbing; its forms are only %q",
			raw, base, plainForm(read), cleaned.Forms())
	}
}

// FuzzChain guarantees the promise of the package: whatever chain of proxies and servers reads the path, and in
// whatever order they decode, resolve, merge, strip and cut, the last one sees a form that is matched. A path that
// fails lets a client avoid limits.
func FuzzChain(f *testing.F) {
	f.Add("/product//../1", []byte{1, 0})
	f.Add("/%252e%252e;x/%70roduct/a%2Fb?c#d", []byte{2, 5, 2, 1})
	f.Add(`\\h\a;b/..%3Bc/..%5c..%2fd%00e`, []byte{6, 10, 3, 1, 5, 4, 9})
	f.Add("//a%2f..//;/../b", []byte{4, 5, 1, 0, 1})
	f.Add("/a//..;/b%25%30a%ff/", []byte{11, 2, 2, 13, 12, 0})
	f.Fuzz(func(t *testing.T, raw string, chain []byte) {
		cleaned := route.Clean(raw)
		if cleaned.Ambiguous() || len(chain) > 20 {
			return
		}
		s := raw
		if !strings.HasPrefix(s, "/") {
			s = "/" + s
		}
		behind := base + s
		var steps []int
		for _, c := range chain {
			steps = append(steps, int(c)%len(servers))
			s, behind = servers[steps[len(steps)-1]](s), servers[steps[len(steps)-1]](behind)
		}
		checkBase(t, raw, &cleaned, behind)
		for _, want := range []string{plainForm(s), s} {
			if !slices.Contains(cleaned.Forms(), want) {
				t.Fatalf("%q through %v is %q, but its forms are only %q", raw, steps, want, cleaned.Forms())
			}
		}
	})
}

// chained returns the results of every chain of up to three servers.
func chained(raw string) []string {
	reached := []string{raw}
	for range 3 {
		for _, s := range reached {
			for _, serve := range servers {
				if s := serve(s); !slices.Contains(reached, s) {
					reached = append(reached, s)
				}
			}
		}
	}
	return reached
}

// TestChainsExhaustively guarantees the same as FuzzChain for every chain of up to three servers and every path of a
// few difficult parts: small cases that a fuzzer may not reach.
func TestChainsExhaustively(t *testing.T) {
	soak.SkipUnderRace(t)
	pieces := []string{"/", "a", "..", "%2e%2e", "%2F", ";", `\`, "%25"}
	paths := []string{"/"}
	for first := 0; len(paths) < 4000; {
		next := len(paths)
		for _, p := range paths[first:next] {
			for _, piece := range pieces {
				paths = append(paths, p+piece)
			}
		}
		first = next
	}
	if testing.Short() {
		paths = paths[:2000]
	}
	for _, raw := range paths {
		cleaned := route.Clean(raw)
		forms := cleaned.Forms()
		for _, s := range chained(base + raw) {
			if !cleaned.Ambiguous() {
				checkBase(t, raw, &cleaned, s)
			}
		}
		for _, s := range chained(raw) {
			for _, want := range []string{plainForm(s), s} {
				if !slices.Contains(forms, want) && !cleaned.Ambiguous() {
					t.Fatalf("%q can be read as %q, but its forms are only %q", raw, want, forms)
				}
			}
		}
	}
}

// TestEachRewriteIsNeeded guarantees that TestAliases fails if any one of the rewrites is missing. It also shows that
// two forms, undecoded and decoded, are not enough.
func TestEachRewriteIsNeeded(t *testing.T) {
	escaped := func() (names []string) {
		for _, tt := range aliases {
			p, cleaned := pattern(t, tt.pattern), route.Clean(tt.raw)
			if !p.Matches(&cleaned) {
				names = append(names, tt.name)
			}
		}
		return names
	}
	for i := range route.NumRewrites {
		route.WithoutRewrite(i, func() {
			if names := escaped(); len(names) == 0 {
				t.Errorf("without rewrite %d every alias is still found, so the table does not test it", i)
			}
		})
	}
	if names := escaped(); len(names) != 0 {
		t.Errorf("with all rewrites, the aliases %q are not found", names)
	}

	var missed []string
	for _, tt := range aliases {
		decoded, err := url.PathUnescape(tt.raw)
		if err != nil {
			decoded = tt.raw
		}
		p := pattern(t, tt.pattern)
		if !matchesAsShown(p, plainForm(tt.raw)) && !matchesAsShown(p, plainForm(decoded)) {
			missed = append(missed, tt.name)
		}
	}
	if len(missed) < 10 {
		t.Errorf("two forms miss only the aliases %q: the aliases are too simple, or the other readings are not "+
			"needed", missed)
	}
}

// matchesAsShown reports whether the pattern matches the only form of a path without further readings.
func matchesAsShown(p route.Pattern, s string) bool {
	cleaned := route.Clean(s)
	return len(route.NewIndex([]route.Rule{{Pattern: p}}).MatchForm(nil, "GET", &cleaned, 0)) == 1
}
