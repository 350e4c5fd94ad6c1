package pacer

import (
	"math"
	"testing"
	"time"
)

// The rule of Learning, interval by interval.
func TestLearner(t *testing.T) {
	r := newLearner(Learning{Start: 100}, PerSecond(1000), 0)
	now := time.Duration(0)
	// next lets an interval pass with so many accepted and refused units, of requests that were sent at the given time.
	next := func(accepted, refused int64, sent time.Duration, want float64) {
		t.Helper()
		r.observe(false, accepted, sent)
		if refused > 0 {
			r.observe(true, refused, sent)
		}
		if r.judge(now + time.Second - 1) {
			t.Errorf("the rate changed before the interval was over")
		}
		now += time.Second
		r.judge(now)
		if math.Abs(r.rate-want) > 1e-6*want {
			t.Errorf("after %s the rate is %v, want %v", now, r.rate, want)
		}
	}
	next(100, 0, now, 150)
	next(134, 0, now, 150) // too little of it was used
	next(150, 0, now, 225)
	next(220, 3, now, 0.99*220)
	before := now - 1
	next(217, 50, before, 217.8+0.25*(0.99*225-217.8)) // refusals of requests from before the cut, and the climb
	for range 9 {
		r.rate = r.target
		next(int64(r.target), 0, now, r.target)
	}
	next(int64(r.target), 0, now, r.target)
	target := r.target
	next(int64(target), 0, now, target*1.01)
	next(int64(r.rate), 0, now, target*1.01*1.013)
	high := r.rate
	next(10, 1, now, 0.7*high)
	now += 10 * time.Second // an idle time
	next(1000, 0, now, 0.7*high)
	for range 100 {
		r.observe(false, 10_000, now)
		now += time.Second
		r.judge(now)
	}
	if r.rate != 1000 {
		t.Errorf("the rate has grown to %v, want the limit of 1000", r.rate)
	}
	for range 100 {
		r.observe(true, 1, now)
		now += time.Second
		r.judge(now)
	}
	if r.rate != 1 {
		t.Errorf("the rate has fallen to %v, want 1", r.rate)
	}
}

// With a period of a minute, replies are judged once in a minute. Otherwise a window whose units are all spent could be
// judged by its end alone, in which everything is refused.
func TestLearnerOfLongPeriods(t *testing.T) {
	r := newLearner(Learning{}, Limit{Units: 600, Period: time.Minute}, 0)
	if r.rate != 60 || r.judge(59*time.Second) ||
		!func() bool { r.observe(true, 1, 1); return r.judge(time.Minute) }() {
		t.Errorf("the rate is %v after a minute", r.rate)
	}
	r = newLearner(Learning{}, Limit{Units: 5, Period: 10 * time.Millisecond}, 0)
	r.observe(false, 100, 0) // one unit in each of 100 periods
	if r.judge(time.Second); r.rate != 1.5 {
		t.Errorf("the rate is %v per period, want 1.5", r.rate)
	}
}

// A rate of a few units grows, although only whole units can be used.
func TestLearnerOfSmallRates(t *testing.T) {
	r := newLearner(Learning{}, PerSecond(10), 0)
	for now := time.Second; now < 20*time.Second; now += time.Second {
		r.observe(false, int64(r.rate), now)
		r.judge(now)
	}
	if r.rate != 10 {
		t.Errorf("the rate has grown to %v, want 10", r.rate)
	}
}
