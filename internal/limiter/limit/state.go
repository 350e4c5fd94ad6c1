package limit

import (
	"slices"
)

// State is what a store remembers of one counter. The zero State is a counter that was never used.
//
// It is a few plain numbers, so that a store in memory can keep the counters of a tenant side by side. What the numbers
// mean depends on the algorithm. Each algorithm's file has a type that names them, such as [TokenBucketState], and two
// functions that convert: one from a State, and one to a State. Stores that write counters elsewhere go by these types.
type State struct {
	a, b, c int64
	extra   *extra // nil if the counter has nothing of what an extra holds
}

// extra holds what a counter may have in addition to its numbers. Logs and buckets of time have one once they are used;
// of token buckets only those that had leases or refunds.
type extra struct {
	refunds Refunds // token_bucket: see TokenBucketState
	leased  Leased
	late    Late
	entries []Entry // sliding_log and sliding_buckets, ascending by time
	dropped int     // entries of the backing array before the start of the slice; their memory is still in use
}

// The memory of an extra, and of each of its entries, in bytes.
const (
	extraBytes = 80
	entryBytes = 16
)

// Entry holds the units that were charged at the time At, or in the bucket of time that begins at At, µs since 1970.
type Entry struct{ At, Units int64 }

// Clone returns a copy that shares no memory with s, and has memory for no more entries than it holds.
func (s *State) Clone() *State {
	c := *s
	if s.extra != nil {
		x := *s.extra
		if x.entries != nil {
			x.entries, x.dropped = append(make([]Entry, 0, len(x.entries)), x.entries...), 0
		}
		c.extra = &x
	}
	return &c
}

// Bytes returns the memory that the state takes in addition to the State value itself.
func (s *State) Bytes() int64 {
	if s.extra == nil {
		return 0
	}
	return extraBytes + int64(s.extra.room())*entryBytes
}

// Used reports whether s is not the zero State: whether anything was ever written to it.
func (s *State) Used() bool { return s.a != 0 || s.b != 0 || s.c != 0 || s.extra != nil }

// ensureExtra returns the extra of s, and makes it first if there is none.
func (s *State) ensureExtra() *extra {
	if s.extra == nil {
		s.extra = new(extra)
	}
	return s.extra
}

// room returns how many entries fit into the allocated memory, including the place of dropped ones.
func (x *extra) room() int { return cap(x.entries) + x.dropped }

// entries returns the entries of s.
func (s *State) entries() []Entry {
	if s.extra == nil {
		return nil
	}
	return s.extra.entries
}

// Equal reports whether two states are the same.
func (s *State) Equal(o *State) bool {
	var none extra
	x, y := &none, &none
	if s.extra != nil {
		x = s.extra
	}
	if o.extra != nil {
		y = o.extra
	}
	return s.a == o.a && s.b == o.b && s.c == o.c && x.refunds == y.refunds && x.leased == y.leased &&
		x.late == y.late && slices.Equal(x.entries, y.entries)
}
