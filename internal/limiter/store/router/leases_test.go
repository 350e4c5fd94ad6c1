package router_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
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

// Guarantees that a denial by the rate charges and leases nothing of a quota.
func TestRateDenialLeasesNoQuota(t *testing.T) {
	p := newPair(t)
	r, q := rate(t, 1), quota(t, 100)
	limits := []*limit.Limit{r, q}
	p.leases(start, limits, limit.LeaseRequest{Need: 1}, leaseOf(1, 0))
	d := p.leases(start, limits, limit.LeaseRequest{Need: 1}, leaseOf(1, 20))
	if d.Allowed || d.Lease(1) != (limit.Lease{}) || d.Results[1].Charged != 0 || d.Results[1].Used() != 1 {
		t.Errorf("allowed %t, leases %+v, charged %d, quota at %d; want a denial without a lease, and 1", d.Allowed,
			d.Lease(1), d.Results[1].Charged, d.Results[1].Used())
	}
	if d.Binding().Limit() != r || d.Lease(0).Units != 0 || d.ID != (limit.ReceiptID{}) {
		t.Errorf("%s denies, %d of it leased, receipt %v; want the rate, nothing, none", d.Binding().Limit().ID,
			d.Lease(0).Units, d.ID)
	}
	p.counts("a denial", start, q, 1)
	p.counts("a denial", start, r, 1)
}

// overtaken returns a pair whose quotas lose a unit of q to somebody else just before the second request is charged
// there: after it was charged to the rates.
func overtaken(tb testing.TB, q *limit.Limit) *pair {
	tb.Helper()
	p, calls := &pair{rates: newMemory(tb), quotas: newMemory(tb), tb: tb}, 0
	p.Store = newStore(tb, p.rates, &between{Store: p.quotas, do: func() {
		if calls++; calls != 2 {
			return
		}
		var d limit.Decision
		if err := p.quotas.Store.Decide(context.Background(), requestOf(q), start, &d); err != nil || !d.Allowed {
			tb.Fatal(err, d.Allowed)
		}
	}})
	return p
}

// Guarantees that a request that a quota denies after the rates were charged leaves the rates as they were, whatever
// their algorithm, whether it leases from them or not, and that the denial names no charge and no lease.
func TestOvertakenRequestIsUndone(t *testing.T) {
	q := quota(t, 2)
	window := rate(t, 100)
	for _, a := range limit.Algorithms() {
		if a == limit.Quota || a == limit.LeakyBucket {
			continue
		}
		tier := limit.Tier{Algorithm: a, Period: time.Minute, Threshold: 100}
		if a == limit.SlidingBuckets {
			tier.Buckets = 6
		}
		other := newLimit(t, "other", tier)
		limits := []*limit.Limit{other, q, window}
		for name, leases := range map[string][]limit.LeaseRequest{
			"without leases":          nil,
			"a lease of the quota":    {{Need: 1}, leaseOf(1, 3), {Need: 1}},
			"a lease of one rate":     {{Need: 1}, {Need: 1}, leaseOf(1, 5)},
			"a lease of two rates":    {leaseOf(1, 9), {Need: 1}, leaseOf(0, 5)},
			"one rate is leased":      {leaseOf(1, 9), {Need: 1}, {}},
			"the rate needs no units": {leaseOf(0, 9), {Need: 1}, {}},
		} {
			t.Run(a.String()+"/"+name, func(t *testing.T) {
				p := overtaken(t, q)
				p.decide(start, limits...)
				p.rates.decided.Store(0)
				d := p.leases(start, limits, leases...)
				if d.Allowed || d.Binding().Limit() != q {
					t.Errorf("allowed %t, want a denial by the quota", d.Allowed)
				}
				for i := range d.Results {
					r := &d.Results[i]
					if r.Charged != 0 || d.Lease(i) != (limit.Lease{}) || r.Used() > 1 && r.Limit() != q {
						t.Errorf("%s: charged %d, leased %+v, %d used; want nothing, and at most 1 used", r.Limit().ID,
							r.Charged, d.Lease(i), r.Used())
					}
				}
				if p.rates.decided.Load() == 0 {
					t.Error("the rates were not charged before the denial, so this shows nothing")
				}
				p.counts(name, start, other, 1)
				p.counts(name, start, window, 1)
				p.counts(name, start, q, 2)
			})
		}
	}
}

// Guarantees that a client that retries without a pause against a rate beside an exact quota causes no write to the
// quotas' store.
func TestRateDenialKeepsAnExactQuota(t *testing.T) {
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
	if n := p.quotas.decided.Load(); n != 0 {
		t.Errorf("the quotas' store was charged %d times, want never", n)
	}
	if d := p.leases(start.Add(time.Second), limits, leaseOf(1, 5), limit.LeaseRequest{Need: 1}); !d.Allowed ||
		d.Lease(0).Units != 1 {
		t.Errorf("the next second: allowed %t, leases %+v", d.Allowed, d.Lease(0))
	}
	p.counts("one admitted", start, exact, 1)
}

