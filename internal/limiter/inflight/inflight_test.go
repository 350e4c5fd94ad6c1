package inflight_test

import (
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/inflight"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
)

const (
	capacity = 3
	holdFor  = 30 * time.Second
)

type fixture struct {
	*testing.T
	store  *memorytest.Faulty
	keeper *inflight.Keeper
	req    *limit.Request
}

// run runs a test in a bubble of synctest.
func run(t *testing.T, test func(f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := limittest.MustNew(t, limit.Limit{ID: "in-flight", Unit: limit.ConcurrentRequests, Tiers: []limit.Tier{{
			Algorithm: limit.SlidingBuckets, Threshold: capacity, Period: holdFor, Buckets: 8}}})
		f := &fixture{T: t, store: memorytest.NewFaulty(t)}
		f.keeper = &inflight.Keeper{Store: f.store, Now: time.Now, Log: slog.New(slog.DiscardHandler)}
		f.req = &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: "acme"},
			Charges: []limit.Charge{{Limit: l, Cost: 1}}}
		test(f)
	})
}

// take takes a place.
func (f *fixture) take() *inflight.Places {
	f.Helper()
	var d limit.Decision
	if err := f.store.Decide(f.Context(), f.req, time.Now(), &d); err != nil || !d.Allowed {
		f.Fatalf("no place: allowed %t, %v", d.Allowed, err)
	}
	if got := inflight.HoldFor(&d); got != holdFor {
		f.Errorf("HoldFor = %s, want %s", got, holdFor)
	}
	return f.keeper.Take(d.Receipt())
}

// wantTaken fails the test unless so many places are taken.
func (f *fixture) wantTaken(when string, want int64) {
	f.Helper()
	var d limit.Decision
	if err := f.store.Store.Peek(f.Context(), f.req, time.Now(), &d); err != nil || d.Results[0].Used() != want {
		f.Errorf("%s: %d places are taken, %v; want %d", when, d.Results[0].Used(), err, want)
	}
}

func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// Guarantees that a place is kept although one or two renewals fail, or their replies are lost, and that it is then one
// place again.
func TestRenewalsFail(t *testing.T) {
	run(t, func(f *fixture) {
		release := f.take().Hold()
		for name, fail := range map[string]*atomic.Bool{"away": &f.store.Away, "loses replies": &f.store.LosesReplies,
			"open": &f.store.Open, "settlements fail": &f.store.SettlesFail} {
			for range 20 {
				fail.Store(true)
				pass(holdFor / 2)
				if name == "open" {
					f.wantTaken("while nothing is charged", 1)
				}
				fail.Store(false)
				pass(holdFor / 2)
				if name == "away" || name == "open" {
					f.wantTaken(name, 1)
				}
			}
			pass(2 * holdFor) // renewals whose replies were lost have expired
			f.wantTaken("after "+name, 1)
		}
		release()
		f.wantTaken("after the release", 0)
	})
}

// Guarantees that a release that fails can be made again, and frees nothing twice.
func TestReleasesFail(t *testing.T) {
	run(t, func(f *fixture) {
		other := f.take()
		for _, fail := range []*atomic.Bool{&f.store.Away, &f.store.LosesReplies} {
			p := f.take()
			fail.Store(true)
			if _, err := p.Release(f.Context()); !errors.Is(err, memorytest.ErrAway) {
				f.Errorf("Release: %v, want the store's error", err)
			}
			fail.Store(false)
			for range 2 {
				if _, err := p.Release(f.Context()); err != nil {
					f.Errorf("Release: %v", err)
				}
			}
			f.wantTaken("after all releases", 1)
		}
		if got, err := other.Release(f.Context()); err != nil || got["in-flight"] != 1 {
			f.Errorf("Release = %v, %v; want one place", got, err)
		}
		if err := other.Renew(f.Context()); err != nil {
			f.Errorf("Renew: %v", err)
		}
		other.Hold()()
		pass(holdFor)
		f.wantTaken("after the release of the last", 0)
	})
}

// Guarantees that a process which stood still for longer than holdFor takes its place again, although others have taken
// all places.
func TestStoodStill(t *testing.T) {
	run(t, func(f *fixture) {
		p := f.take()
		pass(2 * holdFor)
		f.wantTaken("after holdFor", 0)
		for range capacity {
			f.take()
		}
		release := p.Hold()
		pass(holdFor / 2)
		f.wantTaken("when the request goes on", capacity+1)
		release()
		f.wantTaken("after the release", capacity)
	})
}

// Guarantees that a release that fails is made again, and that a request which goes on while nothing can be given back
// keeps no more receipts than matter.
func TestReleasedLater(t *testing.T) {
	run(t, func(f *fixture) {
		p := f.take()
		release := p.Hold()
		f.store.SettlesFail.Store(true)
		for range 100 {
			pass(holdFor)
		}
		if n := p.Receipts(); n > 6 {
			t.Errorf("%d receipts are kept, want those of one holdFor", n)
		}
		release()
		f.store.SettlesFail.Store(false)
		pass(holdFor / 4)
		f.wantTaken("after the release was made again", 0)
	})
}

// Guarantees that failures are logged with the tenant and the limit, and once a second however many requests fail.
func TestFailuresAreLogged(t *testing.T) {
	run(t, func(f *fixture) {
		var log strings.Builder
		f.keeper.Log = slog.New(slog.NewTextHandler(&log, nil))
		var releases []func()
		for range capacity {
			releases = append(releases, f.take().Hold())
		}
		f.store.Away.Store(true)
		pass(holdFor / 4)
		want := `tenant=acme limit=in-flight next_try=7.5s error="renew places: the store is away" not_logged=0`
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, want) {
			t.Errorf("the log is\n%s\nwant one line with %s", text, want)
		}
		pass(time.Second)
		log.Reset()
		for _, release := range releases {
			release()
		}
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "were not given back") ||
			!strings.Contains(text, "not_logged=2") {
			t.Errorf("the log is\n%s\nwant one line about places that were not given back, and two not logged", text)
		}
		f.store.Away.Store(false)
		pass(holdFor / 4)
	})
}
