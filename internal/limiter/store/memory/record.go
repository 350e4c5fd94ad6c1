package memory

import (
	"sync"
	"unsafe"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// record is one owner with its counters. The states of its first counters lie directly behind it in memory: a record
// with one state takes 64 bytes, one cache line. The layout says what the states count. Owners that were asked for the
// same tiers share a layout.
//
// The owner's name and kind never change, so they are read without the lock. When a record needs more states than it
// has memory for, a larger one takes its place. The old record then has the layout [unusedLayout], as has a record that
// was removed. Whoever locks such a record must look for the owner again. decideInPlace and decideWithoutMemory need
// not: unusedLayout has no tiers, so they find no counter and decide nothing.
type record struct {
	mu     sync.Mutex
	layout *layout

	name        *byte  // of nameLen bytes; a string would take one word more than the cache line has
	receiptLow  uint32 // the low and high bits of the number of the next receipt, see Store.nextID
	receiptHigh uint16
	nameLen     uint8
	kind        limit.OwnerKind
}

// recordWith is a record and the memory for its states.
type recordWith[States any] struct {
	record
	_ States // see record.states
}

// mostStates is how many states can lie behind a record. Further counters are in [further].
const mostStates = 8

// newRecord makes a record with memory for at least that many states. It has no counter yet.
func newRecord(owner limit.Owner, states int) *record {
	var r *record
	switch memoryFor(states) {
	case 1:
		r = &new(recordWith[[1]limit.State]).record
	case 2:
		r = &new(recordWith[[2]limit.State]).record
	case 3:
		r = &new(recordWith[[3]limit.State]).record
	case 4:
		r = &new(recordWith[[4]limit.State]).record
	case 6:
		r = &new(recordWith[[6]limit.State]).record
	default:
		r = &new(recordWith[[mostStates]limit.State]).record
	}
	r.layout, r.kind = empty, owner.Kind
	r.name, r.nameLen = unsafe.StringData(owner.Name), uint8(len(owner.Name)) //nolint:gosec // for owner, see there
	return r
}

// memoryFor returns for how many states a record has memory that needs n of them.
func memoryFor(n int) int {
	switch {
	case n <= 1:
		return 1
	case n <= 4:
		return n
	case n <= 6:
		return 6
	}
	return mostStates
}

// owner returns the owner's kind and name.
func (r *record) owner() limit.Owner {
	name := unsafe.String(r.name, int(r.nameLen)) //nolint:gosec // the name and the length of the string in newRecord
	return limit.Owner{Kind: r.kind, Name: name}
}

// isOf reports whether the record is that of the owner.
func (r *record) isOf(owner limit.Owner) bool { return r.owner() == owner }

// states returns the states behind the record that are in use: state i counts for tier i of the layout.
func (r *record) states() []limit.State {
	behind := (*limit.State)(unsafe.Add(unsafe.Pointer(r), unsafe.Sizeof(*r))) //nolint:gosec // of one recordWith
	return unsafe.Slice(behind, len(r.layout.tiers))                           //nolint:gosec // memoryFor has so many
}

// withMemoryFor returns r if it has memory for so many states more, or else a larger record with the same counters,
// which no one else knows yet.
func (r *record) withMemoryFor(more int) *record {
	n := len(r.layout.tiers)
	if memoryFor(n+more) == memoryFor(n) {
		return r
	}
	larger := newRecord(r.owner(), n+more)
	larger.layout = r.layout
	copy(larger.states(), r.states())
	return larger
}

// bytes returns an estimate of the memory that the owner takes with all of its counters.
func (r *record) bytes() int64 {
	bytes := sizeOfRecord(r.owner(), len(r.layout.tiers))
	states := r.states()
	for i := range states {
		bytes += states[i].Bytes()
	}
	if f := r.layout.further; f != nil {
		bytes += furtherBytes + f.bytes
	}
	return bytes
}

func sizeOfRecord(owner limit.Owner, states int) int64 {
	return recordBytes + stateBytes*int64(memoryFor(states)) + int64(len(owner.Name))
}

// position tells where a counter of an owner is. Positions below mostStates are those of states behind the record. From
// there on they are those of the counters in [further].
type position int32

// absent is the position of a counter that does not exist.
const absent position = -1

// state returns the state of the counter at a position.
func (r *record) state(at position) *limit.State {
	if at < mostStates {
		return &r.states()[at]
	}
	return &r.layout.further.counters[at-mostStates].state
}

// locate returns the position of the counter that result i of e is about, or absent if there is none yet. A value
// beyond the limit's bound on values is redirected to the counter of the other values, and the result says so. If
// full is set, each value that has no counter is redirected.
func (r *record) locate(s *Store, e *limit.Evaluation, i int, full bool) position {
	t := e.Results[i].Tier
	if tiers := r.layout.tiers; i < len(tiers) && tiers[i] == t { // owners of one plan make their counters in one order
		return position(i)
	}
	v := e.Value(i)
	at := r.position(s, t, v)
	if at != absent || v.Kind == limit.NoValue || !full && r.layout.further.valuesOf(t) < t.Limit().MaxValues {
		return at
	}
	e.Results[i].Other = true
	return r.position(s, t, e.Value(i))
}

// position returns where the counter is, or absent.
func (r *record) position(s *Store, t *limit.Tier, v limit.Value) position {
	if v.Kind == limit.NoValue {
		for i, has := range r.layout.tiers {
			if sameCounter(has, t) {
				return position(i)
			}
		}
	}
	if f := r.layout.further; f != nil {
		if i := f.find(s, t, v); i >= 0 {
			return mostStates + position(i)
		}
	}
	return absent
}

// sameCounter reports whether two tiers, of one limit in two versions of a plan, have the same counter.
func sameCounter(a, b *limit.Tier) bool { return a == b || a.Identity() == b.Identity() }

// addsState reports whether a counter that an owner lacks gets a state behind its record, which has so many states
// already.
func addsState(states int, v limit.Value) bool { return states < mostStates && v.Kind == limit.NoValue }

// add makes a counter, for which there must be memory: its bytes are reserved, and a state is free.
func (r *record) add(s *Store, t *limit.Tier, v limit.Value) position {
	if n := len(r.layout.tiers); addsState(n, v) {
		r.layout = s.layouts.with(r.layout, n, t)
		return position(n)
	}
	f := r.layout.further
	if f == nil {
		f = new(further)
		r.layout = newLayout(r.layout.tiers, f)
	}
	return mostStates + position(f.add(s, t, v))
}

// adopt makes the counter at a position one of the tier t from now on: a limit that was changed takes over its counter.
func (r *record) adopt(s *Store, at position, t *limit.Tier) {
	if at < mostStates {
		r.layout = s.layouts.with(r.layout, int(at), t)
		return
	}
	r.layout.further.counters[at-mostStates].tier = t
}

// tier returns the tier of the counter at a position.
func (r *record) tier(at position) *limit.Tier {
	if at < mostStates {
		return r.layout.tiers[at]
	}
	return r.layout.further.counters[at-mostStates].tier
}

// sweep looks at the states behind the record and at up to n further counters, and forgets what is no different from
// unused. It returns the bytes that come free by that, and whether nothing is left. The caller removes a record of
// which nothing is left.
func (r *record) sweep(now int64, n int) (freed int64, unused bool) {
	unused = true
	states := r.states()
	for i := range states {
		st := &states[i]
		if st.Used() && r.layout.tiers[i].FreshAt(st) <= now {
			freed += st.Bytes()
			*st = limit.State{}
		}
		unused = unused && !st.Used()
	}
	f := r.layout.further
	if f == nil {
		return freed, unused
	}
	freed += f.sweep(now, n)
	if len(f.counters) == 0 {
		r.layout = newLayout(r.layout.tiers, nil)
		return freed + furtherBytes, unused
	}
	return freed, false
}

// charge charges result i to the counter at a position, which has memory enough, and returns by how many bytes it has
// grown. A log that drops its oldest entries can shrink.
func (r *record) charge(e *limit.Evaluation, i int, at position) int64 {
	return r.grew(at, e.Charge(i, r.state(at)))
}

// grew notes that the state at a position takes so many bytes more, and returns them.
func (r *record) grew(at position, bytes int64) int64 {
	if at >= mostStates {
		r.layout.further.bytes += bytes
	}
	return bytes
}

// layout says what the counters of a record are. It never changes; [further] does, and then belongs to one record.
type layout struct {
	tiers   []*limit.Tier  // of the states behind the record, in the same order
	program *limit.Program // of tiers
	further *further       // the counters that are not behind the record, or nil
}

func newLayout(tiers []*limit.Tier, f *further) *layout {
	return &layout{tiers: tiers, program: limit.NewProgram(tiers), further: f}
}

var (
	empty        = newLayout(nil, nil) // of a record without counters
	unusedLayout = newLayout(nil, nil) // of a record that is no longer used
)

// nobody has no counters. It is only read.
var nobody = newRecord(limit.Owner{}, 0)

// layouts makes one layout for all owners with counters of the same tiers in the same order. How many layouts there are
// depends on plans and routes, not on callers. Those that no record has any more are forgotten in time.
type layouts struct {
	mu   sync.Mutex
	made map[layoutStep]*layout
}

// layoutStep is a change of a layout: tier is the tier of the state at, which may be a new one.
type layoutStep struct {
	from *layout
	at   int
	tier *limit.Tier
}

const mostLayouts = 8192 // that are remembered; owners with others have layouts of their own

// with returns a layout like from, in which the state at counts for the tier t.
func (l *layouts) with(from *layout, at int, t *limit.Tier) *layout {
	if from.further != nil {
		return newLayout(withTier(from.tiers, at, t), from.further)
	}
	step := layoutStep{from, at, t}
	l.mu.Lock()
	defer l.mu.Unlock()
	to := l.made[step]
	if to == nil {
		if len(l.made) >= mostLayouts || l.made == nil {
			l.made = make(map[layoutStep]*layout)
		}
		to = newLayout(withTier(from.tiers, at, t), nil)
		l.made[step] = to
	}
	return to
}

// withTier returns a copy of tiers in which t is the one at the index.
func withTier(tiers []*limit.Tier, at int, t *limit.Tier) []*limit.Tier {
	out := make([]*limit.Tier, max(len(tiers), at+1))
	copy(out, tiers)
	out[at] = t
	return out
}
