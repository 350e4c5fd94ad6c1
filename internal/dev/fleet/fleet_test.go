package fleet_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"runtime"
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

// Guarantees that the bounds of Report.Check hold in every named scenario with a fault. In the scenarios that keep the
// assumptions of docs/assumptions.md, moreover, no limit is exceeded and the fallback limiter decides nothing.
func TestFaults(t *testing.T) {
	if soak.RaceEnabled {
		t.Skip("one goroutine at a time, and the race detector makes it twenty times as slow")
	}
	for i, test := range []struct {
		name     string
		degraded bool    // want decisions of the fallback limiter; otherwise there must be none
		over     bool    // limits may be exceeded, within the bound
		p99ms    float64 // upper bound of the 99th percentile of the time of a decision
		earlyPct float64 // upper bound of the denials that come although units were left, in percent of the decisions
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
		{"dynamodb", false, false, 11, 2},
		{"dynamodb-throttles", true, true, 11, 4},
		{"dynamodb-hot-key", true, true, 11, 12},
		{"cell-lost", false, false, 1, 6},
		{"cell-joins", false, false, 1, 4},
		{"poisoned-configuration", false, false, 1, 2},
		{"configuration-away", false, false, 1, 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			if i%3 != 0 {
				soak.SkipInQuick(t)
			}
			r := run(t, named(t, test.name), 1)
			var text bytes.Buffer
			if err := r.WriteText(&text); err != nil {
				t.Fatal(err)
			}
			if err := r.Check(); err != nil {
				t.Error(err)
			}
			if !test.over && r.Over > 0 {
				t.Errorf("%d units were admitted above a limit, want none", r.Over)
			}
			if (r.Degraded > 0) != test.degraded {
				t.Errorf("the fallback limiter decided %d requests; want some: %t", r.Degraded, test.degraded)
			}
			if r.P99ms > test.p99ms {
				t.Errorf("p99 is %g ms, want at most %g", r.P99ms, test.p99ms)
			}
			if early := 100 * float64(r.Early) / float64(r.Decisions); early > test.earlyPct {
				t.Errorf("%.3f %% of the decisions are early denials, want at most %g %%", early, test.earlyPct)
			}
			if r.Denied == 0 || r.Local*10 < (r.Decisions-r.Degraded)*7 {
				t.Error("the load is no test: it needs denials, and leases for 70 % of what the fallback limiter " +
					"does not decide")
			}
			if t.Failed() || testing.Verbose() {
				t.Log(text.String())
			}
		})
	}
}

// Guarantees that a run depends on its seed alone: the same seed gives the same report, byte for byte, and another seed
// gives another report.
func TestSameSeed(t *testing.T) {
	if soak.RaceEnabled {
		t.Skip("one goroutine at a time, and the race detector makes it twenty times as slow")
	}
	for _, name := range []string{"failover-and-storm", "dynamodb-throttles"} {
		t.Run(name, func(t *testing.T) { sameSeed(t, named(t, name)) })
	}
	t.Run("lambda", func(t *testing.T) {
		s := *named(t, "lambda-recent")
		s.Tenants, s.Requests, s.SampleEvery, s.Instances = 100, 10_000, 1, 100
		s.RampUp, s.WarmUp, s.Measured = 0, time.Second, time.Second
		sameSeed(t, &s)
	})
}

