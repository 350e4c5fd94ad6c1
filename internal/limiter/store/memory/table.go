package memory

import "github.com/sluicelimits/sluice/internal/limiter/limit"

// table finds owners by hash: open addressing with linear probing, at most three quarters full. A look-up reads one or two
// cache lines. Go's map would hash the hash again and read two or three lines, and a sweep could not walk it in order.
type table struct {
	slots []slot // a power of two, or empty
	count int
	hand  int // where the sweep goes on
}

type slot struct {
	hash  uint64
	owner *owner // nil is free
}

// home is where a hash would like to be. The low bits chose the shard.
func (t *table) home(hash uint64) int { return int(hash/shardCount) & (len(t.slots) - 1) }

func (t *table) find(hash uint64, name limit.Owner) *owner {
	if len(t.slots) == 0 {
		return nil
	}
	for i := t.home(hash); ; i = (i + 1) & (len(t.slots) - 1) {
		s := &t.slots[i]
		if s.owner == nil {
			return nil
		}
		if s.hash == hash && s.owner.name == name {
			return s.owner
		}
	}
}

// add puts a new owner in, which begins with a number of counters. The owner must not be there yet.
func (t *table) add(hash uint64, name limit.Owner, counters int) *owner {
	if 4*(t.count+1) > 3*len(t.slots) {
		t.resize(max(8, 2*len(t.slots)))
	}
	o := newOwner(name, counters)
	t.put(hash, o)
	return o
}

func (t *table) put(hash uint64, o *owner) {
	i := t.home(hash)
	for t.slots[i].owner != nil {
		i = (i + 1) & (len(t.slots) - 1)
	}
	t.slots[i] = slot{hash, o}
	t.count++
}

func (t *table) resize(n int) {
	old := t.slots
	t.slots, t.count, t.hand = make([]slot, n), 0, 0
	for _, s := range old {
		if s.owner != nil {
			t.put(s.hash, s.owner)
		}
	}
}

// remove empties slot i and moves back whatever had to step past it, so that no probe ends too early.
func (t *table) remove(i int) {
	mask := len(t.slots) - 1
	t.count--
	for j := (i + 1) & mask; ; j = (j + 1) & mask {
		s := t.slots[j]
		if s.owner == nil {
			break
		}
		if (j-t.home(s.hash))&mask >= (j-i)&mask {
			t.slots[i] = s
			i = j
		}
	}
	t.slots[i] = slot{}
	if len(t.slots) > 64 && 8*t.count < len(t.slots) {
		t.resize(len(t.slots) / 2)
	}
}
