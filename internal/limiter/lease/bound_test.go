package lease_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// leasable lists the algorithms that have leases.
var leasable = []limit.Algorithm{limit.FixedWindow, limit.SlidingWindow, limit.SlidingBuckets, limit.SlidingLog,
	limit.TokenBucket, limit.Quota}

var periods = []time.Duration{20 * time.Millisecond, 333 * time.Millisecond, time.Second, 10 * time.Second, time.Minute}

// withPeriods lists the algorithms whose tiers differ by their period.
var withPeriods = slices.DeleteFunc(limit.Algorithms(), limit.Algorithm.HasCalendar)

func randomTier(r *rand.Rand, a limit.Algorithm, period time.Duration) limit.Tier {
	t := limit.Tier{Algorithm: a, Period: period, Threshold: 1 + r.Int64N(40)}
	switch a {
	case limit.TokenBucket:
		t.Burst = 1 + r.Int64N(60)
	case limit.SlidingBuckets:
		t.Buckets = 1 + r.IntN(8)
	case limit.Quota:
		t.Period, t.Calendar = 0, &limit.Calendar{Every: limit.Day, Location: time.UTC}
	}
	return t
}

// randomPlans returns a plan whose first tier has the algorithm, and the plans that it may be changed into.
func randomPlans(tb testing.TB, r *rand.Rand, a limit.Algorithm, alone, changed bool) [][]*limit.Limit {
	tb.Helper()
	var limits []limit.Limit
	for i := range 1 + r.IntN(3) {
		l := limit.Limit{ID: string(rune('a' + i)), MaxCost: 4, AlignOwner: r.IntN(3) == 0}
		first := a
		if i > 0 {
			first = limit.Algorithms()[r.IntN(len(limit.Algorithms()))]
			if r.IntN(5) == 0 {
				l.Mode = limit.Shadow
			}
			l.Exact = r.IntN(6) == 0
		}
		if r.IntN(3) == 0 {
			l.Per = "subject"
		}
		p := r.IntN(len(periods))
		l.Tiers = append(l.Tiers, randomTier(r, first, periods[p]))
		if !alone && r.IntN(3) == 0 {
			l.Tiers = append(l.Tiers, randomTier(r, withPeriods[r.IntN(len(withPeriods))], periods[(p+1)%len(periods)]))
		}
		limits = append(limits, l)
		if alone {
			break
		}
	}
	versions := 1
	if changed {
		versions = 3
	}
	var plans [][]*limit.Limit
	for v := range versions {
		var plan []*limit.Limit
		for i, l := range limits {
			if v > 0 && i > 0 && r.IntN(4) == 0 { // the limit is removed
				continue
			}
			l.Tiers = append([]limit.Tier(nil), l.Tiers...)
			for j := range l.Tiers {
				if t := &l.Tiers[j]; v > 0 && r.IntN(2) == 0 {
					t.Threshold = 1 + r.Int64N(40)
				}
			}
			if v > 0 && r.IntN(4) == 0 {
				l.Exact = !l.Exact
			}
			if v > 0 && len(l.Tiers) > 1 && r.IntN(3) == 0 {
				l.Tiers = l.Tiers[:1]
			}
			made := limittest.MustNew(tb, l)
			plan = append(plan, made)
		}
		plans = append(plans, plan)
	}
	return plans
}

// play runs the script of a seed, and returns its world and the errors of the checkers. If kept, the world keeps a log.
func play(tb testing.TB, seed uint64, f fault, a limit.Algorithm, alone, changed, kept bool) (*world, []string) {
	tb.Helper()
	w := newWorld(tb, seed, f, randomPlans(tb, rand.New(rand.NewPCG(seed, uint64(a))), a, alone, changed)...)
	if kept {
		w.log = new(strings.Builder)
	}
	return w, w.run(150)
}

// Guarantees that the admitted units of all instances stay within the bound of each algorithm, however the instances
// behave and whatever their clocks say.
func TestLeasesKeepTheBound(t *testing.T) {
	soak.SkipUnderRace(t)
	scripts := soak.Times(uint64(30))
	for _, a := range leasable {
		for _, kind := range []struct {
			name           string
			alone, changed bool
		}{{"alone", true, false}, {"mixed", false, false}, {"changed", false, true}} {
			t.Run(fmt.Sprintf("%s/%s", a, kind.name), func(t *testing.T) {
				t.Parallel()
				var sum tally
				for seed := range scripts {
					w, wrong := play(t, seed, noFault, a, kind.alone, kind.changed, false)
					if len(wrong) > 0 {
						t.Errorf("seed %d: %s", seed, strings.Join(wrong, "\n"))
						// the error may not come back at once, because owners are distributed to shards in a different
						// way in each run
						for range 50 {
							if w, again := play(t, seed, noFault, a, kind.alone, kind.changed, true); len(again) > 0 {
								t.Fatalf("the same script once more, with its log: %s\n%s", strings.Join(again, "\n"),
									w.log)
							}
						}
						t.FailNow()
					}
					sum.add(&w.sum)
				}
				t.Logf("%d scripts: %+v", scripts, sum)
				if n := int64(scripts); sum.admitted < 20*n || sum.local < 10*n || sum.denied < 5*n ||
					sum.late < 10*n || sum.nested < n ||
					sum.failed < n || sum.frozen < n || sum.waited < n/20 {
					t.Errorf("too little happened: the test shows nothing")
				}
			})
		}
	}
}

// TestBrokenIsCaught guarantees that the checkers notice each fault, in each algorithm that can have it.
func TestBrokenIsCaught(t *testing.T) {
	windows := []limit.Algorithm{limit.FixedWindow, limit.Quota, limit.SlidingWindow}
	stamps := []limit.Algorithm{limit.SlidingLog, limit.SlidingBuckets}
	ramps := []limit.Algorithm{limit.TokenBucket, limit.SlidingWindow}
	for _, tt := range []struct {
		fault fault
		of    []limit.Algorithm
	}{
		{clocksStand, leasable},
		{uncharged, leasable},
		{outlives, leasable},
		{allAtOnce, ramps},
		{rampTooFar, ramps},
		{stampedNow, stamps},
		{backTwice, leasable},
		{backNow, windows},
	} {
		for _, a := range tt.of {
			t.Run(fmt.Sprintf("%s/%s", tt.fault, a), func(t *testing.T) {
				t.Parallel()
				const scripts = 3000
				for seed := range uint64(scripts) {
					if _, wrong := play(t, seed, tt.fault, a, true, false, false); len(wrong) > 0 {
						t.Logf("caught by script %d: %s", seed+1, wrong[0])
						return
					}
				}
				t.Errorf("no checker notices this fault in %d scripts, want at least one error", scripts)
			})
		}
	}
}
