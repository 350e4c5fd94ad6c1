// Package store holds the stores of counters, one folder each. The package itself has [Backend], which is how a store
// that users open reaches the library.
package store

import "github.com/sluicelimits/sluice/internal/limiter/limit"

// Backend is an open store.
type Backend struct {
	Name     string // in errors and in the log
	Counters limit.Store

	// Metered says that each write costs money. Attempts of addresses are then counted in memory, process by process.
	Metered bool
}
