package resilience

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Guarantees that a cached part is used only with the instance count and in the calendar period for which it was made:
// the next month has another length.
func TestPartIsCurrent(t *testing.T) {
	l, err := limit.New(limit.Limit{ID: "l", Tiers: []limit.Tier{{Algorithm: limit.Quota, Threshold: 100,
		Calendar: &limit.Calendar{Every: limit.Month, Location: time.UTC, AnchorDay: 1}}}})
	if err != nil {
		t.Fatal(err)
	}
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
		parts, err := NewParts(10)
		if err != nil {
			t.Fatal(err)
		}
		cached, err := parts.of(l, 4, start.Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		got, err := parts.of(l, c.instances, c.at)
		if err != nil || got == cached != c.want {
			t.Errorf("%s: the cached part is used: %t, %v; want %t", c.name, got == cached, err, c.want)
		}
	}
}

// Guarantees that the cache keeps no more parts than it may, and keeps those that are used.
func TestPartsAreBounded(t *testing.T) {
	const most = 10
	parts, err := NewParts(most)
	if err != nil {
		t.Fatal(err)
	}
	l, err := limit.New(limit.Limit{ID: "l", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 100,
		Period: time.Second}}})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_800_000_000, 0)
	used, err := parts.of(l, 1, now)
	if err != nil {
		t.Fatal(err)
	}
	for n := int64(2); n < 100; n++ {
		if _, err := parts.of(l, n, now); err != nil {
			t.Fatal(err)
		}
		if got, err := parts.of(l, 1, now); err != nil || got != used {
			t.Fatalf("after %d parts, the part that is used all the time was made anew, %v", n, err)
		}
		if held := len(parts.recent) + len(parts.before); held > most {
			t.Fatalf("after %d parts, the cache holds %d, want at most %d", n, held, most)
		}
	}
	if _, err := NewParts(1); err == nil {
		t.Error("NewParts(1) made a cache, want an error")
	}
}
