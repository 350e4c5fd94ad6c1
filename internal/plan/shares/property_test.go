package shares

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

func mustJSON(t testing.TB, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// randomLimit returns a limit with numbers that are small enough to be reached.
func randomLimit(r *rand.Rand, id string, a limit.Algorithm) limit.Limit {
	periods := []time.Duration{time.Second, 2500 * time.Millisecond, 7 * time.Second, 20 * time.Second}
	t := limit.Tier{Algorithm: a, Period: periods[r.IntN(len(periods))], Threshold: 6 + r.Int64N(60)}
	switch a {
	case limit.TokenBucket:
		t.Burst = 6 + r.Int64N(10)*r.Int64N(30)
	case limit.SlidingBuckets:
		t.Buckets = 1 + r.IntN(8)
	default:
	}
	return limit.Limit{ID: id, Tiers: []limit.Tier{t}, AlignOwner: r.IntN(2) == 0, MaxCost: 1 + r.Int64N(3)}
}

var counted = []limit.Algorithm{
	limit.FixedWindow, limit.SlidingWindow, limit.SlidingBuckets, limit.SlidingLog, limit.TokenBucket,
	limit.LeakyBucket,
}

// populate makes a world with every algorithm and three cells.
func populate(t *testing.T, seed uint64, algorithms ...limit.Algorithm) *world {
	w := newWorld(t, seed)
	for i, a := range algorithms {
		w.add(randomLimit(w.r, fmt.Sprint("limit", i), a))
	}
	for _, id := range []string{"eu-1", "us-1", "us-2"}[:2+w.r.IntN(2)] {
		w.join(id, 1+w.r.Int64N(5), w.r.IntN(2) == 0)
	}
	return w
}

// change requests a random change that an operator may request.
func (w *world) change() {
	id := w.order[w.r.IntN(len(w.order))]
	switch w.r.IntN(8) {
	case 0:
		if len(w.order) < 6 {
			w.join(fmt.Sprint("ap-", len(w.order)), 1+w.r.Int64N(5), w.r.IntN(2) == 0)
		}
	case 1:
		w.ask(Request{Kind: Drain, Cell: id})
	case 2:
		w.ask(Request{Kind: Join, Cell: id, Weight: 1 + w.r.Int64N(5)})
	case 3, 4:
		w.ask(Request{Kind: Weigh, Cell: id, Weight: 1 + w.r.Int64N(9)})
	case 5:
		w.ask(Request{Kind: Place, Tenant: w.tenants[w.r.IntN(len(w.tenants))], Cells: []string{id}})
	case 6:
		w.ask(Request{Kind: Place, Tenant: w.tenants[0], Cells: []string{id, w.order[0]}[:1+w.r.IntN(2)],
			Homed: []string{"limit0", "limit4"}})
	case 7:
		w.ask(Request{Kind: Place, Tenant: w.tenants[w.r.IntN(len(w.tenants))]})
	}
}

// takeFromAll takes units from every cell at times, sometimes all of them, sometimes after a pause. If a bucket has
// deleted its state during a pause, the next request shows it.
func (w *world) takeFromAll() {
	for _, s := range w.limits {
		for _, tenant := range w.tenants {
			if w.r.IntN(6) == 0 {
				w.takeAnywhere(s, tenant, func() int64 { return 1 + w.r.Int64N(s.limit.MaxCost) })
			}
		}
	}
}

// takeAfterPause pauses for a long time, and then takes all units.
func (w *world) takeAfterPause() {
	if rests := w.now / (17 * second); rests%3 != 0 {
		return
	}
	w.takeFromAll()
}

// Guarantees that cells never grant more than the algorithm's bound of the whole limit, whatever an operator requests,
// and in whatever order messages arrive, if at all, while every cell learns of changes within the grace. If this
// fails, a customer's backend gets more than was agreed when a cell is added.
func TestNeverPassesTheLimit(t *testing.T) {
	soak.SkipUnderRace(t)
	for seed := range soak.Times(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := populate(t, uint64(seed), counted...)
			client := w.takeFromAll
			if seed%2 == 1 {
				client = w.takeAfterPause
			}
			w.run(5, client)
			for range 10 {
				for range 1 + w.r.IntN(3) {
					w.change()
				}
				w.run(5+w.r.Int64N(40), client)
			}
			for _, word := range w.violations() {
				t.Error(word)
			}
			for _, s := range w.limits {
				if s.books["acme"].total() == 0 {
					t.Errorf("the test shows nothing: no unit of %s (%s) was granted", s.limit.ID,
						s.limit.Tiers[0].Algorithm)
				}
			}
			if w.ended == 0 {
				t.Error("the test shows nothing: no transition has ended")
			}
			w.checkAtRest()
		})
	}
}

// resize makes the limit too small to be divided, or large enough. Environments learn of it one after the other.
func (w *world) resize(s *subject, small bool) {
	l := *s.limit
	l.Tiers = slices.Clone(l.Tiers)
	t := &limit.Tier{Algorithm: l.Tiers[0].Algorithm, Period: l.Tiers[0].Period, Buckets: l.Tiers[0].Buckets}
	if t.Threshold = 1 + w.r.Int64N(3); !small {
		t.Threshold = 40 + w.r.Int64N(40)
	}
	if t.Algorithm == limit.TokenBucket {
		t.Burst = t.Threshold + w.r.Int64N(9)
	}
	l.Tiers[0], l.MaxCost = *t, 1
	made, err := limit.New(l)
	if err != nil {
		w.t.Fatal(err)
	}
	s.limit = made
	w.balance(Input{Limits: w.all()})
}

