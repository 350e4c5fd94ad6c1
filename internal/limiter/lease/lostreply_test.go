package lease_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// sentCall is a call whose reply is lost.
type sentCall struct {
	request  *limit.Request
	decision limit.Decision
	arrived  bool
	refused  bool
	unknown  func() bool // the store does not answer when it is asked about the call
	decide   func(*limit.Request, *limit.Decision) error
}

// send returns a call with a copy of the request. It has not arrived.
func send(req *limit.Request, unknown func() bool, decide func(*limit.Request, *limit.Decision) error) *sentCall {
	return &sentCall{unknown: unknown, decide: decide, request: &limit.Request{
		Owner: req.Owner, Charges: slices.Clone(req.Charges), Leases: slices.Clone(req.Leases)}}
}

// arrive makes the call arrive at the store, once.
func (c *sentCall) arrive() error {
	if c.refused || c.arrived {
		return nil
	}
	c.arrived = true
	return c.decide(c.request, &c.decision)
}

// lost returns the error of the call, as a store does that keeps its replies to calls with leases.
func (c *sentCall) lost() error {
	if len(c.request.Leases) == 0 {
		return errLost
	}
	return fmt.Errorf("a store: %w", &limit.LostReply{Cause: errLost, Request: c.request, KeptFor: 30 * time.Second,
		Find: func(_ context.Context, d *limit.Decision) (bool, error) {
			if c.unknown() {
				return false, errLost
			}
			c.refused = c.refused || !c.arrived
			if c.refused || !c.decision.Allowed {
				return false, nil
			}
			*d = c.decision
			return true, nil
		}})
}

// losesReplies is a store that loses replies, and calls, some of which arrive late.
type losesReplies struct {
	limit.Store
	*rand.Rand
	parts int // one call in so many has no reply; 0: none
	late  []*sentCall

	cannotTell bool // what became of a call
}

func (s *losesReplies) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if s.parts == 0 || s.IntN(s.parts) > 0 || onlyGivesBack(req) {
		return s.Store.Decide(ctx, req, now, d)
	}
	c := send(req, func() bool { return s.parts > 0 && s.IntN(3) == 0 },
		func(req *limit.Request, d *limit.Decision) error { return s.Store.Decide(ctx, req, now, d) })
	d.Clear(now.UnixMicro())
	if s.IntN(2) == 0 {
		if err := c.arrive(); err != nil {
			return err
		}
	}
	s.late = append(s.late, c)
	err := c.lost()
	var lost *limit.LostReply
	if s.cannotTell && errors.As(err, &lost) {
		lost.Find = nil
	}
	return err
}

// arriveLate makes some of the late calls arrive.
func (s *losesReplies) arriveLate(parts int) error {
	var errs []error
	s.late = slices.DeleteFunc(s.late, func(c *sentCall) bool {
		if s.IntN(parts) > 0 {
			return false
		}
		errs = append(errs, c.arrive())
		return true
	})
	return errors.Join(errs...)
}

func onlyGivesBack(req *limit.Request) bool {
	for i := range req.Leases {
		if req.Leases[i].Need > 0 || req.Leases[i].Largest() > 0 {
			return false
		}
	}
	return len(req.Leases) > 0
}

// Guarantees that what calls without a reply have charged is given back, whether they arrive in time, late, or after
// the store was asked about them: at the end the store counts the admitted units, and at most those besides that the
// metric counts as lost. It never counts less than was admitted and is leased.
func TestLostRepliesAreUndone(t *testing.T) {
	soak.SkipUnderRace(t)
	for _, a := range leasable {
		t.Run(a.String(), func(t *testing.T) {
			lost, over := int64(0), int64(0)
			for seed := range soak.Times(uint64(20)) {
				r := rand.New(rand.NewPCG(seed, 11))
				below := newMemory(t)
				now := noon
				lossy := &losesReplies{Store: below, Rand: r, parts: 4}
				s := open(t, lease.Config{Store: lossy, GiveBackEvery: -1, Clock: func() time.Time { return now },
					Rule: &wild{r}})
				l, gate := daily(t, "a", a, 300), window(t, "b", time.Second, 3)
				admitted := int64(0)
				check := func() {
					if out, counted := admitted+leasedUnits(s, l), usedUnits(t, below, l, now); out > counted {
						t.Fatalf("seed %d: %d units were admitted and %d are leased, but the store counts only %d",
							seed, admitted, leasedUnits(s, l), counted)
					}
				}
				for range 150 {
					now = now.Add(time.Duration(r.IntN(400)) * time.Millisecond)
					req := request(l)
					if r.IntN(3) > 0 {
						req = request(l, gate)
					}
					req.Charges[0].Cost = 1 + r.Int64N(4)
					var d limit.Decision
					if err := s.Decide(t.Context(), req, now, &d); err != nil && !errors.Is(err, errLost) {
						t.Fatal(err)
					}
					if d.Allowed {
						admitted += req.Charges[0].Cost
					}
					if r.IntN(5) == 0 {
						s.GiveBackSpare(t.Context(), now)
					}
					if err := lossy.arriveLate(20); err != nil {
						t.Fatal(err)
					}
					check()
				}
				lossy.parts = 0
				now = now.Add(2 * time.Second)
				if err := s.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := lossy.arriveLate(1); err != nil {
					t.Fatal(err)
				}
				check()
				stats := s.Stats()
				counted := usedUnits(t, below, l, now)
				if a != limit.TokenBucket && counted > admitted+stats.Lost {
					t.Fatalf("seed %d: the store counts %d units; %d were admitted and %d are lost: %+v", seed, counted,
						admitted, stats.Lost, stats)
				}
				lost, over = lost+stats.Lost, over+counted-admitted
			}
			t.Logf("%d units count as lost, and %d are", lost, over)
		})
	}
}

