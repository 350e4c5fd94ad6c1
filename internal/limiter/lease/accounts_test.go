package lease_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

var noon = time.UnixMicro(1_772_452_800_000_000)

// greedy leases all units.
type greedy struct{}

func (greedy) SizeLease(v *lease.View, a *limit.LeaseRequest) {
	a.Most, a.Ample, a.Share = v.Tier.Capacity(), v.Tier.Capacity(), limit.ShareOne
}

func (greedy) DenyFor(_ *lease.View, fits time.Duration, _ int) time.Duration { return fits }

// noLeases leases no units.
type noLeases struct{ greedy }

func (noLeases) SizeLease(*lease.View, *limit.LeaseRequest) {}

// daily returns a limit whose units do not become free by themselves during a test.
func daily(tb testing.TB, id string, a limit.Algorithm, threshold int64) *limit.Limit {
	t := limit.Tier{Algorithm: a, Period: 24 * time.Hour, Threshold: threshold}
	if a == limit.Quota {
		t.Period, t.Calendar = 0, &limit.Calendar{Every: limit.Day, Location: time.UTC}
	}
	return newLimit(tb, id, nil, t)
}

func usedUnits(tb testing.TB, s limit.Store, l *limit.Limit, now time.Time) int64 {
	tb.Helper()
	var d limit.Decision
	if err := s.Peek(context.Background(), request(l), now, &d); err != nil {
		tb.Fatal(err)
	}
	return d.Results[0].Used()
}

func leasedUnits(s *lease.Store, l *limit.Limit) int64 {
	n := int64(0)
	s.Each(func(h lease.Held) bool {
		if h.Tier.Limit().ID == l.ID {
			n += h.Units
		}
		return true
	})
	return n
}

// Guarantees that the store counts at any time the units that were admitted, and those that are leased and not spent.
// After Close it counts the admitted units and the lost ones.
func TestStoreCountsWhatIsOut(t *testing.T) {
	soak.SkipUnderRace(t)
	for _, a := range leasable {
		t.Run(a.String(), func(t *testing.T) {
			returned := int64(0)
			for seed := range soak.Times(uint64(20)) {
				r := rand.New(rand.NewPCG(seed, 9))
				below := newMemory(t)
				now := noon
				s := open(t, lease.Config{Store: below, GiveBackEvery: -1, Clock: func() time.Time { return now },
					Rule: &wild{r}})
				l, gate := daily(t, "a", a, 300), window(t, "b", time.Second, 3)
				admitted := int64(0)
				for range 150 {
					now = now.Add(time.Duration(r.IntN(400)) * time.Millisecond)
					req := request(l)
					if r.IntN(3) > 0 {
						req = request(l, gate)
					}
					if req.Charges[0].Cost = 1 + r.Int64N(4); decide(t, s, req, now).Allowed {
						admitted += req.Charges[0].Cost
					}
					if r.IntN(10) == 0 {
						s.GiveBackSpare(context.Background(), now)
					}
					if out, counted := admitted+leasedUnits(s, l), usedUnits(t, below, l, now); out > counted {
						t.Fatalf("seed %d: %d units were admitted and %d are leased, but the store counts only %d",
							seed, admitted, leasedUnits(s, l), counted)
					}
				}
				if err := s.Close(context.Background()); err != nil {
					t.Fatal(err)
				}
				stats := s.Stats()
				returned += stats.Returned
				counted := usedUnits(t, below, l, now)
				if counted < admitted || a != limit.TokenBucket && counted > admitted+stats.Lost {
					t.Fatalf("seed %d: after Close the store counts %d units; %d were admitted and %d are lost; "+
						"want it between these two sums", seed, counted, admitted, stats.Lost)
				}
			}
			if returned < 100 {
				t.Errorf("%d units were given back, want 100 or more: the test shows too little", returned)
			}
		})
	}
}

