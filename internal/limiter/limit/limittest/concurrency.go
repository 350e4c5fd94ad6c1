package limittest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

var concurrencyCases = []testCase{
	{"concurrent requests never exceed a limit", testConcurrent},
	{"concurrent requests over three limits charge all or nothing", testConcurrentAll},
	{"concurrent requests stay within the bound while time passes", testConcurrentTime},
	{"concurrent charges and refunds lose no unit", testConcurrentRefunds},
	{"requests in flight at once never exceed a limit", testConcurrentPlaces},
}

// handles returns four handles on the same counters, as four processes would have them, or the store alone if
// Config.Peer is nil.
func (s *subject) handles() []limit.Store {
	all := []limit.Store{s.store}
	if s.c.Peer != nil {
		for len(all) < 4 {
			all = append(all, s.c.Peer(s.TB, s.store))
		}
	}
	return all
}

// concurrently runs f on Config.Goroutines goroutines, each with one of the handles. They begin together.
func (s *subject) concurrently(f func(g int, store limit.Store)) {
	handles := s.handles()
	var wg sync.WaitGroup
	start := make(chan struct{})
	for g := range s.c.Goroutines {
		wg.Go(func() {
			<-start
			f(g, handles[g%len(handles)])
		})
	}
	close(start)
	wg.Wait()
}

// try makes one decision, and reports whether it is allowed. An error fails the test, unless Config.MayFail is set: the
// request then counts as denied. Nothing excuses a counter that cannot be read.
func (s *subject) try(store limit.Store, now time.Time, d *limit.Decision, charges ...limit.Charge) bool {
	err := store.Decide(s.Context(), s.request(charges), now, d)
	if err != nil && (!s.c.MayFail || errors.Is(err, limit.ErrUnreadable)) {
		s.Errorf("Decide(%s): %v", describe(charges), err)
	}
	return err == nil && d.Allowed
}

func testConcurrent(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		for round, cost := range []int64{1, 3} {
			l := k.limit(tb, fmt.Sprint("fifty-", round), 50)
			want := 50 / cost
			if k.oneAtATime() {
				want = 1
			}
			s.clock(Start)
			var admitted atomic.Int64
			s.concurrently(func(_ int, store limit.Store) {
				var d limit.Decision
				for range 4 {
					if s.try(store, Start, &d, charge(l, cost)) {
						admitted.Add(1)
					}
				}
			})
			if got := admitted.Load(); got > want || (!s.c.MayFail && got != want) {
				s.Errorf("%d goroutines with a cost of %d, of a limit of 50 units: %d requests are admitted, want %d",
					s.c.Goroutines, cost, got, want)
			}
		}
	})
}

func testConcurrentAll(tb testing.TB, c Config) {
	samples := c.samples()
	each(tb, c, func(s *subject, k sample) {
		for round := range 3 {
			other := samples[(slices.Index(samples, k)+1+round)%len(samples)]
			if k.oneAtATime() || other.oneAtATime() {
				continue
			}
			limits := []*limit.Limit{
				k.limit(tb, fmt.Sprint("a", round), 50), other.limit(tb, fmt.Sprint("b", round), 40), k.limit(tb,
					fmt.Sprint("c", round), 60),
			}
			s.clock(Start)
			var admitted atomic.Int64
			s.concurrently(func(g int, store limit.Store) {
				var d limit.Decision
				// the limits in different orders: if a store locked counter by counter, two requests could wait for
				// each other
				for i := range 4 {
					charges := []limit.Charge{charge(limits[g%3], 1), charge(limits[(g+1+i%2)%3], 1),
						charge(limits[(g+2-i%2)%3], 1)}
					if s.try(store, Start, &d, charges...) {
						admitted.Add(1)
					}
				}
			})
			got := admitted.Load()
			if got > 40 || (!s.c.MayFail && got != 40) {
				s.Errorf("with %s: %d requests are admitted over limits of 50, 40 and 60 units, want 40",
					other.algorithm, got)
			}
			for i, units := range []int64{50, 40, 60} {
				// A bucket may get back less of a request that others overtook between its stores: see "Several stores"
				// in docs/accuracy.md.
				lost := int64(0)
				if s.c.Undoes && limits[i].Tiers[0].Algorithm == limit.TokenBucket {
					lost = 4*int64(s.c.Goroutines) - got
				}
				if left := s.remaining(Start, limits[i]); left > units-got || !s.c.MayFail && left < units-got-lost {
					s.Errorf("with %s: %d units were admitted, but %d of %d remain, want them to add up",
						other.algorithm, got, left, units)
				}
			}
		}
	})
}

