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
		parts := partCache{most: 10}
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

// Guarantees that the cache keeps as many parts as it is made for, those that were used last, and holds no more than
// twice as many.
func TestPartsAreBounded(t *testing.T) {
	const most = 10
	parts := partCache{most: most}
	l, err := limit.New(limit.Limit{ID: "l", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 100,
		Period: time.Second}}})
	if err != nil {
		t.Fatal(err)
	}
	var made [100]*part
	use := func(n int) (isCached bool) {
		p, err := parts.of(l, int64(n+1), time.Unix(1_800_000_000, 0))
		if err != nil {
			t.Fatal(err)
		}
		isCached, made[n] = p == made[n], p
		if held := len(parts.recent) + len(parts.before); held > 2*most {
			t.Fatalf("the cache holds %d parts, want at most %d", held, 2*most)
		}
		return isCached
	}
	for from := range len(made) - most {
		for n := from; n < from+most; n++ {
			use(n)
		}
		for n := from; n < from+most; n++ {
			if !use(n) {
				t.Fatalf("part %d was made anew after %d others", n, most-1)
			}
		}
	}
	if use(0) {
		t.Error("a part is still cached after many others, want it forgotten")
	}
}
