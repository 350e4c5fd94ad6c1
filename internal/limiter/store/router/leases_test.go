package router_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
)

// leaseOf requests a need and a lease of so many units more.
func leaseOf(need, units int64) limit.LeaseRequest {
	return limit.LeaseRequest{Need: need, Ample: units, Share: limit.ShareOne}
}

// ask decides over limits that each cost 1, with a lease request for each.
func (p *pair) ask(now time.Time, limits []*limit.Limit, leases ...limit.LeaseRequest) (*limit.Decision, error) {
	req, d := requestOf(limits...), new(limit.Decision)
	req.Leases = leases
	err := p.Decide(context.Background(), req, now, d)
	return d, err
}

func (p *pair) leases(now time.Time, limits []*limit.Limit, leases ...limit.LeaseRequest) *limit.Decision {
	p.tb.Helper()
	d, err := p.ask(now, limits, leases...)
	if err != nil {
		p.tb.Fatalf("Decide with leases %+v: %v", leases, err)
	}
	return d
}

// counts fails unless want units of the limit are charged.
func (p *pair) counts(what string, now time.Time, l *limit.Limit, want int64) {
	p.tb.Helper()
	if got := p.used(now, l); got != want {
		p.tb.Errorf("%s: %d of %s are charged, want %d", what, got, l.ID, want)
	}
}

func (p *pair) close() {
	p.tb.Helper()
	if err := p.Close(context.Background()); err != nil {
		p.tb.Fatal(err)
	}
}

// Guarantees that a request may lease from both stores. A lease that is dropped would cost both stores a call for each
// request.
func TestLeasesOfBothParts(t *testing.T) {
	p := newPair(t)
	r, q := rate(t, 10), quota(t, 100)
	d := p.leases(start, []*limit.Limit{r, q}, leaseOf(1, 4), leaseOf(1, 20))
	if !d.Allowed || d.Lease(0).Units != 4 || d.Lease(1).Units != 20 || d.Results[0].Charged != 1 ||
		d.Results[1].Charged != 1 {
		t.Errorf("allowed %t, leases %+v and %+v; want 4 and 20", d.Allowed, d.Lease(0), d.Lease(1))
	}
	p.counts("a lease of 4", start, r, 5)
	p.counts("a lease of 20", start, q, 21)
	var peek limit.Decision
	req := requestOf(q, r)
	req.Leases = []limit.LeaseRequest{leaseOf(1, 7), leaseOf(1, 3)}
	if err := p.Peek(context.Background(), req, start, &peek); err != nil || peek.Lease(0).Units != 7 ||
		peek.Lease(1).Units != 3 {
		t.Errorf("Peek = %v, leases %+v and %+v; want 7 and 3", err, peek.Lease(0), peek.Lease(1))
	}
	p.counts("a peek", start, q, 21)
}

// Guarantees that after a denial by the rate the caller keeps the charge of the quota as a lease, and spends it with
// the next request. A client that retries without a pause against the rate therefore causes no calls and loses no
// units.
func TestRateDenialLeavesTheQuotasLease(t *testing.T) {
	p := newPair(t)
	r, q := rate(t, 1), quota(t, 100)
	limits := []*limit.Limit{r, q}
	p.leases(start, limits, limit.LeaseRequest{Need: 1}, leaseOf(1, 0))
	d := p.leases(start, limits, limit.LeaseRequest{Need: 1}, leaseOf(1, 20))
	if g := d.Lease(1); d.Allowed || g.Units != 21 || g.Upfront != 21 ||
		g.Until != start.Add(12*time.Hour).UnixMicro() || d.Results[1].Charged != 0 {
		t.Errorf("allowed %t, leases %+v, charged %d; want a denial with a lease of 21 until midnight", d.Allowed, g,
			d.Results[1].Charged)
	}
	if d.Binding().Limit() != r || d.Lease(0).Units != 0 || d.ID != (limit.ReceiptID{}) || d.Results[1].Used() != 22 {
		t.Errorf("%s denies, %d of it leased, receipt %v, quota at %d; want the rate, nothing, none and 22",
			d.Binding().Limit().ID, d.Lease(0).Units, d.ID, d.Results[1].Used())
	}
	p.close()
	p.counts("after Close", start, q, 22)
	p.counts("after Close", start, r, 1)
}

