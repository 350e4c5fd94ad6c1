package lease

// This file gives back leased units by calls of its own: spare units regularly, and all units at Close. The units of a
// lease that has ended are returned with the next call for the counter: see returnLease in call.go.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// returnCall is a call that gives back units of one owner's leases.
type returnCall struct {
	request limit.Request
	units   int64
}

// maxReturnLimits is how many limits one call gives back to, counting a limit once for each of its values. Stores bound
// the size of a request (DynamoDB: 99 counters), which 25 limits of up to three tiers do not exceed.
const maxReturnLimits = 25

// accepts reports whether the call can give back to the counter, too. After a change of the plan two versions of a
// limit may have the counter, and one request cannot have both.
func (r *returnCall) accepts(c *counter) bool {
	l := c.tier.Limit()
	for i := range r.request.Charges {
		if charge := &r.request.Charges[i]; charge.Limit.ID == l.ID && charge.Value == c.value {
			return charge.Limit == l
		}
	}
	return len(r.request.Charges) < maxReturnLimits
}

// addUnits takes units off the counter's lease and adds them to the call. Units that are not free yet go first.
func (r *returnCall) addUnits(c *counter, t, units int64) {
	r.add(c.tier, c.value, units, c.lease.At)
	c.ramp.removeLocked(units, t)
	c.lease.GiveBack(units)
}

// add adds units of a lease to the call. leaseAt is the lease's At.
func (r *returnCall) add(t *limit.Tier, v limit.Value, units, leaseAt int64) {
	l := t.Limit()
	first := r.firstLease(l, v)
	for j := range l.Tiers {
		if &l.Tiers[j] == t {
			ask := &r.request.Leases[first+j]
			ask.Correction, ask.CorrectionAt = -units, leaseAt
		}
	}
	r.units += units
}

// firstLease returns the index in r.request.Leases of the limit's first tier. It adds the limit if the request does not
// have it: the cost is the least that a request may have, and with a zero LeaseRequest nothing of it is charged.
func (r *returnCall) firstLease(l *limit.Limit, v limit.Value) int {
	first := 0
	for i := range r.request.Charges {
		if charge := &r.request.Charges[i]; charge.Limit == l && charge.Value == v {
			return first
		}
		first += len(r.request.Charges[i].Limit.Tiers)
	}
	r.request.Charges = append(r.request.Charges, limit.Charge{Limit: l, Value: v, Cost: 1})
	r.request.Leases = append(r.request.Leases, make([]limit.LeaseRequest, len(l.Tiers))...)
	return first
}

// spareUnits returns how many units of the lease are to be given back: those that will probably not be spent within
// keepFor, or before the store runs out of units, whichever comes first. It is 0 if there is plenty, since no process
// lacks the units then.
func (o *ownerLeases) spareUnits(c *counter, t int64) int64 {
	if !c.scarce || t >= c.until || t < c.promisedAt || c.lease.Units == 0 || c.lease.At == 0 || c.flight != nil ||
		c.lease.Other() {
		return 0
	}
	k := o.shard.store.config.tuning
	v := o.viewOf(c, t, 1, 0)
	if v.plenty(k) {
		return 0
	}
	rate := v.Rate
	// A pause of two mean gaps between requests shows that the rate fell. This takes requests to cost one unit: of
	// those that cost more, too much is given back.
	if pause := t - c.demand.lastRequest; pause > 0 {
		rate = min(rate, 2e6/float64(pause))
	}
	seconds := min(v.EndsIn.Seconds(), k.keepFor.Seconds())
	keep := rate*seconds + math.Sqrt(rate*seconds)
	if runsOutIn := v.runsOutIn(); runsOutIn < seconds {
		// Other processes are denied the units that are left in this lease when the store has none. A margin would
		// leave some.
		keep = rate * runsOutIn
	}
	spare := c.lease.Units - wholeUnits(keep)
	if spare < 2 || spare < c.tier.Capacity()/k.returnParts { // not worth a call
		return 0
	}
	return spare
}

// noteScarcity notes, when the store has answered, whether units of the counter are scarce, and until when those that
// are leased can be spent. So the passes that look for spare units, several a second, skip what is not scarce.
func (o *ownerLeases) noteScarcity(c *counter, t int64) {
	v := o.viewOf(c, t, 1, 0)
	if c.scarce = !v.plenty(o.shard.store.config.tuning); c.scarce {
		o.shard.scarceUntil = max(o.shard.scarceUntil, c.until)
		if !o.isScarce {
			o.isScarce, o.shard.scarce = true, append(o.shard.scarce, o)
		}
	}
}

// plenty reports whether the store has left plentyTimes what all processes will probably use before a lease would end.
func (v *View) plenty(k *tuning) bool {
	return float64(v.Left) >= k.plentyTimes*max(v.Total, v.Rate)*v.EndsIn.Seconds()
}