// Guarantees that units that a denied request returned stay charged, because the caller assumes that a denial changes
// nothing.
func TestDenialTakesNoReturnedUnits(t *testing.T) {
	for name, ask := range map[string]limit.LeaseRequest{
		"more than is asked for":    leaseOf(1, 2),
		"as much as is asked for":   leaseOf(1, 9),
		"less than is asked for":    leaseOf(1, 30),
		"and nothing is leased":     {Need: 1},
		"and nothing is needed":     leaseOf(0, 0),
		"and nothing but the lease": leaseOf(0, 4),
	} {
		for _, rateDenies := range []bool{true, false} {
			p := newPair(t)
			r, q, full := rate(t, 100), quota(t, 100), rate(t, 1)
			if !rateDenies {
				full = newLimit(t, "full", limit.Tier{Algorithm: limit.Quota, Threshold: 1,
					Calendar: &limit.Calendar{Every: limit.Month, Location: time.UTC}})
			}
			held, limits := q, []*limit.Limit{q, full}
			if !rateDenies {
				held, limits = r, []*limit.Limit{r, full}
			}
			lease := p.leases(start, limits, leaseOf(1, 10), limit.LeaseRequest{Need: 1}).Lease(0)
			p.counts("one and 10 leased", start, held, 11)
			ask.Correction, ask.CorrectionAt = -10, lease.At
			d := p.leases(start, limits, ask, limit.LeaseRequest{Need: 1})
			if d.Allowed || d.Lease(0) != (limit.Lease{}) || d.Binding().Limit() != full {
				t.Errorf("%s: allowed %t, leases %+v; want a denial that leases nothing", name, d.Allowed, d.Lease(0))
			}
			p.counts(name, start, held, 11)
		}
	}
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

// Guarantees that a request that a quota denies after the rates were charged is an error if the rates have taken units
// back for it. The caller must not assume that it still has them, and charging them again could exceed the rate.
// Nothing else stays charged, if it can be given back.
func TestOvertakenRequestThatReturnsUnits(t *testing.T) {
	for _, away := range []bool{false, true} {
		q, r := quota(t, 2), rate(t, 11)
		minute := newLimit(t, "minute", limit.Tier{Algorithm: limit.FixedWindow, Period: time.Minute, Threshold: 9})
		p := overtaken(t, q)
		held := p.leases(start, []*limit.Limit{r, q}, leaseOf(1, 10), limit.LeaseRequest{Need: 1}).Lease(0)
		p.counts("one and 10 leased", start, r, 11)
		back, lost := leaseOf(0, 0), int64(0)
		back.Correction, back.CorrectionAt = -10, held.At
		if away { // before the rates can be undone
			lost = 5
			p.rates.Store = &lastCall{Store: p.rates.Store, left: 1}
		}
		d, err := p.ask(start, []*limit.Limit{r, q, minute}, back, limit.LeaseRequest{Need: 1}, leaseOf(1, 4))
		if !errors.Is(err, limit.ErrContended) || d.Allowed || len(d.Results) != 0 {
			t.Errorf("away %t: Decide = %v, allowed %t with %d results; want ErrContended and none", away, err,
				d.Allowed, len(d.Results))
		}
		p.counts("units that came back", start, r, 1)
		p.counts("an error leases nothing, if that can be given back", start, minute, lost)
	}
}

// lastCall is a store that does not answer after a number of decisions.
type lastCall struct {
	limit.Store
	left int
}

func (l *lastCall) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if l.left--; l.left < 0 {
		return errUnavailable
	}
	return l.Store.Decide(ctx, req, now, d)
}

// Guarantees that the quotas are not charged while the rates do not answer.
func TestRatesFailUnderLeases(t *testing.T) {
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
	if n := p.quotas.decided.Load(); n != 0 {
		t.Errorf("the quotas' store was charged %d times, want never", n)
	}
	p.counts("errors", start, q, 0)
	p.rates.failing.Store(false)
	for range 2 {
		if d := p.leases(start, limits, leaseOf(1, 3), leaseOf(1, 20)); !d.Allowed {
			t.Error("a request is denied after the rates answer again, want it allowed")
		}
	}
	p.counts("two of 21", start, q, 42)
	p.counts("two of 4", start, r, 8)
}

// Guarantees that units of a quota that a request returns arrive while the rates fail: the caller does not know which
// stores were called, and counts them as returned.
func TestReturnsWhileRatesFail(t *testing.T) {
	p := newPair(t)
	r, q := rate(t, 10), quota(t, 100)
	limits := []*limit.Limit{r, q}
	lease := p.leases(start, limits, leaseOf(1, 3), leaseOf(1, 20)).Lease(1)
	p.counts("a lease of 20", start, q, 21)
	p.rates.failing.Store(true)
	back := leaseOf(1, 5)
	back.Correction, back.CorrectionAt = -20, lease.At
	if d, err := p.ask(start, limits, leaseOf(1, 3), back); !errors.Is(err, errUnavailable) {
		t.Fatalf("Decide = allowed %t, %v; want the error", d.Allowed, err)
	}
	p.counts("20 returned", start, q, 1)
	p.quotas.failing.Store(true)
	before := p.quotas.decided.Load()
	if _, err := p.ask(start, limits, leaseOf(1, 3), back); !errors.Is(err, errUnavailable) ||
		p.quotas.decided.Load() != before {
		t.Errorf("%v, and %d calls of a store that was found not to answer, want none", err,
			p.quotas.decided.Load()-before)
	}
}

