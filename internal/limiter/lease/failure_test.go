package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
)

// losesAnswers is a store whose answers can be lost. It records the size of the lease that each call asked for.
type losesAnswers struct {
	limit.Store
	lost bool
	asks []int64
	err  error // the error to return; "no answer" if nil

	canceled func() // called during the call, to make the caller give up; may be nil
}

func (m *losesAnswers) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	most := int64(0)
	for i := range req.Leases {
		most = max(most, req.Leases[i].Largest())
	}
	m.asks = append(m.asks, most)
	if err := m.Store.Decide(ctx, req, now, d); err != nil || !m.lost {
		return err
	}
	if m.canceled != nil {
		m.canceled()
	}
	if m.err != nil {
		return m.err
	}
	return errors.New("no answer")
}

// Guarantees that after a failed call no call asks for a lease until one succeeds: a store that does not answer may
// have charged the lease, which is lost with the answer.
func TestNoLeasesWithoutAnswers(t *testing.T) {
	below := newMemory(t)
	m := &losesAnswers{Store: below, lost: true}
	s := openAt(t, &noon, m, greedy{})
	l, other := daily(t, "a", limit.FixedWindow, 1000), daily(t, "b", limit.FixedWindow, 1000)
	var d limit.Decision
	for range 5 {
		if err := s.Decide(context.Background(), request(l), noon, &d); err == nil {
			t.Fatal("Decide returns no error although the store's answer is lost, want one")
		}
	}
	m.lost = false
	decide(t, s, request(other), noon)
	decide(t, s, request(other), noon)
	if m.asks[0] == 0 || m.asks[1] != 0 || m.asks[4] != 0 || m.asks[5] != 0 || len(m.asks) != 7 || m.asks[6] == 0 {
		t.Errorf("leases of %v were asked for, want some in the first call and again in the last", m.asks)
	}
	if n := usedUnits(t, below, l, noon); n != 1000 { // the first call charged all units
		t.Errorf("the store counts %d units, want 1000", n)
	}
}

// Guarantees that a request which the store cannot decide, or whose caller has given up, does not suspend the leases of
// other requests: no granted lease is lost by it.
func TestUndecidableStopsNoLeases(t *testing.T) {
	for _, cause := range []error{limit.ErrUnreadable, limit.ErrTooLarge, limit.ErrContended, limit.ErrFull,
		context.Canceled} {
		below := newMemory(t)
		m := &losesAnswers{Store: below, lost: true, err: fmt.Errorf("the store says: %w", cause)}
		s := openAt(t, &noon, m, greedy{})
		l, other := daily(t, "a", limit.FixedWindow, 1000), daily(t, "b", limit.FixedWindow, 1000)
		var d limit.Decision
		ctx, cancel := context.WithCancel(t.Context())
		if errors.Is(cause, context.Canceled) {
			m.canceled = cancel
		}
		for range 3 {
			if err := s.Decide(ctx, request(l), noon, &d); !errors.Is(err, cause) {
				t.Fatalf("Decide = %v, want %v", err, cause)
			}
		}
		cancel()
		m.lost = false
		decide(t, s, request(other), noon)
		if n := len(m.asks); m.asks[n-1] == 0 {
			t.Errorf("after the error %v, leases of %v are asked for another counter, want some units", cause, m.asks)
		}
	}
}

// Guarantees that the error of a request which cannot be decided is not returned to other requests that wait for its
// call.
func TestUndecidableIsNobodyElses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below := newMemory(t)
		bad := daily(t, "bad", limit.FixedWindow, 1000)
		s := open(t, lease.Config{Store: &slowlyUndecidable{Store: below, bad: bad, err: limit.ErrUnreadable},
			GiveBackEvery: -1, Rule: greedy{}})
		shared := daily(t, "shared", limit.FixedWindow, 1000)
		both := request(shared)
		both.Charges = append(both.Charges, limit.Charge{Limit: bad, Cost: 1})
		var first, second error
		var a, b limit.Decision
		var calls sync.WaitGroup
		calls.Go(func() { first = s.Decide(t.Context(), both, noon, &a) })
		synctest.Wait() // its call is in progress
		calls.Go(func() { second = s.Decide(t.Context(), request(shared), noon, &b) })
		calls.Wait()
		if !errors.Is(first, limit.ErrUnreadable) || second != nil || !b.Allowed {
			t.Errorf("the request that cannot be decided: %v; the one that waited for it: %v, allowed %t; want "+
				"ErrUnreadable, and allowed", first, second, b.Allowed)
		}
	})
}

