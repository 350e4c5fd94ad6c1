package pacer_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/pacer"
)

func open(tb testing.TB, c pacer.Config) *pacer.Pacer {
	tb.Helper()
	p, err := pacer.New(c)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Close)
	return p
}

func TestNewRefuses(t *testing.T) {
	good := pacer.PerSecond(10)
	for _, tt := range []struct {
		name string
		c    pacer.Config
		want string // part of the error
	}{
		{"no limit", pacer.Config{}, "0 units"},
		{"a negative limit", pacer.Config{Limit: pacer.PerSecond(-1)}, "-1 units"},
		{"a limit that is too large", pacer.Config{Limit: pacer.PerSecond(pacer.MaxUnits + 1)}, "1099511627777 units"},
		{"no period", pacer.Config{Limit: pacer.Limit{Units: 1}}, "period of 0s"},
		{"a period that is too long", pacer.Config{Limit: pacer.Limit{Units: 1, Period: math.MaxInt64}}, "period"},
		{"a negative guard", pacer.Config{Limit: good, Guard: pacer.Guard{MaxDelay: -1}}, "negative"},
		{"a guard that leaves nothing", pacer.Config{Limit: good, Guard: pacer.Guard{ClockError: 400 * time.Millisecond,
			MaxDelay: 200 * time.Millisecond}}, "leaves out 1s of each window"},
		{"a guard that overflows", pacer.Config{Limit: good, Guard: pacer.Guard{ClockError: math.MaxInt64}}, "guard"},
		{"no room for anybody", pacer.Config{Limit: good, MaxWaiting: -1}, "MaxWaiting of -1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := pacer.New(tt.c)
			if p != nil || !errors.Is(err, pacer.ErrConfig) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("New = %v, %v, want an error with %q", p, err, tt.want)
			}
		})
	}
}

// A bad argument is an error, whether requests wait or not, and changes nothing.
func TestRefusesBadArguments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, pacer.Config{Limit: pacer.PerSecond(10), MaxWaiting: 2})
		w := pacer.WakerFunc(func(pacer.Permit, error) {})
		refusals := func() {
			t.Helper()
			for _, tt := range []struct {
				cost int64
				want error
			}{
				{0, pacer.ErrCost}, {-1, pacer.ErrCost}, {math.MinInt64, pacer.ErrCost}, {math.MaxInt64, pacer.ErrCost},
				{pacer.MaxUnits + 1, pacer.ErrCost}, {11, pacer.ErrNever}, {pacer.MaxUnits, pacer.ErrNever},
			} {
				if _, err := p.Acquire(context.Background(), "a", tt.cost); !errors.Is(err, tt.want) {
					t.Errorf("Acquire of %d: %v, want %v", tt.cost, err, tt.want)
				}
				if _, err := p.Enqueue("a", tt.cost, pacer.Forever, w); !errors.Is(err, tt.want) {
					t.Errorf("Enqueue of %d: %v, want %v", tt.cost, err, tt.want)
				}
			}
			for _, weight := range []int64{0, -1, math.MinInt64, pacer.MaxWeight + 1, math.MaxInt64} {
				if err := p.SetWeight("a", weight); !errors.Is(err, pacer.ErrWeight) {
					t.Errorf("SetWeight(%d): %v", weight, err)
				}
			}
			for _, l := range []pacer.Limit{{}, pacer.PerSecond(0), pacer.PerSecond(-5), {Units: 5, Period: -1}} {
				if err := p.SetLimit(l); !errors.Is(err, pacer.ErrConfig) {
					t.Errorf("SetLimit(%v): %v", l, err)
				}
			}
		}
		refusals()
		mustAcquire(t, p, "a", 10)
		for range 2 {
			if _, err := p.Enqueue("a", 1, pacer.Forever, w); err != nil {
				t.Fatal(err)
			}
		}
		refusals()
		if _, err := p.Enqueue("a", 1, pacer.Forever, w); !errors.Is(err, pacer.ErrFull) {
			t.Errorf("the third of two that may wait: %v, want ErrFull", err)
		}
		if s := p.Status(); s.Waiting != 2 || s.Used != 10 || s.Limit != pacer.PerSecond(10) {
			t.Errorf("bad arguments changed something: %+v", s)
		}
	})
}

func mustAcquire(t *testing.T, p *pacer.Pacer, key string, cost int64) pacer.Permit {
	t.Helper()
	permit, err := p.Acquire(context.Background(), key, cost)
	if err != nil {
		t.Fatal(err)
	}
	return permit
}

