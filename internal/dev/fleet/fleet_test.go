package fleet_test

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/dev/fleet"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

func named(t *testing.T, name string) *fleet.Scenario {
	t.Helper()
	all := fleet.Named()
	i := slices.IndexFunc(all, func(s fleet.Scenario) bool { return s.Name == name })
	if i < 0 {
		t.Fatalf("there is no scenario %s", name)
	}
	return &all[i]
}

func run(t *testing.T, s *fleet.Scenario, seed uint64) *fleet.Report {
	t.Helper()
	r, err := fleet.Run(t.Context(), fleet.Options{Scenario: s, Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestFaults runs the scenarios in which something goes wrong. In all of them the bounds of Report.Check hold. In those
// that keep the assumptions of docs/assumptions.md, no limit is exceeded and the fallback limiter decides nothing.
func TestFaults(t *testing.T) {
	if soak.RaceEnabled {
		t.Skip("one goroutine at a time, and the race detector makes it twenty times as slow")
	}
	for _, test := range []struct {
		name     string
		degraded bool    // the fallback limiter decides some requests
		over     bool    // limits may be exceeded, within the bound
		p99ms    float64 // the most that a hundredth of the decisions exceed
		earlyPct float64 // the most denials that need not have been, of the decisions
	}{
		{"redis-failover", true, true, 8, 4},
		{"redis-failover-loses", true, true, 8, 4},
		{"store-away", true, true, 8, 2},
		{"store-throttles", true, true, 8, 2},
		{"store-slow", true, true, 8, 2},
		{"clock-skew", false, false, 1, 2},
		{"instances-die", false, false, 1, 2},
		{"instances-join", false, false, 1, 2},
		{"rolling-restart", false, false, 1, 2},
		{"retry-storm", false, false, 1, 4},
		{"failover-and-storm", true, true, 8, 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := run(t, named(t, test.name), 1)
			var text bytes.Buffer
			if err := r.WriteText(&text); err != nil {
				t.Fatal(err)
			}
			if err := r.Check(); err != nil {
				t.Error(err)
			}
			if !test.over && r.Over > 0 {
				t.Errorf("%d units above a limit", r.Over)
			}
			if (r.Degraded > 0) != test.degraded {
				t.Errorf("the fallback limiter decided %d requests", r.Degraded)
			}
			if r.P99ms > test.p99ms {
				t.Errorf("p99 is %g ms, want at most %g", r.P99ms, test.p99ms)
			}
			if early := 100 * float64(r.Early) / float64(r.Decisions); early > test.earlyPct {
				t.Errorf("%.3f %% of the decisions are early denials, want at most %g %%", early, test.earlyPct)
			}
			if r.Denied == 0 || r.Local*10 < r.Decisions*7 {
				t.Error("the load does not show leases and denials")
			}
			if t.Failed() || testing.Verbose() {
				t.Log(text.String())
			}
		})
	}
}

// TestSameSeed tests that a seed is a run, byte for byte, and that another seed is another.
func TestSameSeed(t *testing.T) {
	if soak.RaceEnabled {
		t.Skip("one goroutine at a time, and the race detector makes it twenty times as slow")
	}
	s := named(t, "failover-and-storm")
	text := func(seed uint64) string {
		b, err := json.Marshal(run(t, s, seed))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	first := text(1)
	if second := text(1); second != first {
		t.Errorf("the same seed gave\n%s\nand then\n%s", first, second)
	}
	if text(2) == first {
		t.Error("another seed gave the same run")
	}
}

// TestMillionSmall tests the scenario million with a hundredth of its tenants and requests, at five instances.
func TestMillionSmall(t *testing.T) {
	s := named(t, "million")
	s.Tenants, s.Requests, s.Instances = 100, 10_000, 5
	r := run(t, s, 1)
	if perSecond := float64(r.Decisions) / r.Seconds; perSecond < 9_500 || perSecond > 10_500 {
		t.Errorf("%.0f requests per second", perSecond)
	}
	if r.Over != 0 || r.StoreOps > 1_000 || r.ShardsNeeded != 1 || r.P99ms > 1 {
		t.Errorf("%d over, %.0f calls per second, %d shards, p99 %g ms", r.Over, r.StoreOps, r.ShardsNeeded, r.P99ms)
	}
}

// TestLambda tests that environments are started when all are busy, that the most recent one is taken first, and that
// those without requests die.
func TestLambda(t *testing.T) {
	s := named(t, "lambda-recent")
	s.Tenants, s.Requests, s.Instances, s.SampleEvery = 100, 2_000, 100, 2
	s.RampUp, s.WarmUp, s.Measured, s.IdleDeath = 0, 0, 10*time.Second, time.Second
	recent := run(t, s, 1)
	s.Placement = fleet.RoundRobin
	inTurn := run(t, s, 1)
	// 2,000 requests a second of 5 ms each: ten environments are busy on average.
	if recent.Instances < 10 || recent.Instances > 40 || recent.ColdStarts <= int64(recent.Instances) {
		t.Errorf("%d environments, %d cold starts", recent.Instances, recent.ColdStarts)
	}
	if inTurn.ColdStarts != int64(inTurn.Instances) {
		t.Errorf("in turn: %d environments, %d cold starts; none should have died", inTurn.Instances, inTurn.ColdStarts)
	}
	for _, r := range []*fleet.Report{recent, inTurn} {
		if perSecond := float64(r.Decisions) / r.Seconds; perSecond < 950 || perSecond > 1150 || r.Over > 0 {
			t.Errorf("%.0f decisions per second, %d over", perSecond, r.Over)
		}
	}
}

// TestInterrupted tests that a run whose context ends gives a report about the time until then.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := named(t, "retry-storm")
	o := fleet.Options{Scenario: s, Seed: 1, Progress: func(done float64) {
		if done > 0.5 {
			cancel()
		}
	}}
	r, err := fleet.Run(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if !r.Partial || r.Decisions == 0 || !strings.HasPrefix(text.String(), "INTERRUPTED") || r.Seconds > 15 {
		t.Errorf("the report is %s", text.String())
	}
}

// TestMemoryBound tests that a bound on counters holds, and that the requests without room are decided by the store.
func TestMemoryBound(t *testing.T) {
	s := named(t, "retry-storm")
	r, err := fleet.Run(t.Context(), fleet.Options{Scenario: s, Seed: 1, MaxCounters: 500})
	if err != nil {
		t.Fatal(err)
	}
	if r.Leases.Counters > 500 || r.Over > 0 || r.Local == 0 {
		t.Errorf("%d counters, %d over, %d local", r.Leases.Counters, r.Over, r.Local)
	}
}

// TestPlans tests that the tenants and limits of a plans file are simulated.
func TestPlans(t *testing.T) {
	config, err := plan.Parse(configyaml.Source("plans.yaml", []byte(`
plans:
  - id: pro
    limits:
      - { id: per-second, algorithm: token_bucket, rate: 20, period: 1s }
      - { id: leaky, algorithm: leaky_bucket, rate: 1000, period: 1s }
tenants: [ { id: acme, plan: pro }, { id: globex, plan: pro } ]
`)))
	if err != nil {
		t.Fatal(err)
	}
	s := &fleet.Scenario{Name: "plans", Measured: 10 * time.Second, Instances: 3, Requests: 60}
	r, err := fleet.Run(t.Context(), fleet.Options{Scenario: s, Config: config, Path: "/"})
	if err != nil {
		t.Fatal(err)
	}
	if r.Tenants != 2 || r.Over != 0 || r.Allowed < 380 || r.Allowed > 440 || len(r.Limits) != 2 ||
		r.Limits[0].NotJudged || !r.Limits[1].NotJudged {
		t.Errorf("%+v", r)
	}
	if _, err := fleet.Run(t.Context(), fleet.Options{Scenario: &fleet.Scenario{Name: "x", Instances: 1,
		Requests: -1}}); err == nil || !strings.Contains(err.Error(), "requestsPerSecond -1") {
		t.Errorf("err = %v", err)
	}
}

// TestReadScript tests that a script is read, and that what is impossible in it is named with its place.
func TestReadScript(t *testing.T) {
	const good = `
instances: 4
requestsPerSecond: 500
tenants: 20
zipf: 0.8
measured: 5s
limits: { algorithm: sliding_window, period: 2s, low: 1 }
faults:
  - { kind: storeAway, at: 1s, for: 500ms }
  - { kind: instancesDie, at: 2s, instances: [1] }
`
	s, err := fleet.ReadScript("mine.yaml", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if err := run(t, s, 1).Check(); err != nil {
		t.Error(err)
	}
	for _, test := range []struct{ old, with, want string }{
		{"requestsPerSecond: 500", "requestsPerSecond: -5", "mine.yaml:3:20: requestsPerSecond: -5 is below zero"},
		{"instances: [1]", "instances: [4]", "faults[1]: instancesDie at 2s: there is no instance 4"},
		{"  - { kind: storeAway, at: 1s, for: 500ms }", "  - { kind: instancesDie, at: 1s, instances: [1] }",
			"mine.yaml:10:5: faults[1]: instancesDie at 2s: instance 1 does not run"},
		{"for: 500ms", "for: 0s", "faults[0]: storeAway at 1s: for is missing"},
		{"at: 2s", "at: 2m", "at is outside the run, 0s..5s"},
		{"instancesDie", "instanceDies", "want one of redisFailover"},
		{"zipf: 0.8", "zipf: x", "want a number"},
		{"tenants: 20", "", "tenants is missing"},
		{"measured: 5s", "mesured: 5s", "mesured"},
		{"period: 2s", "period: 2ms", "want whole seconds"},
	} {
		s, err := fleet.ReadScript("mine.yaml", []byte(strings.Replace(good, test.old, test.with, 1)))
		if err == nil {
			_, err = fleet.Run(t.Context(), fleet.Options{Scenario: s})
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", test.with, err, test.want)
		}
	}
}

func TestReadCosts(t *testing.T) {
	c, err := fleet.ReadCosts("costs.json", []byte(`{"localNanoseconds": 150, "storeServiceNanoseconds": 4000}`))
	if err != nil || c.Local != 150 || c.StoreService != 4*time.Microsecond {
		t.Errorf("%+v, %v", c, err)
	}
	for _, bad := range []string{`{"local": 1}`, `{"localNanoseconds": -1}`, ``} {
		if _, err := fleet.ReadCosts("costs.json", []byte(bad)); err == nil || !strings.HasPrefix(err.Error(),
			"costs") {
			t.Errorf("%s: error %v", bad, err)
		}
	}
}
