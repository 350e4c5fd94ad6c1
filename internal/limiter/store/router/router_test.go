package router_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
)

// unavailable is a store that can be made to fail, and that counts its decisions.
type unavailable struct {
	limit.Store
	failing atomic.Bool
	decided atomic.Int64
}

var errUnavailable = errors.New("unavailable")

func (a *unavailable) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	a.decided.Add(1)
	if a.failing.Load() {
		return errUnavailable
	}
	return a.Store.Decide(ctx, req, now, d)
}

func (a *unavailable) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if a.failing.Load() {
		return errUnavailable
	}
	return a.Store.Peek(ctx, req, now, d)
}

func newMemory(tb testing.TB) *unavailable {
	tb.Helper()
	s, err := memory.New(memory.Config{})
	if err != nil {
		tb.Fatal(err)
	}
	return &unavailable{Store: s}
}

type pair struct {
	*router.Store
	rates, quotas *unavailable
	tb            testing.TB
}

func newPair(tb testing.TB) *pair { return newPairHolding(tb, 0) }

func newPairHolding(tb testing.TB, holdFor time.Duration) *pair {
	tb.Helper()
	p := &pair{rates: newMemory(tb), quotas: newMemory(tb), tb: tb}
	var err error
	if p.Store, err = router.New(router.Config{Rates: router.Backend{Store: p.rates},
		Quotas: router.Backend{Store: p.quotas}, KeepUnspentFor: holdFor}); err != nil {
		tb.Fatal(err)
	}
	return p
}

// Guarantees that two stores together keep the contract of one store, including its model. No unspent charges are kept,
// because the model does not know them: they make what remains look smaller.
func TestContract(t *testing.T) {
	limittest.RunStoreContract(t, limittest.Config{
		New:    func(tb testing.TB) limit.Store { return newPairHolding(tb, -1).Store },
		Leases: true, KeepsAhead: true,
	})
}

var (
	start = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	owner = limit.Owner{Kind: limit.Tenant, Name: "acme"}
)

