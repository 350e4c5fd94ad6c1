package lease_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
)

// noted is a store that records the units that calls give back.
type noted struct {
	limit.Store
	back int64
}

func (n *noted) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	for i := range req.Leases {
		n.back -= min(req.Leases[i].Correction, 0)
	}
	return n.Store.Decide(ctx, req, now, d)
}

// Guarantees that units that a home does not accept back, because it denies, are lost if the quota has moved to another
// home meanwhile. Otherwise they would be given back to a home that never charged them.
func TestRefusedReturnsOfAMovedQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := &remote{Store: newMemory(t)}, &noted{Store: newMemory(t)}
		s := open(t, lease.Config{Store: newRouter(t, newMemory(t), map[string]limit.Store{"a": a, "b": b}),
			GiveBackEvery: -1, Rule: tens{}})
		q, full := daily(t, "q", limit.Quota, 100), daily(t, "full", limit.Quota, 100).KeptIn("a")
		inA, inB := q.KeptIn("a"), q.KeptIn("b")
		others := request(full)
		others.Charges[0].Cost = 100
		decide(t, a.Store, others, time.Now())
		decide(t, s, request(inA), time.Now())
		if n := leasedUnits(s, inA); n != 10 {
			t.Fatalf("%d units are leased, want 10", n)
		}
		// The lease has ended, and is still known: the rest is returned with the next call.
		<-time.After(59970 * time.Millisecond)
		a.took = 50 * time.Millisecond
		var denied sync.WaitGroup
		denied.Go(func() {
			if decide(t, s, request(inA, full), time.Now()).Allowed {
				t.Error("a request is admitted although a quota is used up, want a denial")
			}
		})
		<-time.After(10 * time.Millisecond)
		if !decide(t, s, request(inB), time.Now()).Allowed {
			t.Error("a request is denied, although no unit of the quota is used in the new home")
		}
		denied.Wait()
		if n := usedUnits(t, a.Store, inA, time.Now()); n != 11 {
			t.Errorf("the old home counts %d units, want 11: a denial changes nothing", n)
		}
		if lost := s.Stats().Lost; lost != 10 || b.back != 0 {
			t.Errorf("%d units are lost and %d given back to the new home, want 10 and 0: the units of the old home "+
				"are lost", lost, b.back)
		}
	})
}

// leaseAllButOne is a rule that leases ten units of each limit but one.
type leaseAllButOne struct{ greedy }

func (leaseAllButOne) SizeLease(v *lease.View, a *limit.LeaseRequest) {
	if v.Tier.Limit().ID != "plain" {
		a.Most, a.Ample, a.Share = 10, 10, limit.ShareOne
	}
}

// Guarantees that units that were charged for a request, and not as a lease, are lost if the request has to make a
// second call: they were charged at that time, and cannot be spent or given back later.
func TestChargesOfARequestThatAsksAgain(t *testing.T) {
	for _, a := range []limit.Algorithm{limit.TokenBucket, limit.SlidingLog, limit.SlidingBuckets} {
		t.Run(a.String(), func(t *testing.T) {
			now := noon
			below := &delayed{Store: newMemory(t), now: &now}
			s := openAt(t, &now, below, leaseAllButOne{})
			plain := newLimit(t, "plain", nil, limit.Tier{Algorithm: a, Period: time.Hour, Threshold: 100})
			short := window(t, "short", time.Second, 1000)
			decide(t, s, request(short), now)
			now = noon.Add(949 * time.Millisecond)
			below.calls, below.takes = 0, 60*time.Millisecond
			if d := decide(t, s, request(short, plain), now); !d.Allowed || below.calls != 2 {
				t.Fatalf("allowed %t with %d calls, want true with 2", d.Allowed, below.calls)
			}
			if n := leasedUnits(s, plain); n != 0 {
				t.Errorf("%d units are held of a limit that is not leased, want 0", n)
			}
			if n := usedUnits(t, below.Store, plain, now); n != 2 {
				t.Errorf("%d units are charged, want 2: one by each of the two calls of the request", n)
			}
		})
	}
}

// Guarantees that leased units of a counter that several values share count as lost once the lease has ended. They are
// not given back, because the next call may count the value in another counter.
func TestUnitsOfASharedCounterAreLost(t *testing.T) {
	now := noon
	s := openAt(t, &now, newMemory(t), tens{})
	l := limittest.MustNew(t, limit.Limit{ID: "l", Per: "subject", MaxValues: 1, Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Period: time.Second, Threshold: 100},
	}})
	ask := func(subject string) *limit.Decision {
		req := request(l)
		req.Charges[0].Value = limit.ValueOf(subject)
		return decide(t, s, req, now)
	}
	ask("ann")
	if d := ask("bob"); !d.Allowed || !d.Results[0].Other {
		t.Fatalf("allowed %t, shared %t: want bob to share a counter", d.Allowed, d.Results[0].Other)
	}
	if lost := s.Stats().Lost; lost != 0 {
		t.Fatalf("%d units are counted as lost before the lease has ended, want 0", lost)
	}
	now = now.Add(2 * time.Second)
	if !ask("bob").Allowed {
		t.Fatal("a request is denied, although its limit has units left")
	}
	if lost := s.Stats().Lost; lost != 10 {
		t.Errorf("%d units are lost, want the 10 of bob's lease", lost)
	}
}