func testConcurrentTime(tb testing.TB, c Config) {
	if c.SetClock != nil {
		return // the clock of such a store stands still in concurrent steps
	}
	each(tb, c, func(s *subject, k sample) {
		// Three periods of one second. A goroutine that is delayed is then never late by more than MaxSkew.
		const span = 3 * time.Second
		begin := Start.Add(14*time.Hour - span/2) // midnight is in the middle, for the quota
		if k.algorithm != limit.Quota {
			k.period = time.Second
		}
		l := k.limit(tb, "fifty", 50)
		var mu sync.Mutex
		h := &counter{tb: tb, tier: l.Tiers[0]}
		var ticks, late atomic.Int64
		turns := min(40, max(10, c.Repeats/3)) // even the fewest turns request several times the limit
		step := span / time.Duration(turns*s.c.Goroutines)
		s.concurrently(func(g int, store limit.Store) {
			var d limit.Decision
			for range turns {
				tick := ticks.Add(1)
				at := begin.Add(time.Duration(tick) * step)
				cost := int64(1 + g%3)
				admitted := s.try(store, at, &d, charge(l, cost))
				for lag := ticks.Load() - tick; ; {
					if most := late.Load(); lag <= most || late.CompareAndSwap(most, lag) {
						break
					}
				}
				if !admitted {
					continue
				}
				sp := &spend{at: d.Now, units: cost, tier: l.Tiers[0]}
				mu.Lock()
				h.spends = append(h.spends, sp)
				mu.Unlock()
			}
		})
		slices.SortFunc(h.spends, func(a, b *spend) int { return cmp.Compare(a.at, b.at) })
		if len(h.spends) == 0 {
			s.Fatalf("nothing was admitted, so the test shows nothing")
		}
		// The store got the times out of order. Each charge came at most late steps after the time that it names.
		if over := h.overBoundIf(time.Duration(late.Load()) * step); over != "" {
			s.Errorf("more was admitted than the bound of the algorithm allows: %s", over)
		}
	})
}

func testConcurrentRefunds(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		if k.oneAtATime() {
			return
		}
		l := k.limit(tb, "fifty", 50)
		s.clock(Start)
		var net atomic.Int64
		s.concurrently(func(g int, store limit.Store) {
			var d limit.Decision
			for i := range 8 {
				if !s.try(store, Start, &d, charge(l, 2)) {
					continue
				}
				net.Add(2)
				if (g+i)%3 == 0 {
					continue
				}
				r, err := store.Settle(s.Context(), d.Receipt(), d.Receipt().Without(int64(i%3)), Start)
				if err != nil {
					if !s.c.MayFail {
						s.Errorf("Refund: %v", err)
					}
					continue
				}
				net.Add(-r.Returned[0])
			}
		})
		kept := net.Load()
		if left := s.remaining(Start, l); kept > 50 || left > 50-kept || (!s.c.MayFail && left != 50-kept) {
			s.Errorf("%d units of 50 were charged and not refunded, but %d remain, want them to add up", kept, left)
		}
	})
}

// A place that one process gives back is at once free for another that was denied.
func testConcurrentPlaces(tb testing.TB, c Config) {
	const places = 5
	s := newSubject(tb, c)
	held := placesOf(tb, places, 8*time.Second)
	s.clock(Start)
	giveBack := func(store limit.Store, d *limit.Decision) {
		got, err := store.Settle(s.Context(), kept(d), nil, Start)
		if !s.c.MayFail && (err != nil || got.Returned[0] != 1) || errors.Is(err, limit.ErrUnreadable) {
			s.Errorf("a place is given back: %+v, %v", got, err)
		}
	}
	var live, most atomic.Int64
	s.concurrently(func(_ int, store limit.Store) {
		for range 8 {
			var d limit.Decision
			if !s.try(store, Start, &d, charge(held, 1)) {
				continue
			}
			for n, before := live.Add(1), int64(0); n > before; before = most.Load() {
				most.CompareAndSwap(before, n)
			}
			live.Add(-1)
			giveBack(store, &d)
		}
	})
	if most.Load() > places {
		s.Errorf("%d requests hold %d places at once", most.Load(), places)
	}
	held = placesOf(tb, places, 9*time.Second)
	handles := s.handles()
	decide := func(store limit.Store, d *limit.Decision, want bool, why string) {
		err := store.Decide(s.Context(), s.request([]limit.Charge{charge(held, 1)}), Start, d)
		if err != nil || d.Allowed != want {
			s.Errorf("%s: allowed %t, %v; want %t", why, d.Allowed, err, want)
		}
	}
	var taken [places]limit.Decision
	for i := range taken {
		decide(handles[i%len(handles)], &taken[i], true, "a place is free")
	}
	var d limit.Decision
	for i := range 4 * places {
		first, second := handles[i%len(handles)], handles[(i+1)%len(handles)]
		decide(second, &d, false, "all places are taken")
		giveBack(first, &taken[i%places])
		decide(second, &taken[i%places], true, "a place was given back")
	}
}
