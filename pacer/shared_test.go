package pacer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/ledger"
	"github.com/sluicelimits/sluice/pacer"
)

// away is a ledger that can be made unavailable.
type away struct {
	pacer.Ledger
	mu sync.Mutex
	is bool
}

func (a *away) set(is bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.is = is
}

func (a *away) Claim(ctx context.Context, key string, c ledger.Claim) (ledger.Lease, error) {
	a.mu.Lock()
	is := a.is
	a.mu.Unlock()
	if is {
		<-ctx.Done()
		return ledger.Lease{}, ctx.Err()
	}
	return a.Ledger.Claim(ctx, key, c)
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
	s := &three{t: t, ledger: &away{Ledger: pacer.NewMemoryLedger()}, granted: map[int64]int64{}}
	for i := range s.pacers {
		s.pacers[i] = open(t, pacer.Config{Limit: pacer.PerSecond(limit),
			Shared: &pacer.Shared{Ledger: s.ledger, Key: "api"}})
	}
	return s
}

// want makes n requests wait at a pacer.
func (s *three) want(at, n int) {
	s.t.Helper()
	for range n {
		_, err := s.pacers[at].Enqueue("a", 1, pacer.Forever, pacer.WakerFunc(func(_ pacer.Permit, err error) {
			if err == nil {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.granted[time.Now().Unix()]++
			}
		}))
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

// since returns the units that were granted in each second since began.
func (s *three) since(began time.Time, seconds int) (granted []int64) {
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
		for second, n := range s.since(began, 7) {
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
		if got, want := fmt.Sprint(s.since(began, 6)), "[100 100 50 50 50 50]"; got != want {
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
		got := s.since(began, 8)
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

func TestSharedRefuses(t *testing.T) {
	good := func() pacer.Config {
		return pacer.Config{Limit: pacer.PerSecond(10), Shared: &pacer.Shared{Ledger: pacer.NewMemoryLedger()}}
	}
	for name, bend := range map[string]func(*pacer.Config){
		"no ledger":       func(c *pacer.Config) { c.Shared.Ledger = nil },
		"learning":        func(c *pacer.Config) { c.Learning = &pacer.Learning{} },
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