// sameSeed checks a scenario.
func sameSeed(t *testing.T, s *fleet.Scenario) {
	text := func(seed uint64) string {
		r, err := fleet.Run(t.Context(), fleet.Options{Scenario: s, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	first := text(1)
	if second := text(1); second != first {
		t.Errorf("two runs with the same seed differ:\n%s\nand\n%s", first, second)
	}
	if text(2) == first {
		t.Error("seed 2 gave the same report as seed 1")
	}
}

// Guarantees that the scenario "million" keeps within its limits with few calls to the store. It runs with a hundredth
// of its tenants and requests, on five instances.
func TestMillionSmall(t *testing.T) {
	soak.SkipUnderRace(t)
	s := named(t, "million")
	s.Tenants, s.Requests, s.Instances = 100, 10_000, 5
	r := run(t, s, 1)
	if perSecond := float64(r.Decisions) / r.Seconds; perSecond < 9_500 || perSecond > 10_500 {
		t.Errorf("%.0f requests per second, want 9500..10500", perSecond)
	}
	if r.Over != 0 || r.StoreOps > 1_000 || r.ShardsNeeded != 1 || r.P99ms > 1 {
		t.Errorf("%d over, %.0f calls per second, %d shards, p99 %g ms", r.Over, r.StoreOps, r.ShardsNeeded, r.P99ms)
	}
}

// Guarantees that environments are started when all others are busy, and that an environment without requests ends
// after IdleDeath. If the environment that answered last is chosen first, the others stay idle and end; if the
// environments take turns, none ends.
func TestLambda(t *testing.T) {
	s := named(t, "lambda-recent")
	s.Tenants, s.Requests, s.Instances, s.SampleEvery = 100, 2_000, 100, 2
	s.RampUp, s.WarmUp, s.Measured, s.IdleDeath = 0, 0, 10*time.Second, time.Second
	s.ColdStart = time.Millisecond // so that the first requests of all do not start an environment each
	recent := run(t, s, 1)
	s.Placement = fleet.RoundRobin
	inTurn := run(t, s, 1)
	// 2,000 requests a second of 5 ms each: ten environments are busy on average.
	if recent.Instances < 10 || recent.Instances > 40 || recent.ColdStarts <= int64(recent.Instances) {
		t.Errorf("most recent first: %d environments and %d cold starts, "+
			"want 10..40, and more cold starts than environments", recent.Instances, recent.ColdStarts)
	}
	if inTurn.ColdStarts != int64(inTurn.Instances) {
		t.Errorf("in turn: %d environments and %d cold starts, want as many: "+
			"no environment should have ended", inTurn.Instances, inTurn.ColdStarts)
	}
	for _, r := range []*fleet.Report{recent, inTurn} {
		if perSecond := float64(r.Decisions) / r.Seconds; perSecond < 950 || perSecond > 1150 || r.Over > 0 {
			t.Errorf("%.0f decisions per second, %d units above a limit; want 950..1150, 0", perSecond, r.Over)
		}
	}
}

// Guarantees that fewer calls to the store are needed if the tenants are divided among many functions. Each tenant then
// meets the same environments, and their leases, more often.
func TestFunctions(t *testing.T) {
	soak.SkipUnderRace(t)
	s := named(t, "lambda-functions")
	s.Tenants, s.Requests, s.Instances, s.SampleEvery, s.Functions = 100, 10_000, 1_000, 1, 1
	s.RampUp, s.WarmUp, s.Measured, s.ColdStart = 0, 2*time.Second, 4*time.Second, time.Millisecond
	one := run(t, s, 1)
	s.Functions = 25
	many := run(t, s, 1)
	if many.StoreOps > 0.7*one.StoreOps || many.Over > 0 || many.Refused > 0 || many.Instances <= one.Instances {
		t.Errorf("%.0f store calls per second with one function, %.0f with 25; %d and %d environments; "+
			"with 25: %d units above a limit, %d requests refused",
			one.StoreOps, many.StoreOps, one.Instances, many.Instances, many.Over, many.Refused)
	}
}

// Guarantees that windows which end at another time for each tenant spread the calls to the store over the period, and
// that the judge counts such windows correctly.
func TestAlignTenant(t *testing.T) {
	soak.SkipUnderRace(t)
	s := &fleet.Scenario{Name: "windows", WarmUp: 11 * time.Second, Measured: 10 * time.Second, Instances: 10,
		Tenants: 500, Requests: 10_000, Zipf: 0.6, Limits: fleet.Limits{Period: 10 * time.Second}}
	clock := run(t, s, 1)
	s.Limits.AlignTenant = true
	tenant := run(t, s, 1)
	if peak := clock.Shards[0].PeakPerS; tenant.Shards[0].PeakPerS > peak*3/4 || tenant.Over+clock.Over > 0 ||
		tenant.Limits[0].NotJudged || tenant.Denied == 0 {
		t.Errorf("most store calls in a second: %d with windows by the clock, %d by tenant; units above a limit: %d "+
			"and %d; denied: %d", peak, tenant.Shards[0].PeakPerS, clock.Over, tenant.Over, tenant.Denied)
	}
}

// Guarantees that a run whose context ends reports on the time until then, and says on the page and in the text that it
// was interrupted.
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
	var page bytes.Buffer
	if err := r.WriteHTML(&page); err != nil || !strings.Contains(page.String(), "Interrupted") {
		t.Errorf("the page does not say that the run was interrupted (%v)", err)
	}
	if !r.Partial || r.Decisions == 0 || !strings.HasPrefix(text.String(), "INTERRUPTED") || r.Seconds > 15 {
		t.Errorf("the text report does not say that the run was interrupted:\n%s", text.String())
	}
}

// Guarantees that the parts of the report agree with each other: the points of the timeline add up to the totals, each
// fault says what happened after it, and the page shows both. The page has its own two scripts and no other.
func TestPage(t *testing.T) {
	soak.SkipUnderRace(t)
	s := named(t, "failover-and-storm")
	s.About = "</script><script>alert(1)</script>"
	r := run(t, s, 1)
	var sum fleet.Happened
	for _, p := range r.Timeline.Points {
		sum.Allowed += p.Allowed
		sum.Denied += p.Denied
		sum.Early += p.Early
		sum.Degraded += p.Degraded
		sum.Over += p.Over
		sum.StoreOps += p.StoreOps
	}
	want := fleet.Happened{Allowed: r.Allowed, Denied: r.Denied, Early: r.Early, Degraded: r.Degraded, Over: r.Over,
		StoreOps: int64(math.Round(r.StoreOps * r.Seconds))}
	if sum != want || len(r.Timeline.Points) != 25 || r.Timeline.Points[0].At != 5 {
		t.Errorf("the %d points of the timeline add up to %+v, want %+v", len(r.Timeline.Points), sum, want)
	}
	away, storm := &r.Faults[0], &r.Faults[1]
	if away.Degraded+storm.Degraded != r.Degraded || away.DegradedFor < 2.9 || away.To != 13 || storm.To != 30 ||
		storm.Over != r.Over || away.Maxms < 7 {
		t.Errorf("the effects of the faults are %+v and %+v", away, storm)
	}
	if r.Money == nil || r.Money.Monthly == 0 {
		t.Errorf("the monthly cost is %+v", r.Money)
	}
	var page bytes.Buffer
	if err := r.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf(`data-total="denied" data-value="%d"`, r.Denied),
		fmt.Sprintf(`data-field="degraded" data-value="%d"`, away.Degraded),
	} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page does not contain %s", want)
		}
	}
	if n := strings.Count(page.String(), "<script"); n != 2 || strings.Contains(page.String(), "Interrupted") {
		t.Errorf("the page has %d script elements, want its own 2, or says that the run was interrupted", n)
	}
}

