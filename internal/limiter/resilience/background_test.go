package resilience_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
)

func runBackgroundTasks(l *resilience.Chain) { l.RunBackgroundTasks(context.Background(), time.Now()) }

// Guarantees that the chain of a frozen process starts nothing by itself: a goroutine would be frozen with the process,
// and go on during another request with old data. All its tasks run when Background is called.
func TestFrozenDoesNothingByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake(t)
		l := newChain(t, resilience.ChainConfig{Rates: resilience.NamedStore{Name: "redis", Store: store},
			MaxInstances: 40, Frozen: true})
		<-time.After(time.Hour)
		if asked := store.all(); len(asked) > 0 {
			t.Errorf("a frozen chain has called its store by itself, want no call: %v", asked)
		}
		if n := l.Instances.Count(); n != 40 {
			t.Errorf("the instance count is %d before an announcement, want 40, the largest number", n)
		}
		runBackgroundTasks(l)
		if n := l.Instances.Count(); n != 1 {
			t.Errorf("the instance count is %d after an announcement, want 1", n)
		}
		for range 1000 { // requests within a second
			runBackgroundTasks(l)
			<-time.After(time.Millisecond)
		}
		if asked := store.all(); len(asked) > 2 { // the second announcement comes at any time of the period
			t.Errorf("%d calls of the store during a second of requests, want at most 2: %v", len(asked), asked)
		}
		before := len(store.all())
		for range 100 {
			<-time.After(time.Second)
			runBackgroundTasks(l)
		}
		if asked := len(store.all()) - before; asked < 9 || asked > 12 {
			t.Errorf("%d announcements in 100 s, want about one in 10 s", asked)
		}
		closeChain(t, l)
	})
}

// Guarantees that a process whose monotonic clock stood still with it announces itself by the wall clock: the others
// would otherwise count it as ended.
func TestAnnouncingGoesByTheWallClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake(t)
		l := newChain(t, resilience.ChainConfig{Rates: resilience.NamedStore{Name: "redis", Store: store},
			Frozen: true})
		defer closeChain(t, l)
		now := time.Now().Round(0)
		for _, after := range []time.Duration{0, 0, time.Hour, time.Hour, 2 * time.Hour} {
			l.RunBackgroundTasks(t.Context(), now.Add(after))
		}
		if asked := store.all(); len(asked) != 3 {
			t.Errorf("%d announcements, want one at each of 3 times", len(asked))
		}
	})
}

// Guarantees that a frozen instance gives back spare units in the background of its requests.
func TestBackgroundTasksGiveBackSpareLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake(t)
		l := newChain(t, resilience.ChainConfig{Rates: resilience.NamedStore{Name: "redis", Store: store},
			Frozen: true})
		req := newRequest(acme, hourly(t, "l", 2000))
		decides(t, l, req, 1000)
		runBackgroundTasks(l)
		held := l.Leases.Stats().Units
		if held == 0 {
			t.Fatal("no units are leased, so the test shows nothing")
		}
		back := func() (n int64) {
			for _, c := range store.of(acme) {
				n += c.back
			}
			return n
		}
		before := back()
		<-time.After(5 * time.Second) // without a request: the leased units will not be used
		if got := back(); got != before {
			t.Errorf("%d units were given back without a call of the background tasks, want none", got-before)
		}
		runBackgroundTasks(l)
		if got := back(); got == before {
			t.Errorf("none of %d leased units was given back, want some", held)
		}
		closeChain(t, l)
		if got := usedOf(t, store, req); got[0] != 1000 {
			t.Errorf("the store counts %d units, want the 1000 that were admitted", got[0])
		}
	})
}

// Guarantees that background tasks that wait for a store end with their context: they must not outlive their request
// for long.
func TestBackgroundTasksEndWithTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake(t)
		l := newChain(t, resilience.ChainConfig{Rates: resilience.NamedStore{Name: "redis", Store: store},
			Frozen: true})
		defer closeChain(t, l)
		store.set(false, true)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		l.RunBackgroundTasks(ctx, began)
		if took := time.Since(began); took != 50*time.Millisecond {
			t.Errorf("the background tasks took %s, want 50ms, until their context ended", took)
		}
		store.set(false, false)
		l.RunBackgroundTasks(t.Context(), began.Add(2*time.Second))
		if n := l.Instances.Count(); n != 1 {
			t.Errorf("the instance count is %d, want 1", n)
		}
	})
}

// Guarantees that each call of a store is observed once, by the store's name, and as failed only if the store has
// failed.
func TestCallsAreObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		told := make(map[string]int)
		rates, quotas := newFake(t), newFake(t)
		l := newChain(t, resilience.ChainConfig{
			Rates: resilience.NamedStore{Name: "redis", Store: rates}, Quotas: resilience.NamedStore{Name: "dynamodb",
				Store: quotas}, Frozen: true, NoLeases: true,
			Observe: func(store string, took time.Duration, failed bool) {
				mu.Lock()
				defer mu.Unlock()
				told[fmt.Sprintf("%s after %s failed=%v", store, took, failed)]++
			},
		})
		defer closeChain(t, l)
		ctx := context.Background()
		rate, quota := newRequest(acme, hourly(t, "rate", 100)), newRequest(acme, monthly(t, "quota", 100))
		var d limit.Decision
		for range 3 {
			if err := l.Decide(ctx, rate, time.Now(), &d); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Peek(ctx, quota, time.Now(), &d); err != nil {
			t.Fatal(err)
		}
		if err := l.Decide(ctx, quota, time.Now(), &d); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Settle(ctx, d.Receipt(), nil, time.Now()); err != nil {
			t.Fatal(err)
		}
		left, leave := context.WithCancel(ctx)
		quotas.set(false, true)
		time.AfterFunc(5*time.Millisecond, leave)
		if err := l.Decide(left, quota, time.Now(), &d); err == nil {
			t.Fatal("a call with a cancelled context returns no error, want one")
		}
		late, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		if err := l.Decide(late, quota, time.Now(), &d); err != nil { // decided by the backstop
			t.Fatal(err)
		}
		rates.set(true, false)
		if err := l.Decide(ctx, rate, time.Now(), &d); err != nil {
			t.Fatal(err)
		}
		want := map[string]int{
			"redis after 0s failed=false": 3, "redis after 0s failed=true": 1,
			"dynamodb after 0s failed=false": 3, "dynamodb after 5ms failed=false": 1,
			"dynamodb after 10ms failed=true": 1,
		}
		rates.set(false, false)
		quotas.set(false, false)
		mu.Lock()
		defer mu.Unlock()
		if fmt.Sprint(told) != fmt.Sprint(want) {
			t.Errorf("observed calls %v\nwant %v", told, want)
		}
	})
}
