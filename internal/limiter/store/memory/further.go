package memory

import (
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// further holds those counters of one owner that do not lie behind its record: those of limits that tell values apart,
// and those of tiers beyond the first mostStates. It is used under the lock of the record. A group of addresses that
// share counters has one, too, under the group's lock.
type further struct {
	counters []counter      // of any tier and value, in no order
	byHash   map[uint64]int // index in counters, once there are more than scanned
	clashed  bool           // two counters have had one hash, so a hit in byHash may need a scan
	values   map[string]int // distinct values per tier identity, for tiers that have values
	sweepAt  int            // where the sweep goes on
	bytes    int64          // that the counters take
}

const scanned = 8 // counters; up to here a scan beats a map

type counter struct {
	tier  *limit.Tier
	value *value // nil where the tier has no values
	state limit.State
}

type value struct {
	hash uint64 // of tier and value
	limit.Value
}

func sizeOfCounter(v limit.Value) int64 {
	if v.Kind == limit.NoValue {
		return counterBytes
	}
	return counterBytes + valueBytes + int64(len(v.Text))
}

func (c *counter) hash() uint64 {
	if c.value != nil {
		return c.value.hash
	}
	return c.tier.IdentityHash()
}

func (c *counter) counts(hash uint64, t *limit.Tier, v limit.Value) bool {
	if c.value == nil {
		return v.Kind == limit.NoValue && sameCounter(c.tier, t)
	}
	return c.value.hash == hash && c.value.Value == v && sameCounter(c.tier, t)
}

func hashOf(s *Store, t *limit.Tier, v limit.Value) uint64 {
	h := t.IdentityHash()
	if v.Kind != limit.NoValue {
		h ^= s.hashText(v.Text) + uint64(v.Kind)*0x9e3779b97f4a7c15
	}
	return h
}

// valuesOf returns how many values have counters of the tier.
func (f *further) valuesOf(t *limit.Tier) int {
	if f == nil {
		return 0
	}
	return f.values[t.Identity()]
}

// find returns the index of the counter, or -1 if there is none.
func (f *further) find(s *Store, t *limit.Tier, v limit.Value) int {
	hash := hashOf(s, t, v)
	if f.byHash != nil {
		i, ok := f.byHash[hash]
		if !ok {
			return -1
		}
		if f.counters[i].counts(hash, t, v) {
			return i
		}
	}
	for i := range f.counters {
		if f.counters[i].counts(hash, t, v) {
			return i
		}
	}
	return -1
}

// add makes a counter, whose bytes are reserved already, and returns its index.
func (f *further) add(s *Store, t *limit.Tier, v limit.Value) int {
	at := len(f.counters)
	c := counter{tier: t}
	if v.Kind != limit.NoValue {
		c.value = &value{hash: hashOf(s, t, v), Value: v}
		if v.Kind != limit.ValueOther {
			if f.values == nil {
				f.values = make(map[string]int)
			}
			f.values[t.Identity()]++
		}
	}
	f.counters = append(f.counters, c)
	f.bytes += sizeOfCounter(v)
	switch {
	case f.byHash != nil:
		f.note(at)
	case len(f.counters) > scanned:
		f.reindex()
	}
	return at
}

func (f *further) note(at int) {
	h := f.counters[at].hash()
	if _, taken := f.byHash[h]; taken {
		f.clashed = true
		return
	}
	f.byHash[h] = at
}

func (f *further) reindex() {
	f.byHash, f.clashed = make(map[uint64]int, 2*len(f.counters)), false
	for i := range f.counters {
		f.note(i)
	}
}

// forget removes the counter at the index; the last one takes its place. It returns the bytes that come free.
func (f *further) forget(at int) (bytes int64) {
	c := &f.counters[at]
	bytes = counterBytes + c.state.Bytes()
	if c.value != nil {
		bytes = sizeOfCounter(c.value.Value) + c.state.Bytes()
		if id := c.tier.Identity(); c.value.Kind != limit.ValueOther {
			if f.values[id]--; f.values[id] == 0 {
				delete(f.values, id)
			}
		}
	}
	last := len(f.counters) - 1
	if f.byHash != nil && !f.clashed {
		delete(f.byHash, c.hash())
		if at != last {
			f.byHash[f.counters[last].hash()] = at
		}
	}
	f.counters[at] = f.counters[last]
	f.counters[last] = counter{}
	f.counters = f.counters[:last]
	if f.clashed {
		f.reindex()
	}
	return bytes
}

// sweep looks at up to n counters, forgets those that are no different from unused ones, and returns their bytes.
func (f *further) sweep(now int64, n int) (freed int64) {
	at := 0
	if len(f.counters) > n { // else all of them are looked at
		at = f.sweepAt
	}
	for range min(n, len(f.counters)) {
		if at >= len(f.counters) {
			at = 0
		}
		if c := &f.counters[at]; c.tier.FreshAt(&c.state) <= now {
			freed += f.forget(at)
			continue
		}
		at++
	}
	if len(f.counters) > n {
		f.sweepAt = at
	}
	if freed > 0 {
		f.shrink()
	}
	f.bytes -= freed
	return freed
}

// shrink gives memory back once more counters have been forgotten than are left. The copy takes less than one step for
// each counter that was forgotten since the last one.
func (f *further) shrink() {
	if n := len(f.counters); cap(f.counters) > 2*scanned && 2*n < cap(f.counters) {
		f.counters = append(make([]counter, 0, n+n/4), f.counters...)
		switch {
		case f.byHash == nil:
		case n > scanned:
			f.reindex()
		default:
			f.byHash, f.clashed = nil, false
		}
	}
}
