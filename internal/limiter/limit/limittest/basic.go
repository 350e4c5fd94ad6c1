package limittest

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

var basicCases = []testCase{
	{"Accepts agrees with Config.Refuses", testAccepts},
	{"a limit admits its units and no more", testUnits},
	{"a cost is charged in whole", testCosts},
	{"a cost above the capacity is never admitted and charges nothing", testNever},
	{"a peek changes nothing", testPeek},
	{"a denial changes nothing", testDenial},
	{"Remaining is the largest cost that is admitted", testRemaining},
	{"a denied cost fits at RetryAt and not before", testRetry},
	{"a counter is like an unused one at ResetAt", testReset},
	{"a bucket that takes a century to fill stays readable", testCentury},
}

// Without this case, a store that accepts no algorithm would pass every other case by skipping it.
func testAccepts(tb testing.TB, c Config) {
	store := c.New(tb)
	for _, a := range limit.Algorithms() {
		k := sample{algorithm: a, period: 10 * time.Second}
		err := store.Accepts(k.limit(tb, "accepted", 5))
		if accepted := err == nil; accepted != c.accepts(a) {
			tb.Errorf("Accepts(%s) = %v; by Config.Refuses, want it accepted: %t", a, err, c.accepts(a))
		}
	}
}

func testUnits(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		l := k.limit(tb, "five", 5)
		if k.oneAtATime() {
			for i := range 5 { // evenly spread over the period
				at := Start.Add(time.Duration(i) * k.period / 5)
				s.allowed(at, charge(l, 1))
				s.denied(at, charge(l, 1))
			}
			return
		}
		for range 5 {
			s.allowed(Start, charge(l, 1))
		}
		s.denied(Start, charge(l, 1))
		s.denied(Start.Add(time.Microsecond), charge(l, 1))
	})
}

func testCosts(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		l := k.limit(tb, "five", 5)
		s.allowed(Start, charge(l, 3))
		s.denied(Start, charge(l, 3))
		if k.oneAtATime() { // three units take three fifths of the period to drain
			d := s.denied(Start, charge(l, 1))
			if want := k.period * 3 / 5; d.RetryAfter() != want {
				s.Errorf("after a charge of 3 RetryAfter is %s, want %s", d.RetryAfter(), want)
			}
			return
		}
		s.allowed(Start, charge(l, 2))
		s.denied(Start, charge(l, 1))
	})
}

func testNever(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		l, wide := k.limit(tb, "five", 5), k.limit(tb, "wide", 100)
		before := s.counters(Start, charge(l, 1), charge(wide, 1))
		for _, cost := range []int64{6, 7, 1000, limit.MaxUnits} {
			d := s.decide(Start, charge(wide, 1), charge(l, cost))
			if d.Allowed || !d.Never || d.RetryAt != 0 {
				s.Errorf("cost %d of 5: allowed=%t never=%t retry at %d, want never without a retry", cost, d.Allowed,
					d.Never, d.RetryAt)
			}
		}
		s.unchanged("a charge that is never", before, s.counters(Start, charge(l, 1), charge(wide, 1)))
		s.allowed(Start, charge(l, 5), charge(wide, 5))
		// One limit is used up for now, and the other can never admit the cost: no wait would help.
		if d := s.denied(Start, charge(l, 1), charge(wide, 101)); !d.Never {
			s.Errorf("denied by one limit until %d, and for ever by another one: never=false, want true", d.RetryAt)
		}
	})
}

func testPeek(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		l := k.limit(tb, "five", 5)
		for _, cost := range []int64{1, 5, 6} {
			before := s.counters(Start, charge(l, 1))
			for range 3 {
				s.peek(Start, charge(l, cost))
			}
			s.unchanged("a peek", before, s.counters(Start, charge(l, 1)))
		}
		for i := range 12 {
			at := Start.Add(time.Duration(i) * k.period / 7)
			cost := int64(1 + i%6)
			p := s.peek(at, charge(l, cost))
			for i := range p.Results {
				if r := &p.Results[i]; r.Charged != 0 {
					s.Fatalf("a peek charged %d units, want 0", r.Charged)
				}
			}
			if n := len(p.Receipt().Entries()); n != 0 {
				s.Fatalf("a peek has a receipt with %d entries, want none", n)
			}
			d := s.decide(at, charge(l, cost))
			if p.Allowed != d.Allowed || p.Never != d.Never || p.RetryAt != d.RetryAt {
				s.Errorf("a cost of %d at %s: a peek says allowed=%t never=%t retry=%d, the decision after it says "+
					"allowed=%t never=%t retry=%d; want the same",
					cost, stamp(at), p.Allowed, p.Never, p.RetryAt, d.Allowed, d.Never, d.RetryAt)
			}
		}
	})
}

// If denials were charged, a client that retries without a pause would never be admitted.
func testDenial(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		l := k.limit(tb, "five", 5)
		s.allowed(Start, charge(l, 5))
		first := s.denied(Start, charge(l, 5))
		for i := range c.Repeats {
			at := Start.Add(time.Duration(i) * first.RetryAfter() / time.Duration(c.Repeats))
			before := s.counters(at, charge(l, 1))
			s.denied(at, charge(l, 5))
			s.unchanged("a denial", before, s.counters(at, charge(l, 1)))
		}
		s.allowed(time.UnixMicro(first.RetryAt), charge(l, 5))
	})
}

