package limit

import (
	"fmt"
	"math"
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

	at             int64 // the window, bucket or time that was charged, µs since 1970
	end            int64 // from here on nothing can be given back, µs since 1970
	headroom       int64 // token_bucket: what the bucket could still refill before the charge, grains
	refundedBefore int64 // token_bucket: all that had been refunded to it before the charge, grains
	slotEnd        int64
	nextFree       int64
	fraction       int64
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
	e := ReceiptEntry{Tier: r.Tier, Value: v, Units: r.Charged}
	r.Tier.counts.receipt(r, &e)
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

// At is what was charged: the start of the window or period, the bucket's start, or the time. µs since 1970.
func (e *ReceiptEntry) At() int64 { return e.at }

// EntryParams are the numbers of a receipt's entry that [ReceiptEntry.Apply] goes by, for stores that give back elsewhere (in
// a script). Together with the tier's [Params] they say all that Apply knows. What an algorithm does not use is zero.
type EntryParams struct {
	At       int64 // the window, bucket or time that was charged, µs since 1970; leaky_bucket: the time of the charge
	End      int64 // from this time on nothing is given back, µs since 1970
	Headroom int64 // token_bucket: what the bucket could still refill before the charge, grains; at most 2·Full
	Refunded int64 // token_bucket: all that had been refunded to it before the charge, grains; see [Refunds]
	SlotEnd  int64
	NextFree int64
	Fraction int64 // leaky_bucket: the slot's fraction of a µs, in 1/Num µs
}

// Params returns the numbers of the entry.
func (e *ReceiptEntry) Params() EntryParams {
	return EntryParams{At: e.at, End: e.end, Headroom: e.headroom, Refunded: e.refundedBefore, SlotEnd: e.slotEnd, NextFree: e.nextFree, Fraction: e.fraction}
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
	return e.Tier.counts.refund(s, e, units, now)
}

// uncount takes at most units off *count, which it does not bring below 0, and returns how many it took.
func uncount(count *int64, units int64) int64 {
	back := min(units, max(*count, 0))
	*count -= back
	return back
}