// Guarantees that after a denial by the rate a quota of which the request leases nothing is refunded, if the request
// leases from another quota.
func TestRateDenialRefundsWhatIsNotLeased(t *testing.T) {
	p := newPair(t)
	r, leased := rate(t, 1), quota(t, 100)
	exact := newLimit(t, "exact", limit.Tier{Algorithm: limit.Quota, Threshold: 100,
		Calendar: &limit.Calendar{Every: limit.Month, Location: time.UTC}})
	p.decide(start, r)
	limits := []*limit.Limit{exact, r, leased}
	d := p.leases(start, limits, limit.LeaseRequest{Need: 1}, limit.LeaseRequest{Need: 1}, leaseOf(1, 5))
	if d.Allowed || d.Lease(0).Units != 0 || d.Results[0].Charged != 0 || d.Results[0].Used() != 0 ||
		d.Lease(2).Units != 6 {
		t.Errorf("allowed %t, leases %+v and %+v; want a denial, nothing and 6", d.Allowed, d.Lease(0), d.Lease(2))
	}
	p.close()
	p.counts("after Close", start, exact, 0)
	p.counts("after Close", start, leased, 6)
}

// Guarantees that a client that retries without a pause against a rate beside an exact quota causes one call of the
// quotas' store.
func TestRateDenialHoldsAnExactQuota(t *testing.T) {
	p := newPair(t)
	r, exact := rate(t, 2), quota(t, 100)
	limits := []*limit.Limit{r, exact}
	p.decide(start, r)
	p.decide(start, r)
	for range 100 {
		if d := p.leases(start, limits, leaseOf(1, 5), limit.LeaseRequest{Need: 1}); d.Allowed ||
			d.Lease(1).Units != 0 {
			t.Fatalf("allowed %t, leases %+v", d.Allowed, d.Lease(1))
		}
	}
	if n := p.quotas.decided.Load(); n != 1 || p.Unspent() != 1 {
		t.Errorf("the quotas' store was asked %d times, %d held; want 1 and 1", n, p.Unspent())
	}
	if d := p.leases(start.Add(time.Second), limits, leaseOf(1, 5), limit.LeaseRequest{Need: 1}); !d.Allowed ||
		d.Lease(0).Units != 1 || p.Unspent() != 0 {
		t.Errorf("the next second: allowed %t, leases %+v, %d held", d.Allowed, d.Lease(0), p.Unspent())
	}
	p.close()
	p.counts("one admitted", start, exact, 1)
}

// Guarantees that units that a denied request returned are charged as before, because the caller assumes that a denial
// changes nothing.
func TestRateDenialRechargesReturnedUnits(t *testing.T) {
	for _, tt := range []struct {
		name  string
		ask   limit.LeaseRequest
		calls int64
	}{
		{"more than was charged", leaseOf(1, 2), 2},
		{"as much as was charged", leaseOf(1, 9), 1},
		{"less than was charged", leaseOf(1, 30), 1},
		{"and nothing is leased", limit.LeaseRequest{Need: 1}, 2},
		{"and nothing is needed", leaseOf(0, 0), 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPairHolding(t, -1)
			r, q := rate(t, 1), quota(t, 100)
			limits := []*limit.Limit{r, q}
			held := p.leases(start, limits, limit.LeaseRequest{Need: 1}, leaseOf(1, 10)).Lease(1)
			p.counts("one and 10 leased", start, q, 11)
			p.quotas.decided.Store(0)
			tt.ask.Correction, tt.ask.CorrectionAt = -10, held.At
			d := p.leases(start, limits, limit.LeaseRequest{Need: 1}, tt.ask)
			if d.Allowed || d.Lease(1) != (limit.Lease{}) {
				t.Errorf("allowed %t, leases %+v; want a denial that leases nothing", d.Allowed, d.Lease(1))
			}
			p.counts("a denial", start, q, 11)
			if tt.name == "less than was charged" { // another call returns the rest of the charge
				tt.calls++
			}
			if n := p.quotas.decided.Load(); n != tt.calls {
				t.Errorf("the quotas' store was asked %d times, want %d", n, tt.calls)
			}
		})
	}
}

