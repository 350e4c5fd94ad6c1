package router_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// mixture holds limits of both stores: rates of several algorithms, and quotas with and without leases.
type mixture struct {
	limits []*limit.Limit
	exact  []bool
}

func newMixture(tb testing.TB) *mixture {
	m := &mixture{}
	add := func(id string, exact bool, mode limit.Mode, tiers ...limit.Tier) {
		l := limittest.MustNew(tb, limit.Limit{ID: id, MaxCost: 100, Mode: mode, Exact: exact, Tiers: tiers})
		m.limits, m.exact = append(m.limits, l), append(m.exact, exact)
	}
	day := func(units int64) limit.Tier {
		return limit.Tier{Algorithm: limit.Quota, Threshold: units, Calendar: &limit.Calendar{Every: limit.Day,
			Location: time.UTC}}
	}
	month := &limit.Calendar{Every: limit.Month, Location: time.UTC}
	add("tiers", false, limit.Enforce, limit.Tier{Algorithm: limit.FixedWindow, Period: time.Second, Threshold: 12},
		limit.Tier{Algorithm: limit.SlidingWindow, Period: 10 * time.Second, Threshold: 60})
	add("day", false, limit.Enforce, day(90))
	add("bucket", false, limit.Enforce, limit.Tier{Algorithm: limit.TokenBucket, Period: time.Second, Threshold: 6,
		Burst: 20})
	add("exact", true, limit.Enforce, limit.Tier{Algorithm: limit.Quota, Threshold: 400, Calendar: month})
	add("log", false, limit.Enforce, limit.Tier{Algorithm: limit.SlidingLog, Period: 4 * time.Second, Threshold: 40})
	add("shadow", false, limit.Shadow, day(30))
	return m
}

// ledger records what one caller has leased and what it was admitted.
type ledger struct {
	r     *rand.Rand
	m     *mixture
	held  map[*limit.Tier][]limit.Lease
	spent map[*limit.Tier]int64 // needed units that were admitted
	lost  map[*limit.Tier]int64 // returned with calls that failed: these units may have arrived
}

func newLedger(m *mixture, seed uint64) *ledger {
	return &ledger{rand.New(rand.NewPCG(seed, 7)), m, map[*limit.Tier][]limit.Lease{}, map[*limit.Tier]int64{},
		map[*limit.Tier]int64{}}
}

// request returns a random request, which may lease and return units.
func (k *ledger) request(now time.Time) *limit.Request {
	req := &limit.Request{Owner: owner}
	leases := k.r.IntN(5) > 0
	some := k.r.IntN(3) // the part of the limits that is left out: none, a third, or two thirds
	for i, l := range k.m.limits {
		if k.r.IntN(3) < some {
			continue
		}
		cost := 1 + k.r.Int64N(4)
		req.Charges = append(req.Charges, limit.Charge{Limit: l, Cost: cost})
		for j := range l.Tiers {
			if leases {
				req.Leases = append(req.Leases, k.leaseRequest(&l.Tiers[j], cost, k.m.exact[i], now))
			}
		}
	}
	return req
}

func (k *ledger) leaseRequest(t *limit.Tier, cost int64, exact bool, now time.Time) limit.LeaseRequest {
	if exact || k.r.IntN(6) == 0 {
		return limit.LeaseRequest{Need: cost}
	}
	a := limit.LeaseRequest{Need: k.r.Int64N(cost + 1), Least: k.r.Int64N(3), Most: k.r.Int64N(5),
		Ample: k.r.Int64N(9), Plenty: k.r.Int64N(40),
		Share: k.r.Int64N(limit.ShareOne + 1)}
	if t.Algorithm == limit.SlidingLog {
		a.Life = k.r.Int64N(2_000_000)
	}
	if held := k.held[t]; len(held) > 0 && k.r.IntN(3) == 0 {
		h := &held[k.r.IntN(len(held))]
		if back := min(1+k.r.Int64N(6), h.Units); back > 0 && now.UnixMicro() < h.Until {
			a.Correction, a.CorrectionAt = -back, h.At
		}
	}
	return a
}

