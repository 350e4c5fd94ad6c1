package lease

import "github.com/sluicelimits/sluice/internal/limiter/limit"

// Touched is what a decision of a store about an owner reads. The fields that are not exported are set by [Touch].
type Touched struct {
	Store *Store
	Hash  uint64 // of the owner, as Store.Hash returns it

	found *ownerLeases
}

// Hash returns the hash by which the store finds an owner. It is the same for all stores that have the same
// [clock.Runtime].Hash.
func (s *Store) Hash(o limit.Owner) uint64 { return s.hashOwner(o) }

// Touch reads a word of each cache line that decisions about the owners will read. It returns the sum of the words,
// which means nothing.
//
// It is for a simulation, which decides for hundreds of thousands of owners in turn, and would spend most of its time
// waiting for memory: about ten times for each decision, one after the other. Touch reads for many owners what does not
// depend on each other, so that the processor waits for all of it at once. Unlike all else in this package it takes no
// lock, and must not run beside anything else.
func Touch(all []Touched) (sum int64) {
	for i := range all {
		t := &all[i]
		sh := &t.Store.shards[t.Hash%shardCount]
		sum += int64(len(sh.owners.slots)) + sh.stats.Local
		if sh.store != t.Store { // never: the field lies beside the mutex
			sum++
		}
	}
	for i := range all {
		t := &all[i]
		table := &t.Store.shards[t.Hash%shardCount].owners
		t.found = nil
		if len(table.slots) == 0 {
			continue
		}
		for at := table.home(t.Hash); table.slots[at].owner != nil; at = (at + 1) & (len(table.slots) - 1) {
			if table.slots[at].hash == t.Hash {
				t.found = table.slots[at].owner
				break
			}
		}
	}
	for i := range all {
		if o := all[i].found; o != nil {
			sum += o.read()
		}
	}
	return sum
}

// read reads a word of each cache line that a decision without a call reads of an owner's leases, of the first counter
// alone. It returns the sum of the words, which means nothing.
func (o *ownerLeases) read() (sum int64) {
	sum = int64(o.owner.Kind) + o.storeOffset
	if len(o.counters) > 0 {
		c := o.counters[0]
		sum += c.until + c.ramp.locked + c.demand.epochUnits[1]
		if c.lease.Other() {
			sum++
		}
	}
	return sum
}
