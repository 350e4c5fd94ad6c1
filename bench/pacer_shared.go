package bench

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	goredis "github.com/redis/go-redis/v9"

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

// shareLimits runs the processes at two limits, and those of the peers.
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
	for _, limit := range []int64{1000, 50_000} {
		for _, name := range slices.Sorted(maps.Keys(pollingPeers)) {
			server, err := redistest.Launch(dir)
			if err != nil {
				return r, nil, err
			}
			o := standin.Options{Redis: server.Addr, Key: "provider", Limit: limit, Processes: 8,
				Windows: min(windows, pollingWindows), Ahead: 7 * time.Millisecond, Peer: name}
			run, err := standin.Run(context.Background(), o)
			server.Kill()
			if err != nil {
				return r, nil, err
			}
			r.note("peer: %s, %d processes at %d per second for %d windows, of which none is killed, and the limit "+
				"stays: a provider that bans would have banned it %t, %d over, %.2f %% used (%.1f %% in the worst "+
				"window), %.0f calls to Redis per process and second",
				name, o.Processes, limit, o.Windows, run.Banned, run.Over, run.Used, run.Least, run.Calls)
		}
	}
	return r, runs, nil
}

// pollingWindows is shorter than the runs of pacers, because the numbers of the peers hardly differ between windows.
const pollingWindows = 20

// pollingPeers are the loops that services have which share a limit through redis_rate. Its own PerSecond has a burst
// of one second, so that a second after a quiet one gets up to twice the limit; a burst of 10 ms does less harm.
var pollingPeers = map[string]standin.Peer{
	"redis_rate with a burst of 1 s, polled":   polling(1),
	"redis_rate with a burst of 10 ms, polled": polling(100),
}

// pollers is the number of goroutines of a peer in each process.
const pollers = 64

// polling returns a peer. Each of its goroutines asks redis_rate for one unit. If it gets the unit, it sends a request.
// Otherwise it sleeps for the time that redis_rate has answered.
func polling(burstParts int64) standin.Peer {
	return func(ctx context.Context, o standin.Orders, provider io.Writer) (r standin.Report, err error) {
		client := goredis.NewClient(&goredis.Options{Addr: o.Redis})
		defer func() { _ = client.Close() }()
		limiter := redis_rate.NewLimiter(client)
		rule := redis_rate.Limit{Rate: int(o.Limit), Burst: int(max(o.Limit/burstParts, 1)), Period: time.Second}
		var sent, calls, failed atomic.Int64
		loop := func() error {
			for ctx.Err() == nil {
				calls.Add(1)
				answer, err := limiter.Allow(ctx, o.Key, rule)
				if err != nil {
					failed.Add(1)
					continue
				}
				if answer.Allowed == 0 {
					select {
					case <-ctx.Done():
					case <-time.After(answer.RetryAfter):
					}
					continue
				}
				if _, err := provider.Write([]byte{'.'}); err != nil {
					return err
				}
				sent.Add(1)
			}
			return nil
		}
		ended := make(chan error, pollers)
		for range pollers {
			go func() { ended <- loop() }()
		}
		for range pollers {
			err = errors.Join(err, <-ended)
		}
		return standin.Report{Sent: sent.Load(), LedgerCalls: calls.Load(), LedgerErrors: failed.Load()}, err
	}
}
