package redis

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/sluicelimits/sluice/internal/limit"
)

// question is what a script is asked, reusable.
type question struct {
	req    *limit.Request
	now    int64 // the caller's clock, µs, for the edges of quotas
	clock  int64 // in place of the server's, or -1
	charge bool

	order  []int // charges in the order of their packs, in which tiers are asked and answered
	packs  []int // of each charge: its pack, from 0
	first  []int // of each charge: its first tier's result
	shared int   // tiers in the pack of what every request counts; that pack comes first
	count  int   // packs

	prefix  []byte // of all keys of the owner
	keys    []byte // all keys, one after the other
	ends    []int  // of each key in keys
	shape   []byte // see shape.go
	numbers []byte // doubles
	ids     []byte // 25 bytes a tier; for a shape, the heads of its packs
	heads   []int  // ends of the heads in ids

	args   []any
	texts  []string // the keys that args point at
	bytes  []blob   // what else they point at
	states []limit.State
}

// blob is an argument of a command. A pointer to one is passed without an allocation, unlike a slice.
type blob []byte

// MarshalBinary is what the client sends.
func (b *blob) MarshalBinary() ([]byte, error) { return *b, nil }

// begin makes q the question for a request.
func (q *question) begin(s *Store, req *limit.Request, now int64, charge bool) {
	q.req, q.now, q.clock, q.charge = req, now, -1, charge
	if s.callerClock {
		q.clock = now
	}
	q.prefix = s.appendPrefix(q.prefix[:0], req.Owner)
	q.arrange()
}

// end lets q be used again.
func (q *question) end() {
	q.req = nil
	clear(q.texts)
	questions.Put(q)
}

// argsBegin writes what every script gets: two places for the command and the script, the keys, and the numbers.
func (q *question) argsBegin() {
	all, start := string(q.keys), 0
	q.texts = q.texts[:0]
	for _, end := range q.ends {
		q.texts = append(q.texts, all[start:end])
		start = end
	}
	if most := 2 + len(q.heads); len(q.bytes) < most {
		q.bytes = make([]blob, most+8)
	}
	q.args = append(q.args[:0], nil, nil, len(q.ends))
	for i := range q.texts {
		q.args = append(q.args, &q.texts[i])
	}
	q.argument(0, q.numbers)
}

func (q *question) argument(i int, b []byte) {
	q.bytes[i] = b
	q.args = append(q.args, &q.bytes[i])
}

// generalArgs are the arguments for decide.lua that encode wrote, with room for two in front.
func (q *question) generalArgs() []any {
	n := len(q.numbers) / 8
	if n > maxUnpack {
		for ; n%maxUnpack != 0; n++ { // the script unpacks whole pieces
			q.add(0)
		}
		n = maxUnpack
	}
	q.argsBegin()
	q.args = append(q.args, format(n))
	q.argument(1, q.ids)
	return q.args
}

var questions = sync.Pool{New: func() any { return new(question) }}

// maxUnpack is how many numbers the script unpacks at once. Lua's stack holds 8,000.
const maxUnpack = 4000

// space is the part of each key that names the namespace: its netstring, or nothing if it is empty. A "}" in it would end
// the part of the key that a cluster hashes, and all owners of the namespace would share one slot, so it is escaped.
func space(namespace string) string {
	if namespace == "" {
		return ""
	}
	return string(limit.AppendNetstring(nil, strings.NewReplacer("%", "%25", "}", "%7D").Replace(namespace)))
}

// appendPrefix begins every key of an owner: "{rl:", the namespace and the owner's part. What follows the first "}" is not hashed by a
// cluster, so all of an owner's keys share a slot; a "}" in the name only makes the hashed part shorter.
func (s *Store) appendPrefix(b []byte, o limit.Owner) []byte {
	return append(o.AppendKey(append(append(b, "{rl:"...), s.space...)), '}')
}

// appendPackKey is the key of the pack that holds a counter of the limit: one pack of the owner for all limits that are
// per tenant, and one for each limit and value of the others.
func appendPackKey(b, prefix []byte, l *limit.Limit, v limit.Value) []byte {
	b = append(b, prefix...)
	if v.Kind == limit.NoValue {
		return b
	}
	return appendCounterKey(b, l, v)
}

