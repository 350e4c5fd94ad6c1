package redis

import (
	"encoding/binary"
	"math"
	"strings"
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
	// under which decide.lua keeps its reply for Store.findLost; zero: it does not
	id limit.ReceiptID

	order       []int // the charges in the order in which their tiers are sent and answered: pack by pack
	packs       []int // of each charge: the number of its pack, from 0
	firstResult []int // of each charge: the number of the result of its first tier
	sharedTiers int   // how many tiers are in the pack of the limits that are per tenant, which comes first
	packCount   int   // number of packs

	prefix  []byte // common to all keys of the owner
	keys    []byte // all keys, one after the other
	keyEnds []int  // of each key in keys: where it ends
	shape   []byte // the shape of the request, see encodeShape
	numbers []byte // doubles
	// for decide.lua the heads of all tiers; for a generated script the beginnings of its packs
	heads    []byte
	headEnds []int // for a generated script: where each pack's part of heads ends

	args     []any         // of the EVALSHA command
	keyArgs  []string      // the keys that args points at
	byteArgs []byteArg     // the other texts that args points at
	states   []limit.State // of the counters before the charge, by result
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

// beginArgs writes the arguments that every script gets: two places for the command and the script, the keys, and the
// numbers.
func (q *query) beginArgs() {
	all, start := string(q.keys), 0
	q.keyArgs = q.keyArgs[:0]
	for _, end := range q.keyEnds {
		q.keyArgs = append(q.keyArgs, all[start:end])
		start = end
	}
	if most := 2 + len(q.headEnds); len(q.byteArgs) < most {
		q.byteArgs = make([]byteArg, most+8)
	}
	q.args = append(q.args[:0], nil, nil, len(q.keyEnds))
	for i := range q.keyArgs {
		q.args = append(q.args, &q.keyArgs[i])
	}
	q.addByteArg(0, q.numbers)
}

// addByteArg adds argument number i of those after the keys.
func (q *query) addByteArg(i int, b []byte) {
	q.byteArgs[i] = b
	q.args = append(q.args, &q.byteArgs[i])
}

// generalScriptArgs returns the arguments for decide.lua after encodeGeneral.
func (q *query) generalScriptArgs() []any {
	n := len(q.numbers) / 8
	if n > maxUnpack {
		for ; n%maxUnpack != 0; n++ { // the script unpacks pieces of n numbers
			q.addNumbers(0)
		}
		n = maxUnpack
	}
	q.beginArgs()
	q.args = append(q.args, unpackFormat(n))
	q.addByteArg(1, q.heads)
	return q.args
}

var queries = sync.Pool{New: func() any { return new(query) }}

// maxUnpack is how many numbers decide.lua unpacks at once. The stack of Lua holds 8,000.
const maxUnpack = 4000

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

// hasValues reports whether a limit of the request has values.
func (q *query) hasValues() bool { return q.packCount > 1 || q.sharedTiers == 0 }

// resetArgs empties what encodeGeneral and encodeShape write.
func (q *query) resetArgs() {
	q.numbers, q.heads, q.headEnds = q.numbers[:0], q.heads[:0], q.headEnds[:0]
	q.keys, q.keyEnds = q.keys[:0], q.keyEnds[:0]
}

// encodeGeneral writes the request for decide.lua. The comment at the head of decide.lua lists the numbers.
func (q *query) encodeGeneral() {
	q.resetArgs()
	flags := boolToInt(q.charges) + 2*boolToInt(len(q.req.Leases) > 0) + 4*boolToInt(q.keepsReply())
	q.addNumbers(q.serverNow, flags, int64(q.packCount))
	// a request without limits has a key, too: it tells a cluster's client which server to ask
	if q.sharedTiers > 0 || q.packCount == 0 {
		q.keys = append(q.keys, q.prefix...)
		q.endKey()
	}
	if q.sharedTiers > 0 {
		q.addNumbers(1, int64(q.sharedTiers), 0, 0, 0, 0)
	}
	for _, i := range q.order {
		if c := &q.req.Charges[i]; c.Value.Kind != limit.NoValue {
			q.addValuePack(c)
		}
	}
	for _, i := range q.order {
		c := &q.req.Charges[i]
		for j := range c.Limit.Tiers {
			if len(q.req.Leases) == 0 {
				q.addTier(c, &c.Limit.Tiers[j], c.Cost, i)
				continue
			}
			a := &q.req.Leases[q.firstResult[i]+j]
			q.addTier(c, &c.Limit.Tiers[j], a.Need, i)
			q.addLease(&c.Limit.Tiers[j], a)
		}
	}
	if q.keepsReply() { // the last key
		q.keys = appendReplyKey(q.keys, q.prefix, q.id)
		q.endKey()
	}
}

// keepsReply reports whether decide.lua keeps its reply.
func (q *query) keepsReply() bool { return q.id != limit.ReceiptID{} }

// addValuePack writes the pack of a charge whose limit has values.
func (q *query) addValuePack(c *limit.Charge) {
	tiers := int64(len(c.Limit.Tiers))
	q.keys = appendPackKey(q.keys, q.prefix, c.Limit, c.Value)
	key := q.endKey()
	q.keys = appendPackKey(q.keys, q.prefix, c.Limit, q.req.Owner.OtherValue(c.Value))
	other := q.endKey()
	q.keys = append(c.Limit.AppendKey(append(q.keys, q.prefix...)), "values"...)
	q.addNumbers(key, tiers, 1, other, q.endKey(), int64(c.Limit.MaxValues))
}

// addTier writes a tier that is charged units. group tells the tiers of different limits apart.
func (q *query) addTier(c *limit.Charge, t *limit.Tier, units int64, group int) {
	q.addHead(t)
	flags := boolToInt(c.Limit.Mode == limit.Shadow)
	p := t.Params(q.req.Owner)
	need := units * p.Den
	if c.Cost > t.Capacity() { // such a cost never fits, and the product might be above 2^53
		flags, need = flags|2, 0
	}
	q.addNumbers(int64(t.Algorithm), flags, int64(group))
	numbers := algorithmOf(t).numbers(q, c, t, p, units, need)
	q.addNumbers(numbers[:]...)
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

// addHead appends the head of a tier's record.
func (q *query) addHead(t *limit.Tier) {
	digest := t.Digest()
	q.heads = append(append(q.heads, byte(t.Algorithm)), digest[:]...)
	q.heads = appendDouble(q.heads, rateOf(t))
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

// addNumbers appends numbers to those that the script gets.
func (q *query) addNumbers(numbers ...int64) {
	for _, v := range numbers {
		q.numbers = appendDouble(q.numbers, v)
	}
}

// appendDouble appends a number as a little-endian double.
func appendDouble(b []byte, v int64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(v)))
}

// unpackFormat returns the format by which a script unpacks n doubles.
func unpackFormat(n int) string {
	const head = "<dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"
	if n < len(head) {
		return head[:n+1]
	}
	return "<" + strings.Repeat("d", n)
}
