package bench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	goredis "github.com/redis/go-redis/v9"
	"golang.org/x/time/rate"

	"github.com/sluicelimits/sluice/internal/testkit/standin"
	"github.com/sluicelimits/sluice/pacer"
)

// pacing returns a contender of one goroutine with units in hand, so that nobody waits.
func pacing(name string, wait func(context.Context) error, used func() int) *contender {
	return &contender{
		name: name, keys: 1, workers: 1, close: func() {},
		ask: func() func(int) (bool, error) {
			ctx := context.Background()
			return func(int) (bool, error) {
				err := wait(ctx)
				return err == nil, err
			}
		},
		spent: func(int) (least, most int, err error) { return used(), used() + 1, nil },
	}
}

// pacerContender is a pacer.
func pacerContender() (*contender, error) {
	p, err := pacer.New(pacer.Config{Limit: pacer.Limit{Units: pacer.MaxUnits, Period: pacer.MaxPeriod}})
	if err != nil {
		return nil, err
	}
	c := pacing("pacer", func(ctx context.Context) error {
		_, err := p.Acquire(ctx, "key", 1)
		return err
	}, func() int { return int(p.Status().Used) })
	c.close = p.Close
	return c, nil
}

func acquiresPerSecond(c comparison) float64 { return 1e9 / c.ours.processor }
func acquiresRatio(c comparison) float64     { return c.ratio }

// pacerFigure measures Acquire with units in hand, by one goroutine, beside the Wait of golang.org/x/time/rate.
func pacerFigure(value func(comparison) float64) func(short bool) (Result, error) {
	return func(short bool) (r Result, err error) {
		ours, err := pacerContender()
		if err == nil {
			err = ours.allocatesNothing(1)
		}
		if err != nil {
			return r, err
		}
		if ours, err = pacerContender(); err != nil {
			return r, err
		}
		l := rate.NewLimiter(rate.Every(365*24*time.Hour), plenty)
		theirs := pacing("x/time/rate", l.Wait, func() int { return plenty - int(l.Tokens()) })
		c, err := compare(ours, theirs, short)
		if err != nil {
			return r, err
		}
		r.Value = value(c)
		r.note("units in hand, one goroutine, 0 allocations; beside the Wait of x/time/rate: %.2f x, %s", c.ratio, c)
		return r, nil
	}
}

// nobody is the waker of tickets that are never served.
type nobody struct{}

func (nobody) Wake(pacer.Permit, error) {}

// pacerTicketsFigure measures the memory of each of a million tickets that wait.
func pacerTicketsFigure(short bool) (r Result, err error) {
	tickets := make([]pacer.Ticket, 1_000_000)
	if short {
		tickets = tickets[:10_000]
	}
	for range 3 { // the largest counts, because other objects may be freed meanwhile
		bytes, err := ticketBytes(tickets)
		if err != nil {
			return r, err
		}
		r.Value = max(r.Value, bytes)
	}
	r.note("%d tickets of one key", len(tickets))
	return r, nil
}

// ticketBytes makes the tickets wait at a pacer whose units are spent for a year.
func ticketBytes(tickets []pacer.Ticket) (perTicket float64, err error) {
	p, err := pacer.New(pacer.Config{Limit: pacer.Limit{Units: 1, Period: pacer.MaxPeriod}})
	if err != nil {
		return 0, err
	}
	defer p.Close()
	if _, err := p.Acquire(context.Background(), "first", 1); err != nil {
		return 0, err
	}
	before := heapInUse()
	for i := range tickets {
		if tickets[i], err = p.Enqueue("key", 1, pacer.Forever, nobody{}); err != nil {
			return 0, err
		}
	}
	perTicket = float64(heapInUse()-before) / float64(len(tickets))
	if waiting := p.Status().Waiting; waiting != len(tickets) {
		return 0, fmt.Errorf("%d of %d tickets wait", waiting, len(tickets))
	}
	return perTicket, nil
}

// pacerWakeFigure is how late tickets are woken, at 100,000 per second.
func pacerWakeFigure(short bool) (r Result, err error) {
	const perSecond = 100_000
	seconds := 3
	if short {
		seconds = 1
	}
	p, err := pacer.New(pacer.Config{Limit: pacer.PerSecond(perSecond), Smoothing: pacer.Spread})
	if err != nil {
		return r, err
	}
	defer p.Close()
	n := seconds * perSecond
	// With Spread, what was not asked for since the window opened is caught up with, at no more than twice the rate.
	// Earliest does not count that. So the requests begin when a window opens.
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
	ours, err := lateness(n, func(woken func()) (due time.Time, err error) {
		t, err := p.Enqueue("key", 1, pacer.Forever, pacer.WakerFunc(func(pacer.Permit, error) { woken() }))
		return t.Earliest, err
	})
	if err != nil {
		return r, err
	}
	limiter := rate.NewLimiter(perSecond, 1)
	theirs, err := lateness(n, func(woken func()) (due time.Time, err error) {
		now := time.Now()
		delay := limiter.ReserveN(now, 1).DelayFrom(now)
		time.AfterFunc(delay, woken)
		return now.Add(delay), nil
	})
	r.Value = quantile(ours, 0.99)
	r.note("%d tickets at %d per second: late by %.2f ms (p50), %.2f ms (p99); x/time/rate with a timer each: %.2f "+
		"and %.2f ms", n, perSecond, quantile(ours, 0.5), r.Value, quantile(theirs, 0.5), quantile(theirs, 0.99))
	return r, err
}

// lateness makes n requests, and returns by how many ms each is woken after it was due.
func lateness(n int, enqueue func(woken func()) (due time.Time, err error)) ([]float64, error) {
	dues, woken := make([]time.Time, n), make([]time.Time, n)
	var all sync.WaitGroup
	for i := range n {
		all.Add(1)
		var err error
		if dues[i], err = enqueue(func() {
			woken[i] = time.Now()
			all.Done()
		}); err != nil {
			return nil, err
		}
	}
	all.Wait()
	late := make([]float64, n)
	for i := range late {
		late[i] = woken[i].Sub(dues[i]).Seconds() * 1e3
	}
	return late, nil
}

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
