package sim

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Guarantees that calls which the store does not serve count as calls, and that what the fallback limiter decides at
// once does not count as decided from leases.
func TestStoreAwayIsNotLocal(t *testing.T) {
	s := &Scenario{Name: "away", Measured: 20 * time.Second, Instances: 2, Tenants: 10, Requests: 500,
		Limits: Limits{Period: time.Second},
		Faults: []Fault{{Kind: StoreAway, At: 5 * time.Second, For: 10 * time.Second}}}
	r, err := Run(t.Context(), Options{Scenario: s, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	if r.Degraded < r.Decisions/3 || r.Local+r.Degraded > r.Decisions {
		t.Errorf("%d decisions, %d by the fallback limiter, %d from leases; want a third or more by the fallback "+
			"limiter, and none of them from leases", r.Decisions, r.Degraded, r.Local)
	}
	sent := int64(math.Round(r.StoreOps * r.Seconds))
	if sh := &r.Shards[0]; sh.Unserved == 0 || sent <= sh.Unserved || r.Leases.Refused == 0 {
		t.Errorf("%d calls were sent, of which %d were not served, and breakers refused %d; want some of each", sent,
			sh.Unserved, r.Leases.Refused)
	}
}

// Guarantees that units above a limit are explained only by what the fallback limiter admitted, or the store forgot, of
// the same tier of the same tenant in the same window, or in a sliding window in the one before.
func TestUnexplained(t *testing.T) {
	const second = 1_000_000
	for _, test := range []struct {
		algorithm                limit.Algorithm
		degradedAt, forgottenAt  int64 // 2 units, and 3 units; seconds
		overAt, over, unexplains int64
	}{
		{limit.FixedWindow, 12, 13, 19, 6, 1},
		{limit.FixedWindow, 12, 22, 19, 6, 4},
		{limit.FixedWindow, 12, 13, 20, 6, 6},
		{limit.SlidingWindow, 12, 13, 20, 6, 1},
		{limit.SlidingWindow, 12, 13, 30, 6, 6},
		{limit.TokenBucket, 12, 13, 500, 6, 1},
	} {
		l, err := limit.New(limit.Limit{ID: "l", Tiers: []limit.Tier{{Algorithm: test.algorithm, Threshold: 10,
			Period: 10 * time.Second}}})
		if err != nil {
			t.Fatal(err)
		}
		r := &run{ctx: t.Context(), scenario: &Scenario{}, byName: map[string]*tenant{}}
		charges := []limit.Charge{{Limit: l, Cost: 1}}
		if err := r.addTenants([]load{{name: "a", rate: 1, charges: charges},
			{name: "b", rate: 1, charges: charges}}); err != nil {
			t.Fatal(err)
		}
		a, b := &r.tenants[0], &r.tenants[1]
		r.bounds.addDegraded(a, 0, test.degradedAt*second, 2)
		r.bounds.addForgotten(a, 0, test.forgottenAt*second, 3)
		r.bounds.addDegraded(b, 0, test.degradedAt*second, 100)
		for range test.over {
			r.bounds.addOver(a, 0, test.overAt*second, 1)
		}
		if r.bounds.unexplained != test.unexplains {
			t.Errorf("%+v: %d units are unexplained, want %d", test, r.bounds.unexplained, test.unexplains)
		}
	}
}

// Guarantees that a run which fails while decisions wait for the store ends with the error. The store becomes slow just
// before that, so that no circuit breaker has opened.
func TestFailsWhileDecisionsWait(t *testing.T) {
	broken := errors.New("broken")
	s := &Scenario{Name: "fails", Measured: 5 * time.Second, Instances: 4, Tenants: 50, Requests: 5_000,
		Limits: Limits{Period: time.Second},
		Faults: []Fault{{Kind: StoreSlow, At: 990 * time.Millisecond, For: time.Second, Factor: 100}}}
	waited := 0
	s.failAt = func(r *run) {
		waited = len(r.workers) - len(r.idle) - 1
		r.failed = broken
	}
	if _, err := Run(t.Context(), Options{Scenario: s, Seed: 1}); !errors.Is(err, broken) {
		t.Errorf("the error is %v, want %v", err, broken)
	}
	if waited < 1 {
		t.Error("no decision waited when the run failed: this is no test")
	}
}