// Guarantees that returned units of a period that has ended are lost, and are not charged to the next period.
func TestUnitsReturnedTooLateAreNotChargedAgain(t *testing.T) {
	p := newPairHolding(t, -1)
	r, q := rate(t, 1), quota(t, 100)
	limits := []*limit.Limit{r, q}
	held := p.leases(start, limits, limit.LeaseRequest{Need: 1}, leaseOf(1, 10)).Lease(1)
	morning := start.Add(24 * time.Hour)
	p.decide(morning, r)
	late := leaseOf(1, 3)
	late.Correction, late.CorrectionAt = -10, held.At
	if d := p.leases(morning, limits, limit.LeaseRequest{Need: 1}, late); d.Allowed || d.Lease(1).Units != 4 {
		t.Errorf("allowed %t, leases %+v; want a denial and 4 of the new day", d.Allowed, d.Lease(1))
	}
	p.counts("the new day", morning, q, 4)
}

// between is a store that runs a function before each decision.
type between struct {
	limit.Store
	do func()
}

func (b *between) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	b.do()
	return b.Store.Decide(ctx, req, now, d)
}

// Guarantees that a denied request is an error if others were admitted for the units that it returned. The caller must
// not assume that it still has them, and charging them all the same would exceed the quota.
func TestReturnedUnitsThatOthersSpent(t *testing.T) {
	for _, away := range []bool{false, true} {
		quotas, rates := newMemory(t), newMemory(t)
		r, q := rate(t, 1), quota(t, 11)
		stolen := false
		thief := &between{Store: rates, do: func() {
			if stolen {
				quotas.failing.Store(away)
				if !away {
					var d limit.Decision
					if err := quotas.Store.Decide(context.Background(), requestOf(q), start, &d); err != nil ||
						!d.Allowed {
						t.Fatal(err, d.Allowed)
					}
				}
			}
		}}
		s, err := router.New(router.Config{Rates: router.Backend{Store: thief}, Quotas: router.Backend{Store: quotas},
			KeepUnspentFor: -1})
		if err != nil {
			t.Fatal(err)
		}
		p := &pair{Store: s, rates: rates, quotas: quotas, tb: t}
		week := newLimit(t, "week", limit.Tier{Algorithm: limit.Quota, Threshold: 9,
			Calendar: &limit.Calendar{Every: limit.Week, Location: time.UTC}})
		held := p.leases(start, []*limit.Limit{r, q}, limit.LeaseRequest{Need: 1}, leaseOf(1, 10)).Lease(1)
		stolen = true
		back := leaseOf(0, 0)
		back.Correction, back.CorrectionAt = -10, held.At
		d, err := p.ask(start, []*limit.Limit{r, q, week}, limit.LeaseRequest{Need: 1}, back, leaseOf(1, 4))
		if err == nil || d.Allowed || len(d.Results) != 0 || away != errors.Is(err, errUnavailable) {
			t.Errorf("away %t: Decide = %v, allowed %t with %d results; want an error and none", away, err, d.Allowed,
				len(d.Results))
		}
		quotas.failing.Store(false)
		want, lost := int64(2), int64(0) // the unit that was admitted first, and the one that was admitted meanwhile
		if away {
			want, lost = 1, 5
		}
		p.counts("after what came back was spent", start, q, want)
		p.counts("an error leases nothing, if that can be given back", start, week, lost)
	}
}

