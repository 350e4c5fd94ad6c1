// Package clock measures how much time has passed, correctly also in a process that is frozen between requests
// ([Instant], [Timeline]). It also reads the time of day for less CPU time than time.Now ([Clock]; BenchmarkNow and
// BenchmarkTimeNow compare the two).
package clock

import (
	"sync/atomic"
	"time"
)

// Refresh is how long a [Clock] uses one reading of the wall clock. If the operating system sets the wall clock,
// [Clock.Now] follows within this time.
const Refresh = 50 * time.Millisecond

// Clock returns the time of day: its last reading of the wall clock, plus the time by which the monotonic clock has
// advanced since. It is for processes that run all the time. After a freeze during which the monotonic clock stood
// still, Now is late for up to [Refresh]. To find out how much time has passed, compare instants ([Instant]). The zero
// Clock is ready for use, by many goroutines at once.
type Clock struct{ lastReading atomic.Pointer[time.Time] }

// Now returns the time of day.
func (c *Clock) Now() time.Time {
	if t := c.lastReading.Load(); t != nil {
		if since := time.Since(*t); since < Refresh {
			return t.Add(since)
		}
	}
	now := time.Now()
	c.lastReading.Store(&now)
	return now
}
