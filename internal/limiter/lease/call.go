package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/singleflight"
)

// errAnswer means that the store's reply cannot belong to the call. Nothing is admitted because of such a reply.
var errAnswer = errors.New("the store's answer is invalid")

// call is one call to the store, on behalf of a request. Calls are reused, see [call.release].
//
// The request is what a caller wants decided. The storeRequest is what this call asks the store, with an ask (a
// [limit.LeaseRequest]) for each tier. The flight is the call as other requests see it, which wait for its end.
type call struct {
	store        *Store
	owner        *ownerLeases
	request      *limit.Request
	storeRequest limit.Request
	reply        limit.Decision
	tiers        []tierCall // one for each tier of storeRequest, in their order
	view         View       // that the rule gets of one of them

	flight         *singleflight.Call // nil if the call can bring other requests nothing
	flightCounters []*counter         // the counters that have the flight
}

// tierCall is the part of a call that is about one tier. Units that are reserved for the request are taken off the
// lease before the call; what the request does not spend of them is put back after it.
type tierCall struct {
	counter         *counter
	tier            *limit.Tier // as the request has it; a new plan may change the counter's during the call
	charge          int         // index in the request's charges
	cost            int64
	mayLease        bool // the tier may be leased: what is granted is kept
	exceedsCapacity bool // no wait would help: the cost is above what the tier can hold

	reserved   int64 // units of the lease that are reserved for the request
	leaseAt    int64 // the window, slot or entry that counts the lease before the call: the Leftover's At
	leaseUntil int64 // when that lease ends, by the shard's clock
	returned   int64 // units of an ended lease that the call gives back
	need       int64 // units that the call asks for, for the request: cost minus reserved; 0 if a ramp is to serve it

	// After the reply.
	charged        int64 // of need, units that the store charged
	chargedAt      int64 // what counts them; 0 if they were not charged as a lease, and cannot be spent later
	available      int64 // units for the request, reserved and charged; once it is decided, minus what it spends
	refusedReturns bool  // the store denied, and did not take the returned units
}

// requestTime is the time of a request: the time that the caller gave, plus what has passed since by [Config.Clock].
type requestTime struct {
	now     time.Time
	instant clock.Instant
}

func (at requestTime) advance(from, to time.Time) requestTime {
	return requestTime{at.now.Add(to.Round(0).Sub(from.Round(0))), at.instant.Advance(clock.At(from), clock.At(to))}
}

// decideByStore decides a request that leases alone do not decide. If a call of another request may bring what this one
// lacks, the request waits for that call, once. Then it makes a call of its own, and a second one if a lease that it
// reserved units of has ended during the first.
func (s *Store) decideByStore(
	ctx context.Context, sh *shard, hash uint64, req *limit.Request, now time.Time, d *limit.Decision,
) error {
	if err := req.Check(); err != nil {
		return err
	}
	c := s.calls.Get().(*call)
	defer c.release()
	c.store, c.request = s, req
	at, began := requestTime{now, clock.At(now)}, s.config.Clock()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if len(req.Charges) > 0 && len(req.Leases) == 0 && (!isChosenByCallers(req) || sh.seenBefore(hash) ||
		sh.owners[req.Owner] != nil) {
		c.owner = s.findOrAddOwner(sh, hash, req, at.instant)
	}
	if c.owner == nil {
		return s.decideWithoutLeases(ctx, sh, req, at, d)
	}
	c.collectCounters()
	if flight := c.pendingCall(at); flight != nil {
		var err error
		sh.stats.Waited++
		sh.unlocked(func() {
			err = s.waitFor(ctx, flight)
			at = at.advance(began, s.config.Clock())
		})
		if err != nil {
			return err
		}
		if c.owner = s.findOrAddOwner(sh, hash, req, at.instant); c.owner == nil { // it was dropped meanwhile
			return s.decideWithoutLeases(ctx, sh, req, at, d)
		}
		if c.owner.decideLocally(req, at.instant, d) {
			return nil
		}
		c.collectCounters()
	}
	after, leaseEnded, err := c.decideByOneCall(ctx, at, d)
	if leaseEnded && !d.Allowed {
		at = after
		c.collectCounters()
		_, _, err = c.decideByOneCall(ctx, at, d)
	}
	return err
}

