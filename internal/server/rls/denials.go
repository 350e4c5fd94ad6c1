package rls

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// recentDenials remembers when the counters of an owner last denied, so that rules that will probably deny again are
// charged first. It is a hint: owners whose hashes fall on one entry overwrite each other. The table has 256 KiB.
type recentDenials struct {
	entries [1 << 14]struct {
		hash atomic.Uint64
		time atomic.Int64 // µs since 1970
	}
}

var denialSeed = maphash.MakeSeed()

func hashOwner(o *limit.Owner) uint64 { return maphash.String(denialSeed, o.Name) + uint64(o.Kind) }

// note remembers that counters of the owner denied at the time now, µs since 1970.
func (r *recentDenials) note(o *limit.Owner, now int64) {
	h := hashOwner(o)
	e := &r.entries[h%uint64(len(r.entries))]
	e.hash.Store(h)
	e.time.Store(now)
}

// last returns when counters of the owner last denied, or 0 if that is not known.
func (r *recentDenials) last(o *limit.Owner) int64 {
	h := hashOwner(o)
	if e := &r.entries[h%uint64(len(r.entries))]; e.hash.Load() == h {
		return e.time.Load()
	}
	return 0
}
