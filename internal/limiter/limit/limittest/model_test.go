package limittest

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"

	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// Guarantees that the model, against which stores are compared, agrees with worked examples that were computed by hand.
func TestModelByHand(t *testing.T) {
	type step struct {
		at        time.Duration
		cost      int64
		allowed   bool
		remaining int64
		retry     time.Duration // after Start
	}
	examples := []struct {
		name  string
		tier  limit.Tier
		steps []step
	}{
		{"fixed_window", limit.Tier{Algorithm: limit.FixedWindow, Threshold: 5, Period: 10 * time.Second}, []step{
			{9 * time.Second, 5, true, 0, 0}, {9 * time.Second, 1, false, 0, 10 * time.Second}, {10 * time.Second, 2,
				true,
				3, 0},
		}},
		{"sliding_window", limit.Tier{Algorithm: limit.SlidingWindow, Threshold: 10, Period: 10 * time.Second}, []step{
			// 10 units in the first window. 4 s into the next window they weigh 6, and 4.000001 s into it still 6,
			// because the weight is rounded up.
			{5 * time.Second, 10, true, 0, 0}, {14 * time.Second, 5, false, 4, 15 * time.Second}, {14 * time.Second, 4,
				true, 0, 0},
			{14*time.Second + 1, 1, false, 0, 15 * time.Second},
		}},
		{"sliding_buckets", limit.Tier{Algorithm: limit.SlidingBuckets, Threshold: 5, Period: 10 * time.Second,
			Buckets: 5}, []step{
			{time.Second, 5, true, 0, 0}, {11 * time.Second, 1, false, 0, 12 * time.Second}, {12 * time.Second, 1,
				true, 4, 0},
		}},
		{"sliding_log", limit.Tier{Algorithm: limit.SlidingLog, Threshold: 5, Period: 10 * time.Second}, []step{
			{0, 2, true, 3, 0}, {time.Second, 3, true, 0, 0}, {9 * time.Second, 3, false, 0, 11 * time.Second},
			{10 * time.Second, 2, true, 0, 0},
		}},
		{"token_bucket", limit.Tier{Algorithm: limit.TokenBucket, Threshold: 2, Period: 2 * time.Second, Burst: 5},
			[]step{
				{0, 5, true, 0, 0}, {500 * time.Millisecond, 1, false, 0, time.Second}, {1500 * time.Millisecond, 1,
					true,
					0,
					0}, {2 * time.Second, 1, true, 0, 0},
			}},
		{"leaky_bucket", limit.Tier{Algorithm: limit.LeakyBucket, Threshold: 3, Period: time.Second}, []step{
			{0, 1, true, 0, 0}, {333_333 * time.Microsecond, 1, false, 0, 333_334 * time.Microsecond},
			{333_334 * time.Microsecond, 3, true, 0, 0},
			{time.Second, 1, false, 0, 1_333_334 * time.Microsecond},
		}},
		{"quota", limit.Tier{Algorithm: limit.Quota, Threshold: 5, Calendar: &limit.Calendar{Every: limit.Day,
			Location: time.UTC}}, []step{
			{0, 5, true, 0, 0}, {13 * time.Hour, 1, false, 0, 14 * time.Hour}, {14 * time.Hour, 1, true, 4, 0},
		}},
	}
	named := map[string]bool{}
	for _, tc := range examples {
		named[tc.name] = true
		t.Run(tc.name, func(t *testing.T) {
			m := NewModel(t)
			l := build(t, limit.Limit{ID: "l", MaxCost: 10, Tiers: []limit.Tier{tc.tier}})
			for i, s := range tc.steps {
				o := m.Decide(acme, []limit.Charge{charge(l, s.cost)}, Start.Add(s.at).UnixMicro(), true)
				retry := int64(0)
				if s.retry != 0 {
					retry = Start.Add(s.retry).UnixMicro()
				}
				if o.Allowed != s.allowed || o.Tiers[0].Remaining != s.remaining || o.RetryAt != retry {
					t.Errorf("step %d, %d units after %s: allowed %t, %d remain, retry %d; want %t, %d, %d",
						i+1, s.cost, s.at, o.Allowed, o.Tiers[0].Remaining, o.RetryAt, s.allowed, s.remaining, retry)
				}
			}
		})
	}
	for _, a := range limit.Algorithms() {
		if !named[a.String()] {
			t.Errorf("no worked example of %s: add one to the table", a)
		}
	}
}

