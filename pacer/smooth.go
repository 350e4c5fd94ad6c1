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
	// FrontLoaded grants units as soon as requests wait for them, which may be all units when the window opens. No
	// request waits longer than the limit requires.
	FrontLoaded Smoothing = iota

	// Spread grants the units of a window evenly, so that the provider sees no burst at the beginning of each window.
	// A single request waits no longer than with FrontLoaded.
	//
	// The number of granted units follows a straight line from 0 when the window opens to all units when it closes, and
	// is never ahead of the line by more than one request. If it is behind, because no requests came for a while or
	// because the process was suspended, the rate rises to catch up, to at most twice that of the line. If most of the
	// window passed without requests, some of its units are therefore never granted.
	Spread
)

// String returns the name of the constant.
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
// where line is the slope of the line, in units per second, and behind is the number of units by which the granted
// units are behind the line. The first term alone is the right rate if nothing is behind (feed-forward). The gains make
// a loop that without bounds would be critically damped with a time constant of 0.1 s: s² + 20·s + 100 = (s + 10)².
//
// Three bounds prevent overshoot. The rate is at most largestCatchUp times the line. Nothing is granted while the
// granted units are ahead of the line. The integral grows only while requests wait and the rate is below its bound, and
// is reset to 0 when the granted units have reached the line (a Clegg integrator), because then it has no error left to
// correct.
const (
	proportionalGain = 20  // per second
	integralGain     = 100 // per second²
	largestCatchUp   = 2
)

// smoother decides when the units of the open window are granted under Spread. Its times are monotonic.
type smoother struct {
	at       time.Duration // of the latest update
	credit   float64       // units that are due; below 0: units that were granted before they were due
	integral float64       // in unit·seconds
}

// begin resets the smoother when a window opens.
func (m *smoother) begin(at time.Duration) { *m = smoother{at: at} }

// line is the straight line from 0 granted units when a window opens to all units when it closes.
type line struct {
	opens, closes time.Duration
	units         int64
}

// slope returns the rate of the line, in units per second.
func (l line) slope() float64 { return float64(l.units) / (l.closes - l.opens).Seconds() }

// reached returns the time at which the line reaches a number of units, 0 or more, rounded up to the nanosecond, and
// closes at the latest.
func (l line) reached(units int64) time.Duration {
	if units >= l.units {
		return l.closes
	}
	high, low := bits.Mul64(uint64(units), uint64(l.closes-l.opens))
	low, carry := bits.Add64(low, uint64(l.units-1), 0)
	quotient, _ := bits.Div64(high+carry, low, uint64(l.units)) // at most closes-opens
	return l.opens + time.Duration(quotient)
}

// behind returns the number of units by which used is behind the line, or 0 if it is ahead.
func (l line) behind(used int64, now time.Duration) float64 {
	into := float64(min(now, l.closes)-l.opens) / float64(l.closes-l.opens)
	return max(float64(l.units)*into-float64(used), 0)
}

// update accounts for the time since the latest update. Waiting says whether requests waited in that time.
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
		m.credit = min(m.credit, 0) // units that no request waited for are granted later, by a higher rate
	}
}

// rate returns the present rate, in units per second, and whether it is at its bound.
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

// dueAt returns the time at which the next request may be granted if nothing changes.
func (m *smoother) dueAt(l line, used int64, now time.Duration) time.Duration {
	at := max(now, l.reached(used))
	if m.credit < 0 {
		rate, _ := m.rate(l, l.behind(used, now))
		wait := math.Ceil(-m.credit / rate * float64(time.Second))
		at = max(at, after(now, time.Duration(min(wait, math.MaxInt64/2))+1))
	}
	return at
}
