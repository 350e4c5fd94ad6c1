package authorizer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// How often the background tasks may start, and how long an answer waits for them.
const (
	BackgroundEvery = 100 * time.Millisecond
	BackgroundWait  = 50 * time.Millisecond
)

// backgroundTasks runs tasks in the background of requests, in a process that may be frozen between two requests.
// [Handler.Invoke] calls start before the decision and wait after it.
type backgroundTasks struct {
	tasks     []*backgroundTask
	timeout   time.Duration                    // ends the context of each run
	onPanic   func(context.Context, any) error // reports a task's panic
	lastStart atomic.Int64                     // ns since 1970; 0: never
}

// backgroundTask is one function that runs in the background, in one goroutine at a time.
type backgroundTask struct {
	run  func(context.Context, time.Time)
	mu   sync.Mutex
	done chan struct{} // closed when the last run has ended; nil before the first run
}

// runningTasks holds, for each run that an answer waits for, the channel that is closed when the run has ended.
type runningTasks []<-chan struct{}

// start starts each task in a goroutine of its own if BackgroundEvery has passed since the last start. A task that
// still runs is not started again. It returns the runs that are under way; none if it was too early to start any.
func (b *backgroundTasks) start(ctx context.Context, now time.Time) (running runningTasks) {
	if len(b.tasks) == 0 || !b.claimStart(now.UnixNano()) {
		return nil
	}
	for _, t := range b.tasks {
		running = append(running, b.startTask(ctx, t, now))
	}
	return running
}

// claimStart reports whether the tasks start now: BackgroundEvery has passed since the last start, or the clock was set
// back. Of several goroutines that ask at once, one gets true.
func (b *backgroundTasks) claimStart(now int64) bool {
	last := b.lastStart.Load()
	return (now-last >= int64(BackgroundEvery) || now < last) && b.lastStart.CompareAndSwap(last, now)
}

// startTask starts a run of the task unless one is under way. It returns the channel that is closed when the run has
// ended. The run's context ends after the timeout, and not with the request: a run may outlive its request.
func (b *backgroundTasks) startTask(ctx context.Context, t *backgroundTask, now time.Time) <-chan struct{} {
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
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.timeout)
		defer cancel()
		defer func() {
			if p := recover(); p != nil {
				_ = b.onPanic(ctx, p) // the panic is logged, and the request has an answer of its own
			}
		}()
		t.run(ctx, now)
	}()
	return done
}

// wait waits until all runs have ended, for BackgroundWait at most.
func (r runningTasks) wait() {
	if len(r) == 0 {
		return
	}
	timeout := time.NewTimer(BackgroundWait)
	defer timeout.Stop()
	for _, done := range r {
		select {
		case <-done:
		case <-timeout.C:
			return
		}
	}
}
