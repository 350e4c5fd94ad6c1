package judge_test

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/fleet/judge"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Guarantees that each judge gives the results of a worked example: 10 units in 10 s, spent in the order of time and
// also late.
func TestJudge(t *testing.T) {
	type spend struct{ atSeconds, units, over int64 }
	tests := map[limit.Algorithm][]spend{
		limit.FixedWindow: {
			{100, 8, 0}, {109, 3, 1}, {109, 1, 1}, {110, 9, 0},
			{109, 1, 1}, // late: counted in the window that has ended
			{119, 2, 1}, {300, 10, 0},
		},
		limit.SlidingWindow: {
			{100, 8, 0}, {109, 2, 0},
			{115, 5, 0},              // 10 units of the window before weigh a half: 5
			{115, 2, 2}, {119, 2, 0}, // 10 units of the window before weigh a tenth: 1; 7 are spent
			{109, 1, 1}, // late: its own window holds 10 already
		},
		limit.TokenBucket: {{100, 10, 0}, {101, 2, 1}, {102, 1, 0}, {112, 10, 0}, {112, 1, 1}},
	}
	for alg, spends := range tests {
		j := judge.New(judge.Counter{Algorithm: alg, Most: 10, Burst: 10, Period: 10 * time.Second})
		for i, s := range spends {
			if fits := j.Clone().Fits(s.atSeconds*1e6, s.units); fits != (s.over == 0) {
				t.Errorf("%v, step %d: Fits = %t, want %t", alg, i, fits, s.over == 0)
			}
			if over := j.Spend(s.atSeconds*1e6, s.units); over != s.over {
				t.Errorf("%v, step %d: Spend(%d, %d) = %d, want %d", alg, i, s.atSeconds, s.units, over, s.over)
			}
		}
	}
	shifted := judge.New(judge.Counter{Algorithm: limit.FixedWindow, Most: 10, Period: 10 * time.Second,
		Offset: 3 * time.Second})
	for i, s := range []spend{{105, 8, 0}, {112, 3, 1}, {113, 10, 0}, {122, 1, 1}, {123, 10, 0}} {
		if fits := shifted.Clone().Fits(s.atSeconds*1e6, s.units); fits != (s.over == 0) {
			t.Errorf("shifted windows, step %d: Fits = %t, want %t", i, fits, s.over == 0)
		}
		if over := shifted.Spend(s.atSeconds*1e6, s.units); over != s.over {
			t.Errorf("shifted windows, step %d: Spend(%d, %d) = %d, want %d", i, s.atSeconds, s.units, over, s.over)
		}
	}
	if judge.New(judge.Counter{Algorithm: limit.LeakyBucket, Most: 1, Period: time.Second}) != nil {
		t.Error("there is no judge of leaky buckets")
	}
}

// Guarantees that each algorithm that Algorithms lists has a judge, and that CountsTwice is true only for a sliding
// window, in which the window before counts in part.
func TestAlgorithms(t *testing.T) {
	for _, a := range judge.Algorithms() {
		if judge.New(judge.Counter{Algorithm: a, Most: 10, Burst: 10, Period: time.Second}) == nil {
			t.Errorf("Algorithms lists %s, which has no judge", a)
		}
		if got := judge.CountsTwice(a); got != (a == limit.SlidingWindow) {
			t.Errorf("CountsTwice(%s) = %t, want true for sliding windows only", a, got)
		}
	}
	if judge.New(judge.Counter{Algorithm: limit.LeakyBucket}) != nil || len(judge.Algorithms()) == 0 {
		t.Error("Algorithms lists leaky_bucket, which has no judge, or lists no algorithm")
	}
}
