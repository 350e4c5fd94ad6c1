package clock

import (
	"math"
	"time"
)

// Instant is one reading of both clocks of a machine. In a process that may be frozen, code that measures how long ago
// something was compares instants, never times.
//
// Each of the two clocks can be wrong about the time that has passed:
//
//   - The monotonic clock stands still while the process is frozen. A Lambda environment is frozen between its
//     requests, so its monotonic clock may advance by milliseconds in an hour. Package time subtracts monotonic
//     readings.
//   - The wall clock may be set, forwards or backwards, by the operating system.
//
// Neither clock advances faster than true time, unless the wall clock is set forwards. The time that has passed is
// therefore measured by the clock that has advanced further. If that clock is wrong, a wait ends too early, and not
// never.
//
// The zero Instant is before every other instant. It stands for "never".
type Instant struct {
	Mono time.Duration // what the monotonic clock reads, since this process began
	Wall time.Duration // what the wall clock reads, since 1970
}

var processStart = time.Now()

// Read reads both clocks now.
func Read() Instant { return At(time.Now()) }

// At returns the readings that t holds. The zero Time becomes the zero Instant. A Time without a monotonic reading, as
// in a test or a message, becomes an Instant whose two clocks advance together. Compare that only with other instants
// of such times.
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

// Advance returns i, with each clock advanced by what it advanced between two other instants.
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

// Due reports whether something that happens once in a period, and last happened at last, is due at i. It is due if the
// period has passed. It is also due if the wall clock was set back by a period or more, because nobody knows then how
// long a frozen process was frozen. If i is only a little before last, as for a request that another request overtook,
// nothing is due.
func (i Instant) Due(last Instant, period time.Duration) bool {
	return i.Since(last) >= period || last.Wall-i.Wall >= period
}
