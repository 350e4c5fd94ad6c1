//go:build race

package soak

// RaceEnabled reports whether the race detector is on. It allocates, and drops items of a sync.Pool at random, so that
// allocations and memory cannot be measured under it.
const RaceEnabled = true
