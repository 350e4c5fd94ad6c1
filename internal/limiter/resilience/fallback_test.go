package resilience_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newStore(t testing.TB, c resilience.FallbackConfig) *resilience.Fallback {
	t.Helper()
	if c.Log == nil {
		c.Log = quiet
	}
	s, err := resilience.NewFallback(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newFailingStore returns a store whose calls all fail.
func newFailingStore(t testing.TB) *flaky {
	f := newFlaky(t, nil)
	f.down.Store(true)
	return f
}

func window(t testing.TB, id string, threshold int64, p limit.FailurePolicy) *limit.Limit {
	return newLimit(t, limit.Limit{ID: id, OnStoreFailure: p, Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Period: 10 * time.Second, Threshold: threshold}}})
}

func requestOf(limits ...*limit.Limit) *limit.Request {
	req := &limit.Request{Owner: acme}
	for _, l := range limits {
		req.Charges = append(req.Charges, limit.Charge{Limit: l, Cost: 1})
	}
	return req
}

// countAdmitted decides until a request is denied, and returns how many were admitted.
func countAdmitted(t *testing.T, s limit.Store, req *limit.Request, now time.Time) int {
	t.Helper()
	var d limit.Decision
	for n := range 100_000 {
		if err := s.Decide(context.Background(), req, now, &d); err != nil {
			t.Fatal(err)
		}
		if !d.Allowed {
			return n
		}
	}
	t.Fatal("a request of a backstopped limit is never denied, want a denial")
	return 0
}

// Guarantees that the fallback limiter changes nothing while the store answers.
func TestStoreContract(t *testing.T) {
	limittest.RunStoreContract(t, limittest.Config{
		New: func(tb testing.TB) limit.Store {
			return newStore(tb, resilience.FallbackConfig{Store: newFlaky(tb, nil)})
		},
		Scripts: soak.Times(20), // the wrapped store runs all of them in its own test
	})
}

// Guarantees that each limit of a request follows its own policy, and that the decision is complete: marked, with a
// result for each tier, under the limit's name.
func TestEachLimitItsPolicy(t *testing.T) {
	shadow := newLimit(t, limit.Limit{ID: "shadow", Mode: limit.Shadow, OnStoreFailure: limit.Closed,
		Tiers: []limit.Tier{
			{Algorithm: limit.SlidingLog, Period: time.Second, Threshold: 1}}})
	tiers := newLimit(t, limit.Limit{ID: "tiers", Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Period: time.Second, Threshold: 20}, {Algorithm: limit.FixedWindow,
			Period: 10 * time.Second, Threshold: 100}}})
	free, closed := window(t, "free", 3, limit.Open), window(t, "closed", 50, limit.Closed)
	s := newStore(t, resilience.FallbackConfig{Store: newFailingStore(t),
		Instances: func(*limit.Limit) int { return 4 }})
	var d limit.Decision

	for range 20 {
		if err := s.Decide(context.Background(), requestOf(shadow, free), noon, &d); err != nil || !d.Allowed ||
			!d.Degraded {
			t.Fatalf("onStoreFailure open: err %v, allowed %v, degraded %v; want it allowed and degraded", err,
				d.Allowed, d.Degraded)
		}
	}
	req := requestOf(free, shadow, tiers)
	if n := countAdmitted(t, s, req, noon); n != 5 {
		t.Errorf("%d admitted, want 5: a quarter of 20 a second", n)
	}
	if err := s.Decide(context.Background(), req, noon, &d); err != nil {
		t.Fatal(err)
	}
	if b := d.Binding(); b == nil || answer.PolicyName(b.Tier, false) != "tiers/1s" || d.Never ||
		d.RetryAfter() != 200*time.Millisecond || !d.Degraded {
		t.Errorf("denied by %v, never %v, wait %s, degraded %v; want a degraded denial by tiers/1s for 200ms", b,
			d.Never, d.RetryAfter(), d.Degraded)
	}
	names := ""
	for i := range d.Results {
		names += fmt.Sprintf("%s:%d ", answer.PolicyName(d.Results[i].Tier, false), d.Results[i].Remaining())
	}
	if names != "free:3 shadow:1 tiers/1s:0 tiers/10s:20 " {
		t.Errorf("the results, each with the units that remain, are %q", names)
	}

	before := s.Stats()
	err := s.Decide(context.Background(), requestOf(tiers, closed), noon.Add(time.Minute), &d)
	if !errors.Is(err, resilience.ErrFailClosed) || !errors.Is(err, errGone) || d.Allowed || len(d.Results) > 0 {
		t.Errorf("onStoreFailure closed: err %v, %d results; want ErrFailClosed with the store's error, and no result",
			err, len(d.Results))
	}
	if err := s.Peek(context.Background(), requestOf(closed), noon, &d); !errors.Is(err, resilience.ErrFailClosed) {
		t.Errorf("onStoreFailure closed: Peek = %v, want ErrFailClosed", err)
	}
	if n := countAdmitted(t, s, requestOf(tiers), noon.Add(time.Minute)); n != 5 {
		t.Errorf("%d units are admitted after a denial by a closed limit, want 5: the denial must charge nothing", n)
	}
	after := s.Stats()
	if after.Closed != before.Closed+1 || before.Open != 20 || before.Backstop != 7 || before.Failures != 27 {
		t.Errorf("stats %+v before and %+v after the closed limit's denial; want 20 open, 7 backstop, 27 failures "+
			"before it, and one more closed after it", before, after)
	}
}