// settle records the leases of a decision. After an error, the units that were returned with the request count as lost.
func (k *ledger) settle(req *limit.Request, d *limit.Decision, err error) {
	if len(req.Leases) == 0 && !d.Allowed { // the denial has no results of the rates if their store does not answer
		return
	}
	i := 0
	for c := range req.Charges {
		for j := range req.Charges[c].Limit.Tiers {
			t := &req.Charges[c].Limit.Tiers[j]
			if i < len(req.Leases) && req.Leases[i].Correction < 0 && (err != nil || d.Charges(i)) {
				for h := range k.held[t] {
					if g := &k.held[t][h]; g.At == req.Leases[i].CorrectionAt {
						take := min(g.Units, -req.Leases[i].Correction)
						g.Units -= take
						if err != nil {
							k.lost[t] += take
						}
						req.Leases[i].Correction += take
					}
				}
			}
			if err == nil {
				k.spent[t] += d.Results[i].Charged
				if g := d.Lease(i); g.Units > 0 {
					k.held[t] = append(k.held[t], g)
				}
			}
			i++
		}
	}
}

// leasedUnits returns the units of a tier that are leased and not returned.
func (k *ledger) leasedUnits(t *limit.Tier) (units int64) {
	for _, g := range k.held[t] {
		units += g.Units
	}
	return units
}

func usedIn(tb testing.TB, s limit.Store, now time.Time, t *limit.Tier) int64 {
	tb.Helper()
	var d limit.Decision
	if err := s.Peek(context.Background(), requestOf(t.Limit()), now, &d); err != nil {
		tb.Fatal(err)
	}
	for i := range d.Results {
		if d.Results[i].Tier == t {
			return d.Results[i].Used()
		}
	}
	tb.Fatalf("no result of limit %s", t.Limit().ID)
	return 0
}

// Guarantees that two stores together admit, lease and count the same as one store, whatever the algorithms.
func TestScriptsAgreeWithOneStore(t *testing.T) {
	soak.SkipUnderRace(t)
	denials, both := 0, 0
	for seed := range max(soak.Times(uint64(60)), 30) { // fewer show too little
		p, one, m := newPair(t), newMemory(t), newMixture(t)
		k := newLedger(m, seed)
		now := start.Add(12*time.Hour - 10*time.Second) // shortly before the end of the day
		var receipts [][2]*limit.Receipt
		for step := range 150 {
			now = now.Add(time.Duration(k.r.IntN(4)) * time.Duration(k.r.IntN(200_000)) * time.Microsecond)
			req := k.request(now)
			var got, want limit.Decision
			if err := p.Decide(context.Background(), req, now, &got); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			if err := one.Decide(context.Background(), req, now, &want); err != nil {
				t.Fatal(err)
			}
			if got.Allowed != want.Allowed || got.RetryAt != want.RetryAt || got.Never != want.Never ||
				got.Now != want.Now {
				t.Fatalf("seed %d, step %d: %+v\nallowed %t, retry at %d; one store says %t, %d", seed, step, req,
					got.Allowed, got.RetryAt,
					want.Allowed, want.RetryAt)
			}
			if !got.Allowed {
				denials++
			}
			if len(req.Leases) > 0 && got.Allowed {
				both++
			}
			for i := range got.Results {
				r, g := &got.Results[i], got.Lease(i)
				if r.Charged != want.Results[i].Charged || g != want.Lease(i) {
					t.Fatalf("seed %d, step %d: %+v\nresult %d is charged %d and leases %+v; one store says %d, %+v",
						seed, step, req, i,
						r.Charged, g, want.Results[i].Charged, want.Lease(i))
				}
			}
			k.settle(req, &got, nil)
			if got.Allowed {
				receipts = append(receipts, [2]*limit.Receipt{got.Receipt(), want.Receipt()})
			}
			if n := len(receipts); n > 0 && k.r.IntN(6) == 0 {
				pick := receipts[k.r.IntN(n)]
				a, errA := p.Settle(context.Background(), pick[0], nil, now)
				b, errB := one.Settle(context.Background(), pick[1], nil, now)
				if errA != nil || errB != nil || a.Repeated != b.Repeated {
					t.Fatalf("seed %d, step %d: Refund = %+v, %v; one store says %+v, %v", seed, step, a, errA, b, errB)
				}
			}
			for _, l := range m.limits {
				for j := range l.Tiers {
					if a, b := usedIn(t, p, now, &l.Tiers[j]), usedIn(t, one, now, &l.Tiers[j]); a != b {
						t.Fatalf("seed %d, step %d: %+v\nallowed %t; %d of %s, tier %d, are counted, %d in one store",
							seed, step, req, got.Allowed, a,
							l.ID, j+1, b)
					}
				}
			}
		}
	}
	if denials < 1000 || both < 1000 {
		t.Errorf("%d denials, %d leased: too few to show anything", denials, both)
	}
}

// around is a store whose calls are made by a function.
type around struct {
	limit.Store
	call func(f func() error) error
}