// Guarantees that MaxCounters bounds how many counters the processes hold, and that requests whose counters have no
// room are decided by the store without exceeding a limit.
func TestMemoryBound(t *testing.T) {
	soak.SkipUnderRace(t)
	s := named(t, "retry-storm")
	r, err := fleet.Run(t.Context(), fleet.Options{Scenario: s, Seed: 1, MaxCounters: 500})
	if err != nil {
		t.Fatal(err)
	}
	if r.Leases.Counters > 500 || r.Over > 0 || r.Local == 0 {
		t.Errorf("%d counters in all processes, %d units above a limit, %d decisions without a call",
			r.Leases.Counters, r.Over, r.Local)
	}
}

// Guarantees that the tenants and limits of a plans file are simulated, and that an impossible scenario is refused with
// the name of the field.
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
	for want, change := range map[string]func(*fleet.Scenario){
		"tenants has no effect with a plans file": func(s *fleet.Scenario) { s.Tenants = 5 },
		"limits has no effect with a plans file":  func(s *fleet.Scenario) { s.Limits.Low = 5 },
		"faults[0], retryStorm at 1s: there is no tenant 3, but 2 of them": func(s *fleet.Scenario) {
			s.Faults = []fleet.Fault{{Kind: fleet.RetryStorm, At: time.Second, For: time.Second, Factor: 2, Tenant: 3}}
		},
	} {
		wrong := *s
		change(&wrong)
		if _, err := fleet.Run(t.Context(), fleet.Options{Scenario: &wrong, Config: config, Path: "/"}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want %q", err, want)
		}
	}
	r, err := fleet.Run(t.Context(), fleet.Options{Scenario: s, Config: config, Path: "/"})
	if err != nil {
		t.Fatal(err)
	}
	if r.Tenants != 2 || r.Over != 0 || r.Allowed < 380 || r.Allowed > 440 || len(r.Limits) != 2 ||
		r.Limits[0].NotJudged || r.Limits[1].NotJudged || r.NotJudged != 0 {
		t.Errorf("the report of a plans file's tenants is %+v", r)
	}
	if _, err := fleet.Run(t.Context(), fleet.Options{Scenario: &fleet.Scenario{Name: "x", Instances: 1,
		Tenants: 1, Requests: -1}}); err == nil || !strings.Contains(err.Error(), "requestsPerSecond -1") {
		t.Errorf("a scenario with -1 requests per second gives error %v, want one that names requestsPerSecond", err)
	}
}

