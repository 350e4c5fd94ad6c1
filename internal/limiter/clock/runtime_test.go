package clock_test

import (
	"context"
	"hash/maphash"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

// TestRuntime tests that a nil Runtime is the machine's, and that every method of another one calls its field.
func TestRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var machine *clock.Runtime
		began := machine.Time()
		done := make(chan struct{})
		machine.Begin(func() { close(done) })
		<-done
		machine.Pause(t.Context(), time.Second)
		if took := machine.Time().Sub(began); took != time.Second {
			t.Errorf("Pause took %s", took)
		}
		if r := machine.RandomUpTo(5); r < 0 || r >= 5 {
			t.Errorf("RandomUpTo(5) = %d", r)
		}
		seed := maphash.MakeSeed()
		if machine.HashName(seed, "a") != maphash.String(seed, "a") {
			t.Error("the hash does not depend on the seed")
		}
	})
	begun, slept := 0, time.Duration(0)
	simulated := &clock.Runtime{
		Now:   func() time.Time { return time.Unix(7, 0) },
		Go:    func(f func()) { begun++; f() },
		Sleep: func(_ context.Context, d time.Duration) { slept += d },
		Rand:  func(n int64) int64 { return n - 1 },
		Hash:  func(string) uint64 { return 9 },
	}
	simulated.Begin(func() {})
	simulated.Pause(t.Context(), time.Hour)
	if simulated.Read().Wall != 7*time.Second || begun != 1 || slept != time.Hour || simulated.RandomUpTo(3) != 2 ||
		simulated.HashName(maphash.MakeSeed(), "a") != 9 {
		t.Error("a method does not call its field")
	}
}
