package resilience_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

var (
	errGone = errors.New("connection refused")
	quiet   = slog.New(slog.NewTextHandler(io.Discard, nil))
)

// flaky is a store whose calls return the error of fault. If fault is nil, or returns nil, the wrapped store answers.
type flaky struct {
	limit.Store
	fault func() error // called for each call of the store
	asked atomic.Int64
	down  atomic.Bool // every call fails with errGone
}

func newFlaky(t testing.TB, inner limit.Store) *flaky {
	t.Helper()
	if inner == nil {
		var err error
		if inner, err = memory.New(memory.Config{}); err != nil {
			t.Fatal(err)
		}
	}
	return &flaky{Store: inner}
}

func (f *flaky) ask() error {
	f.asked.Add(1)
	if f.down.Load() {
		return errGone
	}
	if f.fault != nil {
		return f.fault()
	}
	return nil
}

func (f *flaky) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if err := f.ask(); err != nil {
		d.Clear(now.UnixMicro())
		return err
	}
	return f.Store.Decide(ctx, req, now, d)
}

func (f *flaky) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if err := f.ask(); err != nil {
		d.Clear(now.UnixMicro())
		return err
	}
	return f.Store.Peek(ctx, req, now, d)
}

func (f *flaky) Settle(ctx context.Context, r *limit.Receipt, used []int64, now time.Time) (limit.Settlement, error) {
	if err := f.ask(); err != nil {
		return limit.Settlement{}, err
	}
	return f.Store.Settle(ctx, r, used, now)
}

// guarded is a store whose calls are made by a breaker, as the router makes them.
type guarded struct {
	limit.Store
	breaker *resilience.Breaker
}

func (g *guarded) State() resilience.BreakerState { return g.breaker.State() }
func (g *guarded) Stats() resilience.BreakerStats { return g.breaker.Stats() }

func newBreaker(t testing.TB, store limit.Store) *guarded {
	t.Helper()
	b, err := resilience.NewBreaker(resilience.BreakerConfig{Name: "redis", Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	s, err := router.New(router.Config{Rates: router.Backend{Store: store, Guard: b}})
	if err != nil {
		t.Fatal(err)
	}
	return &guarded{s, b}
}

func newLimit(t testing.TB, l limit.Limit) *limit.Limit {
	t.Helper()
	made, err := limit.New(l)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

var acme = limit.Owner{Kind: limit.Tenant, Name: "acme"}

// perSecond returns a request for one unit of a limit of a thousand a second.
func perSecond(t testing.TB) *limit.Request {
	l := newLimit(t, limit.Limit{ID: "l", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Period: time.Second,
		Threshold: 1000}}})
	return &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l, Cost: 1}}}
}

func decide(b limit.Store, req *limit.Request) error {
	var d limit.Decision
	return b.Decide(context.Background(), req, time.Now(), &d)
}

func TestBreakerContract(t *testing.T) {
	limittest.RunStoreContract(t, limittest.Config{
		New:     func(tb testing.TB) limit.Store { return newBreaker(tb, newFlaky(tb, nil)) },
		Scripts: soak.Times(20), // the wrapped store runs all of them in its own test
	})
}

// Guarantees that a burst of failures opens the breaker and fewer failures do not, that it makes no calls until the
// cooldown is over, and that a successful call closes it.
func TestBreakerOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFlaky(t, nil)
		b, req := newBreaker(t, store), perSecond(t)
		for range 10 { // four failures and a success, ten times
			store.down.Store(true)
			for range 4 {
				if err := decide(b, req); !errors.Is(err, errGone) {
					t.Fatalf("err = %v, want the store's error", err)
				}
			}
			store.down.Store(false)
			for range 10 {
				if err := decide(b, req); err != nil {
					t.Fatal(err)
				}
			}
		}
		store.down.Store(true)
		for range 5 {
			_ = decide(b, req)
		}
		if b.State() != resilience.StateOpen {
			t.Fatalf("the breaker is %s after five failures in a row, want it open", b.State())
		}
		asked := store.asked.Load()
		for range 100 {
			pass(9 * time.Millisecond)
			var d limit.Decision
			if err := b.Decide(t.Context(), req, time.Now(), &d); !errors.Is(err, resilience.ErrBreakerOpen) ||
				!strings.Contains(err.Error(), "redis") {
				t.Fatalf("err = %v, want ErrBreakerOpen, and that the error says that redis was not called", err)
			}
			if err := b.Peek(t.Context(), req, time.Now(), &d); !errors.Is(err, resilience.ErrBreakerOpen) {
				t.Fatalf("err = %v", err)
			}
			_, err := b.Settle(t.Context(), d.Receipt(), nil, time.Now())
			if !errors.Is(err, resilience.ErrBreakerOpen) {
				t.Fatalf("err = %v", err)
			}
		}
		if store.asked.Load() != asked {
			t.Errorf("the open breaker called the store %d times, want no call", store.asked.Load()-asked)
		}
		store.down.Store(false)
		pass(301 * time.Millisecond)
		if err := decide(b, req); err != nil || b.State() != resilience.StateClosed {
			t.Errorf("the probe: error %v, then the breaker is %s; want no error, and it closed", err, b.State())
		}
		if s := b.Stats(); s.Opened != 1 || s.Probes != 1 || s.Refused != 300 {
			t.Errorf("breaker stats %+v, want 1 opened, 1 probe, 300 refused", s)
		}
	})
}

