package clock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

// Guarantees that Now is the time of day, whenever it is called. With a clock that is late, or that goes back, the
// units of a window could be admitted twice.
func TestNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c clock.Clock
		for _, wait := range []time.Duration{0, 1, time.Millisecond, clock.Refresh - time.Millisecond, clock.Refresh,
			time.Hour} {
			<-time.After(wait)
			if got, want := c.Now(), time.Now(); !got.Equal(want) {
				t.Errorf("after %s, Now = %s, want %s", wait, got, want)
			}
		}
	})
}

// Guarantees that most calls of Now do not read the wall clock, which allocates.
func TestNowIsCheap(t *testing.T) {
	var c clock.Clock
	if n := testing.AllocsPerRun(1000, func() { c.Now() }); n >= 1 {
		t.Errorf("%v allocations a call of Now, want at most one in each %s", n, clock.Refresh)
	}
}

func BenchmarkNow(b *testing.B) {
	var c clock.Clock
	for b.Loop() {
		if c.Now().IsZero() {
			b.Fatal("no time")
		}
	}
}

func BenchmarkTimeNow(b *testing.B) {
	for b.Loop() {
		if time.Now().IsZero() {
			b.Fatal("no time")
		}
	}
}
