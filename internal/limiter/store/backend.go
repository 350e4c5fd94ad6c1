// Package store holds the stores of counters, one folder each. The package itself has [Backend], which is how a store
// that users open reaches the library.
package store

import (
	"context"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Backend is an open store.
type Backend struct {
	Name     string // in errors and in the log
	Counters limit.Store
	Keeper   Keeper

	// Metered says that each write costs money. Attempts of addresses are then counted in memory, process by process.
	Metered bool
}

// Keeper keeps values beside the counters, for all processes that share the store. The stores in Redis and DynamoDB
// implement it.
type Keeper interface {
	// Keep returns the value that is stored under a name. If no value is stored yet, Keep stores the given value and
	// returns it. If several processes call Keep at the same time, all of them get the same value. place tells
	// operators where the value is stored.
	Keep(ctx context.Context, name string, value []byte) (kept []byte, place string, err error)
}