// Guarantees that the breaker opens if half of the calls fail, but only after at least 4 × Failures calls: fewer calls
// say too little.
func TestBreakerNeedsEnoughCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFlaky(t, nil)
		b, req := newBreaker(t, store), perSecond(t) // Failures is 5
		for i := range 20 {
			store.down.Store(i%2 == 0)
			_ = decide(b, req)
			if b.State() != resilience.StateClosed {
				t.Fatalf("the breaker opens after %d calls, of which half failed; want at least 20 calls before", i+1)
			}
		}
		store.down.Store(true)
		_ = decide(b, req)
		if b.State() != resilience.StateOpen {
			t.Error("the breaker is still closed after 21 calls, of which 11 failed; want it open")
		}
	})
}

// Guarantees that the breaker opens if every other call fails: otherwise these calls would wait for their deadline for
// ever.
func TestBreakerOpensWhenHalfFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFlaky(t, nil)
		b, req := newBreaker(t, store), perSecond(t)
		for i := 0; b.State() == resilience.StateClosed; i++ {
			if i == 40 {
				t.Fatal("the breaker is still closed after 40 calls, of which half failed; want it open")
			}
			store.down.Store(i%2 == 0)
			_ = decide(b, req)
		}
	})
}

// Guarantees that an invalid request, and a call that was given up, do not count as failures of the store.
func TestBreakerCountsOnlyTheStore(t *testing.T) {
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	for name, c := range map[string]struct {
		ctx context.Context
		err error
	}{
		"invalid request": {context.Background(), limit.ErrInvalidRequest}, "invalid cost": {context.Background(),
			limit.ErrInvalidCost},
		"duplicate": {context.Background(), limit.ErrDuplicateCounter}, "full": {context.Background(), limit.ErrFull},
		"given up": {gone, nil},
	} {
		store := newFlaky(t, nil)
		store.fault = func() error { return c.err }
		b, req := newBreaker(t, store), perSecond(t)
		var d limit.Decision
		for range 50 {
			if err := b.Decide(c.ctx, req, time.Now(), &d); err == nil {
				t.Fatalf("%s: Decide returns no error, want one", name)
			}
		}
		if b.State() != resilience.StateClosed {
			t.Errorf("%s: the breaker is %s after 50 of these calls, want it closed", name, b.State())
		}
	}
}

