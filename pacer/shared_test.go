package pacer_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/ledger"
	"github.com/sluicelimits/sluice/pacer"
)

// away is a ledger that can be made unavailable or slow, or be replaced.
type away struct {
	mu    sync.Mutex
	inner pacer.Ledger
	is    bool
	delay time.Duration // from carrying out a claim to the answer
}

func (a *away) set(is bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.is = is
}

func (a *away) replace(by pacer.Ledger) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inner = by
}

func (a *away) answerAfter(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.delay = d
}

func (a *away) Claim(ctx context.Context, key string, c ledger.Claim) (ledger.Lease, error) {
	a.mu.Lock()
	is, inner, delay := a.is, a.inner, a.delay
	a.mu.Unlock()
	if is {
		<-ctx.Done()
		return ledger.Lease{}, ctx.Err()
	}
	lease, err := inner.Claim(ctx, key, c)
	select {
	case <-ctx.Done():
		return ledger.Lease{}, ctx.Err()
	case <-time.After(delay):
	}
	return lease, err
}

func (a *away) SetLimit(ctx context.Context, key string, units, from int64) error {
	a.mu.Lock()
	inner := a.inner
	a.mu.Unlock()
	return inner.SetLimit(ctx, key, units, from)
}

// three holds three pacers that share a limit, and the units that they granted in each window.
type three struct {
	t       *testing.T
	ledger  *away
	pacers  [3]*pacer.Pacer
	mu      sync.Mutex
	granted map[int64]int64
}

func share(t *testing.T, limit int64) *three {
	s := &three{t: t, ledger: &away{inner: pacer.NewMemoryLedger()}, granted: map[int64]int64{}}
	for i := range s.pacers {
		s.pacers[i] = open(t, pacer.Config{Limit: pacer.PerSecond(limit),
			Shared: &pacer.Shared{Ledger: s.ledger, Key: "api"}})
	}
	return s
}

// says makes the provider reply to a request of a pacer.
func (s *three) says(at int, header ...string) {
	s.t.Helper()
	now := time.Now()
	permit := mustAcquire(s.t, s.pacers[at], "b", 1)
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	s.pacers[at].Observe(pacer.Reply{Header: h, Permit: permit, Received: now})
}

// want makes n requests wait at a pacer, which cost a unit each.
func (s *three) want(at, n int) { s.wantOf(at, n, 1) }

// wantOf makes n requests of the given cost wait at a pacer.
func (s *three) wantOf(at, n int, cost int64) {
	s.t.Helper()
	for range n {
		_, err := s.pacers[at].Enqueue("a", cost, pacer.Forever, pacer.WakerFunc(func(_ pacer.Permit, err error) {
			if err == nil {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.granted[time.Now().Unix()] += cost
			}
		}))
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

// grantedPerSecond returns the units that were granted in each second since began.
func (s *three) grantedPerSecond(began time.Time, seconds int) (granted []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range seconds {
		granted = append(granted, s.granted[began.Unix()+int64(i)])
	}
	return granted
}

// Pacers that share a limit use all of it, whichever of them the requests wait at.
func TestShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := share(t, 100)
		pass(4 * time.Second) // the ledger has begun
		began := time.Now()
		s.want(0, 500)
		s.want(1, 20)
		pass(7 * time.Second)
		var sum int64
		for second, n := range s.grantedPerSecond(began, 7) {
			least := int64(99)
			if second < 3 { // the second pacer keeps some units for requests like its latest ones
				least = 75
			}
			if sum += n; n > 100 || second < 5 && n < least {
				t.Errorf("second %d: %d units, want %d..100", second, n, least)
			}
		}
		if sum != 520 {
			t.Errorf("%d were granted, want 520", sum)
		}
	})
}

// A pacer that only tries, and never waits, leases units as well: its failed attempts are a need, which at most doubles
// from window to window, so a loop that tries without pause gets the limit after a few windows. Once it stops, another
// pacer has all units.
func TestSharedTryAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := share(t, 100)
		for range 12 * 200 {
			pass(5 * time.Millisecond)
			s.pacers[0].TryAcquire(1)
		}
		before := s.pacers[0].Status()
		for range 5 * 200 {
			pass(5 * time.Millisecond)
			s.pacers[0].TryAcquire(1)
		}
		after := s.pacers[0].Status()
		if n := after.Granted - before.Granted; n < 450 || n > 500 {
			t.Errorf("of 1000 attempts in 5 s, %d were granted, want 450..500", n)
		}
		if after.Asked != after.Granted {
			t.Errorf("%d units were asked for, and %d granted: failed attempts are counted", after.Asked, after.Granted)
		}
		pass(4 * time.Second)
		began := time.Now()
		s.want(1, 1000)
		pass(6 * time.Second)
		for second, n := range s.grantedPerSecond(began, 6) {
			if n > 100 || second >= 2 && n < 99 {
				t.Errorf("%v were granted to the other pacer, want 100 from the third second on",
					s.grantedPerSecond(began, 6))
				break
			}
		}
	})
}