// Guarantees that without the store clients get headers with the limit's name and the size of this instance's part.
func TestHeadersMeanwhile(t *testing.T) {
	s := newStore(t, resilience.FallbackConfig{Store: newFailingStore(t),
		Instances: func(*limit.Limit) int { return 4 }})
	quota := newLimit(t, limit.Limit{ID: "monthly", Tiers: []limit.Tier{
		{Algorithm: limit.Quota, Threshold: 1_000_000, Calendar: &limit.Calendar{Every: limit.Month,
			Location: time.UTC}}}})
	var d limit.Decision
	if err := s.Decide(context.Background(), requestOf(window(t, "burst", 100, limit.Backstop), quota), noon,
		&d); err != nil {
		t.Fatal(err)
	}
	var e answer.Encoder
	h := e.Header(nil, &d, answer.Wait{})
	if h.Limit != "25" || h.Remaining != "24" || h.RateLimit != `"burst";r=24;t=1, "monthly";r=249999;t=11` ||
		!strings.HasPrefix(h.Policy, `"burst";q=25;w=10, "monthly";q=250000;w=26`) {
		t.Errorf("the headers are %+v, want the limit's name, and a policy with this instance's part", h)
	}
}

// Guarantees that a client whose Retry-After is the time at which the store may answer again gets no other time beside
// it.
func TestHeadersOfACostAboveThePart(t *testing.T) {
	s := newStore(t, resilience.FallbackConfig{Store: newFailingStore(t),
		Instances: func(*limit.Limit) int { return 10 }})
	l := newLimit(t, limit.Limit{ID: "l", MaxCost: 100,
		Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Period: time.Hour, Threshold: 100}}})
	var d limit.Decision
	for _, cost := range []int64{10, 11} {
		req := &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l, Cost: cost}}}
		if err := s.Decide(context.Background(), req, noon, &d); err != nil {
			t.Fatal(err)
		}
	}
	var e answer.Encoder
	h := e.Header(nil, &d, answer.Wait{Micros: d.RetryAt - d.Now, Known: true})
	if d.Allowed || h.RetryAfter != "1" || h.RateLimit != `"l";r=0;t=1` {
		t.Errorf("allowed %v, Retry-After %s, RateLimit %s; want a denial with the same time, 1 s, in both headers",
			d.Allowed, h.RetryAfter, h.RateLimit)
	}
}

