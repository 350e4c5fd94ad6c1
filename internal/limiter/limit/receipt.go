package limit

import (
	"fmt"
	"math"
	"time"
)

// MaxReceiptAge is how long after its decision a receipt can be refunded. It bounds what stores must remember of
// refunds, however long a limit's windows are.
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

	at  int64 // what was charged, see [ReceiptEntry.At]
	end int64 // from this time on nothing is given back, µs since 1970

	// Of token buckets, see [EntryParams].
	headroom       int64
	refundedBefore int64
	slotEnd        int64

	// Of leaky buckets, see [EntryParams].
	nextFree int64
	fraction int64
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

// entry returns the receipt's entry for r, whose counter has the value v.
func (r *Result) entry(v Value) ReceiptEntry {
	e := ReceiptEntry{Tier: r.Tier, Value: v, Units: r.Charged}
	r.Tier.counts.receipt(r, &e)
	return e
}

// ID names the receipt.
func (r *Receipt) ID() ReceiptID { return r.id }

// Owner returns the owner of the counters that were charged.
func (r *Receipt) Owner() Owner { return r.owner }

// Entries are the counters that were charged. The caller must not change them.
func (r *Receipt) Entries() []ReceiptEntry { return r.entries }

// Part returns a receipt with the same ID that has only the entries that keep accepts.
func (r *Receipt) Part(keep func(*ReceiptEntry) bool) *Receipt {
	part := &Receipt{id: r.id, owner: r.owner, issued: r.issued}
	for i := range r.entries {
		if keep(&r.entries[i]) {
			part.entries = append(part.entries, r.entries[i])
		}
	}
	return part
}

// At says what was charged, µs since 1970: the start of the window or calendar period; of sliding_buckets and a
// sliding_log, the time of the entry; of a token_bucket and a leaky_bucket, the time of the charge.
func (e *ReceiptEntry) At() int64 { return e.at }

// EntryParams are the numbers of a receipt's entry that [ReceiptEntry.Apply] goes by, for stores that give back
// elsewhere (in a script). Together with the tier's [Params] they say all that Apply knows. What an algorithm does not
// use is zero.
type EntryParams struct {
	At       int64 // what was charged, see [ReceiptEntry.At]
	End      int64 // from this time on nothing is given back, µs since 1970
	Headroom int64 // token_bucket: how much more the bucket could have held just before the charge, grains; below Full
	Refunded int64 // token_bucket: [Refunds].Total just before the charge, grains
	SlotEnd  int64 // token_bucket: the end of the slot in which the charge counts as leased, µs since 1970; or 0
	NextFree int64 // leaky_bucket: the next free time that the charge set, µs since 1970
	Fraction int64 // leaky_bucket: the fraction of a µs that belongs to NextFree, in 1/Num µs
}

// Params returns the numbers of the entry.
func (e *ReceiptEntry) Params() EntryParams {
	return EntryParams{
		At: e.at, End: e.end, Headroom: e.headroom, Refunded: e.refundedBefore, SlotEnd: e.slotEnd,
		NextFree: e.nextFree,
		Fraction: e.fraction,
	}
}

// Until is the time, µs since 1970, from which on the receipt gives nothing back: nothing that it names can be given
// back any more, with MaxSkew to spare for clocks that differ, or the receipt has expired. A store remembers a refunded
// receipt until then, and no longer: at most MaxReceiptAge after the decision.
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

// Apply gives back to s at most units (0 means all) of what the entry says was charged, as of now, and returns how many
// units it gave back. Afterwards s never has more room than it would if the charge had not been made.
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