// A request that cannot be served in time fails at once, and not when its time is over.
func TestLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, pacer.Config{Limit: pacer.PerSecond(10)})
		began := time.Now()
		mustAcquire(t, p, "a", 10)
		ctx, cancel := context.WithTimeout(context.Background(), 999*time.Millisecond)
		defer cancel()
		_, err := p.Acquire(ctx, "a", 1)
		var late *pacer.LateError
		if !errors.As(err, &late) || !errors.Is(err, context.DeadlineExceeded) || late.Late != time.Millisecond ||
			!late.Earliest.Equal(began.Add(time.Second)) {
			t.Fatalf("Acquire: %v", err)
		}
		for _, part := range []string{`"a"`, "1 units", "1ms too late"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("the error %q does not say %q", err, part)
			}
		}
		if time.Since(began) != 0 {
			t.Errorf("it took %s to say so", time.Since(began))
		}
		if s := p.Status(); s.Refused != 1 || s.Waiting != 0 {
			t.Errorf("status %+v, want one that was refused and nobody waiting", s)
		}
		if _, err := p.Enqueue("a", 1, 0, nil); !errors.As(err, &late) {
			t.Errorf("without any wait: %v, want a LateError", err)
		}
		ended, end := context.WithCancelCause(context.Background())
		end(errors.New("the user left"))
		if _, err := p.Acquire(ended, "a", 1); err == nil || err.Error() != "the user left" {
			t.Errorf("Acquire after the end of its context: %v, want the cause", err)
		}
	})
}

// Requests wait for windows far in the future without an overflow.
func TestHugeBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, pacer.Config{Limit: pacer.Limit{Units: pacer.MaxUnits, Period: pacer.MaxPeriod}})
		mustAcquire(t, p, "a", pacer.MaxUnits)
		var last time.Time
		for range 1000 {
			ticket, err := p.Enqueue("a", pacer.MaxUnits, pacer.Forever, pacer.WakerFunc(func(pacer.Permit, error) {}))
			if err != nil {
				t.Fatal(err)
			}
			if ticket.Earliest.Before(last) {
				t.Fatalf("a ticket could be served at %s, and the one before it at %s", ticket.Earliest, last)
			}
			last = ticket.Earliest
		}
		var late *pacer.LateError
		if _, err := p.Enqueue("a", 1, time.Hour, nil); !errors.As(err, &late) {
			t.Errorf("behind a thousand years of others: %v, want a LateError", err)
		}
	})
}

// A higher limit serves waiting requests at once. With a lower one, a request that costs more fails when it is next.
func TestSetLimitReachesWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, pacer.Config{Limit: pacer.Limit{Units: 10, Period: time.Hour}})
		mustAcquire(t, p, "a", 10)
		var got []string
		for i, cost := range []int64{10, 3} {
			w := pacer.WakerFunc(func(_ pacer.Permit, err error) { got = append(got, fmt.Sprint(i, " ", err)) })
			if _, err := p.Enqueue("a", cost, pacer.Forever, w); err != nil {
				t.Fatal(err)
			}
		}
		setLimit := func(units int64, want ...string) {
			t.Helper()
			if err := p.SetLimit(pacer.Limit{Units: units, Period: time.Hour}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("with a limit of %d: %q, want %q", units, got, want)
			}
			got = nil
		}
		setLimit(5, "0 pacer: cost above the limit: 10 units, and the limit is 5 per 1h0m0s")
		setLimit(12)
		setLimit(13, "1 <nil>")
	})
}

