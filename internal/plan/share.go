package plan

import (
	"math"
	"slices"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// withheldCost is a cost that every store refuses: whoever does not look whether a limit is withheld does not grant it.
const withheldCost = limit.MaxUnits + 1

// Share is what of a limit one cell grants.
type Share struct {
	Limit *limit.Limit // nil: nothing
	Why   string       // "share 1/3 of cell eu-1, epoch 7"
	// of a limit of which nothing is granted: when something is, µs since 1970; 0 where that is not known
	Until int64
}

// Part is the set that holds from a time until the next part's.
type Part struct {
	From int64 // µs since 1970; of the first before all time
	Set  *Set
}

// Shared is the set as one cell grants it: share says what of each limit. It is s itself where that is all of each.
func (s *Set) Shared(share func(*Effective) Share) *Set {
	out := s
	for i, e := range s.Limits {
		sh := share(e)
		if sh.Limit == e.Limit {
			continue
		}
		if out == s {
			out = &Set{Limits: slices.Clone(s.Limits), match: s.match}
		}
		part := *e
		part.share, part.whole = &sh, e
		if sh.Limit != nil {
			part.Limit = sh.Limit
		} else {
			out.withheld = true
		}
		out.Limits[i] = &part
	}
	return out
}

// Divided is the tenant with each of its sets in the parts that divide makes of it.
func (t *Tenant) Divided(divide func(*Set) []Part) *Tenant {
	out := *t
	out.spans = nil
	for i := range t.spans {
		end := int64(math.MaxInt64)
		if i+1 < len(t.spans) {
			end = t.spans[i+1].from
		}
		parts := divide(t.spans[i].set)
		for j, p := range parts {
			if p.From >= end || (j+1 < len(parts) && parts[j+1].From <= t.spans[i].from) {
				continue
			}
			out.spans = append(out.spans, span{max(p.From, t.spans[i].from), p.Set})
		}
	}
	return &out
}

// Withheld is a limit of which the cell grants nothing, and that is among the charges of a request; nil where there is
// none. Such a request is to be denied without asking a store.
func (s *Set) Withheld(charges []limit.Charge) *Effective {
	if !s.withheld {
		return nil
	}
	for i := range charges {
		if charges[i].Cost != withheldCost {
			continue
		}
		for _, e := range s.Limits {
			if e.Limit == charges[i].Limit {
				return e
			}
		}
	}
	return nil
}

// Withholds reports whether there is a limit of which the cell grants nothing.
func (s *Set) Withholds() bool { return s.withheld }

// Share is what the cell grants of the limit; nil where that is all of it.
func (e *Effective) Share() *Share { return e.share }

// Whole is the limit as it is in all cells together.
func (e *Effective) Whole() *limit.Limit {
	if e.whole != nil {
		return e.whole.Limit
	}
	return e.Limit
}

// FitsWhole reports whether a cost that can never fit the tier could, if the cell granted all of the limit.
func (s *Set) FitsWhole(t *limit.Tier, cost int64) bool {
	for _, e := range s.Limits {
		if e.share == nil || e.share.Limit == nil {
			continue
		}
		for i := range e.Limit.Tiers {
			if &e.Limit.Tiers[i] == t {
				return cost <= e.whole.Limit.Tiers[i].Capacity()
			}
		}
	}
	return false
}
