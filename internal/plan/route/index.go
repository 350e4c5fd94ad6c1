package route

import (
	"slices"
	"strings"
)

// Rule is one entry of an index: methods and a pattern. No methods means any method; the zero Pattern means any path.
// Methods are compared in their form of [CanonicalMethod]. GET does not imply HEAD.
type Rule struct {
	Methods []string
	Pattern Pattern
	Any     bool // matches every path; Pattern is then ignored
}

func (r *Rule) anyPath() bool { return r.Any || r.Pattern.IsZero() }

// Index finds the rules that match a request. It is immutable and safe for concurrent use.
//
// It is a tree over the segments of the patterns. Looking up a form visits each node at most once, and only nodes
// whose patterns agree with the path so far, however many rules there are.
type Index struct {
	root    node
	anyPath []entry // rules that match every path
	all     []entry // every rule, for ambiguous paths
	methods map[string]uint64
}

type node struct {
	literals map[string]*node
	anyCase  map[string]*node // literals that match in any case, keyed by foldCase
	wildcard *node
	here     []entry // patterns that end here
	tail     []entry // patterns that end with "**" here
}

// entry is a rule in a list of a node or of the index. Every list is in ascending order of the rules.
type entry struct {
	methods uint64   // bits of Index.methods; all bits: any method
	more    []string // methods beyond the 63 that have a bit
	rule    int32
}

const (
	anyMethod    = ^uint64(0)
	otherMethod  = uint64(1) << 63 // a method that no rule names; only rules for any method have this bit
	bitsOfMethod = 63
)

// NewIndex builds an index. Match reports rules[i] as i.
func NewIndex(rules []Rule) *Index {
	x := &Index{methods: map[string]uint64{}}
	for i := range rules {
		r := &rules[i]
		e := x.entry(r.Methods, int32(i))
		x.all = append(x.all, e)
		if r.anyPath() {
			x.anyPath = append(x.anyPath, e)
			continue
		}
		x.root.insert(r.Pattern.segments, e)
	}
	return x
}

func (x *Index) entry(methods []string, rule int32) entry {
	e := entry{rule: rule}
	if len(methods) == 0 {
		e.methods = anyMethod
	}
	for _, m := range methods {
		m = CanonicalMethod(m)
		if x.methods[m] == 0 && len(x.methods) < bitsOfMethod {
			x.methods[m] = 1 << len(x.methods)
		}
		if bit := x.methods[m]; bit != 0 {
			e.methods |= bit
		} else {
			e.more = append(e.more, m)
		}
	}
	return e
}

func (n *node) insert(segments []segment, e entry) {
	for _, s := range segments {
		if s.kind == tail {
			n.tail = append(n.tail, e)
			return
		}
		n = n.child(s)
	}
	n.here = append(n.here, e)
}

func (n *node) child(s segment) *node {
	if s.kind == wildcard {
		if n.wildcard == nil {
			n.wildcard = &node{}
		}
		return n.wildcard
	}
	literals, text := &n.literals, s.text
	if s.kind == anyCaseLiteral {
		literals, text = &n.anyCase, s.folded
	}
	if *literals == nil {
		*literals = map[string]*node{}
	}
	if (*literals)[text] == nil {
		(*literals)[text] = &node{}
	}
	return (*literals)[text]
}

// Match appends to dst the indexes of all rules that match, ascending and without duplicates, and returns dst. It does
// not allocate if dst has room (a rule may need a place for each form that it matches) and the method is in upper
// case.
func (x *Index) Match(dst []int32, method string, path *Path) []int32 {
	start, m := len(dst), x.method(method)
	if path.ambiguous {
		return m.appendTo(dst, x.all)
	}
	dst = m.appendTo(dst, x.anyPath)
	for i := range path.NumForms() {
		dst = m.walk(dst, &x.root, path.segments(i), true)
	}
	return ascending(dst, start)
}