// Guarantees that a call that is given up while the store works on it does not count either.
func TestBreakerGivenUpMeanwhile(t *testing.T) {
	store := newFlaky(t, nil)
	b, req := newBreaker(t, store), perSecond(t)
	var d limit.Decision
	for range 50 {
		ctx, cancel := context.WithCancel(context.Background())
		store.fault = func() error { cancel(); return context.Canceled }
		if err := b.Decide(ctx, req, time.Now(), &d); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if b.State() != resilience.StateClosed {
		t.Errorf("the breaker is %s after 50 calls that were given up, want it closed", b.State())
	}
}

func openBreaker(b *guarded, req *limit.Request) {
	for b.State() == resilience.StateClosed {
		_ = decide(b, req)
	}
}

// Guarantees that a store that comes back gets one call of each instance, whatever the load, and that a longer wait
// follows a failed probe.
func TestBreakerOneProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFlaky(t, nil)
		b, req := newBreaker(t, store), perSecond(t)
		store.down.Store(true)
		openBreaker(b, req)
		store.down.Store(false)
		longest := time.Duration(0)
		for round, least := range []time.Duration{1, 2, 4, 4} {
			least *= time.Second
			opened := time.Now()
			answer := make(chan error)
			store.fault = func() error { return <-answer }
			asked := store.asked.Load()
			pass(least - 20*time.Millisecond)
			for store.asked.Load() == asked { // a thousand concurrent callers, repeatedly
				pass(20 * time.Millisecond)
				var wg sync.WaitGroup
				for range 1000 {
					wg.Go(func() {
						if err := decide(b, req); err != nil && !errors.Is(err, resilience.ErrBreakerOpen) &&
							!errors.Is(err, errGone) {
							t.Error(err)
						}
					})
				}
				synctest.Wait()
				if store.asked.Load() == asked {
					wg.Wait()
					continue
				}
				if n := store.asked.Load() - asked; n != 1 || b.State() != resilience.StateProbing {
					t.Errorf("round %d: %d concurrent probes, breaker %s; want one, and the breaker probing", round, n,
						b.State())
				}
				answer <- errGone
				wg.Wait()
			}
			waited := time.Since(opened)
			if waited < least || waited > least*12/10+20*time.Millisecond {
				t.Errorf("round %d: the probe came after %s, want %s to a fifth more", round, waited, least)
			}
			longest = max(longest, waited)
			if b.State() != resilience.StateOpen {
				t.Errorf("round %d: the breaker is %s after a failed probe, want it open", round, b.State())
			}
		}
		store.fault = nil
		pass(longest + 2*time.Second)
		if err := decide(b, req); err != nil || b.State() != resilience.StateClosed {
			t.Errorf("err %v, breaker %s; want no error, and it closed by the answer", err, b.State())
		}
		store.down.Store(true)
		openBreaker(b, req)
		pass(1201 * time.Millisecond)
		if err := decide(b, req); !errors.Is(err, errGone) {
			t.Errorf("err = %v, want the store's error: after it was closed, the breaker must use its first "+
				"cooldown again", err)
		}
	})
}

// Guarantees that a call which began before the breaker opened, and ends after it, does not count as the probe.
func TestBreakerStraggler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFlaky(t, nil)
		b, req := newBreaker(t, store), perSecond(t)
		late := make(chan error)
		store.fault = func() error { return <-late }
		done := make(chan error)
		go func() { done <- decide(b, req) }()
		synctest.Wait()
		store.fault = nil
		store.down.Store(true)
		openBreaker(b, req)
		pass(1201 * time.Millisecond)
		store.down.Store(false)
		probe := make(chan error)
		store.fault = func() error { return <-probe }
		go func() { done <- decide(b, req) }()
		synctest.Wait()
		late <- nil
		if err := <-done; err != nil || b.State() != resilience.StateProbing {
			t.Errorf("the late call: error %v, then the breaker is %s; want no error, and it probing", err, b.State())
		}
		if err := decide(b, req); !errors.Is(err, resilience.ErrBreakerOpen) {
			t.Errorf("err = %v during the probe, want ErrBreakerOpen", err)
		}
		probe <- nil
		if err := <-done; err != nil || b.State() != resilience.StateClosed {
			t.Errorf("the probe: error %v, then the breaker is %s; want no error, and it closed", err, b.State())
		}
	})
}

// Guarantees that 50 instances that lost a store at the same time do not probe it at the same time.
func TestBreakerSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const instances, bins = 50, 10
		req := perSecond(t)
		var wg sync.WaitGroup
		var mu sync.Mutex
		var perBin [bins]int
		begin := time.Now()
		for range instances {
			wg.Go(func() {
				store := newFlaky(t, nil)
				b := newBreaker(t, store)
				store.down.Store(true)
				openBreaker(b, req)
				for asked := store.asked.Load(); store.asked.Load() == asked; {
					pass(time.Millisecond)
					_ = decide(b, req)
				}
				after := time.Since(begin) - time.Second
				if after < 0 || after > 201*time.Millisecond {
					t.Errorf("the first probe of an instance came %s after the cooldown, want 0..200ms", after)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				perBin[min(int(after/(20*time.Millisecond)), bins-1)]++
			})
		}
		wg.Wait()
		used, most := 0, 0
		for _, n := range perBin {
			if most = max(most, n); n > 0 {
				used++
			}
		}
		t.Logf("first probes of %d instances in each 20 ms after the cooldown of 1 s: %v", instances, perBin)
		if used < 7 || most > 20 {
			t.Errorf("the probes are in %d of %d intervals, at most %d in one; want at least 7 intervals, and at "+
				"most 20 in one", used, bins, most)
		}
	})
}

