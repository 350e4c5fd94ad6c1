package clock

import (
	"math"
	"time"
)

// Instant is one reading of both clocks of a machine. All code that asks "how long ago was that?" in a process that may
// be frozen compares instants, never times.
//
// Each of the two clocks can be wrong about the time that has passed, in its own way:
//
//   - The monotonic clock stands still while the process is frozen. A Lambda environment is frozen between its
//     requests, so its monotonic clock may advance by milliseconds in an hour. Package time subtracts monotonic
//     readings.
//   - The wall clock may be set, forwards or backwards, by the operating system.
//
// Neither runs faster than true time except when the wall clock is set forward. So the clock that has advanced further
// is the better witness, and waiting ends too early rather than never.
//
// The zero Instant is before every other one: it stands for "never".
type Instant struct {
	Mono time.Duration // what the monotonic clock reads, since this process began
	Wall time.Duration // what the wall clock reads, since 1970
}

var processStart = time.Now()

// Read reads both clocks now.
func Read() Instant { return At(time.Now()) }

// At is the reading that t holds. The zero Time becomes the zero Instant. A Time without a monotonic reading, such as
// one of a test or of a message, is an Instant whose two clocks advance together; compare it only with others of its
// kind.
func At(t time.Time) Instant {
	if t.IsZero() {
		return Instant{}
	}
	return Instant{Mono: t.Sub(processStart), Wall: time.Duration(t.UnixNano())}
}

// Between returns the time that has passed between two times, as [Instant.Since] does between two instants. Each of the
// times may have a monotonic reading or none.
func Between(earlier, later time.Time) time.Duration {
	if earlier.IsZero() {
		return math.MaxInt64
	}
	return max(later.Sub(earlier), later.Round(0).Sub(earlier.Round(0)))
}

// Add returns the instant at which both clocks have advanced by d.
func (i Instant) Add(d time.Duration) Instant { return Instant{i.Mono + d, i.Wall + d} }

// Advance returns i after what each clock has advanced between two other instants.
func (i Instant) Advance(from, to Instant) Instant {
	return Instant{i.Mono + to.Mono - from.Mono, i.Wall + to.Wall - from.Wall}
}

// Since returns the time that has passed since an earlier instant, by the clock that has advanced further. It is below
// zero if both clocks read less than they did at the earlier instant, which is then the later one. Since the zero
// Instant, more time has passed than any wait lasts.
func (i Instant) Since(earlier Instant) time.Duration {
	if earlier == (Instant{}) {
		return math.MaxInt64
	}
	return max(i.Mono-earlier.Mono, i.Wall-earlier.Wall)
}

// Before reports whether neither clock has reached the other instant.
func (i Instant) Before(other Instant) bool { return i.Mono < other.Mono && i.Wall < other.Wall }

// Due reports whether something that last happened at an instant, and is to happen once in a period, is to happen now:
// the period has passed, or the wall clock was set back by a period or more, after which nothing is known of the time
// that has passed in a frozen process. A reading that is only a little older than last, as that of a request which
// another one overtook, is not due.
func (i Instant) Due(last Instant, period time.Duration) bool {
	return i.Since(last) >= period || last.Wall-i.Wall >= period
}
