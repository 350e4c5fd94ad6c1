package redis

import (
	"encoding/binary"
	"math"
	"sync"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// query holds one decision in the form in which a script gets it: the keys, numbers and heads that the script reads, in
// the order in which its reply holds the states. Queries are reused: see queries.
type query struct {
	req       *limit.Request
	callerNow int64 // the caller's clock, µs; it selects the calendar periods of quotas
	serverNow int64 // a time in place of the server's clock, µs; −1 to use that clock
	charges   bool  // false for a Peek
	// under which decide.lua keeps its reply for Store.findReply; zero: it does not
	id limit.ReceiptID

	order       []int // the charges in the order in which their tiers are sent and answered: pack by pack
	packs       []int // of each charge: the number of its pack, from 0
	firstResult []int // of each charge: the number of the result of its first tier
	sharedTiers int   // how many tiers are in the pack of the limits that are per tenant, which comes first
	packCount   int   // number of packs

	prefix  []byte // common to all keys of the owner
	keys    []byte // all keys, one after the other
	keyEnds []int  // of each key in keys: where it ends
	text    []byte // everything else that decide.lua gets

	args    []any         // of the EVALSHA command
	keyArgs []string      // the keys that args points at
	textArg byteArg       // the text that args points at
	states  []limit.State // of the counters before the charge, by result
}

// byteArg is an argument of a command. A pointer to it is passed without an allocation, in contrast to a slice.
type byteArg []byte

// MarshalBinary is called by the client.
func (b *byteArg) MarshalBinary() ([]byte, error) { return *b, nil }

// begin makes q the query for a request.
func (q *query) begin(s *Store, req *limit.Request, now int64, charge bool) {
	q.req, q.callerNow, q.serverNow, q.charges, q.id = req, now, -1, charge, limit.ReceiptID{}
	if s.callerClock {
		q.serverNow = now
	}
	q.prefix = s.appendPrefix(q.prefix[:0], req.Owner)
	q.orderCharges()
}

// release returns q to the pool.
func (q *query) release() {
	q.req = nil
	clear(q.keyArgs)
	queries.Put(q)
}

// scriptArgs returns the arguments for decide.lua after encode: two places for the command and the script, the keys,
// and the text.
func (q *query) scriptArgs() []any {
	q.args = append(q.args[:0], nil, nil, len(q.keyEnds))
	for i := range q.splitKeys() {
		q.args = append(q.args, &q.keyArgs[i])
	}
	q.textArg = q.text
	q.args = append(q.args, &q.textArg)
	return q.args
}

// splitKeys writes the keys to q.keyArgs, one by one, and returns them.
func (q *query) splitKeys() []string {
	all, start := string(q.keys), 0
	q.keyArgs = q.keyArgs[:0]
	for _, end := range q.keyEnds {
		q.keyArgs = append(q.keyArgs, all[start:end])
		start = end
	}
	return q.keyArgs
}

var queries = sync.Pool{New: func() any { return new(query) }}

// endKey ends the key that was just appended to q.keys, and returns the key's number, from 1.
func (q *query) endKey() int64 {
	q.keyEnds = append(q.keyEnds, len(q.keys))
	return int64(len(q.keyEnds))
}

// orderCharges orders the charges by pack: first the pack of the limits that are per tenant, then one pack for each
// other charge.
func (q *query) orderCharges() {
	req := q.req
	q.order, q.packs, q.firstResult, q.sharedTiers, q.packCount = q.order[:0], q.packs[:0], q.firstResult[:0], 0, 0
	for i := range req.Charges {
		if c := &req.Charges[i]; c.Value.Kind == limit.NoValue {
			q.sharedTiers += len(c.Limit.Tiers)
			q.order = append(q.order, i)
		}
	}
	if q.sharedTiers > 0 {
		q.packCount = 1
	}
	results := 0
	for i := range req.Charges {
		pack := 0
		if req.Charges[i].Value.Kind != limit.NoValue {
			pack = q.packCount
			q.packCount++
			q.order = append(q.order, i)
		}
		q.packs = append(q.packs, pack)
		q.firstResult = append(q.firstResult, results)
		results += len(req.Charges[i].Limit.Tiers)
	}
}

// The flags of a tier in the text for decide.lua.
const (
	shadowTier = 1 << iota // the limit is a shadow limit
	neverFits              // the cost is above what any state can admit
	lastTier               // the last tier of its limit
)

// encode writes the request for decide.lua. The comment at the head of decide.lua says what it gets.
func (q *query) encode() {
	q.text, q.keys, q.keyEnds = q.text[:0], q.keys[:0], q.keyEnds[:0]
	// The keys of packs come before those of sorted sets. A request without limits has a key, too: it tells a cluster's
	// client which server to ask.
	if q.sharedTiers > 0 || q.packCount == 0 {
		q.keys = append(q.keys, q.prefix...)
		q.endKey()
	}
	for _, i := range q.order {
		if c := &q.req.Charges[i]; c.Value.Kind != limit.NoValue {
			q.addValueKeys(c)
		}
	}
	flags := byte(boolToInt(q.charges) + 2*boolToInt(len(q.req.Leases) > 0) + 4*boolToInt(q.keepsReply()))
	q.addNumbers(q.serverNow)
	q.text = append(q.text, flags, 0, 0)
	q.text = binary.LittleEndian.AppendUint16(q.text, uint16(q.packCount))
	pack := -1
	for n, i := range q.order {
		if q.packs[i] != pack {
			pack = q.packs[i]
			q.addPack(q.order[n:])
		}
		q.addTiers(i)
	}
	if q.keepsReply() { // the last key
		q.keys = appendReplyKey(q.keys, q.prefix, q.id)
		q.endKey()
	}
	binary.LittleEndian.PutUint16(q.text[keyCountAt:], uint16(len(q.keyEnds)))
}

// keyCountAt is where the number of keys is in the text for decide.lua.
const keyCountAt = 9

// keepsReply reports whether decide.lua keeps its reply.
func (q *query) keepsReply() bool { return q.id != limit.ReceiptID{} }

// addValueKeys adds the keys of the pack of a charge whose limit has values.
func (q *query) addValueKeys(c *limit.Charge) {
	q.keys = appendPackKey(q.keys, q.prefix, c.Limit, c.Value)
	q.endKey()
	q.keys = appendPackKey(q.keys, q.prefix, c.Limit, q.req.Owner.OtherValue(c.Value))
	q.endKey()
	q.keys = append(c.Limit.AppendKey(append(q.keys, q.prefix...)), "values"...)
	q.endKey()
}

// version begins each pack that this package reads and writes.
const version = "SLU7"

// appendHead appends the head of a tier's state in a pack.
func appendHead(b []byte, t *limit.Tier) []byte {
	digest := t.Digest()
	return append(append(b, byte(t.Algorithm)), digest[:]...)
}

// addPack writes what comes before the tiers of a pack. The pack holds the first of the charges, or all that are per
// tenant if the first one is.
func (q *query) addPack(order []int) {
	first := &q.req.Charges[order[0]]
	mostValues, tiers := first.Limit.MaxValues, len(first.Limit.Tiers)
	if first.Value.Kind == limit.NoValue {
		mostValues, tiers = 0, q.sharedTiers
	}
	q.text = binary.LittleEndian.AppendUint32(q.text, uint32(mostValues))
	q.text = append(q.text, version...)
	q.text = binary.LittleEndian.AppendUint16(q.text, uint16(tiers))
	for _, i := range order {
		c := &q.req.Charges[i]
		if q.packs[i] != q.packs[order[0]] {
			return
		}
		for j := range c.Limit.Tiers {
			q.text = appendHead(q.text, &c.Limit.Tiers[j])
		}
	}
}

// addTiers writes the tiers of a charge, each with the units that it is charged.
func (q *query) addTiers(charge int) {
	c := &q.req.Charges[charge]
	for j := range c.Limit.Tiers {
		t, units, ask := &c.Limit.Tiers[j], c.Cost, (*limit.LeaseRequest)(nil)
		if len(q.req.Leases) > 0 {
			ask = &q.req.Leases[q.firstResult[charge]+j]
			units = ask.Need
		}
		p, flags := t.Params(q.req.Owner), byte(0)
		need := units * p.Den
		if c.Limit.Mode == limit.Shadow {
			flags |= shadowTier
		}
		if c.Cost > t.Capacity() { // the product might be above 2^53
			flags, need = flags|neverFits, 0
		}
		if j == len(c.Limit.Tiers)-1 {
			flags |= lastTier
		}
		numbers := algorithmOf(t).numbers(q, c, t, p, units, need)
		q.text = append(q.text, byte(t.Algorithm), flags)
		q.addNumbers(numbers[:]...)
		if ask != nil {
			q.addLease(t, ask)
		}
	}
}

// addLease writes the lease and the correction that are asked of a tier.
func (q *query) addLease(t *limit.Tier, a *limit.LeaseRequest) {
	correction, offset := a.Correction, int64(0)
	if correct := algorithmOf(t).correction; correct != nil {
		correction, offset = correct(q, t, a)
	}
	q.addNumbers(a.Least, a.Most, a.Ample, a.Plenty, a.Share, a.Life, boolToInt(a.Ramp))
	q.addNumbers(correction, a.CorrectionAt, offset)
}

// addSetKey adds the key of the sorted set of a sliding_log or of sliding_buckets, and returns its number.
func (q *query) addSetKey(l *limit.Limit, v limit.Value, digest [16]byte) int64 {
	q.keys = appendSetKey(q.keys, q.prefix, l, v, digest)
	return q.endKey()
}

func boolToInt(v bool) int64 {
	if v {
		return 1
	}
	return 0
}

// addNumbers appends doubles to the text.
func (q *query) addNumbers(numbers ...int64) {
	for _, v := range numbers {
		q.text = appendDouble(q.text, v)
	}
}

// appendDouble appends a number as a little-endian double.
func appendDouble(b []byte, v int64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(v)))
}
