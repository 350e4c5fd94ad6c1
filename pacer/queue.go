package pacer

import (
	"container/heap"
	"math"
	"time"
)

// ticket is one waiting request. It takes 64 bytes.
type ticket struct {
	waker    Waker
	key      *keyQueue
	cost     int64
	deadline time.Duration // the monotonic time after which the ticket has expired; never: it does not expire
	serial   uint64        // number of the ticket, counted from 1 over all tickets; 0: the node is free
	next     uint32        // the ticket behind this one, of the same key; in a free node, the next free one; 0: none
	prev     uint32        // the ticket before this one; 0: none
	expiry   uint32        // 1 + the position in the heap of deadlines; 0: not in it
}

const never = time.Duration(math.MaxInt64)

// keyQueue holds the waiting tickets of one key, in the order in which they came.
//
// A key is remembered after its last ticket has left, until the virtual time reaches its start tag. If a ticket comes
// before that, the key continues at its tag. Otherwise a key could jump the queue by letting its own queue run empty.
type keyQueue struct {
	name     string
	weight   int64
	start    int64  // the start tag of the first ticket, or of the next one that comes
	rest     int64  // remainder of the latest division by weight, which the start tag has yet to advance
	oldest   uint64 // serial of the first ticket; of keys with the same start tag, the smallest serial is served first
	head     uint32 // the first ticket; 0: none
	tail     uint32
	units    int64 // cost of all tickets
	position int   // in queue.busy if the key has tickets, or else in queue.idle
}

// tagBits is the number of bits of a tag that are a fraction of unit/weight. The largest cost, 2^40, then advances a
// tag by at most 2^60. All tags in the heap lie within that distance of the virtual time, so their order is known also
// after they overflow.
const tagBits = 20

// before reports whether tag a comes before tag b. Tags may overflow.
func before(a, b int64) bool { return a-b < 0 }

const slabSize = 1024 // tickets: 64 KiB

// slab holds nodes for tickets.
type slab [slabSize]ticket

// queue holds all waiting tickets. It does no locking, and reads no clock.
type queue struct {
	keys    map[string]*keyQueue   // all keys in one of the two heaps
	weights map[string]int64       // weights other than 1, by key
	busy    indexedHeap[*keyQueue] // keys with tickets; the first is served next
	idle    indexedHeap[*keyQueue] // keys without tickets whose start tag is after the virtual time
	virtual int64                  // the virtual time: start tag of the ticket that was served last
	spare   *keyQueue              // reused for the next key; saves an allocation if only one request waits at a time

	slabs     []*slab             // node i is slabs[i/slabSize][i%slabSize]
	free      uint32              // first free node; 0: none
	waiting   int                 // number of tickets
	units     int64               // cost of all waiting tickets
	latest    place               // of the ticket that was pushed last
	deadlines indexedHeap[uint32] // nodes of tickets that can expire; the first expires next
}

func newQueue() *queue {
	q := &queue{keys: make(map[string]*keyQueue), weights: make(map[string]int64)}
	q.busy.less = func(a, b *keyQueue) bool {
		if a.start != b.start {
			return before(a.start, b.start)
		}
		return a.oldest < b.oldest
	}
	q.idle.less = func(a, b *keyQueue) bool { return before(a.start, b.start) }
	q.busy.place = func(k *keyQueue, position int) { k.position = position }
	q.idle.place = q.busy.place
	q.deadlines.less = func(a, b uint32) bool { return q.at(a).deadline < q.at(b).deadline }
	q.deadlines.place = func(i uint32, position int) { q.at(i).expiry = uint32(position + 1) }
	return q
}

func (q *queue) at(i uint32) *ticket { return &q.slabs[i/slabSize][i%slabSize] }

// place names the node of a ticket. The serial tells whether the ticket is still in that node.
type place struct {
	node   uint32
	serial uint64
}

// find returns the node of a ticket that still waits, or 0.
func (q *queue) find(t place) uint32 {
	if t.serial == 0 || int(t.node/slabSize) >= len(q.slabs) || q.at(t.node).serial != t.serial {
		return 0
	}
	return t.node
}

// push appends a ticket to the queue of its key.
func (q *queue) push(key string, cost int64, deadline time.Duration, w Waker) {
	i := q.allocate()
	q.latest = place{i, q.latest.serial + 1}
	k := q.keys[key]
	t := q.at(i)
	t.waker, t.cost, t.deadline, t.serial = w, cost, deadline, q.latest.serial
	t.next = 0 // the node was free
	if k == nil {
		k = q.addKey(key, i)
	} else if k.head == 0 {
		heap.Remove(&q.idle, k.position)
		k.head, k.oldest = i, t.serial
		heap.Push(&q.busy, k)
	} else {
		t.prev = k.tail
		q.at(k.tail).next = i
	}
	t.key, k.tail = k, i
	k.units += cost
	q.units += cost
	q.waiting++
	if deadline != never {
		heap.Push(&q.deadlines, i)
	}
}

