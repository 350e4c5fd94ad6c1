package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// slow is a store whose calls last 5 ms. It counts the concurrent calls with a lease for each owner.
type slow struct {
	limit.Store
	mu       sync.Mutex
	underWay map[limit.Owner]int
	most     int
	calls    int
}

func (s *slow) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	leases := false
	for i := range req.Leases {
		leases = leases || req.Leases[i].Largest() > 0
	}
	count := func(n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.calls++
		if leases {
			s.underWay[req.Owner] += n
			s.most = max(s.most, s.underWay[req.Owner])
		}
	}
	count(1)
	defer count(-1)
	<-time.After(2 * time.Millisecond)
	err := s.Store.Decide(ctx, req, now, d)
	<-time.After(3 * time.Millisecond)
	return err
}

// Guarantees that there is at most one call with a lease at a time for a counter, and that no limit is exceeded,
// however many concurrent requests there are.
func TestOneCallIsUnderWay(t *testing.T) {
	for _, many := range []int{1, 3, 100} {
		for _, a := range leasable {
			t.Run(fmt.Sprintf("%s/%d owners", a, many), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					below := &slow{Store: newMemory(t), underWay: map[limit.Owner]int{}}
					s := open(t, lease.Config{Store: below})
					l := daily(t, "a", a, 60)
					if a == limit.SlidingWindow || a == limit.TokenBucket {
						l = newLimit(t, "a", nil, limit.Tier{Algorithm: a, Period: 6 * time.Second, Threshold: 60})
					}
					var mu sync.Mutex
					admitted := map[string]int{}
					var all sync.WaitGroup
					for g := range 100 {
						all.Go(func() {
							for i := range 20 {
								req := request(l)
								req.Owner.Name = fmt.Sprint((g + i) % many)
								if decide(t, s, req, time.Now()).Allowed {
									mu.Lock()
									admitted[req.Owner.Name]++
									mu.Unlock()
								}
								<-time.After(20 * time.Millisecond)
							}
						})
					}
					all.Wait()
					below.mu.Lock() // the lease layer may still be giving units back
					defer below.mu.Unlock()
					most := 60
					if a == limit.TokenBucket {
						most = 70 // it refills 10 a second, for less than a second
					}
					for name, n := range admitted {
						if n > most || many <= 3 && n < 60 {
							t.Errorf("%d units were admitted to owner %[3]s, want at most %[2]d (and at least 60 if "+
								"there are few owners)", n, most, name)
						}
					}
					if below.most != 1 || len(admitted) != many {
						t.Errorf("%d concurrent calls with a lease for one counter, want 1; %d of %d owners were "+
							"admitted, want all", below.most, len(admitted), many)
					}
					t.Logf("%d calls for 2,000 decisions", below.calls/2)
				})
			})
		}
	}
}

// neverAnswers is a store that never answers.
type neverAnswers struct{ limit.Store }

func (s neverAnswers) Decide(ctx context.Context, _ *limit.Request, now time.Time, d *limit.Decision) error {
	d.Clear(now.UnixMicro())
	<-ctx.Done()
	return ctx.Err()
}

// Guarantees that a request that waits for the call of another one waits no longer than its own context allows.
func TestWaitingEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, lease.Config{Store: neverAnswers{newMemory(t)}, GiveBackEvery: -1})
		l := window(t, "a", time.Hour, 10)
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				within := time.Duration(10+i) * time.Millisecond
				ctx, cancel := context.WithTimeout(context.Background(), within)
				defer cancel()
				from := time.Now()
				err := s.Decide(ctx, request(l), from, new(limit.Decision))
				if took := time.Since(from); !errors.Is(err, context.DeadlineExceeded) || took != within {
					t.Errorf("Decide = %v after %s, want the error of the deadline after %s", err, took, within)
				}
			})
		}
		all.Wait()
	})
}

// hangsOnce answers all calls but the first one, which lasts until its caller gives up.
type hangsOnce struct {
	limit.Store
	calls atomic.Int64
}

func (f *hangsOnce) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if f.calls.Add(1) == 1 {
		return neverAnswers{}.Decide(ctx, req, now, d)
	}
	return f.Store.Decide(ctx, req, now, d)
}

// Guarantees that a caller that gives up its call does not fail the requests that wait for the call.
func TestGivingUpFailsNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, lease.Config{Store: &hangsOnce{Store: newMemory(t)}, GiveBackEvery: -1})
		l := window(t, "a", time.Hour, 100)
		var all sync.WaitGroup
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
			defer cancel()
			if err := s.Decide(ctx, request(l), time.Now(), new(limit.Decision)); !errors.Is(err,
				context.DeadlineExceeded) {
				t.Errorf("the request that gives up: %v, want context.DeadlineExceeded", err)
			}
		})
		synctest.Wait()
		for range 10 {
			all.Go(func() {
				if !decide(t, s, request(l), time.Now()).Allowed {
					t.Error("a request that waited for the call is denied, want it admitted")
				}
			})
		}
		all.Wait()
	})
}

