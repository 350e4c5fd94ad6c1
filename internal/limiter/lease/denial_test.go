package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

func requestOfCost(l *limit.Limit, cost int64) *limit.Request {
	req := request(l)
	req.Charges[0].Cost = cost
	return req
}

// Guarantees that a denial applies to its cost and to larger ones, until the time that the store named, and until the
// limit changes.
func TestDenialIsPerCost(t *testing.T) {
	below := &counted{Store: newMemory(t)}
	now := noon.Add(20 * time.Minute)
	s := openAt(t, &now, below, noLeases{})
	l := window(t, "a", time.Hour, 10)
	step := func(what string, l *limit.Limit, cost int64, allowed bool, calls int64) {
		t.Helper()
		before := below.calls.Load()
		d := decide(t, s, requestOfCost(l, cost), now)
		if n := below.calls.Load() - before; d.Allowed != allowed || n != calls {
			t.Fatalf("%s: a cost of %d: allowed %t with %d calls, want %t with %d",
				what, cost, d.Allowed, n, allowed, calls)
		}
		if end := noon.Add(time.Hour).UnixMicro(); !allowed && !d.Never && d.RetryAt != end {
			t.Fatalf("%s: denied until %d, want %d, the end of the window", what, d.RetryAt, end)
		}
	}
	step("room", l, 4, true, 1)
	step("no room for it", l, 7, false, 1)
	step("known", l, 7, false, 0)
	step("known for larger ones", l, 9, false, 0)
	step("a smaller one is not known", l, 5, true, 1)
	step("no room", l, 7, false, 1)
	step("no room for a smaller one", l, 2, false, 1)
	step("known now", l, 3, false, 0)
	step("the last unit", l, 1, true, 1)
	step("nothing is left", l, 1, false, 1)
	now = noon.Add(time.Hour - time.Microsecond)
	step("until the end", l, 1, false, 0)
	now = now.Add(time.Microsecond)
	step("not beyond it", l, 1, true, 1)
	now = noon.Add(20 * time.Minute)
	larger := window(t, "b", time.Hour, 10)
	step("room", larger, 10, true, 1)
	step("none", larger, 1, false, 1)
	step("a larger limit", window(t, "b", time.Hour, 20), 1, true, 1)
}

// Guarantees that a cost above the capacity of a limit is never admitted, and that its denial does not apply to smaller
// costs.
func TestImpossibleCostDeniesNoOther(t *testing.T) {
	s := openAt(t, &noon, newMemory(t), nil)
	l := window(t, "a", time.Hour, 10)
	for range 3 {
		if d := decide(t, s, requestOfCost(l, 11), noon); d.Allowed || !d.Never {
			t.Errorf("a cost of 11 of a limit of 10: allowed %t, never %t; want never allowed", d.Allowed, d.Never)
		}
		if d := decide(t, s, requestOfCost(l, 1), noon); !d.Allowed {
			t.Error("a cost of 1 of a limit of 10 is denied after a cost of 11, want it admitted")
		}
	}
}

// Guarantees that a denial ends at the time that the store named, however long the reply took.
func TestSlowDenialEndsInTime(t *testing.T) {
	now := noon
	below := &counted{Store: newMemory(t)}
	s := openAt(t, &now, hook{below, func() { now = now.Add(3 * time.Second) }}, noLeases{})
	l := window(t, "a", 10*time.Second, 1)
	decide(t, s, request(l), now)
	decide(t, s, request(l), now) // at 3 s; the answer comes at 6 s, and names 10 s
	now = noon.Add(9 * time.Second)
	if before := below.calls.Load(); decide(t, s, request(l), now).Allowed || below.calls.Load() != before {
		t.Error("at 9 s a request is admitted, or the store is called; want a denial without a call, because the " +
			"window is full until 10 s")
	}
	now = noon.Add(10 * time.Second)
	if !decide(t, s, request(l), now).Allowed {
		t.Error("at 10 s a request is denied, want it admitted by the new window")
	}
}

// Guarantees that routes with different sets of limits share the lease of a limit that they have in common.
func TestRoutesShareALease(t *testing.T) {
	below := &counted{Store: newMemory(t)}
	s := openAt(t, &noon, below, greedy{})
	a, b, c := window(t, "a", time.Hour, 100), window(t, "b", time.Hour, 100), window(t, "c", time.Hour, 100)
	routes := []*limit.Request{request(a), request(a, b), request(b, a), request(c, a), request(c, b, a)}
	admitted := 0
	for range 30 {
		for _, req := range routes {
			if decide(t, s, req, noon).Allowed {
				admitted++
			}
		}
	}
	// One call for each new limit, and one for the limit that then denies.
	if n := below.calls.Load(); admitted != 100 || n > 6 {
		t.Errorf("%d requests were admitted with %d calls, want 100 with 6 at most", admitted, n)
	}
}

