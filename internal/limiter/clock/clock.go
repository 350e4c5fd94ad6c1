// Package clock tells the time of day for decisions at less than half the price of time.Now.
package clock

import (
	"sync/atomic"
	"time"
)

// Refresh is how old a reading of the time of day may be: a step of the system's clock is followed within it.
const Refresh = 50 * time.Millisecond

// Clock adds what the monotonic clock has run since to a reading of the time of day. It is for processes that run all the
// time: after a freeze during which the monotonic clock stood still, its first readings are old. The zero Clock is ready
// for use, by many goroutines at once.
type Clock struct{ read atomic.Pointer[time.Time] }

// Now is the time of day.
func (c *Clock) Now() time.Time {
	if t := c.read.Load(); t != nil {
		if since := time.Since(*t); since < Refresh {
			return t.Add(since)
		}
	}
	now := time.Now()
	c.read.Store(&now)
	return now
}