// Guarantees that returned units which must be charged again after a denial are charged in the window from which they
// came. If that window has ended meanwhile, the decision is an error, and nothing is charged in the next window: its
// units belong to other requests.
func TestReturnedUnitsAreNotChargedInTheNextWindow(t *testing.T) {
	quotas, rates := &skewed{Store: newMemory(t)}, newMemory(t)
	r, q := rate(t, 1), quota(t, 100)
	isOver := false
	midnight := &between{Store: rates, do: func() {
		if isOver {
			quotas.by = 24 * time.Hour
		}
	}}
	s, err := router.New(router.Config{
		Rates: router.Backend{Store: midnight}, Quotas: router.Backend{Store: quotas}, KeepUnspentFor: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{Store: s, rates: rates, quotas: &unavailable{Store: quotas}, tb: t}
	limits := []*limit.Limit{r, q}
	leased := p.leases(start, limits, limit.LeaseRequest{Need: 1}, leaseOf(1, 10)).Lease(1)
	isOver = true
	request := leaseOf(0, 0)
	request.Correction, request.CorrectionAt = -10, leased.At
	if d, err := p.ask(start, limits, limit.LeaseRequest{Need: 1}, request); err == nil {
		t.Errorf("Decide = allowed %t, leases %+v; want an error", d.Allowed, d.Lease(1))
	}
	p.counts("the next day", start.Add(24*time.Hour), q, 0)
}

// Guarantees that after an error of the rates everything that the quotas were charged and leased is returned, and that
// the quotas' store is not called until the rates answer again.
func TestRatesFailUnderLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		r, q := rate(t, 10), quota(t, 100)
		limits := []*limit.Limit{r, q}
		p.rates.failing.Store(true)
		for range 50 {
			d, err := p.ask(start, limits, leaseOf(1, 3), leaseOf(1, 20))
			if !errors.Is(err, errUnavailable) || d.Allowed || d.Lease(1).Units != 0 {
				t.Fatalf("Decide = allowed %t, %v; want the error", d.Allowed, err)
			}
		}
		synctest.Wait()
		p.counts("beside the decisions", start, q, 0)
		if n := p.quotas.decided.Load(); n != 2 {
			t.Errorf("the quotas' store was asked %d times, want 2: a lease and its return", n)
		}
		p.rates.failing.Store(false)
		for range 2 {
			if d := p.leases(start, limits, leaseOf(1, 3), leaseOf(1, 20)); !d.Allowed {
				t.Error("a request is denied after the rates answer again, want it allowed")
			}
		}
		p.close()
		p.counts("two of 21", start, q, 42)
		p.counts("two of 4", start, r, 8)
	})
}

// Guarantees that units of the counter that all values beyond MaxValues share are lost after an error. When they came
// back, the value might have a counter of its own, from which they would be subtracted.
func TestSharedCounterIsNotGivenBack(t *testing.T) {
	p := newPairHolding(t, -1)
	values, err := limit.New(limit.Limit{ID: "values", Per: "subject", MaxValues: 1, MaxCost: 100,
		Tiers: []limit.Tier{{Algorithm: limit.Quota,
			Threshold: 100, Calendar: &limit.Calendar{Every: limit.Day, Location: time.UTC}}}})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(subject string) (limit.Decision, error) {
		req := requestOf(rate(t, 10), values)
		req.Charges[1].Value = limit.Value{Kind: limit.ValueIs, Text: subject}
		req.Leases = []limit.LeaseRequest{{Need: 1}, leaseOf(1, 4)}
		var d limit.Decision
		return d, p.Decide(context.Background(), req, start, &d)
	}
	if _, err := ask("one"); err != nil {
		t.Fatal(err)
	}
	p.rates.failing.Store(true)
	if _, err := ask("two"); !errors.Is(err, errUnavailable) {
		t.Fatal(err)
	}
	req, d := requestOf(values), new(limit.Decision)
	req.Charges[0].Value = limit.Value{Kind: limit.ValueIs, Text: "two"}
	if err := p.Peek(context.Background(), req, start, d); err != nil || !d.Results[0].Other ||
		d.Results[0].Used() != 5 {
		t.Errorf("Peek = %v, shared %t, %d used; want 5", err, d.Results[0].Other, d.Results[0].Used())
	}
}

// Guarantees that leases of a store that does not answer can be spent without calling it.
func TestLeasesOfAStoreThatIsAwayCanBeSpent(t *testing.T) {
	p := newPair(t)
	r, q := rate(t, 10), quota(t, 100)
	limits := []*limit.Limit{r, q}
	for _, tt := range []struct {
		away   *unavailable
		leases [2]limit.LeaseRequest
		lacks  *limit.Limit
	}{
		{p.quotas, [2]limit.LeaseRequest{leaseOf(1, 2), {}}, r},
		{p.rates, [2]limit.LeaseRequest{{}, leaseOf(1, 2)}, q},
	} {
		tt.away.failing.Store(true)
		for try := range 2 { // also after the rates have failed once
			d := p.leases(start, limits, tt.leases[:]...)
			i := 0
			if tt.lacks == q {
				i = 1
			}
			if !d.Allowed || len(d.Results) != 2 || d.Lease(i).Units != 2 || d.Results[i].Charged != 1 ||
				d.Results[1-i].Charged != 0 {
				t.Errorf("try %d, %s lacks: allowed %t, leases %+v and %+v", try, tt.lacks.ID, d.Allowed, d.Lease(0),
					d.Lease(1))
			}
			if d, err := p.ask(start, limits, limit.LeaseRequest{Need: 1}, limit.LeaseRequest{Need: 1}); err == nil ||
				d.Allowed {
				t.Errorf("try %d, both lack: allowed %t, %v; want an error", try, d.Allowed, err)
			}
		}
		tt.away.failing.Store(false)
	}
	p.close()
	p.counts("two leases of 3", start, r, 6)
	p.counts("two leases of 3", start, q, 6)
}

