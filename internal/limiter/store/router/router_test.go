package router_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
)

// unavailable is a store that can be made to fail, and that counts its decisions and peeks.
type unavailable struct {
	limit.Store
	failing         atomic.Bool
	decided, peeked atomic.Int64
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
	a.peeked.Add(1)
	if a.failing.Load() {
		return errUnavailable
	}
	return a.Store.Peek(ctx, req, now, d)
}

func (a *unavailable) Settle(
	ctx context.Context, r *limit.Receipt, used []int64, now time.Time,
) (limit.Settlement, error) {
	if a.failing.Load() {
		return limit.Settlement{}, errUnavailable
	}
	return a.Store.Settle(ctx, r, used, now)
}

func newMemory(tb testing.TB) *unavailable {
	tb.Helper()
	return &unavailable{Store: memorytest.New(tb)}
}

type pair struct {
	*router.Store
	rates, quotas *unavailable
	tb            testing.TB
}

func newPair(tb testing.TB) *pair {
	tb.Helper()
	p := &pair{rates: newMemory(tb), quotas: newMemory(tb), tb: tb}
	p.Store = newStore(tb, p.rates, p.quotas)
	return p
}

// newStore returns a router to a store of rates and a store of quotas.
func newStore(tb testing.TB, rates, quotas limit.Store) *router.Store {
	tb.Helper()
	s, err := router.New(router.Config{Rates: router.Backend{Store: rates}, Quotas: router.Backend{Store: quotas}})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// Guarantees that two stores together keep the contract of one store, including its model.
func TestContract(t *testing.T) {
	limittest.RunStoreContract(t, limittest.Config{
		New:    func(tb testing.TB) limit.Store { return newPair(tb).Store },
		Leases: true, Undoes: true,
	})
}

var (
	start = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	owner = limit.Owner{Kind: limit.Tenant, Name: "acme"}
)

func newLimit(tb testing.TB, id string, tier limit.Tier) *limit.Limit {
	tb.Helper()
	return limittest.MustNew(tb, limit.Limit{ID: id, MaxCost: 100, Tiers: []limit.Tier{tier}})
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
	if asked := p.quotas.decided.Load(); asked != 3 {
		t.Errorf("the quotas' store was charged %d times, want 3: once for each request that was admitted", asked)
	}
	if used := p.used(start, q); used != 3 {
		t.Errorf("%d units of the quota are gone, want 3", used)
	}
	if d := p.decide(start.Add(time.Second), q, r); !d.Allowed || p.used(start, q) != 4 {
		t.Errorf("the next request is allowed %t, %d units are gone; want it allowed, and 4", d.Allowed,
			p.used(start, q))
	}
}

// Guarantees that units of the rate come back also if the caller gives up after they were charged.
func TestCallerGivesUpBetweenTwoStores(t *testing.T) {
	for _, leases := range [][]limit.LeaseRequest{nil, {leaseOf(1, 3), leaseOf(1, 3)}} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p := &pair{rates: newMemory(t), quotas: newMemory(t), tb: t}
		p.Store = newStore(t, p.rates, &between{Store: p.quotas, do: cancel})
		r, q := rate(t, 10), quota(t, 10)
		req := requestOf(r, q)
		req.Leases = leases
		var d limit.Decision
		if err := p.Decide(ctx, req, start, &d); !errors.Is(err, context.Canceled) || d.Allowed {
			t.Errorf("Decide = allowed %t, %v; want that it was cancelled", d.Allowed, err)
		}
		p.counts("a request that was given up", start, r, 0)
		p.counts("a request that was given up", start, q, 0)
	}
}

// Guarantees that a denial by the quota remains a denial while the rates are away: after an error a fallback limiter
// might admit the request.
func TestQuotaDeniesWhileRatesAreAway(t *testing.T) {
	p := newPair(t)
	r, q := rate(t, 10), quota(t, 1)
	p.decide(start, q, r)
	p.rates.failing.Store(true)
	d, err := p.try(start, r, q)
	if err != nil || d.Allowed || d.Binding().Limit() != q || len(d.Results) != 2 || d.Results[0].Limit() != r {
		t.Errorf("Decide = allowed %t with %d results, %v; want a denial by the quota, and a result of each", d.Allowed,
			len(d.Results), err)
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

// Guarantees that a receipt over both stores gives back in both, once.
func TestRefundOverBoth(t *testing.T) {
	p := newPair(t)
	r, q := rate(t, 5), quota(t, 5)
	receipt := p.decide(start, q, r).Receipt()
	got, err := p.Settle(context.Background(), receipt, nil, start)
	if err != nil || got.Repeated || len(got.Returned) != 2 || got.Returned[0] != 1 || got.Returned[1] != 1 {
		t.Errorf("Refund = %+v, %v; want 1 unit of each", got, err)
	}
	if again, err := p.Settle(context.Background(), receipt, nil, start); err != nil || !again.Repeated {
		t.Errorf("Refund again = %+v, %v; want it repeated", again, err)
	}
	if p.used(start, q) != 0 || p.used(start, r) != 0 {
		t.Errorf("quota %d and rate %d used, want 0", p.used(start, q), p.used(start, r))
	}
}

// Guarantees that a refund gives back in the store that answers, if another one does not, and says so when it is tried
// again.
func TestRefundWhileRatesAreAway(t *testing.T) {
	p := newPair(t)
	r, q := rate(t, 5), quota(t, 5)
	receipt := p.decide(start, q, r).Receipt()
	p.rates.failing.Store(true)
	if _, err := p.Settle(t.Context(), receipt, nil, start); !errors.Is(err, errUnavailable) ||
		!strings.HasPrefix(err.Error(), "rates: ") {
		t.Errorf("Refund = %v, want the error of the rates", err)
	}
	p.rates.failing.Store(false)
	if p.used(start, q) != 0 || p.used(start, r) != 1 {
		t.Errorf("quota %d and rate %d used, want 0 and 1", p.used(start, q), p.used(start, r))
	}
	if again, err := p.Settle(t.Context(), receipt, nil, start); err != nil || again.Repeated ||
		!slices.Equal(slices.Sorted(slices.Values(again.Returned)), []int64{0, 1}) {
		t.Errorf("Refund again = %+v, %v; want the unit of the rate", again, err)
	}
}

// late is a store whose clock is so far ahead that every receipt has expired for it.
type late struct{ limit.Store }

func (late) Settle(_ context.Context, r *limit.Receipt, _ []int64, _ time.Time) (limit.Settlement, error) {
	out, err := r.BeginSettle(nil)
	out.Expired = true
	return out, err
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
	got, err := s.Settle(t.Context(), d.Receipt(), nil, start)
	if err != nil || got.Expired || got.Repeated || !slices.Equal(got.Returned, []int64{1, 0}) {
		t.Errorf("Refund = %+v, %v; want 1 unit of the rate and 0 of the quota", got, err)
	}
	got, err = s.Settle(t.Context(), d.Receipt(), nil, start)
	if err != nil || !got.Expired || !got.Repeated || !slices.Equal(got.Returned, []int64{0, 0}) {
		t.Errorf("the second Refund = %+v, %v; want no units, repeated and too late", got, err)
	}
}