// Guarantees that requests that wait for a call that fails because too many callers change its counters get that error,
// too: calls of their own would make the contention worse.
func TestContentionIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := daily(t, "a", limit.FixedWindow, 1000)
		below := &counted{Store: &slowlyUndecidable{Store: newMemory(t), bad: l, err: limit.ErrContended}}
		s := open(t, lease.Config{Store: below, GiveBackEvery: -1, Rule: greedy{}})
		var calls sync.WaitGroup
		for range 5 {
			calls.Go(func() {
				if err := s.Decide(t.Context(), request(l), noon, new(limit.Decision)); !errors.Is(err,
					limit.ErrContended) {
					t.Errorf("Decide = %v, want ErrContended", err)
				}
			})
		}
		calls.Wait()
		if n := below.calls.Load(); n != 1 {
			t.Errorf("%d calls were made, want one", n)
		}
	})
}

// slowlyUndecidable is a store that reports after a while that it cannot decide one of the limits.
type slowlyUndecidable struct {
	limit.Store
	bad *limit.Limit
	err error
}

func (s *slowlyUndecidable) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	<-time.After(time.Millisecond) // of virtual time
	for _, c := range req.Charges {
		if c.Limit == s.bad {
			return s.err
		}
	}
	return s.Store.Decide(ctx, req, now, d)
}

// Guarantees that a shadow limit, which denies no request, counts no early denials.
func TestShadowsAreNeverEarly(t *testing.T) {
	below, now := newMemory(t), noon
	s := openAt(t, &now, below, recheckDenials{})
	l := newLimit(t, "a", func(l *limit.Limit) { l.Mode = limit.Shadow },
		limit.Tier{Algorithm: limit.FixedWindow, Period: time.Minute, Threshold: 1})
	d := decide(t, s, request(l), now)
	for range 4 {
		decide(t, s, request(l), now)
	}
	if _, err := s.Settle(t.Context(), d.Receipt(), d.Receipt().Without(1), now); err != nil {
		t.Fatal(err)
	}
	now = noon.Add(30 * time.Second)
	if d := decide(t, s, request(l), now); d.Results[0].Charged != 1 {
		t.Fatal("a request after the refund is not charged, want one unit charged")
	}
	if n := s.Stats().Early; n != 0 {
		t.Errorf("%d denials are counted as early, want 0: no request was denied", n)
	}
}

// Guarantees that leases of a shadow limit's ramps count no early denials.
func TestShadowsAreNotEarly(t *testing.T) {
	below := newMemory(t)
	now := noon
	s := openAt(t, &now, below, greedy{})
	l := daily(t, "a", limit.FixedWindow, 1000)
	shadow := limittest.MustNew(t, limit.Limit{ID: "s", Mode: limit.Shadow, Tiers: []limit.Tier{
		{Algorithm: limit.TokenBucket, Period: 10 * time.Second, Threshold: 10},
	}})
	req := request(l)
	req.Charges = append(req.Charges, limit.Charge{Limit: shadow, Cost: 1})
	for range 200 {
		if !decide(t, s, req, now).Allowed {
			t.Fatal("a request is denied by a shadow limit, want it admitted")
		}
		now = now.Add(100 * time.Millisecond)
	}
	if stats := s.Stats(); stats.Early > stats.Denied || stats.Denied != 0 {
		t.Errorf("%d denials, %d of them early, want none", stats.Denied, stats.Early)
	}
}

// Guarantees that a call which asks the home of a quota for no unit does not tell whether that home answers. If such a
// call fails, leases from the home go on, and leases from the cell's own store are suspended.
func TestFailureIsOfTheStoreThatWasAsked(t *testing.T) {
	own, home := &losesAnswers{Store: newMemory(t)}, &losesAnswers{Store: newMemory(t)}
	s := open(t, lease.Config{Store: newRouter(t, own, map[string]limit.Store{"us": home}), GiveBackEvery: -1,
		Rule: tenIfShort{}, Clock: func() time.Time { return noon }})
	quota := daily(t, "q", limit.Quota, 100).KeptIn("us")
	decide(t, s, request(quota), noon)
	own.lost = true
	if err := s.Decide(t.Context(), request(quota, window(t, "w", time.Hour, 100)), noon,
		new(limit.Decision)); err == nil {
		t.Fatal("Decide returns no error although the store does not answer, want one")
	}
	own.lost = false
	decide(t, s, requestOfCost(quota, 50), noon)
	decide(t, s, request(window(t, "v", time.Hour, 100)), noon)
	if n := len(home.asks); n != 2 || home.asks[n-1] == 0 {
		t.Errorf("leases of %v were asked for at the home, want one in each of two calls", home.asks)
	}
	if n := len(own.asks); n != 2 || own.asks[n-1] != 0 {
		t.Errorf("leases of %v were asked for at the cell's own store, want none in the second of two calls", own.asks)
	}
}
