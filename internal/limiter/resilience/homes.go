package resilience

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/lease"
	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/store/router"
)

// beatFor is how long after its last use a home still counts this instance: longer than leases from it live. It keeps the
// connection open, too: a new one takes three times as long as a call, and homes are far.
const beatFor = 2 * lease.DefaultHomeLife

// home is another cell whose counters keep limits.
type home struct {
	limit.Store // with its breaker

	fleet *Instances
	used  atomic.Int64 // when it was last asked, ns since 1970; 0: never
}

// Decide notes that the home is in use.
func (h *home) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	h.used.Store(now.UnixNano())
	return h.Store.Decide(ctx, req, now, d)
}

// AcceptsPlan asks the store beneath. See [limit.PlanAccepter].
func (h *home) AcceptsPlan(all []*limit.Limit, together ...[]*limit.Limit) error {
	return limit.AcceptsPlan(h.Store, all, together...)
}

// beat says to the home that this instance leases from it, while it does.
func (h *home) beat(ctx context.Context, now time.Time) {
	if used := h.used.Load(); used != 0 && now.UnixNano()-used < int64(beatFor) {
		_ = h.fleet.Announce(ctx, now) // what fails is seen where requests are decided
	}
}

// addHomes puts the counters of other cells over those of this one.
func (l *Chain) addHomes(c *ChainConfig, below, quotas limit.Store) (limit.Store, error) {
	if len(c.Homes) == 0 {
		return below, nil
	}
	most := max(c.MaxInstances, 1) * (1 + len(c.Homes))
	var err error
	if l.quotas, err = NewInstances(InstancesConfig{Store: quotas, Max: most, Quotas: true}); err != nil {
		return nil, fmt.Errorf("ladder: %w", err)
	}
	l.homes = make(map[string]*home, len(c.Homes))
	stores := make(map[string]limit.Store, len(c.Homes))
	for _, cell := range slices.Sorted(maps.Keys(c.Homes)) {
		h := &home{}
		if h.Store, err = l.guard(c, c.Homes[cell]); err != nil {
			return nil, fmt.Errorf("home %s: %w", cell, err)
		}
		if h.fleet, err = NewInstances(InstancesConfig{Store: h.Store, Max: most, Quotas: true}); err != nil {
			return nil, fmt.Errorf("ladder: home %s: %w", cell, err)
		}
		l.homes[cell], stores[cell] = h, h
	}
	if l.away, err = router.NewHomes(router.HomesConfig{Cell: c.Cell, Own: below, Homes: stores}); err != nil {
		return nil, fmt.Errorf("ladder: %w", err)
	}
	return l.away, nil
}

// instancesOf is how many instances share what keeps the limit, as far as is known.
func (l *Chain) instancesOf(of *limit.Limit) int {
	switch {
	case l.quotas == nil || of.Home == "" && !router.IsQuota(of):
	case of.Home == "" || of.Home == l.cell:
		return l.quotas.Count()
	case l.homes[of.Home] != nil:
		return l.homes[of.Home].fleet.Count()
	}
	return l.Instances.Count()
}

// beatHomes counts this instance among those that share quotas, and what else is kept for several cells.
func (l *Chain) beatHomes(ctx context.Context, now time.Time) {
	if l.quotas == nil {
		return
	}
	var all sync.WaitGroup
	for _, h := range l.homes {
		all.Go(func() { h.beat(ctx, now) })
	}
	_ = l.quotas.Announce(ctx, now) // as in home.beat
	all.Wait()
}

// runHomes is beatHomes until ctx ends. Without homes there is nothing to do.
func (l *Chain) runHomes(ctx context.Context) {
	if l.quotas == nil {
		return
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		l.beatHomes(ctx, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
