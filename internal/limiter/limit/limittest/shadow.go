package limittest

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

var shadowCases = []testCase{
	{"a shadow limit only reports", testShadow},
	{"a shadow limit has a counter of its own", testShadowApart},
	{"the tiers of a shadow limit are charged together or not at all", testShadowTiers},
	{"shadow limits are charged independently of each other", testShadowsIndependent},
}

func shadowOf(tb testing.TB, l limit.Limit) *limit.Limit {
	tb.Helper()
	l.Mode = limit.Shadow
	return build(tb, l)
}

func testShadow(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		shadow := shadowOf(tb, limit.Limit{ID: "shadow", MaxCost: 5, Tiers: []limit.Tier{k.tier(5)}})
		wide := k.limit(tb, "wide", 1000)
		s.allowed(Start, charge(shadow, 5))
		for _, cost := range []int64{1, 6} { // the first would be denied, the second can never be admitted
			before := s.counters(Start, charge(shadow, 1))
			d := s.allowed(Start, charge(shadow, cost))
			r := &d.Results[0]
			if r.Admits || r.Charged != 0 || r.Never != (cost > 5) || (!r.Never && r.RetryAt <= d.Now) {
				s.Errorf("a shadow limit, cost %d: admits=%t charged=%d never=%t retry=%d; want a shadow denial", cost,
					r.Admits, r.Charged, r.Never, r.RetryAt)
			}
			s.unchanged("a shadow that would deny", before, s.counters(Start, charge(shadow, 1)))
		}
		d := s.allowed(Start, charge(shadow, 1), charge(wide, 4))
		if got := d.Results[1].Charged; got != 4 {
			s.Errorf("beside a shadow limit that would deny, the enforcing limit was charged %d, want 4", got)
		}
		if b := d.Binding(); b == nil || b.Limit() != wide {
			s.Errorf("the binding limit is %v, want the enforcing one", b)
		}
	})
}

// A shadow limit must count only admitted requests: its report would otherwise count requests that never reached the
// backend.
func testShadowApart(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		l := limit.Limit{ID: "five", MaxCost: 5, Tiers: []limit.Tier{k.tier(5)}}
		shadow, enforced := shadowOf(tb, l), build(tb, l)
		s.allowed(Start, charge(enforced, 3))
		if left := s.remaining(Start, shadow); left != 5 {
			s.Errorf("after a charge of the enforcing limit, %d units of the shadow limit remain, want 5", left)
		}
		s.allowed(Start, charge(shadow, 4))
		if k.oneAtATime() {
			s.denied(Start, charge(enforced, 1))
		} else {
			s.allowed(Start, charge(enforced, 2))
		}
		before := s.counters(Start, charge(shadow, 1))
		s.denied(Start, charge(shadow, 1), charge(enforced, 1))
		s.unchanged("a denied request", before, s.counters(Start, charge(shadow, 1)))
	})
}

func testShadowTiers(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		if k.algorithm == limit.Quota || k.oneAtATime() {
			return
		}
		narrow, roomy := k.tier(3), k.tier(100)
		roomy.Period = 6 * k.period
		for i, tiers := range [][]limit.Tier{{narrow, roomy}, {roomy, narrow}} {
			shadow := shadowOf(tb, limit.Limit{ID: "tiers" + string(rune('a'+i)), MaxCost: 5, Tiers: tiers})
			s.allowed(Start, charge(shadow, 3))
			before := s.counters(Start, charge(shadow, 1))
			d := s.allowed(Start, charge(shadow, 1))
			for j := range d.Results {
				if d.Results[j].Charged != 0 {
					s.Errorf("tier %d of a shadow limit whose other tier would deny was charged %d, want 0", j+1,
						d.Results[j].Charged)
				}
			}
			s.unchanged("a shadow one of whose tiers would deny", before, s.counters(Start, charge(shadow, 1)))
		}
	})
}

func testShadowsIndependent(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		full := shadowOf(tb, limit.Limit{ID: "full", MaxCost: 5, Tiers: []limit.Tier{k.tier(5)}})
		free := shadowOf(tb, limit.Limit{ID: "free", MaxCost: 50, Tiers: []limit.Tier{k.tier(50)}})
		s.allowed(Start, charge(full, 5))
		d := s.allowed(Start, charge(full, 2), charge(free, 2))
		if got := d.Results[1].Charged; got != 2 {
			s.Errorf("a shadow limit that would admit was charged %d beside one that would deny, want 2", got)
		}
	})
}
