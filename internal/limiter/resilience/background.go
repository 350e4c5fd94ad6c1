package resilience

import (
	"context"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

// sparePause says when the chain of a frozen process last gave back spare leases.
type sparePause struct {
	period time.Duration // below 0: never

	mu   sync.Mutex
	last clock.Instant
}

func (p *sparePause) due(now time.Time) bool {
	at := clock.At(now)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.period < 0 || !at.Due(p.last, p.period) {
		return false
	}
	p.last = at
	return true
}

// RunBackgroundTasks does what a server's chain does by itself, as far as it is due: it announces this instance to
// those who count the instances, and gives back leases that are not going to be used. It is for a Frozen chain: call it
// beside each request, and wait for it before the request is answered, since the process may be frozen afterwards.
// Nearly always nothing is due. It returns no error: what fails is seen where requests are decided.
func (c *Chain) RunBackgroundTasks(ctx context.Context, now time.Time) {
	_ = c.Instances.Announce(ctx, now)
	c.announceToHomes(ctx, now)
	if c.Leases != nil && c.spareLeases.due(now) {
		c.Leases.GiveBackSpare(ctx, now)
	}
}
