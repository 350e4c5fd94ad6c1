package bench

import (
	"context"
	"sync"

	"github.com/sluicelimits/sluice/bench/shared"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

const workloadSeed = 1

// The length of the workload, and its length in a short measurement.
var workloadLength, workloadShort = shared.Length{Warm: 1, Measured: 3}, shared.Length{Measured: 1}

// workload runs the published workload with leases and each of its four limits, once for all figures. The second one is
// for a short measurement. The first of the four limits is never reached.
var workload = [2]func() ([]shared.Row, error){
	sync.OnceValues(func() ([]shared.Row, error) { return runWorkload(workloadSeed, workloadLength) }),
	sync.OnceValues(func() ([]shared.Row, error) { return runWorkload(workloadSeed, workloadShort) }),
}

func runWorkload(seed uint64, length shared.Length) ([]shared.Row, error) {
	var rows []shared.Row
	for _, s := range shared.Published(limit.FixedWindow, 1) {
		rows = append(rows, shared.Row{Scenario: s, By: shared.Leased})
	}
	var failed error
	shared.RunAll(context.Background(), rows, seed, length, func(r *shared.Row) {
		if r.Err != nil && failed == nil {
			failed = r.Err
		}
	})
	return rows, failed
}

// workloadFigure returns a measurement of the workload. Its value is the largest that of returns for the rows from
// first up to, but not including, last.
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
			r.note("limit %s: %.4g; %d requests, %d admitted", row.Scenario.Name, of(&row.Score), row.Score.Requests,
				row.Score.Admitted)
		}
		return r, nil
	}
}

func storeOps(g *shared.Score) float64 { return g.StoreOps }
func over(g *shared.Score) float64     { return float64(g.Over) }
func earlyPct(g *shared.Score) float64 { return g.EarlyPct }
func shortPct(g *shared.Score) float64 { return g.ShortPct }
func p95(g *shared.Score) float64      { return g.P95.Seconds() * 1e3 }
