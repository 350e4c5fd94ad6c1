package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/sluicelimits/sluice/pacer"
)

// pacerContender is a pacer with units in hand, so that nobody waits.
func pacerContender() (*contender, error) {
	p, err := pacer.New(pacer.Config{Limit: pacer.Limit{Units: pacer.MaxUnits, Period: pacer.MaxPeriod}})
	if err != nil {
		return nil, err
	}
	return &contender{
		name: "pacer", keys: 1, workers: 1, close: p.Close,
		spend: func(_, ops int) (admitted int, err error) {
			ctx := context.Background()
			for range ops {
				if _, err := p.Acquire(ctx, "key", 1); err != nil {
					return admitted, err
				}
				admitted++
			}
			return admitted, nil
		},
		spent: func(int) (least, most int, err error) {
			used := int(p.Status().Used)
			return used, used, nil
		},
	}, nil
}

// rateWaitContender is the Wait of golang.org/x/time/rate with tokens in hand.
func rateWaitContender() *contender {
	l := rate.NewLimiter(rate.Every(365*24*time.Hour), plenty)
	return &contender{
		name: "x/time/rate", keys: 1, workers: 1, close: func() {},
		spend: func(_, ops int) (admitted int, err error) {
			ctx := context.Background()
			for range ops {
				if err := l.Wait(ctx); err != nil {
					return admitted, err
				}
				admitted++
			}
			return admitted, nil
		},
		spent: func(int) (least, most int, err error) {
			used := plenty - int(l.Tokens())
			return used, used + 1, nil
		},
	}
}

func acquiresPerSecond(c comparison) float64 { return 1e9 / c.oursOnCPU }
func acquiresRatio(c comparison) float64     { return c.ratio }

// pacerFigure measures Acquire with units in hand, by one goroutine, beside the Wait of x/time/rate.
func pacerFigure(value func(comparison) float64) func(short bool) (Result, error) {
	return func(short bool) (Result, error) {
		var r Result
		ours, err := pacerContender()
		if err != nil {
			return r, err
		}
		if perOp := testing.AllocsPerRun(1000, func() { _, err = ours.spend(0, 1) }); perOp != 0 || err != nil {
			ours.close()
			return r, fmt.Errorf("method Acquire makes %.2f allocations, want 0; error: %w", perOp, err)
		}
		ours.close()
		if ours, err = pacerContender(); err != nil {
			return r, err
		}
		c, err := compareAndClose(ours, rateWaitContender(), loadFor(short), 1, plenty)
		if err != nil {
			return r, err
		}
		r.Value = value(c)
		r.note("units in hand, one goroutine, 0 allocations; beside the Wait of x/time/rate: %.2f x, %s", c.ratio, c)
		r.note("processor time of an Acquire: %.1f ns; one reading of the monotonic clock: %.1f ns", c.oursOnCPU,
			clockReading())
		return r, nil
	}
}

// clockReading is the processor time of one reading of the monotonic clock, ns.
func clockReading() float64 {
	const readings = 1_000_000
	origin, used := time.Now(), processorTime()
	var last time.Duration
	for range readings {
		last = time.Since(origin)
	}
	used = processorTime() - used
	if last < 0 {
		return 0
	}
	return float64(used) / readings
}

// nobody is the waker of tickets that are never served.
type nobody struct{}

func (nobody) Wake(pacer.Permit, error) {}

// ticketLoad is what many waiting tickets cost.
type ticketLoad struct {
	bytes             float64 // per ticket
	inOrder, atRandom time.Duration
}

func ticketBytes(l ticketLoad) float64 { return l.bytes }

// pacerTicketsFigure has a million tickets wait, and cancels all of them.
func pacerTicketsFigure(value func(ticketLoad) float64) func(short bool) (Result, error) {
	return func(short bool) (Result, error) {
		var r Result
		n, rounds := 1_000_000, 5
		if short {
			n, rounds = 10_000, 1
		}
		one, err := measureTickets(n, 1, rounds)
		if err != nil {
			return r, err
		}
		many, err := measureTickets(n, n, 1)
		if err != nil {
			return r, err
		}
		r.Value = value(one)
		r.note("%d tickets of one key: %.0f bytes each, canceled in %s in order and %s at random; each with a key "+
			"of its own: %.0f bytes, %s and %s (processor time)", n, one.bytes, one.inOrder, one.atRandom, many.bytes,
			many.inOrder, many.atRandom)
		return r, nil
	}
}

