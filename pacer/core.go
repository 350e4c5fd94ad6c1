package pacer

import (
	"fmt"
	"time"
)

// core is a pacer without a lock, a timer and a clock: the queue, the supply, and what was counted.
type core struct {
	queue  *queue
	supply supply
	counts Counts
}

// outcome is what a waker is told.
type outcome struct {
	waker  Waker
	permit Permit
	err    error
}

// grant takes units, if they are free now.
func (c *core) grant(cost int64, now time.Duration) (Permit, bool) {
	if !c.supply.take(cost, now) {
		return Permit{}, false
	}
	c.counts.Granted += cost
	return Permit{cost: cost, serial: c.supply.serial, useBy: c.supply.closes, total: c.counts.Granted}, true
}

// earliest is when a new ticket could be served at the earliest, see [LateError].
func (c *core) earliest(key string, cost int64, now time.Duration) time.Duration {
	return c.supply.freeAt(c.queue.unitsBefore(key), cost, now)
}

// serve grants what can be granted and removes what has expired, until out is full. It returns how many outcomes it has
// written.
func (c *core) serve(now time.Duration, out []outcome) (n int) {
	c.supply.pass(now, c.queue.waiting > 0)
	for n < len(out) {
		i := c.queue.expired(now)
		if i != 0 {
			c.counts.Expired++
			out[n] = outcome{waker: c.queue.at(i).waker, err: ErrExpired}
			c.queue.remove(i)
			n++
			continue
		}
		if i = c.queue.next(); i == 0 {
			break
		}
		t := c.queue.at(i)
		if t.cost > c.supply.limit.Units {
			out[n] = outcome{waker: t.waker, err: c.neverError(t.cost)}
			c.queue.remove(i)
			n++
			continue
		}
		permit, ok := c.grant(t.cost, now)
		if !ok {
			break
		}
		out[n] = outcome{waker: t.waker, permit: permit}
		c.queue.serve(i)
		n++
	}
	return n
}

// nextServe is when serve has something to do if nothing else happens, or never.
func (c *core) nextServe(now time.Duration) time.Duration {
	i := c.queue.next()
	if i == 0 {
		return never
	}
	at := c.supply.readyAt(c.queue.at(i).cost, now)
	if deadline := c.queue.nextDeadline(); deadline < at {
		at = deadline + 1 // a ticket has expired after its deadline
	}
	return at
}

func (c *core) neverError(cost int64) error {
	return fmt.Errorf("%w: %d units, and the limit is %s", ErrNever, cost, c.supply.limit)
}

// giveBack returns units of a permit that will not be used.
func (c *core) giveBack(units int64, serial uint64, now time.Duration) (servable bool) {
	if c.supply.giveBack(units, serial, now) {
		c.counts.Returned += units
		return true
	}
	c.counts.Lost += units
	return false
}

func (c *core) cancelAll(out []outcome, err error) (n int) {
	for n < len(out) {
		i := c.queue.next()
		if i == 0 {
			break
		}
		out[n] = outcome{waker: c.queue.at(i).waker, err: err}
		c.queue.remove(i)
		n++
	}
	return n
}