// Guarantees that a reused decision keeps nothing of its previous use if the store is not called.
func TestARefusedDecisionIsEmpty(t *testing.T) {
	store := newFlaky(t, nil)
	b, req := newBreaker(t, store), perSecond(t)
	for name, ask := range map[string]func(context.Context, *limit.Request, time.Time,
		*limit.Decision) error{"Decide": b.Decide, "Peek": b.Peek} {
		b.breaker.Reset()
		store.down.Store(false)
		var d limit.Decision
		if err := b.Decide(t.Context(), req, time.Now(), &d); err != nil || !d.Allowed {
			t.Fatalf("allowed %t, %v; want it allowed", d.Allowed, err)
		}
		store.down.Store(true)
		openBreaker(b, req)
		if err := ask(t.Context(), req, time.Now(), &d); !errors.Is(err, resilience.ErrBreakerOpen) || d.Allowed ||
			len(d.Results) != 0 {
			t.Errorf("%s: %v, allowed %t with %d results; want an empty decision", name, err, d.Allowed, len(d.Results))
		}
	}
}

// Guarantees that a breaker that is reset calls the store at once, and opens again only after as many failures as at
// first.
func TestBreakerReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		breaker, err := resilience.NewBreaker(resilience.BreakerConfig{Name: "redis",
			Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		store := newFlaky(t, nil)
		s, err := router.New(router.Config{Rates: router.Backend{Store: store, Guard: breaker}})
		if err != nil {
			t.Fatal(err)
		}
		b, req := &guarded{s, breaker}, perSecond(t)
		store.down.Store(true)
		for range 3 {
			openBreaker(b, req)
			asked := store.asked.Load()
			b.breaker.Reset()
			for range 4 {
				if err := decide(b, req); !errors.Is(err, errGone) || b.State() != resilience.StateClosed {
					t.Fatalf("err = %v, %s; want the store's error, closed", err, b.State())
				}
			}
			if n := store.asked.Load() - asked; n != 4 {
				t.Errorf("the store was called %d times after a reset, want 4", n)
			}
		}
		if text := log.String(); strings.Count(text, "keeps failing") != 3 || strings.Contains(text, "answers again") {
			t.Errorf("after three openings without an answer in between, want three lines that the store keeps "+
				"failing, and none that it answers:\n%s", text)
		}
	})
}

func TestBreakerAllocatesNothing(t *testing.T) {
	b, req := newBreaker(t, newFlaky(t, nil)), perSecond(t)
	var d limit.Decision
	ctx, now := context.Background(), time.Now()
	ask := func() { _ = b.Decide(ctx, req, now, &d) }
	ask()
	if n := testing.AllocsPerRun(100, ask); n > 0 && !soak.RaceEnabled {
		t.Errorf("%.1f allocations for a call through a closed breaker, want 0", n)
	}
	store := newFlaky(t, nil)
	store.down.Store(true)
	b = newBreaker(t, store)
	openBreaker(b, req)
	if n := testing.AllocsPerRun(100, ask); n > 0 && !soak.RaceEnabled {
		t.Errorf("%.1f allocations for a call that an open breaker refuses, want 0", n)
	}
}

func TestNewBreakerRefuses(t *testing.T) {
	for want, c := range map[string]resilience.BreakerConfig{
		"Name is missing": {},
		"Failures -1":     {Name: "n", Failures: -1},
		"Window 1ms":      {Name: "n", Window: time.Millisecond},
		"Cooldown 2s..1s": {Name: "n", Cooldown: 2 * time.Second, MaxCooldown: time.Second},
	} {
		if _, err := resilience.NewBreaker(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("NewBreaker = %v, want an error with %q", err, want)
		}
	}
}

// pass lets virtual time pass. It must be called in a bubble.
func pass(d time.Duration) { <-time.After(d) }
