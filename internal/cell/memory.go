package cell

import (
	"runtime/debug"
	"strconv"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
)

// memory says how the memory of a Lambda function is divided. Everything that grows with the number of users is
// bounded, so that a small function does not run out of memory and is killed.
type memory struct {
	all       int64 // bytes; Go may use at most four fifths of them
	documents int64 // bytes of the configuration
	addresses int64 // bytes of the counters of a small cell's ipLimits
	backstop  int64 // bytes of the counters of the fallback limiter
	leases    int   // number of counters of which units may be leased
}

const (
	leastMemory    = 128 << 20 // the smallest Lambda function
	leaseBytes     = 512       // of a counter with its owner, about
	mostDocuments  = 64 << 20  // bytes
	mostAddresses  = 16 << 20  // bytes; about 100,000 addresses
	collectedParts = 5         // one fifth is left for memory that Go does not count

	// The divisors of the function's memory: the configuration may have 1/documentsPart of it, and so on, together
	// 5/16. The rest is for the program, for calls in progress, and for garbage.
	documentsPart = 8
	addressesPart = 16
	backstopPart  = 16
	leasesPart    = 16

	// garbagePercent is how much garbage there may be, relative to live memory, as long as the memory limit allows it.
	// With Go's default, a function with a few MB of live memory collects every few MB, which takes a fifth of a
	// call's processor time.
	garbagePercent   = 400
	goGarbagePercent = 100
)

// divide reads AWS_LAMBDA_FUNCTION_MEMORY_SIZE, in MB. If the text is not a number, it assumes the smallest function.
func divide(mb string) memory {
	all := int64(leastMemory)
	if n, err := strconv.ParseInt(mb, 10, 32); err == nil {
		all = max(n<<20, leastMemory)
	}
	return memory{
		all: all, documents: min(all/documentsPart, mostDocuments), addresses: min(all/addressesPart, mostAddresses),
		backstop: min(all/backstopPart, resilience.DefaultFallbackBytes),
		leases:   int(min(all/leasesPart/leaseBytes, lease.DefaultMaxCounters)),
	}
}

// setLimits sets the limits of Go's garbage collector. It then collects more often when little memory is left.
// Otherwise it collects less often, since a Lambda function has its memory to itself and keeps little in it. If the
// operator has set GOGC, that value stays in force.
func (m memory) setLimits() {
	debug.SetMemoryLimit(m.all / collectedParts * (collectedParts - 1))
	if theirs := debug.SetGCPercent(garbagePercent); theirs != goGarbagePercent {
		debug.SetGCPercent(theirs)
	}
}