// Guarantees that a cost above this instance's part, which the plan's limit could admit, is denied with a wait, and not
// for ever.
func TestCostAboveThePart(t *testing.T) {
	s := newStore(t, resilience.FallbackConfig{Store: newFailingStore(t),
		Instances: func(*limit.Limit) int { return 10 }})
	l := newLimit(t, limit.Limit{ID: "l", MaxCost: 1000,
		Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Period: time.Second, Threshold: 100}}})
	free := newLimit(t, limit.Limit{ID: "free", MaxCost: 1000, OnStoreFailure: limit.Open, Tiers: l.Tiers})
	for _, c := range []struct {
		cost           int64
		limit          *limit.Limit
		allowed, never bool
		wait           time.Duration
	}{{10, l, true, false, 0}, {11, l, false, false, time.Second}, {100, l, false, false, time.Second}, {101, l, false,
		true, 0},
		{100, free, true, false, 0}, {101, free, false, true, 0}} {
		var d limit.Decision
		req := &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: fmt.Sprint(c)},
			Charges: []limit.Charge{{Limit: c.limit, Cost: c.cost}}}
		if err := s.Decide(context.Background(), req, noon, &d); err != nil {
			t.Fatal(err)
		}
		if d.Allowed != c.allowed || d.Never != c.never || d.RetryAfter() != c.wait {
			t.Errorf("a cost of %d of %s: allowed %v, never %v, wait %s; want %+v", c.cost, c.limit.ID, d.Allowed,
				d.Never, d.RetryAfter(), c)
		}
	}
	// A cost that never fits in an open limit charges nothing to the backstop of another limit.
	var d limit.Decision
	req := &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l, Cost: 1}, {Limit: free, Cost: 101}}}
	if err := s.Decide(context.Background(), req, noon, &d); err != nil || d.Allowed || !d.Never {
		t.Fatal(err, d.Allowed)
	}
	if n := countAdmitted(t, s, requestOf(l), noon); n != 10 {
		t.Errorf("%d admitted, want 10", n)
	}
}

// Guarantees the size of an instance's part for every algorithm, also of quotas whose rate cannot be counted exactly.
func TestParts(t *testing.T) {
	month := &limit.Calendar{Every: limit.Month, Location: time.UTC}
	year := &limit.Calendar{Every: limit.Year, Location: time.UTC}
	for _, c := range []struct {
		tier      limit.Tier
		instances int
		atOnce    int64
		refilled  float64 // in a period
	}{
		{limit.Tier{Algorithm: limit.FixedWindow, Period: time.Second, Threshold: 100}, 3, 33, 33},
		{limit.Tier{Algorithm: limit.SlidingLog, Period: time.Second, Threshold: 5}, 8, 1, 1},
		{limit.Tier{Algorithm: limit.SlidingWindow, Period: time.Minute, Threshold: 100}, 1, 100, 100},
		{limit.Tier{Algorithm: limit.SlidingBuckets, Period: time.Minute, Threshold: 100}, 2, 50, 50},
		{limit.Tier{Algorithm: limit.LeakyBucket, Period: time.Second, Threshold: 100}, 4, 25, 25},
		{limit.Tier{Algorithm: limit.TokenBucket, Period: time.Second, Threshold: 100, Burst: 1000}, 4, 250, 25},
		{limit.Tier{Algorithm: limit.TokenBucket, Period: time.Second, Threshold: 100, Burst: 8}, 4, 2, 25},
		{limit.Tier{Algorithm: limit.Quota, Threshold: 1_000_000, Calendar: month}, 3, 333_333, 333_333},
		{limit.Tier{Algorithm: limit.Quota, Threshold: 1, Calendar: year}, 3, 1, 1},
		{limit.Tier{Algorithm: limit.Quota, Threshold: 31_000_000_019, Calendar: year}, 7, 0, 31_000_000_019 / 7},
		{limit.Tier{Algorithm: limit.Quota, Threshold: limit.MaxUnits, Calendar: year}, 1, limit.MaxUnits,
			limit.MaxUnits},
		{limit.Tier{Algorithm: limit.Quota, Threshold: limit.MaxUnits - 1, Calendar: month}, 7, 0, limit.MaxUnits / 7},
	} {
		s := newStore(t, resilience.FallbackConfig{Store: newFailingStore(t), MaxInstances: c.instances})
		l := newLimit(t, limit.Limit{ID: "l", Tiers: []limit.Tier{c.tier}})
		var d limit.Decision
		if err := s.Peek(context.Background(), requestOf(l), noon, &d); err != nil {
			t.Fatal(err)
		}
		got := d.Results[0].Tier
		per := c.tier.Period
		if c.tier.Calendar != nil {
			start, end := c.tier.Calendar.Period(noon.UnixMicro())
			per = time.Duration(end-start) * time.Microsecond
		}
		refilled := float64(got.Threshold) * (float64(per) / float64(got.Period))
		if got.Algorithm != limit.TokenBucket || (c.atOnce > 0 && got.Burst != c.atOnce) ||
			refilled > c.refilled+0.01 || refilled < 0.989*c.refilled {
			t.Errorf("%+v on %d instances: the part admits %d units at once and refills %.1f a period; want %d and "+
				"%.1f", c.tier, c.instances, got.Burst, refilled, c.atOnce, c.refilled)
		}
	}
}

