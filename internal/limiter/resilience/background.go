package resilience

import (
	"context"
	"sync"
	"time"
)

// looks says when a frozen ladder last gave back spare leases.
type looks struct {
	every time.Duration // below 0 never

	mu   sync.Mutex
	last time.Time // by the wall clock, for the other one may stand still while the process does
}

func (k *looks) due(now time.Time) bool {
	wall := now.Round(0)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.every < 0 || !wall.Before(k.last) && wall.Before(k.last.Add(k.every)) {
		return false
	}
	k.last = wall
	return true
}

// RunBackgroundTasks does, if it is due, what a server's ladder does by itself: it says that this instance runs, and gives back what is leased
// and not going to be used. It is for a Frozen ladder: call it beside each request, and wait for it before the answer, since
// afterwards the process may be frozen. Nearly always nothing is due. What fails is seen where requests are decided.
func (l *Chain) RunBackgroundTasks(ctx context.Context, now time.Time) {
	_ = l.Instances.Announce(ctx, now)
	l.beatHomes(ctx, now)
	if l.Leases != nil && l.looks.due(now) {
		l.Leases.Look(ctx, now)
	}
}
