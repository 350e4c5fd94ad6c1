package memory

import (
	"fmt"
	"sync/atomic"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// The memory of records, states and counters, in bytes: the structs, and their share of tables, maps and slices.
// TestBytesEstimate compares these numbers with the growth of the heap.
const (
	recordBytes  = 48 // without states
	stateBytes   = 32
	furtherBytes = 300
	counterBytes = 88  // in further
	valueBytes   = 112 // of a counter with a value, beside its text
	wordBytes    = 40  // of 64 receipts, see refunds
)

// budget is a bound on the memory of counters.
type budget struct {
	maxBytes int64
	used     atomic.Int64
	// when the search for unused counters may run again, µs: a flood of new owners must not repeat it for each of them
	fullUntil atomic.Int64
}

func (b *budget) free() int64 { return b.maxBytes - b.used.Load() }

// countIfFree counts bytes as used, and returns true, if so many are free.
func (b *budget) countIfFree(bytes int64) bool {
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
// choose. The memory of an owner of the second budget counts in both.
const (
	allOwners = iota
	unidentified
)

// budgetOf returns the narrowest budget in which the counters of an owner count.
func budgetOf(k limit.OwnerKind) int {
	if k == limit.Address || k == limit.Anonymous {
		return unidentified
	}
	return allOwners
}

// scope is what the counters of one [limit.Limit.Scope] take.
type scope struct {
	name       string
	used       atomic.Int64 // bytes
	lastLogged atomic.Int64 // see logSharing
}

// scopeNamed returns the scope with the name, or nil if the name is "". There are as many scopes as a configuration
// has, and those of earlier configurations.
func (s *Store) scopeNamed(name string) *scope {
	if name == "" {
		return nil
	}
	found, ok := s.scopes.Load(name)
	if !ok {
		found, _ = s.scopes.LoadOrStore(name, &scope{name: name})
	}
	return found.(*scope)
}

// scopeOf returns the scope to which the counters of a tier belong if an owner of this kind has them. It returns nil if
// they belong to no scope.
func (s *Store) scopeOf(k limit.OwnerKind, t *limit.Tier) *scope {
	if k != limit.AnyKey {
		return nil
	}
	return s.scopeNamed(t.Limit().Scope)
}

// scopeOf is [Store.scopeOf] of the record's owner.
func (r *record) scopeOf(s *Store) *scope {
	if len(r.layout.tiers) == 0 {
		return nil
	}
	return s.scopeOf(r.kind, r.layout.tiers[0])
}

// add adds bytes to what the scope takes. c may be nil.
func (c *scope) add(bytes int64) {
	if c != nil {
		c.used.Add(bytes)
	}
}

// countOf is count for a record, which takes so many bytes more.
func (s *Store) countOf(r *record, bytes int64) {
	if bytes != 0 {
		s.count(r.kind, bytes)
		r.scopeOf(s).add(bytes)
	}
}

// fullError returns the error that is reported if a budget has no room.
func (s *Store) fullError(of int) error {
	b := &s.budgets[of]
	if s.budgets[allOwners].free() < b.free() {
		b = &s.budgets[allOwners]
	}
	return fmt.Errorf("memory store, %d of %d bytes: %w", b.used.Load(), b.maxBytes, limit.ErrFull)
}

// count adds bytes to what an owner of the kind uses, without regard to the bounds. A negative number frees memory.
func (s *Store) count(k limit.OwnerKind, bytes int64) {
	if bytes == 0 {
		return
	}
	for i := range budgetOf(k) + 1 {
		s.budgets[i].used.Add(bytes)
	}
}

// countIfFree counts bytes that an owner, which uses has bytes already, is about to use, and returns true, if so many
// are free. If chosen is set, the bytes are for values or entries, of which a caller can choose as many as it likes;
// the owner may then not use more than the rest of its budget. The owners of one scope count as one.
func (s *Store) countIfFree(k limit.OwnerKind, has, bytes int64, chosen bool) bool {
	all, b := &s.budgets[allOwners], &s.budgets[budgetOf(k)]
	if chosen && !s.oneBudget && has+bytes > b.free() {
		return false
	}
	if !all.countIfFree(bytes) {
		return false
	}
	if b != all && !b.countIfFree(bytes) {
		all.used.Add(-bytes)
		return false
	}
	return true
}

// reserve counts bytes as countIfFree does. If they are not free, it forgets counters that are no different from unused
// ones: of owners in the stripe st, whose lock the caller holds, and in another stripe. It passes over owners whose
// record is locked.
func (s *Store) reserve(st *stripe, k limit.OwnerKind, now, has, bytes int64, chosen bool) bool {
	b := &s.budgets[budgetOf(k)]
	for try := 0; ; try++ {
		if s.countIfFree(k, has, bytes, chosen) {
			return true
		}
		if full := b.fullUntil.Load(); try == 0 && now < full && now >= full-fullFor {
			return false
		}
		if try >= 8 {
			b.fullUntil.Store(now + fullFor)
			return false
		}
		s.sweep(st, now, sweepWhenFull)
		// Unused counters may be in other stripes. TryLock cannot deadlock with a goroutine that does the same here.
		other := &s.stripes[s.next.Add(1)%stripeCount]
		if other != st && other.mu.TryLock() {
			s.sweep(other, now, sweepWhenFull)
			other.mu.Unlock()
		}
	}
}

// sweep checks up to n owners of the stripe, whose lock the caller holds, and some counters of each. It forgets those
// that are no different from unused ones. It passes over a record that is locked: a decision may know the positions of
// its counters.
func (s *Store) sweep(st *stripe, now int64, n int) {
	t := st.table.Load()
	all := slots * len(t.buckets)
	var freed [2]int64        // by budget
	for range min(2*n, all) { // many slots are free
		t.sweepAt = (t.sweepAt + 1) % all
		b, i := t.at(t.sweepAt)
		r := b.records[i].Load()
		if r == nil || !r.mu.TryLock() {
			continue
		}
		bytes, unused := r.sweep(now, max(n, scanned))
		of := r.scopeOf(s)
		if unused {
			bytes += r.bytes()
			t.remove(t.sweepAt)
			r.layout = unusedLayout
		}
		r.mu.Unlock()
		of.add(-bytes)
		freed[budgetOf(r.kind)] += bytes
	}
	if t.tooEmpty() {
		st.rebuild(s.hash)
	}
	s.count(limit.Tenant, -freed[allOwners])
	s.count(limit.Address, -freed[unidentified])
}
