package sluice

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/limiter/inflight"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/answer"
)

// MaxReservation is the longest time for which a reservation can last.
const MaxReservation = limit.MaxKept

// Errors of [Limiter.Update], [Limiter.Settle] and [Limiter.Cancel].
var (
	// ErrReservation is wrapped by each error about a reservation. If the error is none of those below, and the call
	// has sound arguments, the store has failed. Make the same call again, until it succeeds: nothing is charged or
	// given back twice.
	ErrReservation = errors.New("sluice: reservation")

	// ErrReservationEnded means that the time of the reservation is over, or that Update was called after Settle or
	// Cancel, also after one that failed.
	ErrReservationEnded = fmt.Errorf("%w: its time is over, or it is being settled", ErrReservation)

	// ErrSettlementsFull means that the counters in memory cannot remember another settlement: an eighth of
	// Config.Memory is for that. They forget settlements many at a time, when the last of these reservations would have
	// ended. The same call may then succeed.
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
	places   *inflight.Places   // of limits with concurrency
	lowering Costs              // the lower totals of an update that did not end: part of it may have been done; or nil
	settling bool               // a settlement has begun; it may have failed
	ended    bool
}

// Settlement is what [Limiter.Settle] or [Limiter.Cancel] has changed, by the id of the limit, in its unit. Of a limit
// with several tiers it is the largest change of one tier. Limits that have not changed are left out.
type Settlement struct {
	Returned map[string]int64 // given back: these units were not used
	Charged  map[string]int64 // charged in addition: these units were used beyond the estimate

	// Uncharged was used beyond the estimate, too, and could not be charged, because the counter holds no more.
	Uncharged map[string]int64

	// Repeated says that a call before this one has settled the reservation, perhaps although it returned an error.
	// This call has changed nothing, and does not say what that one has changed.
	Repeated bool
}

// Reserve decides as Decide does, and charges the estimate in place of r.Costs. Until ttl has passed, 0 < ttl ≤
// MaxReservation, Settle can give back what was not used, and charge what was used beyond the estimate. Let ttl be
// longer than the request can take with all its retries.
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
	err := fmt.Errorf("%w: its time is %s, want more than 0 and at most %s", ErrReservation, ttl, MaxReservation)
	l.mistakes.log(l.c.Log, err)
	return refusal(err)
}

// reserved returns the reservation of an allowed request. It also covers the limits of which the request spends nothing
// so far: it may turn out to use some.
func (l *Limiter) reserved(a *authorizer.Answer, req *authorizer.Request, ttl time.Duration) Reservation {
	part, units := a.Receipt()
	places := l.places.Take(part)
	part.KeepFor(ttl)
	res := &reservation{limiter: l, request: *req, units: units, costs: Costs{}, parts: []*limit.Receipt{part},
		places: places}
	for unit, n := range req.Costs {
		res.costs[unit] = n
	}
	return Reservation{res}
}

// Reservation returns what the decision has charged, if [Request.ReserveFor] is set, or if the request takes a place of
// a limit with concurrency: see [Limiter.Hold].
func (d *Decision) Reservation() Reservation { return d.reservation }

// Hold keeps the places that a request has taken of limits with concurrency, while the request is served: it renews
// them every quarter of the shortest holdFor. Call release when the request has ended, also after a panic. It gives the
// places back, as Settle and Cancel do, and changes nothing else of the reservation. A release that fails is made again
// until holdFor is over. If r has no places, Hold does nothing.
//
// The middlewares call Hold for each request. If nobody does, the places come free after holdFor.
func (l *Limiter) Hold(r Reservation) (release func()) {
	if r.inner == nil {
		return func() {}
	}
	return r.inner.places.Hold()
}

