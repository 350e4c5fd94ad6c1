package lease

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

// back is units of one owner's leases on their way to the store.
type back struct {
	req   limit.Request
	units int64
}

// mostBack is how many limits one call gives back to: one with a counter for each of many values would be too large.
const mostBack = 25

// takes reports whether the call can give back to the counter, too: after a change of the plan two limits may share one.
func (b *back) takes(k *counter) bool {
	l := k.tier.Limit()
	for i := range b.req.Charges {
		if c := &b.req.Charges[i]; c.Limit.ID == l.ID && c.Value == k.value {
			return c.Limit == l
		}
	}
	return len(b.req.Charges) < mostBack
}

// add puts units of one counter into the call, taken out of the hand.
func (b *back) add(k *counter, t, units int64) {
	i, first := -1, 0
	for c := range b.req.Charges {
		if x := &b.req.Charges[c]; x.Limit == k.tier.Limit() && x.Value == k.value {
			i = first
			break
		}
		first += len(b.req.Charges[c].Limit.Tiers)
	}
	if i < 0 {
		i = len(b.req.Leases)
		b.req.Charges = append(b.req.Charges, limit.Charge{Limit: k.tier.Limit(), Value: k.value, Cost: 1})
		b.req.Leases = append(b.req.Leases, make([]limit.LeaseRequest, len(k.tier.Limit().Tiers))...)
	}
	for j := range k.tier.Limit().Tiers {
		if &k.tier.Limit().Tiers[j] == k.tier {
			b.req.Leases[i+j].Correction, b.req.Leases[i+j].CorrectionAt = -units, k.lease.At
		}
	}
	if k.locked > 0 { // what has not come free goes first
		k.locked = max(k.lockedAt(t)-units, 0)
		k.from = max(k.from, t)
		k.to = max(k.to, k.from+1)
	}
	k.lease.Units -= units
	b.units += units
}

// excess is what of the lease is not going to be used, by all that is known: only where units are scarce, for there they
// are missing elsewhere.
func (k *counter) excess(h *holder, s *Store, t int64) int64 {
	if t >= k.until || k.lease.Units == 0 || k.lease.At == 0 || k.flight != nil || k.lease.Other() {
		return 0
	}
	v := k.view(h, s, t, 1, 0)
	total := max(v.Total, v.Rate)
	if float64(v.Left) >= 2*total*v.Remains.Seconds() {
		return 0
	}
	rate := v.Rate
	if gone := t - k.demand.last; gone > 0 { // so long without a request is news
		rate = min(rate, 2e6/float64(gone))
	}
	expect := rate * min(v.Remains.Seconds(), lookAhead.Seconds())
	excess := k.lease.Units - units(expect+math.Sqrt(expect))
	if excess < 2 || excess < k.tier.Capacity()/lookParts { // not worth a call
		return 0
	}
	return excess
}

const lookParts = 50

const lookAhead = 1500 * time.Millisecond

// lookOften gives back what is not going to be used, again and again.
func (s *Store) lookOften(ctx context.Context) {
	tick := time.NewTicker(s.c.Look)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.Look(ctx, s.c.Clock())
		}
	}
}

// Look gives back what is not going to be used, once. The store does so by itself, unless Config.Look is below 0.
func (s *Store) Look(ctx context.Context, now time.Time) {
	for i := range s.shards {
		sh := &s.shards[i]
		for _, b := range s.collect(sh, now, (*counter).excess) {
			if ctx.Err() != nil {
				return
			}
			_ = s.giveBack(ctx, sh, b, now) // what cannot be given back is lost, and counted as such
		}
	}
}

// collect takes units out of the hands of a shard, a call for each owner.
func (s *Store) collect(sh *shard, now time.Time, of func(k *counter, h *holder, s *Store, t int64) int64) []*back {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	var calls []*back
	at := clock.At(now)
	sh.each(func(h *holder) {
		var b *back
		t := h.clock.At(at)
		for _, k := range h.counters {
			units := of(k, h, s, t)
			if units <= 0 {
				continue
			}
			if b == nil || !b.takes(k) {
				b = &back{req: limit.Request{Owner: h.owner}}
				calls = append(calls, b)
			}
			b.add(k, t, units)
		}
	})
	return calls
}

func (s *Store) giveBack(ctx context.Context, sh *shard, b *back, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, returnWithin)
	defer cancel()
	var d limit.Decision
	err := s.c.Store.Decide(ctx, &b.req, now, &d)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.stats.Returns++
	if err == nil && !d.Allowed {
		err = errAnswer
	}
	if err != nil {
		sh.stats.Lost += b.units
		return fmt.Errorf("lease store: %d units are lost: %w", b.units, err) // whose, no log is to have
	}
	sh.stats.Returned += b.units
	return nil
}

const (
	returning = 8 // calls at a time when all is given back
	told      = 3 // of the errors of those, in full; thousands may fail for one reason
)

// returnAll gives back everything.
func (s *Store) returnAll(ctx context.Context) error {
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	failed := 0
	free := make(chan struct{}, returning)
	now := s.c.Clock()
	for i := range s.shards {
		sh := &s.shards[i]
		for _, b := range s.collect(sh, now, func(k *counter, _ *holder, _ *Store, _ int64) int64 {
			if k.lease.At == 0 || k.lease.Other() {
				return 0
			}
			return k.lease.Units
		}) {
			free <- struct{}{}
			all.Go(func() {
				defer func() { <-free }()
				if err := s.giveBack(ctx, sh, b, now); err != nil {
					mu.Lock()
					if failed++; failed <= told {
						errs = append(errs, err)
					}
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	if failed > told {
		errs = append(errs, fmt.Errorf("lease store: %d returns more failed", failed-told))
	}
	return errors.Join(errs...)
}
