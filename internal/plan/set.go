package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan/route"
)

// inlineMatches is the number of matches of one request that need no memory.
const inlineMatches = 64

// Set is a list of effective limits with their index by route. It is immutable and safe for concurrent use.
type Set struct {
	Limits []*Effective // in file order

	match    *matcher
	withheld bool // of one of the limits nothing is granted
}

// Effective is one limit as it applies, with where each value comes from.
type Effective struct {
	Limit *limit.Limit
	Cost  CostRule
	Group string // "" for none

	spec  *spec // as written, overrides merged in
	shape *shape
	boost *boost // nil without
	base  *Effective
	share *Share     // nil where this cell grants all of the limit
	whole *Effective // with share: the limit before it was divided
}

// shape is what of a limit names its counters; overrides cannot change it.
type shape struct {
	parts     []part
	endpoints []string // "METHOD pattern" by methodNumber; nil where the limit is not per endpoint
}

func newShape(s *spec) *shape {
	out := &shape{parts: s.parts}
	if slices.ContainsFunc(s.parts, func(p part) bool { return p.kind == perEndpoint }) {
		pattern := patternText(s.rule)
		for _, m := range methodNames {
			out.endpoints = append(out.endpoints, bounded(m+" "+pattern))
		}
		out.endpoints = append(out.endpoints, bounded(otherMethod+" "+pattern))
		if s.headAsGet() { // or HEAD would have as many units again
			out.endpoints[methodNumber("HEAD")] = out.endpoints[methodNumber("GET")]
		}
	}
	return out
}

// otherMethod stands for every method that is not standard, so that a client cannot make counters by inventing some.
const otherMethod = "OTHER"

// methodNumber is the index into methodNames, or their number for another method. "get" counts as GET, since it matches
// rules for GET.
func methodNumber(method string) int {
	switch route.CanonicalMethod(method) {
	case "GET":
		return 0
	case "HEAD":
		return 1
	case "POST":
		return 2
	case "PUT":
		return 3
	case "DELETE":
		return 4
	case "CONNECT":
		return 5
	case "OPTIONS":
		return 6
	case "TRACE":
		return 7
	case "PATCH":
		return 8
	}
	return 9
}

// Methods are the methods of the limit's match; none is any.
func (e *Effective) Methods() []string { return e.spec.rule.Methods }

// Pattern is the path pattern of the limit's match; "/**" where it is for any path.
func (e *Effective) Pattern() string { return patternText(e.spec.rule) }

// ForAll reports whether every request counts against the limit: it has no match, and no group in which another limit
// could apply in its place.
func (e *Effective) ForAll() bool {
	return e.spec.rule.Any && len(e.spec.rule.Methods) == 0 && e.Group == ""
}

// Attributes are what of a request names counters and costs. Funcs may be nil.
type Attributes struct {
	Method  string
	Path    *route.Path // nil is "/"
	Subject string      // "" is absent
	APIKey  string      // id of the key; "" is absent
	IP      string      // keyed hash of the source address; "" is absent
	Claim   func(name string) (string, bool)
	Header  func(name string) (string, bool) // the name is canonical, as in X-Query-Cost
}

var rootPath route.Path

// AppendCharges appends one charge for each limit that applies to the request (groups resolved, limits that are off
// left out) and returns the slice. A limit of which the cell grants nothing is charged what no store takes: see
// [Set.Withheld]. It does not allocate when dst has room, at most 64 limits match, the path has one reading, and no
// limit is per a list of values or per a value longer than limit.MaxNameBytes.
//
// A group is resolved in each reading of the path by itself, and what any reading gives applies: a client cannot trade
// a strict limit for a generous one by a path that can be read in two ways. A path with too many readings is charged to
// every limit of its method.
func (s *Set) AppendCharges(dst []limit.Charge, a *Attributes) []limit.Charge {
	path := a.Path
	if path == nil {
		path = &rootPath
	}
	var buf [inlineMatches]int32
	hits := s.match.index.MatchForm(buf[:0], a.Method, path, 0)
	switch {
	case path.Ambiguous():
	case path.NumForms() == 1:
		hits = s.choose(hits)
	default:
		hits = s.chooseInForms(hits, a.Method, path)
	}
	for _, h := range hits {
		e := s.Limits[s.match.order[h]]
		switch {
		case e.Limit.Mode == limit.Off:
		case e.share != nil && e.share.Limit == nil:
			if e.Limit.Mode == limit.Enforce { // a shadow has nothing to report here
				dst = append(dst, limit.Charge{Limit: e.Limit, Value: e.shape.value(a), Cost: withheldCost})
			}
		default:
			dst = append(dst, limit.Charge{Limit: e.Limit, Value: e.shape.value(a), Cost: e.Cost.of(a)})
		}
	}
	return dst
}

// choose keeps, of the matches of one reading, those that apply. Of a group these are the most specific enforcing one,
// and each shadow that is more specific: it would be the one to apply if it enforced.
func (s *Set) choose(hits []int32) []int32 {
	kept := hits[:0]
	group, decided := int32(-1), false
	for _, h := range hits {
		mode := s.Limits[s.match.order[h]].Limit.Mode
		if mode == limit.Off {
			continue
		}
		if g := s.match.group[h]; g >= 0 {
			if g != group {
				group, decided = g, false
			}
			if decided {
				continue
			}
			decided = mode == limit.Enforce
		}
		kept = append(kept, h)
	}
	return kept
}

// chooseInForms is choose for each form of the path, and the union of what they give.
func (s *Set) chooseInForms(first []int32, method string, path *route.Path) []int32 {
	all := s.choose(first)
	for i := 1; i < path.NumForms(); i++ {
		from := len(all)
		all = s.match.index.MatchForm(all, method, path, i)
		all = all[:from+len(s.choose(all[from:]))]
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// value names the counter of the request.
func (sh *shape) value(a *Attributes) limit.Value {
	switch len(sh.parts) {
	case 0:
		return limit.Value{}
	case 1:
		return sh.part(&sh.parts[0], a)
	}
	var values [maxParts]limit.Value
	for i := range sh.parts {
		values[i] = sh.part(&sh.parts[i], a)
	}
	return limit.JoinValues(values[:len(sh.parts)]...)
}

func (sh *shape) part(p *part, a *Attributes) limit.Value {
	text, ok := "", false
	switch p.kind {
	case perEndpoint:
		return limit.ValueOf(sh.endpoints[methodNumber(a.Method)])
	case perSubject:
		text, ok = a.Subject, a.Subject != ""
	case perAPIKey:
		text, ok = a.APIKey, a.APIKey != ""
	case perIP:
		text, ok = a.IP, a.IP != ""
	case perClaim:
		if a.Claim != nil {
			text, ok = a.Claim(p.claim)
		}
	}
	if !ok {
		return limit.Value{Kind: limit.ValueAbsent}
	}
	return limit.ValueOf(bounded(text))
}

// hashed begins the stored form of a value that is too long to store.
const hashed = "sha256:"

// bounded is the text itself, or its hash where it is longer than limit.MaxNameBytes. What begins like a hash is
// hashed, too, so no text can pass for another's hash: two texts share a counter only if SHA-256 collides.
func bounded(text string) string {
	if len(text) <= limit.MaxNameBytes && !strings.HasPrefix(text, hashed) {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return hashed + hex.EncodeToString(sum[:])
}
