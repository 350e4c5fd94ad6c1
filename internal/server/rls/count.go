package rls

// countHits counts the hits that the item asks for.
func (it *item) countHits() {
	switch {
	case it.stats == nil:
	case it.negative:
		it.stats.TotalNegativeHits.Add(it.hits)
	default:
		it.stats.TotalHits.Add(it.hits)
	}
}

// countOutcome counts what became of the item's hits. If denied hits are counted, the hits that fit below the limit and
// those above it are told apart, as in envoyproxy/ratelimit; otherwise all hits of an item are denied together.
func (it *item) countOutcome(ratio float32, countsDenied bool) {
	if it.stats == nil || it.negative {
		return
	}
	switch it.state {
	case charged:
		used, near := it.usedAndNear(ratio)
		it.countNear(used-it.hits, used, near)
		it.stats.WithinLimit.Add(it.hits)
	case over:
		denied := it.hits
		if used, near := it.usedAndNear(ratio); countsDenied && it.known {
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
	case undecided, passed:
	}
}

// usedAndNear returns how much of the binding limit is used, and from which use on hits are near the limit.
func (it *item) usedAndNear(ratio float32) (used, near int64) {
	r := it.binding()
	if r == nil {
		return 0, 0
	}
	return r.Used(), int64(float32(r.Tier.Capacity()) * ratio)
}

// countNear counts the hits between before and after that are above near.
func (it *item) countNear(before, after, near int64) {
	if after > near {
		it.stats.NearLimit.Add(after - max(near, before))
	}
}
