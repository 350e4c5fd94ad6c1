package lease

// This file handles calls whose replies were lost. It asks the store which units such a call has charged, and gives
// those units back.

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
	maxLostCalls  = 10_000      // calls that are remembered; the units of further ones count as lost
	findLostEvery = time.Second // how long no store is asked after one of them did not answer
)

// lostCalls holds the calls whose replies were lost. A call stays here until its store has said what it charged, or
// until the store may have forgotten the call.
type lostCalls struct {
	mu     sync.Mutex
	calls  []lostCall
	failed clock.Instant // when the last round began in which a store did not answer; zero if there was none
}

// lostCall is a call whose reply was lost.
type lostCall struct {
	*limit.LostReply
	shard      *shard
	until      clock.Instant // from then on the store may have forgotten the call
	maxCharged int64         // the most units that the call can have charged, the sum over all tiers
	toReturn   int64         // units of ended leases that come back to the store if it carries out the call
}

// noteLost is called after a call that was sent at the time sent has failed. If its reply was lost, and the store can
// say later what the call has charged, the call is remembered. Otherwise the most units that the call can have charged
// count as lost. The caller holds the lock of the shard.
func (c *call) noteLost(err error, sent clock.Instant) {
	l := lostCall{shard: c.owner.shard}
	if !errors.As(err, &l.LostReply) {
		return // nothing was sent, or the store has answered
	}
	l.until = sent.Add(l.KeptFor)
	i := 0 // Leases has an element for each tier of each charge, in this order
	for _, charge := range l.Request.Charges {
		for j := range charge.Limit.Tiers {
			ask := &l.Request.Leases[i]
			l.maxCharged += min(ask.Need+ask.Largest(), charge.Limit.Tiers[j].Capacity())
			l.toReturn -= min(ask.Correction, 0)
			i++
		}
	}
	if l.Find != nil && c.store.lost.add(l) {
		// putBackReserved has just counted these units as lost, but the store may have them. They count once that is
		// known. Nobody sees the sum in between, because the lock is held.
		l.shard.stats.Lost -= l.toReturn
	} else {
		l.shard.stats.Lost += l.maxCharged
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

// take removes all calls from the list and returns them. It returns none if less than findLostEvery has passed since a
// store did not answer.
func (l *lostCalls) take(now clock.Instant) []lostCall {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !now.Due(l.failed, findLostEvery) {
		return nil
	}
	return l.takeLocked()
}

// takeAll removes all calls from the list and returns them, also if a store did not answer a moment ago.
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

// putBack adds calls to the list again whose stores did not answer in the round that began at the time began. It
// returns those for which there is no room.
func (l *lostCalls) putBack(calls []lostCall, began clock.Instant) (tooMany []lostCall) {
	if len(calls) == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	room := min(maxLostCalls-len(l.calls), len(calls))
	l.failed, l.calls = began, append(l.calls, calls[:room]...)
	return calls[room:]
}

// giveBackLost asks the stores what the calls have charged, and gives that back. Calls that a store may have forgotten
// count as lost. If a store does not answer, its calls go back into the list, and giveBackLost returns the last such
// error.
func (s *Store) giveBackLost(ctx context.Context, calls []lostCall, now time.Time) (failed error) {
	instant := clock.At(now)
	var later []lostCall
	away := map[string]bool{} // the home cells whose store has not answered in this round, and is not asked again in it
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
		if err != nil {
			away[home] = true
			failed = fmt.Errorf("lease store: what an earlier call without a reply charged is not known yet: %w", err)
		}
		if away[home] {
			later = append(later, calls[i])
		}
	}
	for _, l := range s.lost.putBack(later, instant) {
		l.countAsLost()
	}
	return failed
}

// giveBackOne finds out what one call has charged, and gives it back. After an error this is still unknown, and nothing
// was given back.
func (s *Store) giveBackOne(ctx context.Context, l *lostCall, now time.Time) error {
	var d limit.Decision
	// Find does not pass the circuit breaker, but giving units back does. Peek passes it, too, so its error shows that
	// nothing could be given back now. Find replaces the decision that Peek has written.
	if err := s.config.Store.Peek(ctx, &limit.Request{Owner: l.Request.Owner, Charges: l.Request.Charges}, now,
		&d); err != nil {
		return err
	}
	switch charged, err := l.Find(ctx, &d); {
	case err != nil:
		return err
	case charged:
		s.undo(ctx, l, &d, now)
	default:
		// Find has also made the store refuse the call if it arrives later, so what it was to return stays charged.
		l.count(&l.shard.stats.Lost, l.toReturn)
	}
	return nil
}

// undo gives back what a call has charged. Units of a tier of which the call leased some are given back as leased units
// are, and those of other tiers are refunded.
func (s *Store) undo(ctx context.Context, l *lostCall, d *limit.Decision, now time.Time) {
	l.count(&l.shard.stats.Returned, l.toReturn)
	back := &returnCall{request: limit.Request{Owner: d.Owner}}
	for i := range d.Results {
		r := &d.Results[i]
		if d.Charges(i) && l.Request.Leases[i].Largest() > 0 {
			d.Revise().KeepLease(i) // moves what the receipt has of this tier into the lease
		}
		switch grant := d.Lease(i); {
		case grant.Units == 0: // the receipt has the units of this tier, if there are any
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

// refundLost refunds units that a call charged without a lease. Units that are not refunded count as lost.
func (s *Store) refundLost(ctx context.Context, l *lostCall, receipt *limit.Receipt, now time.Time) {
	charged, refunded := int64(0), int64(0)
	for _, e := range receipt.Entries() {
		charged += e.Units
	}
	settled, err := s.config.Store.Settle(ctx, receipt, nil, now)
	if err == nil {
		for _, units := range settled.Returned {
			refunded += units
		}
	}
	l.count(&l.shard.stats.Returned, refunded)
	l.count(&l.shard.stats.Lost, charged-refunded)
}

// countAsLost counts as lost the most that the call can have charged, and the units that it was to give back.
func (l *lostCall) countAsLost() { l.count(&l.shard.stats.Lost, l.maxCharged+l.toReturn) }

// count adds units to one of the stats of the call's shard, under the shard's lock.
func (l *lostCall) count(sum *int64, units int64) {
	l.shard.mu.Lock()
	defer l.shard.mu.Unlock()
	*sum += units
}
