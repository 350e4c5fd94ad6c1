//go:build !race

package soak

// RaceEnabled reports whether the race detector is on.
const RaceEnabled = false
