package pacer

import (
	"fmt"
	"time"
)

// core is the part of a pacer that has no lock, no timer and no clock: the queue, the supply of units, and the counts.
type core struct {
	queue  *queue
	supply supply
	counts Counts
}

// outcome holds a waker and the arguments of its call.
type outcome struct {
	waker  Waker
	permit Permit
	err    error
}

// grant takes units from the open window and returns a permit for them. It returns false if they are not free now.
func (c *core) grant(cost int64, now time.Duration) (Permit, bool) {
	if !c.supply.take(cost, now) {
		return Permit{}, false
	}
	c.counts.Granted += cost
	return Permit{cost: cost, serial: c.supply.serial, useBy: c.supply.closes, total: c.counts.Granted}, true
}

// earliest returns the earliest possible time of the grant of a new ticket, see [LateError].
func (c *core) earliest(key string, cost int64, now time.Duration) time.Duration {
	return c.supply.freeAt(c.queue.unitsBefore(key), cost, now)
}

// serve takes tickets out of the queue whose units are free, that have expired, or whose cost is above the limit, until
// out is full. It returns the number of outcomes that it has written to out.
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

// servable reports whether serve has something to do now.
func (c *core) servable(now time.Duration) bool {
	c.supply.pass(now, c.queue.waiting > 0)
	if c.queue.expired(now) != 0 {
		return true
	}
	i := c.queue.next()
	return i != 0 && (c.queue.at(i).cost > c.supply.limit.Units || c.supply.isFree(c.queue.at(i).cost, now))
}

// nextServe returns the next time at which serve has something to do if nothing else happens, or never.
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

// giveBack returns units of a permit that will not be used. It reports whether others can still be granted them.
func (c *core) giveBack(units int64, serial uint64, now time.Duration) (servable bool) {
	if c.supply.giveBack(units, serial, now) {
		c.counts.Returned += units
		return true
	}
	c.counts.Lost += units
	return false
}

// cancelAll takes all tickets out of the queue, until out is full. It returns the number of outcomes in out.
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
