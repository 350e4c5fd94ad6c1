package limit_test

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"

	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// These tests repeat worked examples from the documents in which the algorithms were described.

// Guarantees that the edges of a window are those of the wall clock.
func TestWindowOfTheSLAForm(t *testing.T) {
	l := oneTier(t, "sla", limit.Tier{Algorithm: limit.FixedWindow, Threshold: 1, Period: 10 * time.Second})
	now := time.UnixMilli(162731878077)
	d := newBook(t).charge(now, l)
	entry := d.Receipt().Entries()[0]
	if got, want := entry.At(), int64(162731870000)*1000; got != want {
		t.Errorf("the window that contains 162731878077 ms starts at %d µs, want %d", got, want)
	}
	if got, want := d.Results[0].ResetAt(), int64(162731880000)*1000; got != want {
		t.Errorf("the window that contains 162731878077 ms ends at %d µs, want %d", got, want)
	}
	b := newBook(t)
	for _, tc := range []struct {
		ms   int64
		want bool
	}{{162731870000, true}, {162731878077, false}, {162731879999, false}, {162731880000, true}} {
		if got := b.charge(time.UnixMilli(tc.ms), l).Allowed; got != tc.want {
			t.Errorf("at %d ms: allowed %t, want %t", tc.ms, got, tc.want)
		}
	}
}

// Guarantees what each algorithm admits around the edge of a window: five per five seconds, requested on both sides of
// an edge.
func TestEdgeEffect(t *testing.T) {
	before, after := time.Unix(1_000_004, 900_000_000), time.Unix(1_000_005, 100_000_000)
	for _, tc := range []struct {
		algorithm limit.Algorithm
		want      int
	}{
		{limit.FixedWindow, 10}, {limit.SlidingLog, 5}, {limit.SlidingBuckets, 5}, {limit.SlidingWindow, 5},
		{limit.TokenBucket, 5}, // a fifth of a second refills a fifth of a unit
	} {
		l := oneTier(t, "edge", limit.Tier{Algorithm: tc.algorithm, Threshold: 5, Period: 5 * time.Second})
		b := newBook(t)
		if got := b.admits(20, before, l) + b.admits(20, after, l); got != tc.want {
			t.Errorf("%s: 5 per 5 s admits %d around an edge, want %d", tc.algorithm, got, tc.want)
		}
	}
}

// Guarantees that both tiers of a limit apply: ten in any second, and fifty in ten seconds.
func TestTwoTiers(t *testing.T) {
	l := mustNew(t, limit.Limit{ID: "tiers", Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: 10, Period: time.Second},
		{Algorithm: limit.FixedWindow, Threshold: 50, Period: 10 * time.Second},
	}})
	b := newBook(t)
	want := []int{10, 10, 10, 10, 10, 0, 0, 0, 0, 0, 10}
	for second, want := range want {
		at := time.Unix(1_000_000+int64(second), 0)
		if got := b.admits(25, at, l); got != want {
			t.Errorf("second %d: %d admitted, want %d", second, got, want)
		}
	}
	b = newBook(t)
	b.admits(10, time.Unix(1_000_000, 0), l)
	d := b.charge(time.Unix(1_000_000, 500_000_000), l)
	if got, want := d.RetryAfter(), 500*time.Millisecond; got != want || d.Binding() != &d.Results[0] {
		t.Errorf("denied by the tier of a second: retry after %s, want %s", got, want)
	}
}