// Guarantees that a denial by a store says how long to wait by that store's clock, however the clocks differ. While the
// rates do not answer, the decision has the time of the store that did.
func TestWaitsByTheirOwnClock(t *testing.T) {
	for _, by := range []time.Duration{-3 * time.Second, 3 * time.Second} {
		r, q := rate(t, 9), quota(t, 1)
		rates := newMemory(t)
		p := &pair{Store: newStore(t, rates, &skewed{newMemory(t), by}), tb: t}
		p.decide(start, r, q)
		d, err := p.try(start, r, q)
		if want := 12*time.Hour - by; err != nil || d.Allowed || d.RetryAfter() != want {
			t.Errorf("quotas' clock off by %s: allowed %t, %v, wait %s; want a denial, and %s", by, d.Allowed, err,
				d.RetryAfter(), want)
		}
		rates.failing.Store(true)
		if d, err := p.try(start, r, q); err != nil || d.Allowed || d.Now != start.Add(by).UnixMicro() {
			t.Errorf("quotas' clock off by %s, no rates: allowed %t, %v, at %d; want a denial at %d", by, d.Allowed,
				err, d.Now, start.Add(by).UnixMicro())
		}
	}
}

// Guarantees that units of the counter that all values beyond MaxValues share are lost if another store denies. When
// they came back, the value might have a counter of its own, from which they would be subtracted.
func TestSharedCounterIsNotGivenBack(t *testing.T) {
	q := quota(t, 2)
	p := overtaken(t, q)
	values := limittest.MustNew(t, limit.Limit{ID: "values", Per: "subject", MaxValues: 1, MaxCost: 100,
		Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 100, Period: time.Minute}}})
	ask := func(subject string) (limit.Decision, error) {
		req := requestOf(q, values)
		req.Charges[1].Value = limit.Value{Kind: limit.ValueIs, Text: subject}
		req.Leases = []limit.LeaseRequest{{Need: 1}, leaseOf(1, 4)}
		var d limit.Decision
		return d, p.Decide(context.Background(), req, start, &d)
	}
	if _, err := ask("one"); err != nil {
		t.Fatal(err)
	}
	if d, err := ask("two"); err != nil || d.Allowed {
		t.Fatalf("allowed %t, %v; want a denial", d.Allowed, err)
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
	p.counts("two leases of 3", start, r, 6)
	p.counts("two leases of 3", start, q, 6)
}

// Guarantees that a decision waits for at most two seconds until a store of rates that hangs has taken units back.
func TestUndoIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quotas, rates := newMemory(t), newMemory(t)
		var hangs atomic.Bool
		quotas.failing.Store(true)
		s := newStore(t, &hanging{Store: rates, hangs: &hangs},
			&between{Store: quotas, do: func() { hangs.Store(true) }})
		p := &pair{Store: s, rates: rates, quotas: quotas, tb: t}
		began := time.Now()
		if _, err := p.ask(start, []*limit.Limit{rate(t, 10), quota(t, 100)}, leaseOf(1, 3),
			leaseOf(1, 20)); !errors.Is(err, errUnavailable) {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("the decision took %s, want the 2s for which it waits", took)
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
			s := newStore(t, &failing{rates, tt.rates}, &failing{quotas, tt.quotas})
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

// skewed is a store whose clock differs from the caller's.
type skewed struct {
	limit.Store
	by time.Duration
}

func (s *skewed) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	return s.Store.Decide(ctx, req, now.Add(s.by), d)
}

func (s *skewed) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	return s.Store.Peek(ctx, req, now.Add(s.by), d)
}

// Guarantees that a lease ends with the period of its own store, however the clocks differ. The caller counts from the
// time of the decision.
func TestLeasesEndByTheirOwnClock(t *testing.T) {
	for _, by := range []time.Duration{-3 * time.Second, 3 * time.Second} {
		p := &pair{Store: newStore(t, newMemory(t), &skewed{newMemory(t), by}), tb: t}
		d := p.leases(start, []*limit.Limit{rate(t, 9), quota(t, 100)}, limit.LeaseRequest{Need: 1}, leaseOf(1, 10))
		left, want := time.Duration(d.Lease(1).Until-d.Now)*time.Microsecond, 12*time.Hour-by
		if !d.Allowed || left != want {
			t.Errorf("quotas' clock off by %s, allowed %t: the lease lasts %s, want %s", by, d.Allowed, left, want)
		}
	}
}
