package resilience

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/lease"
	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/store/router"
)

// homeUsedFor is how long after its last use a home still counts this instance. It is twice as long as leases from the
// home live, so an instance that holds any is counted. It also keeps the connection open: homes are far away, and a
// call that must open a new connection takes three times as long.
const homeUsedFor = 2 * lease.DefaultHomeLife

var _ router.Guard = (*home)(nil)

// home is another cell whose counters keep limits: the guard of its store, which also notes when the store is used.
type home struct {
	*Breaker

	instances *Instances
	lastUsed  atomic.Int64 // when the store was last asked to decide, ns since 1970; 0: never
}

// Decide notes that the home is in use, and makes the call. See [router.Guard].
func (h *home) Decide(ctx context.Context, s limit.Store, req *limit.Request, now time.Time, d *limit.Decision) error {
	h.lastUsed.Store(now.UnixNano())
	return h.Breaker.Decide(ctx, s, req, now, d)
}

// announce tells the home that this instance leases from it, while it does.
func (h *home) announce(ctx context.Context, now time.Time) {
	if used := h.lastUsed.Load(); used != 0 && now.UnixNano()-used < int64(homeUsedFor) {
		_ = h.instances.Announce(ctx, now) // what fails is seen where requests are decided
	}
}

// instancesOf returns how many instances share the store that counts the limit, as far as is known.
func (c *Chain) instancesOf(of *limit.Limit) int {
	switch {
	case c.quotaInstances == nil || of.Home == "" && !router.IsQuota(of):
	case of.Home == "" || of.Home == c.cell:
		return c.quotaInstances.Count()
	case c.homes[of.Home] != nil:
		return c.homes[of.Home].instances.Count()
	}
	return c.Instances.Count()
}

// announceToHomes counts this instance among those that share quotas and other limits that are kept for several cells.
func (c *Chain) announceToHomes(ctx context.Context, now time.Time) {
	if c.quotaInstances == nil {
		return
	}
	var all sync.WaitGroup
	for _, h := range c.homes {
		all.Go(func() { h.announce(ctx, now) })
	}
	_ = c.quotaInstances.Announce(ctx, now) // what fails is seen where requests are decided
	all.Wait()
}

// runHomes announces this instance to the homes, once a second as far as that is due, until ctx ends. Without homes
// there is nothing to do.
func (c *Chain) runHomes(ctx context.Context) {
	if c.quotaInstances == nil {
		return
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		c.announceToHomes(ctx, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
