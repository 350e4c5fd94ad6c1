package fleet

import (
	"math"
	"runtime/debug"
)

const (
	// collectAt is the value of GOGC during a simulation: the garbage collector runs when the heap has grown by this
	// many percent. The default of 100 would run it too often, because a simulation makes little garbage, and its heap
	// of up to a million owners takes long to read.
	collectAt = 400

	counterBytes = 600     // memory of a counter and its owner: the bound that docs/scale.md states and a test measures
	otherBytes   = 1 << 30 // memory that a simulation may take in addition to its counters
)

// TuneCollector lets the garbage collector of this process run less often, as suits a simulation with the given number
// of counters. It returns a function that restores the settings. A memory limit keeps the process from taking more than
// twice the memory that is in use when all counters are; with the default settings it could take as much.
func TuneCollector(maxCounters int) (restore func()) {
	limit := debug.SetMemoryLimit(-1)
	most := int64(math.MaxInt64)
	if maxCounters < math.MaxInt64/(4*counterBytes) {
		most = 2 * (int64(maxCounters)*counterBytes + otherBytes)
	}
	debug.SetMemoryLimit(min(limit, most))
	percent := debug.SetGCPercent(collectAt)
	return func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	}
}
