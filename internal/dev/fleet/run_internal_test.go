package fleet

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Guarantees that an environment announces itself and returns leases during its decision. So if the decision and the
// announcement each take a round trip, the request takes one round trip and not two. A decision from leases counts as
// one without a call, whatever its environment does meanwhile.
func TestBackgroundTasksAreBesideDecision(t *testing.T) {
	s := &Scenario{Name: "beside", Measured: 20 * time.Second, Shape: Lambda, Instances: 1, Tenants: 1, Requests: 2,
		Busy: 10 * time.Millisecond, ColdStart: time.Microsecond}
	r, err := Run(t.Context(), Options{Scenario: s, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	trip := r.Costs.RoundTrip + 2*r.Costs.StoreService
	if r.Maxms > 1.1*trip.Seconds()*1e3 {
		t.Errorf("the slowest decision took %g ms, want one round trip, %s", r.Maxms, trip)
	}
	if asked := r.Decisions - r.Local; asked != r.Leases.Calls-r.Leases.Returns || asked == 0 {
		t.Errorf("%d of %d decisions are not local; want as many as there were leases, %d", asked, r.Decisions,
			r.Leases.Calls-r.Leases.Returns)
	}
}

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
		if err := r.addTenants([]load{{name: "a", rate: 1, sampled: true, charges: charges},
			{name: "b", rate: 1, sampled: true, charges: charges}}); err != nil {
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

// Guarantees that the retry storms of two tenants are independent: each of the two sends as many times its requests as
// the storm says, and the others send as many as without a storm.
func TestTwoStorms(t *testing.T) {
	s := &Scenario{Tenants: 4, Requests: 1000}
	loads := make([]load, 4)
	s.setRates(loads)
	var tr traffic
	if err := tr.init(s, loads, rand.New(rand.NewPCG(1, 1))); err != nil {
		t.Fatal(err)
	}
	const seconds = 200
	for tenant, factor := range map[int]float64{1: 4, 2: 6} {
		tr.storms = append(tr.storms, storm{until: seconds * 1e9, factor: factor, tenant: tenant,
			share: tr.share(tenant)})
	}
	tr.changeRate(0)
	var asked [4]int
	for tr.next < seconds*1e9 {
		asked[tr.take(tr.next)]++
	}
	for tenant, want := range [4]float64{250, 1000, 1500, 250} {
		if got := float64(asked[tenant]) / seconds; math.Abs(got-want) > want/20 {
			t.Errorf("tenant %d asks %.0f times a second, want %.0f", tenant, got, want)
		}
	}
}

// Guarantees that the rate of requests follows the daily curve: it is highest after a quarter of the day, and lowest
// after three quarters.
func TestDailySwing(t *testing.T) {
	s := &Scenario{Name: "day", Measured: 40 * time.Second, Instances: 2, Tenants: 5, Requests: 1000, DailySwing: 0.5,
		Day: 40 * time.Second}
	r, err := Run(t.Context(), Options{Scenario: s, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	rate := func(from int) (n int64) {
		for _, p := range r.Timeline.Points[from : from+4] {
			n += p.Allowed + p.Denied
		}
		return n / 4
	}
	if high, middle, low := rate(8), rate(18), rate(28); high < 1400 || high > 1550 || middle < 900 || middle > 1100 ||
		low < 450 || low > 600 {
		t.Errorf("%d requests per second at the quarter of a day, %d at half, %d at three quarters; want 1500, 1000, "+
			"500", high, middle, low)
	}
}

// Guarantees that a run which fails while decisions wait for the store ends with the error.
func TestFailsWhileDecisionsWait(t *testing.T) {
	broken := errors.New("the control plane: broken")
	for _, store := range []Store{Redis, DynamoDB} {
		s := &Scenario{Name: "fails", Measured: 5 * time.Second, Instances: 4, Tenants: 50, Requests: 5_000,
			Store: store, Limits: Limits{Period: time.Second},
			Faults: []Fault{{Kind: StoreSlow, At: 900 * time.Millisecond, For: time.Second, Factor: 100}}}
		waited := 0
		s.failAt = func(r *run) {
			waited = len(r.workers) - len(r.idle) - 1
			r.failed = broken
		}
		if _, err := Run(t.Context(), Options{Scenario: s, Seed: 1}); !errors.Is(err, broken) ||
			!strings.Contains(err.Error(), "broken") {
			t.Errorf("the error is %v, want %v", err, broken)
		}
		if waited < 1 {
			t.Error("no decision waited when the run failed: this is no test")
		}
	}
}

// Guarantees that the nodes of the store see the load of all tenants if only a sample is decided: they are as busy as
// if all were, and above their rate they do not answer in time.
func TestSampleLoadsNodes(t *testing.T) {
	s := Scenario{Name: "sample", WarmUp: 2 * time.Second, Measured: 3 * time.Second, Shape: Lambda, Instances: 300,
		Tenants: 200, Requests: 4_000, Shards: 2, Functions: 1, Busy: 20 * time.Millisecond,
		Limits: Limits{Algorithm: limit.LeakyBucket, Period: time.Second, Ample: 100, Scarce: 100}} // a call for each
	costs := Costs{StoreService: 200 * time.Microsecond}
	busy := func(every int, requests float64) (percent, degraded float64) {
		sampled := s
		sampled.SampleEvery, sampled.Requests = every, requests
		r, err := Run(t.Context(), Options{Scenario: &sampled, Seed: 1, Costs: costs})
		if err != nil {
			t.Fatal(err)
		}
		for _, sh := range r.Shards {
			percent += sh.BusyPct / float64(len(r.Shards))
		}
		return percent, float64(r.Degraded) / float64(r.Decisions)
	}
	all, _ := busy(1, 4_000)
	sample, degraded := busy(10, 4_000)
	if math.Abs(all-40) > 3 || math.Abs(sample-all) > 4 || degraded > 0.02 {
		t.Errorf("nodes are busy for %.1f %% of the time if all tenants are decided, for %.1f %% if a tenth is, of "+
			"which %.3f by the fallback limiter; want 40, 40, 0", all, sample, degraded)
	}
	if percent, degraded := busy(10, 14_000); percent < 50 || degraded < 0.2 {
		t.Errorf("with 1.4 times the calls that the nodes can serve, they are busy for %.1f %%, and the fallback "+
			"limiter decides %.3f; want most of the time, and more than a fifth", percent, degraded)
	}
}

// Guarantees that the first request of an environment waits for its start.
func TestColdStart(t *testing.T) {
	s := Scenario{Name: "cold", Measured: 5 * time.Second, Shape: Lambda, Instances: 1, Tenants: 1, Requests: 2,
		ColdStart: 250 * time.Millisecond, Busy: time.Millisecond}
	r, err := Run(t.Context(), Options{Scenario: &s, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	if r.ColdStarts != 1 || r.Maxms < 250 || r.Maxms > 252 {
		t.Errorf("%d environments were started, the slowest decision took %g ms; want 1, and some 250.5 ms",
			r.ColdStarts, r.Maxms)
	}
}