// Guarantees that two tiers of one period with different algorithms are two buckets.
func TestPartsOfOnePeriod(t *testing.T) {
	l := newLimit(t, limit.Limit{ID: "l", Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Period: time.Second, Threshold: 5}, {Algorithm: limit.SlidingLog,
			Period: time.Second, Threshold: 3}}})
	s := newStore(t, resilience.FallbackConfig{Store: newFailingStore(t)})
	if n := countAdmitted(t, s, requestOf(l), noon); n != 3 {
		t.Errorf("%d admitted, want 3", n)
	}
}

// Guarantees that an instance that has never learned the instance count assumes the largest one.
func TestInstancesUnknown(t *testing.T) {
	n := 0
	s := newStore(t, resilience.FallbackConfig{Store: newFailingStore(t),
		Instances:    func(*limit.Limit) int { return n },
		MaxInstances: 20})
	l := window(t, "l", 100, limit.Backstop)
	if got := countAdmitted(t, s, requestOf(l), noon); got != 5 {
		t.Errorf("%d admitted, want 5", got)
	}
	n = 2
	if got := countAdmitted(t, s, requestOf(l), noon.Add(10*time.Second)); got < 45 || got > 50 {
		t.Errorf("%d units are admitted, want about 50 once the instance count is known to be two", got)
	}
}

// Guarantees that a flood of addresses is limited and takes neither the memory for tenants' counters nor that for their
// pending units, and that a tenant for which other tenants have left no memory is not admitted uncounted.
func TestNoRoom(t *testing.T) {
	s := newStore(t, resilience.FallbackConfig{Store: newFailingStore(t), Bytes: 64 << 10})
	l := window(t, "l", 5, limit.Backstop)
	var d limit.Decision
	allowed := 0
	const addresses = 2000
	for i := range addresses {
		req := requestOf(l)
		req.Owner = limit.Owner{Kind: limit.Address, Name: fmt.Sprintf("%032x", i)}
		if err := s.Decide(context.Background(), req, noon, &d); err != nil || !d.Degraded {
			t.Fatal(err)
		} else if d.Allowed {
			allowed++
		}
	}
	if allowed < 100 || allowed > 230 {
		t.Errorf("%d of %d addresses are admitted, want 5 more than the number of counters that fit into 24 KB",
			allowed, addresses)
	}
	if st := s.Stats(); st.Dropped == 0 || st.Bytes > 64<<10 {
		t.Errorf("stats %+v: want units without memory counted as dropped, and at most 64 KB in use", st)
	}
	before := s.Stats().Dropped
	for i := range 15 {
		req := requestOf(l)
		req.Owner.Name = fmt.Sprint("tenant-", i)
		if got := countAdmitted(t, s, req, noon); got != 5 {
			t.Fatalf("%s: %d admitted, want 5", req.Owner.Name, got)
		}
	}
	if dropped := s.Stats().Dropped - before; dropped != 0 {
		t.Errorf("%d pending units of tenants are dropped, want none", dropped)
	}
	var err error
	for i := 0; i < 200 && err == nil; i++ {
		req := requestOf(l)
		req.Owner.Name = fmt.Sprint("more-", i)
		err = s.Decide(context.Background(), req, noon, &d)
	}
	if !errors.Is(err, resilience.ErrFailClosed) || !errors.Is(err, limit.ErrFull) {
		t.Errorf("a tenant for which there is no memory: %v, want ErrFailClosed and ErrFull", err)
	}
}

