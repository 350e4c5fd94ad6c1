package rls

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// recentDenials remembers when counters last denied, so that rules that will probably deny are charged first. It is a
// hint only. Counters whose hashes meet share a place, and the last one has it.
type recentDenials struct {
	places [1 << 14]struct {
		hash atomic.Uint64
		at   atomic.Int64 // µs since 1970
	}
}

var denialSeed = maphash.MakeSeed()

func hashOwner(o *limit.Owner) uint64 { return maphash.String(denialSeed, o.Name) + uint64(o.Kind) }

// note remembers that counters of the owner denied at the time at, µs since 1970.
func (r *recentDenials) note(o *limit.Owner, at int64) {
	h := hashOwner(o)
	p := &r.places[h%uint64(len(r.places))]
	p.hash.Store(h)
	p.at.Store(at)
}

// last returns when counters of the owner last denied, or 0 if that is not known.
func (r *recentDenials) last(o *limit.Owner) int64 {
	h := hashOwner(o)
	if p := &r.places[h%uint64(len(r.places))]; p.hash.Load() == h {
		return p.at.Load()
	}
	return 0
}
