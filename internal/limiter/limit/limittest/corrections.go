package limittest

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// coreCounter is one counter that is kept by package limit itself, without a store. Corrections by a store are compared
// with it, because the model of this package has no corrections.
type coreCounter struct {
	owner limit.Owner
	state limit.State
}

// decide charges the counter as a store does, if the charge is admitted.
func (c *coreCounter) decide(now time.Time, a limit.LeaseRequest, ch limit.Charge) *limit.Decision {
	d := new(limit.Decision)
	req := &limit.Request{Owner: c.owner, Charges: []limit.Charge{ch}, Leases: []limit.LeaseRequest{a}}
	e := d.BeginChecked(req, now.UnixMicro())
	e.Evaluate(0, &c.state, true)
	e.Settle()
	if d.Charges(0) {
		e.Charge(0, &c.state)
	}
	return d
}

// used returns how many units of the counter are used. It changes nothing.
func (c *coreCounter) used(now time.Time, l *limit.Limit) int64 {
	d := new(limit.Decision)
	e := d.BeginChecked(&limit.Request{Owner: c.owner, Charges: []limit.Charge{charge(l, 1)}}, now.UnixMicro())
	e.Evaluate(0, &c.state, false)
	return d.Results[0].Used()
}

// likeCore decides in the store and in the core, and fails unless the two agree about a limit with one tier.
func (s *subject) likeCore(what string, core *coreCounter, now time.Time, a limit.LeaseRequest, ch limit.Charge) {
	s.Helper()
	got, want := outcome(s.ask(now, []limit.LeaseRequest{a}, ch)), outcome(core.decide(now, a, ch))
	if got != want {
		s.Errorf("%s: %s, lease request %+v at %s\n got %s\nwant %s",
			what, describe([]limit.Charge{ch}), a, stamp(now), got, want)
	}
}

// outcome returns what a caller sees of a decision over one tier.
func outcome(d *limit.Decision) string {
	r := &d.Results[0]
	return fmt.Sprintf("allowed %t, never %t, charged %d, used %d, remaining %d, retry at %d, reset at %d",
		d.Allowed, d.Never, r.Charged, r.Used(), r.Remaining(), d.RetryAt, r.ResetAt())
}

// countsLikeCore makes decisions over more than two periods, and compares each with the core, so that every effect of a
// correction on the state becomes visible.
func (s *subject) countsLikeCore(what string, core *coreCounter, k sample, l *limit.Limit, from time.Time) {
	s.Helper()
	for _, step := range []struct {
		after time.Duration
		need  int64
	}{
		{0, 0}, {0, 5}, {k.period / 10, 7}, {k.period / 2, 9}, {k.period - time.Second, 3}, {k.period, 11},
		{k.period * 7 / 5, 4}, {k.period * 21 / 10, 20},
	} {
		s.likeCore(what, core, from.Add(step.after), limit.LeaseRequest{Need: step.need}, charge(l, max(step.need, 1)))
	}
}

// distances returns durations of up to one and a half periods, by which a time differs from that of a charge.
func (k sample) distances() []time.Duration {
	return []time.Duration{0, time.Microsecond, time.Second, k.period / 2, k.period - time.Microsecond, k.period,
		k.period * 3 / 2}
}

// testCorrectionAtDecision charges units, and gives units back, at the time of the decision, whatever that is and
// whenever the counter was used before. The units must count, and the counter must then count like the core.
func testCorrectionAtDecision(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		for i, later := range k.distances() {
			l, core := k.limit(tb, fmt.Sprint("twenty", i), 20), &coreCounter{owner: s.owner}
			what := fmt.Sprintf("a correction %s after a charge", later)
			start := Start.Add(1500 * time.Millisecond)
			now := start.Add(later)
			ask := func(at time.Time, need, correction int64) int64 {
				a := limit.LeaseRequest{Need: need, Correction: correction, CorrectionAt: limit.AtDecision}
				before := core.used(at, l)
				s.likeCore(what, core, at, a, charge(l, max(need, 1)))
				return core.used(at, l) - before
			}
			ask(start, 6, 0)
			if more := ask(now, 0, 5); more != 5 && !k.oneAtATime() { // a leaky bucket's Used is all or nothing
				s.Errorf("%s: 5 units are charged, and the counter has %d more", what, more)
			}
			if k.algorithm == limit.FixedWindow || k.algorithm == limit.SlidingWindow || k.algorithm == limit.Quota {
				if more := ask(now, 0, -2); more != -2 {
					s.Errorf("%s: 2 units are given back, and the counter has %d more", what, more)
				}
			}
			s.countsLikeCore(what, core, k, l, now)
		}
	})
}

// testCorrectionToZero gives back all units of a counter. The counter must then count like the core: its window begins
// and ends at the same times, and the same units are left.
func testCorrectionToZero(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		for i, later := range k.distances() {
			for _, need := range []int64{0, 3} {
				l, core := k.limit(tb, fmt.Sprint("twenty", i, "-", need), 20), &coreCounter{owner: s.owner}
				what := fmt.Sprintf("6 units come back %s after their charge", later)
				start := Start.Add(1500 * time.Millisecond)
				s.likeCore(what, core, start, limit.LeaseRequest{Need: 6}, charge(l, 6))
				back := limit.LeaseRequest{Need: need, Correction: -6, CorrectionAt: start.UnixMicro()}
				s.likeCore(what, core, start.Add(later), back, charge(l, 3))
				s.countsLikeCore(what, core, k, l, start.Add(later))
			}
		}
	})
}

// testReplayBeforeNow adds units that were admitted elsewhere, at a time before now, to a counter that was never used.
// The counter must then count like the core.
func testReplayBeforeNow(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		for i, ago := range k.distances() {
			for _, need := range []int64{0, 3} {
				l, core := k.limit(tb, fmt.Sprint("twenty", i, "-", need), 20), &coreCounter{owner: s.owner}
				what := fmt.Sprintf("5 units were admitted elsewhere %s ago", ago)
				now := Start.Add(k.period * 9 / 5)
				owe := limit.LeaseRequest{Need: need, Correction: 5, CorrectionAt: now.Add(-ago).UnixMicro()}
				s.likeCore(what, core, now, owe, charge(l, 3))
				s.countsLikeCore(what, core, k, l, now)
			}
		}
	})
}
