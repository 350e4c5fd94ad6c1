package plan

import (
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan/route"
)

// AcceptedBy asks whether a store can decide over the limits that may apply to one request, however they match. A path
// that can be read in several ways may be charged to more of them: a store that cannot decide then says so of that
// request.
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
		together = append(together, limitsOf(besides(e, on)))
	}
	return accepts(all, together...)
}

// besides are the limits that may apply to a request of whose limits e is the most specific one: whichever request it
// is, its limits are among those of one e. Of a group the largest of each Per stands for the one that applies.
func besides(e *Effective, on []*Effective) (out []*Effective) {
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
