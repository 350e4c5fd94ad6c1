package sluice

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/answer"
)

// MaxReservation is the longest time for which a reservation can last.
const MaxReservation = limit.MaxKept

// Errors of [Limiter.Update], [Limiter.Settle] and [Limiter.Cancel].
var (
	// ErrReservation is wrapped by each error about a reservation. After an error of a store, make the same call again:
	// nothing is charged or given back twice.
	ErrReservation = errors.New("sluice: reservation")

	// ErrReservationEnded means that the time of the reservation is over, or that an Update comes after its settlement.
	ErrReservationEnded = fmt.Errorf("%w: it has ended", ErrReservation)

	// ErrSettlementsFull means that the counters in memory remember as many settlements as an eighth of Config.Memory
	// holds. Memory becomes free when the longest of these reservations would have ended. The same call may succeed
	// later.
	ErrSettlementsFull = limit.ErrSettlementsFull
)

// Reservation is what an allowed request has charged as an estimate. [Limiter.Settle] corrects it to what the request
// turned out to use, and [Limiter.Cancel] gives all of it back. If neither is called before its time is over, the
// estimate counts as used. The zero Reservation, which a denied request has, has nothing to settle.
type Reservation struct{ inner *reservation }

type reservation struct {
	limiter *Limiter

	mu       sync.Mutex
	request  authorizer.Request // to charge the same limits once more
	units    map[string]int64   // the units that the plan has
	costs    Costs              // what is charged now of each unit that a cost was named in
	parts    []*limit.Receipt   // of the decision, and of each update that charged more
	lowering Costs              // nil, or the totals of an update that may or may not have given back the rest
	settling bool               // a settlement has begun; it may have failed
	ended    bool
}

// Settlement is what [Limiter.Settle] or [Limiter.Cancel] has changed, by the id of the limit, in its unit. Of a limit
// with several tiers it is the largest change of one tier. Limits that have not changed are left out.
type Settlement struct {
	Returned  map[string]int64 // given back: these units were not used, and still counted
	Charged   map[string]int64 // charged in addition: these units were used beyond the estimate
	Uncharged map[string]int64 // used beyond the estimate, too, but more than the limit's counter can hold
	Repeated  bool             // it was settled or cancelled before, perhaps by a call that failed; nothing has changed
}

// Reserve decides as Decide does, and charges the estimate in place of r.Costs. Units that the request turns out not to
// use can be given back for ttl, 0 < ttl ≤ MaxReservation, and units beyond the estimate charged. Let ttl be longer
// than the request can take with all its retries.
func (l *Limiter) Reserve(ctx context.Context, who Identity, r Request, estimate Costs, ttl time.Duration) (
	Decision, Reservation,
) {
	if ttl <= 0 {
		return l.badTime(ttl), Reservation{}
	}
	r.Costs, r.ReserveFor = estimate, ttl
	d := l.Decide(ctx, who, r)
	return d, d.reservation
}

// badTime refuses a request that asks for a reservation of such a time.
func (l *Limiter) badTime(ttl time.Duration) Decision {
	err := fmt.Errorf("%w: a time of %s is not above 0 and at most %s", ErrReservation, ttl, MaxReservation)
	l.mistakes.log(l.c.Log, err)
	return refusal(err)
}

// reserved returns the reservation of an allowed request. It also covers the limits of which the request spends nothing
// so far: it may turn out to use some.
func (l *Limiter) reserved(a *authorizer.Answer, req *authorizer.Request, ttl time.Duration) Reservation {
	part := a.Receipt()
	part.KeepFor(ttl)
	all := &reservation{limiter: l, request: *req, units: a.Units(), costs: Costs{}, parts: []*limit.Receipt{part}}
	for unit, n := range req.Costs {
		all.costs[unit] = n
	}
	return Reservation{all}
}

// Reservation returns what the decision has charged, if [Request.ReserveFor] is set.
func (d *Decision) Reservation() Reservation { return d.reservation }

