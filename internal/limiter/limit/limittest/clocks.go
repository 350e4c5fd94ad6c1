package limittest

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

var clockCases = []testCase{
	{"a clock that steps back admits nothing in addition", testStepBack},
	{"a clock that was far ahead denies nobody for long", testLeapAhead},
	{"times before 1970 and far ahead", testFarTimes},
}

// The clocks of servers differ by milliseconds to seconds. A counter therefore sees time step back between two requests
// every day.
func testStepBack(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		// the distance of the charges from the edge of a window
		for n, edge := range []time.Duration{0, time.Microsecond, time.Second, 4 * time.Second} {
			l := k.limit(tb, "five"+string(rune('a'+n)), 5)
			at := Start.Add(edge)
			first := s.allowed(at, charge(l, 5))
			for _, back := range []time.Duration{time.Microsecond, time.Millisecond, 999 * time.Millisecond,
				2 * time.Second, limit.MaxSkew} {
				d := s.decide(at.Add(-back), charge(l, 1))
				if d.Allowed {
					s.Errorf("the limit is used up %s after the edge of a window: a request by a clock %s behind is "+
						"admitted, want it denied", edge, back)
				}
				if again := s.decide(at, charge(l, 1)); again.Allowed {
					s.Errorf("the limit is used up %s after the edge of a window: units are admitted again after a "+
						"request by a clock %s behind, want a denial", edge, back)
				}
			}
			reset := time.UnixMicro(first.Results[0].ResetAt())
			if got := s.peek(reset, charge(l, 5)); !got.Allowed {
				s.Errorf("the limit is used up %s after the edge of a window: after a request by a clock that is "+
					"behind, the counter is not unused at %s, its ResetAt before", edge, stamp(reset))
			}
		}
	})
}

// One request by a clock that is a day ahead must neither deny a tenant for that day nor admit without bound.
func testLeapAhead(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		leap := 24*time.Hour + 1234*time.Millisecond
		if k.algorithm == limit.Quota {
			leap = 40 * 24 * time.Hour
		}
		l := k.limit(tb, "five", 5)
		s.allowed(Start, charge(l, 5))
		s.allowed(Start.Add(leap), charge(l, 5))
		// The clock is right again: one charge each tenth of a period, for eight periods.
		admitted, gap, last := int64(0), time.Duration(0), Start
		const periods, steps = 8, 10
		for i := range periods * steps {
			at := Start.Add(time.Second + time.Duration(i)*k.period/steps)
			if s.decide(at, charge(l, 1)).Allowed {
				admitted++
				last = at
			}
			gap = max(gap, at.Sub(last))
		}
		if longest := 2*k.period + 2*limit.MaxSkew + k.period/steps; gap > longest {
			s.Errorf("the clock was %s ahead once: the tenant is then denied for %s, want at most %s", leap, gap,
				longest)
		}
		// Allowed are five units in each period, and 15 more: those that the leap made the store forget, and those of
		// windows that lie only in part within these periods.
		if most := int64(5 * (periods + 3)); admitted > most {
			s.Errorf("the clock was %s ahead once: %d units are then admitted in %d periods, want at most %d", leap,
				admitted, periods, most)
		}
	})
}

// The replay of an old log, or a broken clock, must get a decision. It must not cause a panic or an endless loop.
func testFarTimes(tb testing.TB, c Config) {
	if c.SetClock != nil {
		return // a store with a clock of its own does not use the given times
	}
	each(tb, c, func(s *subject, k sample) {
		for i, at := range []time.Time{
			{}, time.Unix(-1, 0), time.Unix(0, 0), time.Date(1883, 11, 18, 12, 0, 0, 0, time.UTC), time.Date(9999, 12,
				31,
				23, 59, 59, 0, time.UTC),
		} {
			s := s.of(limit.Owner{Kind: limit.AnyKey, Name: string(rune('a' + i))})
			l := k.limit(tb, "five", 5)
			s.allowed(at, charge(l, 5))
			d := s.denied(at, charge(l, 1))
			s.allowed(time.UnixMicro(d.RetryAt), charge(l, 1))
		}
	})
}