// Guarantees that recorded requests are simulated in place of generated ones, each at its time and for its tenant, and
// that requests out of order or of an unknown tenant are refused.
func TestArrivals(t *testing.T) {
	config, err := plan.Parse(configyaml.Source("plans.yaml", []byte(`
plans: [ { id: pro, limits: [ { id: few, algorithm: fixed_window, tiers: [ { period: 10s, threshold: 5 } ] } ] } ]
tenants: [ { id: acme, plan: pro }, { id: globex, plan: pro } ]
`)))
	if err != nil {
		t.Fatal(err)
	}
	simulate := func(arrivals ...fleet.Arrival) (*fleet.Report, error) {
		s := &fleet.Scenario{Name: "arrivals", WarmUp: 10 * time.Second, Measured: 20 * time.Second, Instances: 2,
			Shape: fleet.Lambda, Requests: 1, ColdStart: time.Millisecond}
		return fleet.Run(t.Context(), fleet.Options{Scenario: s, Config: config, Path: "/", Arrivals: arrivals})
	}
	var arrivals []fleet.Arrival
	at := func(ms int, tenant string, n int) {
		for i := range n {
			arrivals = append(arrivals, fleet.Arrival{At: time.Duration(ms+50*i) * time.Millisecond, Tenant: tenant})
		}
	}
	at(9_000, "acme", 3)    // not measured
	at(12_000, "acme", 8)   // 5 are admitted
	at(19_000, "globex", 2) // 2
	at(21_000, "acme", 4)   // 4, in the next window
	at(26_000, "acme", 6)   // 1
	r, err := simulate(arrivals...)
	if err != nil {
		t.Fatal(err)
	}
	if r.Total != 23 || r.Allowed != 12 || r.Denied != 8 || r.Over != 0 || r.Refused != 0 {
		t.Errorf("%d requests, %d allowed, %d denied, %d over, %d refused; want 23, 12, 8, 0, 0", r.Total, r.Allowed,
			r.Denied, r.Over, r.Refused)
	}
	// A request that comes while all environments are busy starts another one. The second of these ends first.
	r, err = simulate(fleet.Arrival{At: 11 * time.Second, Tenant: "acme", Busy: 3 * time.Second},
		fleet.Arrival{At: 12 * time.Second, Tenant: "acme", Busy: time.Second},
		fleet.Arrival{At: 13500 * time.Millisecond, Tenant: "acme", Busy: time.Second},
		fleet.Arrival{At: 13600 * time.Millisecond, Tenant: "acme"},
		fleet.Arrival{At: 15 * time.Second, Tenant: "acme"})
	if err != nil || r.ColdStarts != 2 || r.Refused != 1 || r.Allowed != 4 {
		t.Errorf("%d environments were started, %d requests refused, %d admitted, %v; want 2, 1, 4", r.ColdStarts,
			r.Refused, r.Allowed, err)
	}
	for name, wrong := range map[string]fleet.Arrival{
		`tenant "nobody"`: {At: 30 * time.Second, Tenant: "nobody"},
		"at 5s":           {At: 5 * time.Second, Tenant: "acme"},
	} {
		if _, err := simulate(append(slices.Clone(arrivals), wrong)...); err == nil ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("the error is %v, want one that names %s", err, name)
		}
	}
}

