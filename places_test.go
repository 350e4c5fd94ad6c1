package sluice_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
)

// flights limits requests in flight, and counts all of them.
const flights = `plans:
  - id: p
    limits:
      - { id: in-flight, concurrency: 2, holdFor: 30s }
      - { id: rpd, algorithm: fixed_window, threshold: 1000, period: 24h }
      - { id: tpd, unit: tokens, cost: { default: 0 }, quota: { units: 5000, every: day } }
tenants: [ { id: acme, plan: p } ]
`

// inFlight runs a test in a bubble of synctest, on a limiter whose clock is the bubble's.
func inFlight(t *testing.T, test func(t *testing.T, l *sluice.Limiter)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(t, open(t, flights, func(c *sluice.Config) { c.Now = time.Now }))
	})
}

// after lets time pass.
func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// begin starts a request, which takes a place. It fails the test if no place is free.
func begin(t *testing.T, l *sluice.Limiter) sluice.Reservation {
	t.Helper()
	d := l.Decide(t.Context(), acme, sluice.Request{})
	if !d.Allowed {
		t.Fatalf("no place: %+v", d)
	}
	return d.Reservation()
}

// wantFree fails the test unless so many of the two places are free, and the request that finds none is told so.
func wantFree(t *testing.T, l *sluice.Limiter, when string, want int) {
	t.Helper()
	var taken []sluice.Reservation
	for {
		d := l.Decide(t.Context(), acme, sluice.Request{})
		if !d.Allowed {
			if d.Limit != "in-flight" || d.Unit != "concurrent-requests" || d.RetryAfter > time.Second {
				t.Errorf("%s: denied by %s (%s) for %s, want in-flight and at most a second", when, d.Limit, d.Unit,
					d.RetryAfter)
			}
			break
		}
		taken = append(taken, d.Reservation())
	}
	if len(taken) != want {
		t.Errorf("%s: %d places are free, want %d", when, len(taken), want)
	}
	for _, r := range taken {
		if _, err := l.Cancel(t.Context(), r); err != nil {
			t.Errorf("Cancel: %v", err)
		}
	}
}

// Guarantees that a request in flight takes one place until it is released, settled or canceled, each of which frees
// that place once; and that a request which finds no place is charged to no other limit.
func TestPlaces(t *testing.T) {
	inFlight(t, func(t *testing.T, l *sluice.Limiter) {
		wantFree(t, l, "at first", 2)
		admitted := l.Decide(t.Context(), acme, sluice.Request{})
		if admitted.Limit != "rpd" {
			t.Errorf("an admitted request is told of %s, want rpd: nobody need wait for places", admitted.Limit)
		}
		first, second := admitted.Reservation(), begin(t, l)
		release := l.Hold(first)
		wantFree(t, l, "with two requests", 0)
		release()
		release()
		wantFree(t, l, "after the first has ended twice", 1)
		if _, err := l.Settle(t.Context(), second, nil); err != nil {
			t.Errorf("Settle: %v", err)
		}
		l.Hold(second)()
		wantFree(t, l, "after the second is settled", 2)
		d := l.Peek(t.Context(), acme, sluice.Request{Costs: sluice.Costs{"concurrent-requests": 0}})
		if d.Limit != "rpd" || d.Remaining != 998 { // canceled requests have come back
			t.Errorf("%d of %s are left, want 998 of rpd", d.Remaining, d.Limit)
		}
	})
}

// Guarantees that a request which goes on for long keeps its place, and no more than one; that a place which nobody
// renews comes free after holdFor; and that a late release then frees nobody else's place.
func TestLongRequests(t *testing.T) {
	inFlight(t, func(t *testing.T, l *sluice.Limiter) {
		release := l.Hold(begin(t, l))
		dead := begin(t, l)
		for range 20 {
			after(500 * time.Millisecond)
			wantFree(t, l, "within holdFor", 0)
		}
		after(30 * time.Second)
		wantFree(t, l, "after holdFor", 1)
		other := begin(t, l)
		if _, err := l.Settle(t.Context(), dead, nil); !errors.Is(err, sluice.ErrReservationEnded) {
			t.Errorf("a settlement after holdFor: %v, want ErrReservationEnded", err)
		}
		l.Hold(dead)()
		wantFree(t, l, "after a late release", 0)
		l.Hold(other)()
		for range 10 {
			after(time.Hour + time.Second)
			wantFree(t, l, "after hours", 1)
		}
		release()
		wantFree(t, l, "at the end", 2)
		after(time.Hour)
		wantFree(t, l, "an hour after the end", 2)
	})
}

// Guarantees that places are renewed although the limit is lowered below what is in flight, and that nobody else gets
// in before fewer are in flight than the new limit.
func TestPlacesOfALoweredLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "plans.yaml")
		write := func(text string) {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write(flights)
		l := open(t, "", func(c *sluice.Config) { c.PlansData, c.Plans, c.Now = nil, []string{path}, time.Now })
		first, second := l.Hold(begin(t, l)), l.Hold(begin(t, l))
		write(strings.Replace(flights, "concurrency: 2", "concurrency: 1", 1))
		if err := l.Reload(); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			after(20 * time.Second)
			wantFree(t, l, "with two requests in place of one", 0)
		}
		first()
		wantFree(t, l, "with one", 0)
		second()
		wantFree(t, l, "with none", 1)
	})
}

