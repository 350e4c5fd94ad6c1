package lease_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
)

var owner = limit.Owner{Kind: limit.Tenant, Name: "acme"}

func newLimit(tb testing.TB, id string, change func(*limit.Limit), tiers ...limit.Tier) *limit.Limit {
	tb.Helper()
	l := limit.Limit{ID: id, MaxCost: 100, Tiers: tiers}
	if change != nil {
		change(&l)
	}
	return limittest.MustNew(tb, l)
}

func window(tb testing.TB, id string, period time.Duration, threshold int64) *limit.Limit {
	return newLimit(tb, id, nil, limit.Tier{Algorithm: limit.FixedWindow, Period: period, Threshold: threshold})
}

var newMemory = memorytest.New

// counted is a store that counts its calls.
type counted struct {
	limit.Store
	calls atomic.Int64
}

func (c *counted) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	c.calls.Add(1)
	return c.Store.Decide(ctx, req, now, d)
}

func open(tb testing.TB, c lease.Config) *lease.Store {
	tb.Helper()
	s, err := lease.New(c)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

// openAt opens a store whose clock reads *now, and which gives nothing back by itself. A nil rule is Adaptive.
func openAt(tb testing.TB, now *time.Time, below limit.Store, rule lease.Rule) *lease.Store {
	tb.Helper()
	clock := func() time.Time { return *now }
	return open(tb, lease.Config{Store: below, GiveBackEvery: -1, Clock: clock, Rule: rule})
}

func request(limits ...*limit.Limit) *limit.Request {
	req := &limit.Request{Owner: owner}
	for _, l := range limits {
		req.Charges = append(req.Charges, limit.Charge{Limit: l, Cost: 1})
	}
	return req
}

func decide(tb testing.TB, s limit.Store, req *limit.Request, now time.Time) *limit.Decision {
	tb.Helper()
	d := new(limit.Decision)
	if err := s.Decide(context.Background(), req, now, d); err != nil {
		tb.Fatal(err)
	}
	return d
}

// Guarantees that a key with a steady load needs a few calls in each window, and that all units of its limit are
// admitted, and no more.
func TestSteadyKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below := &counted{Store: newMemory(t)}
		s := open(t, lease.Config{Store: below})
		l := window(t, "w", 10*time.Second, 1000)
		for w := range 4 {
			admitted, before := 0, below.calls.Load()
			for i := range 900 {
				now := time.Now()
				if now.UnixMicro()/10_000_000 != time.Now().UnixMicro()/10_000_000 {
					t.Fatal("the script is wrong: it ran past the end of the window")
				}
				if d := decide(t, s, request(l), now); d.Allowed {
					admitted++
				} else {
					t.Errorf("window %d, request %d: denied, retry after %s", w, i, d.RetryAfter())
				}
				<-time.After(10 * time.Millisecond)
			}
			t.Logf("window %d: %d admitted, %d calls", w, admitted, below.calls.Load()-before)
			<-time.After(time.Until(time.Now().Truncate(10 * time.Second).Add(10 * time.Second)))
		}
		if n := below.calls.Load(); n > 100 {
			t.Errorf("%d calls for 3,600 decisions, want at most 100", n)
		}
		t.Logf("%+v", s.Stats())
	})
}

// Guarantees that many goroutines in three processes together never exceed a limit, in any window.
func TestNeverOver(t *testing.T) {
	for _, tier := range []limit.Tier{
		{Algorithm: limit.FixedWindow, Period: time.Second, Threshold: 500},
		{Algorithm: limit.SlidingWindow, Period: time.Second, Threshold: 500},
		{Algorithm: limit.TokenBucket, Period: time.Second, Threshold: 500},
		{Algorithm: limit.SlidingBuckets, Period: time.Second, Threshold: 500},
		{Algorithm: limit.SlidingLog, Period: time.Second, Threshold: 500},
	} {
		t.Run(tier.Algorithm.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				below := &counted{Store: newMemory(t)}
				l := newLimit(t, "l", nil, tier)
				var mu sync.Mutex
				var spends []*spend
				var all sync.WaitGroup
				for range 3 {
					s := open(t, lease.Config{Store: below, Instances: func(*limit.Limit) int { return 3 }})
					for range 8 {
						all.Go(func() {
							for range 500 {
								if d := decide(t, s, request(l), time.Now()); d.Allowed {
									mu.Lock()
									spends = append(spends, &spend{at: time.Now().UnixMicro(), units: 1})
									mu.Unlock()
								}
								<-time.After(10 * time.Millisecond)
							}
						})
					}
				}
				all.Wait()
				if over := overBound(&l.Tiers[0], owner, spends); over != "" || len(spends) < 2000 {
					t.Errorf("%d requests of 12,000 are admitted, want at least 2000 within the limit: %s",
						len(spends), over)
				}
				t.Logf("%d admitted of 12,000, %d calls", len(spends), below.calls.Load())
			})
		})
	}
}

// Guarantees that a request with lease requests of its own is passed on to the wrapped store, also if units of the same
// counter are leased: a correction must reach the counter.
func TestRequestsWithLeasesArePassedOn(t *testing.T) {
	now := noon
	below := newMemory(t)
	s := openAt(t, &now, below, tens{})
	l := window(t, "l", time.Hour, 1000)
	decide(t, s, request(l), now)
	if n := leasedUnits(s, l); n != 10 {
		t.Fatalf("%d units are leased, want 10", n)
	}
	req := request(l)
	req.Leases = []limit.LeaseRequest{{Correction: 100, CorrectionAt: now.UnixMicro()}}
	decide(t, s, req, now)
	if n := usedUnits(t, below, l, now); n != 111 {
		t.Errorf("%d units are used, want 111: a request of one, a lease of ten, and a correction of 100", n)
	}
	if n := leasedUnits(s, l); n != 10 {
		t.Errorf("%d units are leased afterwards, want the ten from before", n)
	}
}
