package cell

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/config"
)

// Guarantees that the cell's part is reported once a minute, from when a plan is known, and FullestReplayed at each
// call.
func TestGaugesOnceAMinute(t *testing.T) {
	began := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	back, asked := int64(0), 0
	g := &gauges{chargedBack: func() int64 { return back }, grants: func(now time.Time) []config.Grant {
		if asked++; now.Before(began.Add(5 * time.Second)) {
			return nil
		}
		return []config.Grant{{Whole: 30, Granted: 10}}
	}}
	for _, second := range []int{0, 4} {
		if got := g.at(began.Add(time.Duration(second) * time.Second)); got.LimitEffective != -1 {
			t.Errorf("second %d: %+v, want LimitEffective of -1: no plan was read yet", second, got)
		}
	}
	told := 0
	for second := 5; second < 5+180; second++ {
		back = int64(second)
		got := g.at(began.Add(time.Duration(second) * time.Second))
		if got.LimitEffective == 3333 {
			told++
		} else if got.LimitEffective != -1 {
			t.Errorf("second %d: %+v, want a third", second, got)
		}
		if got.FullestReplayed != back {
			t.Errorf("second %d: %+v, want %d as FullestReplayed", second, got, back)
		}
	}
	if told != 3 || asked != 2+3 {
		t.Errorf("the part was reported %d times in 3 minutes and computed %d times, want 3 and 5", told, asked)
	}
	if got := (&gauges{chargedBack: func() int64 { return 7 }}).at(began); got.LimitEffective != -1 ||
		got.FullestReplayed != 7 {
		t.Errorf("with plans of a file the gauges are %+v", got)
	}
}
