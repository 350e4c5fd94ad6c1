package clock_test

import (
	"testing"
	"time"
	"unsafe"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

// Guarantees that Between measures by the clock that has advanced further: the monotonic clock stands still while the
// process is frozen, and the wall clock may be set back.
func TestBetween(t *testing.T) {
	then := time.Now()
	for name, c := range map[string]struct{ wall, monotonic, want time.Duration }{
		"both":                        {time.Minute, time.Minute, time.Minute},
		"frozen for a day":            {24 * time.Hour, time.Millisecond, 24 * time.Hour},
		"the wall clock was set back": {-time.Hour, 3 * time.Second, 3 * time.Second},
	} {
		if got := clock.Between(then, shifted(t, then, c.wall, c.monotonic)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// shifted returns a time whose two clocks were moved apart. In production, only the operating system can do that.
func shifted(t *testing.T, at time.Time, wall, monotonic time.Duration) time.Time {
	t.Helper()
	out := at
	// The layout that package time documents: seconds of the wall clock from bit 30 up, and the monotonic time.
	words := (*[2]int64)(unsafe.Pointer(&out))
	words[0] += int64(wall/time.Second)<<30 + int64(wall%time.Second)
	words[1] += int64(monotonic)
	if out.Sub(at) != monotonic || out.Round(0).Sub(at.Round(0)) != wall {
		t.Fatal("package time stores its clocks in another way than this helper assumes: change the helper")
	}
	return out
}