func testRemaining(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		r := rand.New(rand.NewPCG(1, 2))
		l := k.limit(tb, "twenty", 20)
		at := Start
		for range c.Repeats / 2 {
			at = at.Add(time.Duration(r.Int64N(int64(k.period) / 4)).Truncate(time.Microsecond))
			d := s.decide(at, charge(l, 1+r.Int64N(8)))
			left := d.Results[0].Remaining()
			if seen := s.remaining(at, l); seen != left {
				s.Errorf("at %s: the decision says that %d units remain, and a peek right after it says %d; want "+
					"the same", stamp(at), left, seen)
			}
			if left > 0 && !s.peek(at, charge(l, left)).Allowed {
				s.Errorf("at %s: %d units remain, but a cost of %d is denied, want it admitted", stamp(at), left, left)
			}
			if s.peek(at, charge(l, left+1)).Allowed {
				s.Errorf("at %s: %d units remain, but a cost of %d is admitted, want it denied", stamp(at), left,
					left+1)
			}
		}
	})
}

// A client that retries too early is denied once more; one that retries too late does not get all that its plan allows.
func testRetry(tb testing.TB, c Config) {
	check := func(s *subject, r *rand.Rand, period time.Duration, limits ...*limit.Limit) {
		at, denials := Start, 0
		for range c.Repeats {
			at = at.Add(time.Duration(r.Int64N(int64(period) / 8)).Truncate(time.Microsecond))
			charges := make([]limit.Charge, len(limits))
			for i, l := range limits {
				charges[i] = charge(l, 1+r.Int64N(5))
			}
			d := s.decide(at, charges...)
			if d.Allowed {
				continue
			}
			denials++
			fits := time.UnixMicro(d.RetryAt)
			if got, want := d.RetryAfter(), fits.Sub(at); got != want {
				s.Errorf("at %s: RetryAt is %s, and RetryAfter is %s, want %s", stamp(at), stamp(fits), got, want)
			}
			if s.peek(fits.Add(-time.Microsecond), charges...).Allowed {
				s.Errorf("%s at %s: RetryAt is %s, but the cost is admitted a µs before, want it denied",
					describe(charges), stamp(at), stamp(fits))
			}
			if !s.peek(fits, charges...).Allowed {
				s.Errorf("%s at %s: RetryAt is %s, but the cost is denied then, want it admitted", describe(charges),
					stamp(at), stamp(fits))
			}
			if r.IntN(3) == 0 {
				at = fits
				s.allowed(at, charges...)
			}
		}
		if denials == 0 {
			s.Fatalf("the script had no denial, so the test shows nothing")
		}
	}
	r := rand.New(rand.NewPCG(3, 4))
	each(tb, c, func(s *subject, k sample) {
		check(s, r, k.period, k.limit(tb, "five", 5))
	})
	samples := c.samples()
	for range 12 {
		var limits []*limit.Limit
		for i := range 2 + r.IntN(3) {
			k := samples[r.IntN(len(samples))]
			if k.algorithm != limit.Quota {
				k.period = time.Duration(1+r.IntN(8)) * time.Second
			}
			limits = append(limits, build(tb, limit.Limit{ID: "l" + string(rune('a'+i)), MaxCost: 5,
				Tiers: []limit.Tier{k.tier(5 + r.Int64N(6))}}))
		}
		check(newSubject(tb, c), r, 8*time.Second, limits...)
	}
}

func testReset(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		l := k.limit(tb, "five", 5)
		for range 3 {
			d := s.allowed(Start.Add(time.Second), charge(l, 1))
			if k.oneAtATime() {
				break
			}
			if got := d.Results[0].ResetAt(); got <= d.Now {
				s.Errorf("ResetAt of a used counter is %d, want it after now, %d", got, d.Now)
			}
		}
		reset := time.UnixMicro(s.peek(Start.Add(time.Second), charge(l, 1)).Results[0].ResetAt())
		if longest := Start.Add(2*k.period + time.Second); reset.After(longest) {
			s.Errorf("ResetAt is %s, want at most %s", stamp(reset), stamp(longest))
		}
		if r := &s.peek(reset, charge(l, 1)).Results[0]; r.Used() != 0 || r.Remaining() != 5 {
			s.Errorf("at ResetAt, %s, %d units of the counter are used and %d remain, want 0 and 5", stamp(reset),
				r.Used(), r.Remaining())
		}
		s.allowed(reset, charge(l, 5))
	})
}

// Twice the time until the bucket is full again lies beyond 2^53 µs. A store may use it as the expiry of its counter.
func testCentury(tb testing.TB, c Config) {
	if !c.accepts(limit.TokenBucket) {
		return
	}
	const burst = 226_187 // a unit in 4.5 hours: 116 years
	l := build(tb, limit.Limit{ID: "l", MaxCost: burst, Tiers: []limit.Tier{
		{Algorithm: limit.TokenBucket, Threshold: 8, Burst: burst, Period: 36 * time.Hour}}})
	s := newSubject(tb, c)
	now := Start
	for range 3 { // a store may decide the first requests in another way than those that follow
		s.allowed(now, charge(l, 1))
	}
	s.allowed(now, charge(l, burst-3))
	for range 3 {
		s.denied(now, charge(l, 1))
		now = now.Add(36 * time.Hour)
		s.allowed(now, charge(l, 8))
	}
	if !c.accepts(limit.SlidingLog) {
		return
	}
	// Together with a sliding log: a store may have a way of its own for that, which reads the same counter.
	log := build(tb, limit.Limit{ID: "log", MaxCost: 1, Tiers: []limit.Tier{
		{Algorithm: limit.SlidingLog, Threshold: 10, Period: time.Second}}})
	now = now.Add(36 * time.Hour)
	s.allowed(now, charge(l, 1), charge(log, 1))
}
