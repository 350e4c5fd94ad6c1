package limit

import (
	"slices"
)

// State is what a store remembers of one counter. The zero State is a counter that was never used.
//
// It is a few plain numbers, so that a store in memory can keep the counters of a tenant side by side. What the numbers mean
// depends on the algorithm. Each algorithm's file has a type that names them, such as [TokenBucketState], and two functions
// that convert: one from a State, and one to a State. Stores that write counters elsewhere go by these types.
type State struct {
	a, b, c int64
	extra   *extra // what few counters have; nil: nothing
}

// extra is what few counters have beside their numbers.
type extra struct {
	refunds Refunds // token_bucket: see TokenBucketState
	leased  Leased
	late    Late
	entries []Entry // sliding_log and sliding_buckets, ascending by time
	dropped int     // entries before the slice that were dropped, and whose memory is still there
}

// Bytes that an extra takes, and each entry of it.
const (
	extraBytes = 80
	entryBytes = 16
)

// Entry is units that were charged at a time, or in a bucket of time that begins then. µs since 1970.
type Entry struct{ At, Units int64 }

// Clone returns a copy that shares no memory with s, and has room for no more entries than it holds.
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

// Bytes is what the state takes beside the State itself.
func (s *State) Bytes() int64 {
	if s.extra == nil {
		return 0
	}
	return extraBytes + int64(s.extra.room())*entryBytes
}

// Used reports whether anything was ever counted: it is false for the zero State.
func (s *State) Used() bool { return s.a != 0 || s.b != 0 || s.c != 0 || s.extra != nil }

// ensureExtra returns the extra of s, and makes it first if there is none.
func (s *State) ensureExtra() *extra {
	if s.extra == nil {
		s.extra = new(extra)
	}
	return s.extra
}

// room is for how many entries there is memory.
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
	return s.a == o.a && s.b == o.b && s.c == o.c && x.refunds == y.refunds && x.leased == y.leased && x.late == y.late &&
		slices.Equal(x.entries, y.entries)
}