// Guarantees that leased units are returned with the next request when the plan changes.
func TestChangeReturnsUnits(t *testing.T) {
	for _, a := range leasable {
		for _, change := range []string{"raised", "lowered", "exact", "removed"} {
			if a == limit.TokenBucket && (change == "raised" || change == "lowered") {
				continue // units cannot be given back to a bucket that was counted at another rate
			}
			t.Run(fmt.Sprintf("%s/%s", a, change), func(t *testing.T) {
				below := newMemory(t)
				s := openAt(t, &noon, below, greedy{})
				was := daily(t, "a", a, 100)
				decide(t, s, request(was), noon)
				if n := leasedUnits(s, was); n != 99 {
					t.Fatalf("%d units are leased, want 99", n)
				}
				to, b := *was, daily(t, "b", a, 10)
				switch change {
				case "raised":
					to.Tiers = append([]limit.Tier(nil), limit.Tier{Algorithm: a, Period: was.Tiers[0].Period,
						Threshold: 200, Calendar: was.Tiers[0].Calendar})
				case "lowered":
					to.Tiers = append([]limit.Tier(nil), limit.Tier{Algorithm: a, Period: was.Tiers[0].Period,
						Threshold: 50, Calendar: was.Tiers[0].Calendar})
				case "exact":
					to.Exact = true
				case "removed":
					decide(t, s, request(b), noon)
					if err := s.Close(context.Background()); err != nil {
						t.Fatal(err)
					}
					if n := usedUnits(t, below, was, noon); n != 1 {
						t.Errorf("the store counts %d after Close, want 1", n)
					}
					return
				}
				l := limittest.MustNew(t, to)
				if d := decide(t, s, request(l), noon); !d.Allowed {
					t.Errorf("after the change the limit denies, want it to admit: the lease of the old limit must "+
						"not count: %+v", d.Results)
				}
				if counted, left := usedUnits(t, below, l, noon), leasedUnits(s, l); counted-left != 2 ||
					change == "exact" && left != 0 {
					t.Errorf("the store counts %d units, and %d are leased; want the sum of the leased units and "+
						"the 2 that were admitted", counted, left)
				}
			})
		}
	}
}

// Guarantees that a denial reports nothing as remaining after a limit was lowered, although units of the old limit are
// leased, which the store does not accept back yet. Otherwise a client would read that more remains than the limit
// allows.
func TestDenialAfterALimitWasLowered(t *testing.T) {
	for _, a := range leasable {
		t.Run(a.String(), func(t *testing.T) {
			below := newMemory(t)
			s := openAt(t, &noon, below, greedy{})
			for range 30 {
				decide(t, s, request(daily(t, "a", a, 100)), noon)
			}
			low := daily(t, "a", a, 10)
			for range 3 { // denied by the store, and then by the remembered denial
				d := decide(t, s, request(low), noon)
				if d.Allowed || d.Results[0].Remaining() != 0 || d.Results[0].Used() < 10 {
					t.Errorf("allowed: %v, %d units used and %d remaining; want a denial with none remaining",
						d.Allowed, d.Results[0].Used(), d.Results[0].Remaining())
				}
			}
		})
	}
}

// Guarantees that a denial does not outlive its limit if the plan changes during the call.
func TestChangeUnderACall(t *testing.T) {
	small, large := window(t, "a", time.Hour, 2), window(t, "a", time.Hour, 1000)
	below := newMemory(t)
	var s *lease.Store
	during := func() {}
	s = open(t, lease.Config{Store: hook{below, func() { f := during; during = func() {}; f() }}, GiveBackEvery: -1,
		Rule: noLeases{}, Clock: func() time.Time { return noon }})
	decide(t, s, request(small), noon)
	decide(t, s, request(small), noon)
	during = func() { decide(t, s, request(large), noon) }
	if decide(t, s, request(small), noon).Allowed {
		t.Error("a third unit of a limit of two is admitted, want a denial")
	}
	if !decide(t, s, request(large), noon).Allowed {
		t.Error("the new limit denies because of a denial by the old one, want it to admit")
	}
}

// hook calls f before each answer.
type hook struct {
	limit.Store
	f func()
}

func (h hook) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	err := h.Store.Decide(ctx, req, now, d)
	h.f()
	return err
}

// Guarantees that Close gives back to more counters than a request may have, and to two versions of one limit.
func TestCloseGivesBackToMany(t *testing.T) {
	below := newMemory(t)
	s := openAt(t, &noon, below, greedy{})
	day, hour := limit.Tier{Algorithm: limit.FixedWindow, Period: 24 * time.Hour, Threshold: 10},
		limit.Tier{Algorithm: limit.FixedWindow, Period: time.Hour, Threshold: 10}
	per := func(l *limit.Limit) { l.Per = "subject" }
	old, l := newLimit(t, "a", per, day, hour), newLimit(t, "a", per, day)
	const values = 3000
	for i := range values {
		for _, version := range []*limit.Limit{old, l} {
			req := request(version)
			req.Charges[0].Value = limit.ValueOf(fmt.Sprint(i))
			decide(t, s, req, noon)
		}
	}
	if err := s.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	for i := range values {
		req := request(old)
		req.Charges[0].Value = limit.ValueOf(fmt.Sprint(i))
		var d limit.Decision
		if err := below.Peek(context.Background(), req, noon, &d); err != nil || d.Results[0].Used() != 2 ||
			d.Results[1].Used() != 1 {
			t.Fatalf("value %d: %d units of the old limit and %d of the new one are used, want 2 and 1: %v", i,
				d.Results[0].Used(), d.Results[1].Used(), err)
		}
	}
}

