package limit_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// counted lists a tier of 10 units in 4 s for each algorithm, with the expected properties.
var counted = []struct {
	tier        limit.Tier
	want        limit.Counting
	atOnce      int64 // in the bound atOnce + Threshold·t/Period on what the tier admits in an interval of length t
	rate        bool
	indivisible bool
	neverLooser []limit.Algorithm // algorithms that never admit more than that of the tier
}{
	{tier: limit.Tier{Algorithm: limit.FixedWindow}, atOnce: 20, want: limit.Counting{Lasts: 8 * second, Windows: 1},
		neverLooser: []limit.Algorithm{limit.SlidingWindow, limit.SlidingBuckets, limit.SlidingLog}},
	{tier: limit.Tier{Algorithm: limit.SlidingWindow}, atOnce: 20, want: limit.Counting{Lasts: 12 * second, Windows: 2},
		neverLooser: []limit.Algorithm{limit.SlidingBuckets, limit.SlidingLog}},
	{tier: limit.Tier{Algorithm: limit.SlidingBuckets, Buckets: 8}, atOnce: 10,
		want: limit.Counting{Lasts: 9 * second / 2, Entries: true}},
	{tier: limit.Tier{Algorithm: limit.SlidingLog}, atOnce: 10,
		want:        limit.Counting{Lasts: 4 * second, Entries: true, EachCharge: true},
		neverLooser: []limit.Algorithm{limit.SlidingBuckets}},
	{tier: limit.Tier{Algorithm: limit.TokenBucket, Burst: 30}, atOnce: 30, rate: true,
		want:        limit.Counting{Lasts: 12 * second},
		neverLooser: []limit.Algorithm{limit.SlidingBuckets, limit.SlidingLog}},
	{tier: limit.Tier{Algorithm: limit.LeakyBucket}, atOnce: 7, rate: true, indivisible: true,
		want: limit.Counting{Lasts: 4 * second, Windows: 1}},
	{tier: limit.Tier{Algorithm: limit.Quota, Calendar: &limit.Calendar{Every: limit.Day, Location: time.UTC}},
		atOnce: 20, want: limit.Counting{Windows: 1}},
}

// eachCounted calls f with a limit of every algorithm, whose largest cost is 7.
func eachCounted(t *testing.T, f func(t *testing.T, tier *limit.Tier, i int)) {
	t.Helper()
	tested := map[limit.Algorithm]bool{}
	for i := range counted {
		tier := counted[i].tier
		tested[tier.Algorithm] = true
		if tier.Threshold = 10; tier.Calendar == nil {
			tier.Period = 4 * time.Second
		}
		l := mustNew(t, limit.Limit{ID: "l", MaxCost: 7, Tiers: []limit.Tier{tier}})
		t.Run(tier.Algorithm.String(), func(t *testing.T) { f(t, &l.Tiers[0], i) })
	}
	for _, a := range limit.Algorithms() {
		if !tested[a] {
			t.Errorf("%s is not tested: add it to the table counted", a)
		}
	}
}

func TestCounting(t *testing.T) {
	eachCounted(t, func(t *testing.T, tier *limit.Tier, i int) {
		want, a := &counted[i], tier.Algorithm
		if got := tier.Counting(); got != want.want {
			t.Errorf("Counting() = %+v, want %+v", got, want.want)
		}
		if a.HasRate() != want.rate || a.Indivisible() != want.indivisible {
			t.Errorf("HasRate %t, Indivisible %t; want %t, %t", a.HasRate(), a.Indivisible(), want.rate,
				want.indivisible)
		}
		for _, other := range limit.Algorithms() {
			never := other == a
			for _, b := range want.neverLooser {
				never = never || other == b
			}
			if other.NeverLooser(a) != never {
				t.Errorf("%s is never looser: %t, want %t", other, !never, never)
			}
		}
	})
}

// Guarantees that a unit is forgotten at ForgottenAt, and not before.
func TestForgottenAt(t *testing.T) {
	eachCounted(t, func(t *testing.T, tier *limit.Tier, _ int) {
		fits := func(s limit.State, now int64) bool { return spend(tier, &s, now, tier.Capacity()) }
		var used limit.State
		if !spend(tier, &used, noon, tier.Capacity()) {
			t.Fatal("an unused counter denies a cost of its capacity, want it admitted")
		}
		at := tier.ForgottenAt("", noon+1)
		if fits(used, at-2) || !fits(used, at) {
			t.Errorf("ForgottenAt of a charge at %d is %d: a further unit fits a µs before: %t, and then: %t; want "+
				"false and true", noon, at, fits(used, at-2), fits(used, at))
		}
	})
}

// Guarantees that no interval admits more than the bound of its algorithm, and that no charge counts for longer than
// Counting says.
func TestCountingHolds(t *testing.T) {
	rng := rand.New(rand.NewPCG(19, 5))
	eachCounted(t, func(t *testing.T, tier *limit.Tier, i int) {
		counting, period := tier.Counting(), tier.Period.Microseconds()
		if period == 0 {
			period = 24 * 3600 * second
		}
		var s limit.State
		at, sum, now := []int64{}, []int64{0}, noon // sum[i] is the number of units that were admitted before at[i]
		for range 600 {
			now += rng.Int64N(period / 10)
			if rng.IntN(8) == 0 { // to the other end of a window, or beyond it
				now += period - now%period - rng.Int64N(3)
			}
			cost := 1 + rng.Int64N(7)
			if !spend(tier, &s, now, cost) {
				continue
			}
			at, sum = append(at, now), append(sum, sum[len(sum)-1]+cost)
			for j := range at {
				if most := counted[i].atOnce + (10*(now-at[j])+period-1)/period; sum[len(sum)-1]-sum[j] > most {
					t.Fatalf("%d units in %d µs, want at most %d", sum[len(sum)-1]-sum[j], now-at[j], most)
				}
			}
			if last := tier.FreshAt(&s) - limit.MaxSkew.Microseconds() - now; counting.Lasts > 0 &&
				last > counting.Lasts {
				t.Fatalf("a charge lasts for %d µs, want at most %d", last, counting.Lasts)
			}
		}
	})
}

// spend charges a cost to the state if it fits.
func spend(tier *limit.Tier, s *limit.State, now, cost int64) bool {
	states := []limit.State{*s}
	d := decideOn(&limit.Request{Charges: []limit.Charge{{Limit: tier.Limit(), Cost: cost}}}, now, states)
	*s = states[0]
	return d.Allowed
}
