//go:build race

package identity_test

// raceEnabled: under the race detector sync.Pool drops items at random, so allocations cannot be counted.
const raceEnabled = true