// Requests that cost more than the units that a pacer has leased wait for more units.
func TestSharedCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := share(t, 30)
		for i := range s.pacers {
			s.want(i, 20)
			s.wantOf(i, 20, 13)
			s.want(i, 20)
		}
		began, sum := time.Now(), int64(0)
		pass(time.Minute)
		for second, n := range s.grantedPerSecond(began, 60) {
			if sum += n; n > 30 {
				t.Errorf("second %d: %d units of 30 were granted", second, n)
			}
		}
		if want := int64(3 * (20 + 20*13 + 20)); sum != want {
			t.Errorf("%d units were granted in a minute, want %d", sum, want)
		}
	})
}

// A request that costs more than the limit that the provider states has a window of its own in the end, although other
// pacers always have requests that fit.
func TestSharedCostAboveTheStatedLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := share(t, 30)
		s.says(0, "RateLimit-Policy", `"all";q=5;w=1`)
		pass(5 * time.Second) // all have heard of it
		s.wantOf(0, 3, 13)
		s.want(1, 2000)
		s.want(2, 2000)
		began := time.Now()
		pass(time.Minute)
		large := 0
		for second, n := range s.grantedPerSecond(began, 60) {
			if n == 13 {
				large++
			} else if n > 5 {
				t.Errorf("second %d: %d units were granted, want at most 5, or 13 at once", second, n)
			}
		}
		if large != 3 {
			t.Errorf("%d of 3 large requests were granted in a minute", large)
		}
	})
}

// A shared limit that is halved with notice is halved for all pacers from the same window on, also for requests that
// wait already.
func TestSetSharedLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := share(t, 100)
		for i := range s.pacers {
			s.want(i, 2000)
		}
		pass(5 * time.Second)
		if err := s.pacers[1].SetSharedLimit(t.Context(), 50, time.Now()); !errors.Is(err, pacer.ErrTooSoon) {
			t.Errorf("a change in the present window: %v, want ErrTooSoon", err)
		}
		began := time.Now()
		if err := s.pacers[1].SetSharedLimit(t.Context(), 50, began.Add(2*time.Second)); err != nil {
			t.Fatal(err)
		}
		if err := s.pacers[1].SetLimit(pacer.PerSecond(1)); !errors.Is(err, pacer.ErrConfig) {
			t.Errorf("SetLimit of a shared limit: %v, want ErrConfig", err)
		}
		pass(6 * time.Second)
		if got, want := fmt.Sprint(s.grantedPerSecond(began, 6)), "[100 100 50 50 50 50]"; got != want {
			t.Errorf("granted %s, want %s", got, want)
		}
		for i, p := range s.pacers {
			if l := p.Status().Limit; l.Units != 50 {
				t.Errorf("pacer %d has a limit of %s", i, l)
			}
		}
	})
}

// While the ledger is unavailable, requests wait, and the limit is not exceeded. Afterwards they are served again.
func TestLedgerAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := share(t, 100)
		for i := range s.pacers {
			s.want(i, 2000)
		}
		pass(5 * time.Second)
		began := time.Now()
		s.ledger.set(true)
		pass(4 * time.Second)
		s.ledger.set(false)
		pass(4 * time.Second)
		got := s.grantedPerSecond(began, 8)
		for second, n := range got {
			if n > 100 || second >= 2 && second < 4 && n > 0 || second > 5 && n < 99 {
				t.Errorf("a ledger that was away for 4 s: %v were granted", got)
				break
			}
		}
		if c := s.pacers[0].Status(); c.LedgerErrors == 0 || c.LedgerCalls <= c.LedgerErrors {
			t.Errorf("%d calls, %d errors", c.LedgerCalls, c.LedgerErrors)
		}
	})
}

