package lease

import "github.com/sluicelimits/sluice/internal/limiter/limit"

// Touched is what a decision of a store about an owner reads. The fields that are not exported are set by [Touch].
type Touched struct {
	Store *Store
	Owner *limit.Owner

	hash  uint64
	found *ownerLeases
}

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
		t.hash = t.Store.hashOwner(*t.Owner)
		sh := &t.Store.shards[t.hash%shardCount]
		sum += int64(len(sh.owners.slots)) + sh.stats.Local + sh.scarceUntil
		if sh.store != t.Store { // never: the field lies beside the mutex
			sum++
		}
	}
	for i := range all {
		t := &all[i]
		table := &t.Store.shards[t.hash%shardCount].owners
		t.found = nil
		if len(table.slots) == 0 {
			continue
		}
		for at := table.home(t.hash); table.slots[at].owner != nil; at = (at + 1) & (len(table.slots) - 1) {
			if table.slots[at].hash == t.hash {
				t.found = table.slots[at].owner
				break
			}
		}
	}
	for i := range all {
		if o := all[i].found; o != nil && len(o.counters) > 0 {
			c := o.counters[0]
			sum += c.until + c.lease.At + c.demand.fadedAt + c.demand.epochUnits[1]
		}
	}
	return sum
}
