package resilience

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
)

// homeAnnouncedFor is how long after its last request to a home an instance goes on announcing itself there. It is
// twice the life of a lease from a home, so each instance that holds such a lease is counted. Announcing also keeps the
// connection open: homes are far away, and a call that has to open a connection takes three times as long.
const homeAnnouncedFor = 2 * lease.HomeLife

var _ router.Guard = (*home)(nil)

// home is the guard of another cell's store, from which this instance leases. It also keeps when the store was used.
type home struct {
	*guard

	instances *Instances
	lastUsed  atomic.Int64 // when a decision last called the store, ns since 1970; 0: never
}

// Decide keeps the time and makes the call as [guard.Decide] does. See [router.Guard].
func (h *home) Decide(ctx context.Context, s limit.Store, req *limit.Request, now time.Time, d *limit.Decision) error {
	h.lastUsed.Store(now.UnixNano())
	return h.guard.Decide(ctx, s, req, now, d)
}

// announce counts this instance in the home's store, if it has used the store lately.
func (h *home) announce(ctx context.Context, now time.Time) {
	if used := h.lastUsed.Load(); used != 0 && now.UnixNano()-used < int64(homeAnnouncedFor) {
		_ = h.instances.Announce(ctx, now) // a store that fails is noticed by the next decision
	}
}

// instancesOf returns how many instances share the store that counts the limit, as far as is known.
func (c *Chain) instancesOf(l *limit.Limit) int {
	switch {
	case c.quotaInstances == nil || l.Home == "" && !router.IsQuota(l):
	case l.Home == "" || l.Home == c.cell:
		return c.quotaInstances.Count()
	case c.homes[l.Home] != nil:
		return c.homes[l.Home].instances.Count()
	}
	return c.Instances.Count()
}

// announceToHomes counts this instance in this cell's own quota store and in the homes, among the instances of all
// cells. Without homes it does nothing.
func (c *Chain) announceToHomes(ctx context.Context, now time.Time) {
	if c.quotaInstances == nil {
		return
	}
	var all sync.WaitGroup
	for _, h := range c.homes {
		all.Go(func() { h.announce(ctx, now) })
	}
	_ = c.quotaInstances.Announce(ctx, now) // a store that fails is noticed by the next decision
	all.Wait()
}

// runHomes calls announceToHomes every second until ctx ends. Without homes it returns at once.
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
