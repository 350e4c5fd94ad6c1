package dynamodb

import (
	"hash/maphash"
	"sync"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/sluicelimits/sluice/internal/limit"
)

// valueCounts knows how many distinct values each limit of an owner has been charged for, by this process: so the
// bound on values holds for each process, and over n processes it is at most n times as large. It is bounded itself:
// when it forgets an owner, that owner's values are counted anew.
type valueCounts struct {
	mu    sync.Mutex
	seed  maphash.Seed
	total int
	lists *lru.Cache[valueList, *values]
}

const maxValueHashes = 4 << 20 // values remembered over all owners; about 40 bytes each

type valueList struct{ pk, limit string }

// values are those of this generation and of the one before. A value that was not charged for two generations is
// forgotten.
type values struct {
	now, before map[uint64]struct{}
	since       int64 // µs
	life        int64 // µs
}

func newValueCounts(owners int) *valueCounts {
	c := &valueCounts{seed: maphash.MakeSeed()}
	c.lists, _ = lru.NewWithEvict(owners, func(_ valueList, v *values) { // no error: owners > 0
		c.total -= len(v.now) + len(v.before)
	})
	return c
}

// admits reports whether the value has a counter of its own.
func (c *valueCounts) admits(pk string, l *limit.Limit, v limit.Value, now int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	list, ok := c.lists.Get(valueList{pk, l.ID})
	if !ok {
		return true
	}
	c.turn(list, now)
	h := c.hash(v)
	if _, ok := list.now[h]; ok {
		return true
	}
	if _, ok := list.before[h]; ok {
		return true
	}
	return len(list.now)+len(list.before) < l.MaxValues
}

// note remembers a value that was charged.
func (c *valueCounts) note(pk string, l *limit.Limit, v limit.Value, now int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := valueList{pk, l.ID}
	list, ok := c.lists.Get(key)
	if !ok {
		list = &values{now: map[uint64]struct{}{}, since: now, life: lifeOfValues(l)}
		c.lists.Add(key, list)
	}
	c.turn(list, now)
	h := c.hash(v)
	if _, ok := list.before[h]; ok {
		delete(list.before, h)
		c.total--
	}
	if _, ok := list.now[h]; !ok {
		list.now[h] = struct{}{}
		c.total++
	}
	for c.total > maxValueHashes && c.lists.Len() > 1 {
		c.lists.RemoveOldest()
	}
}

func (c *valueCounts) turn(v *values, now int64) {
	if now-v.since < v.life {
		return
	}
	c.total -= len(v.before)
	v.before, v.now = v.now, map[uint64]struct{}{}
	if now-v.since >= 2*v.life {
		c.total -= len(v.before)
		v.before = nil
	}
	v.since = now
}

func (c *valueCounts) hash(v limit.Value) uint64 {
	return maphash.String(c.seed, v.Text) + uint64(v.Kind)*0x9e3779b97f4a7c15
}

// lifeOfValues is a generation: twice the longest period, so that a value in use is not forgotten.
func lifeOfValues(l *limit.Limit) int64 {
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
