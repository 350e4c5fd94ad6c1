package memory

import (
	"math/bits"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Touched is what a decision of a store about an owner reads. The fields that are not exported are set by [Touch].
type Touched struct {
	Store *Store
	Hash  uint64 // of the owner, as Store.Hash returns it

	found *record
}

// Hash returns the hash by which the store finds an owner. It is the same for all stores that have the same
// [Config].Hash.
func (s *Store) Hash(o limit.Owner) uint64 { return s.hash(o) }

// Touch reads a word of each cache line that decisions about the owners will read. It returns the sum of the words,
// which means nothing. It is for a simulation: package lease explains it at its function of the same name. It takes no
// lock, and must not run beside anything else.
func Touch(all []Touched) (sum int64) {
	for i := range all {
		t := &all[i]
		table := t.Store.stripe(t.Hash).table.Load()
		sum += int64(table.buckets[table.home(t.Hash)].tags.Load())
	}
	for i := range all {
		t := &all[i]
		t.found = t.Store.stripe(t.Hash).table.Load().findTag(t.Hash)
	}
	for i := range all {
		if r := all[i].found; r != nil {
			sum += int64(r.nameLen)
		}
	}
	for i := range all {
		if r := all[i].found; r != nil {
			sum += int64(len(r.layout.tiers))
		}
	}
	for i := range all {
		if r := all[i].found; r != nil {
			sum += r.layout.program.Read()
		}
	}
	return sum
}

// findTag returns the first record in the home bucket of a hash that has the tag of the hash, or nil. Nearly always it
// is the record of the owner with the hash.
func (t *table) findTag(hash uint64) *record {
	b := &t.buckets[t.home(hash)]
	if found := slotsWith(tagOf(hash), b.tags.Load()); found != 0 {
		return b.records[bits.TrailingZeros64(found)/8].Load()
	}
	return nil
}
