package lease

import (
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/singleflight"
)

// Times of prefetches. They follow from the 100 ms that a call to a home cell may take.
const (
	prefetchCheckEvery = 50_000          // µs; a counter is checked twice while one call lasts
	prefetchPause      = 250_000         // µs after a call began: then four calls a second at most
	prefetchBeforeEnd  = 1_000_000       // µs; a lease that ends so soon counts as spent: ten calls fit into the rest
	prefetchDeadline   = 2 * time.Second // twenty times what a call takes; nobody waits longer than its context lets it
	prefetchCost       = 1               // units; of the request that a prefetch stands for, which needs none of them
)

// prefetchQuotas begins a call, with [Config.Prefetch], for each home quota of the request of which the rule leases
// more before a request lacks it. The caller holds the shard's lock.
func (o *ownerLeases) prefetchQuotas(req *limit.Request, now time.Time) {
	s := o.shard.store
	if !s.config.Prefetch {
		return
	}
	for i := range req.Charges {
		charge := &req.Charges[i]
		if !isHomeQuota(&charge.Limit.Tiers[0]) || !s.mayLease(charge.Limit) {
			continue
		}
		at := requestTime{now, clock.At(now)}
		t := o.shard.clock.At(at.instant)
		sent := t - o.shard.clock.Behind(at.instant) // earlier than t if the request has made a call of its own
		c := s.calls.Get().(*call)
		c.store, c.owner = s, o
		if !c.preparePrefetch(charge, at, t) {
			c.release()
			continue
		}
		o.shard.stats.Calls++
		s.background.Go(func() { c.runPrefetch(at, sent) })
	}
}

// preparePrefetch writes the call for one limit, and reports whether it is to be made.
func (c *call) preparePrefetch(charge *limit.Charge, at requestTime, t int64) bool {
	s, o := c.store, c.owner
	c.tiers = c.tiers[:0]
	c.storeRequest = limit.Request{Owner: o.owner, Leases: c.storeRequest.Leases[:0]}
	wanted := false
	for j := range charge.Limit.Tiers {
		counter := o.findCounter(&charge.Limit.Tiers[j], charge.Value, j)
		if counter == nil || counter.tier != &charge.Limit.Tiers[j] || !s.mayPrefetch(counter, t) {
			return false
		}
		counter.prefetchAt = t + prefetchCheckEvery
		v := o.viewOf(counter, t, prefetchCost, 0)
		v.MustFit = true // a ramp is for a request that would be denied without it
		if counter.until-t < prefetchBeforeEnd {
			v.Spendable = 0
		}
		var ask limit.LeaseRequest
		s.config.Rule.SizeLease(&v, &ask)
		wanted = wanted || ask.Largest() > 0
		c.tiers = append(c.tiers, tierCall{
			counter: counter, tier: counter.tier, cost: prefetchCost, mayLease: true,
			leaseAt: counter.lease.At, leaseUntil: counter.until,
		})
		c.storeRequest.Leases = append(c.storeRequest.Leases, ask)
	}
	if !wanted {
		return false
	}
	c.storeRequest.Charges = []limit.Charge{{Limit: charge.Limit, Value: charge.Value, Cost: prefetchCost}}
	c.flight, c.flightCounters = singleflight.Begin(at.instant, nil), c.flightCounters[:0]
	for j := range c.tiers {
		tc := &c.tiers[j]
		if t >= tc.counter.until {
			tc.returnLease(&c.storeRequest.Leases[j], &c.owner.shard.stats)
		}
		tc.counter.flight, tc.counter.prefetchAt = c.flight, t+prefetchPause
		c.flightCounters = append(c.flightCounters, tc.counter)
	}
	return true
}

func (s *Store) mayPrefetch(c *counter, t int64) bool {
	return c.flight == nil && t >= c.prefetchAt && t >= c.denial.until && !c.lease.Other() && !s.leasingSuspended(c)
}

// runPrefetch makes the call. sent is the time from which its leases are counted.
func (c *call) runPrefetch(at requestTime, sent int64) {
	defer c.release()
	ctx, cancel := c.store.config.Runtime.WithTimeout(c.store.prefetching, prefetchDeadline)
	defer cancel()
	began := at.instant
	at, err := c.callStore(ctx, at)
	c.owner.shard.mu.Lock()
	defer c.owner.shard.mu.Unlock()
	c.noteOutcome(ctx, err)
	if t := c.owner.shard.clock.At(at.instant); err != nil {
		c.putBackReserved(t)
		c.noteLost(err, began)
	} else {
		c.storeReply(sent, t)
	}
	c.completeFlight(err)
}
