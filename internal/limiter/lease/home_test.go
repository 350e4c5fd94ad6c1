package lease_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// remote is the store of another cell: its calls take a while, and may fail.
type remote struct {
	limit.Store
	took    time.Duration
	failing atomic.Bool
	calls   atomic.Int64
}

func (r *remote) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	r.calls.Add(1)
	if r.took > 0 {
		<-time.After(r.took)
	}
	if r.failing.Load() {
		return errLost
	}
	return r.Store.Decide(ctx, req, now, d)
}

func newRouter(tb testing.TB, own limit.Store, others map[string]limit.Store) *router.Store {
	tb.Helper()
	backends := make(map[string]router.Backend, len(others))
	for cell, store := range others {
		backends[cell] = router.Backend{Store: store}
	}
	h, err := router.New(router.Config{Rates: router.Backend{Store: own}, Homes: backends})
	if err != nil {
		tb.Fatal(err)
	}
	return h
}

// Guarantees that units that were leased from one home are spent or lost when another cell becomes the home of the
// quota: given back to the new home, they would reduce the charges of others, and be granted twice. This applies to
// units of a call in progress, too.
func TestMovedHome(t *testing.T) {
	for _, under := range []bool{false, true} {
		t.Run(fmt.Sprintf("during a call %t", under), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testMovedHome(t, under) })
		})
	}
}

func testMovedHome(t *testing.T, under bool) {
	a, b := &remote{Store: newMemory(t), took: 50 * time.Millisecond}, &remote{Store: newMemory(t)}
	s := open(t, lease.Config{Store: newRouter(t, newMemory(t), map[string]limit.Store{"a": a, "b": b}),
		GiveBackEvery: -1,
		Rule:          greedy{}})
	q := daily(t, "q", limit.Quota, 100)
	inA, inB := q.KeptIn("a"), q.KeptIn("b")
	others := request(inB) // what another process was charged in b
	others.Charges[0].Cost = 60
	decide(t, b.Store, others, time.Now())
	var first sync.WaitGroup
	first.Go(func() { decide(t, s, request(inA), time.Now()) })
	if !under {
		first.Wait()
	}
	<-time.After(10 * time.Millisecond)
	if !decide(t, s, request(inB), time.Now()).Allowed {
		t.Fatal("a request is denied by the new home, which has units left")
	}
	first.Wait()
	<-time.After(2 * time.Minute) // the rest is returned with the next call
	decide(t, s, request(inB), time.Now())
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := usedUnits(t, b.Store, inB, time.Now()); n != 62 {
		t.Errorf("the new home counts %d units, want 62: 60 of the other process, and 2 that were admitted here", n)
	}
	if n := usedUnits(t, a.Store, inA, time.Now()); n != 100 {
		t.Errorf("the old home counts %d units, want the 100 that were leased there", n)
	}
	if lost := s.Stats().Lost; lost != 99 {
		t.Errorf("%d units are lost, want the 99 that were leased from the old home and not spent", lost)
	}
}

// Guarantees that a home that does not answer suspends neither the leases of the cell's own counters nor those of
// another home.
func TestFailureIsOfOneHomeOnly(t *testing.T) {
	own, a, b := &losesAnswers{Store: newMemory(t)}, &losesAnswers{Store: newMemory(t), lost: true},
		&losesAnswers{Store: newMemory(t)}
	s := open(t, lease.Config{
		Store: newRouter(t, own, map[string]limit.Store{"a": a, "b": b}), GiveBackEvery: -1,
		Clock: func() time.Time { return noon }, Rule: greedy{},
	})
	q := func(home string) *limit.Request { return request(daily(t, "q"+home, limit.Quota, 100).KeptIn(home)) }
	var d limit.Decision
	for range 2 {
		if err := s.Decide(t.Context(), q("a"), noon, &d); err == nil {
			t.Fatal("Decide returns no error although the home does not answer, want one")
		}
	}
	decide(t, s, request(window(t, "w", time.Hour, 100)), noon)
	decide(t, s, q("b"), noon)
	if len(own.asks) != 1 || own.asks[0] == 0 || len(b.asks) != 1 || b.asks[0] == 0 {
		t.Errorf("with one home failing, the leases from the cell's own store are %v, and from another home %v; "+
			"want some of both", own.asks, b.asks)
	}
	if len(a.asks) != 2 || a.asks[0] == 0 || a.asks[1] != 0 {
		t.Errorf("leases of %v are asked for at the failing home, want none after its first failure", a.asks)
	}
}

