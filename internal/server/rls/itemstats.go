package rls

import "github.com/sluicelimits/sluice/internal/request/answer"

// recordHits adds the item's hits to the statistics.
func (it *item) recordHits() {
	switch {
	case it.stats == nil:
	case it.negative:
		it.stats.TotalNegativeHits.Add(it.hits)
	default:
		it.stats.TotalHits.Add(it.hits)
	}
}

// recordOutcome adds the outcome for the item's hits to the statistics. If denied hits are charged, the hits below the
// limit and those above it are recorded apart, as in envoyproxy/ratelimit. Otherwise, and while the store is away, all
// hits of an item are denied together. Hits that pass because a kill switch is in shadow are recorded like those of a
// rule with shadow_mode. nearRatio is the part of a limit above which hits are near it, 0..1.
func (it *item) recordOutcome(nearRatio float32, chargesDeniedHits bool) {
	if it.stats == nil || it.negative {
		return
	}
	switch it.state {
	case charged:
		if it.planned != nil && it.planned.answer.ShadowDenial != answer.Allowed { // nothing was charged
			it.stats.OverLimit.Add(it.hits)
			it.stats.ShadowMode.Add(it.hits)
			return
		}
		used, near := it.usedAndNear(nearRatio)
		if used > near {
			it.stats.NearLimit.Add(used - max(near, used-it.hits))
		}
		it.stats.WithinLimit.Add(it.hits)
	case over:
		denied := it.hits
		if used, near := it.usedAndNear(nearRatio); chargesDeniedHits && it.countersKnown && it.decision.Allowed {
			limit := it.binding().Tier.Capacity()
			if before := used - it.hits; before < limit {
				denied = used - limit
				it.stats.NearLimit.Add(limit - max(near, before))
			}
		}
		it.stats.OverLimit.Add(denied)
		if it.rule.ShadowMode {
			it.stats.ShadowMode.Add(denied)
		}
	case undecided, uncharged:
	}
}

// usedAndNear returns how many units of the binding limit are used, and the number of used units above which hits are
// near the limit.
func (it *item) usedAndNear(nearRatio float32) (used, near int64) {
	r := it.binding()
	if r == nil {
		return 0, 0
	}
	return r.Used(), int64(float32(r.Tier.Capacity()) * nearRatio)
}
