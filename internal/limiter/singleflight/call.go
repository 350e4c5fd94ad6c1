// Package singleflight lets many goroutines wait for one call that is made on behalf of all of them, in a process that
// may be frozen.
//
// A [Call] has two things that golang.org/x/sync/singleflight does not offer: the time at which the call began, so that
// a call which a freeze cut off can be given up, and a budget after which nobody waits any more, apart from each
// caller's own context.
//
// A Call does not know what is called. Its owner keeps the calls that are under way, under a lock of its own, and
// begins a new one if there is none. So one answer of a store may end several calls, and a call that was given up may
// still end.
package singleflight

import (
	"context"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

// Call is a call under way, or one that has ended. Whoever begins it ends it once; any number of goroutines wait for
// it. Make it with [Begin].
type Call struct {
	Began clock.Instant

	budget <-chan struct{} // closed when the call's budget ends; nil: it has none
	done   chan struct{}   // closed by End
	err    error           // set by End
}

// Begin makes a call that began at an instant. Nobody waits for the call once budget is closed. If budget is nil, only
// each caller's own context bounds its wait.
func Begin(began clock.Instant, budget <-chan struct{}) *Call {
	return &Call{Began: began, budget: budget, done: make(chan struct{})}
}

// End ends the call, with the error that all who wait for it get from Result. It must be called once.
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

// BudgetEnded reports whether the call's budget has ended, after which nobody waits for the call.
func (c *Call) BudgetEnded() bool {
	select {
	case <-c.budget:
		return true
	default:
		return false
	}
}

// Wait waits until the call or its budget has ended. Then it returns nil, and [Call.Result] says whether the call has
// ended. If ctx ends before that, Wait returns ctx.Err().
func (c *Call) Wait(ctx context.Context) error {
	select {
	case <-c.done:
	case <-c.budget:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
