package plan

import (
	"math"
	"slices"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// withheldCost is a cost that every store refuses. A caller that does not call Withheld therefore still denies the
// request.
const withheldCost = limit.MaxUnits + 1

// Share is the part of one limit that a cell grants.
type Share struct {
	Limit *limit.Limit // nil: the cell grants nothing of the limit
	Why   string       // for people, as in "share 1/3 of cell eu-1, epoch 7"
	Until int64        // if Limit is nil: when the cell grants something, in µs since 1970; 0: unknown
}

// Part is the set that holds from a time until the time of the next part.
type Part struct {
	From int64 // µs since 1970; the first part holds before its From too
	Set  *Set
}

// WithShares returns the set as one cell grants it. share returns the cell's part of each limit. If the cell grants
// all of every limit, WithShares returns s itself.
func (s *Set) WithShares(share func(*Effective) Share) *Set {
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

// WithParts returns the tenant with each of its sets replaced by the parts that divide makes of the set.
func (t *Tenant) WithParts(divide func(*Set) []Part) *Tenant {
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

// Withheld returns a limit that is among the charges of a request and of which the cell grants nothing, or nil if
// there is none. A request with such a limit is denied without asking a store.
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

// HasWithheld reports whether there is a limit of which the cell grants nothing.
func (s *Set) HasWithheld() bool { return s.withheld }

// Share returns the cell's part of the limit; nil if the cell grants all of it.
func (e *Effective) Share() *Share { return e.share }

// Whole returns the limit of all cells together.
func (e *Effective) Whole() *limit.Limit {
	if e.whole != nil {
		return e.whole.Limit
	}
	return e.Limit
}

// FitsWhole reports whether a cost that is too large for the cell's part of a tier fits the whole tier.
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
