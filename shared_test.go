package sluice_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/dynamodbstore"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
	"github.com/sluicelimits/sluice/redisstore"
)

// patient is a deadline for tests of other things than deadlines, on a busy machine.
const patient = 20 * time.Second

func openRedis(t testing.TB, addr string) *redisstore.Store {
	t.Helper()
	s, err := redisstore.New(context.Background(), redisstore.Config{Addrs: []string{addr}, Deadline: patient})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Ping(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// daily is the plan of a limit that two limiters share: its window does not end while a test runs, whatever the time
// is.
const daily = "plans: [ { id: p, limits: [ { id: total, algorithm: token_bucket, rate: 1, period: 1h, burst: 500 } ] " +
	"} ]\ntenants: [ { id: acme, plan: p } ]\n"

// checkTwoLimiters opens two limiters, each with a store of its own, like two processes, and checks that together they
// admit what one limiter may. Up to without of the 2,000 requests may be decided without the store: it does not count
// what it does not answer in time.
func checkTwoLimiters(t *testing.T, goroutines int, without int64, store func() sluice.Store) {
	for _, leases := range []bool{true, false} {
		t.Run(fmt.Sprintf("leases=%t", leases), func(t *testing.T) {
			// stores outlive tests, so each test has a limit of its own
			text := strings.ReplaceAll(daily, "id: total", fmt.Sprintf("id: total%d-%t", time.Now().UnixNano(), leases))
			var two []*sluice.Limiter
			for range 2 {
				two = append(two, open(t, text, func(c *sluice.Config) {
					c.Store, c.NoLeases, c.MaxInstances, c.Now = store(), !leases, 2, time.Now
				}))
			}
			n := hammer(t, goroutines, two...)
			if n.allowed > 500 || n.allowed == 0 || !leases && n.allowed+n.owed < 500 || n.without > without {
				// With leases, one limiter may hold units that the other one is asked for.
				t.Errorf("two limiters: %+v; want 500 together, at most %d without the store", n, without)
			}
		})
	}
}

// Guarantees that two processes with one Redis keep one limit together.
func TestSharedRedis(t *testing.T) {
	addr := redistest.Start(t).Addr
	checkTwoLimiters(t, 64, 0, func() sluice.Store { return openRedis(t, addr) })
}

// Guarantees that two processes with one table keep one limit together.
func TestSharedDynamoDB(t *testing.T) {
	client, done := dynamodbtest.Connect(dynamodbtest.Need(t))
	t.Cleanup(done)
	if err := dynamodbstore.Create(t.Context(), client, addressTable); err != nil {
		t.Fatal(err)
	}
	// One goroutine for each limiter: if more writers change one item at once than it can take, the store fails, and
	// the fallback limiter decides. On a busy machine this happens with two writers, too.
	checkTwoLimiters(t, 2, 40, func() sluice.Store {
		s, err := dynamodbstore.New(dynamodbstore.Config{Client: client, Table: addressTable, Namespace: t.Name(),
			Timeout: patient})
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

// Guarantees that a store that fails causes no error: the fallback limiter keeps the limits, decisions say so, and
// Close returns in time. A limit with onStoreFailure closed denies with a wait.
func TestRedisGone(t *testing.T) {
	server := redistest.Start(t)
	text := "plans: [ { id: p, limits: [ { id: l, algorithm: fixed_window, threshold: 10, period: 1h } ] }, " +
		"{ id: strict, limits: [ { id: l, algorithm: fixed_window, threshold: 10, period: 1h, onStoreFailure: closed " +
		"} ] } ]\n" +
		"tenants: [ { id: acme, plan: p }, { id: strict, plan: strict } ]\n"
	store := openRedis(t, server.Addr)
	l, err := sluice.New(sluice.Config{PlansData: []byte(text), Store: store, NoLeases: true, Log: quiet,
		MaxInstances: 5})
	if err != nil {
		t.Fatal(err)
	}
	if d := l.Decide(t.Context(), acme, sluice.Request{}); !d.Allowed || d.StoreFailed {
		t.Fatalf("with Redis: %+v", d)
	}
	server.Kill()
	allowed := 0
	for range 50 {
		d := l.Decide(t.Context(), acme, sluice.Request{})
		if !d.StoreFailed || !d.Allowed && d.Reason != sluice.Limited {
			t.Fatalf("without Redis: %+v", d)
		}
		if d.Allowed {
			allowed++
		}
	}
	if allowed == 0 || allowed > 20 {
		t.Errorf("%d of 50 admitted without Redis, want some, and at most twice the limit of 10", allowed)
	}
	if d := l.Decide(t.Context(), sluice.Identity{Tenant: "strict"},
		sluice.Request{}); d.Reason != sluice.Unavailable || d.RetryAfter != time.Second {
		t.Errorf("a limit with onStoreFailure closed, without Redis: %+v", d)
	}
	if n := l.StoreFailures(); n != 51 {
		t.Errorf("%d failures, want 51", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_ = l.Close(ctx) // it cannot give leases back to the server; the test is that it returns
	if ctx.Err() != nil {
		t.Error("Close waited for a server that is gone")
	}
}

// Guarantees that an invalid store is refused when it is opened, with an error that names the field.
func TestStoreErrors(t *testing.T) {
	if _, err := redisstore.New(t.Context(), redisstore.Config{}); err == nil ||
		!strings.Contains(err.Error(), "no address") {
		t.Errorf("redisstore.New without an address: %v", err)
	}
	if _, err := dynamodbstore.New(dynamodbstore.Config{Table: "t"}); err == nil ||
		!strings.Contains(err.Error(), "Client") {
		t.Errorf("dynamodbstore.New without a client: %v", err)
	}
	if _, err := sluice.New(sluice.Config{PlansData: []byte(daily), Quotas: &redisstore.Store{}}); err == nil ||
		!strings.Contains(err.Error(), "Quotas") {
		t.Errorf("Quotas without Store: %v", err)
	}
}