// appendCounterKey appends the parts of a key that name the limit and the value.
func appendCounterKey(b []byte, l *limit.Limit, v limit.Value) []byte {
	return v.AppendKey(l.AppendKey(b))
}

// key adds the key that was appended to q.keys since the last one, and returns its number, from 1.
func (q *question) key() int64 {
	q.ends = append(q.ends, len(q.keys))
	return int64(len(q.ends))
}

// arrange puts the charges in order: those of the shared pack first, then one pack for each other.
func (q *question) arrange() {
	req := q.req
	q.order, q.packs, q.first, q.shared, q.count = q.order[:0], q.packs[:0], q.first[:0], 0, 0
	for i := range req.Charges {
		if c := &req.Charges[i]; c.Value.Kind == limit.NoValue {
			q.shared += len(c.Limit.Tiers)
			q.order = append(q.order, i)
		}
	}
	if q.shared > 0 {
		q.count = 1
	}
	results := 0
	for i := range req.Charges {
		pack := 0
		if req.Charges[i].Value.Kind != limit.NoValue {
			pack = q.count
			q.count++
			q.order = append(q.order, i)
		}
		q.packs = append(q.packs, pack)
		q.first = append(q.first, results)
		results += len(req.Charges[i].Limit.Tiers)
	}
}

// reset empties what encode and encodeShape write.
func (q *question) reset() {
	q.numbers, q.ids, q.heads, q.keys, q.ends = q.numbers[:0], q.ids[:0], q.heads[:0], q.keys[:0], q.ends[:0]
}

// encode writes the arranged request for decide.lua.
func (q *question) encode() {
	q.reset()
	q.add(q.clock, asInt(q.charge)+2*asInt(len(q.req.Leases) > 0), int64(q.count))
	if q.shared > 0 || q.count == 0 { // a key even where there are no limits: it says which server of a cluster to ask
		q.keys = append(q.keys, q.prefix...)
		q.key()
	}
	if q.shared > 0 {
		q.add(1, int64(q.shared), 0, 0, 0, 2)
	}
	for _, i := range q.order {
		if c := &q.req.Charges[i]; c.Value.Kind == limit.NoValue { // where an earlier version may have kept it
			q.keys = c.Limit.AppendKey(append(q.keys, q.prefix...))
			q.key()
		} else {
			q.addPack(c)
		}
	}
	for _, i := range q.order {
		c := &q.req.Charges[i]
		for j := range c.Limit.Tiers {
			if len(q.req.Leases) == 0 {
				q.addTier(c, &c.Limit.Tiers[j], c.Cost, i)
				continue
			}
			a := &q.req.Leases[q.first[i]+j]
			q.addTier(c, &c.Limit.Tiers[j], a.Need, i)
			q.addLease(&c.Limit.Tiers[j], a)
		}
	}
}

func (q *question) addPack(c *limit.Charge) {
	tiers := int64(len(c.Limit.Tiers))
	q.keys = appendPackKey(q.keys, q.prefix, c.Limit, c.Value)
	key := q.key()
	q.keys = appendPackKey(q.keys, q.prefix, c.Limit, q.req.Owner.OtherValue(c.Value))
	other := q.key()
	q.keys = append(c.Limit.AppendKey(append(q.keys, q.prefix...)), "values"...)
	q.add(key, tiers, 1, other, q.key(), int64(c.Limit.MaxValues))
}

// addTier writes what is asked of a tier: room for units.
func (q *question) addTier(c *limit.Charge, t *limit.Tier, units int64, group int) {
	q.addID(t)
	flags := asInt(c.Limit.Mode == limit.Shadow)
	p := t.Params(q.req.Owner)
	need := units * p.Den
	if c.Cost > t.Capacity() { // never: the product might pass 2^53
		flags, need = flags|2, 0
	}
	q.add(int64(t.Algorithm), flags, int64(group))
	numbers := of(t).ask(q, c, t, p, units, need)
	q.add(numbers[:]...)
}

