package redisstore_test

import (
	"context"
	"log"

	"github.com/sluicelimits/sluice"
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