// Guarantees that a store that leases only home quotas leases nothing of its own cell's counters: units that are
// divided among cells must be in the store when shares change.
func TestHomeQuotasOnly(t *testing.T) {
	own, home := newMemory(t), &remote{Store: newMemory(t)}
	s := open(t, lease.Config{
		Store: newRouter(t, own, map[string]limit.Store{"a": home}), HomeQuotasOnly: true, GiveBackEvery: -1,
		Clock: func() time.Time { return noon },
	})
	w, q, mine := window(t, "w", time.Hour, 100), daily(t, "q", limit.Quota, 100).KeptIn("a"), daily(t, "mine",
		limit.Quota, 100)
	for range 5 {
		if !decide(t, s, request(w, q, mine), noon).Allowed {
			t.Fatal("a request is denied, although all of its limits have units left")
		}
	}
	if n, m := usedUnits(t, own, w, noon), usedUnits(t, own, mine, noon); n != 5 || m != 5 {
		t.Errorf("%d and %d units are charged in the cell's own store, want 5 of each, as many as were admitted", n, m)
	}
	if n := home.calls.Load(); n != 1 {
		t.Errorf("the home was asked %d times, want once", n)
	}
}

// quotaWorld holds several cells, each with counters and with instances that lease, and the daily quota of one tenant.
// A history of the shares says which cell keeps the quota.
type quotaWorld struct {
	*rand.Rand
	t       *testing.T
	fault   string
	now     int64
	units   int64
	quota   *limit.Limit
	doc     *shares.Document
	cells   []string
	stores  map[string]*memory.Store
	away    map[string]bool
	members []*member

	admitted                                                         map[int64]int64 // by the end of the period
	elsewhere, denied, withheld, failed, died, refunded, full, moved int64
}

type member struct {
	cell string
	skew int64 // of its clock, µs
	s    *lease.Store
	paid []*limit.Receipt
}

// flaky is the connection of one instance to a home. Calls and answers can be lost.
type flaky struct {
	limit.Store
	w    *quotaWorld
	cell string
}

var errGone = errors.New("the home does not answer")

func (f *flaky) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if f.w.away[f.cell] && f.w.IntN(2) == 0 {
		return errGone // the call did not arrive
	}
	err := f.Store.Decide(ctx, req, now, d)
	f.w.now += f.w.Int64N(400_000) // time in which the call travels
	if f.w.away[f.cell] || f.w.IntN(20) == 0 {
		return errGone // the answer was lost
	}
	return err
}

const day = 24 * 3600 * 1_000_000 // µs

func newQuotaWorld(t *testing.T, seed uint64, fault string) *quotaWorld {
	w := &quotaWorld{Rand: rand.New(rand.NewPCG(seed, 7)), t: t, fault: fault, now: noon.UnixMicro(),
		cells:  []string{"a", "b", "c"},
		stores: map[string]*memory.Store{}, away: map[string]bool{}, admitted: map[int64]int64{}}
	w.units = 1 + w.Int64N(400)
	w.quota = daily(t, "q", limit.Quota, w.units)
	w.doc = &shares.Document{SkewMicros: 2_000_000, Members: w.cells}
	from := int64(1)
	for i := range 4 { // the home depends on which cells serve the tenant
		g := shares.Generation{Epoch: int64(i + 1), From: from}
		for j, cell := range w.cells {
			if i%3 != j {
				g.Cells = append(g.Cells, shares.Weight{Cell: cell, Weight: 1})
			}
		}
		w.doc.Generations = append(w.doc.Generations, g)
		from = w.now + int64(i)*day + w.Int64N(day)
	}
	for _, cell := range w.cells {
		w.stores[cell] = newMemory(t)
	}
	for _, cell := range w.cells {
		for range 1 + w.IntN(3) {
			m := &member{cell: cell, skew: w.Int64N(w.doc.SkewMicros) - w.doc.SkewMicros/2}
			w.start(m)
			w.members = append(w.members, m)
		}
	}
	return w
}

func (w *quotaWorld) clock(m *member) time.Time { return time.UnixMicro(w.now + m.skew) }

// start begins an instance, also in place of one that has died.
func (w *quotaWorld) start(m *member) {
	others := map[string]limit.Store{}
	for _, cell := range w.cells {
		if cell != m.cell {
			others[cell] = &flaky{w.stores[cell], w, cell}
		}
	}
	m.s = open(w.t, lease.Config{Store: newRouter(w.t, w.stores[m.cell], others), GiveBackEvery: -1,
		Clock:     func() time.Time { return w.clock(m) },
		Instances: func(*limit.Limit) int { return len(w.members) }})
}

// home returns the cell that keeps the quota, as an instance knows it.
func (w *quotaWorld) home(m *member) string {
	switch w.fault {
	case "each cell by itself":
		return m.cell
	case "in mid-period":
		return w.cells[(w.now/(day/3))%3]
	}
	return w.doc.View(m.cell, owner.Name, nil).QuotaHome(&w.quota.Tiers[0], w.now+m.skew)
}