// addLease writes what is asked of a tier beyond that.
func (q *question) addLease(t *limit.Tier, a *limit.LeaseRequest) {
	correction, offset := a.Correction, int64(0)
	if correct := of(t).correction; correct != nil {
		correction, offset = correct(q, t, a)
	}
	q.add(a.Least, a.Most, a.Ample, a.Plenty, a.Share, a.Life, asInt(a.Ramp), correction, a.CorrectionAt, offset)
}

// idBytes is the length of a record's head in a pack: the algorithm, half a SHA-256 of the tier's identity, and what its
// state is counted in (see rateOf).
const idBytes = 25

// addID appends the head of a tier's record.
func (q *question) addID(t *limit.Tier) {
	digest := t.Digest()
	q.ids = append(append(q.ids, byte(t.Algorithm)), digest[:]...)
	q.ids = appendDouble(q.ids, rateOf(t))
}

// stampsKey is the number of the key of the sorted set of a log or of buckets.
func (q *question) stampsKey(l *limit.Limit, v limit.Value, digest [16]byte) int64 {
	q.keys = appendStampsKey(q.keys, q.prefix, l, v, digest)
	return q.key()
}

func appendStampsKey(b, prefix []byte, l *limit.Limit, v limit.Value, digest [16]byte) []byte {
	return append(append(appendCounterKey(append(b, prefix...), l, v), "stamps"...), digest[:]...)
}

func asInt(v bool) int64 {
	if v {
		return 1
	}
	return 0
}

func (q *question) add(numbers ...int64) {
	for _, v := range numbers {
		q.numbers = appendDouble(q.numbers, v)
	}
}

func appendDouble(b []byte, v int64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(v)))
}

// format is how the script unpacks n doubles.
func format(n int) string {
	const head = "<dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"
	if n < len(head) {
		return head[:n+1]
	}
	return "<" + strings.Repeat("d", n)
}

// errReply is an answer that is not the script's.
var errReply = errors.New("the reply is not the script's")

// answer is a reply of a script: doubles.
type answer struct {
	rest  string
	empty bool // every state is unused
	bad   bool
	odd   bool // bad, for a number in it is no integer
}

// integer reads a double that must hold an integer of at most 2^53.
func (a *answer) integer() int64 {
	if len(a.rest) < 8 {
		a.bad = true
		return 0
	}
	r := a.rest[:8]
	v := math.Float64frombits(uint64(r[0]) | uint64(r[1])<<8 | uint64(r[2])<<16 | uint64(r[3])<<24 |
		uint64(r[4])<<32 | uint64(r[5])<<40 | uint64(r[6])<<48 | uint64(r[7])<<56)
	a.rest = a.rest[8:]
	if v != math.Trunc(v) || math.Abs(v) > 1<<53 {
		a.bad, a.odd = true, true
		return 0
	}
	return int64(v)
}

// decode fills d from the reply: the states before the charge go through the core once more, which must come to the
// script's conclusion. general says that the reply is decide.lua's.
func (q *question) decode(reply string, general bool, d *limit.Decision) error {
	a := answer{rest: reply}
	now := a.integer()
	admitted := now & 1
	if general {
		admitted = a.integer()
	} else {
		now >>= 1
	}
	e := d.BeginChecked(q.adjusted(), now)
	q.states = slices.Grow(q.states[:0], len(d.Results))[:len(d.Results)]
	clear(q.states)
	if general {
		q.decodeGeneral(&a, d)
	} else {
		q.decodeShape(&a)
	}
	if a.odd && !general { // the script of a shape sends the packs as they are
		return fmt.Errorf("%w: a number of a pack is no integer", limit.ErrUnreadable)
	}
	if a.bad || len(a.rest) > 0 || admitted < 0 || admitted > 1 {
		return fmt.Errorf("%w: %d bytes, %d of them left over", errReply, len(reply), len(a.rest))
	}
	for i := range q.states {
		e.Evaluate(i, &q.states[i], false)
	}
	if e.Settle() != (admitted == 1) {
		return fmt.Errorf("%w: the script says %d, and package limit says %t of the states that it read",
			limit.ErrUnreadable, admitted, d.Allowed)
	}
	if !q.charge {
		return nil
	}
	for i := range q.states {
		if e.Charges(i) {
			e.Charge(i, &q.states[i])
		}
	}
	return nil
}

