package resilience

import (
	"context"
	"sync"
	"time"
)

// sparePause says when the chain of a frozen process last gave back spare leases.
type sparePause struct {
	period time.Duration // below 0: never

	mu   sync.Mutex
	last time.Time // by the wall clock, for the other one may stand still while the process does
}

func (p *sparePause) due(now time.Time) bool {
	wall := now.Round(0)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.period < 0 || !wall.Before(p.last) && wall.Before(p.last.Add(p.period)) {
		return false
	}
	p.last = wall
	return true
}

// RunBackgroundTasks does what a server's chain does by itself, as far as it is due: it announces this instance to those who count
// the instances, and gives back leases that are not going to be used. It is for a Frozen chain: call it beside each
// request, and wait for it before the request is answered, since the process may be frozen afterwards. Nearly always nothing is
// due. It returns no error: what fails is seen where requests are decided.
func (c *Chain) RunBackgroundTasks(ctx context.Context, now time.Time) {
	_ = c.Instances.Announce(ctx, now)
	c.announceToHomes(ctx, now)
	if c.Leases != nil && c.spareLeases.due(now) {
		c.Leases.Look(ctx, now)
	}
}
