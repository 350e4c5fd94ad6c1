package lease

import "github.com/sluicelimits/sluice/internal/limiter/limit"

// ownerTable finds the owners of a shard by their hash. It is a hash table with open addressing and linear probing, at
// most three quarters full. A look-up reads one cache line of the table and then the owner; Go's map would read two or
// three lines before that, and hash the hash again.
type ownerTable struct {
	slots []ownerSlot // their number is a power of two, or 0
	count int         // of owners
}

type ownerSlot struct {
	hash  uint64
	owner *ownerLeases // nil: the slot is free
}

// home returns the slot in which an owner with the hash lies if it is free. The low bits of the hash chose the shard.
func (t *ownerTable) home(hash uint64) int { return int(hash/shardCount) & (len(t.slots) - 1) }

// find returns the owner's leases, or nil.
func (t *ownerTable) find(hash uint64, owner limit.Owner) *ownerLeases {
	if len(t.slots) == 0 {
		return nil
	}
	for i := t.home(hash); ; i = (i + 1) & (len(t.slots) - 1) {
		s := &t.slots[i]
		if s.owner == nil {
			return nil
		}
		if s.hash == hash && s.owner.owner == owner {
			return s.owner
		}
	}
}

// all calls f for each owner, until f returns false. f must not add or remove owners.
func (t *ownerTable) all(f func(*ownerLeases) bool) {
	for i := range t.slots {
		if o := t.slots[i].owner; o != nil && !f(o) {
			return
		}
	}
}

// add adds an owner that is not in the table.
func (t *ownerTable) add(o *ownerLeases) {
	if 4*(t.count+1) > 3*len(t.slots) {
		t.resize(max(8, 2*len(t.slots)))
	}
	i := t.home(o.hash)
	for t.slots[i].owner != nil {
		i = (i + 1) & (len(t.slots) - 1)
	}
	t.slots[i] = ownerSlot{o.hash, o}
	t.count++
}

func (t *ownerTable) resize(n int) {
	old := t.slots
	t.slots, t.count = make([]ownerSlot, n), 0
	for _, s := range old {
		if s.owner != nil {
			t.add(s.owner)
		}
	}
}

// remove frees slot i. It moves back those owners behind it that would not be found any more.
func (t *ownerTable) remove(i int) {
	mask := len(t.slots) - 1
	t.count--
	for j := (i + 1) & mask; t.slots[j].owner != nil; j = (j + 1) & mask {
		if fromHome := (j - t.home(t.slots[j].hash)) & mask; fromHome >= (j-i)&mask {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = ownerSlot{}
	if len(t.slots) > 64 && 8*t.count < len(t.slots) {
		t.resize(len(t.slots) / 2)
	}
}
