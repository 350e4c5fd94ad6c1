package limittest

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

var atomicCases = []testCase{
	{"a denial by one limit charges no other limit", testDenierChargesNone},
	{"a denial by one tier charges no other tier", testTierChargesNone},
	{"a decision charges every limit", testChargesAll},
	{"a denial names when the cost fits in all limits", testRetryOverAll},
	{"a reused decision keeps nothing of its previous use", testReuse},
}

// A denial of one limit must not charge the other limits of the request, wherever in the request it comes.
func testDenierChargesNone(tb testing.TB, c Config) {
	samples := c.samples()
	each(tb, c, func(s *subject, k sample) {
		denier := k.limit(tb, "denier", 5)
		s.allowed(Start, charge(denier, 5))
		var others []limit.Charge
		for _, o := range samples {
			others = append(others, charge(o.limit(tb, "wide-"+o.algorithm.String(), 100), 1))
		}
		all := append([]limit.Charge{charge(denier, 1)}, others...)
		before := s.counters(Start, all...)
		for at := range all {
			// the denying limit comes first, in the middle, and last
			mixed := append(append([]limit.Charge{}, others[:at]...), charge(denier, 1))
			mixed = append(mixed, others[at:]...)
			d := s.denied(Start, mixed...)
			if b := d.Binding(); b.Limit() != denier {
				s.Errorf("the binding limit is %s, want denier", b.Limit().ID)
			}
			s.unchanged(fmt.Sprintf("a denial by limit %d of %d", at+1, len(mixed)), before, s.counters(Start, all...))
		}
		s.allowed(Start, others...)
	})
}

func testTierChargesNone(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		if k.algorithm == limit.Quota || k.oneAtATime() {
			return // two quotas of a day are one counter, and the tiers of a leaky bucket deny together
		}
		short, long := k.tier(3), k.tier(5)
		long.Period = 6 * k.period
		for i, tiers := range [][]limit.Tier{{short, long}, {long, short}} {
			l := build(tb, limit.Limit{ID: fmt.Sprintf("tiers-%d", i), MaxCost: 5, Tiers: tiers})
			s.allowed(Start, charge(l, 3))
			before := s.counters(Start, charge(l, 1))
			s.denied(Start, charge(l, 1)) // by the short tier
			s.denied(Start, charge(l, 2))
			s.unchanged("a denial by the short tier", before, s.counters(Start, charge(l, 1)))
			later := Start.Add(2 * k.period)
			s.allowed(later, charge(l, 2))
			before = s.counters(later, charge(l, 1))
			if k.algorithm != limit.TokenBucket { // the long tier has refilled a little
				s.denied(later, charge(l, 1)) // by the long tier
			}
			s.unchanged("a denial by the long tier", before, s.counters(later, charge(l, 1)))
		}
	})
}

func testChargesAll(tb testing.TB, c Config) {
	s := newSubject(tb, c)
	var charges []limit.Charge
	for _, k := range c.samples() {
		charges = append(charges, charge(k.limit(tb, k.algorithm.String(), 100), 7))
	}
	d := s.allowed(Start, charges...)
	for i := range charges {
		want := int64(93)
		if d.Results[i].Tier.Algorithm == limit.LeakyBucket {
			want = 0
		}
		if got := d.Results[i].Remaining(); got != want {
			s.Errorf("%s: the decision reports %d units as remaining, want %d", charges[i].Limit.ID, got, want)
		}
		if got := s.remaining(Start, charges[i].Limit); got != want {
			s.Errorf("%s: a peek reports %d units as remaining, want %d", charges[i].Limit.ID, got, want)
		}
	}
	if got := len(d.Receipt().Entries()); got != len(charges) {
		s.Errorf("the receipt has %d entries, want %d", got, len(charges))
	}
	if d := s.allowed(Start); len(d.Results) != 0 || d.Binding() != nil {
		s.Errorf("a request that no limit applies to: %d results, want none, and the request allowed", len(d.Results))
	}
}

func testRetryOverAll(tb testing.TB, c Config) {
	each(tb, c, func(_ *subject, k sample) {
		for _, other := range c.samples() {
			s := newSubject(named{tb, k.algorithm.String() + " and " + other.algorithm.String()}, c)
			a, b := k.limit(tb, "a", 5), other.limit(tb, "b", 5)
			s.allowed(Start, charge(a, 5))
			s.allowed(Start.Add(time.Second), charge(b, 5))
			at := Start.Add(2 * time.Second)
			alone := max(s.denied(at, charge(a, 5)).RetryAt, s.denied(at, charge(b, 5)).RetryAt)
			if got := s.denied(at, charge(a, 5), charge(b, 5)).RetryAt; got != alone {
				s.Errorf("denied by two limits: RetryAt is %d, want %d, the later of the two", got, alone)
			}
			s.allowed(time.UnixMicro(alone), charge(a, 5), charge(b, 5))
		}
	})
}

func testReuse(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		l, other := k.limit(tb, "five", 5), k.limit(tb, "other", 50)
		var d limit.Decision
		steps := []struct {
			at      time.Time
			charges []limit.Charge
		}{
			{Start, []limit.Charge{charge(l, 5), charge(other, 1)}},
			{Start, []limit.Charge{charge(l, 1), charge(other, 1)}},
			{Start, []limit.Charge{charge(l, 6)}},
			{Start.Add(2 * k.period), []limit.Charge{charge(other, 2)}},
			{Start.Add(2 * k.period), nil},
			{Start.Add(2 * k.period), []limit.Charge{charge(l, 1), charge(other, 51)}},
			{Start.Add(4 * k.period), []limit.Charge{charge(l, 2)}},
		}
		twin := newSubject(s.TB, c)
		for i, step := range steps {
			s.clock(step.at)
			if err := s.store.Decide(s.Context(), s.request(step.charges), step.at, &d); err != nil {
				s.Fatalf("step %d: Decide: %v", i+1, err)
			}
			fresh := twin.decide(step.at, step.charges...)
			if got, want := render(&d), render(fresh); got != want {
				s.Errorf("step %d: the reused decision is\n%s\nand differs from a new one\n%s", i+1, got, want)
			}
		}
		s.clock(Start)
		if err := s.store.Decide(s.Context(), s.request([]limit.Charge{{Limit: l}}), Start, &d); err == nil {
			s.Errorf("a cost of 0 is accepted, want an error")
		} else if len(d.Results) > 0 || len(d.Receipt().Entries()) > 0 {
			s.Errorf("after an error the reused decision has %d results, and a receipt with %d entries; want none",
				len(d.Results), len(d.Receipt().Entries()))
		}
	})
}

// render returns everything that a caller can see of a decision, except for the name of its receipt.
func render(d *limit.Decision) string {
	out := fmt.Sprintf("allowed %t never %t retry %d now %d owner %v receipt %d", d.Allowed, d.Never, d.RetryAt,
		d.Now, d.Owner, len(d.Receipt().Entries()))
	for i := range d.Results {
		r := &d.Results[i]
		out += fmt.Sprintf("\n%s value %v cost %d charged %d admits %t never %t retry %d used %d remaining %d reset %d",
			r.Limit().ID, d.Value(i), r.Cost, r.Charged, r.Admits, r.Never, r.RetryAt, r.Used(), r.Remaining(),
			r.ResetAt())
	}
	return out
}