// decideByOneCall decides the request with one call, and returns the time after the call. leaseEnded reports whether
// the decision lacks units of leases that ended during the call. The caller holds the shard's lock, which is released
// during the call.
func (c *call) decideByOneCall(
	ctx context.Context, at requestTime, d *limit.Decision,
) (after requestTime, leaseEnded bool, err error) {
	sh := c.owner.shard
	sent := c.reserveUnits(at)
	sh.stats.Calls++
	sh.unlocked(func() { after, err = c.callStore(ctx, at) })
	c.noteOutcome(ctx, err)
	t := c.owner.shard.clock.At(after.instant)
	if err != nil {
		c.putBackReserved(t)
		c.noteLost(err, at.instant)
		if c.flight != nil {
			c.completeFlight(sharedError(ctx, err))
		}
		return after, false, err
	}
	c.storeReply(sent, t)
	leaseEnded = c.leaseEndedMeanwhile(t)
	c.writeDecision(d, t)
	c.completeFlight(nil)
	return after, leaseEnded, nil
}

// decideWithoutLeases passes a request on for which there is no room to remember anything, or nothing to remember. The
// caller holds the shard's lock.
func (s *Store) decideWithoutLeases(
	ctx context.Context, sh *shard, req *limit.Request, at requestTime, d *limit.Decision,
) (err error) {
	sh.stats.Calls++
	sh.unlocked(func() { err = s.config.Store.Decide(ctx, req, at.now, d) })
	return err
}

// collectCounters fills c.tiers with the counters of the request, and adds those that are new. The lease of a counter
// whose limit has changed ends, so that the call returns its units.
func (c *call) collectCounters() {
	c.tiers = c.tiers[:0]
	for i := range c.request.Charges {
		charge := &c.request.Charges[i]
		for j := range charge.Limit.Tiers {
			t := &charge.Limit.Tiers[j]
			counter := c.owner.findCounter(t, charge.Value, len(c.tiers))
			if counter == nil {
				counter = c.owner.addCounter(t, charge.Value)
			}
			if counter.tier != t {
				c.owner.shard.stats.Lost += counter.changeTier(t)
			}
			c.tiers = append(c.tiers, tierCall{
				counter: counter, tier: t, charge: i, cost: charge.Cost,
				mayLease:        c.store.mayLease(charge.Limit) && !t.Leasing().None,
				exceedsCapacity: charge.Cost > t.Capacity(),
			})
		}
	}
}

// pendingCall returns the flight of a call under way that may bring units which the request lacks, or nil.
func (c *call) pendingCall(at requestTime) *singleflight.Call {
	t := c.owner.shard.clock.At(at.instant)
	for i := range c.tiers {
		tc := &c.tiers[i]
		if f := tc.counter.flight; f != nil && tc.mayLease && tc.counter.spendable(t) < tc.cost {
			return f
		}
	}
	return nil
}

// waitFor waits for a call of another request. The error is why ctx ended, or that of the call: to ask again, one
// request after the other, would take longer than a decision may take.
func (s *Store) waitFor(ctx context.Context, flight *singleflight.Call) error {
	var err error
	if r := s.config.Runtime; r == nil {
		err = flight.Wait(ctx)
	} else {
		err = r.Wait(ctx, flight.Done())
	}
	if err != nil {
		return err
	}
	_, err = flight.Result()
	return err
}

// reserveUnits reserves for the request what its counters have leased, and writes the call for the rest. It returns the
// time of the request, from which leases are counted: the shard's clock, which never goes back, less what it has
// advanced because of later requests.
func (c *call) reserveUnits(at requestTime) (sent int64) {
	t := c.owner.shard.clock.At(at.instant)
	c.storeRequest.Owner, c.storeRequest.Charges = c.request.Owner, c.request.Charges
	c.storeRequest.Leases = c.storeRequest.Leases[:0]
	isPlain, mustFit := true, false
	for i := range c.tiers {
		mustFit = mustFit || !c.tiers[i].mayLease
	}
	for i := range c.tiers {
		tc := &c.tiers[i]
		tc.counter.demand.addRequest(t, tc.cost)
		c.storeRequest.Leases = append(c.storeRequest.Leases, limit.LeaseRequest{Need: tc.cost})
		ask := &c.storeRequest.Leases[i]
		switch {
		case !tc.mayLease: // a lease from before a change of the plan is returned
			tc.leaseAt, tc.leaseUntil = tc.counter.lease.At, tc.counter.until
			tc.returnLease(ask, &c.owner.shard.stats)
		case !tc.exceedsCapacity:
			tc.reserveLeased(t, ask, &c.owner.shard.stats)
			c.sizeLease(tc, t, mustFit, ask)
		}
		tc.need = ask.Need
		isPlain = isPlain && *ask == (limit.LeaseRequest{Need: tc.cost})
	}
	switch {
	case !isPlain:
		c.beginFlight(at.instant)
	case !c.mayBeLost(): // a request without leases is what stores decide fastest
		c.storeRequest.Leases = c.storeRequest.Leases[:0]
	}
	return t - c.owner.shard.clock.Behind(at.instant)
}

