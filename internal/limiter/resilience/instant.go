package resilience

import "time"

// instant is a reading of both clocks. The monotonic one may stand still while the process is frozen, as a Lambda environment
// is between requests; the wall clock may be set back. So what is to wait waits until either has gone on far enough.
type instant struct{ mono, wall time.Duration }

var begun = time.Now()

func read() instant {
	now := time.Now()
	return instant{now.Sub(begun), now.Round(0).Sub(begun.Round(0))}
}

func (i instant) plus(d time.Duration) instant { return instant{i.mono + d, i.wall + d} }

// before reports whether neither clock has reached the other instant.
func (i instant) before(other instant) bool { return i.mono < other.mono && i.wall < other.wall }

// since is the time between two instants by the clock that has gone further.
func (i instant) since(earlier instant) time.Duration {
	return max(i.mono-earlier.mono, i.wall-earlier.wall)
}