// settled lets every environment learn of the limits' numbers, and lets enough time pass for every earlier window to
// end.
func (w *world) settled(client func()) {
	loss := w.loss
	w.loss = 0
	w.run(60, client)
	w.loss = loss
	for _, s := range w.limits {
		for tenant := range s.books {
			s.books[tenant] = newLedger(&s.limit.Tiers[0], tenant)
		}
	}
}

// Guarantees that every cell grants a limit that is too small to be divided, and that all cells together never exceed
// its bound, while cells join and drain, tenants are pinned, and the limit changes between divisible and too small. A
// limit that is counted in two places at once would be granted twice. A limit that is counted in a place that nobody
// calls would be denied to its customer.
func TestSmallLimitsNeverPass(t *testing.T) {
	soak.SkipUnderRace(t)
	worlds, rounds := 6, 4
	if testing.Short() {
		worlds, rounds = 2, 2
	}
	for seed := range soak.Times(worlds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, uint64(1000+seed))
			for i, a := range counted {
				w.resize(w.add(randomLimit(w.r, fmt.Sprint("limit", i), a)), w.r.IntN(2) == 0)
			}
			for _, id := range []string{"eu-1", "us-1", "us-2"}[:2+w.r.IntN(2)] {
				w.join(id, 1+w.r.Int64N(3), w.r.IntN(2) == 0)
			}
			client := w.takeFromAll
			if seed%2 == 1 {
				client = w.takeAfterPause
			}
			w.settled(client)
			for range rounds {
				for range 4 {
					for range w.r.IntN(3) {
						w.change()
					}
					w.run(5+w.r.Int64N(30), client)
				}
				for _, word := range w.violations() {
					t.Error(word)
				}
				for _, s := range w.limits {
					if w.r.IntN(2) == 0 {
						w.resize(s, w.r.IntN(2) == 0)
					}
				}
				w.settled(client)
			}
			for _, id := range w.order { // cells that serve refuse this
				w.ask(Request{Kind: Join, Cell: id, Weight: 1})
			}
			for _, tenant := range w.tenants {
				w.ask(Request{Kind: Place, Tenant: tenant})
			}
			for _, s := range w.limits {
				w.resize(s, true)
			}
			w.checkAtRest()
			w.everyCellGrants()
		})
	}
}

// everyCellGrants checks that each cell which serves a tenant grants all of the tenant's limits that are kept in one
// cell.
func (w *world) everyCellGrants() {
	w.t.Helper()
	asked := 0
	for _, id := range w.order {
		w.run(200, nil) // every earlier window has ended, and every bucket is full
		for _, s := range w.limits {
			for _, tenant := range w.tenants {
				c := w.cells[id]
				v := c.doc.View(id, tenant, c.placements[tenant])
				if own, _ := v.Weight(); own == 0 || v.KeptIn(s.plan, s.limit) == "" {
					continue
				}
				asked++
				s.books[tenant] = newLedger(&s.limit.Tiers[0], tenant)
				w.takeFrom(c, c.envs[0], s, tenant, costOfOne)
				got, want := s.books[tenant].total(), s.limit.Tiers[0].Capacity()
				if s.limit.Tiers[0].Algorithm == limit.LeakyBucket {
					want = 1
				}
				if got != want {
					w.t.Errorf("%s of %s (%s): cell %s grants %d, want %d", s.limit.ID, tenant,
						s.limit.Tiers[0].Algorithm, id, got, want)
				}
			}
		}
	}
	if asked < 2*len(w.order) {
		w.t.Errorf("%d limits of %d cells are kept in one of them", asked, len(w.order))
	}
}

// checkAtRest lets time pass without changes. It then checks that every operator's request is carried out, that for
// every tenant that is served the cells' shares sum to each limit exactly, and that clients get all units.
func (w *world) checkAtRest() {
	w.t.Helper()
	w.loss = 0
	w.run(200, nil)
	if w.state.Phase != Steady || len(w.state.Queue) > 0 {
		w.t.Errorf("phase %s, %d requests wait, %v are awaited", w.state.Phase, len(w.state.Queue), w.state.Awaited())
	}
	later := w.now + 4000*second // the longest time until a burst that grows alone takes effect
	for _, s := range w.limits {
		for _, tenant := range w.tenants {
			sum, served, kept := amount{}, false, ""
			for _, id := range w.order {
				v := w.cells[id].doc.View(id, tenant, w.cells[id].placements[tenant])
				served = served || v.Home() != ""
				in, _ := At(v.Limit(s.plan, s.limit, tenant), later)
				if own, _ := v.Weight(); v.KeptIn(s.plan, s.limit) != "" && own > 0 && in.Limit == nil {
					w.t.Errorf("%s of %s is kept in one cell, and cell %s does not ask for it", s.limit.ID, tenant, id)
				}
				if in.Limit != nil {
					if home := in.Limit.Home; home != "" {
						if kept == home {
							continue
						}
						kept = home
					}
					a := amountOf(&in.Limit.Tiers[0])
					sum.threshold, sum.burst = sum.threshold+a.threshold, sum.burst+a.burst
				}
			}
			want := amountOf(&s.limit.Tiers[0])
			if !served {
				want = amount{}
			}
			if sum != want {
				w.t.Errorf("%s of %s: the cells have %+v of %+v", s.limit.ID, tenant, sum, want)
			}
		}
	}
}
