package shares

import (
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Split divides total, 0..limit.MaxUnits, by the weights: integers that sum to total, in the order of the cells, which
// must be by id. Each is total × weight / Σ weights, rounded down; what is left over goes to the largest remainders,
// one each, and among equal ones to the first.
func Split(total int64, cells []Weight) []int64 {
	out := make([]int64, len(cells))
	for i := range cells {
		out[i] = share(total, cells, i)
	}
	return out
}

// share is one cell's part of Split.
func share(total int64, cells []Weight, at int) int64 {
	sum := int64(0)
	for i := range cells {
		sum += cells[i].Weight
	}
	left := total
	before := int64(0) // cells whose remainder goes before this one's
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
// largest cost, could not be counted exactly, or the algorithm is [limit.Algorithm.Indivisible]. A quota is not divided
// anyway.
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

// amount is the numbers of a tier.
type amount struct{ threshold, burst int64 } // burst is 0 for all but token buckets

func amountOf(t *limit.Tier) amount {
	if t.Algorithm.HasBurst() {
		return amount{t.Threshold, t.Burst}
	}
	return amount{threshold: t.Threshold}
}

// part is the share of cell i. A bucket without a rate or without room is none.
func (a amount) part(cells []Weight, i int) amount {
	bucket := a.burst > 0
	a.threshold = share(a.threshold, cells, i)
	if !bucket {
		return a
	}
	a.burst = share(a.burst, cells, i)
	return a.whole()
}

// whole is a bucket, or nothing where one of its numbers is.
func (a amount) whole() amount {
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

// resized is the limit with other numbers.
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
