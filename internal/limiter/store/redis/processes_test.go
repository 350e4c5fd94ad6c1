package redis_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
)

// childEnv is the environment variable that makes the test binary a process that charges counters. Its value is
// "algorithm space address", or for spendBudget one of its words in place of the algorithm.
const childEnv = "SLUICE_TEST_CHILD"

const (
	processes  = 4
	goroutines = 8   // goroutines of each process
	tries      = 400 // decisions of each process
	units      = 500
)

func TestMain(m *testing.M) {
	if args := os.Getenv(childEnv); args != "" {
		os.Exit(child(strings.Fields(args)))
	}
	// A pool that has lost its server tries to reach it once a second, until it succeeds or notices that it was closed,
	// which may be a second after Close.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

var (
	acme = limit.Owner{Kind: limit.Tenant, Name: "acme"}
	noon = time.Date(2026, time.March, 2, 12, 0, 0, 0, time.UTC)
)

// tier returns a tier of 500 units that do not become free while a test runs. That of a leaky bucket has one unit, for
// a day.
func tier(a limit.Algorithm) limit.Tier {
	t := limit.Tier{Algorithm: a, Threshold: units, Period: 24 * time.Hour}
	switch a {
	case limit.Quota:
		t.Period, t.Calendar = 0, &limit.Calendar{Every: limit.Year, Location: time.UTC, AnchorDay: 1, AnchorMonth: 1}
	case limit.TokenBucket:
		t.Threshold, t.Burst = 1, units
	case limit.LeakyBucket:
		t.Threshold = 1
	}
	return t
}

// contestedLimits returns the limits that processes charge at the same time: one of the algorithm under test, and wider
// ones.
func contestedLimits(a limit.Algorithm) ([]limit.Charge, error) {
	var charges []limit.Charge
	for _, l := range []limit.Limit{
		{ID: "tight", Tiers: []limit.Tier{tier(a)}},
		{ID: "wide", Tiers: []limit.Tier{{Algorithm: limit.TokenBucket, Threshold: 1, Burst: 10_000,
			Period: time.Hour}}},
		{ID: "route", Per: "endpoint", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 10_000,
			Period: 24 * time.Hour}}},
	} {
		built, err := limit.New(l)
		if err != nil {
			return nil, err
		}
		c := limit.Charge{Limit: built, Cost: 1}
		if built.Per != limit.PerTenant {
			c.Value = limit.ValueOf("GET /")
		}
		charges = append(charges, c)
	}
	return charges, nil
}

// child prints how many decisions of this process were admitted.
func child(args []string) int {
	if _, known := limit.ParseAlgorithm(args[0]); !known {
		if err := spendBudget(args); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	admitted, err := charge(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(os.Stdout, admitted)
	return 0
}

func charge(args []string) (int64, error) {
	a, ok := limit.ParseAlgorithm(args[0])
	if !ok || len(args) != 3 {
		return 0, fmt.Errorf("arguments %q", args)
	}
	charges, err := contestedLimits(a)
	if err != nil {
		return 0, err
	}
	s, err := redis.New(context.Background(), redis.Config{Addrs: args[2:], Deadline: patient})
	if err != nil {
		return 0, err
	}
	defer s.Close()
	s.SetSpace(args[1])
	s.UseCallerClock() // so that no window ends during the test
	var wg sync.WaitGroup
	var admitted atomic.Int64
	errs := make(chan error, goroutines)
	for range goroutines {
		wg.Go(func() {
			var d limit.Decision
			for range tries / goroutines {
				if err := s.Decide(context.Background(), &limit.Request{Owner: acme, Charges: charges}, noon,
					&d); err != nil {
					errs <- err
					return
				}
				if d.Allowed {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return 0, err
	default:
		return admitted.Load(), nil
	}
}

// Guarantees that four operating system processes, which share nothing but the server, together admit exactly what a
// limit allows.
func TestProcesses(t *testing.T) {
	addr := address(t)
	for _, a := range limit.Algorithms() {
		t.Run(a.String(), func(t *testing.T) {
			space := newSpace()
			var total atomic.Int64
			var wg sync.WaitGroup
			for range processes {
				wg.Go(func() {
					cmd := exec.CommandContext(t.Context(), os.Args[0])
					cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s", childEnv, a, space, addr))
					var stderr bytes.Buffer
					cmd.Stderr = &stderr
					out, err := cmd.Output()
					n, convErr := strconv.ParseInt(string(bytes.TrimSpace(out)), 10, 64)
					if err != nil || convErr != nil || stderr.Len() > 0 {
						t.Errorf("a process ended with %v, printed %q, and on its standard error %q", err, out,
							stderr.String())
					}
					total.Add(n)
				})
			}
			wg.Wait()
			want := int64(units)
			if a == limit.LeakyBucket {
				want = 1
			}
			if got := total.Load(); got != want {
				t.Errorf("%d processes admitted %d of %d tries, want %d", processes, got, processes*tries, want)
			}
			charges, err := contestedLimits(a)
			if err != nil {
				t.Fatal(err)
			}
			s := openAt(t, redis.Config{Addrs: []string{addr}})
			s.SetSpace(space)
			var d limit.Decision
			if err := s.Peek(t.Context(), &limit.Request{Owner: acme, Charges: charges}, noon, &d); err != nil {
				t.Fatal(err)
			}
			for i, want := range []int64{0, 10_000 - want, 10_000 - want} {
				if got := d.Results[i].Remaining(); got != want {
					t.Errorf("limit %s: %d remain, want %d", d.Results[i].Limit().ID, got, want)
				}
			}
		})
	}
}