// Guarantees that units which will probably not be spent are given back if the store has few units left.
func TestSpareUnitsAreGivenBack(t *testing.T) {
	for _, a := range leasable {
		t.Run(a.String(), func(t *testing.T) {
			below := newMemory(t)
			s := openAt(t, &noon, below, greedy{})
			l := daily(t, "a", a, 100)
			decide(t, s, request(l), noon)
			before := usedUnits(t, below, l, noon)
			s.GiveBackSpare(context.Background(), noon.Add(500*time.Millisecond))
			after, left := usedUnits(t, below, l, noon), leasedUnits(s, l)
			if before != 100 || after > 50 || after != 1+left {
				t.Errorf("the store counted %d units, and %d after units were given back, with %d leased; want 100, "+
					"then at most 50: the leased ones and the one that was admitted", before, after, left)
			}
		})
	}
}

// ramping leases all units of a ramp.
type ramping struct{ greedy }

func (ramping) SizeLease(v *lease.View, a *limit.LeaseRequest) {
	a.Most, a.Ample, a.Share = v.Tier.Capacity(), v.Tier.Capacity(), limit.ShareOne
	if v.Tier.Leasing().Ramps && !v.MustFit {
		a.Need, a.Ramp = 0, true
	}
}

// Guarantees that a process gives back only those units of a ramp that are not free yet: the free ones can still be
// spent.
func TestReturnOfARampLeavesWhatIsFree(t *testing.T) {
	now := noon
	below := newMemory(t)
	s := openAt(t, &now, below, ramping{})
	l := newLimit(t, "a", nil, limit.Tier{Algorithm: limit.TokenBucket, Period: 4 * time.Second, Threshold: 100})
	decide(t, below, requestOfCost(l, 100), now)
	for range 30 { // until a slot begins, in which a ramp of 50 units is leased
		if decide(t, s, request(l), now); leasedUnits(s, l) >= 45 {
			break
		}
		now = now.Add(100 * time.Millisecond)
	}
	if n := leasedUnits(s, l); n < 45 {
		t.Fatalf("%d units are leased, want a ramp of 50", n)
	}
	now = now.Add(time.Second)
	free := spendable(t, s, below, l, now)
	s.GiveBackSpare(t.Context(), now)
	if n := s.Stats().Returned; free < 10 || n < 10 {
		t.Fatalf("%d units are free, and %d were given back, want 10 or more of each: the test shows too little", free,
			n)
	}
	if left := spendable(t, s, below, l, now); left < min(free, leasedUnits(s, l)) {
		t.Errorf("%d units can be spent after the return, want the %d that were free, of %d",
			left, free, leasedUnits(s, l))
	}
}

// spendable returns how many leased units a peek counts as available, in addition to those of the store.
func spendable(tb testing.TB, s *lease.Store, below limit.Store, l *limit.Limit, now time.Time) int64 {
	tb.Helper()
	var with, without limit.Decision
	for d, from := range map[*limit.Decision]limit.Store{&with: s, &without: below} {
		if err := from.Peek(context.Background(), request(l), now, d); err != nil {
			tb.Fatal(err)
		}
	}
	return without.Results[0].Used() - with.Results[0].Used()
}

// Guarantees that the units of a ramp become free at the same times as they do in a sliding window without leases: in
// steps, when the weight of the previous window changes. Each unit that is admitted from the ramp is also admitted by a
// second store without leases.
func TestRampFollowsTheSteps(t *testing.T) {
	const units = 1_000_000_000 // of a day, in steps of 100 ms with 1,157 units each
	l := newLimit(t, "a", func(l *limit.Limit) { l.MaxCost = units },
		limit.Tier{Algorithm: limit.SlidingWindow, Period: 24 * time.Hour, Threshold: units})
	below, oneByOne, now := newMemory(t), newMemory(t), noon
	spent := 0
	spend := func(s limit.Store, cost int64) bool {
		if !decide(t, s, requestOfCost(l, cost), now).Allowed {
			return false
		}
		if spent++; !decide(t, oneByOne, requestOfCost(l, cost), now).Allowed {
			t.Fatalf("spend %d, of %d units at %s, is admitted from the ramp, but denied by the store without leases",
				spent, cost, now)
		}
		return true
	}
	spend(below, units)
	now = noon.Add(24 * time.Hour)
	for _, cost := range []int64{100_000_000, 10_000_000, 1_000_000, 100_000, 10_000, 1000, 100, 10, 1} {
		for spend(below, cost) {
		}
	}
	s := openAt(t, &now, below, ramping{})
	before := spent
	for range 2500 {
		now = now.Add(time.Millisecond)
		for spend(s, 20) {
		}
	}
	if spent-before < 500 || s.Stats().Local < 500 {
		t.Errorf("%d requests were admitted, want 500 or more, and as many from leases: the test shows too little: "+
			"%+v", spent-before, s.Stats())
	}
}
