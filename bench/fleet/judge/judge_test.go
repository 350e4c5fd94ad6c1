package judge_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/bench/fleet/judge"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// Guarantees that each judge gives the results of a worked example: 10 units in 10 s, spent in the order of time and
// also late.
func TestJudge(t *testing.T) {
	type spend struct{ atSeconds, units, over int64 }
	tests := map[limit.Algorithm][]spend{
		limit.FixedWindow: {
			{100, 8, 0}, {109, 3, 1}, {109, 1, 1}, {110, 9, 0},
			{109, 1, 1}, // late: counted in the window that has ended
			{119, 2, 1}, {300, 10, 0},
		},
		limit.SlidingWindow: {
			{100, 8, 0}, {109, 2, 0},
			{115, 5, 0},              // 10 units of the window before weigh a half: 5
			{115, 2, 2}, {119, 2, 0}, // 10 units of the window before weigh a tenth: 1; 7 are spent
			{109, 1, 1}, // late: its own window holds 10 already
		},
		limit.TokenBucket: {{100, 10, 0}, {101, 2, 1}, {102, 1, 0}, {112, 10, 0}, {112, 1, 1}},
		limit.SlidingLog: {
			{100, 8, 0}, {105, 3, 1}, // 2 of them fit
			{110, 8, 0}, {114, 1, 1}, {115, 2, 0}, {115, 1, 1},
			{103, 1, 1}, // late: the period that ends at 110 has the units of 105 and 110, the one until 103 has room
		},
		limit.SlidingBuckets: { // of 5 s: those of the present bucket and of two before it count
			{100, 6, 0}, {107, 3, 0}, {112, 2, 1}, {114, 1, 1}, {115, 6, 0}, {115, 1, 1},
			{109, 1, 1},               // late: there is room with the two before it, and none with the two after it
			{200, 10, 0}, {110, 1, 0}, // too late for any bucket that is kept
		},
		limit.LeakyBucket: {
			{100, 2, 0}, {101, 1, 1}, {102, 5, 0}, {106, 1, 1}, {107, 1, 0},
			{106, 1, 1}, // late: it comes too soon after 102
			{99, 1, 0}, {98, 2, 2},
		},
	}
	for alg, spends := range tests {
		j := judge.New(judge.Counter{Algorithm: alg, Most: 10, Burst: 10, Period: 10 * time.Second, Buckets: 2})
		for i, s := range spends {
			if fits := j.Clone().Fits(s.atSeconds*1e6, s.units); fits != (s.over == 0) {
				t.Errorf("%v, step %d: Fits = %t, want %t", alg, i, fits, s.over == 0)
			}
			if over := j.Spend(s.atSeconds*1e6, s.units); over != s.over {
				t.Errorf("%v, step %d: Spend(%d, %d) = %d, want %d", alg, i, s.atSeconds, s.units, over, s.over)
			}
		}
	}
	shifted := judge.New(judge.Counter{Algorithm: limit.FixedWindow, Most: 10, Period: 10 * time.Second,
		Offset: 3 * time.Second})
	for i, s := range []spend{{105, 8, 0}, {112, 3, 1}, {113, 10, 0}, {122, 1, 1}, {123, 10, 0}} {
		if fits := shifted.Clone().Fits(s.atSeconds*1e6, s.units); fits != (s.over == 0) {
			t.Errorf("shifted windows, step %d: Fits = %t, want %t", i, fits, s.over == 0)
		}
		if over := shifted.Spend(s.atSeconds*1e6, s.units); over != s.over {
			t.Errorf("shifted windows, step %d: Spend(%d, %d) = %d, want %d", i, s.atSeconds, s.units, over, s.over)
		}
	}
}

// Guarantees that an admission which is late by some windows is counted in its own one.
func TestLateWindow(t *testing.T) {
	j := judge.New(judge.Counter{Algorithm: limit.FixedWindow, Most: 10, Period: 10 * time.Second})
	for i, s := range []struct{ atSeconds, units, over int64 }{
		{100, 9, 0}, {110, 9, 0}, {120, 9, 0}, {130, 9, 0}, {115, 2, 1}, {105, 2, 1}, {125, 1, 0}, {121, 1, 1},
		{139, 2, 1},
	} {
		if over := j.Spend(s.atSeconds*1e6, s.units); over != s.over {
			t.Errorf("step %d: Spend(%d s, %d) = %d, want %d", i, s.atSeconds, s.units, over, s.over)
		}
	}
}

// Guarantees that a sliding window of many units over a long period is judged without an overflow: half of the units
// of the window before count in the middle of a window.
func TestLargeSlidingWindow(t *testing.T) {
	const day, most = int64(24 * time.Hour / time.Microsecond), int64(1e12)
	j := judge.New(judge.Counter{Algorithm: limit.SlidingWindow, Most: most, Period: 24 * time.Hour})
	if over := j.Spend(100*day, most); over != 0 {
		t.Fatalf("%d of %d units are too many, want none", over, most)
	}
	if over := j.Spend(101*day+day/2, most/2+7); over != 7 {
		t.Errorf("in the middle of the next window, %d units are too many, want 7", over)
	}
}

