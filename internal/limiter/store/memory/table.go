package memory

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// stripe holds the records of the owners whose hashes have the same low bits.
type stripe struct {
	table atomic.Pointer[table]
	mu    sync.Mutex // held by whoever adds, replaces or removes records; locked before the records' own mutexes
	_     [48]byte   // keeps two stripes off one cache line
}

// find returns the record of the owner, or nil if there is none. Without the stripe's lock, it may return a record
// that is gone, and miss one that is just being added.
func (st *stripe) find(hash uint64, owner limit.Owner) *record {
	return st.table.Load().find(hash, owner)
}

// lockRecord finds and locks the record of the owner, or returns nil if there is none. The caller does not hold the
// stripe's lock.
func (st *stripe) lockRecord(hash uint64, owner limit.Owner) *record {
	for {
		r := st.find(hash, owner)
		if r == nil {
			st.mu.Lock()
			r = st.find(hash, owner)
			st.mu.Unlock()
		}
		if r == nil {
			return nil
		}
		r.mu.Lock()
		if r.layout != unusedLayout {
			return r
		}
		r.mu.Unlock()
	}
}

// table finds records by hash. It is read without a lock: a look-up reads the cache line of one bucket, and then the
// record. All changes are made under the stripe's lock. When a table is too full, or too empty, a copy of another size
// takes its place.
type table struct {
	buckets []bucket
	count   int // of records
	passed  int // of buckets whose mark passed is set
	sweepAt int // where the sweep goes on: a slot, counted over all buckets
}

// bucket has slots for some records, and takes one cache line. A record is put into the bucket that its hash chooses,
// or, if that is full, into the next one with a free slot.
type bucket struct {
	// tags has a byte for each slot: seven bits of the record's hash and one bit that is set, or 0 if the slot is free.
	// The last byte is the mark passed: 1 if a record was put into a later bucket because this one was full.
	tags    atomic.Uint64
	records [slots]atomic.Pointer[record]
}

const (
	slots    = 7 // of a bucket
	passed   = 1 << (8 * slots)
	eachByte = 0x0101010101010101
	tagBits  = 0x0080808080808080 // the highest bits of the tags of all slots
)

// newTable makes a table that can take half as many records again before it is too full.
func newTable(records int) *table { return &table{buckets: make([]bucket, records*15/(8*slots)+1)} }

// tooFull reports whether one record more would make look-ups slow: four fifths of the slots are taken, or most buckets
// are marked as passed. The marks stay when records are removed.
func (t *table) tooFull() bool {
	return 5*t.count >= 4*slots*len(t.buckets) || t.passed > 4 && 2*t.passed > len(t.buckets)
}

// tooEmpty reports whether most of the table's memory is unused.
func (t *table) tooEmpty() bool { return len(t.buckets) > 8 && 8*t.count < slots*len(t.buckets) }

// home returns the index of the bucket that a hash chooses by its high bits.
func (t *table) home(hash uint64) int {
	i, _ := bits.Mul64(hash, uint64(len(t.buckets)))
	return int(i)
}

// tagOf returns the tag of a hash, made of bits that choose neither the stripe nor, as long as there are less than 2^40
// buckets, the bucket.
func tagOf(hash uint64) uint64 { return hash>>16&0x7f | 0x80 }

// slotsWith returns the highest bit of the byte of each slot with the tag. It may return a few others, too.
func slotsWith(tag, tags uint64) uint64 {
	// A byte of differ is 0 where the tag is the wanted one. Subtracting 1 from each byte sets the highest bit of those
	// that are 0. A byte of 1 above such a byte is found, too, because of the carry.
	differ := tags ^ tag*eachByte
	return (differ - eachByte) &^ differ & tagBits
}

func (t *table) find(hash uint64, owner limit.Owner) *record {
	i, tag := t.home(hash), tagOf(hash)
	for range t.buckets {
		b := &t.buckets[i]
		tags := b.tags.Load()
		for found := slotsWith(tag, tags); found != 0; found &= found - 1 {
			if r := b.records[bits.TrailingZeros64(found)/8].Load(); r != nil && r.isOf(owner) {
				return r
			}
		}
		if tags < passed {
			return nil
		}
		if i++; i == len(t.buckets) {
			i = 0
		}
	}
	return nil
}

// put adds a record whose owner has none. The table must have a free slot.
func (t *table) put(hash uint64, r *record) {
	for i := t.home(hash); ; i = (i + 1) % len(t.buckets) {
		b := &t.buckets[i]
		tags := b.tags.Load()
		if free := ^tags & tagBits; free != 0 {
			slot := bits.TrailingZeros64(free) / 8
			b.records[slot].Store(r)
			b.tags.Store(tags | tagOf(hash)<<(8*slot))
			t.count++
			return
		}
		if tags < passed {
			b.tags.Store(tags | passed)
			t.passed++
		}
	}
}

// at returns the bucket and the index within it of a slot that is counted over all buckets.
func (t *table) at(slot int) (b *bucket, i int) { return &t.buckets[slot/slots], slot % slots }

// remove frees a slot, counted over all buckets.
func (t *table) remove(slot int) {
	b, i := t.at(slot)
	b.tags.Store(b.tags.Load() &^ (0xff << (8 * i)))
	b.records[i].Store(nil)
	t.count--
}

// add adds a record whose owner has none, and whose hash hash returns. The caller holds the stripe's lock.
func (st *stripe) add(hash uint64, r *record, hashOf func(limit.Owner) uint64) {
	if st.table.Load().tooFull() {
		st.rebuild(hashOf)
	}
	st.table.Load().put(hash, r)
}

// replace puts another record of the same owner in the place of the old one. The caller holds the stripe's lock and
// that of the old record, to which it must give the layout unusedLayout.
func (st *stripe) replace(hash uint64, old, by *record) {
	t := st.table.Load()
	for i := t.home(hash); ; i = (i + 1) % len(t.buckets) {
		b := &t.buckets[i]
		for found := slotsWith(tagOf(hash), b.tags.Load()); found != 0; found &= found - 1 {
			if p := &b.records[bits.TrailingZeros64(found)/8]; p.Load() == old {
				p.Store(by)
				return
			}
		}
	}
}

// rebuild puts a table of the right size in place of the stripe's. The caller holds the stripe's lock.
func (st *stripe) rebuild(hashOf func(limit.Owner) uint64) {
	old := st.table.Load()
	t := newTable(old.count)
	for i := range old.buckets {
		for j := range slots {
			if r := old.buckets[i].records[j].Load(); r != nil {
				t.put(hashOf(r.owner()), r)
			}
		}
	}
	st.table.Store(t)
}