// Guarantees that a scenario file is read in full, and that each impossible value in it is named with its place in the
// file.
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
	s, err := fleet.ReadScript("mine.yaml", []byte(good), false, false)
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
		{"period: 2s", "period: 2s, align: owner", "want one of clock, tenant"},
		{"zipf: 0.8", "functions: 3", "functions is for Lambda"},
		{"zipf: 0.8", "cells: 65", "cells: 65 is outside 1 to 64"},
		{"zipf: 0.8", "pinEvery: 2", "pinEvery is for several cells"},
		{"zipf: 0.8", "shape: lambda\ncells: 2", "several cells, and changes of the configuration"},
		{"zipf: 0.8", "shape: lambda\nbehindAuthorizer: 1ms", "behindAuthorizer is for instances of serve"},
		{"zipf: 0.8", "shape: serve\nplacement: roundRobin", "mine.yaml:6:1: placement is for Lambda environments"},
		{"zipf: 0.8", "idleDeath: 1m", "idleDeath is for Lambda environments, and the shape is serve"},
		{"zipf: 0.8", "busy: 1ms", "busy is for Lambda environments, and the shape is serve"},
		{"zipf: 0.8", "rampUp: 6s", "rampUp 6s is longer than the run, which is warmUp and measured, 5s"},
		{"storeAway", "storeSlow", "faults[0]: storeSlow at 1s: factor is missing: how many times as long"},
		{"storeAway", "storeThrottles", "faults[0]: storeThrottles at 1s: perSecond is missing: how many calls"},
		{"for: 500ms", "for: 500ms, factor: 2", "storeAway at 1s: factor has no effect on it; it has for, cell"},
		{"instancesDie, at: 2s", "clockSkew, at: 2s", "faults[1]: clockSkew at 2s: by is missing"},
		{"for: 500ms", "for: 500ms, loses: true", "storeAway at 1s: loses has no effect on it; it has for, cell"},
		{"storeAway, at: 1s, for: 500ms", "retryStorm, at: 1s, for: 500ms, factor: 2, tenant: 21",
			"mine.yaml:9:5: faults[0]: retryStorm at 1s: there is no tenant 21, but 20 of them"},
		{"zipf: 0.8", "day: 1m", "mine.yaml:5:1: day has no effect without dailySwing"},
		{"zipf: 0.8", "dailySwing: 0.5", "day is missing: dailySwing needs the length of a day, which is 24h0m0s by " +
			"default, and the run is only 5s long"},
		{"zipf: 0.8", "bounds: { p99: -1ms }", "-1ms is below zero"},
		{"zipf: 0.8", "bounds: { overs: 1 }", "overs"},
		{"zipf: 0.8", "store: mysql", `mine.yaml:5:8: store: want one of redis, dynamodb, got "mysql"`},
	} {
		s, err := fleet.ReadScript("mine.yaml", []byte(strings.Replace(good, test.old, test.with, 1)), false, false)
		if err == nil {
			_, err = fleet.Run(t.Context(), fleet.Options{Scenario: s})
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", test.with, err, test.want)
		}
	}
}

// Guarantees that a file of costs is read, and that an unknown field or an impossible value is an error that names the
// file.
func TestReadCosts(t *testing.T) {
	c, err := fleet.ReadCosts("costs.json", []byte(`{"localNanoseconds": 150, "storeServiceNanoseconds": 4000}`))
	if err != nil || c.Local != 150 || c.StoreService != 4*time.Microsecond {
		t.Errorf("ReadCosts = %+v, %v", c, err)
	}
	for _, bad := range []string{`{"local": 1}`, `{"localNanoseconds": -1}`, ``} {
		if _, err := fleet.ReadCosts("costs.json", []byte(bad)); err == nil || !strings.HasPrefix(err.Error(),
			"costs") {
			t.Errorf("ReadCosts(%s): error %v, want one that begins with the name of the file", bad, err)
		}
	}
}

// Guarantees the bound on memory that docs/scale.md states: 600 bytes for each counter that --max-counters allows, and
// 2 KiB for each tenant, here of 100,000 tenants whose requests come to more pairs of a tenant and an instance than
// there may be counters.
func TestMemoryOfManyTenants(t *testing.T) {
	soak.SkipUnderRace(t)
	soak.SkipInQuick(t)
	const tenants, counters = 100_000, 100_000
	s := fleet.Scenario{Name: "many", WarmUp: time.Second, Measured: time.Second, Instances: 50, Tenants: tenants,
		Requests: 100_000, Shards: 8,
		Limits: fleet.Limits{Period: time.Minute, Low: 100, High: 10_000}}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc + m.StackInuse)
	}
	before, most := heap(), int64(0)
	r, err := fleet.Run(t.Context(), fleet.Options{Scenario: &s, Seed: 1, MaxCounters: counters,
		Progress: func(done float64) {
			if done > 0.9 {
				most = max(most, heap()-before)
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	if want := int64(600*counters + 2048*tenants + 64<<20); most > want {
		t.Errorf("the simulation takes %d bytes, want at most %d", most, want)
	}
	if r.StoreOps < 0.5*s.Requests {
		t.Errorf("%.0f calls of the store a second: the counters are not used up, so this test bounds nothing",
			r.StoreOps)
	}
	t.Logf("%d bytes, %.0f calls a second", most, r.StoreOps)
}
