package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/bench/fleet/sim"
)

// fleetRun is a run of a scenario, and how many decisions a second of processor time it took.
type fleetRun struct {
	report *sim.Report
	speed  float64
}

// runMillion runs the scenario million, and checks that it is the load that the figures are about. A short run has a
// hundredth of the tenants and requests.
func runMillion(short bool) (*fleetRun, error) {
	s, want := sim.Named()[0], 1e6
	if short {
		want /= 100
		s.Tenants, s.Requests, s.Instances = 100, want, 5
		s.RampUp, s.WarmUp, s.Measured = time.Second, 2*time.Second, 3*time.Second
	}
	used := processorTime()
	r, err := sim.Run(context.Background(), sim.Options{Scenario: &s, Seed: 1})
	if err == nil {
		err = r.Check()
	}
	if err != nil {
		return nil, err
	}
	if perSecond := float64(r.Decisions) / r.Seconds; perSecond < 0.98*want || perSecond > 1.02*want {
		return nil, fmt.Errorf("%.0f requests per second, want %.0f", perSecond, want)
	}
	if r.Denied == 0 && !short {
		return nil, errors.New("nothing was denied: no limit binds")
	}
	return &fleetRun{r, float64(r.Total) / (processorTime() - used).Seconds()}, nil
}

// million runs the scenario million once for all figures.
var million = measuredOnce(runMillion)

// fleetFigure returns a measurement of the scenario million: 1,000,000 requests per second at 50 instances, in virtual
// time. Its value is what of returns.
func fleetFigure(of func(*fleetRun) float64) func(short bool) (Result, error) {
	return func(short bool) (Result, error) {
		run, err := million(short)
		if err != nil {
			return Result{}, err
		}
		r := Result{Value: of(run)}
		run.note(&r)
		return r, nil
	}
}

// note adds a note with the numbers of the run that a figure is based on.
func (f *fleetRun) note(r *Result) {
	report, peak, unserved := f.report, int64(0), int64(0)
	for _, s := range report.Shards {
		peak = max(peak, s.PeakPerS)
		unserved += s.Unserved
	}
	r.note("%d decisions in %.0f virtual seconds at %d processes, %d denied, %d of them early; %.2f %% from leases, "+
		"%.2f %% by the fallback limiter; at most %d calls at a node in one second, %d not served", report.Decisions,
		report.Seconds, report.Instances, report.Denied, report.Early,
		100*float64(report.Local)/float64(report.Decisions), 100*float64(report.Degraded)/float64(report.Decisions),
		peak, unserved)
}

func fleetStoreOps(r *fleetRun) float64 { return r.report.StoreOps }
func fleetP99(r *fleetRun) float64      { return r.report.P99ms }
func fleetSpeed(r *fleetRun) float64    { return r.speed }

// fleetOverFigure counts the units above limits in the scenario million and in those of the scenarios with faults in
// which the store answers and keeps its counters. In the others, limits may be exceeded, within the bounds that are
// checked of every run. A short measurement runs two of the scenarios.
func fleetOverFigure(short bool) (Result, error) {
	var r Result
	run, err := million(short)
	if err != nil {
		return r, err
	}
	r.Value = float64(run.report.Over)
	kept, within := []string{"million"}, []string{}
	for _, s := range sim.Named() {
		if s.Name == "million" || short && s.Name != "retry-storm" && s.Name != "store-away" {
			continue
		}
		run, err := sim.Run(context.Background(), sim.Options{Scenario: &s, Seed: 1})
		if err == nil {
			err = run.Check()
		}
		if err != nil {
			return r, fmt.Errorf("scenario %s: %w", s.Name, err)
		}
		if run.Degraded > 0 || run.Forgotten > 0 {
			within = append(within, fmt.Sprintf("%s %d", s.Name, run.Over))
			continue
		}
		kept = append(kept, s.Name)
		r.Value += float64(run.Over)
	}
	r.note("of %s; within the bounds of the fallback limiter and of lost counters, units above limits: %s",
		strings.Join(kept, ", "), strings.Join(within, ", "))
	return r, nil
}
