package fleet

import (
	"math"
	"runtime/debug"
)

const (
	// collectAt is the GOGC of a simulation: memory is collected when it has grown by so many percent. A simulation
	// makes little garbage and has a heap of up to a million owners, which each collection has to read.
	collectAt = 400

	counterBytes = 600     // of a counter and its owner
	otherBytes   = 1 << 30 // what a simulation takes beside its counters
)

// TuneCollector has the garbage collector of this process run as seldom as suits a simulation with so many counters,
// and returns a function that restores its settings. The process takes no more memory than it would take with the usual
// settings while all counters are in use: twice what is in use.
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
