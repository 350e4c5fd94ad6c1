package sluice

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// held returns the shortest and the longest holdFor of the places that a decision has taken; 0 if it took none.
func held(d *limit.Decision) (shortest, longest time.Duration) {
	if d == nil {
		return 0, 0
	}
	for i := range d.Results {
		if r := &d.Results[i]; r.Limit().Unit == limit.ConcurrentRequests && r.Charged > 0 {
			if longest = max(longest, r.Tier.Period); shortest == 0 || r.Tier.Period < shortest {
				shortest = r.Tier.Period
			}
		}
	}
	return shortest, longest
}

func isPlace(e limit.ReceiptEntry) bool { return e.Tier.Limit().Unit == limit.ConcurrentRequests }

// Hold keeps the places that a request has taken of limits with concurrency, while the request is served: it renews
// them every third of the shortest holdFor. Call release when the request has ended, also after a panic. It gives the
// places back, unless Settle or Cancel have done so, and changes nothing else of the reservation. A failure is logged:
// the places then come free after holdFor. If r has no places, Hold does nothing.
//
// The middlewares call Hold for each request. If nobody does, the places come free after holdFor.
func (l *Limiter) Hold(r Reservation) (release func()) {
	res := r.inner
	if res == nil || res.hold == 0 {
		return func() {}
	}
	h := &holding{limiter: l, reservation: r}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timer = time.AfterFunc(res.hold/renewals, h.renew)
	return h.release
}

// renewals is how many times places are renewed within holdFor. Two failures in a row lose no place.
const renewals = 3

// holding is one call of Hold.
type holding struct {
	limiter     *Limiter
	reservation Reservation

	mu       sync.Mutex
	timer    *time.Timer
	released bool
}

func (h *holding) renew() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released {
		return
	}
	res := h.reservation.inner
	res.mu.Lock()
	ttl, ends := res.ttl, res.settling
	res.mu.Unlock()
	if ends {
		return
	}
	if _, err := h.limiter.Update(context.Background(), h.reservation, nil, ttl); err != nil {
		h.limiter.c.Log.Warn("the place of a request in flight was not renewed", "error", err)
	}
	h.timer.Reset(res.hold / renewals)
}

func (h *holding) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released {
		return
	}
	h.released = true
	h.timer.Stop()
	if err := h.limiter.releasePlaces(h.reservation.inner); err != nil {
		h.limiter.c.Log.Warn("the place of a request that has ended was not given back; it comes free after holdFor",
			"error", err)
	}
}

// releasePlaces gives the places of a reservation back, unless it was settled.
func (l *Limiter) releasePlaces(res *reservation) error {
	res.mu.Lock()
	defer res.mu.Unlock()
	if res.settling {
		return nil
	}
	if err := l.prepareToChange(context.Background(), res); err != nil {
		return err
	}
	return l.giveBackPlaces(context.Background(), res, 0)
}

// renew charges each place of the reservation anew, and gives the old one back. A place that was charged twice because
// the second step failed is given back with the next renewal.
func (l *Limiter) renew(ctx context.Context, res *reservation) error {
	req := limit.Request{}
	seen := map[limit.Counter]bool{}
	for _, part := range res.parts {
		req.Owner = part.Owner()
		for _, e := range part.Entries() {
			if c := e.Counter(); isPlace(e) && e.Units > 0 && !seen[c] {
				seen[c] = true
				req.Charges = append(req.Charges,
					limit.Charge{Limit: e.Tier.Limit().Renewal(), Value: c.Value, Cost: 1})
			}
		}
	}
	if len(req.Charges) == 0 {
		return nil
	}
	var d limit.Decision
	if err := l.store.Decide(ctx, &req, l.c.Now(), &d); err != nil {
		return fmt.Errorf("%w: %w", ErrReservation, err)
	}
	if !d.Allowed { // the store is away, and a limit is closed then
		return fmt.Errorf("%w: its places were not renewed", ErrReservation)
	}
	res.parts = slices.Insert(res.parts, 0, d.Receipt()) // split gives what is left to the first part
	return l.giveBackPlaces(ctx, res, 1)
}

// giveBackPlaces gives back all but so many of the places of the reservation in each counter.
func (l *Limiter) giveBackPlaces(ctx context.Context, res *reservation, left int64) error {
	if err := l.giveBack(ctx, res, Costs{limit.ConcurrentRequests: left}); err != nil {
		return err
	}
	res.parts = slices.DeleteFunc(res.parts, func(part *limit.Receipt) bool {
		return !slices.ContainsFunc(part.Entries(), func(e limit.ReceiptEntry) bool {
			return !isPlace(e) || e.Units > 0
		})
	})
	return nil
}
