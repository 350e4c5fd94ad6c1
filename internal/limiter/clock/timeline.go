package clock

import "time"

// Timeline computes one time from the readings of one process, in the order in which they come. This time never
// advances more slowly than true time, whichever clock stood still or was set back, and however often. From one reading
// to the next, it adds the step of the clock that advanced further.
//
// [Instant.Since] compares two readings only. If the process was frozen between the first and the second reading, and
// the wall clock was set back between the second and the third, Since does not count the whole time between the first
// and the third. A Timeline does.
//
// The zero Timeline is ready for use. It is not safe for concurrent use.
type Timeline struct {
	last    Instant       // the latest reading; elapsed counts up to it
	elapsed time.Duration // since the first reading
	begun   bool          // there was a first reading
}

// At adds a reading and returns the timeline's time, in microseconds since the first reading. The time never goes back.
// A reading that comes late, because it was taken before the latest one, leaves it as it is.
func (t *Timeline) At(now Instant) int64 {
	if !t.begun {
		t.last, t.begun = now, true
	}
	if step := max(now.Mono-t.last.Mono, now.Wall-t.last.Wall); step > 0 {
		t.elapsed += step
		t.last = now
	} else if now.Wall < t.last.Wall && now.Mono >= t.last.Mono { // the wall clock was set back
		t.last.Wall = now.Wall
	}
	return t.elapsed.Microseconds()
}

// Behind returns how many microseconds before the latest reading this one was taken, by the clock that advanced further
// between the two; 0 if it is the latest. A request that was sent with this reading is that much behind the time that
// At returns.
func (t *Timeline) Behind(now Instant) int64 {
	return max(t.last.Mono-now.Mono, t.last.Wall-now.Wall, 0).Microseconds()
}