// Guarantees that units that were spent from a lease can be refunded to the store, once.
func TestRefundFromALease(t *testing.T) {
	for _, a := range leasable {
		t.Run(a.String(), func(t *testing.T) {
			below := newMemory(t)
			s := openAt(t, &noon, below, greedy{})
			l := daily(t, "a", a, 100)
			decide(t, s, requestOfCost(l, 1), noon)
			d := decide(t, s, requestOfCost(l, 5), noon)
			if s.Stats().Local != 1 {
				t.Fatal("the test shows nothing: the request was not decided from a lease")
			}
			for _, want := range []int64{3, 0} {
				back, err := s.Settle(context.Background(), d.Receipt(), d.Receipt().Without(3), noon)
				if err != nil || back.Returned[0] != want || back.Repeated != (want == 0) {
					t.Errorf("a refund of 3 units gives back %+v, %v; want %d units", back, err, want)
				}
			}
			if n := usedUnits(t, below, l, noon); n != 97 {
				t.Errorf("the store counts %d, want 97", n)
			}
		})
	}
}

// Guarantees that a peek counts leased and unspent units as free, and changes nothing.
func TestPeekCreditsLeases(t *testing.T) {
	for _, a := range leasable {
		t.Run(a.String(), func(t *testing.T) {
			s := openAt(t, &noon, newMemory(t), greedy{})
			l := daily(t, "a", a, 100)
			decide(t, s, request(l), noon)
			for _, tt := range []struct {
				cost    int64
				allowed bool
			}{{99, true}, {100, false}, {99, true}} {
				var d limit.Decision
				if err := s.Peek(context.Background(), requestOfCost(l, tt.cost), noon, &d); err != nil ||
					d.Allowed != tt.allowed || d.Results[0].Remaining() != 99 {
					t.Errorf("a cost of %d: allowed %t, %d remain, %v; want %t and 99",
						tt.cost, d.Allowed, d.Results[0].Remaining(), err, tt.allowed)
				}
			}
			if d := decide(t, s, requestOfCost(l, 99), noon); !d.Allowed || s.Stats().Local != 1 {
				t.Error("a cost of 99 is denied, or not decided from the lease; want it admitted, as the peek said")
			}
		})
	}
}

// Guarantees that if one limit denies, the others are not reported as denying. A client would otherwise read that it
// has exceeded them, and wait for their leases to end.
func TestDenialIsOfItsLimitOnly(t *testing.T) {
	for _, rule := range []lease.Rule{noLeases{}, tens{}, greedy{}} {
		s := openAt(t, &noon, newMemory(t), rule)
		full, long := window(t, "full", time.Minute, 1), window(t, "long", time.Hour, 20)
		decide(t, s, request(full), noon)
		for range 3 { // denied by the store, and then by the remembered denial
			d := decide(t, s, request(full, long), noon)
			if d.Allowed || d.Results[0].Admits || !d.Results[1].Admits || d.Results[1].Remaining() != 20 ||
				d.RetryAt != noon.Add(time.Minute).UnixMicro() {
				t.Errorf("%T: allowed %t; the full limit admits %t, the other one %t with %d units remaining; "+
					"RetryAt %d; want a denial by the full limit alone, for a minute",
					rule, d.Allowed, d.Results[0].Admits, d.Results[1].Admits, d.Results[1].Remaining(), d.RetryAt)
			}
		}
	}
}

// rampOnly is a rule that leases a ramp of a bucket, without units that can be spent at once.
type rampOnly struct{ greedy }

func (rampOnly) SizeLease(v *lease.View, a *limit.LeaseRequest) {
	if v.Tier.Algorithm != limit.TokenBucket {
		return
	}
	a.Need, a.Ramp, a.Most, a.Ample, a.Share = 0, true, v.Tier.Capacity(), v.Tier.Capacity(), limit.ShareOne
}

// Guarantees that a limit of which the store was asked for no unit does not count as admitting: it denies if its lease
// has too few units.
func TestNothingAskedIsNotAdmitted(t *testing.T) {
	below := newMemory(t)
	bucket := newLimit(t, "bucket", nil, limit.Tier{Algorithm: limit.TokenBucket, Period: time.Minute, Threshold: 20})
	full := window(t, "full", time.Minute, 1)
	other := openAt(t, &noon, below, noLeases{})
	decide(t, other, requestOfCost(bucket, 20), noon)
	decide(t, other, request(full), noon)
	s := openAt(t, &noon, below, rampOnly{})
	d := decide(t, s, request(full, bucket), noon)
	if d.Allowed || d.Results[1].Admits {
		t.Errorf("allowed %t; an empty bucket, of which no unit was asked for at once, admits: %t; want a denial by "+
			"this bucket", d.Allowed, d.Results[1].Admits)
	}
}