// A store that restarts empty keeps a limit that was changed live: for the pacers that run, which give it back, and for
// one that starts after the loss with the limit of its configuration. A limit that was raised is used.
func TestLedgerLost(t *testing.T) {
	for _, changed := range []int64{50, 160} {
		synctest.Test(t, func(t *testing.T) {
			s := share(t, 100)
			for i := range s.pacers {
				s.want(i, 3000)
			}
			pass(5 * time.Second)
			err := s.pacers[0].SetSharedLimit(t.Context(), changed, time.Now().Add(2*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			pass(6 * time.Second)
			began := time.Now()
			s.ledger.replace(pacer.NewMemoryLedger())
			s.pacers[2].Close()
			s.pacers[2] = open(t, pacer.Config{Limit: pacer.PerSecond(100),
				Shared: &pacer.Shared{Ledger: s.ledger, Key: "api"}})
			s.want(2, 3000)
			pass(12 * time.Second)
			got := s.grantedPerSecond(began, 12)
			for second, n := range got {
				if n > changed || second >= 6 && n < changed-1 {
					t.Errorf("the ledger of a limit of %d was lost: %v were granted", changed, got)
					break
				}
			}
			if l := s.pacers[2].Status().Limit; l.Units != changed {
				t.Errorf("the new pacer has a limit of %s, want %d units", l, changed)
			}
		})
	}
}

// A store that restarts empty keeps the limit that the provider has stated.
func TestLedgerLostWithAStatedLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := share(t, 100)
		for i := range s.pacers {
			s.want(i, 3000)
		}
		pass(5 * time.Second)
		s.says(0, "RateLimit-Policy", `"all";q=1200;w=60`)
		pass(3 * time.Second)
		s.ledger.replace(pacer.NewMemoryLedger())
		pass(5 * time.Second)
		began := time.Now()
		pass(3 * time.Second)
		for _, n := range s.grantedPerSecond(began, 3) {
			if n > 20 || n < 19 {
				t.Errorf("%v were granted, want 20", s.grantedPerSecond(began, 3))
				break
			}
		}
	})
}

// A ledger that takes 400 ms for each answer loses units of the ends of windows, and none twice.
func TestSlowLedger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := share(t, 100)
		s.ledger.answerAfter(400 * time.Millisecond)
		for i := range s.pacers {
			s.want(i, 3000)
		}
		pass(5 * time.Second)
		began := time.Now()
		pass(10 * time.Second)
		var sum int64
		for second, n := range s.grantedPerSecond(began, 10) {
			if sum += n; n > 100 {
				t.Errorf("second %d: %d units of 100 were granted", second, n)
			}
		}
		if sum < 700 {
			t.Errorf("%d of 1000 units were granted in ten seconds", sum)
		}
		if c := s.pacers[0].Status(); c.LedgerErrors > 0 {
			t.Errorf("%d of %d calls failed, want none", c.LedgerErrors, c.LedgerCalls)
		}
		s.ledger.answerAfter(700 * time.Millisecond) // longer than a call may take
		pass(3 * time.Second)
		began = time.Now()
		pass(3 * time.Second)
		for _, n := range s.grantedPerSecond(began, 3) {
			if n > 0 {
				t.Errorf("%d units were granted though no answer came in time", n)
			}
		}
	})
}

// A Retry-After to one of the pacers that share a limit pauses all of them, from their next call to the ledger on. A
// time far away stops none for longer than LongestPause.
func TestPausesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := share(t, 100)
		for i := range s.pacers {
			s.want(i, 2000)
		}
		pass(5 * time.Second)
		refused := func(retryAfter string) {
			now := time.Now()
			s.pacers[0].Observe(pacer.Reply{Header: http.Header{"Retry-After": {retryAfter}},
				Received: now})
		}
		began := time.Now()
		calls := s.pacers[0].Status().LedgerCalls
		for range 100 {
			refused("4")
			pass(time.Millisecond)
		}
		if n := s.pacers[0].Status().LedgerCalls - calls; n > 2 {
			t.Errorf("after 100 refusals, %d calls to the ledger in a tenth of a second", n)
		}
		pass(7 * time.Second)
		if got := s.grantedPerSecond(began, 7); got[0] > 100 || got[1]+got[2]+got[3] != 0 || got[5] < 99 ||
			got[6] < 99 {
			t.Errorf("after a Retry-After of 4 s to one of three pacers: %v were granted", got)
		}
		refused("31536000")
		pass(time.Second)
		granted := func() (n int64) {
			for i := range s.pacers {
				n += s.pacers[i].Status().Granted
			}
			return n
		}
		before := granted()
		pass(pacer.LongestPause - 2*time.Second)
		if n := granted() - before; n != 0 {
			t.Errorf("%d were granted within an hour after a Retry-After of a year", n)
		}
		pass(5 * time.Second)
		if n := granted() - before; n < 200 {
			t.Errorf("%d were granted after the longest pause", n)
		}
	})
}

