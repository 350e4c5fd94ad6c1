package bench

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/testkit/redistest"
	"github.com/sluicelimits/sluice/internal/testkit/standin"
	"github.com/sluicelimits/sluice/pacer"
)

func overLimit(runs []standin.Result) float64 {
	var over int64
	for _, r := range runs {
		over += r.Over
	}
	return float64(over)
}

func usedOfLimit(runs []standin.Result) float64 {
	used := 100.0
	for _, r := range runs {
		used = min(used, r.Used)
	}
	return used
}

// sharedRuns are what the figures of shared limits are taken from. The runs take two minutes, so that they are made
// once for all figures of this process.
var sharedRuns = struct {
	long, short func() (Result, []standin.Result, error)
}{
	long:  onceRuns(60),
	short: onceRuns(2),
}

func onceRuns(windows int) func() (Result, []standin.Result, error) {
	type outcome struct {
		notes Result
		runs  []standin.Result
	}
	once := sync.OnceValues(func() (outcome, error) {
		notes, runs, err := shareLimits(windows)
		return outcome{notes, runs}, err
	})
	return func() (Result, []standin.Result, error) {
		o, err := once()
		return o.notes, o.runs, err
	}
}

// pacerSharedFigure has eight processes use a limit through a Redis, against a provider that bans them for one request
// too many. Two of them are killed with units in hand, and the limit is halved with notice.
func pacerSharedFigure(value func([]standin.Result) float64) func(short bool) (Result, error) {
	return func(short bool) (Result, error) {
		run := sharedRuns.long
		if short {
			run = sharedRuns.short
		}
		r, runs, err := run()
		if err == nil {
			r.Value = value(runs)
		}
		return r, err
	}
}

// shareLimits runs the processes at two limits.
func shareLimits(windows int) (r Result, runs []standin.Result, err error) {
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return r, nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for _, limit := range []int64{1000, 50_000} {
		server, err := redistest.Launch(dir)
		if err != nil {
			return r, nil, err
		}
		o := standin.Options{Redis: server.Addr, Key: "provider", Limit: limit, Processes: 8, Windows: windows,
			Guard: pacer.Guard{ClockError: 10 * time.Millisecond, MaxDelay: 100 * time.Millisecond},
			Kill:  2, Halve: true, Ahead: 7 * time.Millisecond}
		run, err := standin.Run(context.Background(), o)
		server.Kill()
		if err != nil {
			return r, nil, err
		}
		r.note("%d processes at %d per second for %d windows, of which %d are killed, and the limit is halved: "+
			"banned %t, %d over, %.2f %% used (%.1f %% in the worst window), %d permits came too late, %.1f calls to "+
			"Redis per process and second, of which %d failed in all", o.Processes, limit, windows, o.Kill, run.Banned,
			run.Over, run.Used, run.Least, run.Late, run.Calls, run.FailedCalls)
		runs = append(runs, run)
	}
	return r, runs, nil
}
