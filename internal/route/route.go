// Package route matches requests to path patterns: normalisation that an alias cannot escape, specificity, and an index
// that finds every matching pattern without looking at all of them.
package route

// Path is a request's path in the forms that are matched: normalised as it came, and, where it differs, percent-decoded.
// The zero Path is "/".
type Path struct{}

// Clean normalises a raw request path ("//", ".", "..", trailing slash, percent-encoding). It never fails: any bytes have
// a defined form. It allocates only where the path is not already clean.
func Clean(raw string) Path { panic("skeleton") }

// Pattern is a parsed pathPattern: literal segments, "*" and "{name}" for one segment, a last "**" for any tail.
type Pattern struct{}

// ParsePattern reads a pattern. The error names the character position.
func ParsePattern(s string) (Pattern, error) { panic("skeleton") }

// String is the pattern as written, normalised.
func (p Pattern) String() string { panic("skeleton") }

// Matches reports whether any form of the path matches.
func (p Pattern) Matches(path *Path) bool { panic("skeleton") }

// Rule is one entry of an index: methods and a pattern. No methods is any method; the zero Pattern is any path.
type Rule struct {
	Methods []string
	Pattern Pattern
	Any     bool // matches every path; Pattern is unused
}

// Index finds the rules that match a request. It is immutable and safe for concurrent use.
type Index struct{}

// NewIndex builds the index; rule i is reported as i.
func NewIndex(rules []Rule) *Index { panic("skeleton") }

// Match appends to dst the numbers of all rules that match, ascending, and returns it. It does not allocate when dst has
// room.
func (x *Index) Match(dst []int32, method string, path *Path) []int32 { panic("skeleton") }

// Compare orders two rules by specificity: negative if a is more specific than b, positive if less, 0 if neither (which,
// if they Overlap, is a tie).
func Compare(a, b Rule) int { panic("skeleton") }

// Overlap reports whether some request matches both rules.
func Overlap(a, b Rule) bool { panic("skeleton") }

// Covers reports whether every request that matches b also matches a.
func Covers(a, b Rule) bool { panic("skeleton") }
