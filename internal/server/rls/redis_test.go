package rls_test

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/server/rls"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// onRedis returns the store chain of a process with a Redis. The clock of that Redis is not the clock of the test.
func onRedis(t *testing.T, server *redistest.Server, leases bool) limit.Store {
	t.Helper()
	store, err := redis.New(t.Context(), redis.Config{Addrs: []string{server.Addr}, Deadline: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	chain, err := resilience.NewChain(resilience.ChainConfig{
		Rates:    resilience.NamedStore{Name: "Redis", Store: store},
		NoLeases: !leases, MaxInstances: 2, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = chain.Close(context.Background())
		_ = store.Close()
	})
	return chain.Fallback
}

// Guarantees that denied hits are counted and hits are given back on Redis, with leases and without, also if its clock
// is months away from that of the service.
func TestCorrectionsOnRedis(t *testing.T) {
	const yaml = "domain: d\ndescriptors:\n  - {key: a, rate_limit: {unit: year, requests_per_unit: 3}}\n" +
		"  - {key: b, rate_limit: {unit: year, requests_per_unit: 5}}\n"
	for _, leases := range []bool{true, false} {
		server := redistest.Start(t)
		w := newWorld(t, rls.Config{Store: onRedis(t, server, leases), CountDenied: true}, yaml)
		for _, want := range []string{"ok: ok 2 ok 4", "ok: ok 1 ok 3", "ok: ok 0 ok 2", "over: over 0 ok 1",
			"over: over 0 ok 0", "over: over 0 over 0"} {
			w.want(want, descriptor("a=x"), descriptor("b=x"))
		}
		w.want("over: over 0", descriptorWithHits("b=x", 0))
		w.want("ok: ok 3", negative("b=x", 4))

		w = newWorld(t, rls.Config{Store: onRedis(t, server, leases)}, yaml)
		w.want("ok: ok 5", negative("b=y", 2)) // the counter does not exist yet
		w.want("ok: ok 1", descriptorWithHits("b=y", 4))
		w.want("ok: ok 4", negative("b=y", 3))
		w.want("ok: ok 5", negative("b=y", 7))
	}
}

// Guarantees that two processes that lease from one Redis never admit more than either of the two limits of a request,
// and in the end admit all of the smaller one.
func TestLeasesAllOrNothing(t *testing.T) {
	const yaml = "domain: d\ndescriptors: [{key: a, rate_limit: {unit: year, requests_per_unit: 400}}, " +
		"{key: b, rate_limit: {unit: year, requests_per_unit: 250}}]"
	server := redistest.Start(t)
	var both []*world
	for range 2 {
		w := newWorld(t, rls.Config{Store: onRedis(t, server, true)}, yaml)
		w.now = time.Now()
		both = append(both, w)
	}
	var admitted atomic.Int64
	ask := func(w *world, i int) {
		a, b := descriptor("a=x"), descriptor("b=x")
		if i%2 == 0 {
			a, b = b, a
		}
		if w.ask(a, b).GetOverallCode() == rlsv3.RateLimitResponse_OK {
			admitted.Add(1)
		}
	}
	var group sync.WaitGroup
	for _, w := range both {
		for range 4 {
			group.Go(func() {
				for i := range 100 {
					ask(w, i)
				}
			})
		}
	}
	group.Wait()
	// A denied process remembers the denial for a moment, and then gets the units that the other process has given
	// back.
	for end := time.Now().Add(20 * time.Second); admitted.Load() < 250 && time.Now().Before(end); {
		for i, w := range both {
			w.now = time.Now()
			ask(w, i)
		}
	}
	for i := range 100 {
		ask(both[i%2], i)
	}
	if n := admitted.Load(); n != 250 {
		t.Errorf("admitted %d, want 250", n)
	}
}