// MatchesEveryForm reports whether each form of the path matches a rule; different forms may match different rules. A
// list of allowed requests must use it and not Match, since the server behind a gateway may read the path in any of
// its forms. The forms of an ambiguous path are not all known, so only a rule for any path matches it.
//
// One trailing slash is ignored: "/a/1/" needs a rule for "/a/1" alone. Most servers take both for the same, and those
// that do not run another handler with nothing but an empty last segment. Any other empty segment must be declared.
//
// A form with escapes also matches if its decoded segments do, since the literals of patterns are decoded. Otherwise a
// rule for "/café" would match no path that a client can send, for "/caf%C3%A9" is one of its forms.
func (x *Index) MatchesEveryForm(method string, path *Path) bool {
	var buf [inlineRules]int32
	m := x.method(method)
	if len(m.appendTo(buf[:0], x.anyPath)) > 0 {
		return true
	}
	if path.ambiguous {
		return false
	}
	for i := range path.NumForms() {
		form := path.segments(i)
		if slashes := len(form) - len(strings.TrimRight(form, "/")); slashes == 1 {
			continue // the same form without the slash is there, too
		}
		if len(m.walk(buf[:0], &x.root, form, true)) > 0 {
			continue
		}
		decoded, escaped := decode(nil, form, func(c byte) bool { return c != '/' })
		if !escaped || len(m.walk(buf[:0], &x.root, string(decoded), true)) == 0 {
			return false
		}
	}
	return true
}

// inlineRules is the largest number of matching rules for which MatchesEveryForm does not allocate.
const inlineRules = 16

// MatchForm is Match for form i of the path only. Rules that match the same form overlap, so that one of them is the
// most specific; rules that match different forms of a path need not overlap. Of a form with empty segments, only rules
// count that need one of them for a "*". All other rules match the form in which slashes are merged, too, where more
// specific ones may displace them: "/product/1/" is not to count for "/**" if "/product/*" displaces it. For an
// ambiguous path MatchForm returns every rule that has the method, as Match does: see [Path.Ambiguous].
func (x *Index) MatchForm(dst []int32, method string, path *Path, i int) []int32 {
	start, m := len(dst), x.method(method)
	if path.ambiguous {
		return m.appendTo(dst, x.all)
	}
	form := path.segments(i)
	every := !hasEmpty(form)
	if every {
		dst = m.appendTo(dst, x.anyPath)
	}
	return ascending(m.walk(dst, &x.root, form, every), start)
}

// ascending sorts the elements from start on and drops duplicates.
func ascending(dst []int32, start int) []int32 {
	added := dst[start:]
	for i := 1; i < len(added); i++ {
		if added[i] <= added[i-1] {
			slices.Sort(added)
			return dst[:start+len(slices.Compact(added))]
		}
	}
	return dst
}

// requestMethod is the method of a request in the form that an index compares.
type requestMethod struct {
	bit  uint64
	name string
}

func (x *Index) method(name string) requestMethod {
	name = CanonicalMethod(name)
	if bit := x.methods[name]; bit != 0 {
		return requestMethod{bit, name}
	}
	return requestMethod{otherMethod, name}
}

func (m requestMethod) appendTo(dst []int32, entries []entry) []int32 {
	for i := range entries {
		if e := &entries[i]; e.methods&m.bit != 0 || len(e.more) > 0 && slices.Contains(e.more, m.name) {
			dst = append(dst, e.rule)
		}
	}
	return dst
}

// walk appends the matching rules below n; unless every is set, only those in which a wildcard stands for an empty
// segment. It recurses only if several kinds of segments continue at a node, and at most as deep as a pattern is long.
func (m requestMethod) walk(dst []int32, n *node, rest string, every bool) []int32 {
	for n != nil {
		if every {
			dst = m.appendTo(dst, n.tail)
		}
		if rest == "" {
			if every {
				dst = m.appendTo(dst, n.here)
			}
			return dst
		}
		var s string
		s, rest = nextSegment(rest)
		if s == "" { // no literal is empty
			n, every = n.wildcard, true
			continue
		}
		if next := n.inAnyCase(s); next != nil {
			dst = m.walk(dst, next, rest, every)
		}
		next := n.literals[s]
		if next == nil {
			n = n.wildcard
			continue
		}
		if n.wildcard != nil {
			dst = m.walk(dst, n.wildcard, rest, every)
		}
		n = next
	}
	return dst
}

// inAnyCase returns the node below n of the literal that equals s regardless of case, or nil.
func (n *node) inAnyCase(s string) *node {
	if len(n.anyCase) == 0 {
		return nil
	}
	var buf [inlineFold]byte
	return n.anyCase[string(appendFold(buf[:0], s))]
}

// inlineFold is the largest length of a segment, in bytes, that is folded without an allocation.
const inlineFold = 64
