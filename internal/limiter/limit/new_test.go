package limit_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Guarantees that every number of a limit is checked, and that the error names the field.
func TestNewErrors(t *testing.T) {
	paris, err := time.LoadLocation("Europe/Paris")
	if err != nil {
		t.Fatal(err)
	}
	window := limit.Tier{Algorithm: limit.FixedWindow, Threshold: 10, Period: time.Second}
	bucket := limit.Tier{Algorithm: limit.TokenBucket, Threshold: 10, Period: time.Second, Burst: 20}
	quota := limit.Tier{Algorithm: limit.Quota, Threshold: 10, Calendar: &limit.Calendar{Every: limit.Month,
		Location: paris, AnchorDay: 31}}
	tier := func(t limit.Tier, change func(*limit.Tier)) limit.Limit {
		change(&t)
		return limit.Limit{ID: "l", Tiers: []limit.Tier{t}}
	}
	whole := func(change func(*limit.Limit)) limit.Limit {
		l := limit.Limit{ID: "l", Tiers: []limit.Tier{window}}
		change(&l)
		return l
	}
	calendar := func(c limit.Calendar) limit.Limit {
		return tier(quota, func(t *limit.Tier) { t.Calendar = &c })
	}
	many := make([]limit.Tier, limit.MaxTiers+1)
	for i := range many {
		many[i] = window
		many[i].Period = time.Duration(i+1) * time.Second
	}
	for _, tc := range []struct {
		name  string
		limit limit.Limit
		tier  int
		field string // "" means no error
	}{
		{"fine", whole(func(*limit.Limit) {}), 0, ""},
		{"longest id", whole(func(l *limit.Limit) { l.ID = strings.Repeat("a.B_-9zz", 8) }), 0, ""},
		{"empty id", whole(func(l *limit.Limit) { l.ID = "" }), -1, "id"},
		{"id too long", whole(func(l *limit.Limit) { l.ID = strings.Repeat("a", 65) }), -1, "id"},
		{"id with a space", whole(func(l *limit.Limit) { l.ID = "a b" }), -1, "id"},
		{"id with a letter that is not ASCII", whole(func(l *limit.Limit) { l.ID = "é" }), -1, "id"},
		{"id with a broken rune", whole(func(l *limit.Limit) { l.ID = "a\xff" }), -1, "id"},
		{"per too long", whole(func(l *limit.Limit) { l.Per = strings.Repeat("x", 129) }), -1, "per"},
		{"mode", whole(func(l *limit.Limit) { l.Mode = 3 }), -1, "mode"},
		{"policy", whole(func(l *limit.Limit) { l.OnStoreFailure = 3 }), -1, "onStoreFailure"},
		{"negative cost", whole(func(l *limit.Limit) { l.MaxCost = -1 }), -1, "cost"},
		{"largest cost", whole(func(l *limit.Limit) { l.MaxCost = limit.MaxUnits }), 0, ""},
		{"cost too large", whole(func(l *limit.Limit) { l.MaxCost = limit.MaxUnits + 1 }), -1, "cost"},
		{"negative values", whole(func(l *limit.Limit) { l.MaxValues = -1 }), -1, "maxValues"},
		{"too many values", whole(func(l *limit.Limit) { l.MaxValues = 1_000_001 }), -1, "maxValues"},
		{"no tiers", whole(func(l *limit.Limit) { l.Tiers = nil }), -1, "tiers"},
		{"most tiers", whole(func(l *limit.Limit) { l.Tiers = many[1:] }), 0, ""},
		{"too many tiers", whole(func(l *limit.Limit) { l.Tiers = many }), -1, "tiers"},
		{"one counter twice", whole(func(l *limit.Limit) { l.Tiers = []limit.Tier{window, bucket, window} }), 2,
			"period"},
		{"the second tier", whole(func(l *limit.Limit) {
			l.Tiers = []limit.Tier{window, {Algorithm: limit.FixedWindow, Period: time.Minute}}
		}), 1, "threshold"},
		{"one counter twice but for the ordinal", whole(func(l *limit.Limit) {
			other := window
			other.Ordinal = limit.MaxTiers
			l.Tiers = []limit.Tier{window, bucket, other}
		}), 0, ""},
		{"ordinal too large", tier(window, func(t *limit.Tier) { t.Ordinal = limit.MaxTiers + 1 }), 0, "tiers"},
		{"negative ordinal", tier(window, func(t *limit.Tier) { t.Ordinal = -1 }), 0, "tiers"},
		{"no algorithm", tier(window, func(t *limit.Tier) { t.Algorithm = 0 }), 0, "algorithm"},
		{"unknown algorithm", tier(window, func(t *limit.Tier) { t.Algorithm = 99 }), 0, "algorithm"},
		{"threshold 0", tier(window, func(t *limit.Tier) { t.Threshold = 0 }), 0, "threshold"},
		{"negative threshold", tier(window, func(t *limit.Tier) { t.Threshold = math.MinInt64 }), 0, "threshold"},
		{"largest threshold", tier(window, func(t *limit.Tier) { t.Threshold = limit.MaxUnits }), 0, ""},
		{"threshold too large", tier(window, func(t *limit.Tier) { t.Threshold = limit.MaxUnits + 1 }), 0, "threshold"},
		{"largest sliding_window", tier(window, func(t *limit.Tier) {
			t.Algorithm, t.Threshold = limit.SlidingWindow,
				limit.MaxSlidingUnits
		}), 0, ""},
		{"sliding_window too large", tier(window, func(t *limit.Tier) {
			t.Algorithm, t.Threshold = limit.SlidingWindow,
				limit.MaxSlidingUnits+1
		}), 0, "threshold"},
		{"largest sliding_log", tier(window, func(t *limit.Tier) {
			t.Algorithm, t.Threshold = limit.SlidingLog,
				limit.MaxLogEntries
		}), 0, ""},
		{"sliding_log too large", tier(window, func(t *limit.Tier) {
			t.Algorithm, t.Threshold = limit.SlidingLog,
				limit.MaxLogEntries+1
		}), 0, "threshold"},
		{"period 0", tier(window, func(t *limit.Tier) { t.Period = 0 }), 0, "period"},
		{"negative period", tier(window, func(t *limit.Tier) { t.Period = -time.Second }), 0, "period"},
		{"shortest period", tier(window, func(t *limit.Tier) { t.Period = limit.MinPeriod }), 0, ""},
		{"half a millisecond", tier(window, func(t *limit.Tier) { t.Period = 1500 * time.Microsecond }), 0, "period"},
		{"longest period", tier(window, func(t *limit.Tier) { t.Period = limit.MaxPeriod }), 0, ""},
		{"period too long", tier(window, func(t *limit.Tier) { t.Period = limit.MaxPeriod + time.Millisecond }), 0,
			"period"},
		{"burst of a window", tier(window, func(t *limit.Tier) { t.Burst = 1 }), 0, "burst"},
		{"buckets of a window", tier(window, func(t *limit.Tier) { t.Buckets = 1 }), 0, "buckets"},
		{"calendar of a window", tier(window, func(t *limit.Tier) { t.Calendar = quota.Calendar }), 0, "every"},
		{"too many buckets", tier(window, func(t *limit.Tier) {
			t.Algorithm, t.Buckets = limit.SlidingBuckets,
				limit.MaxBuckets+1
		}), 0, "buckets"},
		{"negative buckets", tier(window, func(t *limit.Tier) { t.Algorithm, t.Buckets = limit.SlidingBuckets, -1 }), 0,
			"buckets"},
		{"rate 0", tier(bucket, func(t *limit.Tier) { t.Threshold = 0 }), 0, "rate"},
		{"negative burst", tier(bucket, func(t *limit.Tier) { t.Burst = -1 }), 0, "burst"},
		{"burst too large", tier(bucket, func(t *limit.Tier) { t.Burst = limit.MaxUnits + 1 }), 0, "burst"},
		{"burst that cannot be counted", tier(bucket, func(t *limit.Tier) {
			t.Threshold, t.Period, t.Burst = 7,
				limit.MaxPeriod, 1<<20
		}), 0, "burst"},
		{"leaky cost that cannot be counted", limit.Limit{ID: "l", MaxCost: 1 << 20, Tiers: []limit.Tier{
			{Algorithm: limit.LeakyBucket, Threshold: 1<<20 + 7, Period: limit.MaxPeriod}}}, 0, "rate"},
		{"leaky bucket of bytes", limit.Limit{ID: "l", Unit: "bytes", Tiers: []limit.Tier{
			{Algorithm: limit.LeakyBucket, Threshold: 10, Period: time.Second}}}, 0, "algorithm"},
		{"units 0", tier(quota, func(t *limit.Tier) { t.Threshold = 0 }), 0, "units"},
		{"period of a quota", tier(quota, func(t *limit.Tier) { t.Period = time.Hour }), 0, "period"},
		{"no calendar", tier(quota, func(t *limit.Tier) { t.Calendar = nil }), 0, "every"},
		{"no zone", calendar(limit.Calendar{Every: limit.Day}), 0, "every"},
		{"no every", calendar(limit.Calendar{Location: paris}), 0, "every"},
		{"unknown every", calendar(limit.Calendar{Every: 5, Location: paris}), 0, "every"},
		{"anchor of a day", calendar(limit.Calendar{Every: limit.Day, Location: paris, AnchorDay: 1}), 0, "every"},
		{"anchor of a week", calendar(limit.Calendar{Every: limit.Week, Location: paris, AnchorDay: 1}), 0, "every"},
		{"anchor 32", calendar(limit.Calendar{Every: limit.Month, Location: paris, AnchorDay: 32}), 0, "every"},
		{"anchor -1", calendar(limit.Calendar{Every: limit.Month, Location: paris, AnchorDay: -1}), 0, "every"},
		{"month of a month", calendar(limit.Calendar{Every: limit.Month, Location: paris, AnchorMonth: 1}), 0, "every"},
		{"month 13", calendar(limit.Calendar{Every: limit.Year, Location: paris, AnchorMonth: 13}), 0, "every"},
		{"year", calendar(limit.Calendar{Every: limit.Year, Location: paris, AnchorMonth: 2, AnchorDay: 29}), 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, err := limit.New(tc.limit)
			if tc.field == "" {
				if err != nil || l == nil {
					t.Fatalf("New(%+v) = %v, want no error", tc.limit, err)
				}
				return
			}
			var field *limit.FieldError
			if !errors.As(err, &field) || l != nil {
				t.Fatalf("New(%+v) = %v, %v; want a FieldError", tc.limit, l, err)
			}
			if field.Tier != tc.tier || field.Field != tc.field || field.Reason == "" {
				t.Errorf("New(%+v): error of tier %d, field %q (%v); want tier %d, field %q", tc.limit, field.Tier,
					field.Field, err, tc.tier, tc.field)
			}
			if !strings.Contains(err.Error(), tc.field) {
				t.Errorf("error %q does not name the field %s", err, tc.field)
			}
		})
	}
}

