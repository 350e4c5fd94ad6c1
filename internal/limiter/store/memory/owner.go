package memory

import (
	"hash/maphash"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// What things take, in bytes: the structs, and their share of tables, maps and slices. TestBytesEstimate holds them
// against the heap.
const (
	ownerBytes   = 372
	counterBytes = 88
	valueBytes   = 112 // of a counter with a value, beside its text
	wordBytes    = 40  // of 64 receipts, see refunds
)

const scanned = 8 // counters; up to here a scan beats a map

// owner is all that one owner has counted.
type owner struct {
	name     limit.Owner
	counters []counter // of any tier and value, in no order
	*rare              // never nil; nothingRare until there is something to write
	bytes    int64     // that the owner takes with its counters
}

// The first counters lie behind their owner, where a decision finds them without another cache miss: together they are
// two or four cache lines.
type (
	ownerOfOne struct {
		owner
		few [1]counter
	}
	ownerOfThree struct {
		owner
		few [3]counter
	}
)

// newOwner makes an owner with room for its first counters.
func newOwner(name limit.Owner, counters int) *owner {
	if counters == 1 {
		o := &ownerOfOne{owner: owner{name: name, rare: &nothingRare}}
		o.counters = o.few[:0]
		return &o.owner
	}
	o := &ownerOfThree{owner: owner{name: name, rare: &nothingRare}}
	o.counters = o.few[:0]
	return &o.owner
}

// rare is what most owners never have. It is written only through [owner.writable], because owners share nothingRare.
type rare struct {
	byHash  map[uint64]int32 // position in counters, once there are more than scanned
	clashed bool             // two counters have had one hash, so a hit in byHash may need a scan
	values  map[string]int   // distinct values per tier identity, for tiers that have values
	hand    int              // where the sweep goes on
}

var nothingRare rare // only read

// nobody has counted nothing. It is only read.
var nobody = owner{rare: &nothingRare}

// absent is the position of a counter that does not exist.
const absent = -1

// writable is the owner's own rare part.
func (o *owner) writable() *rare {
	if o.rare == &nothingRare {
		o.rare = new(rare)
	}
	return o.rare
}

// counter fits into one cache line.
type counter struct {
	tier  *limit.Tier
	value *value // nil where the tier has no values
	state limit.State
}

type value struct {
	hash uint64 // of tier and value
	limit.Value
}

func sizeOfOwner(o limit.Owner) int64 { return ownerBytes + int64(len(o.Name)) }

func sizeOfCounter(v limit.Value) int64 {
	if v.Kind == limit.NoValue {
		return counterBytes
	}
	return counterBytes + valueBytes + int64(len(v.Text))
}

// charge charges result i. It returns by how many bytes the counter has grown. Unless roomy is set, the state of the counter
// may lack room for the charge; it then grows if grow is set.
func (c *counter) charge(e *limit.Evaluation, i int, roomy, grow bool) (bytes int64) {
	if t := e.Results[i].Tier; c.tier != t {
		c.tier = t // a changed limit takes over its counter
	}
	before := c.state.Bytes()
	if !roomy {
		if _, entries := e.Room(i, &c.state); entries > 0 {
			if !grow {
				entries = 0
			}
			e.Grow(i, &c.state, entries)
		}
	}
	e.Charge(i, &c.state)
	return c.state.Bytes() - before
}

func (c *counter) hash() uint64 {
	if c.value != nil {
		return c.value.hash
	}
	return c.tier.IdentityHash()
}

func (c *counter) isOf(t *limit.Tier) bool { return c.tier == t || c.tier.Identity() == t.Identity() }

func (c *counter) is(hash uint64, t *limit.Tier, v limit.Value) bool {
	if c.value == nil {
		return v.Kind == limit.NoValue && c.isOf(t)
	}
	return c.value.hash == hash && c.value.Value == v && c.isOf(t)
}

func hashOf(s *Store, t *limit.Tier, v limit.Value) uint64 {
	h := t.IdentityHash()
	if v.Kind != limit.NoValue {
		h ^= maphash.String(s.seed, v.Text) + uint64(v.Kind)*0x9e3779b97f4a7c15
	}
	return h
}

// locate returns the position of the counter that result i of e is about, or absent if there is none yet. A value beyond
// the limit's bound on values is redirected to the counter of the other values, and the result says so. If full is set,
// each value that has no counter is redirected.
func (o *owner) locate(s *Store, e *limit.Evaluation, i int, full bool) int32 {
	t := e.Results[i].Tier
	if i < len(o.counters) { // owners of one plan make their counters in one order
		if c := &o.counters[i]; c.tier == t && c.value == nil {
			return int32(i)
		}
	}
	v := e.Value(i)
	pos := o.position(s, t, v)
	if pos >= 0 || v.Kind == limit.NoValue || !full && o.values[t.Identity()] < t.Limit().MaxValues {
		return pos
	}
	e.Results[i].Other = true
	return o.position(s, t, e.Value(i))
}

// position is where the counter is, or absent.
func (o *owner) position(s *Store, t *limit.Tier, v limit.Value) int32 {
	hash := hashOf(s, t, v)
	if o.byHash != nil {
		i, ok := o.byHash[hash]
		if !ok {
			return absent
		}
		if o.counters[i].is(hash, t, v) {
			return i
		}
	}
	for i := range o.counters {
		if o.counters[i].is(hash, t, v) {
			return int32(i)
		}
	}
	return absent
}

// add makes a counter. Its bytes are reserved already.
func (o *owner) add(s *Store, t *limit.Tier, v limit.Value) int32 {
	pos := int32(len(o.counters))
	c := counter{tier: t}
	if v.Kind != limit.NoValue {
		c.value = &value{hash: hashOf(s, t, v), Value: v}
		if v.Kind != limit.ValueOther {
			if o.values == nil {
				o.writable().values = make(map[string]int)
			}
			o.values[t.Identity()]++
		}
	}
	o.counters = append(o.counters, c)
	switch {
	case o.byHash != nil:
		o.note(pos)
	case len(o.counters) > scanned:
		o.reindex()
	}
	return pos
}

func (o *owner) note(pos int32) {
	h := o.counters[pos].hash()
	if _, taken := o.byHash[h]; taken {
		o.clashed = true
		return
	}
	o.byHash[h] = pos
}

func (o *owner) reindex() {
	w := o.writable()
	w.byHash, w.clashed = make(map[uint64]int32, 2*len(o.counters)), false
	for i := range o.counters {
		o.note(int32(i))
	}
}

// forget removes the counter at pos; the last one takes its place.
func (o *owner) forget(pos int32) (bytes int64) {
	c := &o.counters[pos]
	bytes = counterBytes + c.state.Bytes()
	if c.value != nil {
		bytes = sizeOfCounter(c.value.Value) + c.state.Bytes()
		if id := c.tier.Identity(); c.value.Kind != limit.ValueOther {
			if o.values[id]--; o.values[id] == 0 {
				delete(o.values, id)
			}
		}
	}
	last := int32(len(o.counters) - 1)
	if o.byHash != nil && !o.clashed {
		delete(o.byHash, c.hash())
		if pos != last {
			o.byHash[o.counters[last].hash()] = pos
		}
	}
	o.counters[pos] = o.counters[last]
	o.counters[last] = counter{}
	o.counters = o.counters[:last]
	if o.clashed {
		o.reindex()
	}
	return bytes
}

// sweep looks at up to n owners of the shard, and at some counters of each, and forgets what is no different from unused.
// keep is passed over: a decision knows the positions of its counters.
func (s *Store) sweep(sh *shard, now int64, n int, keep *owner) {
	t := &sh.table
	var freed [2]int64                 // by budget
	for range min(2*n, len(t.slots)) { // about half of the slots are free
		t.hand &= len(t.slots) - 1
		o := t.slots[t.hand].owner
		if o == nil || o == keep {
			t.hand++
			continue
		}
		of := budgetOf(o.name.Kind)
		freed[of] += o.sweep(now, max(n, scanned))
		if len(o.counters) > 0 {
			t.hand++
			continue
		}
		freed[of] += sizeOfOwner(o.name)
		t.remove(t.hand) // what steps back into this slot is looked at next
	}
	s.count(limit.Tenant, -freed[everybody])
	s.count(limit.Address, -freed[unidentified])
}

// sweep looks at up to n counters, and returns the bytes of those that it forgets.
func (o *owner) sweep(now int64, n int) (freed int64) {
	at := 0
	if len(o.counters) > n { // else all of them are looked at
		at = o.hand
	}
	for range min(n, len(o.counters)) {
		if at >= len(o.counters) {
			at = 0
		}
		if c := &o.counters[at]; c.tier.FreshAt(&c.state) <= now {
			freed += o.forget(int32(at))
			continue
		}
		at++
	}
	if len(o.counters) > n {
		o.writable().hand = at
	}
	if freed > 0 {
		o.shrink()
	}
	o.bytes -= freed
	return freed
}

// shrink gives memory back once more counters have been forgotten than are left. The copy takes less than one step for
// each counter that was forgotten since the last one.
func (o *owner) shrink() {
	if n := len(o.counters); cap(o.counters) > 2*scanned && 2*n < cap(o.counters) {
		o.counters = append(make([]counter, 0, n+n/4), o.counters...)
		switch {
		case o.byHash == nil:
		case n > scanned:
			o.reindex()
		default:
			o.byHash, o.clashed = nil, false
		}
	}
}
