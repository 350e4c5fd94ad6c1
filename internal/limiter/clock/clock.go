// Package clock tells the time that has passed, correctly also in a process that is frozen between requests ([Instant],
// [Timeline]), and the time of day at less than half the price of time.Now ([Clock]).
package clock

import (
	"sync/atomic"
	"time"
)

// Refresh is how old a reading of the time of day may be: a step of the system's clock is followed within it.
const Refresh = 50 * time.Millisecond

// Clock tells the time of day: a reading of the wall clock plus what the monotonic clock has advanced since. It is for
// processes that run all the time. After a freeze during which the monotonic clock stood still, its first readings are
// old; to find out how much time has passed, compare instants ([Instant]). The zero Clock is ready for use, by many
// goroutines at once.
type Clock struct{ read atomic.Pointer[time.Time] }

// Now returns the time of day.
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