// Guarantees that New reports all errors of a limit, not only the first one.
func TestNewReportsEveryError(t *testing.T) {
	_, err := limit.New(limit.Limit{ID: "a b", MaxCost: -1, Mode: 9, Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow}, {Algorithm: limit.TokenBucket, Threshold: 1, Period: time.Second, Burst: -1,
			Buckets: 3}}})
	for _, want := range []string{"id:", "cost:", "mode:", "tier 1: threshold:", "tier 1: period:",
		"tier 2: buckets:", "tier 2: burst:"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the errors do not include %q:\n%v", want, err)
		}
	}
}

// Guarantees that New copies the tiers, so that a limit cannot change under a decision.
func TestNewCopies(t *testing.T) {
	in := limit.Limit{ID: "l", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 5, Period: time.Second}}}
	l := mustNew(t, in)
	in.Tiers[0].Threshold = 1
	if got := l.Tiers[0].Capacity(); got != 5 {
		t.Errorf("capacity %d after the argument was changed, want 5", got)
	}
	if l.Per != limit.PerTenant || l.MaxCost != 1 || l.MaxValues != 10_000 {
		t.Errorf("defaults: per %q, cost %d, values %d; want tenant, 1 and 10000", l.Per, l.MaxCost, l.MaxValues)
	}
}

