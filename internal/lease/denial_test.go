package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/lease"
	"github.com/sluicelimits/sluice/internal/limit"
)

func costs(l *limit.Limit, cost int64) *limit.Request {
	req := request(l)
	req.Charges[0].Cost = cost
	return req
}

// Guarantees that a denial covers its cost and larger ones, until the store's own time, and until the limit changes.
func TestDenialIsPerCost(t *testing.T) {
	below := &counted{Store: newMemory(t)}
	now := noon.Add(20 * time.Minute)
	s := open(t, lease.Config{Store: below, GiveBackEvery: -1, Clock: func() time.Time { return now }, Rule: plainly{}})
	l := window(t, "a", time.Hour, 10)
	step := func(what string, l *limit.Limit, cost int64, allowed bool, calls int64) {
		t.Helper()
		before := below.calls.Load()
		d := decide(t, s, costs(l, cost), now)
		if n := below.calls.Load() - before; d.Allowed != allowed || n != calls {
			t.Fatalf("%s: a cost of %d: allowed %t with %d calls, want %t with %d", what, cost, d.Allowed, n, allowed, calls)
		}
		if end := noon.Add(time.Hour).UnixMicro(); !allowed && !d.Never && d.RetryAt != end {
			t.Fatalf("%s: denied until %d, want the window's end at %d", what, d.RetryAt, end)
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

// Guarantees that a cost above what a limit can hold is never admitted, and that its denial does not cover smaller costs.
func TestImpossibleCostDeniesNoOther(t *testing.T) {
	s := open(t, lease.Config{Store: newMemory(t), GiveBackEvery: -1, Clock: func() time.Time { return noon }})
	l := window(t, "a", time.Hour, 10)
	for range 3 {
		if d := decide(t, s, costs(l, 11), noon); d.Allowed || !d.Never {
			t.Errorf("11 of 10: allowed %t, never %t", d.Allowed, d.Never)
		}
		if d := decide(t, s, costs(l, 1), noon); !d.Allowed {
			t.Error("1 of 10 is denied after a cost of 11")
		}
	}
}

// Guarantees that a denial ends when the store said, however long the reply took.
func TestSlowDenialEndsInTime(t *testing.T) {
	now := noon
	below := &counted{Store: newMemory(t)}
	s := open(t, lease.Config{Store: hook{below, func() { now = now.Add(3 * time.Second) }}, GiveBackEvery: -1, Clock: func() time.Time { return now },
		Rule: plainly{}})
	l := window(t, "a", 10*time.Second, 1)
	decide(t, s, request(l), now)
	decide(t, s, request(l), now) // at 3 s; the answer comes at 6 s, and is about 10 s
	now = noon.Add(9 * time.Second)
	if before := below.calls.Load(); decide(t, s, request(l), now).Allowed || below.calls.Load() != before {
		t.Error("at 9 s it is not known that the window is full")
	}
	now = noon.Add(10 * time.Second)
	if !decide(t, s, request(l), now).Allowed {
		t.Error("at 10 s the new window denies")
	}
}

// Guarantees that routes with different sets of limits share the lease of a limit that they have in common.
func TestRoutesShareALease(t *testing.T) {
	below := &counted{Store: newMemory(t)}
	s := open(t, lease.Config{Store: below, GiveBackEvery: -1, Clock: func() time.Time { return noon }, Rule: greedy{}})
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
	// One call for each limit that is new, and one for what then is denied.
	if n := below.calls.Load(); admitted != 100 || n > 6 {
		t.Errorf("%d requests were admitted with %d calls, want 100 with 6 at most", admitted, n)
	}
}

// Guarantees that units which were spent from a lease can be refunded to the store, once.
func TestRefundFromALease(t *testing.T) {
	for _, a := range leased {
		t.Run(a.String(), func(t *testing.T) {
			below := newMemory(t)
			s := open(t, lease.Config{Store: below, GiveBackEvery: -1, Clock: func() time.Time { return noon }, Rule: greedy{}})
			l := daily(t, "a", a, 100)
			decide(t, s, costs(l, 1), noon)
			d := decide(t, s, costs(l, 5), noon)
			if s.Stats().Local != 1 {
				t.Fatal("it was not spent from a lease")
			}
			for _, want := range []int64{3, 0} {
				back, err := s.Refund(context.Background(), d.Receipt(), 3, noon)
				if err != nil || back.Units[0] != want || back.Repeated != (want == 0) {
					t.Errorf("a refund of 3 gives %+v, %v; want %d", back, err, want)
				}
			}
			if n := used(t, below, l, noon); n != 97 {
				t.Errorf("the store counts %d, want 97", n)
			}
		})
	}
}

// Guarantees that a peek counts what is leased and not spent as free, and changes nothing.
func TestPeekCreditsLeases(t *testing.T) {
	for _, a := range leased {
		t.Run(a.String(), func(t *testing.T) {
			s := open(t, lease.Config{Store: newMemory(t), GiveBackEvery: -1, Clock: func() time.Time { return noon }, Rule: greedy{}})
			l := daily(t, "a", a, 100)
			decide(t, s, request(l), noon)
			for _, tt := range []struct {
				cost    int64
				allowed bool
			}{{99, true}, {100, false}, {99, true}} {
				var d limit.Decision
				if err := s.Peek(context.Background(), costs(l, tt.cost), noon, &d); err != nil || d.Allowed != tt.allowed || d.Results[0].Remaining() != 99 {
					t.Errorf("a cost of %d: allowed %t, %d remain, %v; want %t and 99", tt.cost, d.Allowed, d.Results[0].Remaining(), err, tt.allowed)
				}
			}
			if d := decide(t, s, costs(l, 99), noon); !d.Allowed || s.Stats().Local != 1 {
				t.Error("a decision differs from the peek before it")
			}
		})
	}
}

// Guarantees that if one limit denies, the others are not reported as denying, too. A client would otherwise read that it has
// violated them, and wait for their leases to end.
func TestDenialIsOfItsLimitOnly(t *testing.T) {
	for _, rule := range []lease.Rule{plainly{}, tens{}, greedy{}} {
		s := open(t, lease.Config{Store: newMemory(t), GiveBackEvery: -1, Clock: func() time.Time { return noon }, Rule: rule})
		full, long := window(t, "full", time.Minute, 1), window(t, "long", time.Hour, 20)
		decide(t, s, request(full), noon)
		for range 3 { // by the store, and then by what is known of it
			d := decide(t, s, request(full, long), noon)
			if d.Allowed || d.Results[0].Admits || !d.Results[1].Admits || d.Results[1].Remaining() != 20 || d.RetryAt != noon.Add(time.Minute).UnixMicro() {
				t.Errorf("%T: allowed %t; one admits %t, the other %t with %d remaining, and it fits at %d", rule, d.Allowed, d.Results[0].Admits,
					d.Results[1].Admits, d.Results[1].Remaining(), d.RetryAt)
			}
		}
	}
}

// later is a rule that leases a ramp of a bucket and asks for nothing at once.
type later struct{ greedy }

func (later) SizeLease(v *lease.View, a *limit.LeaseRequest) {
	if v.Tier.Algorithm != limit.TokenBucket {
		return
	}
	a.Need, a.Ramp, a.Most, a.Ample, a.Share = 0, true, v.Tier.Capacity(), v.Tier.Capacity(), limit.ShareOne
}

// Guarantees that a limit of which the store was asked for nothing does not count as admitting: it denies if its lease does not
// suffice.
func TestNothingAskedIsNotAdmitted(t *testing.T) {
	below := newMemory(t)
	bucket := newLimit(t, "bucket", nil, limit.Tier{Algorithm: limit.TokenBucket, Period: time.Minute, Threshold: 20})
	full := window(t, "full", time.Minute, 1)
	other := open(t, lease.Config{Store: below, GiveBackEvery: -1, Clock: func() time.Time { return noon }, Rule: plainly{}})
	decide(t, other, costs(bucket, 20), noon)
	decide(t, other, request(full), noon)
	s := open(t, lease.Config{Store: below, GiveBackEvery: -1, Clock: func() time.Time { return noon }, Rule: later{}})
	d := decide(t, s, request(full, bucket), noon)
	if d.Allowed || d.Results[1].Admits {
		t.Errorf("allowed %t; of an empty bucket, of which nothing was asked for at once, one is admitted: %t", d.Allowed, d.Results[1].Admits)
	}
}