// Guarantees that the cases of Stored, of which fixtures are made, have a counter of each algorithm.
func TestStoredCoversAlgorithms(t *testing.T) {
	stored := map[limit.Algorithm]bool{}
	for _, c := range Stored(t, func(*limit.Limit) error { return nil }) {
		for _, charges := range c.Charges {
			for _, charge := range charges {
				for i := range charge.Limit.Tiers {
					stored[charge.Limit.Tiers[i].Algorithm] = true
				}
			}
		}
	}
	for _, a := range limit.Algorithms() {
		if !stored[a] {
			t.Errorf("no case of Stored has a counter of %s: add a case of its own, which older fixtures do not have",
				a)
		}
	}
}

// Guarantees that the check of the bound reports an error if, and only if, the bound is exceeded.
func TestBoundCheckerCatches(t *testing.T) {
	for _, k := range (Config{}).samples() {
		t.Run(k.algorithm.String(), func(t *testing.T) {
			tier := k.limit(t, "l", 5).Tiers[0]
			c := &counter{tb: t}
			add := func(at time.Duration, units int64) {
				c.spends = append(c.spends, &spend{at: Start.Add(at).UnixMicro(), units: units, tier: tier})
			}
			add(0, 5)
			add(k.period, 5)
			if over := c.overBound(); over != "" {
				t.Fatalf("the check of the bound rejects 5 units in each of two periods of a limit of 5: %s; want "+
					"no error", over)
			}
			add(k.period+time.Microsecond, 6)
			if c.overBound() == "" {
				t.Errorf("the check of the bound accepts 11 units within a µs of a limit of 5, want an error")
			}
		})
	}
}

// Guarantees that the search by days finds the same period of a quota as package limit, which computes it.
func TestCalendarAgainstTheDays(t *testing.T) {
	soak.SkipUnderRace(t)
	zones := []string{"UTC", "Europe/Paris", "America/Sao_Paulo", "Africa/Cairo", "Asia/Beirut", "America/Havana",
		"America/St_Johns",
		"America/Goose_Bay", "Pacific/Apia", "Pacific/Kwajalein", "Australia/Lord_Howe", "Asia/Kathmandu",
		"Africa/Monrovia"}
	r := rand.New(rand.NewPCG(5, 5))
	from, until := time.Date(1971, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro(), time.Date(2036, 1, 1, 0, 0, 0, 0,
		time.UTC).UnixMicro()
	for range 1500 {
		loc, err := time.LoadLocation(zones[r.IntN(len(zones))])
		if err != nil {
			t.Fatal(err)
		}
		c := &limit.Calendar{Every: limit.Day + limit.Every(r.IntN(4)), Location: loc}
		switch c.Every {
		case limit.Month:
			c.AnchorDay = 1 + r.IntN(31)
		case limit.Year:
			c.AnchorDay, c.AnchorMonth = 1+r.IntN(31), time.Month(1+r.IntN(12))
		}
		now := from + r.Int64N(until-from)
		start, end := c.Period(now)
		if wantStart, wantEnd := calendarPeriod(c, now); start != wantStart || end != wantEnd {
			t.Fatalf("%s at %s: the period is [%s, %s), by the search over days [%s, %s); want the same", c,
				time.UnixMicro(now).UTC(), time.UnixMicro(start).UTC(), time.UnixMicro(end).UTC(),
				time.UnixMicro(wantStart).UTC(), time.UnixMicro(wantEnd).UTC())
		}
	}
}
