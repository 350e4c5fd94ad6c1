package route

import (
	"cmp"
	"slices"
)

// Ranks of segments, from the most specific. They extend the kinds of segments by the end of a pattern: a literal or
// wildcard is more specific than the end of the pattern, and "**" is less specific.
const (
	rankLiteral = iota
	rankAnyCase
	rankWildcard
	rankEnd
	rankTail
	rankAny
)

// Compare orders two rules by how specific they are: negative if a is more specific than b, positive if less, 0 if
// neither is (if the rules also Overlap, this is a tie). Segments are compared from the left: a literal is more
// specific than a literal that matches in any case, which is more specific than "{name}" and "*", which are more
// specific than "**". A rule for any path is least specific. For equal paths, a list of methods is more specific than
// any method. The order is total; for two patterns that no request can both match, the result has no further meaning.
func Compare(a, b Rule) int {
	for i := 0; ; i++ {
		rankA, rankB := rank(&a, i), rank(&b, i)
		if c := cmp.Compare(rankA, rankB); c != 0 {
			return c
		}
		if rankA >= rankEnd {
			break
		}
	}
	return cmp.Compare(min(1, len(b.Methods)), min(1, len(a.Methods)))
}

func rank(r *Rule, i int) int {
	if r.anyPath() {
		return rankAny
	}
	if i >= len(r.Pattern.segments) {
		return rankEnd
	}
	switch r.Pattern.segments[i].kind {
	case literal:
		return rankLiteral
	case anyCaseLiteral:
		return rankAnyCase
	case wildcard:
		return rankWildcard
	default:
		return rankTail
	}
}

// Overlap reports whether some request matches both rules with the same form of its path. (With different forms of an
// odd path, nearly any two rules can match one request; see [Index.MatchForm].)
func Overlap(a, b Rule) bool {
	return overlapMethods(a.Methods, b.Methods) && overlapPaths(&a, &b)
}

func overlapPaths(a, b *Rule) bool {
	for i := 0; ; i++ {
		rankA, rankB := rank(a, i), rank(b, i)
		switch {
		case max(rankA, rankB) >= rankTail:
			return true
		case rankA == rankEnd || rankB == rankEnd:
			return rankA == rankB
		case rankA <= rankAnyCase && rankB <= rankAnyCase && !overlapLiterals(&a.Pattern.segments[i],
			&b.Pattern.segments[i]):
			return false
		}
	}
}

// overlapLiterals reports whether some segment of a path matches both literals.
func overlapLiterals(a, b *segment) bool {
	if a.kind == anyCaseLiteral {
		return b.matches(a.text) || a.matches(b.text)
	}
	return b.matches(a.text)
}

func overlapMethods(a, b []string) bool {
	return len(a) == 0 || len(b) == 0 || slices.ContainsFunc(a, func(m string) bool { return hasMethod(b, m) })
}

// Covers reports whether every request that matches b also matches a.
func Covers(a, b Rule) bool {
	return coversMethods(a.Methods, b.Methods) && coversPaths(&a, &b)
}

func coversPaths(a, b *Rule) bool {
	for i := 0; ; i++ {
		rankA, rankB := rank(a, i), rank(b, i)
		switch {
		case rankA >= rankTail:
			return true
		case rankB > rankA: // b has more segments than a, or is wider in this one
			return false
		case rankA == rankEnd:
			return rankB == rankEnd
		case rankA <= rankAnyCase && !a.Pattern.segments[i].matches(b.Pattern.segments[i].text):
			return false
		}
	}
}

func coversMethods(a, b []string) bool {
	if len(a) == 0 || len(b) == 0 {
		return len(a) == 0
	}
	return !slices.ContainsFunc(b, func(m string) bool { return !hasMethod(a, m) })
}

func hasMethod(methods []string, method string) bool {
	method = CanonicalMethod(method)
	return slices.ContainsFunc(methods, func(m string) bool { return CanonicalMethod(m) == method })
}
