package resilience

import (
	"context"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/lease"
)

// spareTimer says when the chain of a frozen process gives back spare leases: once in lease.DefaultGiveBackEvery.
type spareTimer struct {
	mu   sync.Mutex
	last clock.Instant // when claimTurn last returned true
}

// claimTurn reports whether a period has passed since it last returned true. Of several goroutines, one gets true.
func (t *spareTimer) claimTurn(now time.Time) bool {
	at := clock.At(now)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !at.Due(t.last, lease.DefaultGiveBackEvery) {
		return false
	}
	t.last = at
	return true
}

// RunBackgroundTasks does what a server's chain does by itself, if it is due: it announces this instance to the stores,
// which count the instances, and gives back leases that will not be used. It is for a Frozen chain. Call it in the
// background of each request, and wait for it before the request is answered, because the process may be frozen
// afterwards. Nearly always nothing is due. It returns no error: a store that fails is noticed by the next decision.
func (c *Chain) RunBackgroundTasks(ctx context.Context, now time.Time) {
	_ = c.Instances.Announce(ctx, now)
	c.announceToHomes(ctx, now)
	if c.Leases != nil && c.spareLeases.claimTurn(now) {
		c.Leases.GiveBackSpare(ctx, now)
	}
}
