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
	hash   uint64
	owner  *ownerLeases // nil: the slot is free
	scarce bool         // units of a counter may be scarce, see [ownerLeases.noteScarcity]
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

// allScarce calls f for each owner that may have scarce counters. f returns whether the owner has any. The other owners
// are not read, since a pass over all of them would wait for memory at each.
func (t *ownerTable) allScarce(f func(*ownerLeases) bool) {
	for i := range t.slots {
		if s := &t.slots[i]; s.scarce {
			s.scarce = f(s.owner)
		}
	}
}

// markScarce has allScarce call its function for the owner, if that is in the table. It is not if it was idle for a
// minute and dropped while a call about it was under way.
func (t *ownerTable) markScarce(o *ownerLeases) {
	if len(t.slots) == 0 {
		return
	}
	for i := t.home(o.hash); t.slots[i].owner != nil; i = (i + 1) & (len(t.slots) - 1) {
		if t.slots[i].owner == o {
			t.slots[i].scarce = true
			return
		}
	}
}

// add adds an owner that is not in the table.
func (t *ownerTable) add(o *ownerLeases) { t.addSlot(ownerSlot{hash: o.hash, owner: o}) }

func (t *ownerTable) addSlot(s ownerSlot) {
	if 4*(t.count+1) > 3*len(t.slots) {
		t.resize(max(8, 2*len(t.slots)))
	}
	i := t.home(s.hash)
	for t.slots[i].owner != nil {
		i = (i + 1) & (len(t.slots) - 1)
	}
	t.slots[i] = s
	t.count++
}

func (t *ownerTable) resize(n int) {
	old := t.slots
	t.slots, t.count = make([]ownerSlot, n), 0
	for _, s := range old {
		if s.owner != nil {
			t.addSlot(s)
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
