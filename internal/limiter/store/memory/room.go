package memory

import (
	"fmt"
	"sync/atomic"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// What things take, in bytes: the structs, and their share of tables, maps and slices. TestBytesEstimate holds them
// against the heap.
const (
	recordBytes  = 48 // without states
	stateBytes   = 32
	furtherBytes = 300
	counterBytes = 88  // in further
	valueBytes   = 112 // of a counter with a value, beside its text
	wordBytes    = 40  // of 64 receipts, see refunds
)

// budget is a bound on what counters take.
type budget struct {
	maxBytes int64
	used     atomic.Int64
	// until then nobody looks for room again, µs; a flood of new owners must not pay for the search
	fullTill atomic.Int64
}

func (b *budget) free() int64 { return b.maxBytes - b.used.Load() }

// take counts bytes, if there is room for them.
func (b *budget) take(bytes int64) bool {
	for {
		used := b.used.Load()
		if used+bytes > b.maxBytes {
			return false
		}
		if b.used.CompareAndSwap(used, used+bytes) {
			return true
		}
	}
}

// The budgets of a store: that of all owners, and that of the owners whose names callers without a credential can
// choose. What an owner of the second budget takes counts in both.
const (
	everybody = iota
	unidentified
)

// budgetOf returns the narrowest budget in which the counters of an owner count.
func budgetOf(k limit.OwnerKind) int {
	if k == limit.Address || k == limit.Anonymous {
		return unidentified
	}
	return everybody
}

// full is the error where a budget has no room.
func (s *Store) full(of int) error {
	b := &s.budgets[of]
	if s.budgets[everybody].free() < b.free() {
		b = &s.budgets[everybody]
	}
	return fmt.Errorf("memory store, %d of %d bytes: %w", b.used.Load(), b.maxBytes, limit.ErrFull)
}

// count counts bytes that an owner of the kind takes, without regard to the bounds; fewer than 0 are given back.
func (s *Store) count(k limit.OwnerKind, bytes int64) {
	if bytes == 0 {
		return
	}
	for i := range budgetOf(k) + 1 {
		s.budgets[i].used.Add(bytes)
	}
}

// take counts bytes that an owner, which has so many already, is about to take, if there is room for them. If chosen is
// set, they are for values or entries, and the owner may have no more than what is left.
func (s *Store) take(k limit.OwnerKind, has, bytes int64, chosen bool) bool {
	all, b := &s.budgets[everybody], &s.budgets[budgetOf(k)]
	if chosen && !s.oneBudget && has+bytes > b.free() {
		return false
	}
	if !all.take(bytes) {
		return false
	}
	if b != all && !b.take(bytes) {
		all.used.Add(-bytes)
		return false
	}
	return true
}

// reserve takes bytes of the owner's budget as take does. If they are not free, it forgets counters that are no
// different from unused ones: of owners in the stripe st, whose lock the caller holds, and of others. Owners whose
// record is locked keep theirs.
func (s *Store) reserve(st *stripe, k limit.OwnerKind, now, has, bytes int64, chosen bool) bool {
	b := &s.budgets[budgetOf(k)]
	for try := 0; ; try++ {
		if s.take(k, has, bytes, chosen) {
			return true
		}
		if full := b.fullTill.Load(); try == 0 && now < full && now >= full-fullFor {
			return false
		}
		if try >= 8 {
			b.fullTill.Store(now + fullFor)
			return false
		}
		s.sweep(st, now, sweepWhenFull)
		// The room may lie in other stripes. Try-locking cannot deadlock with one that does the same to this one.
		other := &s.stripes[s.next.Add(1)%stripeCount]
		if other != st && other.mu.TryLock() {
			s.sweep(other, now, sweepWhenFull)
			other.mu.Unlock()
		}
	}
}

// sweep looks at up to n owners of the stripe, whose lock the caller holds, and at some counters of each. It forgets
// what is no different from unused. It passes over a record that is locked: a decision may know the positions of its
// counters.
func (s *Store) sweep(st *stripe, now int64, n int) {
	t := st.table.Load()
	all := slots * len(t.buckets)
	var freed [2]int64        // by budget
	for range min(2*n, all) { // many slots are free
		t.hand = (t.hand + 1) % all
		b, i := t.at(t.hand)
		r := b.records[i].Load()
		if r == nil || !r.mu.TryLock() {
			continue
		}
		bytes, unused := r.sweep(now, max(n, scanned))
		if unused {
			bytes += r.bytes()
			t.remove(t.hand)
			r.layout = gone
		}
		r.mu.Unlock()
		freed[budgetOf(r.kind)] += bytes
	}
	if t.tooEmpty() {
		st.rebuild(s.hash)
	}
	s.count(limit.Tenant, -freed[everybody])
	s.count(limit.Address, -freed[unidentified])
}