// Settle corrects what each limit was charged to what the request used of its unit. Unused units are given back where
// they were charged, if they still count there. Units beyond the estimate are charged now, also above the limit. A unit
// that is not named keeps its estimate, and so do requests, which only [Limiter.Cancel] gives back. What ipLimits have
// counted never changes. A reservation is settled once.
//
// The error wraps ErrCost if used has an invalid unit, a number outside 0..2^40, or requests; ErrReservationEnded if
// the time of the reservation is over; or else ErrReservation.
func (l *Limiter) Settle(ctx context.Context, r Reservation, used Costs) (Settlement, error) {
	if err := plan.CheckCosts(0, used); err != nil {
		return Settlement{}, fmt.Errorf("%w: %w", ErrCost, err)
	}
	if _, named := used[limit.Requests]; named {
		return Settlement{}, fmt.Errorf("%w: costs: requests are given back by Cancel, and not settled", ErrCost)
	}
	return l.end(ctx, r, func(all *reservation) [][]int64 { return all.used(used) })
}

// Cancel gives everything back that the reservation has charged and that still counts. It is for requests that have
// used nothing. Its errors are those of Settle.
func (l *Limiter) Cancel(ctx context.Context, r Reservation) (Settlement, error) {
	return l.end(ctx, r, func(all *reservation) [][]int64 { return make([][]int64, len(all.parts)) })
}

