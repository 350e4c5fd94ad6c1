package bench

import (
	"context"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/testkit/standin"
	"github.com/sluicelimits/sluice/pacer"
)

// sharedLimits has eight processes use a limit through a Redis, against a provider that bans them for one request too
// many, at two limits. Two of the processes are killed with units in hand, and the limit is halved with notice. Peers
// do the same without these faults.
var sharedLimits = measuredOnce(func(short bool) (runs []sharedLimit, err error) {
	for _, limit := range []int64{1000, 50_000} {
		for _, peer := range []string{"", polledBurst, polledSmooth} {
			o := standin.Options{Key: "provider", Limit: limit, Processes: 8, Windows: 60, Kill: 2, Halve: true,
				Guard: pacer.Guard{ClockError: 10 * time.Millisecond, MaxDelay: 100 * time.Millisecond},
				Ahead: 7 * time.Millisecond, Peer: peer}
			if peer != "" {
				o.Windows, o.Kill, o.Halve = 20, 0, false // the numbers of the peers hardly differ between windows
			}
			if short {
				o.Windows = 2
			}
			server, end, err := launchRedis()
			if err != nil {
				return nil, err
			}
			o.Redis = server.Addr
			result, err := standin.Run(context.Background(), o)
			end()
			if err != nil {
				return nil, err
			}
			runs = append(runs, sharedLimit{o, result})
		}
	}
	return runs, nil
})

// sharedLimit is a run of processes that share a limit.
type sharedLimit struct {
	standin.Options
	standin.Result
}

// pacerSharedFigure returns a measurement of sharedLimits. Its value is what of returns for the runs of pacers.
func pacerSharedFigure(of func(runs []sharedLimit) float64) func(short bool) (Result, error) {
	return func(short bool) (r Result, err error) {
		runs, err := sharedLimits(short)
		if err != nil {
			return r, err
		}
		var ours []sharedLimit
		for _, run := range runs {
			name := run.Peer
			if name == "" {
				name, ours = "pacers", append(ours, run)
			}
			r.note("%s: %d processes at %d per second for %d windows, %d killed: banned %t, %d over, %.2f %% used "+
				"(%.1f %% in the worst window), %.1f calls to Redis per process and second", name, run.Processes,
				run.Limit, run.Windows, run.Kill, run.Banned, run.Over, run.Used, run.Least,
				run.Calls)
		}
		r.Value = of(ours)
		return r, nil
	}
}

func overLimit(runs []sharedLimit) (over float64) {
	for _, run := range runs {
		over += float64(run.Over)
	}
	return over
}

func usedOfLimit(runs []sharedLimit) float64 {
	return slices.MinFunc(runs, func(a, b sharedLimit) int { return int(1e6 * (a.Used - b.Used)) }).Used
}

// The peers are the loops that services have which share a limit through redis_rate. Its own PerSecond has a burst of
// one second, so that a second after a quiet one gets up to twice the limit; a burst of 10 ms does less harm.
const (
	polledBurst  = "redis_rate with a burst of 1 s, polled"
	polledSmooth = "redis_rate with a burst of 10 ms, polled"
)

var pollingPeers = map[string]standin.Peer{polledBurst: polling(1), polledSmooth: polling(100)}

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
		var all sync.WaitGroup
		for range pollers {
			all.Go(func() {
				for ctx.Err() == nil {
					calls.Add(1)
					switch answer, err := limiter.Allow(ctx, o.Key, rule); {
					case err != nil:
						failed.Add(1)
					case answer.Allowed == 0:
						select {
						case <-ctx.Done():
						case <-time.After(answer.RetryAfter):
						}
					default:
						if _, err := provider.Write([]byte{'.'}); err != nil {
							return // the provider has ended
						}
						sent.Add(1)
					}
				}
			})
		}
		all.Wait()
		return standin.Report{Sent: sent.Load(), LedgerCalls: calls.Load(), LedgerErrors: failed.Load()}, nil
	}
}