// away is a store behind a circuit breaker, which is open while isAway is set.
type away struct {
	limit.Store
	isAway  bool
	refunds int // calls of Refund
}

func (s *away) Settle(ctx context.Context, r *limit.Receipt, used []int64, now time.Time) (limit.Settlement, error) {
	s.refunds++
	return s.Store.Settle(ctx, r, used, now)
}

func (s *away) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if s.isAway {
		return errLost
	}
	return s.Store.Decide(ctx, req, now, d)
}

func (s *away) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if s.isAway {
		return errLost
	}
	return s.Store.Peek(ctx, req, now, d)
}

// Guarantees that what a call without a reply has charged is given back once the store can be reached, and not before:
// a return that a circuit breaker refuses would be lost. If the store is asked too late, or cannot tell, or has not
// told until Close, the most that the call can have charged counts as lost.
func TestWhenLostRepliesAreUndone(t *testing.T) {
	for _, tt := range []struct {
		name          string
		away          time.Duration // after the call
		isAwayAtClose bool
		cannotTell    bool
		used, lost    int64
	}{
		{"soon", 2 * time.Second, false, false, 0, 0},
		{"at the last moment", 28 * time.Second, false, false, 0, 0},
		{"too late", 31 * time.Second, false, false, 10, 10},
		{"until Close", 5 * time.Second, true, false, 10, 10},
		{"the store cannot tell", 0, false, true, 10, 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := noon
			memory := newMemory(t)
			lossy := &losesReplies{Store: memory, Rand: rand.New(rand.NewPCG(1, 1)), parts: 1,
				cannotTell: tt.cannotTell}
			breaker := &away{Store: lossy}
			s, err := lease.New(lease.Config{Store: breaker, GiveBackEvery: -1,
				Clock: func() time.Time { return now }, Rule: greedy{}})
			if err != nil {
				t.Fatal(err)
			}
			l := daily(t, "a", limit.FixedWindow, 10)
			var d limit.Decision
			if err := s.Decide(t.Context(), request(l), now, &d); !errors.Is(err, errLost) {
				t.Fatalf("Decide = %v, want an error without a reply", err)
			}
			lossy.parts = 0
			if err := lossy.arriveLate(1); err != nil {
				t.Fatal(err)
			}
			breaker.isAway = true
			for ; now.Before(noon.Add(tt.away)); now = now.Add(500 * time.Millisecond) {
				s.GiveBackSpare(t.Context(), now)
			}
			breaker.isAway = tt.isAwayAtClose
			now = now.Add(time.Second)
			if err := s.Close(t.Context()); (err != nil) != tt.isAwayAtClose {
				t.Errorf("Close = %v, want an error: %t", err, tt.isAwayAtClose)
			}
			if n := usedUnits(t, memory, l, now); n != tt.used {
				t.Errorf("the store counts %d units, want %d", n, tt.used)
			}
			if lost := s.Stats().Lost; lost != tt.lost {
				t.Errorf("%d units count as lost, want %d", lost, tt.lost)
			}
			if breaker.refunds != 0 {
				t.Errorf("%d refunds, want none: what a call leased comes back as leases do", breaker.refunds)
			}
		})
	}
}

// Guarantees that units of an ended lease are not lost if they came back to the store with a call whose reply was lost.
func TestReturnsOfALostReply(t *testing.T) {
	now := noon
	memory := newMemory(t)
	lossy := &losesReplies{Store: memory, Rand: rand.New(rand.NewPCG(1, 1))}
	s := open(t, lease.Config{Store: lossy, GiveBackEvery: -1, Clock: func() time.Time { return now }, Rule: greedy{}})
	l := daily(t, "a", limit.FixedWindow, 10)
	var d limit.Decision
	if err := s.Decide(t.Context(), request(l), now, &d); err != nil || leasedUnits(s, l) == 0 {
		t.Fatalf("Decide = %v, and %d units are leased, want some", err, leasedUnits(s, l))
	}
	now = now.Add(time.Hour) // the lease has ended
	lossy.parts = 1
	if err := s.Decide(t.Context(), request(l), now, &d); !errors.Is(err, errLost) {
		t.Fatalf("Decide = %v, want an error without a reply", err)
	}
	lossy.parts = 0
	sent := lossy.late[0].request.Leases[0]
	if err := lossy.arriveLate(1); err != nil || sent.Correction >= 0 {
		t.Fatalf("the call arrives with %v, and has the correction %d, want the leased units", err, sent.Correction)
	}
	s.GiveBackSpare(t.Context(), now.Add(time.Second))
	if used, lost := usedUnits(t, memory, l, now), s.Stats().Lost; used != 1 || lost != 0 {
		t.Errorf("the store counts %d units, want the one that was admitted; %d count as lost, want none", used, lost)
	}
}