// Guarantees that an invalid request, a caller that gave up, and a request with leases get the error, and no fallback
// decision.
func TestNotReplaced(t *testing.T) {
	l := window(t, "l", 5, limit.Backstop)
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	leased := requestOf(l)
	leased.Leases = []limit.LeaseRequest{{Need: 1, Most: 3, Share: limit.ShareOne}}
	for name, c := range map[string]struct {
		ctx  context.Context
		req  *limit.Request
		err  error
		want error
	}{
		"invalid":   {context.Background(), requestOf(l), limit.ErrInvalidRequest, limit.ErrInvalidRequest},
		"cost":      {context.Background(), requestOf(l), limit.ErrInvalidCost, limit.ErrInvalidCost},
		"duplicate": {context.Background(), requestOf(l), limit.ErrDuplicateCounter, limit.ErrDuplicateCounter},
		"given up":  {gone, requestOf(l), context.Canceled, context.Canceled},
		"leases":    {context.Background(), leased, errGone, errGone},
		// an open breaker does not check the requests that it refuses
		"unchecked": {context.Background(), requestOf(l, l), errGone, limit.ErrDuplicateCounter},
	} {
		store := newFlaky(t, nil)
		store.fault = func() error { return c.err }
		s := newStore(t, resilience.FallbackConfig{Store: store})
		var d limit.Decision
		if err := s.Decide(c.ctx, c.req, noon, &d); !errors.Is(err, c.want) ||
			errors.Is(err, resilience.ErrFailClosed) || len(d.Results) > 0 {
			t.Errorf("%s: err %v, %d results; want %v", name, err, len(d.Results), c.want)
		}
		if err := s.Peek(c.ctx, c.req, noon, &d); !errors.Is(err, c.want) {
			t.Errorf("%s: Peek = %v, want the same error as Decide", name, err)
		}
	}
}

// Guarantees that a request whose deadline has passed gets a decision, because somebody waits for it.
func TestDeadlinePassed(t *testing.T) {
	store := newFlaky(t, nil)
	store.fault = func() error { return context.DeadlineExceeded }
	s := newStore(t, resilience.FallbackConfig{Store: store})
	ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	var d limit.Decision
	if err := s.Decide(ctx, requestOf(window(t, "l", 5, limit.Backstop)), noon, &d); err != nil || !d.Allowed ||
		!d.Degraded {
		t.Errorf("err %v, allowed %v, degraded %v", err, d.Allowed, d.Degraded)
	}
}

// Guarantees that a peek without the store changes nothing.
func TestPeekMeanwhile(t *testing.T) {
	s := newStore(t, resilience.FallbackConfig{Store: newFailingStore(t)})
	l := window(t, "l", 5, limit.Backstop)
	var d limit.Decision
	for range 20 {
		if err := s.Peek(context.Background(), requestOf(l), noon, &d); err != nil || !d.Allowed || !d.Degraded ||
			d.Results[0].Remaining() != 5 {
			t.Fatalf("err %v, allowed %v, degraded %v", err, d.Allowed, d.Degraded)
		}
	}
	if n := countAdmitted(t, s, requestOf(l), noon); n != 5 {
		t.Errorf("%d admitted, want 5", n)
	}
	if st := s.Stats(); st.Failures != 6 {
		t.Errorf("stats %+v, want 6 failures: peeks must not count as decisions", st)
	}
}