// Guarantees the windows of quotas: when they begin in a time zone, and on an anchor day that not every month has.
func TestQuota(t *testing.T) {
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		calendar         limit.Calendar
		within, after    string // the last minute of a window, and the first one of the next
		early, lateAfter string // other times in the two windows
	}{
		{limit.Calendar{Every: limit.Day}, "2027-03-28 23:59", "2027-03-29 00:00",
			"2027-03-28 00:00", "2027-03-29 23:00"},
		{limit.Calendar{Every: limit.Week}, "2027-01-17 23:59", "2027-01-18 00:00",
			"2027-01-11 00:00", "2027-01-24 12:00"},
		{limit.Calendar{Every: limit.Month}, "2027-02-28 23:59", "2027-03-01 00:00",
			"2027-02-01 00:00", "2027-03-31 12:00"},
		{limit.Calendar{Every: limit.Month, AnchorDay: 31}, "2027-02-27 23:59", "2027-02-28 00:00",
			"2027-01-31 00:00", "2027-03-30 23:59"},
		{limit.Calendar{Every: limit.Year, AnchorMonth: time.April, AnchorDay: 15},
			"2027-04-14 23:59", "2027-04-15 00:00", "2026-04-15 00:00", "2028-04-14 12:00"},
	} {
		test.calendar.Location = zone
		j := judge.New(judge.Counter{Algorithm: limit.Quota, Most: 10, Calendar: &test.calendar})
		for i, step := range []struct {
			at          string
			units, over int64
		}{{test.early, 9, 0}, {test.within, 2, 1}, {test.after, 9, 0}, {test.within, 1, 1}, {test.lateAfter, 2, 1}} {
			at, err := time.ParseInLocation("2006-01-02 15:04", step.at, zone)
			if err != nil {
				t.Fatal(err)
			}
			if over := j.Spend(at.UnixMicro(), step.units); over != step.over {
				t.Errorf("%s, step %d: Spend(%s, %d) = %d, want %d", test.calendar.String(), i, step.at,
					step.units, over, step.over)
			}
		}
	}
}

// Guarantees that a judge agrees with one counter that has no leases, in the order of time: what the counter admits
// fits, and what it denies does not.
func TestAgreesWithCounter(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for _, alg := range judge.Algorithms() {
		tier := limit.Tier{Algorithm: alg, Threshold: 17, Period: 7 * time.Second}
		if alg == limit.Quota {
			tier.Period, tier.Calendar = 0, &limit.Calendar{Every: limit.Day, Location: time.UTC}
		}
		l, err := limit.New(limit.Limit{ID: "l", MaxCost: 5, Tiers: []limit.Tier{tier}})
		if err != nil {
			t.Fatal(err)
		}
		store := memorytest.New(t)
		of := &l.Tiers[0]
		j := judge.New(judge.Counter{Algorithm: alg, Most: of.Threshold, Burst: of.Capacity(), Period: of.Period,
			Buckets: of.Buckets, Calendar: of.Calendar})
		at, admitted, denied := time.Unix(1_800_000_000, 0), 0, 0
		for range soak.Times(20_000) {
			step := 500 * time.Millisecond
			if alg == limit.Quota {
				step = time.Hour
			}
			at = at.Add(time.Duration(random.Int64N(int64(step))) / 1000 * 1000)
			cost := 1 + random.Int64N(5)
			req := limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: "acme"},
				Charges: []limit.Charge{{Limit: l, Cost: cost}}}
			var d limit.Decision
			if err := store.Decide(t.Context(), &req, at, &d); err != nil {
				t.Fatal(err)
			}
			if fits := j.Fits(at.UnixMicro(), cost); fits != d.Allowed {
				t.Fatalf("%s, %d units at %s: Fits = %t, the counter admits: %t", alg, cost, at, fits, d.Allowed)
			}
			if !d.Allowed {
				denied++
				continue
			}
			admitted++
			if over := j.Spend(at.UnixMicro(), cost); over != 0 {
				t.Fatalf("%s: %d of %d units at %s are too many by the judge, want none", alg, over, cost, at)
			}
		}
		if admitted < 100 || denied < 100 {
			t.Errorf("%s: %d admitted, %d denied: the script is no test", alg, admitted, denied)
		}
	}
}

// Guarantees that every algorithm of the limiter has a judge, and for which of them a unit can take the room of two.
func TestAlgorithms(t *testing.T) {
	twice := []limit.Algorithm{limit.SlidingWindow, limit.SlidingBuckets, limit.SlidingLog, limit.LeakyBucket}
	if all := judge.Algorithms(); len(all) != len(limit.Algorithms()) {
		t.Errorf("there are judges of %v, want one of each of %v", all, limit.Algorithms())
	}
	for _, a := range judge.Algorithms() {
		if got, want := judge.CountsTwice(a), slices.Contains(twice, a); got != want {
			t.Errorf("CountsTwice(%s) = %t, want %t", a, got, want)
		}
	}
	if judge.New(judge.Counter{Algorithm: 99}) != nil {
		t.Error("there is a judge of algorithm 99")
	}
}
