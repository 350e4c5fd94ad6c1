// Package soak says how often the random tests of the repository repeat: fewer times in a short run, and more often
// than usual in a soak, for which `make soak` sets SLUICE_SOAK. Only tests import it.
package soak

import (
	"fmt"
	"os"
	"strconv"
	"testing"
)

// shortPart is which part of the usual repetitions a short run makes: one in ten. Under the race detector tests run
// short: it makes what only computes seven times as slow, and seeds that one goroutine tries show no races.
const shortPart = 10

// Times returns how often a random test repeats that usually repeats n times, n at least 1: n times the environment
// variable SLUICE_SOAK, an integer from 1 to 1,000. Without the variable it returns n or, in a short run (go test
// -short), a tenth of n, at least 1. It panics if the variable is anything else.
func Times[N int | uint64](n N) N {
	text, set := os.LookupEnv("SLUICE_SOAK")
	switch {
	case !set && testing.Short():
		return max(1, n/shortPart)
	case !set:
		return n
	}
	factor, err := strconv.Atoi(text)
	if err != nil || factor < 1 || factor > 1000 {
		panic(fmt.Sprintf("SLUICE_SOAK=%q is not an integer from 1 to 1000", text))
	}
	return n * N(factor)
}
