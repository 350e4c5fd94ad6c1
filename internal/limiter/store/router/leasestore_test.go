package router_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// admissions counts admitted units, by tier and start of the window.
type admissions struct {
	mu sync.Mutex
	of map[*limit.Tier]map[int64]int64
}

func (a *admissions) add(req *limit.Request, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range req.Charges {
		t := &c.Limit.Tiers[0]
		if a.of[t] == nil {
			a.of[t] = map[int64]int64{}
		}
		a.of[t][t.LeaseEnd(owner.Name, now.UnixMicro())] += c.Cost
	}
}

// Guarantees that processes that lease quotas and rates in one request never exceed a window of either. When they are
// closed, both stores have counted exactly what was admitted in the windows that are still open, or, if stores have
// failed, no less. Three processes run over midnight, with a daily quota and a window that deny, and a quota that is
// never leased.
func TestLeaseStoreOverBoth(t *testing.T) {
	for seed := range soak.Times(uint64(5)) {
		fails := seed >= 3
		synctest.Test(t, func(t *testing.T) {
			<-time.After(24*time.Hour - 4*time.Second)
			asked := newMemory(t)
			failing := 0
			if fails {
				failing = 5
			}
			rates := newShaky(newMemory(t), rand.New(rand.NewPCG(seed, 1)), failing, failing)
			quotas := newShaky(asked, rand.New(rand.NewPCG(seed, 2)), failing, failing)
			m := newMixture(t)
			window, day, exact := newLimit(t, "window", limit.Tier{Algorithm: limit.FixedWindow, Period: time.Second,
				Threshold: 60}), quota(t, 200), m.limits[3]
			wide := newLimit(t, "wide", limit.Tier{Algorithm: limit.Quota, Threshold: 100_000,
				Calendar: &limit.Calendar{Every: limit.Week, Location: time.UTC}})
			a := admissions{of: map[*limit.Tier]map[int64]int64{}}
			var leases []*lease.Store
			var all sync.WaitGroup
			var decided, failed atomic.Int64
			for i := range uint64(3) {
				s, err := router.New(router.Config{Rates: router.Backend{Store: rates},
					Quotas: router.Backend{Store: quotas}})
				if err != nil {
					t.Fatal(err)
				}
				l, err := lease.New(lease.Config{Store: s,
					Instances: func(*limit.Limit) int { return 3 }, Life: time.Second})
				if err != nil {
					t.Fatal(err)
				}
				leases = append(leases, l)
				for g := range uint64(4) {
					r := rand.New(rand.NewPCG(seed, 8*i+g))
					all.Go(func() {
						var d limit.Decision
						for time.Now().Before(time.Date(2000, 1, 2, 0, 0, 3, 500_000_000, time.UTC)) {
							<-time.After(time.Duration(5+r.IntN(25)) * time.Millisecond)
							req := requestOf([][]*limit.Limit{{window, day}, {wide, window}, {window, day, wide},
								{exact, window}, {day}}[r.IntN(5)]...)
							now := time.Now()
							decided.Add(1)
							if l.Decide(context.Background(), req, now, &d) != nil {
								failed.Add(1)
							} else if d.Allowed {
								a.add(req, now)
							}
						}
					})
				}
			}
			all.Wait()
			now := time.Now()
			rates.rest()
			quotas.rest()
			calls, local, lost := asked.decided.Load(), int64(0), int64(0)
			for i := range leases {
				local += leases[i].Stats().Local
				if err := leases[i].Close(context.Background()); err != nil {
					t.Errorf("Close: %v", err)
				}
				lost += leases[i].Stats().Lost
			}
			for _, l := range []*limit.Limit{window, day, exact, wide} {
				tier := &l.Tiers[0]
				for end, n := range a.of[tier] {
					if n > tier.Threshold {
						t.Errorf("%d of %d of %s were admitted in the window that ends at %s", n, tier.Threshold, l.ID,
							time.UnixMicro(end).UTC())
					}
				}
				below := quotas.Store
				if l == window {
					below = rates.Store
				}
				admitted := a.of[tier][tier.LeaseEnd(owner.Name, now.UnixMicro())]
				if used := usedIn(t, below, now, tier); used < admitted || used > admitted && !fails || admitted == 0 {
					t.Errorf("seed %d: %d of %s are counted, %d were admitted in this window", seed, used, l.ID,
						admitted)
				}
			}
			t.Logf("seed %d: %d decisions, %d local, %d errors, %d calls to the quotas, %d units lost", seed,
				decided.Load(), local, failed.Load(),
				calls, lost)
			// a decision is an error if others have spent the units that it returned
			if !fails && failed.Load() > decided.Load()/100 {
				t.Errorf("%d of %d decisions are errors", failed.Load(), decided.Load())
			}
			if full := len(a.of[&day.Tiers[0]]); full != 2 {
				t.Errorf("%d days were seen, want 2", full)
			}
		})
	}
}
