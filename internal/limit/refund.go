package limit

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// MaxReceiptAge is how long after its decision a receipt can be refunded. It bounds what stores must remember of refunds,
// however long a limit's windows are.
const MaxReceiptAge = 5 * time.Minute

// ReceiptID names a receipt. It is unique over all stores and processes that share counters.
type ReceiptID struct{ Hi, Lo uint64 }

// Receipt is the proof of what a decision charged. It is opaque: only a decision makes one.
type Receipt struct {
	id      ReceiptID
	owner   Owner
	issued  int64 // the time of the decision by the store's clock, µs since 1970
	entries []ReceiptEntry
}

// ReceiptEntry is one counter's part of a receipt.
type ReceiptEntry struct {
	Tier  *Tier
	Value Value
	Units int64 // charged

	stamp    int64 // the window, bucket or time that was charged, µs
	headroom int64 // token_bucket: what the bucket could still refill before the charge, in 1/den units
	refunded int64 // token_bucket: all that had been refunded to it before the charge, in 1/den units
	slot     int64 // leaky_bucket: the slot that the charge set, µs and fraction; token_bucket: that of a lease, or 0
	frac     int64
	end      int64 // from here on nothing can be given back
}

// Refund says what was given back.
type Refund struct {
	Units    []int64 // for each entry of the receipt, in order
	Repeated bool    // the receipt was refunded before; nothing was given back
	Expired  bool    // the receipt is older than MaxReceiptAge; nothing was given back
}

// Receipt returns the proof of what d charged, for [Store.Refund]. It is empty after a denial.
func (d *Decision) Receipt() *Receipt {
	rec := &Receipt{id: d.ID, owner: d.Owner, issued: d.Now}
	if !d.Allowed {
		return rec
	}
	for i := range d.Results {
		r := &d.Results[i]
		if r.Charged == 0 {
			continue
		}
		rec.entries = append(rec.entries, r.entry(d.Value(i)))
	}
	return rec
}

func (r *Result) entry(v Value) ReceiptEntry {
	t := r.Tier
	e := ReceiptEntry{Tier: t, Value: v, Units: r.Charged, stamp: r.at}
	switch t.Algorithm {
	case FixedWindow:
		e.end = r.at + t.period
	case SlidingWindow:
		e.end = r.at + 2*t.period
	case TokenBucket:
		if e.slot = r.slot; e.slot != 0 {
			e.end = e.slot
			break
		}
		e.headroom, e.refunded = t.full-r.n-r.m, r.background
		e.end = r.at + ceilDiv(e.headroom+r.Charged*t.den, t.num)
	case LeakyBucket:
		spent := r.Charged * t.den
		e.stamp, e.slot, e.frac = r.background, r.background+spent/t.num, spent%t.num
		e.end = e.slot + 1
	case Quota:
		e.end = r.m
	case SlidingLog, SlidingBuckets:
		e.stamp = r.stamp()
		e.end = t.leaves(e.stamp)
	}
	return e
}

// ID names the receipt.
func (r *Receipt) ID() ReceiptID { return r.id }

// Owner is whose counters were charged.
func (r *Receipt) Owner() Owner { return r.owner }

// Entries are the counters that were charged. The caller must not change them.
func (r *Receipt) Entries() []ReceiptEntry { return r.entries }

// Part is the receipt of the entries that keep accepts, under the same ID.
func (r *Receipt) Part(keep func(*ReceiptEntry) bool) *Receipt {
	part := &Receipt{id: r.id, owner: r.owner, issued: r.issued}
	for i := range r.entries {
		if keep(&r.entries[i]) {
			part.entries = append(part.entries, r.entries[i])
		}
	}
	return part
}

// Stamp is what was charged: the start of the window or period, the bucket's start, or the time. µs since 1970.
func (e *ReceiptEntry) Stamp() int64 { return e.stamp }

// EntryParams are the numbers of a receipt's entry that [ReceiptEntry.Apply] goes by, for stores that give back elsewhere (in
// a script). Together with the tier's [Params] they say all that Apply knows. What an algorithm does not use is zero.
type EntryParams struct {
	Stamp    int64 // the window, bucket or time that was charged, µs since 1970; leaky_bucket: the time of the charge
	End      int64 // from this time on nothing is given back, µs since 1970
	Headroom int64 // token_bucket: what the bucket could still refill before the charge, in 1/Den units; at most 2·Full
	Refunded int64 // token_bucket: all that had been refunded to it before the charge, in 1/Den units; see [State]
	Slot     int64 // leaky_bucket: the slot that the charge set, µs since 1970; token_bucket: the end of a lease's slot, or 0
	Frac     int64 // leaky_bucket: the slot's fraction of a µs, in 1/Num µs
}

