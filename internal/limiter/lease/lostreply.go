package lease

// This file is about calls whose replies are lost: it asks the store what they have charged, and gives that back.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

const (
	maxLostCalls  = 10_000      // calls that are remembered; of further ones the units are lost
	findLostEvery = time.Second // how often a store that does not answer is asked
)

// lostCalls holds the calls whose replies are lost, until the store has told what they have charged.
type lostCalls struct {
	mu     sync.Mutex
	calls  []lostCall
	failed clock.Instant // when a store did not tell; zero: each store that was asked has told
}

// lostCall is a call whose reply is lost.
type lostCall struct {
	*limit.LostReply
	shard    *shard
	until    clock.Instant // the store may have forgotten the call after that
	mayHave  int64         // units that the call has charged at most
	returned int64         // units of ended leases that it gave back, if it has charged anything
}

// noteLost is called after a call that failed and that was sent at the time sent. If the store can find out what the
// call has charged, it is asked later. Otherwise the most that it can be counts as lost.
func (c *call) noteLost(err error, sent clock.Instant) {
	l := lostCall{shard: c.owner.shard}
	if !errors.As(err, &l.LostReply) {
		return // nothing was sent, or the store has answered
	}
	l.until = sent.Add(l.KeptFor)
	i := 0
	for _, charge := range l.Request.Charges {
		for j := range charge.Limit.Tiers {
			ask := &l.Request.Leases[i]
			l.mayHave += min(ask.Need+ask.Largest(), charge.Limit.Tiers[j].Capacity())
			l.returned -= min(ask.Correction, 0)
			i++
		}
	}
	if l.Find != nil && c.store.lost.add(l) {
		l.shard.stats.Lost -= l.returned // of what putBackReserved has counted
	} else {
		l.shard.stats.Lost += l.mayHave
	}
}

func (l *lostCalls) add(c lostCall) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.calls) >= maxLostCalls {
		return false
	}
	l.calls = append(l.calls, c)
	return true
}

// take returns all calls and forgets them. It returns none if a store did not tell when it was last asked, a moment
// ago.
func (l *lostCalls) take(now clock.Instant) []lostCall {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !now.Due(l.failed, findLostEvery) {
		return nil
	}
	return l.takeLocked()
}

// takeAll returns all calls and forgets them.
func (l *lostCalls) takeAll() []lostCall {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.takeLocked()
}

func (l *lostCalls) takeLocked() []lostCall {
	calls := l.calls
	l.calls = nil
	return calls
}

// putBack remembers calls that the store has not told about at the time now.
func (l *lostCalls) putBack(calls []lostCall, now clock.Instant) {
	if len(calls) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed, l.calls = now, append(l.calls, calls...)
}

// giveBackLost asks the stores about the calls whose replies are lost, and gives back what they have charged. Of calls
// to a store that does not answer, it asks again later. The error is that of one such store.
func (s *Store) giveBackLost(ctx context.Context, calls []lostCall, now time.Time) (failed error) {
	instant := clock.At(now)
	var later []lostCall
	away := map[string]bool{} // by home cell: its store does not answer
	for i := range calls {
		l, home := &calls[i], calls[i].Request.Charges[0].Limit.Home
		if !instant.Before(l.until) {
			l.countAsLost()
			continue
		}
		var err error
		if !away[home] {
			err = s.giveBackOne(ctx, l, now)
		}
		if away[home] || err != nil {
			later, away[home] = append(later, calls[i]), true
		}
		if err != nil {
			failed = fmt.Errorf("lease store: a call has no reply: %w", err)
		}
	}
	s.lost.putBack(later, instant)
	return failed
}

// giveBackOne gives back what one call has charged. An error means that this is not known yet.
func (s *Store) giveBackOne(ctx context.Context, l *lostCall, now time.Time) error {
	var d limit.Decision
	// Find asks the store itself. What is found can only be given back if the circuit breaker lets calls through, which
	// this call finds out.
	if err := s.config.Store.Peek(ctx, &limit.Request{Owner: l.Request.Owner, Charges: l.Request.Charges}, now,
		&d); err != nil {
		return err
	}
	switch charged, err := l.Find(ctx, &d); {
	case err != nil:
		return err
	case charged:
		s.undo(ctx, l, &d, now)
	default: // the call is refused from now on, so units of ended leases that it was to give back stay charged
		l.count(&l.shard.stats.Lost, l.returned)
	}
	return nil
}

// undo gives back what a call has charged: like a lease if the call leased the tier, and otherwise by a refund.
func (s *Store) undo(ctx context.Context, l *lostCall, d *limit.Decision, now time.Time) {
	l.count(&l.shard.stats.Returned, l.returned)
	back := &returnCall{request: limit.Request{Owner: d.Owner}}
	for i := range d.Results {
		r := &d.Results[i]
		if d.Charges(i) && l.Request.Leases[i].Largest() > 0 {
			d.Revise().KeepLease(i)
		}
		switch grant := d.Lease(i); {
		case grant.Units == 0:
		case r.Other: // see returnLease
			l.count(&l.shard.stats.Lost, grant.Units)
		default:
			back.add(r.Tier, d.Value(i), grant.Units, grant.At)
		}
	}
	if back.units > 0 {
		_ = s.giveBack(ctx, l.shard, back, now) // what cannot be given back is counted as lost
	}
	if receipt := d.Receipt(); len(receipt.Entries()) > 0 {
		s.refundLost(ctx, l, receipt, now)
	}
}

// refundLost gives back units that a call charged without a lease.
func (s *Store) refundLost(ctx context.Context, l *lostCall, receipt *limit.Receipt, now time.Time) {
	charged, returned := int64(0), int64(0)
	for _, e := range receipt.Entries() {
		charged += e.Units
	}
	refund, err := s.config.Store.Refund(ctx, receipt, 0, now)
	if err == nil {
		for _, units := range refund.Units {
			returned += units
		}
	}
	l.count(&l.shard.stats.Returned, returned)
	l.count(&l.shard.stats.Lost, charged-returned)
}

// countAsLost counts the most that the call can have charged, and the units that it was to give back.
func (l *lostCall) countAsLost() { l.count(&l.shard.stats.Lost, l.mayHave+l.returned) }

// count adds units to one of the shard's stats.
func (l *lostCall) count(sum *int64, units int64) {
	l.shard.mu.Lock()
	defer l.shard.mu.Unlock()
	*sum += units
}
