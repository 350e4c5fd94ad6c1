package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// delayed is a store whose next answer takes a while.
type delayed struct {
	limit.Store
	takes time.Duration
	now   *time.Time
	calls int
}

func (s *delayed) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	err := s.Store.Decide(ctx, req, now, d)
	s.calls++
	*s.now = s.now.Add(s.takes)
	s.takes = 0
	return err
}

// tens is a rule that leases ten units at a time.
type tens struct{ greedy }

func (tens) SizeLease(_ *lease.View, a *limit.LeaseRequest) {
	a.Most, a.Ample, a.Share = 10, 10, limit.ShareOne
}

// Guarantees that a request is not denied because a lease ended during a call for another counter: the store is asked
// again, and nothing is charged twice.
func TestLeaseEndsWhileAsking(t *testing.T) {
	for _, c := range []struct {
		name        string
		left, takes time.Duration
		calls       int
	}{
		{"the call takes longer than it lasts", 50 * time.Millisecond, 60 * time.Millisecond, 2},
		{"it lasts", 50 * time.Millisecond, 20 * time.Millisecond, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := noon
			below := &delayed{Store: newMemory(t), now: &now}
			s := openAt(t, &now, below, tens{})
			long, short := window(t, "long", time.Hour, 1000), window(t, "short", time.Second, 1000)
			if d := decide(t, s, request(short), now); !d.Allowed {
				t.Fatal("a request is denied, although no unit of its limit is used")
			}
			// a lease ends a thousandth of the window early, because clocks drift
			now = noon.Add(999*time.Millisecond - c.left)
			below.calls, below.takes = 0, c.takes
			d := decide(t, s, request(short, long), now)
			if !d.Allowed || below.calls != c.calls {
				t.Errorf("allowed %t with %d calls, want true with %d", d.Allowed, below.calls, c.calls)
			}
			if n := usedUnits(t, below.Store, long, now); n-leasedUnits(s, long) != 1 {
				t.Errorf("%d units of the long limit are charged, and %d of them still leased; want exactly one to "+
					"be spent", n, leasedUnits(s, long))
			}
		})
	}
}