// measureTickets is the least of some rounds.
func measureTickets(n, keys, rounds int) (best ticketLoad, err error) {
	names := keyNames(keys)
	tickets := make([]pacer.Ticket, n)
	for round := range rounds {
		for _, atRandom := range []bool{false, true} {
			p, err := waitingPacer()
			if err != nil {
				return best, err
			}
			before := heapInUse()
			for i := range tickets {
				if tickets[i], err = p.Enqueue(names[i%keys], 1, pacer.Forever, nobody{}); err != nil {
					return best, err
				}
			}
			bytes := float64(heapInUse()-before) / float64(n)
			if atRandom {
				rand.Shuffle(n, func(i, j int) { tickets[i], tickets[j] = tickets[j], tickets[i] })
			}
			used := processorTime()
			canceled := 0
			for _, t := range tickets {
				if p.Cancel(t) {
					canceled++
				}
			}
			used = processorTime() - used
			if left := p.Status().Waiting; canceled != n || left != 0 {
				return best, fmt.Errorf("%d of %d tickets were canceled, and %d wait", canceled, n, left)
			}
			p.Close()
			into := &best.inOrder
			if atRandom {
				into = &best.atRandom
			}
			if round == 0 || used < *into {
				*into = used
			}
			best.bytes = max(best.bytes, bytes)
		}
	}
	return best, nil
}

// waitingPacer is one whose units are spent for a year.
func waitingPacer() (*pacer.Pacer, error) {
	p, err := pacer.New(pacer.Config{Limit: pacer.Limit{Units: 1, Period: pacer.MaxPeriod}})
	if err != nil {
		return nil, err
	}
	_, err = p.Acquire(context.Background(), "first", 1)
	return p, err
}

// pacerWakeFigure is how late tickets are woken, at 100,000 per second.
func pacerWakeFigure(short bool) (Result, error) {
	var r Result
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
	ours, err := lateness(n, func(i int, woken func(int)) (due time.Time, err error) {
		t, err := p.Enqueue("key", 1, pacer.Forever, pacer.WakerFunc(func(pacer.Permit, error) { woken(i) }))
		return t.Earliest, err
	})
	if err != nil {
		return r, err
	}
	limiter := rate.NewLimiter(perSecond, 1)
	theirs, err := lateness(n, func(i int, woken func(int)) (due time.Time, err error) {
		now := time.Now()
		delay := limiter.ReserveN(now, 1).DelayFrom(now)
		time.AfterFunc(delay, func() { woken(i) })
		return now.Add(delay), nil
	})
	if err != nil {
		return r, err
	}
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	at := func(all []time.Duration, q float64) float64 { return ms(all[int(q*float64(len(all)-1))]) }
	r.Value = at(ours, 0.99)
	r.note("%d tickets at %d per second: late by %.2f ms (p50), %.2f ms (p90), %.2f ms (p99); x/time/rate with a "+
		"timer each: %.2f, %.2f and %.2f ms", n, perSecond, at(ours, 0.5), at(ours, 0.9), at(ours, 0.99),
		at(theirs, 0.5), at(theirs, 0.9), at(theirs, 0.99))
	return r, nil
}

// lateness makes n requests, and returns by how much each is woken after it was due, in ascending order.
func lateness(n int, enqueue func(i int, woken func(int)) (due time.Time, err error)) ([]time.Duration, error) {
	dues, woken := make([]time.Time, n), make([]time.Time, n)
	var all sync.WaitGroup
	all.Add(n)
	done := func(i int) {
		woken[i] = time.Now()
		all.Done()
	}
	for i := range n {
		var err error
		if dues[i], err = enqueue(i, done); err != nil {
			return nil, err
		}
	}
	all.Wait()
	late := make([]time.Duration, n)
	for i := range late {
		late[i] = woken[i].Sub(dues[i])
	}
	slices.Sort(late)
	return late, nil
}
