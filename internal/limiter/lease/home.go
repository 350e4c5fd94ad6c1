package lease

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// A home quota is a quota that another cell keeps, its home cell. A call to the home cell may take 100 ms, so a lease
// of a home quota lives longer than others.

// isHomeQuota reports whether the tier is of a home quota. Only quotas may be leased for long: they move to another
// home cell between two periods, when all leases have ended. Other limits move as soon as the longest lease of a rate
// has ended (shares.Settings.Lease).
func isHomeQuota(t *limit.Tier) bool { return t.Limit().Home != "" && t.Calendar != nil }

// lifeOf returns the longest life of a lease of the counter, µs.
func (s *Store) lifeOf(c *counter) int64 {
	if c.isHomeQuota {
		return HomeLife.Microseconds()
	}
	return s.life
}

// leasingSuspended reports whether the last call to the store that keeps the counter has failed.
func (s *Store) leasingSuspended(c *counter) bool { return s.callFailed(c.tier.Limit().Home).Load() }

// mayBeLost reports whether the last call to a store that keeps one of the call's counters has failed. The store may
// then keep its reply to this call, which it does only for requests with leases.
func (c *call) mayBeLost() bool {
	return slices.ContainsFunc(c.tiers, func(tc tierCall) bool { return c.store.leasingSuspended(tc.counter) })
}

// callFailed returns the flag of a home cell, or of the cell's own store if home is empty.
func (s *Store) callFailed(home string) *atomic.Bool {
	if home == "" {
		return &s.lastCallFailed
	}
	flag, ok := s.homeCallFailed.Load(home)
	if !ok {
		flag, _ = s.homeCallFailed.LoadOrStore(home, new(atomic.Bool))
	}
	return flag.(*atomic.Bool)
}

// noteOutcome notes whether the store that the call asked is in reach: the home cell, if the call asked something of a
// limit that a home cell keeps, or else the cell's own store. An error by which the store answered tells that it is. A
// call that its caller gave up tells nothing.
func (c *call) noteOutcome(ctx context.Context, err error) {
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	home := ""
	for i := range c.tiers {
		tc := &c.tiers[i]
		if h := tc.tier.Limit().Home; h != "" && (tc.need > 0 || *c.leaseRequest(i) != noLease) {
			home = h
			break
		}
	}
	c.store.callFailed(home).Store(err != nil && !limit.Answered(err))
}