// Params returns the numbers of the entry.
func (e *ReceiptEntry) Params() EntryParams {
	return EntryParams{Stamp: e.stamp, End: e.end, Headroom: e.headroom, Refunded: e.refunded, Slot: e.slot, Frac: e.frac}
}

// Until is the time, µs since 1970, from which the receipt gives nothing back: its windows have ended, or it has expired.
// A store remembers a refunded receipt until then, and no longer: at most MaxReceiptAge after the decision.
func (r *Receipt) Until() int64 {
	last := int64(math.MinInt64)
	for i := range r.entries {
		last = max(last, r.entries[i].end)
	}
	return min(addSat(last, maxSkew), r.expiry())
}

// Expired reports whether the receipt is too old to be refunded at now, µs since 1970 by the store's clock.
func (r *Receipt) Expired(now int64) bool { return now >= r.expiry() }

func (r *Receipt) expiry() int64 { return addSat(r.issued, MaxReceiptAge.Microseconds()) }

// CheckRefund returns ErrInvalidRequest for units that a refund cannot have.
func CheckRefund(r *Receipt, units int64) error {
	if r == nil {
		return fmt.Errorf("%w: no receipt", ErrInvalidRequest)
	}
	if units < 0 || units > MaxUnits {
		return fmt.Errorf("%w: refund of %d units is outside 0..%d", ErrInvalidRequest, units, int64(MaxUnits))
	}
	return nil
}

// Apply gives back to s at most units (0 means all) of what the entry says was charged, as of now, and returns how much.
// It never gives back more than the state would have gained had the charge not been made.
func (e *ReceiptEntry) Apply(s *State, units, now int64) int64 {
	if units == 0 || units > e.Units {
		units = e.Units
	}
	if now >= e.end {
		return 0
	}
	t := e.Tier
	switch t.Algorithm {
	case FixedWindow, Quota:
		if s.At != e.stamp {
			return 0
		}
		return takeBack(&s.N, units)
	case SlidingWindow:
		switch s.At {
		case e.stamp:
			return takeBack(&s.N, units)
		case e.stamp + t.period:
			return takeBack(&s.M, units)
		}
		return 0
	case SlidingLog, SlidingBuckets:
		for i := range s.Stamps {
			if s.Stamps[i].At == e.stamp {
				back := takeBack(&s.Stamps[i].Units, units)
				s.N -= back
				if s.Stamps[i].Units == 0 { // else charging and refunding in turn would grow the list without bound
					s.Stamps = slices.Delete(s.Stamps, i, i+1)
				}
				return back
			}
		}
		return 0
	case LeakyBucket:
		return e.applyLeakyBucket(s, units)
	default:
		return e.applyTokenBucket(s, units, now)
	}
}

func takeBack(count *int64, units int64) int64 {
	back := min(units, max(*count, 0))
	*count -= back
	return back
}

// applyLeakyBucket moves the slot back, if it is still the one the charge set: once another charge has been admitted,
// the wait that the refund would shorten has been served.
func (e *ReceiptEntry) applyLeakyBucket(s *State, units int64) int64 {
	t := e.Tier
	if s.At != e.slot || s.N != e.frac || s.M != t.num {
		return 0
	}
	spent := (e.Units - units) * t.den
	s.At, s.N = e.stamp+spent/t.num, spent%t.num
	return units
}

// applyTokenBucket raises the level by what the bucket would hold more had the charge not been made. Without the charge
// it could have gained headroom before running over; whatever it gained beyond that, by refill or by the refund of
// another charge, would have been lost, and is not given back. So what was admitted and kept is never more than burst and
// rate·t in any interval. What was spent from a lease is held until its slot ends, and comes back only until then. A bucket whose rate was changed since gives nothing back. The result is rounded down to whole
// units.
func (e *ReceiptEntry) applyTokenBucket(s *State, units, now int64) int64 {
	t := e.Tier
	if e.slot != 0 {
		return t.release(s, units, e.slot, now)
	}
	var r Result
	t.evaluateTokenBucket(s, max(now, s.At), &r)
	elapsed, others := r.at-e.stamp, r.background-e.refunded
	if s.M != t.Threshold || elapsed < 0 || others < 0 { // another rate; a clock that leapt back; a counter made anew
		return 0
	}
	gained := t.full
	if elapsed < t.fullIn && others < t.full {
		gained = elapsed*t.num + others
	}
	give := min(units*t.den-max(0, gained-e.headroom), t.full-r.m-r.n)
	if give <= 0 {
		return 0
	}
	s.At, s.N = r.at, r.n+give
	if len(s.Stamps) == 0 {
		s.Stamps = make([]Stamp, 1)
	}
	s.Stamps[0].At = r.at
	s.Stamps[0].Units += give
	return give / t.den
}
