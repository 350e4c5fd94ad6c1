package lease

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

// What another cell keeps of a quota may be 100 ms away, so it is asked seldom, for a longer time, and ahead of need.
const (
	aheadEvery = 50_000       // µs; how often to look whether a counter is to be leased ahead,
	aheadPause = 250_000      // µs; and how soon after a call that did
	aheadEnds  = 1_000_000    // µs; what ends so soon is not there any more
	aheadIn    = returnWithin // deadline of such a call, for which nobody need wait
	nobodys    = int64(1)     // the cost that it is about
)

// lifeOf is the longest life of a lease of the counter, µs.
func (s *Store) lifeOf(k *counter) int64 {
	if k.far {
		return s.homeLife
	}
	return s.life
}

// silence is whether nobody answered, of those that the call asks something of: the cell's own store, or a home.
func (s *Store) silence(a *ask) *atomic.Bool {
	for i := range a.tiers {
		x := &a.tiers[i]
		if home := x.tier.Limit().Home; home != "" && (x.need > 0 || *a.ahead(i) != nothing) {
			return s.silenceOf(home)
		}
	}
	return &s.silent
}

// heard notes whether the store that the call asked was in reach. What it answered of this one request is nobody else's affair,
// and neither is a call that its caller gave up.
func (s *Store) heard(ctx context.Context, a *ask, err error) {
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	s.silence(a).Store(err != nil && !limit.Answered(err))
}

func (s *Store) silenceOf(home string) *atomic.Bool {
	if home == "" {
		return &s.silent
	}
	known, ok := s.homeless.Load(home)
	if !ok {
		known, _ = s.homeless.LoadOrStore(home, new(atomic.Bool))
	}
	return known.(*atomic.Bool)
}

func (s *Store) isSilent(k *counter) bool { return s.silenceOf(k.tier.Limit().Home).Load() }

// isFar reports whether the tier is of a quota that another cell keeps. Its leases may live longer than others, since
// a quota moves only between its periods. A rate moves once the longest lease of a rate has ended
// (shares.Settings.Lease).
func isFar(t *limit.Tier) bool { return t.Limit().Home != "" && t.Calendar != nil }

// leaseAhead begins, with Config.Leases, a call for each quota of the request that another cell keeps and of which, by
// the rule, more is to be leased before one lacks it. The caller holds the shard's lock.
func (s *Store) leaseAhead(h *holder, sh *shard, req *limit.Request, now time.Time) {
	if !s.c.Ahead {
		return
	}
	for i := range req.Charges {
		c := &req.Charges[i]
		if !isFar(&c.Limit.Tiers[0]) || !s.leases(c.Limit) {
			continue
		}
		at := clock.At(now)
		t := h.clock.At(at)
		asOf := t - h.clock.Behind(at) // the request may have waited for a call of its own
		a := s.asks.Get().(*ask)
		if !h.prepareAhead(s, t, c, a) {
			s.release(a)
			continue
		}
		a.req.Owner, a.req.Charges = req.Owner, []limit.Charge{{Limit: c.Limit, Value: c.Value, Cost: nobodys}}
		sh.stats.Calls++
		s.looking.Go(func() { s.callAhead(h, sh, a, now, at, asOf) })
	}
}

// prepareAhead writes the call for one limit, and reports whether there is to be one.
func (h *holder) prepareAhead(s *Store, t int64, c *limit.Charge, a *ask) bool {
	a.tiers, a.flights, a.req.Leases = a.tiers[:0], a.flights[:0], a.req.Leases[:0]
	wanted := false
	for j := range c.Limit.Tiers {
		k := h.counter(&c.Limit.Tiers[j], c.Value, j)
		if k == nil || k.tier != &c.Limit.Tiers[j] || k.flight != nil || t < k.lookAt || t < k.denial.until || k.lease.Other() || s.isSilent(k) {
			return false
		}
		k.lookAt = t + aheadEvery
		v := k.view(h, s, t, nobodys, 0)
		v.MustFit = true // a ramp is for who is denied else
		if k.until-t < aheadEnds {
			v.Free = 0
		}
		var ahead limit.LeaseRequest
		s.c.Rule.Ask(&v, &ahead)
		wanted = wanted || ahead.Largest() > 0
		a.tiers = append(a.tiers, asked{k: k, tier: k.tier, leased: true, at: k.lease.At, until: k.until})
		a.req.Leases = append(a.req.Leases, ahead)
	}
	if !wanted {
		return false
	}
	f := &flight{done: make(chan struct{})}
	for j := range a.tiers {
		x := &a.tiers[j]
		if t >= x.k.until {
			x.k.rideBack(x, &a.req.Leases[j])
		}
		x.k.flight, x.k.lookAt = f, t+aheadPause
		a.flights = append(a.flights, x.k)
	}
	return true
}

// callAhead makes the call that prepareAhead wrote, as of asOf.
func (s *Store) callAhead(h *holder, sh *shard, a *ask, now time.Time, at clock.Instant, asOf int64) {
	defer s.release(a)
	ctx, cancel := context.WithTimeout(s.ahead, aheadIn)
	defer cancel()
	sent := s.c.Clock()
	err := s.c.Store.Decide(ctx, &a.req, now, &a.reply)
	received := at.Advance(clock.At(sent), clock.At(s.c.Clock()))
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if err == nil {
		err = a.check()
	}
	s.heard(ctx, a, err)
	arrived := h.clock.At(received)
	if err != nil {
		h.setBack(sh, arrived, a)
	} else {
		h.receive(sh, s, asOf, arrived, a)
	}
	a.land(err, false)
}