// adjusted is the request for the core to decide once more: what the script says of logs and of buckets is what it came to
// when they were adjusted.
func (q *question) adjusted() *limit.Request {
	req, copied := q.req, false
	if len(req.Leases) == 0 {
		return req
	}
	q.eachTier(func(i int, t *limit.Tier) {
		if !of(t).inSet || req.Leases[i].Correction == 0 {
			return
		}
		if !copied { // d refers to it for as long as it is in use
			req, copied = &limit.Request{Owner: req.Owner, Charges: req.Charges, Leases: slices.Clone(req.Leases)}, true
		}
		req.Leases[i].Correction = 0
	})
	return req
}

// decodeGeneral reads what decide.lua sends: for each pack whether the counter of all other values was used, the states,
// and what there is to know of logs and buckets.
func (q *question) decodeGeneral(a *answer, d *limit.Decision) {
	pack, other := -1, false
	for _, c := range q.order {
		if q.packs[c] != pack {
			pack, other = q.packs[c], a.integer() == 1
		}
		for j := range q.req.Charges[c].Limit.Tiers {
			d.Results[q.first[c]+j].Other = other
		}
	}
	q.eachTier(func(i int, t *limit.Tier) {
		x, y, z := a.integer(), a.integer(), a.integer()
		if of(t).inSet {
			return
		}
		q.states[i] = of(t).state(x, y, z)
		if of(t).marked {
			st := q.states[i].TokenBucket()
			st.Refunds.Total, st.Leased, st.Late = a.refunded(), a.leased(), a.late()
			q.states[i] = st.State()
		}
	})
	q.eachTier(func(i int, t *limit.Tier) {
		if of(t).inSet {
			q.states[i] = a.entries()
		}
	})
}

// decodeShape reads what the script of a shape sends: the length of each pack before the charge but the last, and the packs.
func (q *question) decodeShape(a *answer) {
	lengths := *a
	if len(a.rest) < 8*(q.count-1) {
		a.bad = true
		return
	}
	a.rest = a.rest[8*(q.count-1):]
	pack, head := -1, 0
	var body answer
	q.eachTier(func(i int, t *limit.Tier) {
		if c := q.chargeOf(i); q.packs[c] != pack {
			q.finishPack(a, &body, pack)
			pack = q.packs[c]
			n := int64(len(a.rest))
			if pack < q.count-1 {
				n = lengths.integer()
			}
			size := int64(q.heads[pack]-head) + 8
			head = q.heads[pack]
			if n < 0 || n > int64(len(a.rest)) || (n > 0 && n < size) {
				a.bad, n = true, 0
			}
			body = answer{rest: a.rest[min(n, size):n], empty: n == 0}
			a.rest = a.rest[n:]
		}
		q.states[i] = body.state(t)
	})
	q.finishPack(a, &body, pack)
	a.bad = a.bad || lengths.bad
}

// finishPack reads what lies behind the states that were asked for: refunds of token buckets among others.
func (q *question) finishPack(a, body *answer, pack int) {
	a.bad, a.odd = a.bad || body.bad, a.odd || body.odd
	if body.rest == "" {
		return
	}
	if !wholeRecords(body.rest) {
		a.bad = true
		return
	}
	q.eachTier(func(i int, t *limit.Tier) {
		if q.packs[q.chargeOf(i)] != pack || !of(t).marked {
			return
		}
		if at := findBehind(body.rest, markedID(refundRecord, t)); at >= 0 {
			r := answer{rest: body.rest[at:]}
			st := q.states[i].TokenBucket()
			st.Refunds.Total = r.refunded()
			q.states[i] = st.State()
			a.bad, a.odd = a.bad || r.bad, a.odd || r.odd
		}
		a.bad = a.bad || findBehind(body.rest, markedID(heldRecord, t)) >= 0 ||
			findBehind(body.rest, markedID(lateRecord, t)) >= 0 // the script did not heed it
	})
}

// refundRecord marks a record of what was refunded to a token bucket: units, and the era, which is how often the rate was
// changed after a refund.
const refundRecord = 128 + byte(limit.TokenBucket)

