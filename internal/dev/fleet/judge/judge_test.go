package judge_test

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/fleet/judge"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// TestJudge tests each judge with a worked case: 10 units in 10 s, of which some are spent, in order and late.
func TestJudge(t *testing.T) {
	type spend struct{ atSeconds, units, over int64 }
	tests := map[limit.Algorithm][]spend{
		limit.FixedWindow: {
			{100, 8, 0}, {109, 3, 1}, {109, 1, 1}, {110, 9, 0},
			{109, 1, 1}, // late: it counts in the window that has ended
			{119, 2, 1}, {300, 10, 0},
		},
		limit.SlidingWindow: {
			{100, 8, 0}, {109, 2, 0},
			{115, 5, 0},              // half of 10 weighs 5
			{115, 2, 2}, {119, 2, 0}, // a tenth of 10 weighs 1, and 7 are spent
			{109, 1, 1}, // late: 10 were spent in its window
		},
		limit.TokenBucket: {{100, 10, 0}, {101, 2, 1}, {102, 1, 0}, {112, 10, 0}, {112, 1, 1}},
	}
	for alg, spends := range tests {
		j := judge.New(judge.Counter{Algorithm: alg, Most: 10, Burst: 10, Period: 10 * time.Second})
		for i, s := range spends {
			if fits := j.Clone().Fits(s.atSeconds*1e6, s.units); fits != (s.over == 0) {
				t.Errorf("%v %d: Fits = %t", alg, i, fits)
			}
			if over := j.Spend(s.atSeconds*1e6, s.units); over != s.over {
				t.Errorf("%v %d: Spend(%d, %d) = %d, want %d", alg, i, s.atSeconds, s.units, over, s.over)
			}
		}
	}
	if judge.New(judge.Counter{Algorithm: limit.LeakyBucket, Most: 1, Period: time.Second}) != nil {
		t.Error("there is no judge of leaky buckets")
	}
}

// Guarantees that each algorithm of the list has a judge, and that units are expected to count twice only where a
// window weighs those of the window before.
func TestAlgorithms(t *testing.T) {
	for _, a := range judge.Algorithms() {
		if judge.New(judge.Counter{Algorithm: a, Most: 10, Burst: 10, Period: time.Second}) == nil {
			t.Errorf("%s is listed and has no judge", a)
		}
		if got := judge.CountsTwice(a); got != (a == limit.SlidingWindow) {
			t.Errorf("CountsTwice(%s) = %t", a, got)
		}
	}
	if judge.New(judge.Counter{Algorithm: limit.LeakyBucket}) != nil || len(judge.Algorithms()) == 0 {
		t.Error("a leaky_bucket has a judge, or no algorithm has one")
	}
}