// Guarantees that a denial without a call names a time in the future, also after the store's clock was set forward: a
// client would otherwise retry again and again without a pause.
func TestLocalDenialNamesALaterTime(t *testing.T) {
	now, storeTime := noon, noon
	s := openAt(t, &now, ownClock{newMemory(t), &storeTime}, noLeases{})
	full, other := window(t, "full", time.Minute, 1), window(t, "other", time.Minute, 100)
	decide(t, s, request(full), now)
	decide(t, s, request(full), now)
	storeTime = now.Add(10 * time.Minute)
	decide(t, s, request(other), now) // its answer has the store's time
	before := s.Stats().Local
	if d := decide(t, s, request(full), now); d.Allowed || d.RetryAt <= d.Now || s.Stats().Local != before+1 {
		t.Errorf("allowed %t without a call, at %d until %d; want a denial until later", d.Allowed, d.Now, d.RetryAt)
	}
}

// Guarantees that a request which an exact limit is charged for gets no ramp instead of its units, even from a rule
// that asks for a ramp: the exact limit would be charged for a request that is denied.
func TestExactLimitIsNotChargedForARamp(t *testing.T) {
	below := newMemory(t)
	bucket := newLimit(t, "bucket", nil, limit.Tier{Algorithm: limit.TokenBucket, Period: time.Minute, Threshold: 20})
	exact := newLimit(t, "exact", func(l *limit.Limit) { l.Exact = true },
		limit.Tier{Algorithm: limit.FixedWindow, Period: time.Minute, Threshold: 20})
	decide(t, below, requestOfCost(bucket, 20), noon)
	s := openAt(t, &noon, below, rampOnly{})
	if d := decide(t, s, request(bucket, exact), noon); d.Allowed {
		t.Error("a request is admitted although its bucket is empty, want a denial")
	}
	if n := usedUnits(t, below, exact, noon); n != 0 {
		t.Errorf("%d units of the exact limit are charged for a denied request, want 0", n)
	}
}

// recheckDenials is a rule that leases nothing, and after a while asks the store whether a denial still applies.
type recheckDenials struct{ lease.Adaptive }

func (recheckDenials) SizeLease(*lease.View, *limit.LeaseRequest) {}

// Guarantees that a denial counts as early only if units became free before the time that it named.
func TestEarlyDenials(t *testing.T) {
	for _, refunded := range []bool{false, true} {
		below, now := newMemory(t), noon
		s := openAt(t, &now, below, recheckDenials{})
		l := window(t, "a", time.Minute, 1)
		d := decide(t, s, request(l), now)
		for range 4 { // one denial by the store, three without a call
			decide(t, s, request(l), now)
		}
		now, want := noon.Add(time.Minute), int64(0)
		if refunded {
			back, err := s.Settle(t.Context(), d.Receipt(), d.Receipt().Without(1), noon)
			if err != nil || back.Returned[0] != 1 {
				t.Fatal(err)
			}
			now, want = noon.Add(30*time.Second), 3
		}
		if !decide(t, s, request(l), now).Allowed {
			t.Fatalf("refunded %t: a request is denied, although a unit is free again", refunded)
		}
		if stats := s.Stats(); stats.Denied != 3 || stats.Early != want {
			t.Errorf("refunded %t: %d of %d denials were early, want %d of 3",
				refunded, stats.Early, stats.Denied, want)
		}
	}
}

// tenIfShort is a rule that leases ten units of a counter whose lease has too few units for the request.
type tenIfShort struct{ greedy }

func (tenIfShort) SizeLease(v *lease.View, a *limit.LeaseRequest) {
	if v.Lacks > 0 {
		a.Most, a.Ample, a.Share = 10, 10, limit.ShareOne
	}
}

// Guarantees that the receipt of a request names the lease that its units came from if another request has fetched
// another lease during its call: a refund would otherwise give back units that were charged elsewhere.
func TestReceiptNamesTheReservedLease(t *testing.T) {
	var s *lease.Store
	during := func() {}
	s = openAt(t, &noon, hook{newMemory(t), func() { f := during; during = func() {}; f() }}, tenIfShort{})
	a := newLimit(t, "a", nil, limit.Tier{Algorithm: limit.SlidingLog, Period: time.Minute, Threshold: 100})
	b := window(t, "b", time.Minute, 100)
	decide(t, s, request(a), noon)
	first := decide(t, s, request(a), noon).Receipt().Entries()[0].At()
	second := first
	during = func() { // needs more units than are leased, so that those of the first lease are given back
		second = decide(t, s, requestOfCost(a, 20), noon.Add(100*time.Millisecond)).Receipt().Entries()[0].At()
	}
	d := decide(t, s, request(a, b), noon)
	if at := d.Receipt().Entries()[0].At(); at != first || first == second {
		t.Errorf("the receipt names the time %d; want %d, that of the lease from which the unit was reserved, and "+
			"not %d, that of the other lease", at, first, second)
	}
}
