package dynamodb

import (
	"hash/maphash"
	"sync"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// valueCounts counts how many distinct values each limit of an owner was charged for by this process.
// [decision.redirectExtraValue] asks it whether a value is within the limit's MaxValues. It forgets the limits that
// were used least recently if it becomes too large; their values are then counted from zero.
type valueCounts struct {
	mu      sync.Mutex
	seed    maphash.Seed
	total   int // values in byLimit
	byLimit *lru.Cache[limitOfOwner, *recentValues]
}

const maxValueHashes = 4 << 20 // values remembered over all owners; about 40 bytes each

// limitOfOwner names a limit of one owner.
type limitOfOwner struct{ partition, limit string }

// recentValues holds the hashes of the values of one limit in two generations. A value that was not charged for two
// generations is forgotten.
type recentValues struct {
	current, previous map[uint64]struct{} // in the generation before // since the time since
	since             int64               // start of the current generation, µs
	generation        int64               // length of a generation, µs
}

func newValueCounts(owners int) *valueCounts {
	c := &valueCounts{seed: maphash.MakeSeed()}
	c.byLimit, _ = lru.NewWithEvict(owners, func(_ limitOfOwner, v *recentValues) { // no error: owners > 0
		c.total -= len(v.current) + len(v.previous)
	})
	return c
}

// hasOwnCounter reports whether the value has a counter of its own. If not, it uses the counter that all values beyond
// MaxValues share.
func (v *valueCounts) hasOwnCounter(partition string, l *limit.Limit, value limit.Value, now int64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	list, ok := v.byLimit.Get(limitOfOwner{partition, l.ID})
	if !ok {
		return true
	}
	v.startGeneration(list, now)
	h := v.hash(value)
	if _, ok := list.current[h]; ok {
		return true
	}
	if _, ok := list.previous[h]; ok {
		return true
	}
	return len(list.current)+len(list.previous) < l.MaxValues
}

// remember counts a value that was charged.
func (v *valueCounts) remember(partition string, l *limit.Limit, value limit.Value, now int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	key := limitOfOwner{partition, l.ID}
	list, ok := v.byLimit.Get(key)
	if !ok {
		list = &recentValues{current: map[uint64]struct{}{}, since: now, generation: generationOf(l)}
		v.byLimit.Add(key, list)
	}
	v.startGeneration(list, now)
	h := v.hash(value)
	if _, ok := list.previous[h]; ok {
		delete(list.previous, h)
		v.total--
	}
	if _, ok := list.current[h]; !ok {
		list.current[h] = struct{}{}
		v.total++
	}
	for v.total > maxValueHashes && v.byLimit.Len() > 1 {
		v.byLimit.RemoveOldest()
	}
}

// startGeneration begins a new generation of a list if the current one has lasted long enough. The caller holds the
// lock.
func (v *valueCounts) startGeneration(list *recentValues, now int64) {
	if now-list.since < list.generation {
		return
	}
	v.total -= len(list.previous)
	list.previous, list.current = list.current, map[uint64]struct{}{}
	if now-list.since >= 2*list.generation {
		v.total -= len(list.previous)
		list.previous = nil
	}
	list.since = now
}

func (v *valueCounts) hash(value limit.Value) uint64 {
	return maphash.String(v.seed, value.Text) + uint64(value.Kind)*0x9e3779b97f4a7c15
}

// generationOf returns how long a generation lasts: twice the longest period of the limit, so that a value in use is
// not forgotten.
func generationOf(l *limit.Limit) int64 {
	const day = 24 * 60 * 60 * 1_000_000
	life := int64(0)
	for i := range l.Tiers {
		p := l.Tiers[i].Params(limit.Owner{})
		if l.Tiers[i].Calendar != nil {
			life = max(life, 366*day)
		}
		life = max(life, 2*p.Period, p.FullIn)
	}
	return life
}
