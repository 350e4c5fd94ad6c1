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
	// Keep returns the value that the store keeps under the name. If there is none, the store keeps the given value
	// from then on, and Keep returns that one. If several processes call Keep at the same time, it returns the same
	// value to all of them. place says where the value is, for operators.
	Keep(ctx context.Context, name string, value []byte) (kept []byte, place string, err error)
}
