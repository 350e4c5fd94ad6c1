package limittest

import (
	"fmt"
	"math/big"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// OverBound describes the first interval in which a counter admitted more, net of refunds, than the bound of its
// algorithm allows (design §5). What was used beyond a receipt was not admitted, and is left out. It returns "" if
// there is none. The bound of a limit that was changed is that of its largest numbers.
func (m *Model) OverBound() string {
	for name, c := range m.counters {
		if over := c.overBound(); over != "" {
			return fmt.Sprintf("limit %s of %v, value %q: %s", name.id, name.owner, name.value, over)
		}
	}
	return ""
}

// overBound checks every interval that begins and ends with a charge.
func (c *counter) overBound() string { return c.overBoundIf(0) }

// overBoundIf is like overBound, for charges whose recorded times may be too early by at most the duration later.
func (c *counter) overBoundIf(later time.Duration) string {
	if len(c.spends) == 0 {
		return ""
	}
	largest := c.spends[0].tier // each number is the largest that the tier had
	cost := int64(0)
	for _, s := range c.spends {
		largest.Threshold, largest.Burst = max(largest.Threshold, s.tier.Threshold), max(largest.Burst, s.tier.Burst)
		cost = max(cost, s.units)
	}
	for i := range c.spends {
		sum := new(big.Rat)
		for j := i; j < len(c.spends); j++ {
			if c.spends[j].over {
				continue
			}
			from, to := c.spends[i].at, c.spends[j].at
			bound := c.boundOf(&largest, from, to+later.Microseconds(), cost)
			if bound == nil {
				break
			}
			sum.Add(sum, c.spends[j].net())
			if sum.Cmp(bound) > 0 {
				return fmt.Sprintf("%s units admitted within [%d, %d], a bound of %s", sum.RatString(), from, to,
					bound.RatString())
			}
		}
	}
	return ""
}

func (s *spend) net() *big.Rat {
	if s.kept != nil {
		return s.kept
	}
	return rat(s.units)
}

// boundOf returns how many units may be admitted within [from, to], or nil if the interval is too long for the bound to
// apply.
func (c *counter) boundOf(t *limit.Tier, from, to, cost int64) *big.Rat {
	within := to-from < t.Period.Microseconds()
	switch t.Algorithm {
	case limit.TokenBucket:
		return new(big.Rat).Add(rat(t.Burst), new(big.Rat).Mul(rate(t), rat(to-from)))
	case limit.LeakyBucket:
		return new(big.Rat).Add(rat(cost), new(big.Rat).Mul(rate(t), rat(to-from)))
	case limit.Quota:
		start, _ := calendarPeriod(t.Calendar, from)
		if other, _ := calendarPeriod(t.Calendar, to); start == other {
			return rat(t.Threshold)
		}
	case limit.FixedWindow, limit.SlidingWindow:
		if within {
			return rat(2 * t.Threshold)
		}
	case limit.SlidingBuckets, limit.SlidingLog:
		if within {
			return rat(t.Threshold)
		}
	default:
		c.lacks(t)
	}
	return nil
}