// heldRecord marks a record of what of a token bucket is leased: until when, and units.
const heldRecord = 192 + byte(limit.TokenBucket)

// lateRecord marks a record of what of a token bucket may still come back from the slot that ended last: when, and 1/den units.
const lateRecord = 224 + byte(limit.TokenBucket)

// The versions of packs that this package reads and writes. A pack is of the second one while a held or a late record belongs
// to one of the tiers in front: the scripts of shapes know the first one alone.
const (
	version       = "SLU3"
	versionLeased = "SLU4"
)

// era is what a change of the rate adds to what was refunded, so that no receipt from before gives anything: what the core
// adds. Units stay below it.
const era = 1 << 52

// refunded reads the state of a refund record.
func (a *answer) refunded() int64 {
	units, eras := a.integer(), a.integer()
	return units + eras*era
}

// leased reads the state of a held record. One without units says nothing.
func (a *answer) leased() limit.Leased {
	l := limit.Leased{Until: a.integer(), Units: a.integer()}
	if l.Units < 0 || l.Units > limit.MaxUnits {
		a.bad = true
	}
	if l.Units == 0 {
		return limit.Leased{}
	}
	return l
}

// late reads the state of a late record.
func (a *answer) late() limit.Late {
	l := limit.Late{Ended: a.integer(), Level: a.integer()}
	a.bad = a.bad || l.Level < 0
	if l.Level == 0 {
		return limit.Late{}
	}
	return l
}

// markedID is the id, 17 bytes, of another record of the tier than that of its state.
func markedID(mark byte, t *limit.Tier) string {
	digest := t.Digest()
	return string(append([]byte{mark}, digest[:]...))
}

// findBehind is where the state of a record begins, among records that each carry their head with them; -1 for none.
func findBehind(records, id string) int {
	for at := 0; at+behindBytes <= len(records); at += recordBytes(records[at]) {
		if records[at:at+17] == id {
			return at + behindBytes
		}
	}
	return -1
}

// behindBytes is how many bytes of a record that lies behind the tiers in front precede its state: its head, and the time
// until which it may make a difference.
const behindBytes = idBytes + 8

// recordBytes is the length of such a record, whose head begins with kind.
func recordBytes(kind byte) int {
	width := markWidth
	if int(kind) < len(algorithms) && algorithms[kind].width != 0 {
		width = algorithms[kind].width
	}
	return behindBytes + 8*width
}

// markWidth is how many doubles of a mark are its state.
const markWidth = 2

// wholeRecords reports whether there is nothing but records, each with its head.
func wholeRecords(records string) bool {
	at := 0
	for at+behindBytes <= len(records) {
		at += recordBytes(records[at])
	}
	return at == len(records)
}

// state reads one counter's record.
func (a *answer) state(t *limit.Tier) limit.State {
	if a.empty {
		return limit.State{}
	}
	x, y, z := a.integer(), a.integer(), int64(0)
	switch {
	case of(t).width == 3:
		z = a.integer()
	case x != 0:
		z = rateOf(t)
	}
	return of(t).state(x, y, z)
}

// eachTier visits the tiers in the order in which they were asked; i is the number of the tier's result.
func (q *question) eachTier(visit func(i int, t *limit.Tier)) {
	for _, c := range q.order {
		for j := range q.req.Charges[c].Limit.Tiers {
			visit(q.first[c]+j, &q.req.Charges[c].Limit.Tiers[j])
		}
	}
}

// chargeOf is the charge that result i belongs to.
func (q *question) chargeOf(i int) int {
	c := len(q.first) - 1
	for q.first[c] > i {
		c--
	}
	return c
}

// entries reads what the script says of a log or of buckets: as few entries as lead the core to the same outcome, which
// are the one that makes room for a denied cost, and the last.
func (a *answer) entries() limit.State {
	used, latest, retry, over := a.integer(), a.integer(), a.integer(), a.integer()
	log := limit.LogState{Sum: used}
	switch {
	case used <= 0:
	case retry == 0 || retry == latest || over >= used:
		log.Entries = []limit.Entry{{At: latest, Units: used}}
	default:
		log.Entries = []limit.Entry{{At: retry, Units: over}, {At: latest, Units: used - over}}
	}
	return log.State()
}
