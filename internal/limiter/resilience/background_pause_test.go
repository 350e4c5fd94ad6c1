package resilience

import (
	"testing"
	"time"
)

// Guarantees that spare leases are searched once in a period, also by a process that was frozen, and never if the
// search is off: each search visits all leases.
func TestSparePause(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	pause := spareTimer{period: time.Second}
	for i, step := range []struct {
		after time.Duration
		want  bool
	}{{0, true}, {0, false}, {999 * time.Millisecond, false}, {time.Second, true}, {1999 * time.Millisecond, false},
		{time.Hour, true}} {
		if got := pause.claimTurn(now.Add(step.after)); got != step.want {
			t.Errorf("step %d, after %s: a search is due: %t, want %t", i, step.after, got, step.want)
		}
	}
	if off := (spareTimer{period: -1}); off.claimTurn(now) {
		t.Error("a search is due although the search is off")
	}
}
