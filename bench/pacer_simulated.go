package bench

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"sync"
)

// simulatedRun is the outcome of one simulation of 96 instances that share a limit, as TestFigures of package pacer
// prints it.
type simulatedRun struct {
	Kind     string  // what is simulated; the figures use "saturation" and "fairness"
	Limit    int64   // per second
	Seconds  int     // of virtual time
	Over     int64   // units beyond the limit, in all windows together
	Used     float64 // of the limit, %
	Calls    float64 // to the ledger, per instance and second
	Fairness float64 // largest share divided by the smallest one
}

// simulatedRuns are made once for all figures of this process, because they take a minute.
var simulatedRuns = struct {
	long, short func() ([]simulatedRun, error)
}{
	long:  sync.OnceValues(func() ([]simulatedRun, error) { return simulateInstances("long") }),
	short: sync.OnceValues(func() ([]simulatedRun, error) { return simulateInstances("short") }),
}

// simulateInstances runs the simulations, which are part of the tests of package pacer.
func simulateInstances(length string) (runs []simulatedRun, err error) {
	args := []string{"test", "-count=1", "-vet=off", "-v", "-run=^TestFigures$", "./pacer", "-figures=" + length}
	cmd := exec.Command("go", args...) //nolint:gosec // the repository's own tests
	cmd.Dir = tree()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", cmd, err, out)
	}
	for line := range strings.Lines(string(out)) {
		if text, ok := strings.CutPrefix(line, "figure "); ok {
			var run simulatedRun
			if err := json.Unmarshal([]byte(text), &run); err != nil {
				return nil, fmt.Errorf("%s printed %q: %w", cmd, line, err)
			}
			runs = append(runs, run)
		}
	}
	return runs, nil
}

// pacerSimulatedFigure takes a figure from the simulated runs of one kind: at one limit, or at all of them if limit
// is 0. If there is more than one run, the worst counts.
func pacerSimulatedFigure(kind string, limit int64, worst func(a, b float64) float64,
	value func(*simulatedRun) float64,
) func(short bool) (Result, error) {
	return func(short bool) (r Result, err error) {
		all := simulatedRuns.long
		if short {
			all = simulatedRuns.short
		}
		runs, err := all()
		if err != nil {
			return r, err
		}
		for i := range runs {
			run := &runs[i]
			if !strings.HasPrefix(run.Kind, kind) || limit != 0 && run.Limit != limit {
				continue
			}
			if run.Kind == kind {
				v := value(run)
				if len(r.Notes) > 0 {
					v = worst(v, r.Value)
				}
				r.Value = v
			}
			r.note("%s, 96 simulated instances at %d per second for %d s: %d over, %.2f %% used, %.2f calls to the "+
				"ledger per instance and second, largest share %.3f times the smallest", run.Kind, run.Limit,
				run.Seconds, run.Over, run.Used, run.Calls, run.Fairness)
		}
		if len(r.Notes) == 0 {
			return r, fmt.Errorf("no simulation of %s at a limit of %d was made", kind, limit)
		}
		return r, nil
	}
}

func largest(a, b float64) float64  { return max(a, b) }
func smallest(a, b float64) float64 { return min(a, b) }

func simulatedOver(r *simulatedRun) float64     { return float64(r.Over) }
func simulatedUsed(r *simulatedRun) float64     { return r.Used }
func simulatedCalls(r *simulatedRun) float64    { return r.Calls }
func simulatedFairness(r *simulatedRun) float64 { return r.Fairness }