func (w *quotaWorld) step() {
	m := w.members[w.IntN(len(w.members))]
	ctx := w.t.Context()
	switch n := w.IntN(100); {
	case n < 80:
		w.spend(m)
	case n < 84:
		m.s.GiveBackSpare(ctx, w.clock(m))
	case n < 86 && len(m.paid) > 0:
		w.refund(m)
	case n < 88:
		w.died++
		w.start(m) // its leases are lost
	case n < 90:
		_ = m.s.Close(ctx) // units that could not be given back are lost
		w.start(m)
	case n < 92:
		w.away[w.cells[w.IntN(3)]] = w.IntN(3) == 0
	}
	switch w.IntN(40) {
	case 0:
		w.now += w.Int64N(3 * 3600 * 1_000_000)
	case 1: // to the edge of a day
		if left := day - w.now%day; left > 3_000_000 {
			w.now += left - w.Int64N(3_000_000)
		}
	default:
		w.now += w.Int64N(2_000_000)
	}
}

func (w *quotaWorld) spend(m *member) {
	home := w.home(m)
	l := w.quota
	switch home {
	case "":
		w.withheld++
		return
	case m.cell:
	default:
		l = l.KeptIn(home)
	}
	req := request(l)
	req.Charges[0].Cost = 1 + w.Int64N(3)
	var d limit.Decision
	switch err := m.s.Decide(w.t.Context(), req, w.clock(m), &d); {
	case err != nil:
		w.failed++
	case !d.Allowed:
		w.denied++
	default:
		if l.Home != "" {
			w.elsewhere++
		}
		period := d.Results[0].ResetAt()
		w.admitted[period] += req.Charges[0].Cost
		if w.admitted[period] == w.units {
			w.full++
		}
		if m.paid = append(m.paid, d.Receipt()); len(m.paid) > 4 {
			m.paid = m.paid[1:]
		}
	}
}

// refund gives units back. If the answer is lost, they count as given back.
func (w *quotaWorld) refund(m *member) {
	r := m.paid[0]
	m.paid = m.paid[1:]
	end := int64(0)
	for period := range w.admitted {
		if r.Entries()[0].At() >= period-day && r.Entries()[0].At() < period {
			end = period
		}
	}
	back, err := m.s.Settle(w.t.Context(), r, nil, w.clock(m))
	if err != nil {
		w.admitted[end] -= r.Entries()[0].Units
		return
	}
	w.admitted[end] -= back.Returned[0]
	w.refunded += back.Returned[0]
}

// over returns by how many units the quota of a period was exceeded, at most.
func (w *quotaWorld) over() (most int64) {
	for _, n := range w.admitted {
		most = max(most, n-w.units)
	}
	return most
}

// Guarantees that cells which lease from one quota never grant more than its units in a period together, while the home
// moves, fails and comes back, answers are lost, instances die, close and refund, and their clocks differ.
func TestCellsNeverPassAQuota(t *testing.T) {
	soak.SkipUnderRace(t)
	const seeds = uint64(8)
	sum := quotaWorld{}
	for seed := range max(soak.Times(seeds), seeds) { // with fewer seeds, some of the events do not happen
		w := newQuotaWorld(t, seed, "")
		before := ""
		for range 2500 {
			w.step()
			if over := w.over(); over > 0 {
				t.Fatalf("seed %d: the quota was exceeded by %d units, of %d in a period; admitted by end of "+
					"period: %v", seed, over, w.units, w.admitted)
			}
			if home := w.home(w.members[0]); home != "" && home != before {
				before = home
				sum.moved++
			}
		}
		sum.elsewhere, sum.denied, sum.withheld, sum.failed = sum.elsewhere+w.elsewhere, sum.denied+w.denied,
			sum.withheld+w.withheld, sum.failed+w.failed
		sum.died, sum.refunded, sum.full = sum.died+w.died, sum.refunded+w.refunded, sum.full+w.full
	}
	if sum.elsewhere == 0 || sum.denied == 0 || sum.withheld == 0 || sum.failed == 0 || sum.died == 0 ||
		sum.refunded == 0 || sum.full == 0 || sum.moved <= int64(seeds) {
		t.Errorf("too little happened, so the test shows nothing: %+v", sum)
	}
}

