package redis

import (
	"context"
	"sync"
	"time"
)

// deadline is a context that ends after a decision's time, or earlier at its parent's deadline. It is used again for other
// decisions, which saves most of what context.WithTimeout allocates. A parent that is cancelled meanwhile does not end it: a
// decision is short, and a charge that was sent is better awaited than lost.
type deadline struct {
	parent context.Context
	at     time.Time
	done   chan struct{}
	timer  *time.Timer
}

var deadlines sync.Pool

// within begins a deadline. End it with release.
func within(parent context.Context, d time.Duration) *deadline {
	now := time.Now()
	at := now.Add(d)
	if t, ok := parent.Deadline(); ok && t.Before(at) {
		at = t
	}
	c, ok := deadlines.Get().(*deadline)
	if !ok {
		c = &deadline{done: make(chan struct{})}
		c.timer = time.AfterFunc(time.Hour, func() { close(c.done) })
		if !c.timer.Stop() {
			return within(parent, d)
		}
	}
	c.parent, c.at = parent, at
	c.timer.Reset(at.Sub(now))
	return c
}

// release ends the use of the context. One that has ended is not used again: somebody may still look at it.
func (c *deadline) release() {
	if c.timer.Stop() {
		c.parent = context.Background()
		deadlines.Put(c)
	}
}

// Deadline is when it ends.
func (c *deadline) Deadline() (time.Time, bool) { return c.at, true }

// Done is closed then.
func (c *deadline) Done() <-chan struct{} { return c.done }

// Value is the parent's.
func (c *deadline) Value(key any) any { return c.parent.Value(key) }

// Err is context.DeadlineExceeded once it has ended.
func (c *deadline) Err() error {
	select {
	case <-c.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}