// While two keys both wait, the units that they get per weight differ by at most one cost of each. This holds in every
// interval, with any weights and costs, and also after one of the keys had no requests for a while.
func TestFairShares(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 7))
			p := open(t, pacer.Config{Limit: pacer.Limit{Units: 100, Period: 10 * time.Millisecond}})
			const most = 20 // units of a cost
			weights := map[string]int64{"a": 1 + random.Int64N(9), "b": 1 + random.Int64N(1000), "c": pacer.MaxWeight}
			granted := map[string]float64{}
			lowest, highest := 0.0, 0.0 // difference between a and b while both wait
			watching := false
			var mu sync.Mutex // held to use the variables above
			draw := func() int64 { return 1 + random.Int64N(most) }
			var enqueue func(key string, cost int64)
			enqueue = func(key string, cost int64) {
				_, err := p.Enqueue(key, cost, pacer.Forever, pacer.WakerFunc(func(_ pacer.Permit, err error) {
					if err != nil {
						return
					}
					mu.Lock()
					granted[key] += float64(cost) / float64(weights[key])
					if d := granted["a"] - granted["b"]; watching {
						lowest, highest = min(lowest, d), max(highest, d)
					}
					next := draw()
					mu.Unlock()
					enqueue(key, next)
				}))
				if err != nil && !errors.Is(err, pacer.ErrClosed) {
					t.Error(err)
				}
			}
			for key, weight := range weights {
				if err := p.SetWeight(key, weight); err != nil {
					t.Fatal(err)
				}
			}
			for range 50 { // so many that none of the two ever runs empty
				enqueue("a", most)
				enqueue("c", most)
			}
			pass(time.Second)
			for range 50 {
				enqueue("b", most) // which was away for long
			}
			mu.Lock()
			watching = true
			d := granted["a"] - granted["b"]
			lowest, highest = d, d
			mu.Unlock()
			pass(10 * time.Second)
			mu.Lock()
			defer mu.Unlock()
			if bound := most/float64(weights["a"]) + most/float64(weights["b"]); highest-lowest > bound+1e-6 {
				t.Errorf("seed %d: with weights %v a and b drift apart by %.3f, want at most %.3f", seed, weights,
					highest-lowest, bound)
			}
			if granted["b"] == 0 {
				t.Errorf("seed %d: b got nothing", seed)
			}
		})
	}
}

// With a guard, no window of the provider ever counts more than the limit. This holds for all differences of the clocks
// within the guard, and for requests that are sent at any time until UseBy. The provider counts by itself.
func TestNeverOverOnArrival(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 11))
			guard := pacer.Guard{ClockError: 15 * time.Millisecond, MaxDelay: 20 * time.Millisecond}
			limit := pacer.Limit{Units: 50, Period: 100 * time.Millisecond}
			p := open(t, pacer.Config{Limit: limit, Guard: guard})
			// the provider's clock
			ahead := time.Duration(random.Int64N(int64(2*guard.ClockError+1))) - guard.ClockError
			if seed < 2 {
				ahead = guard.ClockError * time.Duration(1-2*int64(seed)) // the two extremes
			}
			counted := map[int64]int64{}
			var mu sync.Mutex
			arrive := func() {
				mu.Lock()
				defer mu.Unlock()
				counted[time.Now().Add(ahead).UnixNano()/int64(limit.Period)]++
			}
			w := pacer.WakerFunc(func(permit pacer.Permit, err error) {
				if err != nil {
					return
				}
				var sent time.Duration
				if random.IntN(2) == 0 {
					sent = time.Duration(random.Int64N(int64(time.Until(permit.UseBy())) + 1))
				}
				delay := time.Duration(random.Int64N(int64(guard.MaxDelay)))
				time.AfterFunc(sent+delay, arrive)
			})
			for range 2000 {
				if _, err := p.Enqueue("a", 1, pacer.Forever, w); err != nil {
					t.Fatal(err)
				}
			}
			pass(10 * time.Second)
			mu.Lock()
			defer mu.Unlock()
			var sum int64
			for window, n := range counted {
				sum += n
				if n > limit.Units {
					t.Errorf("seed %d, clock %s ahead: window %d counted %d, want at most %d", seed, ahead, window, n,
						limit.Units)
				}
			}
			if s := p.Status(); sum != 2000 || s.Waiting != 0 {
				t.Errorf("seed %d: %d arrived and %d wait", seed, sum, s.Waiting)
			}
		})
	}
}

// No units are lost in a race between a grant and the end of a context, and each request gets an answer. All granted
// units are spent, given back, or lost with their window.
func TestRaces(t *testing.T) {
	p := open(t, pacer.Config{Limit: pacer.Limit{Units: 50, Period: time.Millisecond}})
	var spent, released, canceled atomic.Int64
	var all sync.WaitGroup
	for worker := range 16 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(worker), 5))
			for range 300 {
				ctx, cancel := context.WithTimeout(context.Background(),
					time.Duration(random.IntN(2000))*time.Microsecond)
				cost := 1 + random.Int64N(5)
				permit, err := p.Acquire(ctx, fmt.Sprint(worker%4), cost)
				cancel()
				switch {
				case errors.Is(err, context.DeadlineExceeded):
					canceled.Add(1)
				case err != nil:
					t.Error(err)
				case random.IntN(2) == 0:
					permit.Release()
					released.Add(cost)
				default:
					spent.Add(cost)
				}
			}
		})
	}
	all.Wait()
	s := p.Status()
	if s.Waiting != 0 || s.Granted != spent.Load()+released.Load() || s.Returned+s.Lost != released.Load() {
		t.Errorf("%d spent, %d released, %d canceled; status %+v", spent.Load(), released.Load(), canceled.Load(), s)
	}
	if s.Refused+s.Canceled > canceled.Load() || spent.Load() == 0 || canceled.Load() == 0 {
		t.Errorf("%d spent, %d canceled, of which the pacer refused %d and canceled %d", spent.Load(), canceled.Load(),
			s.Refused, s.Canceled)
	}
}