// Guarantees that nobody waits for a return to a quotas' store that hangs, except Close, which waits until its context
// ends.
func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quotas, rates := newMemory(t), newMemory(t)
		var hangs atomic.Bool
		slow := &hanging{Store: quotas, hangs: &hangs}
		s, err := router.New(router.Config{Rates: router.Backend{Store: &between{Store: rates,
			do: func() { hangs.Store(true) }}}, Quotas: router.Backend{Store: slow}})
		if err != nil {
			t.Fatal(err)
		}
		p := &pair{Store: s, rates: rates, quotas: quotas, tb: t}
		rates.failing.Store(true)
		began := time.Now()
		if _, err := p.ask(start, []*limit.Limit{rate(t, 10), quota(t, 100)}, leaseOf(1, 3),
			leaseOf(1, 20)); !errors.Is(err, errUnavailable) {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the decision waited %s for units to be given back, want no wait", took)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		if err := s.Close(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Close = %v, want an error, for what is lost", err)
		}
		if took := time.Since(began); took != 300*time.Millisecond {
			t.Errorf("Close took %s, want 300ms", took)
		}
	})
}

// hanging is a store that can be made to wait until the context of a call ends.
type hanging struct {
	limit.Store
	hangs *atomic.Bool
}

func (h *hanging) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if h.hangs.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	return h.Store.Decide(ctx, req, now, d)
}

// Guarantees that a correction reaches the store that answers, whatever the other one answers, and however long that
// takes.
func TestCorrectionsReachBothParts(t *testing.T) {
	other := errors.New("another error")
	for _, tt := range []struct {
		name                string
		rates, quotas, want error // want is what errors.Is finds in the returned error
	}{
		{"both answer", nil, nil, nil},
		{"the rates are away", errUnavailable, nil, nil},
		{"the quotas are away", nil, errUnavailable, nil},
		{"both are away", errUnavailable, errUnavailable, errUnavailable},
		{"both fail otherwise", other, errUnavailable, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			quotas, rates := newMemory(t), newMemory(t)
			s, err := router.New(router.Config{Rates: router.Backend{Store: &failing{rates, tt.rates}},
				Quotas: router.Backend{Store: &failing{quotas, tt.quotas}}})
			if err != nil {
				t.Fatal(err)
			}
			p := &pair{Store: s, rates: rates, quotas: quotas, tb: t}
			r, q := rate(t, 10), quota(t, 10)
			at := start.UnixMicro()
			d, err := p.ask(start, []*limit.Limit{r, q}, limit.LeaseRequest{Correction: 12, CorrectionAt: at},
				limit.LeaseRequest{Correction: 4, CorrectionAt: at})
			if (err == nil) != (tt.rates == nil && tt.quotas == nil) || d.Allowed != (err == nil) {
				t.Errorf("Decide = allowed %t, %v", d.Allowed, err)
			}
			if errors.Is(err, errUnavailable) != (tt.want != nil) || errors.Is(err, other) {
				t.Errorf("%q must be what both halves say, and only that", err)
			}
			for _, half := range []struct {
				l    *limit.Limit
				err  error
				want int64
			}{{r, tt.rates, 12}, {q, tt.quotas, 4}} {
				if half.err != nil {
					half.want = 0
				}
				p.counts(tt.name, start, half.l, half.want)
			}
			p.close()
		})
	}
}

// failing is a store that returns err if err is not nil.
type failing struct {
	limit.Store
	err error
}

func (f *failing) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if f.err != nil {
		return f.err
	}
	return f.Store.Decide(ctx, req, now, d)
}