// Settle corrects what each limit was charged to what the request used of its unit. Unused units are given back, unless
// the window in which they were charged is over. Units beyond the estimate are charged now, even if the limit is then
// exceeded. A unit that is not named keeps its estimate. The unit "requests" cannot be named: only [Limiter.Cancel]
// gives requests back. Places of limits with concurrency come back in any case. What ipLimits have counted changes by
// neither. A reservation is settled once.
//
// The error wraps ErrCost if used has an invalid unit, a number outside 0..2^40, requests or concurrent-requests;
// ErrReservationEnded if the time of the reservation is over; or else ErrReservation.
func (l *Limiter) Settle(ctx context.Context, r Reservation, used Costs) (Settlement, error) {
	if err := plan.CheckCosts(0, used); err != nil {
		return Settlement{}, fmt.Errorf("%w: %w", ErrCost, err)
	}
	for _, unit := range []string{limit.Requests, limit.ConcurrentRequests} {
		if _, named := used[unit]; named {
			return Settlement{}, fmt.Errorf("%w: costs: %s are given back by Cancel, and not settled", ErrCost, unit)
		}
	}
	return l.measuredEnd(ctx, r, func(res *reservation) [][]int64 { return res.split(used) })
}

// Cancel gives everything back that the reservation has charged and that still counts. It is for requests that have
// used nothing. Its errors are those of Settle.
func (l *Limiter) Cancel(ctx context.Context, r Reservation) (Settlement, error) {
	return l.measuredEnd(ctx, r, func(res *reservation) [][]int64 { return make([][]int64, len(res.parts)) })
}

// measuredEnd is end, with its duration in the metrics.
func (l *Limiter) measuredEnd(
	ctx context.Context, r Reservation, use func(*reservation) [][]int64,
) (Settlement, error) {
	began := time.Now()
	out, err := l.end(ctx, r, use)
	if l.measured == nil || r.inner == nil {
		return out, err
	}
	result := "settled"
	switch {
	case errors.Is(err, ErrReservationEnded):
		result = "ended"
	case err != nil:
		result = "failed"
	case out.Repeated:
		result = "repeated"
	}
	l.measured.settled.At(result).Observe(time.Since(began))
	return out, err
}

// end settles each part of a reservation. use returns what was used, for each entry of each part; nil for a part of
// which nothing was used.
func (l *Limiter) end(ctx context.Context, r Reservation, use func(*reservation) [][]int64) (Settlement, error) {
	res := r.inner
	if res == nil {
		return Settlement{}, nil
	}
	res.mu.Lock()
	defer res.mu.Unlock()
	if err := l.prepare(ctx, res); err != nil {
		return Settlement{}, err
	}
	res.settling = true
	out := Settlement{Repeated: res.ended, Returned: map[string]int64{}, Charged: map[string]int64{},
		Uncharged: map[string]int64{}}
	if res.ended {
		return out, nil
	}
	places, unreleased := res.places.Release(ctx)
	for id, n := range places {
		largest(out.Returned, id, n)
	}
	used, before := use(res), len(res.parts) > 0
	for i, part := range res.parts {
		s, err := l.store.Settle(ctx, part, used[i], l.c.Now())
		if err == nil && s.Expired {
			return out, ErrReservationEnded
		}
		if err != nil {
			return out, fmt.Errorf("%w: %w", ErrReservation, err)
		}
		before = before && s.Repeated
		for j, e := range part.Entries() {
			id := e.Tier.Limit().ID
			largest(out.Returned, id, s.Returned[j])
			largest(out.Charged, id, s.Charged[j])
			largest(out.Uncharged, id, s.Uncharged[j])
		}
	}
	if unreleased != nil {
		return out, fmt.Errorf("%w: %w", ErrReservation, unreleased)
	}
	res.ended, out.Repeated = true, before
	return out, nil
}

// prepare is called before each change. It checks that the reservation is of this limiter, and the limiter open, and
// ends an update that did not end.
func (l *Limiter) prepare(ctx context.Context, res *reservation) error {
	switch {
	case res.limiter != l:
		return fmt.Errorf("%w: it is of another limiter", ErrReservation)
	case l.closed.Load():
		return fmt.Errorf("%w: %w", ErrReservation, ErrClosed)
	case res.lowering != nil:
		return l.giveBack(ctx, res, res.lowering)
	}
	return nil
}

