package shares

import "github.com/sluicelimits/sluice/internal/limiter/limit"

// share returns the share of cell number at when total, 0..limit.MaxUnits, is divided by the weights of the cells,
// which must be sorted by id. The shares are integers that sum to total. Each is total × weight / Σ weights, rounded
// down. The units left over go, one each, to the largest remainders, and among equal remainders to the first cells.
func share(total int64, cells []Weight, at int) int64 {
	sum := int64(0)
	for i := range cells {
		sum += cells[i].Weight
	}
	left := total
	before := int64(0) // cells that get a unit left over before this cell does
	mine := total * cells[at].Weight % sum
	for i := range cells {
		product := total * cells[i].Weight // below 2^40 · 10^6
		left -= product / sum
		if rest := product % sum; rest > mine || (rest == mine && i < at) {
			before++
		}
	}
	out := total * cells[at].Weight / sum
	if before < left {
		out++
	}
	return out
}

// NeedsHome reports whether the limit cannot be divided between the cells: its smallest share would be below its
// largest cost or could not be counted exactly, or its algorithm is [limit.Algorithm.Indivisible]. Quotas are ignored,
// since they are never divided.
func NeedsHome(l *limit.Limit, cells []Weight) bool {
	if len(cells) < 2 {
		return false
	}
	for i := range l.Tiers {
		if t := &l.Tiers[i]; t.Algorithm.Indivisible() || (t.Calendar == nil && tooSmall(t, cells)) {
			return true
		}
	}
	for i := range cells {
		amounts := make([]amount, len(l.Tiers))
		for j := range l.Tiers {
			if amounts[j] = amountOf(&l.Tiers[j]); l.Tiers[j].Calendar == nil {
				amounts[j] = amounts[j].part(cells, i)
			}
		}
		if _, err := resized(l, amounts); err != nil {
			return true
		}
	}
	return false
}

func tooSmall(t *limit.Tier, cells []Weight) bool {
	cost := min(max(t.Limit().MaxCost, 1), t.Capacity())
	for i := range cells {
		if a := amountOf(t).part(cells, i); a.closed() || a.capacity() < cost {
			return true
		}
	}
	return false
}

// amount holds the numbers of a tier that are divided.
type amount struct{ threshold, burst int64 } // burst is 0 unless the tier is a token bucket

func amountOf(t *limit.Tier) amount {
	if t.Algorithm.HasBurst() {
		return amount{t.Threshold, t.Burst}
	}
	return amount{threshold: t.Threshold}
}

// part returns the share of cell i. If a bucket's share has no rate or no burst, the result is zero.
func (a amount) part(cells []Weight, i int) amount {
	bucket := a.burst > 0
	a.threshold = share(a.threshold, cells, i)
	if !bucket {
		return a
	}
	a.burst = share(a.burst, cells, i)
	return a.wholeOrZero()
}

// wholeOrZero returns the bucket, or a zero amount if one of its numbers is not positive.
func (a amount) wholeOrZero() amount {
	if a.threshold <= 0 || a.burst <= 0 {
		return amount{}
	}
	return a
}

func (a amount) closed() bool { return a.threshold == 0 }

func (a amount) capacity() int64 {
	if a.burst > 0 {
		return a.burst
	}
	return a.threshold
}

// resized returns the limit with other amounts.
func resized(l *limit.Limit, to []amount) (*limit.Limit, error) {
	out := *l
	out.Tiers = make([]limit.Tier, len(l.Tiers))
	for i := range l.Tiers {
		t := &l.Tiers[i]
		out.Tiers[i] = limit.Tier{
			Algorithm: t.Algorithm, Period: t.Period, Buckets: t.Buckets, Calendar: t.Calendar,
			Threshold: to[i].threshold, Burst: to[i].burst,
		}
	}
	return limit.New(out)
}
