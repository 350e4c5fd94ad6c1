package redis

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// leasedOwners remembers whose token buckets have leased units. A generated script declines a pack with such a bucket,
// and decide.lua then needs a second round trip. Decisions of these owners therefore run decide.lua at once. Two owners
// may share an element; a decision that runs decide.lua without need is only slower. The zero value is empty.
type leasedOwners [256]atomic.Int64 // when the latest slot of leases ends, µs since 1970

var ownerSeed = maphash.MakeSeed()

// ofOwner returns the element of the owner whose keys begin with prefix.
func (l *leasedOwners) ofOwner(prefix []byte) *atomic.Int64 {
	return &l[maphash.Bytes(ownerSeed, prefix)%uint64(len(l))]
}

// mayHaveLeases reports whether the query's owner may have token buckets with leased units. It compares the caller's
// clock with a time by the server's clock. If the clocks differ, its answer may be wrong for as long as they differ,
// which costs only time.
func (l *leasedOwners) mayHaveLeases(q *query) bool { return l.ofOwner(q.prefix).Load() > q.callerNow }

// note remembers the leases that the query's states have after the decision.
func (l *leasedOwners) note(q *query) {
	var until int64
	q.eachTier(func(i int, t *limit.Tier) {
		if algorithmOf(t).hasMarks {
			until = max(until, q.states[i].TokenBucket().Leased.Until)
		}
	})
	if until > q.callerNow {
		l.ofOwner(q.prefix).Store(until)
	}
}
