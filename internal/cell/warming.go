package cell

import (
	"context"
	"sync/atomic"
	"time"
)

// warming is work that begins when the Lambda function starts. The first request waits for it, for a bounded time.
type warming struct {
	done   chan struct{}
	within time.Duration
	over   atomic.Bool // requests no longer wait for it
}

// begin begins the work do. A request waits for it no longer than within.
func begin(within time.Duration, do func()) *warming {
	w := &warming{done: make(chan struct{}), within: within}
	go func() {
		defer close(w.done)
		do()
	}()
	return w
}

// wait waits until the work is done, at most w.within. Requests that come after the first wait has ended do not wait.
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
