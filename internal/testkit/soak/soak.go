// Package soak says how often the random tests of the repository repeat: a few times in a short run, more often in
// `make test`, and all their times or a multiple of them in a soak, for which `make soak` and `make test SOAK=1` set
// SLUICE_SOAK. It also says which tests `make quick`, which sets SLUICE_QUICK, leaves out. Only tests import it.
package soak

import (
	"fmt"
	"os"
	"strconv"
	"testing"
)

// Which part of its repetitions a random test makes outside a soak: one in ten in a short run, otherwise one in four.
// Under the race detector tests run short: it makes what only computes seven times as slow, and seeds that one
// goroutine tries show no races.
const (
	shortPart = 10
	usualPart = 4
)

// The environment variables that make a run a soak, and a quick run.
const (
	variable      = "SLUICE_SOAK"
	quickVariable = "SLUICE_QUICK"
)

// Full reports whether the run is a soak, which tries the largest cases, too. CI makes one.
func Full() bool {
	_, set := os.LookupEnv(variable)
	return set
}

// SkipUnderRace skips a test under the race detector. It is for tests that compute much in one goroutine at a time: the
// race detector makes them many times as slow, and finds nothing. `make test` runs them once more without it.
func SkipUnderRace(tb testing.TB) {
	tb.Helper()
	if RaceEnabled {
		tb.Skip("computes in one goroutine at a time; make test runs it without the race detector")
	}
}

// SkipInQuick skips a test or a case in `make quick`, which is to take a minute for all packages. It is for those that
// take seconds although other cases show most of what they do. All other runs include them.
func SkipInQuick(tb testing.TB) {
	tb.Helper()
	if _, set := os.LookupEnv(quickVariable); set && testing.Short() && !Full() {
		tb.Skip("takes seconds, so make quick leaves it out")
	}
}

// Times returns how often a random test repeats that repeats n times in a soak, n at least 1: n times the environment
// variable SLUICE_SOAK, an integer from 1 to 1,000. Without the variable it returns a quarter of n or, in a short run
// (go test -short), a tenth of n, at least 1. It panics if the variable is anything else.
func Times[N int | uint64](n N) N {
	text, set := os.LookupEnv(variable)
	switch {
	case !set && testing.Short():
		return max(1, n/shortPart)
	case !set:
		return max(1, n/usualPart)
	}
	factor, err := strconv.Atoi(text)
	if err != nil || factor < 1 || factor > 1000 {
		panic(fmt.Sprintf("%s=%q is not an integer from 1 to 1000", variable, text))
	}
	return n * N(factor)
}