// Guarantees that with 24 hourly sub-counters, the units of an hour are free again when that hour ended a day ago.
func TestDayInSubCounters(t *testing.T) {
	l := oneTier(t, "day", limit.Tier{Algorithm: limit.SlidingBuckets, Threshold: 300, Period: 24 * time.Hour,
		Buckets: 24})
	midnight := time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	b := newBook(t)
	for hour := range 24 {
		if got, want := b.admits(13, midnight.Add(time.Duration(hour)*time.Hour+30*time.Minute), l), min(13,
			300-13*hour); got != max(want, 0) {
			t.Errorf("hour %d: %d admitted, want %d", hour, got, want)
		}
	}
	for _, tc := range []struct {
		at   time.Duration
		want int
	}{
		{24 * time.Hour, 0},                         // the 13 units of the first hour still count
		{24*time.Hour + 59*time.Minute, 0},          //
		{25 * time.Hour, 13},                        // the first hour has ended a day ago
		{25*time.Hour + 59*time.Minute, 0},          //
		{26 * time.Hour, 13},                        //
		{50*time.Hour - time.Microsecond, 300 - 26}, // all hours of the first day are free, and none of the second
	} {
		if got := b.admits(400, midnight.Add(tc.at), l); got != tc.want {
			t.Errorf("%s after the first midnight: %d admitted, want %d", tc.at, got, tc.want)
		}
	}
}

// Guarantees that the rate of a bucket is continuous: five units, refilled by two every two seconds, gain one unit a
// second.
func TestBucketOfFive(t *testing.T) {
	l := oneTier(t, "bucket", limit.Tier{Algorithm: limit.TokenBucket, Threshold: 2, Period: 2 * time.Second, Burst: 5})
	b := newBook(t)
	start := time.Unix(1_000_000, 0)
	for _, tc := range []struct {
		at   time.Duration
		want int
	}{{0, 5}, {999_999 * time.Microsecond, 0}, {time.Second, 1}, {2 * time.Second, 1}, {4 * time.Second, 2},
		{time.Minute, 5}} {
		if got := b.admits(10, start.Add(tc.at), l); got != tc.want {
			t.Errorf("after %s: %d admitted, want %d", tc.at, got, tc.want)
		}
	}
}

// Guarantees that two limits of a tenant do not affect each other, nor other tenants: GET /product/* 1000 and PUT 100
// per ten seconds.
func TestTwoEndpointsPerTenant(t *testing.T) {
	get := mustNew(t, limit.Limit{ID: "get-product", Per: "endpoint",
		Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 1000, Period: 10 * time.Second}}})
	put := mustNew(t, limit.Limit{ID: "put-product", Per: "endpoint",
		Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 100, Period: 10 * time.Second}}})
	now := time.UnixMilli(162731878077)
	for _, tenant := range []string{"acme", "zeta"} {
		b := newBook(t)
		b.owner.Name = tenant
		count := func(l *limit.Limit, method string, n int) int {
			admitted := 0
			for range n {
				if b.decide(now, limit.Charge{Limit: l, Value: limit.JoinValues(limit.ValueOf(method),
					limit.ValueOf("/product/*")), Cost: 1}).Allowed {
					admitted++
				}
			}
			return admitted
		}
		if got := count(put, "PUT", 150); got != 100 {
			t.Errorf("%s: %d PUTs admitted, want 100", tenant, got)
		}
		if got := count(get, "GET", 1200); got != 1000 {
			t.Errorf("%s: %d GETs admitted, want 1000", tenant, got)
		}
	}
}

// Guarantees that a leaky bucket admits one request per interval, however many are made.
func TestLeakyBucketIsEven(t *testing.T) {
	soak.SkipUnderRace(t)
	l := oneTier(t, "leaky", limit.Tier{Algorithm: limit.LeakyBucket, Threshold: 3, Period: time.Second})
	b := newBook(t)
	start, last, admitted := time.Unix(1_000_000, 0), time.Time{}, 0
	for us := int64(0); us < 10_000_000; us += 101 {
		at := start.Add(time.Duration(us) * time.Microsecond)
		if !b.charge(at, l).Allowed {
			continue
		}
		if gap := at.Sub(last); admitted > 0 && gap < 333_334*time.Microsecond {
			t.Fatalf("a request is admitted %s after the one before, want at least a third of a second", gap)
		}
		last = at
		admitted++
	}
	if admitted != 30 {
		t.Errorf("a leaky bucket of 3 per second admitted %d of many requests in 10 s, want 30", admitted)
	}
}
