package redis

import (
	"context"
	"sync"
	"time"
)

// timeoutContext is a context that ends after a decision's time limit, or earlier at its parent's deadline. It is
// reused for later decisions, which saves most of what context.WithTimeout allocates. Cancelling the parent does not
// end it: a decision is short, and it is better to wait for a charge that was sent than to lose it.
type timeoutContext struct {
	parent context.Context
	at     time.Time
	done   chan struct{}
	timer  *time.Timer

	shortened bool // it ends at the parent's deadline
}

var timeoutContexts sync.Pool

// withTimeout returns a context that ends after d. The caller must call its release.
func withTimeout(parent context.Context, d time.Duration) *timeoutContext {
	now := time.Now()
	at, shortened := now.Add(d), false
	if t, ok := parent.Deadline(); ok && t.Before(at) {
		at, shortened = t, true
	}
	c, ok := timeoutContexts.Get().(*timeoutContext)
	if !ok {
		c = &timeoutContext{done: make(chan struct{})}
		c.timer = time.AfterFunc(time.Hour, func() { close(c.done) })
		if !c.timer.Stop() {
			return withTimeout(parent, d)
		}
	}
	c.parent, c.at, c.shortened = parent, at, shortened
	c.timer.Reset(at.Sub(now))
	return c
}

// release ends the use of the context. A context that has ended already is not reused, because somebody may still look
// at it.
func (t *timeoutContext) release() {
	if t.timer.Stop() {
		t.parent = context.Background()
		timeoutContexts.Put(t)
	}
}

// Deadline implements context.Context.
func (t *timeoutContext) Deadline() (time.Time, bool) { return t.at, true }

// Done implements context.Context.
func (t *timeoutContext) Done() <-chan struct{} { return t.done }

// Value implements context.Context with the values of the parent.
func (t *timeoutContext) Value(key any) any { return t.parent.Value(key) }

// Err returns context.DeadlineExceeded after the context has ended, else nil.
func (t *timeoutContext) Err() error {
	select {
	case <-t.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}
