package redisstore_test

import (
	"context"
	"log"
	"time"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/pacer"
	"github.com/sluicelimits/sluice/redisstore"
)

// It needs a Redis and a plans file, so it is compiled and not run; sluice's own tests run the same on a Redis of
// theirs.
func Example() {
	ctx := context.Background()
	store, err := redisstore.New(ctx, redisstore.Config{Addrs: []string{"127.0.0.1:6379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = store.Close() }()

	limiter, err := sluice.New(sluice.Config{Plans: []string{"plans.yaml"}, Store: store, MaxInstances: 20})
	if err != nil {
		log.Print(err)
		return
	}
	defer func() { _ = limiter.Close(ctx) }()
	log.Print(limiter.Decide(ctx, sluice.Identity{Tenant: "acme"}, sluice.Request{}).Allowed)
}

// Processes that call the same provider share its limit. It needs a Redis, so it is compiled and not run.
func ExampleStore_Ledger() {
	store, err := redisstore.New(context.Background(), redisstore.Config{Addrs: []string{"127.0.0.1:6379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = store.Close() }()

	p, err := pacer.New(pacer.Config{
		Limit:  pacer.PerSecond(1000),
		Guard:  pacer.Guard{ClockError: 20 * time.Millisecond, MaxDelay: 50 * time.Millisecond},
		Shared: &pacer.Shared{Ledger: store.Ledger(), Key: "provider"},
	})
	if err != nil {
		log.Print(err)
		return
	}
	defer p.Close()
	log.Print(p.Acquire(context.Background(), "reports", 1))
}