// end settles each part of a reservation, for which use says what was used of each of its entries.
func (l *Limiter) end(ctx context.Context, r Reservation, use func(*reservation) [][]int64) (Settlement, error) {
	all := r.inner
	if all == nil {
		return Settlement{}, nil
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	if err := l.mayChange(ctx, all); err != nil {
		return Settlement{}, err
	}
	all.settling = true
	out := Settlement{Repeated: all.ended, Returned: map[string]int64{}, Charged: map[string]int64{},
		Uncharged: map[string]int64{}}
	if all.ended {
		return out, nil
	}
	used, again := use(all), len(all.parts) > 0
	for i, part := range all.parts {
		s, err := l.store.Settle(ctx, part, used[i], l.c.Now())
		if err == nil && s.Expired {
			return out, ErrReservationEnded
		}
		if err != nil {
			return out, fmt.Errorf("%w: %w", ErrReservation, err)
		}
		again = again && s.Repeated
		for j, e := range part.Entries() {
			id := e.Tier.Limit().ID
			largest(out.Returned, id, s.Returned[j])
			largest(out.Charged, id, s.Charged[j])
			largest(out.Uncharged, id, s.Uncharged[j])
		}
	}
	all.ended, out.Repeated = true, again
	return out, nil
}

// mayChange returns an error unless the reservation is of this limiter and its last update is complete, which it
// completes if it can.
func (l *Limiter) mayChange(ctx context.Context, all *reservation) error {
	switch {
	case all.limiter != l:
		return fmt.Errorf("%w: it is of another limiter", ErrReservation)
	case l.closed.Load():
		return fmt.Errorf("%w: %w", ErrReservation, ErrClosed)
	case all.lowering != nil:
		return l.giveBack(ctx, all, all.lowering)
	}
	return nil
}

func largest(of map[string]int64, id string, units int64) {
	if units > of[id] {
		of[id] = units
	}
}

// used returns, for each part and each of its entries, what was used. What a counter was charged by several parts is
// used up by the first of them first, and the last one is charged what was used beyond all of them.
func (s *reservation) used(used Costs) [][]int64 {
	left, last := map[limit.Counter]int64{}, map[limit.Counter]int{}
	for i, part := range s.parts {
		for _, e := range part.Entries() {
			last[e.Counter()] = i
		}
	}
	out := make([][]int64, len(s.parts))
	for i, part := range s.parts {
		for _, e := range part.Entries() {
			c, units := e.Counter(), e.Units
			if total, named := used[e.Tier.Limit().Unit]; named {
				if _, known := left[c]; !known {
					left[c] = total
				}
				if units = left[c]; i < last[c] {
					units = min(units, e.Units)
				}
				left[c] -= units
			}
			out[i] = append(out[i], units)
		}
	}
	return out
}

// Update makes the reservation cover total, and lets it last for ttl from now on. Units that are more than before are
// charged like those of a request, all or none: the Decision says whether they were. If they were not, the reservation
// stays as it was. Units that are less are given back. A unit that is not named stays as it is. A unit that the
// estimate did not name cannot be named: its limits were charged what the plan says. For more, who calls is found out
// anew: a token that has expired in between is refused.
//
// The Decision has only Allowed and Reason if no more was asked for. The error wraps ErrCost for bad costs,
// ErrReservationEnded if the reservation was settled or its time is over, or else ErrReservation.
func (l *Limiter) Update(ctx context.Context, r Reservation, total Costs, ttl time.Duration) (Decision, error) {
	all := r.inner
	if err := plan.CheckCosts(0, total); err != nil {
		return Decision{}, fmt.Errorf("%w: %w", ErrCost, err)
	}
	if ttl <= 0 || ttl > MaxReservation {
		return Decision{}, l.badTime(ttl).Err
	}
	if all == nil {
		return Decision{}, fmt.Errorf("%w: the request was denied, and reserved nothing", ErrReservation)
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	now := l.c.Now()
	if all.settling || all.over(now) {
		return Decision{}, ErrReservationEnded
	}
	if err := l.mayChange(ctx, all); err != nil {
		return Decision{}, err
	}
	more, less, err := all.changes(total)
	if err != nil {
		return Decision{}, err
	}
	d := Decision{Allowed: true, Reason: Reason(answer.Allowed.String())}
	if more != nil {
		if d, err = l.reserveMore(ctx, all, more); !d.Allowed || err != nil {
			return d, err
		}
	}
	for _, part := range all.parts {
		part.KeepFor(time.Duration(max(now.UnixMicro()-part.Issued(), 0))*time.Microsecond + ttl)
	}
	if len(less) > 0 {
		err = l.giveBack(ctx, all, less)
	}
	return d, err
}

// over reports whether the time of the reservation is over.
func (s *reservation) over(now time.Time) bool {
	for _, part := range s.parts {
		if part.Expired(now.UnixMicro()) {
			return true
		}
	}
	return false
}

// changes returns what total has more than before of each unit, with a cost of 0 for all other units that the
// reservation has, or nil if it has nothing more; and the new totals of units that it has less of.
func (s *reservation) changes(total Costs) (more, less Costs, err error) {
	more, less = Costs{}, Costs{}
	for unit := range s.units {
		more[unit] = 0
	}
	isMore := false
	for unit, n := range total {
		_, counted := more[unit]
		before, named := s.costs[unit]
		switch {
		case !counted: // no limit has this unit
		case !named:
			return nil, nil, fmt.Errorf("%w: the estimate did not name %s, so its limits were charged what the plan "+
				"says", ErrCost, unit)
		case n > before:
			more[unit], isMore = n-before, true
		case n < before:
			less[unit] = n
		}
	}
	if !isMore {
		more = nil
	}
	return more, less, nil
}

// reserveMore charges more to the limits of the reservation, and adds a part for it.
func (l *Limiter) reserveMore(ctx context.Context, all *reservation, more Costs) (Decision, error) {
	req := all.request
	req.Cost, req.Costs, req.SkipIPLimits = 0, more, true
	d := l.decide(ctx, &req, false, MaxReservation)
	if !d.Allowed {
		return d, nil
	}
	if d.Err != nil {
		return d, fmt.Errorf("%w: %w", ErrReservation, d.Err)
	}
	for unit, n := range more {
		if n > 0 {
			all.costs[unit] += n
		}
	}
	all.parts = append(all.parts, d.reservation.inner.parts...)
	d.reservation = Reservation{all}
	return d, nil
}

// giveBack gives back units of the reservation until it has no more than the given totals. A receipt is settled once,
// so another one takes the place of each that has given units back. After an error, the same totals must be given back
// before anything else: what has arrived of it is not known.
func (l *Limiter) giveBack(ctx context.Context, all *reservation, totals Costs) error {
	all.lowering = totals
	for i, used := range all.used(totals) {
		part, unused := all.parts[i], false
		for j := range part.Entries() {
			unused = unused || part.Unused(j, used) > 0
		}
		if !unused {
			continue
		}
		s, err := l.store.Settle(ctx, part, used, l.c.Now())
		if err == nil && s.Expired {
			return ErrReservationEnded
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrReservation, err)
		}
		all.parts[i] = part.Rest(rand.Uint64(), used, s.Returned)
	}
	for unit, n := range totals {
		all.costs[unit] = n
	}
	all.lowering = nil
	return nil
}
