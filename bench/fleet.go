package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/fleet"
)

// fleetRun is a run of the scenario million, and how many decisions a second of processor time it took.
type fleetRun struct {
	report *fleet.Report
	speed  float64
}

// fleetRuns are run once for all figures that are taken from them: the short one has a hundredth of the requests.
var fleetRuns = map[bool]func() (fleetRun, error){
	false: sync.OnceValues(func() (fleetRun, error) { return runFleet(false) }),
	true:  sync.OnceValues(func() (fleetRun, error) { return runFleet(true) }),
}

func runFleet(short bool) (fleetRun, error) {
	s := fleet.Named()[0]
	if s.Name != "million" {
		return fleetRun{}, fmt.Errorf("the first scenario is %s", s.Name)
	}
	if short {
		s.Tenants, s.Requests, s.Instances = 100, 10_000, 5
		s.RampUp, s.WarmUp, s.Measured = time.Second, 2*time.Second, 3*time.Second
	}
	used := processorTime()
	r, err := fleet.Run(context.Background(), fleet.Options{Scenario: &s, Seed: 1})
	if err != nil {
		return fleetRun{}, err
	}
	took := (processorTime() - used).Seconds()
	perSecond := float64(r.Decisions) / r.Seconds
	if perSecond < 0.98*s.Requests || perSecond > 1.02*s.Requests {
		return fleetRun{}, fmt.Errorf("%.0f requests per second, want %.0f", perSecond, s.Requests)
	}
	if r.Denied == 0 && !short {
		return fleetRun{}, fmt.Errorf("nothing was denied: no limit binds")
	}
	return fleetRun{r, float64(r.Total) / took}, nil
}

// fleetFigure is a figure of the scenario million: 1,000,000 requests per second at 50 instances, in virtual time.
func fleetFigure(of func(*fleetRun) float64) func(short bool) (Result, error) {
	return func(short bool) (Result, error) {
		run, err := fleetRuns[short]()
		if err != nil {
			return Result{}, err
		}
		r, report := Result{Value: of(&run)}, run.report
		r.note("%d decisions in %.0f virtual seconds, %d denied, %d of them early; %.2f %% without a call",
			report.Decisions, report.Seconds, report.Denied, report.Early,
			100*float64(report.Local)/float64(report.Decisions))
		return r, nil
	}
}

func fleetStoreOps(r *fleetRun) float64 { return r.report.StoreOps }
func fleetShards(r *fleetRun) float64   { return float64(r.report.ShardsNeeded) }
func fleetP99(r *fleetRun) float64      { return r.report.P99ms }
func fleetOver(r *fleetRun) float64     { return float64(r.report.Over) }
func fleetSpeed(r *fleetRun) float64    { return r.speed }
