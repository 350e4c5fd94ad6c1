package authorizer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// How often what goes on beside a decision may begin, and how long an answer waits for it.
const (
	BesideEvery = 100 * time.Millisecond
	BesideWait  = 50 * time.Millisecond
)

// beside does what is due while a call is under way.
type beside struct {
	tasks    []*task
	longest  time.Duration
	panicked func(context.Context, any) error
	last     atomic.Int64 // when it last began, ns since 1970
}

// task is one thing to do, by one goroutine at a time.
type task struct {
	do   func(context.Context, time.Time)
	mu   sync.Mutex
	done chan struct{} // closed when the last run ended; nil before the first
}

// joint is what an answer waits for; the zero joint is nothing.
type joint struct {
	done []<-chan struct{}
}

// begin has each task done, or goes on waiting for it where it is still under way.
func (b *beside) begin(ctx context.Context, now time.Time) (j joint) {
	if len(b.tasks) == 0 || !b.turn(now.UnixNano()) {
		return j
	}
	for _, t := range b.tasks {
		j.done = append(j.done, t.start(ctx, now, b))
	}
	return j
}

// turn reports whether it is time again. A clock that was set back makes it so.
func (b *beside) turn(now int64) bool {
	last := b.last.Load()
	return (now-last >= int64(BesideEvery) || now < last) && b.last.CompareAndSwap(last, now)
}

func (t *task) start(ctx context.Context, now time.Time, b *beside) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done != nil {
		select {
		case <-t.done:
		default:
			return t.done
		}
	}
	done := make(chan struct{})
	t.done = done
	go func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.longest)
		defer cancel()
		defer func() {
			if p := recover(); p != nil {
				_ = b.panicked(ctx, p) // it is logged; the call that it was beside has an answer of its own
			}
		}()
		t.do(ctx, now)
	}()
	return done
}

// wait waits until all is done, at most BesideWait.
func (j joint) wait() {
	if len(j.done) == 0 {
		return
	}
	enough := time.NewTimer(BesideWait)
	defer enough.Stop()
	for _, done := range j.done {
		select {
		case <-done:
		case <-enough.C:
			return
		}
	}
}