// Guarantees that the test above can fail: a quota is exceeded if each cell counts by itself, or if the home moves
// before the period has ended.
func TestBrokenHomesAreCaught(t *testing.T) {
	soak.SkipUnderRace(t)
	for _, fault := range []string{"each cell by itself", "in mid-period"} {
		caught := false
		for seed := uint64(0); seed < 30 && !caught; seed++ {
			w := newQuotaWorld(t, seed, fault)
			for range 2500 {
				w.step()
			}
			caught = w.over() > 0
		}
		if !caught {
			t.Errorf("the fault %q is not noticed in any script, want the quota to be exceeded in one", fault)
		}
	}
}

// Guarantees that cells that share a limit too small to be divided can use all of it, whether their loads are equal or
// one cell has nearly all requests, and that a limit with large costs does not need a call for each request. Units of a
// small limit that one cell has leased are missing in the others.
func TestKeptLimitsAreUsed(t *testing.T) {
	if soak.RaceEnabled {
		t.Skip("one goroutine, and the race detector takes a minute for it")
	}
	cells := []string{"a", "b", "c"}
	doc := &shares.Document{Version: shares.Layout, Epoch: 1, Phase: shares.Steady, Members: cells,
		Generations: []shares.Generation{{
			Epoch: 1, From: 1, Cells: []shares.Weight{{Cell: "a", Weight: 1}, {Cell: "b", Weight: 1},
				{Cell: "c", Weight: 1}},
			Homed: []shares.PlanLimit{{Plan: "p", Limit: "x"}}}}}
	for _, tt := range []struct {
		perSecond int64
		maxCost   int64
		least     float64 // of the units that one counter admits of the same requests
		calls     float64 // calls per request, at most
	}{{1, 1, 1, 1}, {2, 1, 1, 1}, {5, 5, 1, 1}, {100, 100, 1, 1}, {300, 300, 0.95, 0.1}, {1000, 1000, 0.97, 0.05}} {
		for _, a := range []limit.Algorithm{limit.FixedWindow, limit.SlidingWindow, limit.TokenBucket,
			limit.LeakyBucket} {
			// one of this many requests goes to a random cell, and the others go to the first cell
			for _, first := range []int{3, 20} {
				if a == limit.LeakyBucket && tt.perSecond > 100 {
					continue // it is never leased
				}
				t.Run(fmt.Sprintf("%s/%d/%d", a, tt.perSecond, first), func(t *testing.T) {
					for seed := range soak.Times(uint64(1)) {
						l := limittest.MustNew(t, limit.Limit{ID: "x", MaxCost: tt.maxCost,
							Tiers: []limit.Tier{{Algorithm: a, Period: time.Second, Threshold: tt.perSecond}}})
						now := noon
						kept, alone := &counted{Store: newMemory(t)}, newMemory(t)
						var stores []*lease.Store
						var limits []*limit.Limit
						for _, cell := range cells {
							in, _ := shares.At(doc.View(cell, owner.Name, nil).Limit("p", l, owner.Name),
								now.UnixMicro())
							if in.Limit == nil || in.Limit.Home == "" {
								t.Fatalf("in the cell %s the limit has no home: %+v", cell, in.Limit)
							}
							limits = append(limits, in.Limit)
							stores = append(stores,
								open(t, lease.Config{Store: kept, GiveBackEvery: -1,
									Instances: func(*limit.Limit) int { return len(cells) },
									Clock:     func() time.Time { return now }}))
						}
						r := rand.New(rand.NewPCG(seed, 2))
						asked, admitted, possible, waited, returned := 0, 0, 0, 0, now
						for now.Before(noon.Add(30 * time.Second)) {
							pause := r.ExpFloat64() * float64(time.Second) / float64(2*tt.perSecond)
							now = now.Add(time.Duration(pause))
							if now.Sub(returned) > lease.DefaultGiveBackEvery {
								returned = now
								for _, s := range stores {
									s.GiveBackSpare(t.Context(), now)
								}
							}
							i := r.IntN(3)
							if first > 3 && r.IntN(first) > 0 {
								i = 0
							}
							asked++
							before := kept.calls.Load()
							if decide(t, stores[i], request(limits[i]), now).Allowed {
								admitted++
							}
							if kept.calls.Load() > before {
								waited++
							}
							if decide(t, alone, request(l), now).Allowed {
								possible++
							}
						}
						part, calls := float64(admitted)/float64(possible), float64(kept.calls.Load())/float64(asked)
						t.Logf("%.1f %% of what one counter admits, %.3f calls a request, %.1f %% of the requests "+
							"wait for the home",
							100*part, calls, 100*float64(waited)/float64(asked))
						if part < tt.least || calls > tt.calls {
							t.Errorf("the cells admit %.3f of what one counter would, with %.3f calls a request; "+
								"want at least %.3f, with at most %.3f", part, calls, tt.least, tt.calls)
						}
					}
				})
			}
		}
	}
}
