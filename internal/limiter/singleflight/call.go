// Package singleflight has one call made on behalf of all who wait for it, in a process that may be frozen.
//
// A [Call] is what golang.org/x/sync/singleflight keeps of a call, and what that package does not show: when the call
// began, so that a call which a freeze cut off can be given up, and a budget that ends apart from each caller's own
// wait. Which call is under way for what is up to its owner, who keeps it under a lock of its own: one read may answer
// several calls, and a call that was given up may still end.
package singleflight

import (
	"context"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

// Call is a call under way, or one that has ended. Whoever begins it ends it once; any number of goroutines wait for
// it. Make it with [Begin].
type Call struct {
	Began clock.Instant

	late <-chan struct{}
	done chan struct{}
	err  error
}

// Begin makes a call that began at an instant. Nobody waits for it after late is closed; if late is nil, the call has
// no budget.
func Begin(began clock.Instant, late <-chan struct{}) *Call {
	return &Call{Began: began, late: late, done: make(chan struct{})}
}

// End ends the call for all who wait for it. It must be called once.
func (c *Call) End(err error) {
	c.err = err
	close(c.done)
}

// Done returns a channel that is closed when the call has ended.
func (c *Call) Done() <-chan struct{} { return c.done }

// Result returns whether the call has ended, and with which error.
func (c *Call) Result() (ended bool, err error) {
	select {
	case <-c.done:
		return true, c.err
	default:
		return false, nil
	}
}

// Late reports whether nobody waits for the call any more, because its budget has ended.
func (c *Call) Late() bool {
	select {
	case <-c.late:
		return true
	default:
		return false
	}
}

// Wait waits until the call has ended or is late; [Call.Result] says which. The error is why ctx ended before that.
func (c *Call) Wait(ctx context.Context) error {
	select {
	case <-c.done:
	case <-c.late:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
