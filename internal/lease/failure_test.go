package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/lease"
	"github.com/sluicelimits/sluice/internal/limit"
)

// mute is a store whose answers can be lost. It remembers how large a lease each call asked for.
type mute struct {
	limit.Store
	lost bool
	asks []int64
	err  error // what is returned then, "no answer" if nil

	canceled func() // the caller gives up during the call; nil: it does not
}

func (m *mute) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
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

// Guarantees that calls ask for no lease after one that failed, until one succeeds: a store that does not answer may
// have charged the lease, which is lost with the answer.
func TestNoLeasesWithoutAnswers(t *testing.T) {
	below := newMemory(t)
	m := &mute{Store: below, lost: true}
	s := openAt(t, &noon, m, greedy{})
	l, other := daily(t, "a", limit.FixedWindow, 1000), daily(t, "b", limit.FixedWindow, 1000)
	var d limit.Decision
	for range 5 {
		if err := s.Decide(context.Background(), request(l), noon, &d); err == nil {
			t.Fatal("a call without an answer is no error")
		}
	}
	m.lost = false
	decide(t, s, request(other), noon)
	decide(t, s, request(other), noon)
	if m.asks[0] == 0 || m.asks[1] != 0 || m.asks[4] != 0 || m.asks[5] != 0 || len(m.asks) != 7 || m.asks[6] == 0 {
		t.Errorf("leases of %v were asked for, want some in the first call and again in the last", m.asks)
	}
	if n := used(t, below, l, noon); n != 1000 { // the first call charged all of it
		t.Errorf("%d units are counted, want 1000", n)
	}
}

// Guarantees that a request which the store answered and cannot decide, or that its caller gave up, does not stop the
// leases of others: nobody else's grant can be lost for it.
func TestUndecidableStopsNoLeases(t *testing.T) {
	for _, cause := range []error{limit.ErrUnreadable, limit.ErrTooLarge, limit.ErrContended, limit.ErrFull, context.Canceled} {
		below := newMemory(t)
		m := &mute{Store: below, lost: true, err: fmt.Errorf("the store says: %w", cause)}
		s := openAt(t, &noon, m, greedy{})
		l, other := daily(t, "a", limit.FixedWindow, 1000), daily(t, "b", limit.FixedWindow, 1000)
		var d limit.Decision
		ctx, cancel := context.WithCancel(t.Context())
		if errors.Is(cause, context.Canceled) {
			m.canceled = cancel
		}
		for range 3 {
			if err := s.Decide(ctx, request(l), noon, &d); !errors.Is(err, cause) {
				t.Fatalf("%v, want %v", err, cause)
			}
		}
		cancel()
		m.lost = false
		decide(t, s, request(other), noon)
		if n := len(m.asks); m.asks[n-1] == 0 {
			t.Errorf("after %v another counter is asked for leases of %v, want some", cause, m.asks)
		}
	}
}

// Guarantees that who waits for another's call does not get the error that says of that call alone that it cannot be
// decided.
func TestUndecidableIsNobodyElses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below := newMemory(t)
		bad := daily(t, "bad", limit.FixedWindow, 1000)
		s := open(t, lease.Config{Store: &slowlyUndecidable{Store: below, bad: bad}, GiveBackEvery: -1, Rule: greedy{}})
		shared := daily(t, "shared", limit.FixedWindow, 1000)
		both := request(shared)
		both.Charges = append(both.Charges, limit.Charge{Limit: bad, Cost: 1})
		var first, second error
		var a, b limit.Decision
		var calls sync.WaitGroup
		calls.Go(func() { first = s.Decide(t.Context(), both, noon, &a) })
		synctest.Wait() // its call is under way
		calls.Go(func() { second = s.Decide(t.Context(), request(shared), noon, &b) })
		calls.Wait()
		if !errors.Is(first, limit.ErrUnreadable) || second != nil || !b.Allowed {
			t.Errorf("the request that cannot be decided: %v; the one that waited for it: %v, allowed %t; want ErrUnreadable, and allowed", first, second, b.Allowed)
		}
	})
}

// slowlyUndecidable is a store that takes a while to say that it cannot decide on one limit.
type slowlyUndecidable struct {
	limit.Store
	bad *limit.Limit
}

func (s *slowlyUndecidable) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	<-time.After(time.Millisecond) // of the bubble
	for _, c := range req.Charges {
		if c.Limit == s.bad {
			return limit.ErrUnreadable
		}
	}
	return s.Store.Decide(ctx, req, now, d)
}

// Guarantees that a shadow limit, which denies no request, counts no early denials.
func TestShadowsAreNotEarly(t *testing.T) {
	below := newMemory(t)
	now := noon
	s := openAt(t, &now, below, greedy{})
	l := daily(t, "a", limit.FixedWindow, 1000)
	shadow, err := limit.New(limit.Limit{ID: "s", Mode: limit.Shadow, Tiers: []limit.Tier{
		{Algorithm: limit.TokenBucket, Period: 10 * time.Second, Threshold: 10},
	}})
	if err != nil {
		t.Fatal(err)
	}
	req := request(l)
	req.Charges = append(req.Charges, limit.Charge{Limit: shadow, Cost: 1})
	for range 200 {
		if !decide(t, s, req, now).Allowed {
			t.Fatal("a shadow limit denied")
		}
		now = now.Add(100 * time.Millisecond)
	}
	if stats := s.Stats(); stats.Early > stats.Denied || stats.Denied != 0 {
		t.Errorf("%d denials, %d of them early, want none", stats.Denied, stats.Early)
	}
}

// Guarantees that a call which asks nothing of a home quota says nothing about the home: if it fails, leases from the
// home go on, and those of the cell's own store are suspended.
func TestFailureIsOfTheStoreThatWasAsked(t *testing.T) {
	own, home := &mute{Store: newMemory(t)}, &mute{Store: newMemory(t)}
	s := open(t, lease.Config{Store: homes(t, own, map[string]limit.Store{"us": home}), GiveBackEvery: -1,
		Rule: lacking{}, Clock: func() time.Time { return noon }})
	quota := daily(t, "q", limit.Quota, 100).KeptIn("us")
	decide(t, s, request(quota), noon)
	own.lost = true
	if err := s.Decide(t.Context(), request(quota, window(t, "w", time.Hour, 100)), noon, new(limit.Decision)); err == nil {
		t.Fatal("a store that does not answer is no error")
	}
	own.lost = false
	decide(t, s, costs(quota, 50), noon)
	decide(t, s, request(window(t, "v", time.Hour, 100)), noon)
	if n := len(home.asks); n != 2 || home.asks[n-1] == 0 {
		t.Errorf("leases of %v were asked for at the home, want one in each of two calls", home.asks)
	}
	if n := len(own.asks); n != 2 || own.asks[n-1] != 0 {
		t.Errorf("leases of %v were asked for at the cell's own store, want none in the second of two calls", own.asks)
	}
}
