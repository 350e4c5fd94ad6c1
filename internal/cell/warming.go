package cell

import (
	"context"
	"sync/atomic"
	"time"
)

// warming is work that began with the function, and for which the first request waits.
type warming struct {
	done   chan struct{}
	within time.Duration
	over   atomic.Bool // requests no longer wait for it
}

func begin(within time.Duration, do func()) *warming {
	w := &warming{done: make(chan struct{}), within: within}
	go func() {
		defer close(w.done)
		do()
	}()
	return w
}

// wait waits until the work is done, at most for the bound of one request.
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