// addKey remembers a key with its first ticket.
func (q *queue) addKey(key string, first uint32) *keyQueue {
	k := q.spare
	if q.spare = nil; k == nil {
		k = new(keyQueue)
	}
	*k = keyQueue{name: key, weight: 1, start: q.virtual, oldest: q.at(first).serial, head: first}
	if weight, ok := q.weights[key]; ok {
		k.weight = weight
	}
	q.keys[key] = k
	heap.Push(&q.busy, k)
	return k
}

// next returns the ticket that is served next, or 0 if none waits.
func (q *queue) next() uint32 {
	if q.waiting == 0 {
		return 0
	}
	return q.busy.items[0].head
}

// serve takes out the ticket that next has returned, and advances the tag of its key.
func (q *queue) serve(i uint32) {
	t := q.at(i)
	k := t.key
	q.virtual = k.start
	// cost·2^tagBits is at most 2^60, and the rest is smaller than a weight.
	total := t.cost<<tagBits + k.rest
	k.start, k.rest = k.start+total/k.weight, total%k.weight
	q.remove(i)
	for len(q.idle.items) > 0 && !before(q.virtual, q.idle.items[0].start) {
		reached := q.idle.items[0]
		heap.Remove(&q.idle, 0)
		delete(q.keys, reached.name)
	}
}

// isFirst reports whether a ticket is the one that is served next.
func (q *queue) isFirst(i uint32) bool { return i == q.busy.items[0].head }

// remove takes a ticket out, and frees its node. The tickets behind it move up.
func (q *queue) remove(i uint32) {
	q.waiting--
	t := q.at(i)
	k := t.key
	k.units -= t.cost
	q.units -= t.cost
	if t.expiry != 0 {
		heap.Remove(&q.deadlines, int(t.expiry-1))
	}
	first := t.prev == 0
	if first {
		k.head = t.next
	} else {
		q.at(t.prev).next = t.next
	}
	if t.next == 0 {
		k.tail = t.prev
	} else {
		q.at(t.next).prev = t.prev
	}
	*t = ticket{next: q.free}
	q.free = i
	switch {
	case q.waiting == 0:
		q.reset(k)
	case k.head == 0:
		heap.Remove(&q.busy, k.position)
		if before(q.virtual, k.start) {
			heap.Push(&q.idle, k)
		} else {
			delete(q.keys, k.name)
		}
	case first:
		k.oldest = q.at(k.head).serial
		heap.Fix(&q.busy, k.position)
	}
}

// reset forgets all keys when no tickets wait, and frees memory. All keys that come later start at the same tag.
func (q *queue) reset(last *keyQueue) {
	if cap(q.idle.items) > slabSize {
		q.keys = make(map[string]*keyQueue) // a map never shrinks
	}
	clear(q.keys)
	q.busy.empty()
	q.idle.empty()
	q.deadlines.empty()
	if len(q.slabs) > 1 {
		q.slabs, q.free = nil, 0
	}
	q.spare = last
}

// expired returns a ticket whose deadline has passed, or 0.
func (q *queue) expired(now time.Duration) uint32 {
	if len(q.deadlines.items) > 0 && q.at(q.deadlines.items[0]).deadline < now {
		return q.deadlines.items[0]
	}
	return 0
}

// nextDeadline returns the earliest deadline, or never.
func (q *queue) nextDeadline() time.Duration {
	if len(q.deadlines.items) == 0 {
		return never
	}
	return q.at(q.deadlines.items[0]).deadline
}

// unitsBefore returns the cost of all tickets ahead of a new ticket of a key.
func (q *queue) unitsBefore(key string) int64 {
	if k := q.keys[key]; k != nil {
		return k.units
	}
	return 0
}

// setWeight changes the weight of a key for all tickets that are served later.
func (q *queue) setWeight(key string, weight int64) {
	if weight == 1 {
		delete(q.weights, key)
	} else {
		q.weights[key] = weight
	}
	if k := q.keys[key]; k != nil {
		k.weight, k.rest = weight, 0
	}
}

// allocate returns a free node. Node 0 is never used.
func (q *queue) allocate() uint32 {
	if q.free == 0 {
		q.addSlab()
	}
	i := q.free
	q.free = q.at(i).next
	return i
}

// addSlab makes new nodes. None may be free.
func (q *queue) addSlab() {
	base := uint32(len(q.slabs) * slabSize)
	s := new(slab)
	for i := range s {
		s[i].next = base + uint32(i) + 1
	}
	s[slabSize-1].next = 0
	q.slabs = append(q.slabs, s)
	q.free = base
	if base == 0 {
		q.free = 1
	}
}
