// Package soak lets the random tests of the repository run longer than usual: `make soak` sets SLUICE_SOAK. Only tests
// import it.
package soak

import (
	"fmt"
	"os"
	"strconv"
)

// Times returns n, the usual number of seeds or scripts of a random test, multiplied by the environment variable
// SLUICE_SOAK, an integer from 1 to 1,000. Without the variable it returns n. It panics if the variable is anything
// else.
func Times[N int | uint64](n N) N {
	text, set := os.LookupEnv("SLUICE_SOAK")
	if !set {
		return n
	}
	factor, err := strconv.Atoi(text)
	if err != nil || factor < 1 || factor > 1000 {
		panic(fmt.Sprintf("SLUICE_SOAK=%q is not an integer from 1 to 1000", text))
	}
	return n * N(factor)
}
