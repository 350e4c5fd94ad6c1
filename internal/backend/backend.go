// Package backend is what a store that users open hands to the library: its counters, and how they are best used.
package backend

import "github.com/sluicelimits/sluice/internal/limiter/limit"

// Backend is an open store.
type Backend struct {
	Name     string // in errors and in the log
	Counters limit.Store

	// Metered says that each write costs money. Attempts of addresses are then counted in memory, process by process.
	Metered bool
}
