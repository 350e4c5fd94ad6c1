package cell

import (
	"context"
	"sync/atomic"
	"time"
)

// warming is something that began before the first request, and for which that waits.
type warming struct {
	done   chan struct{}
	within time.Duration
	over   atomic.Bool // nobody waits any more
}

func begin(within time.Duration, do func()) *warming {
	w := &warming{done: make(chan struct{}), within: within}
	go func() {
		defer close(w.done)
		do()
	}()
	return w
}

// wait waits until it is done, for as long as one request may.
func (w *warming) wait(ctx context.Context) {
	if w.over.Load() {
		return
	}
	enough := time.NewTimer(w.within)
	defer enough.Stop()
	select {
	case <-w.done:
	case <-enough.C:
	case <-ctx.Done():
	}
	w.over.Store(true)
}