// Guarantees that New checks a limit with any period without a search for a divisor of the period: that could take
// minutes for each of these, and this test would not end in time.
func TestOddPeriodsLoadAtOnce(t *testing.T) {
	for _, prime := range []int64{1_048_583, 15_485_867, 31_622_399_989, 31_622_399_999} { // the longest period is near
		for range 1000 {
			mustNew(t, limit.Limit{ID: "odd", Tiers: []limit.Tier{{Algorithm: limit.SlidingWindow,
				Threshold: limit.MaxSlidingUnits, Period: time.Duration(prime) * time.Millisecond}}})
		}
	}
}

func TestNamesRoundTrip(t *testing.T) {
	for _, a := range limit.Algorithms() {
		if got, ok := limit.ParseAlgorithm(a.String()); !ok || got != a {
			t.Errorf("ParseAlgorithm(%q) = %v, %t; want the value with this name", a.String(), got, ok)
		}
	}
	for m := limit.Enforce; m <= limit.Off; m++ {
		if got, ok := limit.ParseMode(m.String()); !ok || got != m {
			t.Errorf("ParseMode(%q) = %v, %t; want the value with this name", m.String(), got, ok)
		}
	}
	for p := limit.Backstop; p <= limit.Closed; p++ {
		if got, ok := limit.ParseFailurePolicy(p.String()); !ok || got != p {
			t.Errorf("ParseFailurePolicy(%q) = %v, %t; want the value with this name", p.String(), got, ok)
		}
	}
	for e := limit.Day; e <= limit.Year; e++ {
		if got, ok := limit.ParseEvery(e.String()); !ok || got != e {
			t.Errorf("ParseEvery(%q) = %v, %t; want the value with this name", e.String(), got, ok)
		}
	}
	if a, ok := limit.ParseAlgorithm(""); ok {
		t.Errorf("ParseAlgorithm(\"\") = %v, true; want false", a)
	}
	if e, ok := limit.ParseEvery(""); ok {
		t.Errorf("ParseEvery(\"\") = %v, true; want false", e)
	}
	got := fmt.Sprint(limit.Algorithm(99), limit.Mode(99), limit.FailurePolicy(99), limit.Every(99))
	if got != "algorithm(99) mode(99) policy(99) every(99)" {
		t.Errorf("String of unknown values = %q, want each with its type and number", got)
	}
}

