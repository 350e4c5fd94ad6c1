package limit

import (
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// randomNumber returns a number of 1..most, often near one of the bounds.
func randomNumber(r *rand.Rand, most int64) int64 {
	switch r.IntN(4) {
	case 0:
		return most - r.Int64N(min(most, 1000))
	case 1:
		return 1 + r.Int64N(min(most, 1000))
	}
	return 1 + r.Int64N(1+r.Int64N(most))
}

// periodic returns the algorithms that have a period and no calendar.
func periodic() []Algorithm {
	return slices.DeleteFunc(Algorithms(), Algorithm.HasCalendar)
}

// randomTier returns a tier of a random algorithm that has a period.
func randomTier(r *rand.Rand) Tier {
	algorithms := periodic()
	t := Tier{Algorithm: algorithms[r.IntN(len(algorithms))], Threshold: randomNumber(r, MaxUnits)}
	t.Period = time.Duration(randomNumber(r, int64(MaxPeriod/time.Millisecond))) * time.Millisecond
	if r.IntN(2) == 0 { // periods that people write
		t.Period = []time.Duration{time.Second, time.Minute, time.Hour, 24 * time.Hour, MaxPeriod}[r.IntN(5)]
	}
	if most := mostOf(t.Algorithm); most < MaxUnits {
		t.Threshold = randomNumber(r, most)
	}
	if t.Algorithm.HasBuckets() {
		t.Buckets = 1 + r.IntN(MaxBuckets)
	}
	if t.Algorithm.HasBurst() {
		t.Burst = randomNumber(r, MaxUnits)
	}
	return t
}

// TestNoIntermediatePasses2To53 guarantees that a store can count in double-precision numbers, whose whole numbers are
// exact up to 2^53. For random tiers that New accepts, it computes the largest value of each product and sum of the
// algorithms with big numbers.
func TestNoIntermediatePasses2To53(t *testing.T) {
	soak.SkipUnderRace(t)
	bound := new(big.Int).Lsh(big.NewInt(1), 53)
	mul := func(a, b int64) *big.Int { return new(big.Int).Mul(big.NewInt(a), big.NewInt(b)) }
	sum := func(a *big.Int, b int64) *big.Int { return new(big.Int).Add(a, big.NewInt(b)) }
	r := rand.New(rand.NewPCG(1, 1))
	taken := map[Algorithm]int{}
	latest := time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	for range 200_000 {
		in := randomTier(r)
		cost := randomNumber(r, MaxUnits)
		l, err := New(Limit{ID: "l", MaxCost: cost, Tiers: []Tier{in}})
		if err != nil {
			continue
		}
		tier := &l.Tiers[0]
		p := tier.Params(Owner{})
		taken[in.Algorithm]++
		fits := map[string]*big.Int{"end of two periods": sum(big.NewInt(latest), 2*p.Period+maxSkew)}
		largest := min(tier.capacity, l.costMost)
		switch tier.Algorithm {
		case FixedWindow:
			fits["count + cost"] = sum(big.NewInt(tier.Threshold), tier.capacity)
		case SlidingBuckets, SlidingLog:
			fits["count + cost"] = sum(big.NewInt(tier.Threshold), tier.capacity)
			fits["last bucket leaves"] = sum(mul(int64(tier.Buckets+1), p.Width), latest)
		case SlidingWindow:
			fits["prev·ticks, rounded up"] = sum(mul(tier.Threshold, p.Ticks), p.Ticks)
			fits["room·ticks"] = mul(tier.Threshold, p.Ticks)
			if p.Ticks > maxTicks || p.Ticks < min(p.Period, maxTicks/16) || p.Tick*p.Ticks > p.Period ||
				p.Tick*(p.Ticks+1) <= p.Period {
				t.Fatalf("a period of %d µs is divided into %d ticks of %d µs, which do not cover it", p.Period,
					p.Ticks, p.Tick)
			}
		case TokenBucket:
			fits["full"] = mul(tier.Burst, p.Den)
			fits["cost·den"] = mul(largest, p.Den)
			fits["level + refill"] = sum(sum(mul(p.FullIn-1, p.Num), p.Full), 0)
			fits["full, rounded up"] = sum(mul(tier.Burst, p.Den), p.Num)
			fits["gained"] = sum(mul(p.FullIn-1, p.Num), p.Full)
		case LeakyBucket:
			fits["cost·den, rounded up"] = sum(mul(largest, p.Den), p.Num)
			if l.MaxCost <= tier.Threshold && l.costMost < l.MaxCost {
				t.Fatalf("New accepts a cost of %d that Check refuses: %+v", l.MaxCost, in)
			}
		default:
			t.Fatalf("%s has no case here: add the largest products and sums that it forms", tier.Algorithm)
		}
		for what, v := range fits {
			if v.Cmp(bound) > 0 {
				t.Fatalf("%s = %s is above 2^53, for the tier %+v with cost %d", what, v, in, cost)
			}
		}
	}
	for _, a := range periodic() {
		if taken[a] < 300 {
			t.Errorf("New accepted only %d random tiers of %s: the test shows little", taken[a], a)
		}
	}
}

// Guarantees that a cost of a leaky bucket above MaxCost is refused by Check: New checks only costs up to MaxCost, so a
// larger one could overflow.
func TestLeakyCostBeyondTheArithmetic(t *testing.T) {
	l := mustNew(t, Limit{ID: "l", Tiers: []Tier{{Algorithm: LeakyBucket, Threshold: MaxUnits - 1, Period: MaxPeriod}}})
	if productFits(MaxUnits-1, l.Tiers[0].Params(Owner{}).Den) {
		t.Fatal("the test shows nothing: even the largest cost fits into the arithmetic of this limit")
	}
	for _, tc := range []struct {
		cost int64
		ok   bool
	}{{1, true}, {l.costMost, true}, {l.costMost + 1, false}, {MaxUnits, false}} {
		req := Request{Charges: []Charge{{Limit: l, Cost: tc.cost}}}
		if err := req.Check(); (err == nil) != tc.ok {
			t.Errorf("cost %d: %v, want accepted %t", tc.cost, err, tc.ok)
		}
	}
	if !productFits(l.costMost, l.Tiers[0].Params(Owner{}).Den) ||
		productFits(l.costMost+1, l.Tiers[0].Params(Owner{}).Den) {
		t.Errorf("the largest accepted cost is %d; want the largest one whose products fit into the arithmetic",
			l.costMost)
	}
}

// Guarantees that the weight of a sliding window, which is counted in ticks, is never below the formula, at any µs. It
// is above the formula by at most the weight of one tick, rounded up, or of two ticks if no tick divides the period.
// For periods that people write this is one unit.
func TestSlidingWeightAgainstTheFormula(t *testing.T) {
	soak.SkipUnderRace(t)
	r := rand.New(rand.NewPCG(2, 2))
	for range 300_000 {
		in := randomTier(r)
		in.Algorithm, in.Buckets, in.Burst = SlidingWindow, 0, 0
		in.Threshold = randomNumber(r, MaxSlidingUnits)
		if r.IntN(2) == 0 {
			in.Threshold = randomNumber(r, 50_000)
		}
		l := mustNew(t, Limit{ID: "l", Tiers: []Tier{in}})
		tier := &l.Tiers[0]
		p := tier.Params(Owner{})
		start := floorTo(1_772_445_600_000_000, p.Period)
		elapsed := r.Int64N(p.Period)
		prev := randomNumber(r, tier.Threshold)
		exact := new(big.Int).Mul(big.NewInt(prev), big.NewInt(p.Period-elapsed))
		exact.Add(exact, big.NewInt(p.Period-1)).Div(exact, big.NewInt(p.Period))
		got, want := tier.counts.(*slidingWindow).weight(windowSeen{start: start, previous: prev}, start,
			start+elapsed), exact.Int64()
		coarse := int64(1)
		if p.Period%p.Tick != 0 {
			coarse = 2
		}
		if most := want + ceilDiv(coarse*prev, p.Ticks); got < want || got > most || got > prev {
			t.Fatalf("%d units %d µs into a period of %d µs weigh %d, want %d to %d", prev, elapsed, p.Period, got,
				want, most)
		}
		if p.Period%p.Tick == 0 && elapsed%p.Tick == 0 && got != want {
			t.Fatalf("%d units %d µs into a period of %d µs, on a tick of %d, weigh %d, want %d", prev, elapsed,
				p.Period, p.Tick, got, want)
		}
	}
}

// Guarantees that the wait of a denial by a sliding window ends at the first µs at which the cost fits, also for
// periods that no round tick divides.
func TestSlidingRetryAtOddPeriods(t *testing.T) {
	soak.SkipUnderRace(t)
	r := rand.New(rand.NewPCG(3, 3))
	for range 100_000 {
		in := randomTier(r)
		in.Algorithm, in.Buckets, in.Burst = SlidingWindow, 0, 0
		in.Threshold = randomNumber(r, MaxSlidingUnits)
		l := mustNew(t, Limit{ID: "l", Tiers: []Tier{in}})
		tier := &l.Tiers[0]
		period := tier.Params(Owner{}).Period
		start := floorTo(1_772_445_600_000_000, period)
		s := WindowState{Start: start, Count: r.Int64N(tier.Threshold + 1),
			Previous: r.Int64N(tier.Threshold + 1)}.State()
		cost := randomNumber(r, tier.Threshold)
		evaluate := func(now int64) Result {
			res := Result{Tier: tier, Cost: cost, need: cost, window: tier.windows.window("", now)}
			tier.counts.evaluate(&s, now, &res)
			return res
		}
		now := start + r.Int64N(period)
		res := evaluate(now)
		if res.Admits {
			continue
		}
		before, at := evaluate(res.RetryAt-1), evaluate(res.RetryAt)
		if res.RetryAt <= now || before.Admits || !at.Admits {
			t.Fatalf("tier %+v, state %+v, cost %d at %d: RetryAt is %d; admitted then: %t, a µs before: %t; want "+
				"true and false", in, s, res.Cost, now, res.RetryAt, at.Admits, before.Admits)
		}
	}
}

// Guarantees that the hash stays the same. All processes that share counters derive the offsets of windows and the
// places of counters from it, so a change would move every aligned window.
func TestHashTextIsStable(t *testing.T) {
	for _, tc := range []struct {
		text string
		want uint64
	}{{"", 0xfdbdf6ac4fc52e7f}, {"acme", 0x927ef6c884d3d5ac}, {"tenant-1", 0x17b97675fa43b1ec}, {"\x00\xff",
		0x113845c591e989e0}} {
		if got := hashText(tc.text); got != tc.want {
			t.Errorf("hashText(%q) = %#x, want %#x", tc.text, got, tc.want)
		}
	}
}

// Guarantees that the windows of ten thousand tenants do not begin in the same second, and that those of one tenant
// stay where they are.
func TestAlignOffset(t *testing.T) {
	l := mustNew(t, Limit{ID: "l", AlignOwner: true, Tiers: []Tier{{Algorithm: FixedWindow, Threshold: 5,
		Period: time.Minute}}})
	tier := &l.Tiers[0]
	const tenants, slots = 10_000, 60
	var counts [slots]int
	for i := range tenants {
		name := "tenant-" + big.NewInt(int64(i)).String()
		p := tier.Params(Owner{Name: name})
		offset := p.Offset
		if offset < 0 || offset >= p.Period || offset != tier.Params(Owner{Name: name}).Offset {
			t.Fatalf("the offset of %s is %d; want it below the period, 0..%d, and the same each time", name, offset,
				p.Period)
		}
		counts[offset*slots/p.Period]++
	}
	for second, n := range counts {
		if n < tenants/slots/2 || n > tenants/slots*2 {
			t.Errorf("%d of %d tenants reset in second %d, want about %d", n, tenants, second, tenants/slots)
		}
	}
	plain := mustNew(t, Limit{ID: "l", Tiers: []Tier{{Algorithm: FixedWindow, Threshold: 5, Period: time.Minute}}})
	if got := plain.Tiers[0].Params(Owner{Name: "tenant-1"}).Offset; got != 0 {
		t.Errorf("without align the offset is %d, want 0: windows are the wall clock's", got)
	}
}

// Guarantees that alternate charges and refunds do not make a state grow.
func TestRefundedStampsAreForgotten(t *testing.T) {
	for _, a := range []Algorithm{SlidingLog, SlidingBuckets} {
		l := mustNew(t, Limit{ID: "l", Tiers: []Tier{{Algorithm: a, Threshold: 2, Period: time.Hour}}})
		var s State
		for i := range int64(1000) {
			d := Decision{}
			e := d.BeginChecked(&Request{Charges: []Charge{{Limit: l, Cost: 1}}}, i*1000)
			e.Evaluate(0, &s, true)
			e.Settle()
			e.Charge(0, &s)
			if back := d.Receipt().entries[0].GiveBack(&s, MaxUnits, i*1000); back != 1 {
				t.Fatalf("%s: refund %d gave back %d, want 1", a, i, back)
			}
		}
		if log := s.Log(); len(log.Entries) != 0 || log.Sum != 0 {
			t.Errorf("%s: after 1000 charges, each refunded, the state is %d stamps and %d units, want none", a,
				len(log.Entries), log.Sum)
		}
	}
}
