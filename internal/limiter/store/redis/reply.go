package redis

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// errMalformedReply is the error for a reply that no script of this package sends.
var errMalformedReply = errors.New("the reply does not have the form of the script's replies")

// replyReader reads the doubles of a script's reply. After an error it reads zeros, and the caller checks isMalformed
// once.
type replyReader struct {
	unread      string
	isUnused    bool // the pack does not exist, so every state is unused
	isMalformed bool // the reply is too short, or a number is out of range
	notInteger  bool // isMalformed because a number is no integer of at most 2^53
}

// readInteger reads a double that must hold an integer of at most 2^53.
func (r *replyReader) readInteger() int64 {
	if len(r.unread) < 8 {
		r.isMalformed = true
		return 0
	}
	bytes := r.unread[:8]
	v := math.Float64frombits(uint64(bytes[0]) | uint64(bytes[1])<<8 | uint64(bytes[2])<<16 | uint64(bytes[3])<<24 |
		uint64(bytes[4])<<32 | uint64(bytes[5])<<40 | uint64(bytes[6])<<48 | uint64(bytes[7])<<56)
	r.unread = r.unread[8:]
	if v != math.Trunc(v) || math.Abs(v) > 1<<53 {
		r.isMalformed, r.notInteger = true, true
		return 0
	}
	return int64(v)
}

// decode fills in d from the reply. The core evaluates the states before the charge a second time and must come to the
// script's conclusion. general says that the reply is from decide.lua: it begins with the time, µs, and then 1 if the
// script admits, or else 0. The reply of a generated script begins with one number: twice the time, plus 1 if the
// script admits.
func (q *query) decode(reply string, general bool, d *limit.Decision) error {
	r := replyReader{unread: reply}
	now, admitted := r.readInteger(), int64(0)
	if general {
		admitted = r.readInteger()
	} else {
		now, admitted = now>>1, now&1
	}
	e := d.BeginChecked(q.requestForSecondEvaluation(), now)
	q.states = slices.Grow(q.states[:0], len(d.Results))[:len(d.Results)]
	clear(q.states)
	if general {
		q.decodeGeneral(&r, d)
	} else {
		q.decodeShape(&r)
	}
	if r.notInteger && !general { // a generated script returns the packs without looking at each number
		return fmt.Errorf("%w: a number of a pack is no integer of at most 2^53", limit.ErrUnreadable)
	}
	if r.isMalformed || len(r.unread) > 0 || admitted < 0 || admitted > 1 {
		return fmt.Errorf("%w: %d bytes, %d of them left over", errMalformedReply, len(reply), len(r.unread))
	}
	for i := range q.states {
		e.Evaluate(i, &q.states[i], false)
	}
	if e.Settle() != (admitted == 1) {
		return fmt.Errorf("%w: the script says %d, and package limit says %t of the states that it read",
			limit.ErrUnreadable, admitted, d.Allowed)
	}
	if !q.charges {
		return nil
	}
	for i := range q.states {
		if e.Charges(i) {
			e.Charge(i, &q.states[i])
		}
	}
	return nil
}

// requestForSecondEvaluation returns the request without the corrections of counters that are kept in sorted sets
// (sliding_log and sliding_buckets). decide.lua reports these as they are after the correction, so the core must not
// correct them again.
func (q *query) requestForSecondEvaluation() *limit.Request {
	req, copied := q.req, false
	if len(req.Leases) == 0 {
		return req
	}
	q.eachTier(func(i int, t *limit.Tier) {
		if !algorithmOf(t).inSet || req.Leases[i].Correction == 0 {
			return
		}
		if !copied { // d keeps a reference to the request, so it cannot be reused
			req, copied = &limit.Request{Owner: req.Owner, Charges: req.Charges, Leases: slices.Clone(req.Leases)}, true
		}
		req.Leases[i].Correction = 0
	})
	return req
}

// decodeGeneral reads the reply of decide.lua: for each pack whether the value uses the counter of all values beyond
// MaxValues, then the states, then the summaries of the sorted sets.
func (q *query) decodeGeneral(r *replyReader, d *limit.Decision) {
	pack, other := -1, false
	for _, c := range q.order {
		if q.packs[c] != pack {
			pack, other = q.packs[c], r.readInteger() == 1
		}
		for j := range q.req.Charges[c].Limit.Tiers {
			d.Results[q.firstResult[c]+j].Other = other
		}
	}
	q.eachTier(func(i int, t *limit.Tier) {
		x, y, z := r.readInteger(), r.readInteger(), r.readInteger()
		if algorithmOf(t).inSet {
			return
		}
		q.states[i] = algorithmOf(t).toState(x, y, z)
		if algorithmOf(t).hasMarks {
			st := q.states[i].TokenBucket()
			st.Refunds.Total, st.Leased, st.Late = r.readRefunded(), r.readLeased(), r.readLate()
			q.states[i] = st.State()
		}
	})
	q.eachTier(func(i int, t *limit.Tier) {
		if algorithmOf(t).inSet {
			q.states[i] = r.readEntries(t)
		}
	})
}

