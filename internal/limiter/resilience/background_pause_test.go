package resilience

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
)

// Guarantees that spare leases are searched once in a period, also by a process that was frozen: each search visits all
// leases.
func TestSparePause(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const period, ms = lease.DefaultGiveBackEvery, time.Millisecond
	var pause spareTimer
	for i, step := range []struct {
		after time.Duration
		want  bool
	}{{0, true}, {0, false}, {period - ms, false}, {period, true}, {2*period - ms, false}, {time.Hour, true}} {
		if got := pause.claimTurn(now.Add(step.after)); got != step.want {
			t.Errorf("step %d, after %s: a search is due: %t, want %t", i, step.after, got, step.want)
		}
	}
}
