package route

import (
	"cmp"
	"slices"
)

// Places in the order of specificity, from the most specific. They extend the kinds of segments: where one pattern has
// ended, the other is longer, and its literal or wildcard says more; only "**" says less than the end does.
const (
	rankLiteral = iota
	rankAnyCase
	rankWildcard
	rankEnd
	rankTail
	rankAny
)

// Compare orders two rules by specificity: negative if a is more specific than b, positive if less, 0 if neither
// (which, if they Overlap, is a tie). Segment by segment from the left, a literal beats one that matches in any case,
// which beats "{name}" and "*", which beat "**"; a rule for any path is least; then a list of methods beats any method.
// It is a total order of ranks: it also orders patterns that no request can both match, and there the sign means
// nothing more.
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

// Overlap reports whether some request matches both rules, by one and the same form of its path. (Through different
// forms of an odd path, nearly any two rules can meet; see [Index.MatchForm].)
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
		case rankB > rankA: // b goes on where a does not, or is wider here
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