// Guarantees that a refund without the store gives units back where they were charged, once, and that the store is not
// charged for them later.
func TestRefundMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newMemory(t)
		store := newFlaky(t, inner)
		s := newStore(t, resilience.FallbackConfig{Store: store})
		l := newLimit(t, limit.Limit{ID: "l", MaxCost: 10, Tiers: []limit.Tier{
			{Algorithm: limit.FixedWindow, Period: time.Hour, Threshold: 10}, {Algorithm: limit.TokenBucket,
				Period: time.Hour, Threshold: 10}}})
		req := &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l, Cost: 3}}}
		var first, d limit.Decision
		if err := s.Decide(t.Context(), req, time.Now(), &first); err != nil {
			t.Fatal(err)
		}
		early := first.Receipt()
		store.down.Store(true)
		if _, err := s.Settle(t.Context(), early, nil, time.Now()); !errors.Is(err, errGone) {
			t.Errorf("a refund of a charge of the store, while the store fails: %v, want the store's error", err)
		}
		for range 2 {
			if err := s.Decide(t.Context(), req, time.Now(), &d); err != nil || !d.Degraded {
				t.Fatal(err)
			}
		}
		receipt := d.Receipt()
		for again, want := range []string{"{[2 2] [0 0] [0 0] false false}", "{[0 0] [0 0] [0 0] true false}"} {
			back, err := s.Settle(t.Context(), receipt, receipt.Without(2), time.Now())
			if err != nil || fmt.Sprint(back) != want {
				t.Errorf("refund %d = %v, %v; want %s", again, back, err, want)
			}
		}
		store.down.Store(false)
		if back, err := s.Settle(t.Context(), early, nil, time.Now()); err != nil ||
			fmt.Sprint(back) != "{[3 3] [0 0] [0 0] false false}" {
			t.Errorf("a refund of units that the store charged = %v, %v; want 3 units of each tier", back, err)
		}
		recoverFrom(t, s)
		if err := inner.Peek(t.Context(), req, time.Now(), &d); err != nil || d.Results[0].Used() != 4 ||
			d.Results[1].Used() != 4 {
			t.Errorf("err %v, %d and %d units used; want 4 of each: two charges of three units, less a refund of two",
				err, d.Results[0].Used(), d.Results[1].Used())
		}
	})
}

// Guarantees that a refund to a bucket reduces no pending units of other decisions: units that the bucket has refilled
// since the charge are not pending any more.
func TestRefundOfRefilledUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newMemory(t)
		store := newFlaky(t, inner)
		s := newStore(t, resilience.FallbackConfig{Store: store})
		req := requestOf(newLimit(t, limit.Limit{ID: "l", MaxCost: 10,
			Tiers: []limit.Tier{{Algorithm: limit.TokenBucket, Period: time.Hour, Threshold: 120, Burst: 10}}}))
		req.Charges[0].Cost = 5
		store.down.Store(true)
		var first, d limit.Decision
		if err := s.Decide(t.Context(), req, time.Now(), &first); err != nil || !first.Allowed {
			t.Fatal(err, first.Allowed)
		}
		pass(2 * time.Minute) // refills four units
		if err := s.Decide(t.Context(), req, time.Now(), &d); err != nil || !d.Allowed {
			t.Fatal(err, d.Allowed)
		}
		if back, err := s.Settle(t.Context(), first.Receipt(), nil, time.Now()); err != nil ||
			fmt.Sprint(back) != "{[1] [0] [0] false false}" {
			t.Errorf("Refund = %v, %v; want the one unit that is not refilled", back, err)
		}
		store.down.Store(false)
		recoverFrom(t, s)
		if n := usedUnits(t, inner, req); n != 5 {
			t.Errorf("%d units are charged in the store, want the 5 of the other decision", n)
		}
	})
}