// decodeShape reads what follows the first number in the reply of a generated script: the length of each pack but the
// last, and the packs as they were before the charge. The comment of this package has the layout of a pack.
func (q *query) decodeShape(r *replyReader) {
	lengths := *r
	if len(r.unread) < 8*(q.packCount-1) {
		r.isMalformed = true
		return
	}
	r.unread = r.unread[8*(q.packCount-1):]
	pack, beginning := -1, 0 // the number of the present pack, and where in q.heads its version and heads begin
	var body replyReader
	q.eachTier(func(i int, t *limit.Tier) {
		if c := q.chargeOfResult(i); q.packs[c] != pack {
			q.readMarks(r, &body, pack)
			pack = q.packs[c]
			n := int64(len(r.unread))
			if pack < q.packCount-1 {
				n = lengths.readInteger()
			}
			const expiryBytes = 8 // the time until which the key's expiry is set, between the heads and the states
			size := int64(q.headEnds[pack]-beginning) + expiryBytes
			beginning = q.headEnds[pack]
			if n < 0 || n > int64(len(r.unread)) || (n > 0 && n < size) {
				r.isMalformed, n = true, 0
			}
			body = replyReader{unread: r.unread[min(n, size):n], isUnused: n == 0}
			r.unread = r.unread[n:]
		}
		q.states[i] = body.readState(t)
	})
	q.readMarks(r, &body, pack)
	r.isMalformed = r.isMalformed || lengths.isMalformed
}

// readMarks reads what follows the states of a pack: records. Only refund marks, of token buckets, concern a generated
// script.
func (q *query) readMarks(r, body *replyReader, pack int) {
	r.isMalformed, r.notInteger = r.isMalformed || body.isMalformed, r.notInteger || body.notInteger
	if body.unread == "" {
		return
	}
	if !areWholeRecords(body.unread) {
		r.isMalformed = true
		return
	}
	q.eachTier(func(i int, t *limit.Tier) {
		if q.packs[q.chargeOfResult(i)] != pack || !algorithmOf(t).hasMarks {
			return
		}
		if at := findRecord(body.unread, markID(refundMark, t)); at >= 0 {
			sub := replyReader{unread: body.unread[at:]}
			st := q.states[i].TokenBucket()
			st.Refunds.Total = sub.readRefunded()
			q.states[i] = st.State()
			r.isMalformed, r.notInteger = r.isMalformed || sub.isMalformed, r.notInteger || sub.notInteger
		}
		r.isMalformed = r.isMalformed || findRecord(body.unread, markID(leasedMark, t)) >= 0 ||
			findRecord(body.unread, markID(lateMark, t)) >= 0 // a generated script must not have decided over leases
	})
}

// readRefunded reads the state of a refund mark.
func (r *replyReader) readRefunded() int64 {
	units, eras := r.readInteger(), r.readInteger()
	return units + eras*refundEra
}

// readLeased reads the state of a lease mark. A mark without units says nothing.
func (r *replyReader) readLeased() limit.Leased {
	l := limit.Leased{Until: r.readInteger(), Units: r.readInteger()}
	if l.Units < 0 || l.Units > limit.MaxUnits {
		r.isMalformed = true
	}
	if l.Units == 0 {
		return limit.Leased{}
	}
	return l
}

// readLate reads the state of a late mark.
func (r *replyReader) readLate() limit.Late {
	l := limit.Late{Ended: r.readInteger(), Level: r.readInteger()}
	r.isMalformed = r.isMalformed || l.Level < 0
	if l.Level == 0 {
		return limit.Late{}
	}
	return l
}

// readState reads the state of one counter: two or three numbers, by the algorithm's width.
func (r *replyReader) readState(t *limit.Tier) limit.State {
	if r.isUnused {
		return limit.State{}
	}
	x, y, z := r.readInteger(), r.readInteger(), int64(0)
	switch {
	case algorithmOf(t).width == 3:
		z = r.readInteger()
	case x != 0: // a counter that was used has the rate in its head, which is that of t: else the script had declined
		z = rateOf(t)
	}
	return algorithmOf(t).toState(x, y, z)
}

// eachTier visits the tiers in the order in which they were sent. i is the number of the tier's result.
func (q *query) eachTier(visit func(i int, t *limit.Tier)) {
	for _, c := range q.order {
		for j := range q.req.Charges[c].Limit.Tiers {
			visit(q.firstResult[c]+j, &q.req.Charges[c].Limit.Tiers[j])
		}
	}
}

// chargeOfResult returns the number of the charge that result i belongs to.
func (q *query) chargeOfResult(i int) int {
	c := len(q.firstResult) - 1
	for q.firstResult[c] > i {
		c--
	}
	return c
}

// readEntries reads the summary of a sorted set, and returns a log with as few entries as lead the core to the same
// outcome. The numbers of the summary are how many units are used; the time of the last entry; the time of the entry
// after whose end more remains; and of a cost that is denied, the time of the entry after whose end it fits, and by how
// many units it is too large. Without a denial these two are 0.
func (r *replyReader) readEntries(t *limit.Tier) limit.State {
	used, latest, more, fitsAfter, excess := r.readInteger(), r.readInteger(), r.readInteger(), r.readInteger(),
		r.readInteger()
	log := limit.LogState{Sum: used}
	counted := int64(0)
	until := func(at, units int64) { // the entries up to the time given by the parameter at have so many units
		if units = min(units, used); at == 0 || units <= counted {
			return
		}
		log.Entries = append(log.Entries, limit.Entry{At: at, Units: units - counted})
		counted = units
	}
	until(more, max(used-t.Threshold, 0)+1)
	until(fitsAfter, excess)
	until(latest, used)
	return log.State()
}
