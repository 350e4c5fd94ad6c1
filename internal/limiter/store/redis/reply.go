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
	isMalformed bool // the reply is too short, or a number is out of range
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
		r.isMalformed = true
		return 0
	}
	return int64(v)
}

// decode fills in d from the reply. The core evaluates the states before the charge a second time and must come to the
// script's conclusion. The reply begins with the time, µs, and then 1 if the script admits, or else 0.
func (q *query) decode(reply string, d *limit.Decision) error {
	r := replyReader{unread: reply}
	now, admitted := r.readInteger(), r.readInteger()
	e := d.BeginChecked(q.requestForSecondEvaluation(), now)
	q.states = slices.Grow(q.states[:0], len(d.Results))[:len(d.Results)]
	clear(q.states)
	q.decodeStates(&r, d)
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
	q.eachTierOf(q.order, func(i int, t *limit.Tier) {
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

// decodeStates reads what follows: for each pack a number, the states and, if there are any, the marks of the token
// buckets; and then the summaries of the sorted sets. The number is 1 if the value uses the counter of all values
// beyond MaxValues, plus 2 if there are marks.
func (q *query) decodeStates(r *replyReader, d *limit.Decision) {
	for first := 0; first < len(q.order); {
		end := first + 1
		for end < len(q.order) && q.packs[q.order[end]] == q.packs[q.order[first]] {
			end++
		}
		pack := q.order[first:end]
		flags := r.readInteger()
		r.isMalformed = r.isMalformed || flags < 0 || flags > 3
		q.eachTierOf(pack, func(i int, t *limit.Tier) {
			d.Results[i].Other = flags&1 != 0
			if x, y, z := r.readInteger(), r.readInteger(), r.readInteger(); !algorithmOf(t).inSet {
				q.states[i] = algorithmOf(t).toState(x, y, z)
			}
		})
		if flags&2 != 0 {
			q.eachTierOf(pack, func(i int, t *limit.Tier) {
				if algorithmOf(t).hasMarks {
					st := q.states[i].TokenBucket()
					st.Refunds.Total, st.Leased, st.Late = r.readRefunded(), r.readLeased(), r.readLate()
					q.states[i] = st.State()
				}
			})
		}
		first = end
	}
	q.eachTierOf(q.order, func(i int, t *limit.Tier) {
		if algorithmOf(t).inSet {
			q.states[i] = r.readEntries(t)
		}
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

// eachTierOf visits the tiers of some charges in the order in which they were sent. i is the number of the tier's
// result.
func (q *query) eachTierOf(charges []int, visit func(i int, t *limit.Tier)) {
	for _, c := range charges {
		for j := range q.req.Charges[c].Limit.Tiers {
			visit(q.firstResult[c]+j, &q.req.Charges[c].Limit.Tiers[j])
		}
	}
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