// reserveLeased reserves what the counter has leased, up to the cost, and has the call return a lease that cannot be
// used.
func (tc *tierCall) reserveLeased(t int64, ask *limit.LeaseRequest, stats *Stats) {
	counter := tc.counter
	tc.reserved, tc.leaseAt, tc.leaseUntil = min(counter.spendable(t), tc.cost), counter.lease.At, counter.until
	ended := t >= counter.until
	if leasesEntries(counter.tier) && tc.reserved < tc.cost {
		// The units of one request are counted in one entry, so a lease that has too few is of no use to it. It is
		// returned, since the entry of the next lease is another one.
		tc.reserved, ended = 0, true
	}
	counter.lease.Units -= tc.reserved
	if ended {
		tc.returnLease(ask, stats)
	}
	ask.Need = tc.cost - tc.reserved
}

// returnLease has the call give back what the counter has leased. If several values share the counter (those beyond the
// limit's MaxValues), the units are lost: by the time of the call the value may have a counter of its own, which was
// not charged for them.
func (tc *tierCall) returnLease(ask *limit.LeaseRequest, stats *Stats) {
	counter := tc.counter
	if counter.lease.Units == 0 {
		return
	}
	if counter.lease.Other() {
		stats.Lost += counter.lease.Units
	} else {
		tc.returned = counter.lease.Units
		ask.Correction, ask.CorrectionAt = -tc.returned, counter.lease.At
	}
	counter.lease.Units, counter.ramp.locked = 0, 0
}

// sizeLease asks for a lease of the counter, as the rule says, unless one is under way or there is to be none. If
// mustFit is set, the store must have all the units that the request lacks: what it charges of an exact limit cannot be
// kept for another request, so it must deny instead of leasing a ramp that does not suffice yet.
func (c *call) sizeLease(tc *tierCall, t int64, mustFit bool, ask *limit.LeaseRequest) {
	counter := tc.counter
	if counter.flight != nil || counter.lease.Other() || c.store.leasingSuspended(counter) {
		return
	}
	need := ask.Need
	c.view = c.owner.viewOf(counter, t, tc.cost, need)
	c.view.MustFit = mustFit
	c.store.config.Rule.SizeLease(&c.view, ask)
	if ask.Need != need && (mustFit || !ask.Ramp || ask.Need != 0) {
		ask.Need = need // the rule may not do that
	}
	if leasesEntries(counter.tier) && ask.Largest() > 0 {
		ask.Life = c.store.entryLife(counter.tier)
	}
}

// entryLife returns for how long entries are leased, µs.
//
// The entries count from the lease's end on, so they count for longer than the period by up to the lease's life: a
// twentieth of the period withholds at most 5 % of the limit. More than a second would save little, since one call per
// second and process is the goal.
func (s *Store) entryLife(t *limit.Tier) int64 {
	const parts, longest = 20, 1_000_000
	return min(t.Period.Microseconds()/parts, s.life, longest)
}

// beginFlight makes the call one that others wait for, if it asks for units of a counter that no other call leases.
func (c *call) beginFlight(began clock.Instant) {
	c.flight, c.flightCounters = nil, c.flightCounters[:0]
	for i := range c.tiers {
		tc, ask := &c.tiers[i], &c.storeRequest.Leases[i]
		if !tc.mayLease || tc.counter.flight != nil || ask.Need == 0 && ask.Largest() == 0 {
			continue
		}
		if c.flight == nil {
			c.flight = singleflight.Begin(began, nil)
		}
		tc.counter.flight = c.flight
		c.flightCounters = append(c.flightCounters, tc.counter)
	}
}

