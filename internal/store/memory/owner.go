package memory

import (
	"hash/maphash"

	"github.com/sluicelimits/sluice/internal/limit"
)

// What things take, in bytes: the structs, and their share of maps and slices. Measured by TestBytesEstimate.
const (
	ownerBytes   = 320
	counterBytes = 192
	stampBytes   = 16
	receiptBytes = 64

	fewCounters = 8 // up to here a scan beats a map
)

// owner is all that one owner has counted.
type owner struct {
	hash64   uint64
	name     limit.Owner
	next     *owner // of the same hash
	counters []counter
	byHash   map[uint64]int32 // position in counters, once there are more than fewCounters
	clashed  bool             // two counters have had one hash, so a hit in byHash may need a scan
	values   map[string]int   // distinct values per tier identity, for valued tiers
	refunded map[limit.ReceiptID]int64
	hand     int
}

type counter struct {
	hash  uint64
	tier  *limit.Tier
	value limit.Value
	state limit.State
}

func (c *counter) is(hash uint64, t *limit.Tier, v limit.Value) bool {
	return c.hash == hash && (c.tier == t || c.tier.Identity() == t.Identity()) && c.value == v
}

func (sh *shard) find(hash uint64, name limit.Owner) *owner {
	o := sh.owners[hash]
	for o != nil && o.name != name {
		o = o.next
	}
	return o
}

func (sh *shard) add(hash uint64, name limit.Owner, counters int) *owner {
	o := &owner{hash64: hash, name: name, next: sh.owners[hash], counters: make([]counter, 0, counters)}
	sh.owners[hash] = o
	sh.all = append(sh.all, o)
	return o
}

// drop forgets the owner at position i of sh.all.
func (sh *shard) drop(i int) {
	o := sh.all[i]
	last := len(sh.all) - 1
	sh.all[i], sh.all[last] = sh.all[last], nil
	sh.all = sh.all[:last]
	head := sh.owners[o.hash64]
	if head == o {
		if o.next == nil {
			delete(sh.owners, o.hash64)
		} else {
			sh.owners[o.hash64] = o.next
		}
		return
	}
	for head.next != o {
		head = head.next
	}
	head.next = o.next
}

func (o *owner) hash(s *Store, t *limit.Tier, v limit.Value) uint64 {
	h := t.IdentityHash()
	if v.Kind != limit.NoValue {
		h ^= maphash.String(s.seed, v.Text) + uint64(v.Kind)*0x9e3779b97f4a7c15
	}
	return h
}

// index is the position of a counter, or -1. guess is where it may well be: owners of one plan make theirs in one order.
func (o *owner) index(hash uint64, t *limit.Tier, v limit.Value, guess int32) int32 {
	if int(guess) < len(o.counters) && o.counters[guess].is(hash, t, v) {
		return guess
	}
	if o.byHash != nil {
		i, ok := o.byHash[hash]
		if !ok {
			return -1
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
	return -1
}

// locate is the position of the counter that a result is about, or -1 where it has none yet. A value beyond the limit's
// bound on values is redirected to the shared counter, and the result says so.
func (o *owner) locate(s *Store, r *limit.Result, guess int32) int32 {
	t := r.Tier
	pos := o.index(o.hash(s, t, r.Value), t, r.Value, guess)
	if pos >= 0 || !t.Valued() || r.Value.Kind == limit.ValueOther || o.values[t.Identity()] < t.Limit().MaxValues {
		return pos
	}
	r.Value = limit.Value{Kind: limit.ValueOther}
	return o.index(o.hash(s, t, r.Value), t, r.Value, guess)
}

// add makes the counter that a result is about. Its bytes are reserved already.
func (o *owner) add(s *Store, r *limit.Result) int32 {
	pos := int32(len(o.counters))
	h := o.hash(s, r.Tier, r.Value)
	o.counters = append(o.counters, counter{hash: h, tier: r.Tier, value: r.Value})
	if r.Tier.Valued() && r.Value.Kind != limit.ValueOther {
		if o.values == nil {
			o.values = make(map[string]int)
		}
		o.values[r.Tier.Identity()]++
	}
	switch {
	case o.byHash != nil:
		o.note(pos)
	case len(o.counters) > fewCounters:
		o.reindex()
	}
	return pos
}

func (o *owner) note(pos int32) {
	h := o.counters[pos].hash
	if _, taken := o.byHash[h]; taken {
		o.clashed = true
		return
	}
	o.byHash[h] = pos
}

func (o *owner) reindex() {
	o.byHash = make(map[uint64]int32, 2*len(o.counters))
	o.clashed = false
	for i := range o.counters {
		o.note(int32(i))
	}
}

// forget removes the counter at pos; the last one takes its place.
func (o *owner) forget(pos int32) (bytes int64) {
	c := &o.counters[pos]
	bytes = counterBytes + int64(len(c.value.Text)) + int64(cap(c.state.Stamps))*stampBytes
	if id := c.tier.Identity(); c.tier.Valued() && c.value.Kind != limit.ValueOther {
		if o.values[id]--; o.values[id] == 0 {
			delete(o.values, id)
		}
	}
	last := int32(len(o.counters) - 1)
	if o.byHash != nil && !o.clashed {
		delete(o.byHash, c.hash)
		if pos != last {
			o.byHash[o.counters[last].hash] = pos
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
	freed := int64(0)
	for range min(n, len(sh.all)) {
		if len(sh.all) == 0 {
			break
		}
		if sh.hand >= len(sh.all) {
			sh.hand = 0
		}
		o := sh.all[sh.hand]
		if o == keep {
			sh.hand++
			continue
		}
		freed += o.sweep(now, max(n, fewCounters))
		if len(o.counters) == 0 && len(o.refunded) == 0 {
			freed += ownerBytes + int64(len(o.name.Name))
			sh.drop(sh.hand)
			continue
		}
		sh.hand++
	}
	s.release(freed)
}

func (o *owner) sweep(now int64, n int) (freed int64) {
	for range min(n, len(o.counters)) {
		if len(o.counters) == 0 {
			break
		}
		if o.hand >= len(o.counters) {
			o.hand = 0
		}
		if c := &o.counters[o.hand]; c.tier.FreshAt(&c.state) <= now {
			freed += o.forget(int32(o.hand))
			continue
		}
		o.hand++
	}
	looked := 0
	for id, until := range o.refunded {
		if looked++; looked > n {
			break
		}
		if until <= now {
			delete(o.refunded, id)
			freed += receiptBytes
		}
	}
	return freed
}