func (a *around) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	err := a.call(func() error { return a.Store.Decide(ctx, req, now, d) })
	if err != nil {
		d.Clear(now.UnixMicro())
	}
	return err
}

func (a *around) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	return a.call(func() error { return a.Store.Peek(ctx, req, now, d) })
}

func (a *around) Settle(
	ctx context.Context, r *limit.Receipt, used []int64, now time.Time,
) (back limit.Settlement, err error) {
	err = a.call(func() error {
		var err error
		back, err = a.Store.Settle(ctx, r, used, now)
		return err
	})
	return back, err
}

// shaky is a store whose calls fail at random, before or after they had an effect.
type shaky struct {
	around
	mu            sync.Mutex
	r             *rand.Rand
	before, after int // per 100 calls
}

func newShaky(store limit.Store, r *rand.Rand, before, after int) *shaky {
	s := &shaky{r: r, before: before, after: after}
	s.around = around{store, s.call}
	return s
}

var errShaky = errors.New("shaky")

func (s *shaky) call(f func() error) error {
	s.mu.Lock()
	n := s.r.IntN(100)
	before, after := n < s.before, n >= 100-s.after
	s.mu.Unlock()
	if before {
		return errShaky
	}
	if err := f(); err != nil {
		return err
	}
	if after {
		return errShaky
	}
	return nil
}

func (s *shaky) rest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before, s.after = 0, 0
}

// Guarantees that the stores never count less than what was admitted and is leased, and never more than a limit, with
// many concurrent callers that lease and return units, over stores that fail. A store counts nothing else, except units
// that were returned with failed calls, if it does not fail, or if it fails before its calls have an effect and no
// other store is charged after it.
func TestFaultsNeverUndercount(t *testing.T) {
	for _, tt := range []struct {
		name                                  string
		rates, ratesAfter, quotas, quotaAfter int
		ratesExact, quotasExact               bool
	}{
		{"nothing fails", 0, 0, 0, 0, true, true},
		{"the rates fail", 20, 0, 0, 0, false, true},
		{"the rates fail after they were charged", 0, 20, 0, 0, false, true},
		{"the quotas fail", 0, 0, 20, 0, true, true},
		{"the quotas fail after they were charged", 0, 0, 0, 20, true, false},
		{"all at once", 10, 10, 10, 10, false, false},
	} {
		for seed := range uint64(4) {
			t.Run(tt.name, func(t *testing.T) {
				rates := newShaky(newMemory(t), rand.New(rand.NewPCG(seed, 1)), tt.rates, tt.ratesAfter)
				quotas := newShaky(newMemory(t), rand.New(rand.NewPCG(seed, 2)), tt.quotas, tt.quotaAfter)
				s, err := router.New(router.Config{Rates: router.Backend{Store: rates},
					Quotas: router.Backend{Store: quotas}})
				if err != nil {
					t.Fatal(err)
				}
				window, day := rate(t, 150), quota(t, 200)
				month := limittest.MustNew(t, limit.Limit{ID: "exact", MaxCost: 100, Exact: true,
					Tiers: []limit.Tier{{Algorithm: limit.Quota, Threshold: 300,
						Calendar: &limit.Calendar{Every: limit.Month, Location: time.UTC}}}})
				m := &mixture{limits: []*limit.Limit{window, day, month}, exact: []bool{false, false, true}}
				var callers []*ledger
				var all sync.WaitGroup
				for i := range uint64(16) {
					k := newLedger(m, 1000*seed+i)
					callers = append(callers, k)
					all.Go(func() {
						var d limit.Decision
						for range 40 {
							req := k.request(start)
							err := s.Decide(context.Background(), req, start, &d)
							k.settle(req, &d, err)
						}
					})
				}
				all.Wait()
				rates.rest()
				quotas.rest()
				for _, l := range m.limits {
					below, exact := quotas.Store, tt.quotasExact
					if l == window {
						below, exact = rates.Store, tt.ratesExact
					}
					tier := &l.Tiers[0]
					admitted, inHand, lost := int64(0), int64(0), int64(0)
					for _, k := range callers {
						admitted, inHand, lost = admitted+k.spent[tier], inHand+k.leasedUnits(tier), lost+k.lost[tier]
					}
					used := usedIn(t, below, start, tier)
					if admitted == 0 || admitted+inHand > used || used > tier.Threshold || exact &&
						used > admitted+inHand+lost {
						t.Errorf("seed %d: %d of %d of %s are counted, %d admitted, %d in hand, %d lost", seed, used,
							tier.Threshold, l.ID, admitted,
							inHand, lost)
					}
				}
			})
		}
	}
}