// A limit that one of the pacers hears of holds for all pacers that share the limit, also for one that is opened later,
// until the shared limit is changed.
func TestSharedStatedLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := share(t, 100)
		for i := range s.pacers {
			s.want(i, 2000)
		}
		pass(5 * time.Second)
		// holds checks, a few seconds later, that all pacers together grant at most so many units per second.
		holds := func(what string, most int64) {
			t.Helper()
			pass(4 * time.Second)
			began := time.Now()
			pass(3 * time.Second)
			for _, n := range s.grantedPerSecond(began, 3) {
				if n > most || n < most-5 { // the other key has a few units
					t.Errorf("%s: %v were granted, want %d", what, s.grantedPerSecond(began, 3), most)
					break
				}
			}
		}
		holds("no replies", 100)
		s.says(2, "RateLimit-Policy", `"all";q=20;w=1`)
		holds("a stated limit", 20)
		s.pacers[1].Close()
		s.pacers[1] = open(t, pacer.Config{Limit: pacer.PerSecond(100),
			Shared: &pacer.Shared{Ledger: s.ledger, Key: "api"}})
		s.want(1, 2000)
		holds("a new pacer", 20)
		s.says(1, "RateLimit-Policy", `"all";q=1000;w=1`)
		holds("a higher stated limit", 100)
		s.says(0, "RateLimit-Policy", `"all";q=20;w=1`)
		holds("a lower stated limit", 20)
		if err := s.pacers[2].SetSharedLimit(t.Context(), 90, time.Now().Add(2*time.Second)); err != nil {
			t.Fatal(err)
		}
		holds("a changed limit", 90)
	})
}

// A pacer that is closed gives back what it has leased, so that others can use it in the same window.
func TestCloseGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := share(t, 100)
		for range 12 { // the pacer learns to expect this demand
			pass(time.Second)
			s.want(0, 50)
		}
		pass(time.Second + time.Millisecond)
		if u := s.pacers[0].Status(); u.Units-u.Used < 45 || u.Waiting > 0 {
			t.Fatalf("the pacer has leased %d units and used %d; %d wait", u.Units, u.Used, u.Waiting)
		}
		s.pacers[0].Close()
		s.want(1, 100)
		pass(990 * time.Millisecond)
		if got := s.pacers[1].Status().Granted; got < 95 {
			t.Errorf("in the rest of the window %d of 100 units were granted", got)
		}
	})
}

// A waker may close the pacer, also one that is called because the ledger has leased units.
func TestWakerClosesShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := share(t, 100)
		s.want(0, 20)
		pass(4 * time.Second)
		s.ledger.answerAfter(time.Millisecond) // when all three wait
		wakeUps := 0
		for range 3 { // nobody expects these, so their units are leased at once
			_, err := s.pacers[1].Enqueue("a", 1, pacer.Forever, pacer.WakerFunc(func(pacer.Permit, error) {
				wakeUps++
				s.pacers[1].Close()
			}))
			if err != nil {
				t.Fatal(err)
			}
		}
		pass(time.Second)
		if wakeUps != 3 {
			t.Errorf("%d wakers of 3 were called", wakeUps)
		}
		if _, err := s.pacers[1].Acquire(t.Context(), "a", 1); !errors.Is(err, pacer.ErrClosed) {
			t.Errorf("after Close: %v, want ErrClosed", err)
		}
	})
}

func TestSharedRefuses(t *testing.T) {
	good := func() pacer.Config {
		return pacer.Config{Limit: pacer.PerSecond(10), Shared: &pacer.Shared{Ledger: pacer.NewMemoryLedger()}}
	}
	for name, bend := range map[string]func(*pacer.Config){
		"no ledger":       func(c *pacer.Config) { c.Shared.Ledger = nil },
		"a short period":  func(c *pacer.Config) { c.Limit.Period = 99 * time.Millisecond },
		"a period of day": func(c *pacer.Config) { c.Limit.Period = 24 * time.Hour },
	} {
		c := good()
		bend(&c)
		if _, err := pacer.New(c); !errors.Is(err, pacer.ErrConfig) {
			t.Errorf("%s: %v, want ErrConfig", name, err)
		}
	}
	alone := open(t, pacer.Config{Limit: pacer.PerSecond(10)})
	if err := alone.SetSharedLimit(t.Context(), 5, time.Now()); !errors.Is(err, pacer.ErrConfig) {
		t.Errorf("SetSharedLimit of a limit that is not shared: %v", err)
	}
	shared := open(t, good())
	for _, units := range []int64{0, -1, pacer.MaxUnits + 1} {
		err := shared.SetSharedLimit(t.Context(), units, time.Now().Add(time.Hour))
		if !errors.Is(err, pacer.ErrConfig) {
			t.Errorf("a shared limit of %d: %v", units, err)
		}
	}
}