// Guarantees that what a request turns out to use of a unit is never charged to a limit that is leased, unless its
// windows begin anew.
func TestUnitsAreExact(t *testing.T) {
	window := limit.Tier{Algorithm: limit.FixedWindow, Threshold: 10, Period: time.Second}
	bucket := limit.Tier{Algorithm: limit.TokenBucket, Threshold: 10, Period: time.Second}
	for _, tt := range []struct {
		unit  string
		tiers []limit.Tier
		want  bool
	}{
		{"requests", []limit.Tier{bucket}, false}, {"bytes", []limit.Tier{bucket}, true},
		{"bytes", []limit.Tier{window}, false}, {"bytes", []limit.Tier{window, bucket}, true},
	} {
		l, err := limit.New(limit.Limit{ID: "l", Unit: tt.unit, Tiers: tt.tiers})
		if err != nil || l.Exact != tt.want {
			t.Errorf("%s of %v: exact %t, %v; want %t", tt.unit, tt.tiers, l.Exact, err, tt.want)
		}
	}
}

// Guarantees that the limit that renews a place has the same counters, never denies, and is kept where the limit is.
func TestRenewal(t *testing.T) {
	held, err := limit.New(limit.Limit{ID: "in-flight", Unit: limit.ConcurrentRequests, Tiers: []limit.Tier{{
		Algorithm: limit.SlidingBuckets, Threshold: 8, Period: 30 * time.Second, Buckets: 8}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []*limit.Limit{held, held.KeptIn("eu-1")} {
		r := l.Renewal()
		tier := &r.Tiers[0]
		if r.Home != l.Home || tier.Identity() != l.Tiers[0].Identity() || tier.Capacity() != limit.MaxUnits ||
			tier.Limit() != r {
			t.Errorf("limit kept in %q is renewed by %+v", l.Home, r)
		}
	}
}
