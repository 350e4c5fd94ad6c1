package resilience

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
)

// Guarantees that a cached part is used only with the instance count and in the calendar period for which it was made:
// the next month has another length.
func TestPartIsCurrent(t *testing.T) {
	l := limittest.MustNew(t, limit.Limit{ID: "l", Tiers: []limit.Tier{{Algorithm: limit.Quota, Threshold: 100,
		Calendar: &limit.Calendar{Every: limit.Month, Location: time.UTC, AnchorDay: 1}}}})
	start, end := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name      string
		instances int64
		at        time.Time
		want      bool
	}{
		{"at the start of the month", 4, start, true},
		{"before the month", 4, start.Add(-time.Microsecond), false},
		{"at the end of the month", 4, end.Add(-time.Microsecond), true},
		{"at the start of the next month", 4, end, false},
		{"with another number of instances", 5, start, false},
	} {
		f, err := NewFallback(FallbackConfig{Store: struct{ limit.Store }{}})
		if err != nil {
			t.Fatal(err)
		}
		cached, err := f.partOf(l, 4, start.Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		got, err := f.partOf(l, c.instances, c.at)
		if err != nil || got == cached != c.want {
			t.Errorf("%s: the cached part is used: %t, %v; want %t", c.name, got == cached, err, c.want)
		}
	}
}
