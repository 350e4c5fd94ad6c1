package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/testkit/redistest"
	"github.com/sluicelimits/sluice/pacer"
	"github.com/sluicelimits/sluice/redisstore"
)

const (
	sharers       = 8 // pacers that share a limit
	sharedWaiting = 2000
)

// sharedRun is what pacers that share a limit on a Redis did.
type sharedRun struct {
	over    int64   // units beyond the limit, in all windows together
	used    float64 // part of the limit that was used in whole windows, %
	unused  int64   // permits that came too late to be used, and were released
	perCall float64 // calls to Redis per pacer and second
	errors  int64   // of these calls
}

func overLimit(runs []sharedRun) float64 {
	var over int64
	for _, r := range runs {
		over += r.over
	}
	return float64(over)
}

func usedOfLimit(runs []sharedRun) float64 {
	used := 100.0
	for _, r := range runs {
		used = min(used, r.used)
	}
	return used
}

// pacerSharedFigure has pacers share a limit through a Redis, in real time, and counts what they send by itself.
func pacerSharedFigure(value func([]sharedRun) float64) func(short bool) (Result, error) {
	return func(short bool) (Result, error) {
		var r Result
		windows := 15
		if short {
			windows = 2
		}
		dir, err := os.MkdirTemp("", "sluice-bench-")
		if err != nil {
			return r, err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		server, err := redistest.Launch(dir)
		if err != nil {
			return r, err
		}
		defer server.Kill()
		var runs []sharedRun
		for _, limit := range []int64{1000, 50_000} {
			run, err := shareLimit(server.Addr, limit, windows)
			if err != nil {
				return r, err
			}
			r.note("%d pacers in one process, each with its own connections, at %d per second for %d windows: %d "+
				"over, %.2f %% used, %d permits came too late, %.1f calls to Redis per pacer and second, of which "+
				"%d failed", sharers, limit, windows, run.over,
				run.used, run.unused, run.perCall, run.errors)
			runs = append(runs, run)
		}
		r.Value = value(runs)
		return r, nil
	}
}

// judge counts what arrives at a provider, by window. It knows nothing of pacers.
type judge struct {
	mu      sync.Mutex
	arrived map[int64]int64
}

func (j *judge) arrive() {
	window := time.Now().Unix()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.arrived[window]++
}

// sender is a client that sends a request, and has the next one wait, whenever it gets a permit.
type sender struct {
	p      *pacer.Pacer
	judge  *judge
	unused *atomic.Int64
	failed *atomic.Pointer[error]
}

// Wake implements [pacer.Waker].
func (s *sender) Wake(permit pacer.Permit, err error) {
	switch {
	case errors.Is(err, pacer.ErrClosed):
		return
	case err != nil:
		s.failed.Store(&err)
		return
	case time.Now().After(permit.UseBy()):
		s.unused.Add(1)
		permit.Release()
	default:
		s.judge.arrive()
	}
	s.wait()
}

func (s *sender) wait() {
	if _, err := s.p.Enqueue("key", 1, pacer.Forever, s); err != nil && !errors.Is(err, pacer.ErrClosed) {
		s.failed.Store(&err)
	}
}

// shareLimit has pacers use a limit for so many windows.
func shareLimit(addr string, limit int64, windows int) (r sharedRun, err error) {
	j := &judge{arrived: make(map[int64]int64)}
	var unused atomic.Int64
	var failed atomic.Pointer[error]
	var pacers []*pacer.Pacer
	for range sharers {
		store, err := redisstore.New(context.Background(), redisstore.Config{Addrs: []string{addr}})
		if err != nil {
			return r, err
		}
		defer func() { _ = store.Close() }()
		p, err := pacer.New(pacer.Config{
			Limit: pacer.PerSecond(limit),
			// the judge is in this process, and has the same clock
			Guard:  pacer.Guard{MaxDelay: 20 * time.Millisecond},
			Shared: &pacer.Shared{Ledger: store.Ledger(), Key: fmt.Sprint(limit)},
		})
		if err != nil {
			return r, err
		}
		defer p.Close()
		pacers = append(pacers, p)
		s := &sender{p, j, &unused, &failed}
		for range sharedWaiting {
			s.wait()
		}
	}
	const begin = 4 // windows until the ledger leases, and all have their share
	first := time.Now().Unix() + begin
	<-time.After(time.Until(time.Unix(first+int64(windows), 0)))
	var calls int64
	for _, p := range pacers {
		status := p.Status()
		calls += status.LedgerCalls
		r.errors += status.LedgerErrors
	}
	for _, p := range pacers {
		p.Close()
	}
	if err := failed.Load(); err != nil {
		return r, *err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	var used int64
	for window, n := range j.arrived {
		r.over += max(n-limit, 0)
		if window >= first && window < first+int64(windows) {
			used += n
		}
	}
	r.used = 100 * float64(used) / float64(limit*int64(windows))
	r.unused, r.perCall = unused.Load(), float64(calls)/sharers/float64(windows+begin)
	return r, nil
}