func largest(of map[string]int64, id string, units int64) {
	if units > of[id] {
		of[id] = units
	}
}

// split divides what was used of each unit between the parts that have charged the same counter, the first part first,
// and returns it for each entry of each part. The last part gets all that is left, also beyond what it has charged. Of
// a unit that is not named, all that was charged counts as used.
func (s *reservation) split(used Costs) [][]int64 {
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

// Update makes the reservation cover total, renews its places, and lets it last for ttl from now on. Units that are
// more than before are charged like those of a request, all or none: the Decision says whether they were. If they were
// not, the reservation stays as it was. Units that are less are given back. A unit that is not named stays as it is.
//
// Only units that the estimate has named can be changed: the limits of others were charged what the plan says. A unit
// that no limit of the plan has is ignored. Before more is charged, the caller is identified again, so a token that has
// expired since then is refused.
//
// The Decision has only Allowed and Reason if no more was asked for. The error wraps ErrCost for bad costs,
// ErrReservationEnded if the reservation was settled or its time is over, or else ErrReservation.
func (l *Limiter) Update(ctx context.Context, r Reservation, total Costs, ttl time.Duration) (Decision, error) {
	res := r.inner
	if err := plan.CheckCosts(0, total); err != nil {
		return Decision{}, fmt.Errorf("%w: %w", ErrCost, err)
	}
	if ttl <= 0 || ttl > MaxReservation {
		return Decision{}, l.badTime(ttl).Err
	}
	if res == nil {
		return Decision{}, fmt.Errorf("%w: the request was denied, and reserved nothing", ErrReservation)
	}
	res.mu.Lock()
	defer res.mu.Unlock()
	now := l.c.Now()
	if res.settling || res.over(now) {
		return Decision{}, ErrReservationEnded
	}
	if err := l.prepare(ctx, res); err != nil {
		return Decision{}, err
	}
	more, less, err := res.changes(total)
	if err != nil {
		return Decision{}, err
	}
	d := Decision{Allowed: true, Reason: Reason(answer.Allowed.String())}
	if more != nil {
		if d, err = l.reserveMore(ctx, res, more); !d.Allowed || err != nil {
			return d, err
		}
	}
	if err := res.places.Renew(ctx); err != nil {
		return d, fmt.Errorf("%w: %w", ErrReservation, err)
	}
	for _, part := range res.parts {
		part.KeepFor(time.Duration(max(now.UnixMicro()-part.Issued(), 0))*time.Microsecond + ttl)
	}
	if len(less) > 0 {
		err = l.giveBack(ctx, res, less)
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
	more, less = Costs{limit.ConcurrentRequests: 0}, Costs{}
	for unit := range s.units {
		more[unit] = 0
	}
	isMore := false
	for unit, n := range total {
		_, counted := more[unit]
		before, named := s.costs[unit]
		switch {
		case unit == limit.ConcurrentRequests:
			return nil, nil, fmt.Errorf("%w: %s cannot be changed: a request has one place", ErrCost, unit)
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
func (l *Limiter) reserveMore(ctx context.Context, res *reservation, more Costs) (Decision, error) {
	req := res.request
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
			res.costs[unit] += n
		}
	}
	res.parts = append(res.parts, d.reservation.inner.parts...)
	d.reservation = Reservation{res}
	return d, nil
}

// giveBack gives back units of the reservation until it has no more than the given totals. A receipt is settled once,
// so a new one for the rest takes the place of each that has given units back. After an error nobody knows what the
// store has done. The same totals must then be given back before anything else: see prepare.
func (l *Limiter) giveBack(ctx context.Context, res *reservation, totals Costs) error {
	res.lowering = totals
	for i, used := range res.split(totals) {
		part, unused := res.parts[i], false
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
		res.parts[i] = part.Rest(rand.Uint64(), used, s.Returned)
	}
	for unit, n := range totals {
		res.costs[unit] = n
	}
	res.lowering = nil
	return nil
}
