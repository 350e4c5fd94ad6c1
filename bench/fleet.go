package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/bench/shared"
	"github.com/sluicelimits/sluice/internal/dev/fleet"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
)

// fleetRun is a run of a scenario, and how many decisions a second of processor time it took.
type fleetRun struct {
	report *fleet.Report
	costs  fleet.Costs // as Calibrate measured them
	speed  float64
}

// fleetRuns keeps the runs, because several figures come from the same run.
var fleetRuns = struct {
	sync.Mutex
	costs *fleet.Costs
	runs  map[string]*fleetRun // by name, and by whether the measurement is short
}{runs: map[string]*fleetRun{}}

// runFleet runs a scenario that comes with Sluice, with the service times of this machine. A short run has a hundredth
// of the tenants and requests.
func runFleet(name string, short bool) (*fleetRun, error) {
	fleetRuns.Lock()
	defer fleetRuns.Unlock()
	key := fmt.Sprint(name, short)
	if run := fleetRuns.runs[key]; run != nil {
		return run, nil
	}
	if fleetRuns.costs == nil {
		costs, err := Calibrate(short)
		if err != nil {
			return nil, fmt.Errorf("measure the service times: %w", err)
		}
		fleetRuns.costs = &costs
	}
	all := fleet.Named()
	i := slices.IndexFunc(all, func(s fleet.Scenario) bool { return s.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("there is no scenario %s", name)
	}
	s := all[i]
	if short {
		s.Tenants, s.Requests, s.Instances, s.Functions = 100, s.Requests/100, max(s.Instances/10, 5), 0
		s.RampUp, s.WarmUp, s.Measured = time.Second, 2*time.Second, 3*time.Second
		s.SampleEvery = min(s.SampleEvery, 4)
	}
	defer fleet.TuneCollector(fleet.DefaultMaxCounters)()
	used := processorTime()
	r, err := fleet.Run(context.Background(), fleet.Options{Scenario: &s, Seed: 1, Costs: *fleetRuns.costs})
	if err != nil {
		return nil, err
	}
	if err := r.Check(); err != nil {
		return nil, err
	}
	run := &fleetRun{r, *fleetRuns.costs, float64(r.Total) / (processorTime() - used).Seconds()}
	fleetRuns.runs[key] = run
	return run, nil
}

// runMillion runs the scenario million, and checks that it is the load that the figures are about.
func runMillion(short bool) (*fleetRun, error) {
	run, err := runFleet("million", short)
	if err != nil {
		return nil, err
	}
	want := 1e6
	if short {
		want /= 100
	}
	if perSecond := float64(run.report.Decisions) / run.report.Seconds; perSecond < 0.98*want || perSecond > 1.02*want {
		return nil, fmt.Errorf("%.0f requests per second, want %.0f", perSecond, want)
	}
	if run.report.Denied == 0 && !short {
		return nil, errors.New("nothing was denied: no limit binds")
	}
	return run, nil
}

// fleetFigure returns a measurement of the scenario million: 1,000,000 requests per second at 50 instances, in virtual
// time. Its value is what of returns.
func fleetFigure(of func(*fleetRun) float64) func(short bool) (Result, error) {
	return func(short bool) (Result, error) {
		run, err := runMillion(short)
		if err != nil {
			return Result{}, err
		}
		r := Result{Value: of(run)}
		run.note(&r)
		return r, nil
	}
}

// lambdaFigure returns a measurement of a scenario with Lambda environments, in which only a sample of the requests is
// decided. Its value is what of returns.
func lambdaFigure(name string, of func(*fleetRun) float64) func(short bool) (Result, error) {
	return func(short bool) (Result, error) {
		run, err := runFleet(name, short)
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
	money := "no sum of money"
	if report.Money != nil {
		money = fmt.Sprintf("%s USD a month without %s", report.Money.Monthly, report.Money.Without)
	}
	r.note("%d decisions in %.0f virtual seconds at %d processes, %d denied, %d of them early; %.2f %% from leases, "+
		"%.2f %% by the fallback limiter; at most %d calls at a node in one second, %d not served; %s; calibrated: %s "+
		"for a decision from leases, %s for a call of Redis", report.Decisions, report.Seconds, report.Instances,
		report.Denied, report.Early, 100*float64(report.Local)/float64(report.Decisions),
		100*float64(report.Degraded)/float64(report.Decisions), peak, unserved, money, f.costs.Local,
		f.costs.StoreService)
}

func fleetStoreOps(r *fleetRun) float64 { return r.report.StoreOps }
func fleetShards(r *fleetRun) float64   { return float64(r.report.ShardsNeeded) }
func fleetP99(r *fleetRun) float64      { return r.report.P99ms }
func fleetSpeed(r *fleetRun) float64    { return r.speed }

// fleetOverFigure counts the units above limits in the scenario million and in those of the scenarios with faults in
// which the store answers and keeps its counters. In the others, limits may be exceeded, within the bounds that are
// checked of every run. A short measurement runs two of the scenarios.
func fleetOverFigure(short bool) (Result, error) {
	var r Result
	million, err := runMillion(short)
	if err != nil {
		return r, err
	}
	r.Value = float64(million.report.Over)
	kept, within := []string{"million"}, []string{}
	for _, s := range fleet.Named() {
		if s.Requests >= 1e6 || short && s.Name != "retry-storm" && s.Name != "store-away" {
			continue
		}
		run, err := fleet.Run(context.Background(), fleet.Options{Scenario: &s, Seed: 1})
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

// fleetCounts are counts of a run, or the mean of several runs.
type fleetCounts struct {
	calls            float64 // to the store, per second
	admitted, denied float64
	p99              float64 // ms
}

// add adds the counts of one of the given number of runs to their mean.
func (c *fleetCounts) add(run fleetCounts, of int) {
	c.calls += run.calls / float64(of)
	c.admitted += run.admitted / float64(of)
	c.denied += run.denied / float64(of)
	c.p99 += run.p99 / float64(of)
}

// fleetErrorFigure measures how far the simulation of the published workload is from reality, in percent. The workload
// runs with each of four limits: as processes on a real Redis, and in virtual time with the round trip of that Redis.
// Three counts are compared: calls to the store, requests admitted, and requests denied. The figure is the largest
// error of any count. Both sides are means over several seeds of the arrivals, because the counts differ from seed to
// seed: with a limit that is never reached there are about 450 calls in 30 s, and this number varies by 5 %.
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
	factor := 0.0
	r.note("a round trip of %s; means of %d runs of processes, and of %d simulated ones", trip, runs, seeds)
	for i := range scenarios {
		simulated, err := simulateWorkload(&scenarios[i], length, seeds, trip)
		if err != nil {
			return r, err
		}
		wrong := func(simulated, was float64) float64 { return 100 * math.Abs(simulated-was) / was }
		was := counted[i]
		off := max(wrong(simulated.calls, was.calls), wrong(simulated.admitted, was.admitted))
		if was.denied > was.admitted/100 { // fewer denials would differ too much from seed to seed
			off = max(off, wrong(simulated.denied, was.denied))
		}
		r.Value = max(r.Value, off)
		factor = max(factor, was.p99/simulated.p99)
		r.note("limit %s: %.1f calls/s simulated, %.1f counted; %.0f and %.0f admitted; %.0f and %.0f denied; "+
			"p99 %.2f and %.2f ms", scenarios[i].Name, simulated.calls, was.calls, simulated.admitted, was.admitted,
			simulated.denied, was.denied, simulated.p99, was.p99)
	}
	r.note("the p99 of the processes is up to %.1f times the simulated one, in which no process waits for a "+
		"processor; bound: %d", factor, p99Factor)
	if factor > p99Factor && !short {
		return r, fmt.Errorf("the p99 of the processes is %.1f times the simulated one, and the bound is %d", factor,
			p99Factor)
	}
	return r, nil
}

// p99Factor bounds the p99 of the processes, as a multiple of the simulated one. On 2 shared cores it is 4 to 10 times
// as large: docs/scale.md#validation has the measurements.
const p99Factor = 10

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

// redisRoundTrip measures how long a call of Redis takes between two processes on this machine: the median of 501
// pings.
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
