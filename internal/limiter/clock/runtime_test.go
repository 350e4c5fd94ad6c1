package clock_test

import (
	"context"
	"errors"
	"hash/maphash"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

// TestRuntime guarantees that a nil Runtime uses the clock and the random numbers of the machine, and that each method
// of another Runtime calls the field for it.
func TestRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var machine *clock.Runtime
		began := machine.Time()
		done := make(chan struct{})
		machine.Begin(func() { close(done) })
		<-done
		machine.Pause(t.Context(), time.Second)
		if took := machine.Time().Sub(began); took != time.Second {
			t.Errorf("Pause took %s, want 1s", took)
		}
		if r := machine.RandomUpTo(5); r < 0 || r >= 5 {
			t.Errorf("RandomUpTo(5) = %d, want 0..4", r)
		}
		ctx, cancel := machine.WithTimeout(t.Context(), time.Second)
		defer cancel()
		<-ctx.Done()
		if took := machine.Time().Sub(began); took != 2*time.Second {
			t.Errorf("a context of 1s ended %s after the test began, want 2s", took)
		}
		seed := maphash.MakeSeed()
		if machine.HashName(seed, "a") != maphash.String(seed, "a") {
			t.Error("HashName differs from the hash of package maphash with the same seed")
		}
	})
	begun, slept, now := 0, time.Duration(0), time.Unix(7, 0)
	simulated := &clock.Runtime{
		Now:   func() time.Time { return now },
		Go:    func(f func()) { begun++; f() },
		Sleep: func(_ context.Context, d time.Duration) { slept += d },
		Rand:  func(n int64) int64 { return n - 1 },
		Hash:  func(string) uint64 { return 9 },
	}
	simulated.Begin(func() {})
	simulated.Pause(t.Context(), time.Hour)
	if simulated.Read().Wall != 7*time.Second || begun != 1 || slept != time.Hour || simulated.RandomUpTo(3) != 2 ||
		simulated.HashName(maphash.MakeSeed(), "a") != 9 {
		t.Error("a method of a Runtime does not call the field for it")
	}
	ctx, cancel := simulated.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	inner, cancelInner := simulated.WithTimeout(ctx, time.Hour)
	defer cancelInner()
	if at, ok := inner.Deadline(); !ok || !at.Equal(time.Unix(67, 0)) || inner.Err() != nil {
		t.Errorf("the deadline is %s, want a minute after the beginning; error %v, want none", at, inner.Err())
	}
	now = time.Unix(67, 0)
	if err := inner.Err(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after a minute the context's error is %v, want DeadlineExceeded", err)
	}
}