// Guarantees that MaxCounters applies to many owners, and to many values of one owner. The store decides requests for
// further counters.
func TestCountersAreBounded(t *testing.T) {
	below := newMemory(t)
	s := open(t, lease.Config{Store: below, GiveBackEvery: -1, MaxCounters: 50,
		Clock: func() time.Time { return noon }})
	per := newLimit(t, "a", func(l *limit.Limit) { l.Per = "subject" },
		limit.Tier{Algorithm: limit.FixedWindow, Period: time.Hour, Threshold: 2},
		limit.Tier{Algorithm: limit.FixedWindow, Period: time.Minute, Threshold: 2})
	for i := range 2000 {
		req := request(per)
		if i%2 == 0 {
			req.Owner.Name = fmt.Sprint(i)
		}
		req.Charges[0].Value = limit.ValueOf(fmt.Sprint(i))
		for want := range 3 {
			if d := decide(t, s, req, noon); d.Allowed != (want < 2) {
				t.Fatalf("value %d, request %d: allowed %t", i, want+1, d.Allowed)
			}
		}
		if n := s.Stats().Counters; n > 50 {
			t.Fatalf("%d counters are held, want 50 at most", n)
		}
	}
}

// Guarantees that as many counters can be leased as MaxCounters says.
func TestAllCountersAreLeased(t *testing.T) {
	clock := func() time.Time { return noon }
	s := open(t, lease.Config{Store: newMemory(t), GiveBackEvery: -1, MaxCounters: 3, Clock: clock, Rule: greedy{}})
	req := request(window(t, "a", time.Hour, 9), window(t, "b", time.Hour, 9), window(t, "c", time.Hour, 9))
	for range 2 {
		decide(t, s, req, noon)
	}
	if stats := s.Stats(); stats.Counters != 3 || stats.Local != 1 {
		t.Errorf("%d counters are held, with %d decisions from leases; want 3 with 1", stats.Counters, stats.Local)
	}
}

// Guarantees that a counter is not dropped during its call, however long the call lasts: its lease would be lost.
func TestCounterIsKeptDuringItsCall(t *testing.T) {
	now, during := noon, func() {}
	var called atomic.Bool // set during the first call
	below := hook{newMemory(t), func() {
		if !called.Swap(true) {
			during()
		}
	}}
	s := open(t, lease.Config{Store: below, GiveBackEvery: -1, Clock: func() time.Time { return now }, Rule: greedy{},
		Life: time.Hour})
	l, others := window(t, "a", 24*time.Hour, 10), window(t, "b", time.Second, 10)
	during = func() {
		now = now.Add(5 * time.Minute)
		for i := range 3000 { // some of the owners are in the same shard, and cause a sweep
			req := request(others)
			req.Owner.Name = fmt.Sprint(i)
			decide(t, s, req, now)
		}
	}
	decide(t, s, request(l), now)
	if n := leasedUnits(s, l); n != 9 {
		t.Errorf("%d units are leased after a call that took 5 minutes, want 9", n)
	}
}

// Guarantees that idle counters are dropped when others come, whether they belong to many owners or to one.
func TestIdleCountersAreForgotten(t *testing.T) {
	now := noon
	s := openAt(t, &now, newMemory(t), nil)
	per := newLimit(t, "a", func(l *limit.Limit) { l.Per = "subject" },
		limit.Tier{Algorithm: limit.FixedWindow, Period: time.Second, Threshold: 2})
	const each = 3000
	for round := range 8 {
		for i := range each {
			req := request(per)
			if i%2 == 0 {
				req.Owner.Name = fmt.Sprintf("%d of %d", i, round)
			}
			req.Charges[0].Value = limit.ValueOf(fmt.Sprintf("%d of %d", i, round))
			decide(t, s, req, now)
		}
		now = now.Add(2 * time.Minute)
	}
	if n := s.Stats().Counters; n > each*3/2 {
		t.Errorf("%d counters are held after 8 rounds with %d new ones each, want at most 1.5 times as many as in "+
			"one round", n, each)
	}
}

// Guarantees that a decision from leases allocates nothing.
func TestLocalAllocatesNothing(t *testing.T) {
	if soak.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	s := open(t, lease.Config{Store: newMemory(t), GiveBackEvery: -1, Rule: greedy{}})
	const day = 24 * time.Hour
	a, b, c := window(t, "a", day, 1<<30), window(t, "b", day, 1<<30), window(t, "c", day, 1<<30)
	for _, req := range []*limit.Request{request(a, b, c), request(c, a, b)} {
		var d limit.Decision
		decideOne := func() {
			if err := s.Decide(context.Background(), req, time.Now(), &d); err != nil || !d.Allowed {
				t.Fatal(err, d.Allowed)
			}
		}
		decideOne()
		before := s.Stats()
		if n := testing.AllocsPerRun(1000, decideOne); n != 0 {
			t.Errorf("%v allocations for a decision over three counters, want 0", n)
		}
		// a window may end meanwhile
		if after := s.Stats(); after.Calls > before.Calls+1 || after.Local < before.Local+1000 {
			t.Errorf("stats before %+v, and after %+v; want 1000 more decisions from leases, and at most one more "+
				"call", before, after)
		}
	}
}
