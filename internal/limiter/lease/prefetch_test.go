package lease_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Guarantees that a lease ends with its window, even if the request that fetched it carries an earlier time than
// requests of its owner that came before it. Otherwise units of one window would be spent in the next one.
func TestLateRequest(t *testing.T) {
	s := openAt(t, &noon, newMemory(t), greedy{})
	w, other := window(t, "w", time.Second, 100), window(t, "other", time.Hour, 100)
	decide(t, s, request(other), noon.Add(700*time.Millisecond))
	decide(t, s, request(w), noon.Add(100*time.Millisecond)) // this request waited before it came here
	n := 0
	for at := noon.Add(time.Second); at.Before(noon.Add(2 * time.Second)); at = at.Add(5 * time.Millisecond) {
		if decide(t, s, request(w), at).Allowed {
			n++
		}
	}
	if n > 100 {
		t.Errorf("%d units are admitted in a window of 100, want at most 100", n)
	}
}

// Guarantees that prefetched units end with their period, however long the call took after which they were prefetched.
func TestPrefetchEndsWithItsPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		home := &remote{Store: newMemory(t), took: 120 * time.Millisecond}
		s := open(t, lease.Config{Store: newRouter(t, newMemory(t), map[string]limit.Store{"us": home}), Prefetch: true,
			GiveBackEvery: -1, Rule: tenMore{}})
		q := daily(t, "q", limit.Quota, 100).KeptIn("us")
		<-time.After(24*time.Hour - 200*time.Millisecond) // the clock begins at midnight
		decide(t, s, request(q), time.Now())
		<-time.After(130 * time.Millisecond)
		n := 0
		for range 150 {
			if decide(t, s, request(q), time.Now()).Allowed {
				n++
			}
		}
		if n > 100 {
			t.Errorf("%d units are admitted in a day of 100, want at most 100", n)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// tenMore is a rule that always leases ten units beyond the need.
type tenMore struct{ greedy }

func (tenMore) SizeLease(_ *lease.View, a *limit.LeaseRequest) { a.Least, a.Most = 10, 10 }

// hanging is a home that answers only the first call. Other calls last until they are given up.
type hanging struct {
	limit.Store
	calls atomic.Int64
}

func (h *hanging) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if h.calls.Add(1) > 1 {
		<-ctx.Done()
		return ctx.Err()
	}
	return h.Store.Decide(ctx, req, now, d)
}

// Guarantees that Close waits for a prefetch no longer than its context allows.
func TestCloseCancelsPrefetches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		home := &hanging{Store: newMemory(t)}
		s := open(t, lease.Config{Store: newRouter(t, newMemory(t), map[string]limit.Store{"us": home}), Prefetch: true,
			GiveBackEvery: -1, Rule: tenMore{}})
		decide(t, s, request(daily(t, "q", limit.Quota, 100).KeptIn("us")), time.Now())
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		began := time.Now()
		_ = s.Close(ctx) // an error says that units are lost
		if took := time.Since(began); home.calls.Load() < 2 || took > 100*time.Millisecond {
			t.Errorf("Close took %s, with %d calls of the home; want at most 100ms, and at least one prefetch", took,
				home.calls.Load())
		}
	})
}
