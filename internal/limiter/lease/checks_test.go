package lease_test

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// overBound checks all admitted units by the formulas of design §5.
func (w *world) overBound() []string {
	var wrong []string
	for name, spends := range w.spends {
		t := w.largest[name.identity]
		slices.SortStableFunc(spends, func(a, b *spend) int {
			return cmp.Or(cmp.Compare(a.at, b.at),
				cmp.Compare(a.seq, b.seq))
		})
		if s := overBound(&t, name.owner, spends); s != "" {
			wrong = append(wrong, fmt.Sprintf("%s of %s, value %q: %s", name.identity, name.owner.Name,
				name.value.Text, s))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// overBound describes where the spends, in ascending order of time, are more than the tier may admit. It returns "" if
// they are not.
func overBound(t *limit.Tier, owner limit.Owner, spends []*spend) string {
	p := t.Params(owner)
	switch t.Algorithm {
	case limit.FixedWindow:
		return overWindows(spends, t.Threshold, func(at int64) int64 { return floorDiv(at-p.Offset, p.Period) })
	case limit.Quota: // by the day, in UTC
		return overWindows(spends, t.Threshold, func(at int64) int64 { return floorDiv(at, 86_400_000_000) })
	case limit.SlidingWindow:
		return overSliding(spends, t.Threshold, p.Period, p.Offset)
	case limit.SlidingLog, limit.SlidingBuckets:
		return overLog(spends, t.Threshold, p.Period)
	case limit.TokenBucket:
		return overLine(spends, t.Burst, t.Threshold, p.Period)
	case limit.LeakyBucket:
		largest := int64(0)
		for _, s := range spends {
			largest = max(largest, s.units)
		}
		return overLine(spends, largest, t.Threshold, p.Period)
	default:
		return fmt.Sprintf("overBound has no case for %s", t.Algorithm)
	}
}

// overWindows checks that at most threshold units were spent in each window.
func overWindows(all []*spend, threshold int64, window func(at int64) int64) string {
	count := map[int64]int64{}
	for _, s := range all {
		n := window(s.at)
		if count[n] += s.units - s.back; count[n] > threshold {
			return fmt.Sprintf("%d units in window %d, at %d, threshold %d", count[n], n, s.at, threshold)
		}
	}
	return ""
}

// overSliding checks that ⌈prev·(period−elapsed)/period⌉ + cur ≤ threshold at the time of each spend, counting the
// units that had been spent and not refunded by then.
func overSliding(all []*spend, threshold, period, offset int64) string {
	for i, s := range all {
		window, cur, prev := floorDiv(s.at-offset, period), int64(0), int64(0)
		for j := i; j >= 0; j-- {
			o := all[j]
			net := o.units
			if o.backSeq < s.seq {
				net -= o.back
			}
			switch floorDiv(o.at-offset, period) {
			case window:
				cur += net
				continue
			case window - 1:
				prev += net
				continue
			}
			break
		}
		elapsed := s.at - offset - window*period
		if used := (prev*(period-elapsed)+period-1)/period + cur; used > threshold {
			return fmt.Sprintf("at %d %d of %d are used: %d in this window, %d in the last", s.at, used, threshold,
				cur, prev)
		}
	}
	return ""
}

// overLog checks that at most threshold units were spent in each interval of a period.
func overLog(all []*spend, threshold, period int64) string {
	first, sum := 0, int64(0)
	for i, s := range all {
		sum += s.units - s.back
		for all[first].at <= s.at-period {
			sum -= all[first].units - all[first].back
			first++
		}
		if sum > threshold {
			return fmt.Sprintf("%d units within [%d, %d], threshold %d", sum, all[first].at, all[i].at, threshold)
		}
	}
	return ""
}

// overLine checks that at most burst + rate·(b−a) units were spent in each interval [a, b]. Units are counted exactly,
// in parts of a period. The level of a bucket that starts full and is charged every spend is below zero if, and only
// if, some interval that ends now has more.
func overLine(all []*spend, burst, rate, period int64) string {
	level, at := burst*period, int64(0)
	for i, s := range all {
		if i > 0 {
			if gone := s.at - at; gone > 2*burst*period/rate {
				level = burst * period
			} else {
				level = min(level+gone*rate, burst*period)
			}
		}
		at = s.at
		if level -= (s.units - s.back) * period; level < 0 {
			return fmt.Sprintf("at %d %.3f units more than burst %d and rate %d per %d µs", s.at,
				-float64(level)/float64(period), burst,
				rate, period)
		}
	}
	return ""
}
