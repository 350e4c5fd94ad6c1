package redis_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	leasing "github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// longLimits returns a limit of 2,000 units of each algorithm that leases over a long time.
func longLimits(tb testing.TB) []*limit.Limit {
	tb.Helper()
	const units = 2000
	var all []*limit.Limit
	for _, tier := range []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: units, Period: 24 * time.Hour},
		{Algorithm: limit.SlidingWindow, Threshold: units, Period: 24 * time.Hour},
		{Algorithm: limit.Quota, Threshold: units, Calendar: &limit.Calendar{Every: limit.Month, Location: time.UTC}},
		{Algorithm: limit.SlidingBuckets, Threshold: units, Period: 24 * time.Hour},
		{Algorithm: limit.SlidingLog, Threshold: units, Period: 24 * time.Hour},
	} {
		all = append(all, build(tb, limit.Limit{ID: tier.Algorithm.String(), Tiers: []limit.Tier{tier}}))
	}
	return all
}

// stalled is a process that leases from a server which stalls.
type stalled struct {
	leases *leasing.Store
	limit  *limit.Limit
	now    time.Time
	err    error // of the last request that failed
}

func newStalled(tb testing.TB, below limit.Store, l *limit.Limit) *stalled {
	tb.Helper()
	p := &stalled{limit: l, now: noon}
	var err error
	clock := func() time.Time { return p.now }
	p.leases, err = leasing.New(leasing.Config{Store: below, GiveBackEvery: -1, Clock: clock})
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// ask asks for n units, 200 in a second, and returns how many are admitted and how many requests end with an error.
func (p *stalled) ask(ctx context.Context, n int) (admitted, failed int64) {
	var d limit.Decision
	for range n {
		p.now = p.now.Add(5 * time.Millisecond)
		err := p.leases.Decide(ctx, &limit.Request{Owner: acme,
			Charges: []limit.Charge{{Limit: p.limit, Cost: 1}}}, p.now, &d)
		switch {
		case err != nil:
			failed++
			p.err = err
		case d.Allowed:
			admitted++
		}
	}
	return admitted, failed
}

// askStalled asks, one unit after the other, until so many requests have had no answer in time.
func (p *stalled) askStalled(failures int64) (admitted int64) {
	for failed := int64(0); failed < failures; {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		a, f := p.ask(ctx, 1)
		cancel()
		admitted, failed = admitted+a, failed+f
	}
	return admitted
}

// Guarantees that a server that stalls under load costs nothing of a limit over a long time: it carries out the calls
// when it goes on, nobody gets their replies, and what they have charged is given back.
func TestStallBurnsNothing(t *testing.T) {
	server := redistest.Start(t)
	for _, l := range longLimits(t) {
		t.Run(l.ID, func(t *testing.T) {
			s := openAt(t, redis.Config{Addrs: []string{server.Addr}})
			s.SetSpace(newSpace())
			p := newStalled(t, s, l)
			admitted, failed := p.ask(t.Context(), 400)
			if failed > 0 {
				t.Fatalf("%d requests failed before the stall: %v", failed, p.err)
			}
			if err := server.Freeze(); err != nil {
				t.Fatal(err)
			}
			admitted += p.askStalled(10)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			p.leases.GiveBackSpare(ctx, p.now) // the server does not tell what it will charge
			cancel()
			if err := server.Thaw(); err != nil {
				t.Fatal(err)
			}
			for range 20 {
				p.now = p.now.Add(5 * time.Second) // denials end
				p.leases.GiveBackSpare(t.Context(), p.now)
				n, failed := p.ask(t.Context(), 200)
				if failed > 0 {
					t.Fatalf("%d requests failed after the stall: %v", failed, p.err)
				}
				admitted += n
			}
			if stats := p.leases.Stats(); admitted > 2000 || admitted < 1980 || admitted+stats.Lost != 2000 {
				t.Errorf("%d of 2,000 are admitted, want at least 1,980, and all others counted as lost: %+v", admitted,
					stats)
			}
		})
	}
}

// Guarantees that a store whose reply is lost tells what the call has charged, as often as it is asked. If it tells
// that the call has charged nothing, the call charges nothing however late it arrives, and if the call has charged, it
// does not do so a second time.
func TestLostReplyIsFound(t *testing.T) {
	server := redistest.Start(t)
	question := redistest.StartProxy(t, server.Addr)
	answer := newProxy(t, question.Addr)
	for _, l := range append(longLimits(t), tenUnits(t)[0].Limit) {
		for _, charged := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, charged %t", l.ID, charged), func(t *testing.T) {
				s := openAt(t, redis.Config{Addrs: []string{answer.addr}})
				s.SetSpace(newSpace())
				charges := []limit.Charge{{Limit: l, Cost: 1}}
				if g, err := lease(t, s, charges, 0, 2); err != nil || g.Units != 2 {
					t.Fatalf("%+v, %v; want 2 units", g, err)
				}
				ctx := t.Context()
				if charged {
					answer.cut.Store(0)
				} else {
					question.Stall()
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, 20*time.Millisecond)
					defer cancel()
				}
				req := &limit.Request{Owner: acme, Charges: charges, Leases: []limit.LeaseRequest{{Need: 1, Least: 4}}}
				var d, found limit.Decision
				err := s.Decide(ctx, req, noon, &d)
				var lost *limit.LostReply
				if !errors.As(err, &lost) || d.Allowed {
					t.Fatalf("%v, allowed %t; want a lost reply", err, d.Allowed)
				}
				answer.cut.Store(-1)
				if !charged {
					question.Cut()
				}
				question.Forward(server.Addr)
				want := int64(2) // units that are used
				if charged {
					want += 5
				}
				for range 2 {
					if err := redistest.Until(t.Context(), func() error {
						got, err := lost.Find(t.Context(), &found)
						if err == nil && (got != charged || got && (!found.Allowed || found.Lease(0).Units != 4)) {
							t.Errorf("charged %t, leased %+v; want charged %t", got, found.Lease(0), charged)
						}
						return err
					}); err != nil {
						t.Fatal(err)
					}
					s.RepeatID()
					if err := s.Decide(t.Context(), req, noon, &d); err == nil || d.Allowed {
						t.Errorf("a call that arrives once more, or late: %v, allowed %t; want an error", err,
							d.Allowed)
					}
				}
				if err := s.Peek(t.Context(), &limit.Request{Owner: acme, Charges: charges}, noon, &d); err != nil {
					t.Fatal(err)
				}
				if used := d.Results[0].Used(); used != want {
					t.Errorf("%d units are used, want %d", used, want)
				}
			})
		}
	}
}
