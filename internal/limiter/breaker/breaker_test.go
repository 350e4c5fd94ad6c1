package breaker_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/breaker"
)

var errGone = errors.New("connection refused")

// flaky is a store whose calls return the error of fault. If fault is nil, they succeed.
type flaky struct {
	fault func() error // called for each call of the store
	asked atomic.Int64
	down  atomic.Bool // every call fails with errGone
}

func (f *flaky) call() error {
	f.asked.Add(1)
	if f.down.Load() {
		return errGone
	}
	if f.fault != nil {
		return f.fault()
	}
	return nil
}

func newBreaker() *breaker.Breaker { return breaker.New(breaker.Config{Name: "redis"}) }

func ask(b *breaker.Breaker, store *flaky) error { return b.Do(context.Background(), store.call) }

// Guarantees that a burst of failures opens the breaker and fewer failures do not, that it makes no calls until the
// cooldown is over, and that a successful call closes it.
func TestBreakerOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(flaky)
		b := newBreaker()
		for range 10 { // four failures and a success, ten times
			store.down.Store(true)
			for range 4 {
				if err := ask(b, store); !errors.Is(err, errGone) {
					t.Fatalf("err = %v, want the store's error", err)
				}
			}
			store.down.Store(false)
			for range 10 {
				if err := ask(b, store); err != nil {
					t.Fatal(err)
				}
			}
		}
		store.down.Store(true)
		for range 5 {
			_ = ask(b, store)
		}
		if b.State() != breaker.Open {
			t.Fatalf("the breaker is %s after five failures in a row, want it open", b.State())
		}
		asked := store.asked.Load()
		for range 100 {
			pass(9 * time.Millisecond)
			if err := ask(b, store); !errors.Is(err, breaker.ErrOpen) ||
				!strings.Contains(err.Error(), "redis") {
				t.Fatalf("err = %v, want ErrBreakerOpen, and that the error says that redis was not called", err)
			}
		}
		if store.asked.Load() != asked {
			t.Errorf("the open breaker called the store %d times, want no call", store.asked.Load()-asked)
		}
		store.down.Store(false)
		pass(301 * time.Millisecond)
		if err := ask(b, store); err != nil || b.State() != breaker.Closed {
			t.Errorf("the probe: error %v, then the breaker is %s; want no error, and it closed", err, b.State())
		}
		if s := b.Stats(); s.Opened != 1 || s.Probes != 1 || s.Refused != 100 {
			t.Errorf("breaker stats %+v, want 1 opened, 1 probe, 100 refused", s)
		}
	})
}

// Guarantees that the breaker opens if half of the calls fail, but only after at least 4 × Failures calls: fewer calls
// say too little.
func TestBreakerNeedsEnoughCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(flaky)
		b := newBreaker() // Failures is 5
		for i := range 20 {
			store.down.Store(i%2 == 0)
			_ = ask(b, store)
			if b.State() != breaker.Closed {
				t.Fatalf("the breaker opens after %d calls, of which half failed; want at least 20 calls before", i+1)
			}
		}
		store.down.Store(true)
		_ = ask(b, store)
		if b.State() != breaker.Open {
			t.Error("the breaker is still closed after 21 calls, of which 11 failed; want it open")
		}
	})
}

// Guarantees that the breaker opens if every other call fails: otherwise these calls would wait for their deadline for
// ever.
func TestBreakerOpensWhenHalfFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(flaky)
		b := newBreaker()
		for i := 0; b.State() == breaker.Closed; i++ {
			if i == 40 {
				t.Fatal("the breaker is still closed after 40 calls, of which half failed; want it open")
			}
			store.down.Store(i%2 == 0)
			_ = ask(b, store)
		}
	})
}

