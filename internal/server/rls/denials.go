package rls

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// recentDenials remembers when the counters of an owner last denied, so that rules that will probably deny again are
// charged first, and until when they denied. It is a hint: owners whose hashes fall on one entry overwrite each other.
// The table has 512 KiB.
type recentDenials struct {
	entries [1 << 14]struct {
		hash  atomic.Uint64
		time  atomic.Int64 // µs since 1970
		until atomic.Int64 // when the denied hits fit, µs since 1970; 0 if nobody knows, or if hits were admitted since
		hits  atomic.Int64 // how many hits were denied
	}
}

var denialSeed = maphash.MakeSeed()

func hashOwner(o *limit.Owner) uint64 { return maphash.String(denialSeed, o.Name) + uint64(o.Kind) }

// note remembers that counters of the owner denied hits at the time now, and until when. The times are µs since 1970.
func (r *recentDenials) note(o *limit.Owner, now, until, hits int64) {
	h := hashOwner(o)
	e := &r.entries[h%uint64(len(r.entries))]
	e.hash.Store(h)
	e.time.Store(now)
	e.until.Store(until)
	e.hits.Store(hits)
}

// until returns until when counters of the owner deny that many hits, or 0 if that is not known.
func (r *recentDenials) until(o *limit.Owner, hits int64) int64 {
	h := hashOwner(o)
	if e := &r.entries[h%uint64(len(r.entries))]; e.hash.Load() == h && hits >= e.hits.Load() {
		return e.until.Load()
	}
	return 0
}

// forgetWait forgets until when counters of the owner denied that many hits, or fewer. It is called when they have
// admitted these hits, or got hits back.
func (r *recentDenials) forgetWait(o *limit.Owner, hits int64) {
	h := hashOwner(o)
	e := &r.entries[h%uint64(len(r.entries))]
	if e.hash.Load() == h && e.until.Load() != 0 && e.hits.Load() <= hits {
		e.until.Store(0)
	}
}

// forgetWaits forgets until when counters denied, for instance because their limits have changed.
func (r *recentDenials) forgetWaits() {
	for i := range r.entries {
		r.entries[i].until.Store(0)
	}
}

// last returns when counters of the owner last denied, or 0 if that is not known.
func (r *recentDenials) last(o *limit.Owner) int64 {
	h := hashOwner(o)
	if e := &r.entries[h%uint64(len(r.entries))]; e.hash.Load() == h {
		return e.time.Load()
	}
	return 0
}