// A ticket can be canceled once, also if another ticket has taken its place in the meantime.
func TestCancelTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, pacer.Config{Limit: pacer.Limit{Units: 1, Period: time.Hour}})
		mustAcquire(t, p, "a", 1)
		w := pacer.WakerFunc(func(pacer.Permit, error) {})
		first, err := p.Enqueue("a", 1, pacer.Forever, w)
		if err != nil || !p.Cancel(first) || p.Cancel(first) {
			t.Fatalf("the first ticket: %v, or it was canceled twice", err)
		}
		if _, err := p.Enqueue("a", 1, pacer.Forever, w); err != nil {
			t.Fatal(err)
		}
		if p.Cancel(first) || p.Cancel(pacer.Ticket{}) {
			t.Error("an old ticket canceled a new one")
		}
		if n := p.Status().Waiting; n != 1 {
			t.Errorf("%d wait, want 1", n)
		}
	})
}

// If a request cost more than was granted, others get less in the window. A permit gives nothing back twice.
func TestSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, pacer.Config{Limit: pacer.PerSecond(10)})
		used := func(want int64) {
			t.Helper()
			if got := p.Status().Used; got != want {
				t.Errorf("%d units are used, want %d", got, want)
			}
		}
		permit := mustAcquire(t, p, "a", 4)
		permit.Settle(6)
		used(6)
		permit.Settle(-1)
		used(0)
		permit.Release()
		used(0)
		permit = mustAcquire(t, p, "a", 4)
		permit.Settle(math.MaxInt64)
		used(pacer.MaxUnits)
		pass(time.Second)
		permit.Release() // of another window
		used(0)
		s := p.Status()
		if s.Granted != 8 || s.Returned != 6 || s.Excess != 2+pacer.MaxUnits-4 || s.Lost != pacer.MaxUnits {
			t.Errorf("counts %+v", s.Counts)
		}
		var none pacer.Permit
		none.Release()
		if !none.UseBy().IsZero() || none.Cost() != 0 {
			t.Error("the zero Permit holds something")
		}
	})
}

// Close fails all requests that wait, and all that come later.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, pacer.Config{Limit: pacer.Limit{Units: 1, Period: time.Hour}})
		mustAcquire(t, p, "a", 1)
		closed := 0
		for i := range 100 {
			_, err := p.Enqueue(fmt.Sprint(i%7), 1, pacer.Forever, pacer.WakerFunc(func(_ pacer.Permit, err error) {
				if errors.Is(err, pacer.ErrClosed) {
					closed++
				}
			}))
			if err != nil {
				t.Fatal(err)
			}
		}
		p.Close()
		if _, err := p.Acquire(context.Background(), "a", 1); closed != 100 || !errors.Is(err, pacer.ErrClosed) {
			t.Errorf("%d of 100 were told that the pacer is closed; afterwards Acquire: %v", closed, err)
		}
	})
}

// A waker may use the pacer.
func TestWakerCallsPacer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, pacer.Config{Limit: pacer.PerSecond(3)})
		var times []time.Duration
		began := time.Now()
		var again pacer.WakerFunc
		again = func(_ pacer.Permit, err error) {
			times = append(times, time.Since(began))
			if err != nil || len(times) == 7 {
				return
			}
			if _, err := p.Enqueue("a", 1, pacer.Forever, again); err != nil {
				t.Error(err)
			}
		}
		again(pacer.Permit{}, nil)
		pass(5 * time.Second)
		if got, want := fmt.Sprint(times), "[0s 0s 0s 0s 1s 1s 1s]"; got != want {
			t.Errorf("grants at %s, want %s", got, want)
		}
	})
}

// A request that does not have to wait allocates no memory.
func TestAcquireAllocatesNothing(t *testing.T) {
	p := open(t, pacer.Config{Limit: pacer.PerSecond(pacer.MaxUnits)})
	ctx := context.Background()
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := p.Acquire(ctx, "a", 1); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