// completeFlight ends the call for those who wait for it. They get the error; without one they decide anew.
func (c *call) completeFlight(err error) {
	for _, counter := range c.flightCounters {
		counter.flight = nil
	}
	clear(c.flightCounters)
	if c.flightCounters = c.flightCounters[:0]; c.flight != nil {
		c.flight.End(err)
		if r := c.store.config.Runtime; r != nil {
			r.Wake(c.flight.Done())
		}
		c.flight = nil
	}
}

// sharedError returns the error that a call's error is for the requests that waited for the call. It is nil if the
// error says nothing about them, so that they decide anew: the caller gave up, or the store answered that it cannot
// decide this request. limit.ErrContended, too many changes of the counters at once, is an error for all of them:
// further calls would make it worse.
func sharedError(ctx context.Context, err error) (shared error) {
	if ctx.Err() == nil && (!limit.Answered(err) || errors.Is(err, limit.ErrContended)) {
		shared = err
	}
	return shared
}

// callStore makes the call, checks the reply, and returns the time after it. It is called without the shard's lock.
func (c *call) callStore(ctx context.Context, at requestTime) (requestTime, error) {
	sent := c.store.config.Clock()
	err := c.store.config.Store.Decide(ctx, &c.storeRequest, at.now, &c.reply)
	at = at.advance(sent, c.store.config.Clock())
	if err == nil {
		err = c.checkReply()
	}
	return at, err
}

// checkReply returns an error if the reply cannot be one to what was asked.
func (c *call) checkReply() error {
	d := &c.reply
	if len(d.Results) != len(c.tiers) {
		return fmt.Errorf("%w: %d results for %d tiers", errAnswer, len(d.Results), len(c.tiers))
	}
	if !isSaneTime(d.Now) {
		return fmt.Errorf("%w: its time is %d", errAnswer, d.Now)
	}
	for i := range d.Results {
		tc, r, grant := &c.tiers[i], &d.Results[i], d.Lease(i)
		most := c.leaseRequest(i).Largest()
		if !d.Allowed {
			most = 0
		}
		switch {
		case r.Tier != tc.tier || r.Cost != tc.cost || r.Shadow() != (r.Limit().Mode == limit.Shadow):
			return fmt.Errorf("%w: result %d is about something else", errAnswer, i)
		case !isSaneTime(grant.Until) || !isSaneTime(grant.At) || !isSaneTime(r.RetryAt):
			return fmt.Errorf("%w: a lease of limit %s at %d until %d, or a retry at %d",
				errAnswer, r.Limit().ID, grant.At, grant.Until, r.RetryAt)
		case grant.Units < 0 || grant.Units > most || grant.Upfront < 0 || grant.Upfront > grant.Units:
			return fmt.Errorf("%w: %d units, %d of them at once, are leased of limit %s, at most %d were asked for",
				errAnswer, grant.Units, grant.Upfront, r.Limit().ID, most)
		case d.Charges(i) && r.Charged != tc.need:
			return fmt.Errorf("%w: %d units of limit %s are charged, want %d",
				errAnswer, r.Charged, r.Limit().ID, tc.need)
		}
	}
	return nil
}

// isSaneTime reports whether a time, µs since 1970, is within 285 years of 1970, so that sums of such times cannot
// overflow.
func isSaneTime(at int64) bool {
	const latest = 1 << 53
	return -latest <= at && at <= latest
}

var noLease limit.LeaseRequest

// leaseRequest returns what the call asks for of tier i.
func (c *call) leaseRequest(i int) *limit.LeaseRequest {
	if i < len(c.storeRequest.Leases) {
		return &c.storeRequest.Leases[i]
	}
	return &noLease
}

// release makes the call ready for its next use.
func (c *call) release() {
	clear(c.tiers)
	clear(c.flightCounters)
	s := c.store
	c.store, c.owner, c.request, c.flight, c.flightCounters = nil, nil, nil, nil, c.flightCounters[:0]
	c.storeRequest.Owner, c.storeRequest.Charges = limit.Owner{}, nil
	s.calls.Put(c)
}
