package sim_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/bench/fleet/sim"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

func named(t *testing.T, name string) *sim.Scenario {
	t.Helper()
	all := sim.Named()
	i := slices.IndexFunc(all, func(s sim.Scenario) bool { return s.Name == name })
	if i < 0 {
		t.Fatalf("there is no scenario %s", name)
	}
	return &all[i]
}

func run(t *testing.T, s *sim.Scenario, seed uint64) *sim.Report {
	t.Helper()
	r, err := sim.Run(t.Context(), sim.Options{Scenario: s, Seed: seed})
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
		{"retry-storm", false, false, 1, 4},
		{"failover-and-storm", true, true, 8, 4},
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
	text := func(seed uint64) string {
		b, err := json.Marshal(run(t, named(t, "failover-and-storm"), seed))
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

// Guarantees that windows which end at another time for each tenant spread the calls to the store over the period, and
// that the judge counts such windows correctly.
func TestAlignTenant(t *testing.T) {
	soak.SkipUnderRace(t)
	s := &sim.Scenario{Name: "windows", WarmUp: 11 * time.Second, Measured: 10 * time.Second, Instances: 10,
		Tenants: 500, Requests: 10_000, Zipf: 0.6, Limits: sim.Limits{Period: 10 * time.Second}}
	clock := run(t, s, 1)
	s.Limits.AlignTenant = true
	tenant := run(t, s, 1)
	if peak := clock.Shards[0].PeakPerS; tenant.Shards[0].PeakPerS > peak*3/4 || tenant.Over+clock.Over > 0 ||
		tenant.Denied == 0 {
		t.Errorf("most store calls in a second: %d with windows by the clock, %d by tenant; units above a limit: %d "+
			"and %d; denied: %d", peak, tenant.Shards[0].PeakPerS, clock.Over, tenant.Over, tenant.Denied)
	}
}

// Guarantees that a run whose context ends reports on the time until then, and says on the page and in the text that it
// was interrupted.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := named(t, "retry-storm")
	o := sim.Options{Scenario: s, Seed: 1, Progress: func(done float64) {
		if done > 0.5 {
			cancel()
		}
	}}
	r, err := sim.Run(ctx, o)
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
	var sum sim.Happened
	for _, p := range r.Timeline.Points {
		sum.Allowed += p.Allowed
		sum.Denied += p.Denied
		sum.Early += p.Early
		sum.Degraded += p.Degraded
		sum.Over += p.Over
		sum.StoreOps += p.StoreOps
	}
	want := sim.Happened{Allowed: r.Allowed, Denied: r.Denied, Early: r.Early, Degraded: r.Degraded, Over: r.Over,
		StoreOps: int64(math.Round(r.StoreOps * r.Seconds))}
	if sum != want || len(r.Timeline.Points) != 25 || r.Timeline.Points[0].At != 5 {
		t.Errorf("the %d points of the timeline add up to %+v, want %+v", len(r.Timeline.Points), sum, want)
	}
	away, storm := &r.Faults[0], &r.Faults[1]
	if away.Degraded+storm.Degraded != r.Degraded || away.DegradedFor < 2.9 || away.To != 13 || storm.To != 30 ||
		storm.Over != r.Over || away.Maxms < 7 {
		t.Errorf("the effects of the faults are %+v and %+v", away, storm)
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
