//go:build race

package outage_test

const raceEnabled = true
