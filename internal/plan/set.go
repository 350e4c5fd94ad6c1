package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan/route"
)

// inlineMatches is the largest number of matches of one request that need no allocation.
const inlineMatches = 64

// Set is a list of effective limits and their index by route. It is immutable and safe for concurrent use.
type Set struct {
	Limits []*Effective // in file order

	match    *matcher
	withheld bool // this cell grants nothing of at least one limit
}

// Effective is one limit as it applies to a tenant, and the place that each of its settings comes from.
type Effective struct {
	Limit *limit.Limit
	Cost  CostRule
	Group string // "": no group

	spec  *spec // as written, with overrides merged in
	shape *shape
	boost *boost     // nil: no boost
	base  *Effective // with boost: the limit before it was boosted
	share *Share     // nil if this cell grants all of the limit
	whole *Effective // with share: the limit before it was divided
}

// shape is the part of a limit that names its counters. Overrides cannot change it.
type shape struct {
	parts     []part
	endpoints []string // "METHOD pattern", indexed by methodNumber; nil if the limit is not per endpoint
}

func newShape(s *spec) *shape {
	out := &shape{parts: s.per.v.parts}
	if slices.ContainsFunc(out.parts, func(p part) bool { return p.kind == perEndpoint }) {
		pattern := patternText(s.rule)
		for _, m := range methodNames {
			out.endpoints = append(out.endpoints, bounded(m+" "+pattern))
		}
		out.endpoints = append(out.endpoints, bounded(otherMethod+" "+pattern))
		if s.impliesHead.v && s.lacksHead() { // otherwise HEAD and GET would have the limit once each
			out.endpoints[methodNumber("HEAD")] = out.endpoints[methodNumber("GET")]
		}
	}
	return out
}

// otherMethod stands for every method that is not standard. A client therefore cannot get new counters by inventing
// methods.
const otherMethod = "OTHER"

// methodNumber returns the index of the method in methodNames, or len(methodNames) for any other method. "get" counts
// as GET, since it matches rules for GET.
func methodNumber(method string) int {
	if i := slices.Index(methodNames, route.CanonicalMethod(method)); i >= 0 {
		return i
	}
	return len(methodNames)
}

// Methods returns the methods of the limit's match; none means any method.
func (e *Effective) Methods() []string { return e.spec.rule.Methods }

// Pattern returns the path pattern of the limit's match; "/**" if the limit is for any path.
func (e *Effective) Pattern() string { return patternText(e.spec.rule) }

// Attributes are the parts of a request that decide which counters it is charged to and what it costs. The functions
// may be nil.
type Attributes struct {
	Method  string
	Path    *route.Path // nil: "/"
	Subject string      // "": absent
	APIKey  string      // id of the key; "": absent
	IP      string      // keyed hash of the source address; "": absent
	Claim   func(name string) (string, bool)
	Header  func(name string) (string, bool) // name is in canonical form, as in X-Query-Cost

	// Cost is what the request spends of each limit that counts requests; 0: what the limit's plan says. Costs is what
	// it spends by unit, which may include requests instead. Of a unit that is not named, each limit's plan says it.
	Cost  int64
	Costs map[string]int64
}

var rootPath route.Path

// AppendCharges appends one charge for each limit that applies to the request, and returns the slice. It resolves
// groups, and leaves out limits that are off and limits of which the request spends 0. If this cell grants nothing of a
// limit, the cost of its charge is one that no store admits: see [Set.Withheld]. AppendCharges does not allocate if dst
// has room, at most 64 limits match, the path has one reading, and no limit is per a list of values or per a value
// longer than limit.MaxNameBytes.
//
// A group is resolved for each reading of the path by itself, and every limit that results from any reading applies. A
// client therefore cannot exchange a strict limit for a generous one with a path that can be read in two ways. A path
// with too many readings is charged to every limit of its method.
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
		if e.Limit.Mode == limit.Off {
			continue
		}
		cost := e.costOf(a)
		switch {
		case cost == 0:
		case e.share != nil && e.share.Limit == nil:
			if e.Limit.Mode == limit.Enforce { // a shadow limit has nothing to report here
				dst = append(dst, limit.Charge{Limit: e.Limit, Value: e.shape.value(a), Cost: withheldCost})
			}
		default:
			dst = append(dst, limit.Charge{Limit: e.Limit, Value: e.shape.value(a), Cost: cost})
		}
	}
	return dst
}

// UnitCosts returns a cost of 1 in the unit of each limit: with it, a request is charged to every limit that applies.
func (s *Set) UnitCosts() map[string]int64 {
	costs := make(map[string]int64, 1)
	for _, e := range s.Limits {
		costs[e.Limit.Unit] = 1
	}
	return costs
}

// choose keeps the matches of one reading of the path that apply. Of each group it keeps the most specific limit that
// enforces, and every shadow limit that is more specific than that one, since it would apply if it enforced.
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

// chooseInForms returns the union of what choose keeps for each form of the path. first are the matches of form 0.
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

// value returns the value that names the counter of the request.
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

// hashed is the prefix of the stored form of a value that is too long to store.
const hashed = "sha256:"

// bounded returns the text itself, or its hash if the text is longer than limit.MaxNameBytes. A text that begins with
// the prefix of a hash is hashed too, so that no text can equal the hash of another: two texts share a counter only if
// SHA-256 collides.
func bounded(text string) string {
	if len(text) <= limit.MaxNameBytes && !strings.HasPrefix(text, hashed) {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return hashed + hex.EncodeToString(sum[:])
}