// Guarantees that a reservation of tokens and of a place is renewed, updated, and settled, and that the place is not
// settled by its unit.
func TestPlaceAndTokens(t *testing.T) {
	inFlight(t, func(t *testing.T, l *sluice.Limiter) {
		d, r := l.Reserve(t.Context(), acme, sluice.Request{}, sluice.Costs{"tokens": 300}, time.Hour)
		if !d.Allowed {
			t.Fatalf("%+v", d)
		}
		release := l.Hold(r)
		after(5 * time.Minute)
		for _, tokens := range []int64{700, 500} {
			d, err := l.Update(t.Context(), r, sluice.Costs{"tokens": tokens}, time.Minute)
			if err != nil || !d.Allowed {
				t.Fatalf("%+v, %v", d, err)
			}
		}
		wantFree(t, l, "after updates", 1)
		for _, used := range []sluice.Costs{{"concurrent-requests": 0}, {"concurrent-requests": 1}} {
			if _, err := l.Settle(t.Context(), r, used); !errors.Is(err, sluice.ErrCost) {
				t.Errorf("Settle of %v: %v, want ErrCost", used, err)
			}
			if _, err := l.Update(t.Context(), r, used, time.Minute); !errors.Is(err, sluice.ErrCost) {
				t.Errorf("Update to %v: %v, want ErrCost", used, err)
			}
		}
		got, err := l.Settle(t.Context(), r, sluice.Costs{"tokens": 420})
		if err != nil || got.Returned["tpd"] != 80 || got.Returned["in-flight"] != 1 {
			t.Errorf("Settle = %+v, %v", got, err)
		}
		release()
		wantFree(t, l, "after the settlement", 2)
		if d := l.Decide(t.Context(), acme, sluice.Request{Costs: sluice.Costs{"concurrent-requests": 2}}); d.Allowed ||
			!errors.Is(d.Err, sluice.ErrCost) {
			t.Errorf("a request of two places: %+v", d)
		}
	})
}

// placesAway is a store that cannot settle places.
type placesAway struct{ faulty }

func (s placesAway) Backend() store.Backend {
	return store.Backend{Name: "faulty", Counters: s, Keeper: s}
}

func (s placesAway) Settle(
	ctx context.Context, r *limit.Receipt, used []int64, now time.Time,
) (limit.Settlement, error) {
	if e := r.Entries(); len(e) > 0 && e[0].Tier.Limit().CountsPlaces() {
		return limit.Settlement{}, memorytest.ErrAway
	}
	return s.faulty.Settle(ctx, r, used, now)
}

// Guarantees that tokens are settled although the place cannot be given back, and that the caller is told of that.
func TestSettleWithoutPlaces(t *testing.T) {
	l := open(t, flights, func(c *sluice.Config) {
		c.Store, c.NoLeases = placesAway{faulty{memorytest.NewFaulty(t)}}, true
	})
	_, r := l.Reserve(t.Context(), acme, sluice.Request{}, sluice.Costs{"tokens": 300}, time.Hour)
	if got, err := l.Settle(t.Context(), r, sluice.Costs{"tokens": 100}); !errors.Is(err, sluice.ErrReservation) ||
		got.Returned["tpd"] != 200 {
		t.Errorf("Settle = %+v, %v; want 200 tokens returned, and an error about the place", got, err)
	}
}

// Guarantees that an update of a reservation takes no place of a limit that the plan has had since then: nobody would
// give it back.
func TestUpdateTakesNoPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plans.yaml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(strings.Replace(flights, "      - { id: in-flight, concurrency: 2, holdFor: 30s }\n", "", 1))
	l := open(t, "", func(c *sluice.Config) { c.PlansData, c.Plans = nil, []string{path} })
	_, r := l.Reserve(t.Context(), acme, sluice.Request{}, sluice.Costs{"tokens": 300}, time.Hour)
	write(flights)
	if err := l.Reload(); err != nil {
		t.Fatal(err)
	}
	if d, err := l.Update(t.Context(), r, sluice.Costs{"tokens": 400}, time.Hour); err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	wantFree(t, l, "after an update", 2)
}

// Guarantees that a program may give back places by release and settle the rest afterwards.
func TestSettleAfterRelease(t *testing.T) {
	inFlight(t, func(t *testing.T, l *sluice.Limiter) {
		_, r := l.Reserve(context.Background(), acme, sluice.Request{}, sluice.Costs{"tokens": 300}, time.Hour)
		l.Hold(r)()
		wantFree(t, l, "after the release", 2)
		got, err := l.Settle(t.Context(), r, sluice.Costs{"tokens": 100})
		if err != nil || got.Returned["tpd"] != 200 || got.Returned["in-flight"] != 0 {
			t.Errorf("Settle = %+v, %v", got, err)
		}
		wantFree(t, l, "after the settlement", 2)
	})
}
