package resilience_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/breaker"
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
	breaker *breaker.Breaker
}

func (g *guarded) State() breaker.State { return g.breaker.State() }
func (g *guarded) Stats() breaker.Stats { return g.breaker.Stats() }

func newBreaker(t testing.TB, store limit.Store) *guarded {
	t.Helper()
	guard := resilience.NewGuard("redis")
	s, err := router.New(router.Config{Rates: router.Backend{Store: store, Guard: guard}})
	if err != nil {
		t.Fatal(err)
	}
	return &guarded{s, guard.Breaker}
}

var newLimit = limittest.MustNew

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
		if b.State() != breaker.Closed {
			t.Errorf("%s: the breaker is %s after 50 of these calls, want it closed", name, b.State())
		}
	}
}

func openBreaker(b *guarded, req *limit.Request) {
	for b.State() == breaker.Closed {
		_ = decide(b, req)
	}
}

// Guarantees that an open breaker makes no call of any kind, and that a reused decision keeps nothing of its previous
// use then.
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
		if err := ask(t.Context(), req, time.Now(), &d); !errors.Is(err, breaker.ErrOpen) || d.Allowed ||
			len(d.Results) != 0 {
			t.Errorf("%s: %v, allowed %t with %d results; want an empty decision", name, err, d.Allowed, len(d.Results))
		}
		asked := store.asked.Load()
		if _, err := b.Settle(t.Context(), d.Receipt(), nil, time.Now()); !errors.Is(err, breaker.ErrOpen) ||
			store.asked.Load() != asked {
			t.Errorf("Settle: %v after %d calls of the store, want ErrOpen after none", err, store.asked.Load()-asked)
		}
	}
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

// pass lets virtual time pass. It must be called in a bubble.
func pass(d time.Duration) { <-time.After(d) }