func newLimit(tb testing.TB, id string, tier limit.Tier) *limit.Limit {
	tb.Helper()
	l, err := limit.New(limit.Limit{ID: id, MaxCost: 100, Tiers: []limit.Tier{tier}})
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

func rate(tb testing.TB, units int64) *limit.Limit {
	return newLimit(tb, "rate", limit.Tier{Algorithm: limit.FixedWindow, Period: time.Second, Threshold: units})
}

func quota(tb testing.TB, units int64) *limit.Limit {
	return newLimit(tb, "quota", limit.Tier{
		Algorithm: limit.Quota, Threshold: units, Calendar: &limit.Calendar{Every: limit.Day, Location: time.UTC},
	})
}

func (p *pair) decide(now time.Time, limits ...*limit.Limit) *limit.Decision {
	p.tb.Helper()
	d, err := p.try(now, limits...)
	if err != nil {
		p.tb.Fatalf("Decide: %v", err)
	}
	return d
}

func (p *pair) try(now time.Time, limits ...*limit.Limit) (*limit.Decision, error) {
	d := new(limit.Decision)
	err := p.Decide(context.Background(), requestOf(limits...), now, d)
	return d, err
}

func requestOf(limits ...*limit.Limit) *limit.Request {
	req := &limit.Request{Owner: owner}
	for _, l := range limits {
		req.Charges = append(req.Charges, limit.Charge{Limit: l, Cost: 1})
	}
	return req
}

// used returns how many units of the limit are charged in the store that counts it.
func (p *pair) used(now time.Time, l *limit.Limit) int64 {
	p.tb.Helper()
	s := p.rates
	if router.IsQuota(l) {
		s = p.quotas
	}
	var d limit.Decision
	if err := s.Store.Peek(context.Background(), requestOf(l), now, &d); err != nil {
		p.tb.Fatalf("Peek: %v", err)
	}
	return d.Results[0].Used()
}

// Guarantees that unspent charges are refunded before the quota denies: no request has spent their units.
func TestUnspentChargesAreRefundedBeforeADenial(t *testing.T) {
	p := newPair(t)
	r, q := rate(t, 5), quota(t, 10)
	ask := func(ofQuota, ofRate int64) bool {
		t.Helper()
		req := &limit.Request{Owner: owner, Charges: []limit.Charge{{Limit: q, Cost: ofQuota}}}
		if ofRate > 0 {
			req.Charges = append(req.Charges, limit.Charge{Limit: r, Cost: ofRate})
		}
		var d limit.Decision
		if err := p.Decide(t.Context(), req, start, &d); err != nil {
			t.Fatal(err)
		}
		return d.Allowed
	}
	if !ask(1, 5) || ask(9, 1) || p.Unspent() != 1 || p.used(start, q) != 10 {
		t.Fatalf("%d leases are held, %d units charged; want the 9 units of a request that the rate denied to be held",
			p.Unspent(), p.used(start, q))
	}
	if !ask(8, 0) {
		t.Error("a cost of 8 is denied, although 9 units are not spent")
	}
	if p.Unspent() != 0 || p.used(start, q) != 9 {
		t.Errorf("%d leases are held, %d units charged; want the 9 that were admitted", p.Unspent(), p.used(start, q))
	}
	if ask(2, 0) || !ask(1, 0) {
		t.Error("one unit is left: a cost of 2 is admitted, or a cost of 1 is denied")
	}
}

// holding is a store whose refunds wait until free is closed.
type holding struct {
	limit.Store
	free    chan struct{}
	refunds atomic.Int64
}

func (h *holding) Refund(ctx context.Context, r *limit.Receipt, units int64, now time.Time) (limit.Refund, error) {
	h.refunds.Add(1)
	<-h.free
	return h.Store.Refund(ctx, r, units, now)
}

// Guarantees that returns to a store that does not answer take bounded memory: further units are lost, and are not
// returned when the store answers.
func TestReturnsThatWaitAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const held, waiting, underWay, beyond = 64, 4096, 8, 100
		quotas := &holding{Store: newMemory(t), free: make(chan struct{})}
		s, err := router.New(router.Config{Rates: router.Backend{Store: newMemory(t)},
			Quotas: router.Backend{Store: quotas}, KeepUnspentFor: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		r, q := rate(t, 1), quota(t, 1_000_000_000)
		var d limit.Decision
		// the first request is admitted, and the rate denies all others
		for i := range 1 + held + underWay + waiting + beyond {
			req := requestOf(r, q)
			req.Charges[1].Cost = 1 + int64(i) // the costs differ, so that no request spends the charge of another one
			if err := s.Decide(t.Context(), req, start, &d); err != nil || d.Allowed != (i == 0) {
				t.Fatalf("request %d: allowed %t, %v", i, d.Allowed, err)
			}
			synctest.Wait()
		}
		close(quotas.free)
		synctest.Wait()
		if n := quotas.refunds.Load(); n != underWay+waiting {
			t.Errorf("%d leases were given back, want the %d that were under way and the %d that waited", n, underWay,
				waiting)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Guarantees that unspent charges take bounded memory, however many owners have some.
func TestUnspentChargesAreBounded(t *testing.T) {
	const perOwner, inAll = 64, 4096
	p := newPairHolding(t, time.Hour)
	r, q := rate(t, 1), quota(t, 1_000_000)
	var d limit.Decision
	for o := range 2 * inAll / perOwner {
		req := requestOf(r, q)
		req.Owner = limit.Owner{Kind: limit.Tenant, Name: strconv.Itoa(o)}
		for i := range 1 + perOwner + 1 { // the rate admits the first request and denies all others
			req.Charges[1].Cost = 1 + int64(i) // the costs differ, so that no request spends the charge of another one
			if err := p.Decide(t.Context(), req, start, &d); err != nil || d.Allowed != (i == 0) {
				t.Fatalf("owner %d, request %d: allowed %t, %v", o, i, d.Allowed, err)
			}
		}
		if n, want := p.Unspent(), min(perOwner*(o+1), inAll); n != want {
			t.Fatalf("%d charges are kept after owner %d, want %d", n, o, want)
		}
	}
	p.close()
}

// Guarantees that a client that retries without a pause against a rate neither uses up its quota nor causes a write to
// the quotas' store for each request.
func TestRateDenialKeepsTheQuota(t *testing.T) {
	p := newPair(t)
	r, q := rate(t, 3), quota(t, 100)
	admitted := 0
	for range 1000 {
		d := p.decide(start, q, r)
		if d.Allowed {
			admitted++
		} else if d.Binding().Limit() != r || d.Results[0].Charged != 0 {
			t.Fatalf("a denial by the rate has the binding limit %s, and charged %d units of the quota",
				d.Binding().Limit().ID, d.Results[0].Charged)
		}
	}
	if admitted != 3 || p.used(start, r) != 3 {
		t.Errorf("%d admitted, the rate has %d; want 3", admitted, p.used(start, r))
	}
	if asked := p.quotas.decided.Load(); asked != 4 {
		t.Errorf("the quotas' store was asked %d times, want 4: three requests and one lease", asked)
	}
	if held, used := p.Unspent(), p.used(start, q); held != 1 || used != 4 {
		t.Errorf("%d leases are held and %d units of the quota are gone, want 1 and 4", held, used)
	}
	if d := p.decide(start.Add(time.Second), q, r); !d.Allowed || p.used(start, q) != 4 || p.Unspent() != 0 {
		t.Errorf("the next request is allowed %t, %d units are gone and %d held; want the held one spent", d.Allowed,
			p.used(start, q), p.Unspent())
	}
	if err := p.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// Guarantees that a denial by the quota charges nothing to the rate, and that Retry-After is for both.
func TestQuotaDenialLeavesTheRate(t *testing.T) {
	p := newPair(t)
	r, q := rate(t, 2), quota(t, 1)
	p.decide(start, r, q)
	d := p.decide(start, r, q)
	if d.Allowed || d.Binding().Limit() != q || p.used(start, r) != 1 {
		t.Errorf("allowed %t by %s, rate %d used; want a denial by the quota and 1 used", d.Allowed,
			d.Binding().Limit().ID, p.used(start, r))
	}
	if want := 12 * time.Hour; d.RetryAfter() != want {
		t.Errorf("retry after %s, want %s: midnight", d.RetryAfter(), want)
	}
}

// Guarantees that an error of the rates neither admits the request nor costs the quota a unit for good.
func TestRatesAway(t *testing.T) {
	p := newPair(t)
	r, q := rate(t, 10), quota(t, 10)
	p.rates.failing.Store(true)
	for range 5 {
		if d, err := p.try(start, r, q); !errors.Is(err, errUnavailable) || d.Allowed {
			t.Fatalf("Decide = allowed %t, %v; want the error", d.Allowed, err)
		}
	}
	if used, held := p.used(start, q), p.Unspent(); used != 1 || held != 1 {
		t.Errorf("%d units gone, %d held; want 1 and 1", used, held)
	}
	if err := p.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if used := p.used(start, q); used != 0 {
		t.Errorf("after Close %d units are gone, want 0", used)
	}
}

// Guarantees that a denial by the quota remains a denial while the rates are away: after an error a fallback limiter
// might admit the request.
func TestQuotaDeniesWhileRatesAreAway(t *testing.T) {
	p := newPair(t)
	r, q := rate(t, 10), quota(t, 1)
	p.decide(start, q, r)
	p.rates.failing.Store(true)
	if d, err := p.try(start, r, q); err != nil || d.Allowed || d.Binding().Limit() != q {
		t.Errorf("Decide = allowed %t, %v; want a denial by the quota", d.Allowed, err)
	}
}

func TestQuotasAway(t *testing.T) {
	p := newPair(t)
	r, q := rate(t, 10), quota(t, 10)
	p.quotas.failing.Store(true)
	if d, err := p.try(start, r, q); !errors.Is(err, errUnavailable) || d.Allowed || p.used(start, r) != 0 {
		t.Errorf("Decide = allowed %t, %v, rate %d used; want the error and nothing charged", d.Allowed, err,
			p.used(start, r))
	}
}

// Guarantees that an unspent charge is dropped when its period ends: spent later, it would be a unit of the old day
// that is admitted on the new one, whose quota does not count it.
func TestUnspentChargeEndsWithItsPeriod(t *testing.T) {
	p := newPair(t)
	r, q := rate(t, 1), quota(t, 10)
	evening := time.Date(2026, 3, 2, 23, 59, 59, 0, time.UTC)
	p.decide(evening, r, q)
	p.decide(evening, r, q) // denied by the rate: its unit of the quota is an unspent charge
	morning := evening.Add(2 * time.Second)
	p.decide(morning, r, q)
	if used := p.used(morning, q); used != 1 {
		t.Errorf("the new day counts %d, want 1: the lease of the old one must not be spent", used)
	}
}

// Guarantees that an unspent charge is refunded after a few seconds if no request spends it.
func TestUnspentChargeIsRefunded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		r, q := rate(t, 1), quota(t, 10)
		now := time.Now()
		p.decide(now, r, q)
		p.decide(now, r, q)
		if used := p.used(now, q); used != 2 {
			t.Fatalf("%d units gone while one is held, want 2", used)
		}
		<-time.After(11 * time.Second)
		synctest.Wait()
		if used, held := p.used(time.Now(), q), p.Unspent(); used != 1 || held != 0 {
			t.Errorf("%d units gone, %d held; want 1 and 0", used, held)
		}
		if err := p.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
	})
}

// Guarantees that a receipt over both stores gives back in both, once.
func TestRefundOverBoth(t *testing.T) {
	p := newPair(t)
	r, q := rate(t, 5), quota(t, 5)
	receipt := p.decide(start, q, r).Receipt()
	got, err := p.Refund(context.Background(), receipt, 0, start)
	if err != nil || got.Repeated || len(got.Units) != 2 || got.Units[0] != 1 || got.Units[1] != 1 {
		t.Errorf("Refund = %+v, %v; want 1 unit of each", got, err)
	}
	if again, err := p.Refund(context.Background(), receipt, 0, start); err != nil || !again.Repeated {
		t.Errorf("Refund again = %+v, %v; want it repeated", again, err)
	}
	if p.used(start, q) != 0 || p.used(start, r) != 0 {
		t.Errorf("quota %d and rate %d used, want 0", p.used(start, q), p.used(start, r))
	}
}

// late is a store whose clock is so far ahead that every receipt has expired for it.
type late struct{ limit.Store }

func (late) Refund(_ context.Context, r *limit.Receipt, _ int64, _ time.Time) (limit.Refund, error) {
	return limit.Refund{Units: make([]int64, len(r.Entries())), Expired: true}, nil
}

// Guarantees that a refund that has given back units in one store does not say that it came too late, as the other
// store does.
func TestRefundThatIsLateForOneStore(t *testing.T) {
	s, err := router.New(router.Config{
		Rates: router.Backend{Store: newMemory(t)}, Quotas: router.Backend{Store: late{newMemory(t)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var d limit.Decision
	if err := s.Decide(t.Context(), requestOf(rate(t, 2), quota(t, 10)), start, &d); err != nil {
		t.Fatal(err)
	}
	got, err := s.Refund(t.Context(), d.Receipt(), 0, start)
	if err != nil || got.Expired || got.Repeated || !slices.Equal(got.Units, []int64{1, 0}) {
		t.Errorf("Refund = %+v, %v; want 1 unit of the rate and 0 of the quota", got, err)
	}
	got, err = s.Refund(t.Context(), d.Receipt(), 0, start)
	if err != nil || !got.Expired || !got.Repeated || !slices.Equal(got.Units, []int64{0, 0}) {
		t.Errorf("the second Refund = %+v, %v; want no units, repeated and too late", got, err)
	}
}

// Guarantees that many concurrent requests never exceed the rate or the quota, and that every unit is spent, an unspent
// charge, or left.
func TestConcurrent(t *testing.T) {
	p := newPair(t)
	r, q := rate(t, 40), quota(t, 100)
	var admitted [3]atomic.Int64
	for second := range int64(3) {
		now := start.Add(time.Duration(second) * time.Second)
		var done sync.WaitGroup
		for range 64 {
			done.Go(func() {
				for range 5 {
					if d, err := p.try(now, r, q); err != nil {
						t.Errorf("Decide: %v", err)
					} else if d.Allowed {
						admitted[second].Add(1)
					}
				}
			})
		}
		done.Wait()
	}
	total := admitted[0].Load() + admitted[1].Load() + admitted[2].Load()
	for second := range admitted {
		if n := admitted[second].Load(); n > 40 {
			t.Errorf("second %d admitted %d, want at most 40", second, n)
		}
	}
	if used := p.used(start, q); total > 100 || used > 100 || used != total+int64(p.Unspent()) {
		t.Errorf("%d units are admitted, %d of 100 are used, and %d are unspent charges, which does not add up", total,
			used, p.Unspent())
	}
	if err := p.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if used := p.used(start, q); used != total {
		t.Errorf("after Close %d units are gone, want the %d admitted", used, total)
	}
}
