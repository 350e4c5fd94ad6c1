package clock_test

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

// at returns an instant at which both clocks read that many seconds more than at an arbitrary start.
func at(mono, wall float64) clock.Instant {
	return clock.Instant{
		Mono: time.Hour + time.Duration(mono*float64(time.Second)),
		Wall: 20_000*24*time.Hour + time.Duration(wall*float64(time.Second)),
	}
}

// Guarantees that Since measures by the clock that has advanced further: the monotonic clock stands still while the
// process is frozen, and the wall clock may be set back. Otherwise a process that was frozen for a day would use data
// that is a day old.
func TestSince(t *testing.T) {
	for name, c := range map[string]struct {
		later clock.Instant
		want  time.Duration
	}{
		"both":                          {at(60, 60), time.Minute},
		"frozen for a day":              {at(0.001, 86400), 24 * time.Hour},
		"the wall clock was set back":   {at(3, -3600), 3 * time.Second},
		"an instant before the earlier": {at(-2, -1), -time.Second},
	} {
		if got := c.later.Since(at(0, 0)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// Guarantees that a wait ends as soon as one of the two clocks reaches its end.
func TestBefore(t *testing.T) {
	until := at(1, 3600).Add(time.Second)
	if at(2, 0).Before(until) || at(0, 3601).Before(until) {
		t.Error("Before = true although one of the clocks has reached the end of the wait, want false")
	}
	if !at(1.9, 0).Before(until) {
		t.Error("Before = false although neither clock has reached the end of the wait, want true")
	}
}

// Guarantees that a periodic task is due in a process that was frozen or whose wall clock was set back, and that it
// does not run twice if one of two requests overtakes the other.
func TestDue(t *testing.T) {
	const period = 10 * time.Second
	for name, c := range map[string]struct {
		now  clock.Instant
		want bool
	}{
		"at once":                              {at(0, 0), false},
		"just before the period is over":       {at(9.9, 9.9), false},
		"after the period":                     {at(10, 10), true},
		"frozen for the period":                {at(0, 10), true},
		"the wall clock was set back":          {at(10, -1), true},
		"frozen, and set back by the period":   {at(0, -10), true},
		"a request that another one overtook":  {at(-0.01, -0.01), false},
		"set back a little, as time.Now might": {at(1, -0.5), false},
	} {
		if got := c.now.Due(at(0, 0), period); got != c.want {
			t.Errorf("%s: due %t, want %t", name, got, c.want)
		}
	}
	if !at(0, 0).Due(clock.Instant{}, 1<<62) {
		t.Error("Due = false for a task that never ran, want true")
	}
}

// Guarantees that At keeps both readings of a Time, that times without a monotonic reading can be compared with each
// other, and that the zero Time is the zero Instant.
func TestAt(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct{ earlier, later time.Time }{
		"with a monotonic reading": {now, now.Add(time.Hour)},
		"of a message":             {time.Unix(1000, 0), time.Unix(1000, 0).Add(time.Hour)},
		"of both kinds":            {now.Round(0), now.Add(time.Hour)},
	} {
		if got := clock.Between(c.earlier, c.later); got != time.Hour {
			t.Errorf("%s: %s between two times, want 1h", name, got)
		}
	}
	if got := clock.At(time.Time{}); got != (clock.Instant{}) {
		t.Errorf("the zero time is %+v, want the zero instant", got)
	}
	if got := clock.Between(time.Time{}, time.Unix(1, 0)); got < 100*365*24*time.Hour {
		t.Errorf("Between the zero time and 1970 = %s, want at least a hundred years", got)
	}
	if got := at(5, 6).Advance(at(1, 1), at(2, 4)); got != at(6, 9) {
		t.Errorf("Advance = %+v, want %+v", got, at(6, 9))
	}
}

// Guarantees that a timeline counts each freeze and never goes back, neither if the wall clock is set back, however
// often, nor if a reading comes late.
func TestTimeline(t *testing.T) {
	var line clock.Timeline
	for i, step := range []struct {
		read         clock.Instant
		want, behind int64 // seconds
	}{
		{at(0, 0), 0, 0},
		{at(5, 5), 5, 0},
		{at(5, 105), 105, 0},   // frozen for 100 s
		{at(7, 55), 107, 0},    // the wall clock is set back by 52 s
		{at(7, 3655), 3707, 0}, // frozen for an hour
		{at(6, 3655), 3707, 1}, // a reading that arrives late
		{at(8, 3656), 3708, 0},
		{at(8, 3000), 3708, 0}, // frozen, and the wall clock is set back
		{at(8, 3100), 3808, 0}, // frozen for 100 s
	} {
		if got := line.At(step.read); got != step.want*1_000_000 {
			t.Errorf("after reading %d the timeline is at %d µs, want %d s", i, got, step.want)
		}
		if got := line.Behind(step.read); got != step.behind*1_000_000 {
			t.Errorf("reading %d is said to be late by %d µs, want %d s", i, got, step.behind)
		}
	}
}