// Guarantees that a call that is given up while the store works on it does not count either.
func TestBreakerGivenUpMeanwhile(t *testing.T) {
	store := new(flaky)
	b := newBreaker()
	for range 50 {
		ctx, cancel := context.WithCancel(context.Background())
		store.fault = func() error { cancel(); return context.Canceled }
		if err := b.Do(ctx, store.call); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if b.State() != breaker.Closed {
		t.Errorf("the breaker is %s after 50 calls that were given up, want it closed", b.State())
	}
}

func openBreaker(b *breaker.Breaker, store *flaky) {
	for b.State() == breaker.Closed {
		_ = ask(b, store)
	}
}

// Guarantees that a store that comes back gets one call of each instance, whatever the load, and that a longer wait
// follows a failed probe.
func TestBreakerOneProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(flaky)
		b := newBreaker()
		store.down.Store(true)
		openBreaker(b, store)
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
						if err := ask(b, store); err != nil && !errors.Is(err, breaker.ErrOpen) &&
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
				if n := store.asked.Load() - asked; n != 1 || b.State() != breaker.Probing {
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
			if b.State() != breaker.Open {
				t.Errorf("round %d: the breaker is %s after a failed probe, want it open", round, b.State())
			}
		}
		store.fault = nil
		pass(longest + 2*time.Second)
		if err := ask(b, store); err != nil || b.State() != breaker.Closed {
			t.Errorf("err %v, breaker %s; want no error, and it closed by the answer", err, b.State())
		}
		store.down.Store(true)
		openBreaker(b, store)
		pass(1201 * time.Millisecond)
		if err := ask(b, store); !errors.Is(err, errGone) {
			t.Errorf("err = %v, want the store's error: after it was closed, the breaker must use its first "+
				"cooldown again", err)
		}
	})
}

// Guarantees that a call which began before the breaker opened, and ends after it, does not count as the probe.
func TestBreakerStraggler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(flaky)
		b := newBreaker()
		late := make(chan error)
		store.fault = func() error { return <-late }
		done := make(chan error)
		go func() { done <- ask(b, store) }()
		synctest.Wait()
		store.fault = nil
		store.down.Store(true)
		openBreaker(b, store)
		pass(1201 * time.Millisecond)
		store.down.Store(false)
		probe := make(chan error)
		store.fault = func() error { return <-probe }
		go func() { done <- ask(b, store) }()
		synctest.Wait()
		late <- nil
		if err := <-done; err != nil || b.State() != breaker.Probing {
			t.Errorf("the late call: error %v, then the breaker is %s; want no error, and it probing", err, b.State())
		}
		if err := ask(b, store); !errors.Is(err, breaker.ErrOpen) {
			t.Errorf("err = %v during the probe, want ErrBreakerOpen", err)
		}
		probe <- nil
		if err := <-done; err != nil || b.State() != breaker.Closed {
			t.Errorf("the probe: error %v, then the breaker is %s; want no error, and it closed", err, b.State())
		}
	})
}

// Guarantees that 50 instances that lost a store at the same time do not probe it at the same time.
func TestBreakerSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const instances, bins = 50, 10
		var wg sync.WaitGroup
		var mu sync.Mutex
		var perBin [bins]int
		begin := time.Now()
		for range instances {
			wg.Go(func() {
				store := new(flaky)
				b := newBreaker()
				store.down.Store(true)
				openBreaker(b, store)
				for asked := store.asked.Load(); store.asked.Load() == asked; {
					pass(time.Millisecond)
					_ = ask(b, store)
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

// Guarantees that a breaker that is reset calls the store at once, and opens again only after as many failures as at
// first.
func TestBreakerReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		store, b := new(flaky), breaker.New(breaker.Config{Name: "redis",
			Log: slog.New(slog.NewTextHandler(&log, nil))})
		store.down.Store(true)
		for range 3 {
			openBreaker(b, store)
			asked := store.asked.Load()
			b.Reset()
			for range 4 {
				if err := ask(b, store); !errors.Is(err, errGone) || b.State() != breaker.Closed {
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

// pass lets virtual time pass. It must be called in a bubble.
func pass(d time.Duration) { <-time.After(d) }
