package plan

import (
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan/route"
)

// AcceptedBy asks accepts whether a store can decide over the limits that may apply to one request. accepts gets all
// limits of the set, and the largest groups of them that one reading of a path can match. A path with several readings
// may be charged to more limits; if the store cannot decide over those, it reports that when it gets the request.
func (s *Set) AcceptedBy(accepts func(all []*limit.Limit, together ...[]*limit.Limit) error) error {
	var on []*Effective
	for _, e := range s.Limits {
		if e != nil && e.Limit.Mode != limit.Off {
			on = append(on, e)
		}
	}
	all := limitsOf(on)
	if accepts(all, all) == nil {
		return nil
	}
	var together [][]*limit.Limit
	for _, e := range on {
		together = append(together, limitsOf(matchingWith(e, on)))
	}
	return accepts(all, together...)
}

// matchingWith returns the limits that may apply to a request whose most specific limit is e. The limits of any
// request are among those of one such e. Of the limits of a group with the same Per, only the one with the most tiers
// is returned, since one of them applies at a time.
func matchingWith(e *Effective, on []*Effective) (out []*Effective) {
	type class struct{ group, per string }
	largest := map[class]int{}
	for _, o := range on {
		if o != e && (!route.Overlap(e.spec.rule, o.spec.rule) || route.Compare(o.spec.rule, e.spec.rule) < 0) {
			continue
		}
		if o.Group != "" && o.Limit.Mode == limit.Enforce {
			of := class{o.Group, o.Limit.Per}
			if i, ok := largest[of]; ok {
				if len(o.Limit.Tiers) > len(out[i].Limit.Tiers) {
					out[i] = o
				}
				continue
			}
			largest[of] = len(out)
		}
		out = append(out, o)
	}
	return out
}

func limitsOf(of []*Effective) []*limit.Limit {
	out := make([]*limit.Limit, len(of))
	for i, e := range of {
		out[i] = e.Limit
	}
	return out
}
