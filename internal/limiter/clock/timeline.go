package clock

import "time"

// Timeline turns the readings of one process, in the order in which they come, into one time that never runs slower
// than true time, whichever clock stood still or was set back, and however often. It adds up, from one reading to the
// next, what the clock that advanced further has advanced. [Instant.Since] compares two readings only: if the process
// was frozen between the first and the second reading and the wall clock was set back between the second and the third,
// Since counts neither step in full.
//
// The zero Timeline is ready for use. It is not safe for concurrent use.
type Timeline struct {
	last    Instant       // the reading up to which time is added up
	elapsed time.Duration // since the first reading
	begun   bool
}

// At returns the timeline's time at a reading, in microseconds since the first one. A reading that comes late, of a
// time before the last one, does not turn the time back.
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

// Behind returns by how many microseconds a reading came late: what either clock had advanced after it, when At was
// last asked. An age that a store reports as of this reading began that much before the timeline's time.
func (t *Timeline) Behind(now Instant) int64 {
	return max(t.last.Mono-now.Mono, t.last.Wall-now.Wall, 0).Microseconds()
}
