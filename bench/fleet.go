package bench

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/bench/shared"
	"github.com/sluicelimits/sluice/internal/dev/fleet"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
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
		peak := int64(0)
		for _, s := range report.Shards {
			peak = max(peak, s.PeakPerS)
		}
		r.note("%d decisions in %.0f virtual seconds, %d denied, %d of them early; %.2f %% without a call, %d by the "+
			"fallback limiter; at most %d calls at a node in one second", report.Decisions, report.Seconds,
			report.Denied, report.Early, 100*float64(report.Local)/float64(report.Decisions), report.Degraded, peak)
		return r, nil
	}
}

func fleetStoreOps(r *fleetRun) float64 { return r.report.StoreOps }
func fleetShards(r *fleetRun) float64   { return float64(r.report.ShardsNeeded) }
func fleetP99(r *fleetRun) float64      { return r.report.P99ms }
func fleetOver(r *fleetRun) float64     { return float64(r.report.Over) }
func fleetSpeed(r *fleetRun) float64    { return r.speed }

// fleetCounts are counts of a run, or the mean of several runs.
type fleetCounts struct {
	calls            float64 // of the store, per second
	admitted, denied float64
	p99              float64 // ms
}

// add adds another run, one of so many.
func (c *fleetCounts) add(run fleetCounts, of int) {
	c.calls += run.calls / float64(of)
	c.admitted += run.admitted / float64(of)
	c.denied += run.denied / float64(of)
	c.p99 += run.p99 / float64(of)
}

// fleetErrorFigure measures how far the simulation of the published workload is from reality, in percent. The workload
// runs with each of four limits: as processes on a real Redis, and in virtual time with the round trip of that Redis.
// Three counts are compared: calls of the store, requests admitted, and requests denied. The figure is the largest
// error of any count. Both sides are means over several seeds of the arrivals: in 30 s, a limit that never binds takes
// some 450 calls, a number that differs by 5 % from seed to seed.
func fleetErrorFigure(short bool) (Result, error) {
	length, runs, seeds := workloadLength, 3, 5
	if short {
		length, runs, seeds = workloadShort, 1, 2
	}
	var scenarios []shared.Scenario
	var counted []fleetCounts
	for run := range runs {
		rows, err := runWorkload(uint64(run)+workloadSeed, length)
		if err != nil {
			return Result{}, err
		}
		if run == 0 {
			counted = make([]fleetCounts, len(rows))
		}
		for i := range rows {
			score := &rows[i].Score
			counted[i].add(fleetCounts{calls: score.StoreOps, admitted: float64(score.Admitted),
				denied: float64(score.Requests - score.Admitted), p99: score.P99.Seconds() * 1e3}, runs)
			if run == 0 {
				scenarios = append(scenarios, rows[i].Scenario)
			}
		}
	}
	trip, err := redisRoundTrip()
	if err != nil {
		return Result{}, err
	}
	var r Result
	r.note("a round trip of %s; means of %d runs of processes, and of %d simulated ones", trip, runs, seeds)
	for i := range scenarios {
		simulated, err := simulateWorkload(&scenarios[i], length, seeds, trip)
		if err != nil {
			return r, err
		}
		wrong := func(simulated, was float64) float64 { return 100 * math.Abs(simulated-was) / was }
		was := counted[i]
		off := max(wrong(simulated.calls, was.calls), wrong(simulated.admitted, was.admitted))
		if was.denied > was.admitted/100 { // the number of fewer denials differs from seed to seed as much
			off = max(off, wrong(simulated.denied, was.denied))
		}
		r.Value = max(r.Value, off)
		r.note("limit %s: %.1f calls/s simulated, %.1f counted; %.0f and %.0f admitted; %.0f and %.0f denied; "+
			"p99 %.2f and %.2f ms", scenarios[i].Name, simulated.calls, was.calls, simulated.admitted, was.admitted,
			simulated.denied, was.denied, simulated.p99, was.p99)
	}
	return r, nil
}

// simulateWorkload simulates a scenario of the workload, with the round trip of the store that is given, and returns
// the mean over the seeds.
func simulateWorkload(of *shared.Scenario, length shared.Length, seeds int, trip time.Duration) (fleetCounts, error) {
	s := fleet.Scenario{
		Name: of.Name, WarmUp: time.Duration(length.Warm) * shared.Period,
		Measured:  time.Duration(length.Measured) * shared.Period,
		Instances: of.Instances, Tenants: len(of.Rates), Requests: of.Demand(),
		Limits: fleet.Limits{Algorithm: of.Algorithm, Period: shared.Period, BindEvery: 10 * len(of.Rates),
			Ample: float64(of.Limits[0]) / (of.Rates[0] * shared.Period.Seconds())},
	}
	var mean fleetCounts
	for seed := range seeds {
		report, err := fleet.Run(context.Background(), fleet.Options{Scenario: &s, Seed: uint64(seed + 1),
			Costs: fleet.Costs{RoundTrip: trip, Deadline: time.Second}})
		if err != nil {
			return mean, err
		}
		mean.add(fleetCounts{calls: report.StoreOps, admitted: float64(report.Allowed),
			denied: float64(report.Denied), p99: report.P99ms}, seeds)
	}
	return mean, nil
}

// redisRoundTrip measures how long a call takes between two processes on this machine: the median of some pings.
func redisRoundTrip() (time.Duration, error) {
	server, end, err := launchRedis()
	if err != nil {
		return 0, err
	}
	defer end()
	store, err := redis.New(context.Background(), redis.Config{Addrs: []string{server.Addr}, Deadline: redisTimeout})
	if err != nil {
		return 0, err
	}
	defer func() { _ = store.Close() }()
	took := make([]time.Duration, 501)
	for i := range took {
		began := time.Now()
		if err := store.Ping(context.Background()); err != nil {
			return 0, err
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}