// Guarantees that a refund of more units than its receipt names reduces no pending units of other decisions.
func TestRefundOfTooManyUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newMemory(t)
		store := newFlaky(t, inner)
		s := newStore(t, resilience.FallbackConfig{Store: store})
		req := requestOf(newLimit(t, limit.Limit{ID: "l", MaxCost: 10,
			Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Period: time.Hour, Threshold: 10}}}))
		req.Charges[0].Cost = 3
		store.down.Store(true)
		var d limit.Decision
		for range 2 {
			if err := s.Decide(t.Context(), req, time.Now(), &d); err != nil || !d.Allowed {
				t.Fatal(err, d.Allowed)
			}
		}
		if back, err := s.Settle(t.Context(), d.Receipt(), d.Receipt().Without(5), time.Now()); err != nil ||
			fmt.Sprint(back) != "{[3] [0] [0] false false}" {
			t.Errorf("Refund = %v, %v; want the 3 units of the receipt", back, err)
		}
		store.down.Store(false)
		recoverFrom(t, s)
		if n := usedUnits(t, inner, req); n != 3 {
			t.Errorf("%d units are charged in the store, want the 3 of the other decision", n)
		}
	})
}

// Guarantees that a refund of an expired receipt reduces nothing that the store is charged for later, however often it
// is tried.
func TestExpiredRefundMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newMemory(t)
		store := newFlaky(t, inner)
		s := newStore(t, resilience.FallbackConfig{Store: store})
		l := newLimit(t, limit.Limit{ID: "l", MaxCost: 10,
			Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Period: time.Hour, Threshold: 10}}})
		req := &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l, Cost: 3}}}
		store.down.Store(true)
		var d limit.Decision
		for range 2 {
			if err := s.Decide(t.Context(), req, time.Now(), &d); err != nil || !d.Degraded {
				t.Fatal(err)
			}
		}
		pass(limit.MaxReceiptAge)
		for range 2 {
			if back, err := s.Settle(t.Context(), d.Receipt(), nil, time.Now()); err != nil ||
				fmt.Sprint(back) != "{[0] [0] [0] false true}" {
				t.Errorf("a refund of an expired receipt = %v, %v; want no units, and Expired", back, err)
			}
		}
		store.down.Store(false)
		recoverFrom(t, s)
		if err := inner.Peek(t.Context(), req, time.Now(), &d); err != nil || d.Results[0].Used() != 6 {
			t.Errorf("err %v, %d units used; want 6: two charges of three units", err, d.Results[0].Used())
		}
	})
}

var newMemory = memorytest.New

// recoverFrom decides once for another owner, which the store must answer, and waits until nothing is pending.
func recoverFrom(t *testing.T, s *resilience.Fallback) {
	t.Helper()
	var d limit.Decision
	req := requestOf(window(t, "other", 1000, limit.Backstop))
	req.Owner.Name = "somebody else"
	if err := s.Decide(t.Context(), req, time.Now(), &d); err != nil || d.Degraded {
		t.Fatal(err, d.Degraded)
	}
	for s.Stats().Waiting > 0 {
		pass(time.Millisecond)
	}
}

// Guarantees that invalid configurations are refused.
func TestNewFallbackRefuses(t *testing.T) {
	store := newFlaky(t, nil)
	for want, c := range map[string]resilience.FallbackConfig{
		"Store is missing": {},
		"MaxInstances -1":  {Store: store, MaxInstances: -1},
		"Bytes 100":        {Store: store, Bytes: 100},
		"PerSecond -1":     {Store: store, PerSecond: -1},
	} {
		if _, err := resilience.NewFallback(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v, want an error with %q", err, want)
		}
	}
}

// Guarantees that the fallback limiter allocates nothing while the store answers.
func TestStoreAllocatesNothing(t *testing.T) {
	s := newStore(t, resilience.FallbackConfig{Store: newMemory(t)})
	req := perSecond(t)
	var d limit.Decision
	ask := func() { _ = s.Decide(context.Background(), req, noon, &d) }
	ask()
	if n := testing.AllocsPerRun(100, ask); n > 0 && !soak.RaceEnabled {
		t.Errorf("%.1f allocations for a decision that the store made, want 0", n)
	}
}

