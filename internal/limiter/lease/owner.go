package lease

import (
	"slices"
	"sync"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// shardCount is a power of two, and large enough that few of the requests of different owners wait for one lock.
const shardCount = 256

// shard holds the leases of the owners whose hash ends alike, under one lock.
type shard struct {
	mu          sync.Mutex
	store       *Store
	clock       clock.Timeline
	owners      map[limit.Owner]*ownerLeases
	list        []*ownerLeases // the same owners, in an order that does not change by itself
	scarce      []*ownerLeases // that may have scarce counters, see noteScarcity
	receipts    uint64         // ids of receipts that were given out
	stats       Stats          // without Counters and Units
	sweepOwner  int            // index in list, where the sweep goes on
	scarceUntil int64          // when the last lease of a scarce counter ends, see noteScarcity
	marks       [256]uint32    // of owners that were asked for, see seenBefore
	_           [64]byte       // keeps the mutexes of two shards off one cache line
}

// unlocked calls f without the lock, which the caller holds.
func (sh *shard) unlocked(f func()) {
	sh.mu.Unlock()
	defer sh.mu.Lock()
	f()
}

// ownerLeases is what this process holds of one owner's counters. The shard's lock guards it.
//
// Times named t, here and in the other files, are of the shard's clock, a [clock.Timeline]: µs since its first request.
// Times named storeNow are µs since 1970 by the store's clock.
//
// Every decision reads the last fields, and the first ones of the counters, which lie behind the owner (newOwner).
type ownerLeases struct {
	hash         uint64
	sweepCounter int                     // index in counters, where the sweep goes on
	index        map[counterKey]*counter // nil up to scanLimit counters
	isScarce     bool                    // it is in the shard's list of these

	// free is memory for counters that are added next. The counters of one request lie side by side, and those of most
	// owners behind the owner itself (newOwner), so that a decision waits for memory once, and not for each of them.
	free []counter

	owner       limit.Owner
	shard       *shard
	storeOffset int64 // the store's clock minus the shard's, µs, as the last reply had it
	counters    []*counter
	few         [3]*counter // memory for counters; most owners have no more
}

// counterKey tells apart the counters of an owner. Two versions of a plan have the same counter if the tiers have the
// same identity.
type counterKey struct {
	identity string
	value    limit.Value
}

// scanLimit is up to how many counters findCounter scans the list. Measured by
//
//	go test -run '^$' -bench FindCounter ./internal/limiter/lease
//
// a look-up in a map takes 26 ns. A scan takes 18 ns to the last of 4 counters, 32 ns to that of 8 and 44 ns to that of
// 16; on average it ends half-way.
const scanLimit = 8

func (s *Store) hashOwner(o limit.Owner) uint64 {
	const golden = 0x9e3779b97f4a7c15 // 2^64 divided by the golden ratio: spreads the few kinds over all bits
	return s.config.Runtime.HashName(s.seed, o.Name) ^ uint64(o.Kind)*golden
}

// nextID returns a receipt id that no other process and no other shard gives out.
func (o *ownerLeases) nextID() limit.ReceiptID {
	o.shard.receipts++
	return limit.ReceiptID{Hi: o.shard.store.boot, Lo: o.shard.receipts*shardCount + o.hash%shardCount}
}

// findCounter returns the counter, or nil. Most owners' counters lie in the order of their plan: guess is the place
// there.
func (o *ownerLeases) findCounter(t *limit.Tier, v limit.Value, guess int) *counter {
	if guess < len(o.counters) {
		if c := o.counters[guess]; c.tier == t && c.value == v {
			return c
		}
	}
	if o.index != nil {
		return o.index[counterKey{t.Identity(), v}]
	}
	for _, c := range o.counters {
		if c.value == v && (c.tier == t || c.tier.Identity() == t.Identity()) {
			return c
		}
	}
	return nil
}

func (o *ownerLeases) addCounter(t *limit.Tier, v limit.Value) *counter {
	if len(o.free) == 0 {
		o.free = make([]counter, 1)
	}
	c := &o.free[0]
	o.free = o.free[1:]
	c.tier, c.value, c.isHomeQuota = t, v, isHomeQuota(t)
	o.counters = append(o.counters, c)
	if o.index != nil {
		o.index[counterKey{t.Identity(), v}] = c
	} else if len(o.counters) > scanLimit {
		o.index = make(map[counterKey]*counter, 2*len(o.counters))
		for _, c := range o.counters {
			o.index[counterKey{c.tier.Identity(), c.value}] = c
		}
	}
	return c
}

// isChosenByCallers reports whether callers choose how many owners such as this one there are, such as addresses. Most
// of these are asked for once, and a lease for them would only cost memory, and time of the store.
func isChosenByCallers(req *limit.Request) bool {
	return req.Owner.Kind == limit.Address || req.Charges[0].Limit.Scope != ""
}

// seenBefore reports whether the owner with this hash was asked for a short while ago, and remembers it. All shards
// together remember up to 65,536 owners; newer ones take the places of older ones.
func (sh *shard) seenBefore(hash uint64) bool {
	mark, last := uint32(hash>>32), &sh.marks[hash/shardCount%uint64(len(sh.marks))]
	seen := *last == mark
	*last = mark
	return seen
}

// findOrAddOwner returns the owner's leases, and adds them if there are none. It reserves room for those of the
// request's counters that are not held, which the caller adds. Before that it visits a few counters of the shard and
// drops those that are idle. It returns nil if there is no room.
func (s *Store) findOrAddOwner(sh *shard, hash uint64, req *limit.Request, now clock.Instant) *ownerLeases {
	o, missing := sh.countMissing(req)
	// Two visits for each counter that is added: all counters are visited before their number has grown by half. If
	// there is no room, 64 more: a bound on how long one request holds the lock.
	for _, visits := range [...]int{2*missing + 2, 64} {
		if missing == 0 {
			return o
		}
		s.dropIdleCounters(sh, now, visits)
		if o, missing = sh.countMissing(req); missing > 0 && s.reserveCounters(missing) {
			if o == nil {
				o = s.addOwner(sh, hash, req.Owner, missing, now)
			}
			if len(o.free) < missing {
				o.free = make([]counter, missing)
			}
			return o
		}
	}
	return nil
}

// countMissing returns the owner's leases or nil, and how many of the request's counters are not held.
func (sh *shard) countMissing(req *limit.Request) (o *ownerLeases, missing int) {
	o = sh.owners[req.Owner]
	n := 0
	for i := range req.Charges {
		charge := &req.Charges[i]
		for j := range charge.Limit.Tiers {
			if o == nil || o.findCounter(&charge.Limit.Tiers[j], charge.Value, n) == nil {
				missing++
			}
			n++
		}
	}
	return o, missing
}

// reserveCounters counts n more counters if there is room for all of them.
func (s *Store) reserveCounters(n int) bool {
	if s.counterCount.Add(int64(n)) <= int64(s.config.MaxCounters) {
		return true
	}
	s.counterCount.Add(-int64(n))
	return false
}

func (s *Store) addOwner(sh *shard, hash uint64, owner limit.Owner, counters int, now clock.Instant) *ownerLeases {
	o := newOwner(counters)
	o.shard, o.owner, o.hash = sh, owner, hash
	o.storeOffset = now.Wall.Microseconds() - o.shard.clock.At(now) // a guess, until the store says what time it has
	o.counters = o.few[:0]
	sh.owners[owner], sh.list = o, append(sh.list, o)
	return o
}

// newOwner returns an owner with free memory for so many counters, if they are one or two, behind itself.
func newOwner(counters int) *ownerLeases {
	switch counters {
	case 1:
		with := new(struct {
			ownerLeases
			counters [1]counter
		})
		with.free = with.counters[:]
		return &with.ownerLeases
	case 2:
		with := new(struct {
			ownerLeases
			counters [2]counter
		})
		with.free = with.counters[:]
		return &with.ownerLeases
	default:
		return new(ownerLeases)
	}
}

// dropIdleCounters visits n counters of the shard, where the last sweep stopped, and drops those that are idle, and
// owners without counters.
func (s *Store) dropIdleCounters(sh *shard, now clock.Instant, n int) {
	for n > 0 && len(sh.list) > 0 {
		if sh.sweepOwner >= len(sh.list) {
			sh.sweepOwner = 0
		}
		o := sh.list[sh.sweepOwner]
		if n -= o.dropIdleCounters(now, n); o.sweepCounter < len(o.counters) {
			return
		}
		n-- // an owner counts as one, too
		if o.sweepCounter = 0; len(o.counters) > 0 {
			sh.sweepOwner++
			continue
		}
		delete(sh.owners, o.owner)
		last := len(sh.list) - 1
		sh.list[sh.sweepOwner], sh.list[last] = sh.list[last], nil // the last owner is visited next
		sh.list = sh.list[:last]
	}
}

// dropIdleCounters visits up to n of the owner's counters and drops those that are idle. It returns how many it
// visited.
func (o *ownerLeases) dropIdleCounters(now clock.Instant, n int) (visited int) {
	t := o.shard.clock.At(now)
	for ; visited < n && o.sweepCounter < len(o.counters); visited++ {
		c := o.counters[o.sweepCounter]
		if !c.isIdle(t) {
			o.sweepCounter++
			continue
		}
		o.shard.stats.Lost += c.lease.Units
		delete(o.index, counterKey{c.tier.Identity(), c.value})
		o.counters = slices.Delete(o.counters, o.sweepCounter, o.sweepCounter+1)
		o.shard.store.counterCount.Add(-1)
	}
	return visited
}
