package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/bench/shared"
	"github.com/sluicelimits/sluice/internal/limit"
)

const workloadSeed = 1

// workload is the published workload by leases, with its four limits, run once for all figures that are taken from it. The
// first never binds.
var workload = [2]func() ([]shared.Row, error){
	sync.OnceValues(func() ([]shared.Row, error) { return runWorkload(shared.Length{Warm: 1, Measured: 3}) }),
	sync.OnceValues(func() ([]shared.Row, error) { return runWorkload(shared.Length{Measured: 1}) }),
}

func runWorkload(length shared.Length) ([]shared.Row, error) {
	var rows []shared.Row
	for _, s := range shared.Published(limit.FixedWindow, 1) {
		rows = append(rows, shared.Row{Scenario: s, By: shared.Leased})
	}
	var failed error
	shared.RunAll(context.Background(), rows, workloadSeed, length, func(r *shared.Row) {
		if r.Err != nil && failed == nil {
			failed = r.Err
		}
	})
	return rows, failed
}

// workloadFigure is the largest value that of gives of the rows first up to, and without, last.
func workloadFigure(first, last int, of func(*shared.Score) float64) func(short bool) (Result, error) {
	return func(short bool) (Result, error) {
		run := workload[0]
		if short {
			run = workload[1]
		}
		rows, err := run()
		if err != nil {
			return Result{}, err
		}
		var r Result
		for i := range rows[first:last] {
			row := &rows[first+i]
			r.Value = max(r.Value, of(&row.Score))
			r.note("limit %s: %.4g; %d requests, %d admitted", row.Scenario.Name, of(&row.Score), row.Score.Requests, row.Score.Admitted)
		}
		return r, nil
	}
}

func storeOps(g *shared.Score) float64  { return g.StoreOps }
func over(g *shared.Score) float64      { return float64(g.Over) }
func earlyPct(g *shared.Score) float64  { return g.EarlyPct }
func missedPct(g *shared.Score) float64 { return g.MissedPct }
func shortPct(g *shared.Score) float64  { return g.ShortPct }
func p95(g *shared.Score) float64       { return g.P95.Seconds() * 1e3 }

// hotInstances share one tenant that asks 1,000 times a second.
const (
	hotInstances = 20
	hotRate      = 1000.0
)

// dynamoHotFigure counts the write units of 1,000 decisions by leases on DynamoDB, by twenty instances in virtual time that
// take turns, for limits of each algorithm that bind or never do. The most is the figure.
func dynamoHotFigure(binding bool) func(short bool) (Result, error) {
	return func(short bool) (Result, error) {
		var r Result
		length := shared.Length{Measured: 6}
		if short {
			length.Measured = 1
		}
		for _, alg := range shared.Algorithms() {
			for i, s := range shared.Hot(alg, hotInstances, hotRate) {
				if binding != (i > 0) { // the first never binds
					continue
				}
				units, g, err := dynamoHot(&s, length)
				if err != nil {
					return r, err
				}
				r.Value = max(r.Value, units)
				r.note("%s, limit %s: %.1f units for 1,000 decisions, %d of %d admitted, short %.2f %%, early %.2f %%, missed %.2f %%",
					alg, s.Name, units, g.Admitted, g.Requests, g.ShortPct, g.EarlyPct, g.MissedPct)
			}
		}
		return r, nil
	}
}

func dynamoHot(s *shared.Scenario, length shared.Length) (units float64, g shared.Score, err error) {
	w, err := newDynamoWorkload(fmt.Sprintf("hot-%d", time.Now().UnixNano()))
	if err != nil {
		return 0, g, err
	}
	defer w.close()
	if g, err = shared.SimulateOn(context.Background(), s, shared.Leased, workloadSeed, length, w.store); err != nil {
		return 0, g, fmt.Errorf("%s: %w", s.Algorithm, err)
	}
	if g.Over > 0 {
		return 0, g, fmt.Errorf("%d units were admitted beyond the limit", g.Over)
	}
	used := w.meter.Take()
	return used.Writes / float64(g.Requests) * 1000, g, nil
}