// Guarantees that a denial by the quota has a result for each tier of a request that leases, also if the rates cannot
// be asked. Otherwise the denial would be an error, after which a fallback limiter might admit the request.
func TestQuotaDeniesLeasesWhileRatesAreAway(t *testing.T) {
	p := newPair(t)
	r, q := rate(t, 10), quota(t, 1)
	p.decide(start, q, r)
	limits := []*limit.Limit{r, q}
	if d := p.leases(start, limits, leaseOf(1, 5), leaseOf(1, 5)); d.Allowed || len(d.Results) != 2 ||
		d.Results[0].Used() != 1 {
		t.Errorf("allowed %t with %d results; want a denial of both", d.Allowed, len(d.Results))
	}
	p.counts("a denial by the quota", start, r, 1)
	p.rates.failing.Store(true)
	d := p.leases(start, limits, leaseOf(1, 5), leaseOf(1, 5))
	if d.Allowed || len(d.Results) != 2 || d.Results[0].Limit() != r || d.Binding().Limit() != q ||
		d.Lease(0).Units+d.Lease(1).Units != 0 {
		t.Errorf("allowed %t with %d results; want a denial by the quota with a result of each", d.Allowed,
			len(d.Results))
	}
	if want := start.Add(12 * time.Hour).UnixMicro(); d.RetryAt != want {
		t.Errorf("retry at %d, want %d: midnight", d.RetryAt, want)
	}
}

// keeping is a store that denies, and leases nevertheless.
type keeping struct{ limit.Store }

func (k *keeping) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if err := k.Store.Decide(ctx, req, now, d); err != nil || d.Allowed {
		return err
	}
	d.Revise().AdoptLease(0, limit.Lease{Units: 3, Upfront: 3, Until: now.UnixMicro() + 5, At: 7})
	return nil
}

// Guarantees that the caller gets what the quotas' store has leased in spite of its denial, and that the store is not
// asked a second time.
func TestQuotasThatKeepWhatTheyLeased(t *testing.T) {
	quotas, rates := newMemory(t), newMemory(t)
	s, err := router.New(router.Config{Rates: router.Backend{Store: rates},
		Quotas: router.Backend{Store: &keeping{quotas}}})
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{Store: s, rates: rates, quotas: quotas, tb: t}
	r, q := rate(t, 2), quota(t, 3)
	p.decide(start, r, q)
	p.decide(start, r, q)
	p.decide(start, r, q) // denied by the rate: the last unit of the quota is an unspent charge
	quotas.decided.Store(0)
	req := requestOf(q, r)
	req.Charges[0].Cost = 2
	req.Leases = []limit.LeaseRequest{leaseOf(2, 3), leaseOf(1, 0)}
	d := new(limit.Decision)
	if err := s.Decide(context.Background(), req, start, d); err != nil || d.Allowed || d.Lease(0).Units != 3 ||
		quotas.decided.Load() != 1 {
		t.Errorf("Decide = %v, allowed %t, leases %+v after %d calls; want a denial with 3 after one", err, d.Allowed,
			d.Lease(0), quotas.decided.Load())
	}
	p.close()
}

// skewed is a store whose clock differs from the caller's.
type skewed struct {
	limit.Store
	by time.Duration
}

func (s *skewed) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	return s.Store.Decide(ctx, req, now.Add(s.by), d)
}

// Guarantees that a lease ends with the period of its own store, however the clocks differ. The caller counts from the
// time of the decision.
func TestLeasesEndByTheirOwnClock(t *testing.T) {
	for _, by := range []time.Duration{-3 * time.Second, 3 * time.Second} {
		for _, allowed := range []bool{true, false} {
			s, err := router.New(router.Config{Rates: router.Backend{Store: newMemory(t)},
				Quotas: router.Backend{Store: &skewed{newMemory(t), by}}})
			if err != nil {
				t.Fatal(err)
			}
			p := &pair{Store: s, tb: t}
			r, q := rate(t, 1), quota(t, 100)
			if !allowed {
				p.decide(start, r)
			}
			d := p.leases(start, []*limit.Limit{r, q}, limit.LeaseRequest{Need: 1}, leaseOf(1, 10))
			if left := time.Duration(d.Lease(1).Until-d.Now) * time.Microsecond; d.Allowed != allowed ||
				left != 12*time.Hour-by {
				t.Errorf("quotas' clock off by %s, allowed %t: the lease lasts %s, want %s", by, d.Allowed, left,
					12*time.Hour-by)
			}
			p.close()
		}
	}
}