// Guarantees that a decision that the store answered and cannot make is counted as such, and has a log line of its own,
// which log throttling of lines about a failing store does not suppress.
func TestUndecidableIsCountedAndLogged(t *testing.T) {
	var log bytes.Buffer
	below := &failingBy{Store: newMemory(t)}
	s, err := resilience.NewFallback(resilience.FallbackConfig{Store: below,
		Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	l := limittest.MustNew(t, limit.Limit{ID: "l", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 100,
		Period: time.Minute}}})
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	for range 5 {
		for _, cause := range []error{errors.New("no route"), fmt.Errorf("item %q: %w", "t4:acme,",
			limit.ErrUnreadable)} {
			below.err = cause
			var d limit.Decision
			if err := s.Decide(t.Context(), &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: "acme"},
				Charges: []limit.Charge{{Limit: l, Cost: 1}}}, now, &d); err != nil || !d.Degraded {
				t.Fatalf("after the store's error %v: error %v, degraded %t; want that the limit's onStoreFailure "+
					"applies", cause, err, d.Degraded)
			}
		}
	}
	if st := s.Stats(); st.Failures != 10 || st.Undecidable != 5 {
		t.Errorf("the stats count %d failures and %d undecidable requests, want 10 and 5", st.Failures, st.Undecidable)
	}
	if text := log.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "no route") ||
		!strings.Contains(text, "t4:acme") {
		t.Errorf("within one second the log has %q; want a line about the store and one about the request that "+
			"names the key", text)
	}
}

// failingBy is a store that fails with a given error.
type failingBy struct {
	limit.Store
	err error
}

func (f *failingBy) Decide(context.Context, *limit.Request, time.Time, *limit.Decision) error {
	return f.err
}

// Guarantees that an instance's part of a limit on requests in flight is a number of places, which come back and can be
// renewed while the store is away, and which are not replayed: those that have ended would be taken for holdFor.
func TestPlacesMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		held := newLimit(t, limit.Limit{ID: "in-flight", Unit: limit.ConcurrentRequests, Tiers: []limit.Tier{{
			Algorithm: limit.SlidingBuckets, Threshold: 8, Period: 30 * time.Second, Buckets: 8}}})
		flaky := newFailingStore(t)
		s := newStore(t, resilience.FallbackConfig{Store: flaky, Instances: func(*limit.Limit) int { return 4 }})
		req, ctx := requestOf(held), t.Context()
		var first, renewed limit.Decision
		if err := s.Decide(ctx, req, start, &first); err != nil || !first.Allowed || !first.Degraded {
			t.Fatalf("%+v, %v", first, err)
		}
		if first.Receipt().Entries()[0].Tier.Limit().Renewal() != held.Renewal() {
			t.Error("an instance's part of a place is not renewed by the limit")
		}
		if n := countAdmitted(t, s, req, start); n != 1 {
			t.Errorf("%d more are admitted, want 1: an instance of four has two of eight places", n)
		}
		free := func(d *limit.Decision, now time.Time) {
			t.Helper()
			if got, err := s.Settle(ctx, d.Receipt(), nil, now); err != nil || got.Returned[0] != 1 {
				t.Errorf("a place is given back: %+v, %v", got, err)
			}
		}
		<-time.After(10 * time.Second)
		later := time.Now()
		if err := s.Decide(ctx, requestOf(held.Renewal()), later, &renewed); err != nil || !renewed.Allowed {
			t.Fatalf("a place is not renewed: %+v, %v", renewed, err)
		}
		free(&first, later)
		if n := countAdmitted(t, s, req, later); n != 0 {
			t.Errorf("%d are admitted after a renewal, want none", n)
		}
		free(&renewed, later)
		if n := countAdmitted(t, s, req, later); n != 1 {
			t.Errorf("%d are admitted after a place came back, want 1", n)
		}
		flaky.down.Store(false)
		recoverFrom(t, s)
		if n := countAdmitted(t, s, req, time.Now()); n != 8 {
			t.Errorf("%d are admitted when the store is back, want 8: requests still in flight renew their places", n)
		}
	})
}