// allUnits returns all units of the lease that can be given back.
func (o *ownerLeases) allUnits(c *counter, _ int64) int64 {
	if c.lease.At == 0 || c.lease.Other() {
		return 0
	}
	return c.lease.Units
}

func (s *Store) giveBackRegularly(ctx context.Context) {
	tick := time.NewTicker(s.config.GiveBackEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.GiveBackSpare(ctx, s.config.Clock())
		}
	}
}

// GiveBackSpare gives back, once, the units that will probably not be spent, and those that calls without a reply have
// charged. The store does so by itself every [Config.GiveBackEvery]; a process that may be frozen between requests
// calls it beside a request instead.
func (s *Store) GiveBackSpare(ctx context.Context, now time.Time) {
	_ = s.giveBackLost(ctx, s.lost.take(clock.At(now)), now) // a store that did not tell is asked again later
	for i := range s.shards {
		sh := &s.shards[i]
		if !sh.hasScarce(now) {
			continue
		}
		for _, r := range sh.collectSpare(now) {
			if ctx.Err() != nil {
				return
			}
			_ = s.giveBack(ctx, sh, r, now) // what cannot be given back is counted as lost
		}
	}
}

// hasScarce reports whether any units of a scarce counter are leased in the shard.
func (sh *shard) hasScarce(now time.Time) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.scarceUntil > 0 && sh.clock.At(clock.At(now)) < sh.scarceUntil
}

// collectSpare takes spare units off the leases of a shard, and writes the calls that give them back.
func (sh *shard) collectSpare(now time.Time) (calls []*returnCall) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	t := sh.clock.At(clock.At(now))
	sh.scarce = slices.DeleteFunc(sh.scarce, func(o *ownerLeases) bool {
		calls = o.appendReturns(calls, t, (*ownerLeases).spareUnits)
		o.isScarce = slices.ContainsFunc(o.counters, func(c *counter) bool { return c.scarce })
		return !o.isScarce
	})
	return calls
}

// collectAll takes all units off the leases of a shard, and writes the calls that give them back.
func (sh *shard) collectAll(now time.Time) (calls []*returnCall) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	t := sh.clock.At(clock.At(now))
	for _, o := range sh.list {
		calls = o.appendReturns(calls, t, (*ownerLeases).allUnits)
	}
	return calls
}

// appendReturns takes units off the leases of an owner, as many of each counter as unitsOf returns, and appends the
// calls that give them back.
func (o *ownerLeases) appendReturns(
	calls []*returnCall, t int64, unitsOf func(o *ownerLeases, c *counter, t int64) int64,
) []*returnCall {
	var r *returnCall
	for _, c := range o.counters {
		units := unitsOf(o, c, t)
		if units <= 0 {
			continue
		}
		if r == nil || !r.accepts(c) {
			r = &returnCall{request: limit.Request{Owner: o.owner}}
			calls = append(calls, r)
		}
		r.addUnits(c, t, units)
	}
	return calls
}

// giveBack makes one call. The error names no owner, because logs must not have their names.
func (s *Store) giveBack(ctx context.Context, sh *shard, r *returnCall, now time.Time) error {
	const deadline = 2 * time.Second // nobody waits for the call but Close
	ctx, cancel := s.config.Runtime.WithTimeout(ctx, deadline)
	defer cancel()
	var d limit.Decision
	err := s.config.Store.Decide(ctx, &r.request, now, &d)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.stats.Returns++
	if err == nil && !d.Allowed {
		err = errAnswer
	}
	if err != nil {
		sh.stats.Lost += r.units
		return fmt.Errorf("lease store: %d units are lost: %w", r.units, err)
	}
	sh.stats.Returned += r.units
	return nil
}

const (
	returnsAtOnce = 8 // calls under way while Close gives everything back
	returnsToldOf = 3 // errors that Close returns in full: thousands of calls may fail for one reason
)

// giveBackAll gives back what is left of every lease.
func (s *Store) giveBackAll(ctx context.Context) error {
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	failed := 0
	free := make(chan struct{}, returnsAtOnce)
	now := s.config.Clock()
	errs = append(errs, s.giveBackLost(ctx, s.lost.takeAll(), now))
	for _, lost := range s.lost.takeAll() {
		lost.countAsLost()
	}
	for i := range s.shards {
		sh := &s.shards[i]
		for _, r := range sh.collectAll(now) {
			free <- struct{}{}
			all.Go(func() {
				defer func() { <-free }()
				if err := s.giveBack(ctx, sh, r, now); err != nil {
					mu.Lock()
					if failed++; failed <= returnsToldOf {
						errs = append(errs, err)
					}
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	if failed > returnsToldOf {
		errs = append(errs, fmt.Errorf("lease store: %d returns more failed", failed-returnsToldOf))
	}
	return errors.Join(errs...)
}
