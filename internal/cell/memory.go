package cell

import (
	"runtime/debug"
	"strconv"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
)

// memory is how a function's memory is divided: what grows with its users is bounded, so that a small function is not
// killed.
type memory struct {
	all       int64 // bytes, of which Go is to take at most four fifths
	documents int64 // of the configuration
	addresses int64 // of a small cell's ipLimits
	backstop  int64
	leases    int // counters
}

const (
	leastMemory    = 128 << 20 // a Lambda function has
	leaseBytes     = 512       // about, of a counter with its owner
	mostDocuments  = 64 << 20
	mostAddresses  = 16 << 20 // some 100,000 addresses
	documentsPart  = 8
	addressesPart  = 16
	backstopPart   = 16
	leasesPart     = 16
	collectedParts = 5 // of which one is left to what Go does not count

	// garbagePercent is how much garbage there may be beside what is kept, as long as the memory limit allows it. At
	// Go's own, a function that keeps a few MB collects every few MB: a fifth of a call's processor time.
	garbagePercent   = 400
	goGarbagePercent = 100
)

// divide reads AWS_LAMBDA_FUNCTION_MEMORY_SIZE, in MB. Where it says nothing usable the function is taken for the
// smallest.
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

// hold has Go collect garbage sooner where there is little left, and later where there is room: a function has its
// memory to itself, and what it keeps is a small part of it. A GOGC of the operator's own stays.
func (m memory) hold() {
	debug.SetMemoryLimit(m.all / collectedParts * (collectedParts - 1))
	if theirs := debug.SetGCPercent(garbagePercent); theirs != goGarbagePercent {
		debug.SetGCPercent(theirs)
	}
}
