package pacer

import (
	"fmt"
	"math"
	"math/bits"
	"time"
)

// Smoothing says when in its window a unit is granted.
type Smoothing uint8

const (
	// FrontLoaded grants all units of a window as soon as it opens, if so many wait. Nobody waits longer than he must.
	FrontLoaded Smoothing = iota

	// Spread grants the units of a window evenly, so that the provider sees no burst at the beginning of each window.
	// Whoever comes alone waits no longer than with FrontLoaded.
	//
	// Progress follows a straight line from nothing when the window opens to all units when it closes, and is never
	// ahead of the line by more than one request. If it is behind, because nobody waited for a while or because the
	// process was held up, the rate rises to catch up, to twice that of the line at most. So units at the end of the
	// window are not granted if most of the window passed without requests.
	Spread
)

// String is the name of the constant.
func (s Smoothing) String() string {
	switch s {
	case FrontLoaded:
		return "FrontLoaded"
	case Spread:
		return "Spread"
	}
	return fmt.Sprintf("Smoothing(%d)", uint8(s))
}

// The rate of Spread is
//
//	line + proportionalGain · behind + integralGain · ∫ behind dt
//
// where line is the slope of the line, in units per second, and behind is by how many units progress is behind it. The
// first term alone is right as long as everything goes well (feed-forward). The gains make a loop that without bounds
// would be critically damped with a time constant of 0.1 s: s² + 20·s + 100 = (s + 10)².
//
// Three bounds keep it from overshooting. The rate is at most largestCatchUp times the line. Nothing is granted while
// progress is ahead of the line. The integral grows only while somebody waits and the rate is below its bound, and
// begins at 0 again when progress has reached the line (a Clegg integrator), because no error remains then that it
// could correct.
const (
	proportionalGain = 20  // per second
	integralGain     = 100 // per second²
	largestCatchUp   = 2
)

// smoother decides when the units of the open window are granted under Spread. Its times are monotonic.
type smoother struct {
	at       time.Duration // of the latest update
	credit   float64       // units that are due; below 0: units that were granted before they were due
	integral float64       // unit·seconds
}

// begin is called when a window opens.
func (m *smoother) begin(at time.Duration) { *m = smoother{at: at} }

// line is the straight line of progress through the open window.
type line struct {
	opens, closes time.Duration
	units         int64
}

// slope is the rate of the line, in units per second.
func (l line) slope() float64 { return float64(l.units) / (l.closes - l.opens).Seconds() }

// reached is when the line reaches a number of units, 0 or more, rounded up to the nanosecond; closes at the latest.
func (l line) reached(units int64) time.Duration {
	if units >= l.units {
		return l.closes
	}
	high, low := bits.Mul64(uint64(units), uint64(l.closes-l.opens))
	low, carry := bits.Add64(low, uint64(l.units-1), 0)
	quotient, _ := bits.Div64(high+carry, low, uint64(l.units)) // at most closes-opens
	return l.opens + time.Duration(quotient)
}

// behind is by how many units progress is behind the line, 0 if it is ahead.
func (l line) behind(used int64, now time.Duration) float64 {
	into := float64(min(now, l.closes)-l.opens) / float64(l.closes-l.opens)
	return max(float64(l.units)*into-float64(used), 0)
}

// update accounts for the time since the latest update, in which requests waited or not.
func (m *smoother) update(l line, used int64, now time.Duration, waiting bool) {
	passed := (now - m.at).Seconds()
	if passed <= 0 {
		return
	}
	m.at = now
	behind := l.behind(used, now)
	rate, bounded := m.rate(l, behind)
	m.credit += rate * passed
	switch {
	case behind == 0:
		m.integral = 0
	case waiting && !bounded:
		m.integral += behind * passed
	}
	if !waiting {
		m.credit = min(m.credit, 0) // what nobody waited for is caught up with by the rate
	}
}

// rate is the present rate, and whether it is at its bound.
func (m *smoother) rate(l line, behind float64) (rate float64, bounded bool) {
	slope := l.slope()
	rate = slope + proportionalGain*behind + integralGain*m.integral
	if most := largestCatchUp * slope; rate >= most {
		return most, true
	}
	return rate, false
}

// due reports whether the next request may be granted.
func (m *smoother) due(l line, used int64, now time.Duration) bool {
	return m.credit >= 0 && now >= l.reached(used)
}

// dueAt is when the next request may be granted if nothing changes.
func (m *smoother) dueAt(l line, used int64, now time.Duration) time.Duration {
	at := max(now, l.reached(used))
	if m.credit < 0 {
		rate, _ := m.rate(l, l.behind(used, now))
		wait := math.Ceil(-m.credit / rate * float64(time.Second))
		at = max(at, after(now, time.Duration(min(wait, math.MaxInt64/2))+1))
	}
	return at
}
