package limit

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

const (
	// MaxReceiptAge is how long after its decision a receipt can be settled, unless [Receipt.KeepFor] sets another
	// time. It bounds what stores must remember of settlements, however long a limit's windows are.
	MaxReceiptAge = 5 * time.Minute

	// MaxKept is the longest time for which a receipt is kept without being settled or kept anew.
	MaxKept = 24 * time.Hour
)

// ReceiptID names a receipt. It is unique over all stores and processes that share counters.
type ReceiptID struct{ Hi, Lo uint64 }

// Receipt is the proof of what a decision charged. It is opaque: only a decision makes one.
type Receipt struct {
	id      ReceiptID
	owner   Owner
	issued  int64 // the time of the decision by the store's clock, µs since 1970
	kept    int64 // how long after that the receipt can be settled, µs; 0: MaxReceiptAge, while it could return units
	entries []ReceiptEntry
}

// ReceiptEntry is one counter's part of a receipt.
type ReceiptEntry struct {
	Tier  *Tier
	Value Value
	Units int64 // charged

	asked Value // that the request named; Value is another one for values beyond the bound of the limit

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

// Settlement is what a settlement changed, in units. Each list has one number for each entry of the receipt, in order.
type Settlement struct {
	Returned  []int64 // given back: they were charged and not used, and still counted
	Charged   []int64 // charged now: they were used beyond what the decision had charged
	Uncharged []int64 // also used, but more than the counter can hold
	Repeated  bool    // the receipt was settled before; nothing was changed
	Expired   bool    // the receipt is too old; nothing was changed
}

// Receipt returns the proof of what d charged, for [Store.Settle]. It is empty after a denial.
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
		rec.entries = append(rec.entries, r.entry(d.Value(i), d.charges[r.chargeIndex].Value))
	}
	return rec
}

// NewReceipt returns the receipt of a decision that charged nothing at a time, µs since 1970. No other receipt may have
// its ID: let it be random.
func NewReceipt(id ReceiptID, owner Owner, at int64) *Receipt {
	return &Receipt{id: id, owner: owner, issued: at}
}

// Cover adds the counters of a charge of which nothing was charged, so that a settlement can charge them.
func (r *Receipt) Cover(c Charge) {
	for i := range c.Limit.Tiers {
		r.entries = append(r.entries, ReceiptEntry{Tier: &c.Limit.Tiers[i], Value: c.Value, asked: c.Value})
	}
}

// Rest returns the receipt of what stays charged after r was settled to what was used, which has given back the
// returned units. Its ID has a random part, so that no other receipt has it, and is of the same store.
func (r *Receipt) Rest(random uint64, used, returned []int64) *Receipt {
	const ofNoDecision = 1 << 63 // stores count their own receipts from 0
	rest := r.another(random | ofNoDecision)
	rest.entries = slices.Clone(r.entries)
	for i := range rest.entries {
		e := &rest.entries[i]
		e.Units -= r.Unused(i, used)
		e.refundedBefore += returned[i] * e.Tier.Params(r.owner).Den // its own refund does not count as another one's
	}
	return rest
}

// another returns an empty receipt of the same owner, time and store.
func (r *Receipt) another(lo uint64) *Receipt {
	out := NewReceipt(ReceiptID{Hi: r.id.Hi, Lo: lo}, r.owner, r.issued)
	out.kept = r.kept
	return out
}

// Split moves the entries that are chosen to another receipt, which is settled by itself. A receipt is split once: the
// ID of the other one follows from its own. IDs that follow each other take little memory in a store.
func (r *Receipt) Split(chosen func(*ReceiptEntry) bool) *Receipt {
	const ofSplit = 1 << 62 // stores count their own receipts from 0
	out, left := r.another(r.id.Lo|ofSplit), []ReceiptEntry(nil)
	for i := range r.entries {
		if e := &r.entries[i]; chosen(e) {
			out.entries = append(out.entries, *e)
		} else {
			left = append(left, *e)
		}
	}
	r.entries = left
	return out
}

// Counter names what a request asked to charge, whichever counter it was: that of the limit, or of an instance's part
// of it; that of the value, or the one of all values beyond the limit's bound.
type Counter struct {
	Limit string // its ID
	Tier  int    // the tier's position
	Value Value
}

// Counter names what the request asked to charge.
func (e *ReceiptEntry) Counter() Counter {
	c := Counter{Limit: e.Tier.limit.ID, Value: e.asked}
	for i := range e.Tier.limit.Tiers {
		if &e.Tier.limit.Tiers[i] == e.Tier {
			c.Tier = i
		}
	}
	return c
}

// Issued is the time of the decision by the store's clock, µs since 1970.
func (r *Receipt) Issued() int64 { return r.issued }

// entry returns the receipt's entry for r, whose counter has the value v. The request named the value asked.
func (r *Result) entry(v, asked Value) ReceiptEntry {
	e := ReceiptEntry{Tier: r.Tier, Value: v, Units: r.Charged, asked: asked}
	r.Tier.counts.receipt(r, &e)
	return e
}

// ID names the receipt.
func (r *Receipt) ID() ReceiptID { return r.id }

// Owner returns the owner of the counters that were charged.
func (r *Receipt) Owner() Owner { return r.owner }

// Entries are the counters that were charged. The caller must not change them.
func (r *Receipt) Entries() []ReceiptEntry { return r.entries }

// Part returns a receipt with the same ID that has only the entries of these positions.
func (r *Receipt) Part(positions []int) *Receipt {
	part := &Receipt{id: r.id, owner: r.owner, issued: r.issued, kept: r.kept}
	for _, i := range positions {
		part.entries = append(part.entries, r.entries[i])
	}
	return part
}

// KeepFor makes the receipt one that can be settled for so long after its decision, whatever could still be given back
// by then. Nobody else may use the receipt at the same time.
func (r *Receipt) KeepFor(life time.Duration) {
	r.kept = max(1, (life + time.Microsecond - 1).Microseconds())
}

// At says what was charged, µs since 1970: the start of the window or calendar period; of sliding_buckets and a
// sliding_log, the time of the entry; of a token_bucket and a leaky_bucket, the time of the charge.
func (e *ReceiptEntry) At() int64 { return e.at }

// EntryParams are the numbers of a receipt's entry that [ReceiptEntry.GiveBack] goes by, for stores that give back
// elsewhere (in a script). Together with the tier's [Params] they say all that GiveBack knows. What an algorithm does
// not use is zero.
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

// Until is the time, µs since 1970, from which on the receipt settles nothing. A store remembers a settled receipt
// until then, and no longer. If the receipt is not kept for a time of its own, it ends as soon as nothing that it names
// can be given back any more, with MaxSkew to spare for clocks that differ.
func (r *Receipt) Until() int64 {
	if r.kept > 0 {
		return r.expiry()
	}
	last := int64(math.MinInt64)
	for i := range r.entries {
		last = max(last, r.entries[i].end)
	}
	return min(addSat(last, maxSkew), r.expiry())
}

// Expired reports whether the receipt is too old to be settled at now, µs since 1970 by the store's clock.
func (r *Receipt) Expired(now int64) bool { return now >= r.expiry() }

func (r *Receipt) expiry() int64 {
	return addSat(r.issued, cmp.Or(r.kept, MaxReceiptAge.Microseconds()))
}

// Without returns what was used of each entry if units of each, or all that were charged, were not used. 0 means all.
func (r *Receipt) Without(units int64) []int64 {
	used := make([]int64, len(r.entries))
	for i := range used {
		if units > 0 {
			used[i] = max(0, r.entries[i].Units-units)
		}
	}
	return used
}

// BeginSettle checks what was used, see [Store.Settle], and returns a Settlement that changes nothing. The error wraps
// ErrInvalidRequest.
func (r *Receipt) BeginSettle(used []int64) (Settlement, error) {
	if r == nil {
		return Settlement{}, fmt.Errorf("%w: no receipt", ErrInvalidRequest)
	}
	n := len(r.entries)
	if used != nil && len(used) != n {
		return Settlement{}, fmt.Errorf("%w: units used of %d counters, and the receipt names %d", ErrInvalidRequest,
			len(used), n)
	}
	for i, units := range used {
		if units < 0 || units > MaxUnits {
			return Settlement{}, fmt.Errorf("%w: %d units used of limit %s, want 0..%d", ErrInvalidRequest, units,
				r.entries[i].Tier.limit.ID, int64(MaxUnits))
		}
	}
	all := make([]int64, 3*n)
	return Settlement{Returned: all[:n:n], Charged: all[n : 2*n : 2*n], Uncharged: all[2*n:]}, nil
}

// Unused returns how many of the units charged to entry i were not used.
func (r *Receipt) Unused(i int, used []int64) int64 {
	if used == nil {
		return r.entries[i].Units
	}
	return max(0, r.entries[i].Units-used[i])
}

// GiveBack gives back to s units of what the entry says was charged, as of now, and returns how many it gave back.
// Afterwards s never has more room than it would if the charge had not been made.
func (e *ReceiptEntry) GiveBack(s *State, units, now int64) int64 {
	if units = min(units, e.Units); units == 0 || now >= e.end {
		return 0
	}
	return e.Tier.counts.refund(s, e, units, now)
}

// Overage is the request that charges what was used beyond what a receipt's decision charged. It charges without a
// condition, at the time of its own decision: each of its leases needs nothing, and has a correction above zero.
// Charged to the windows of the receipt it would be free once these have ended.
type Overage struct {
	Request
	entries []int // of each lease: the receipt's entry that it is for; -1 if nothing is charged to its tier
}

// Overage returns the request that charges what was used beyond what was charged, or nil if nothing was.
func (r *Receipt) Overage(used []int64) *Overage {
	var o *Overage
	for i := range used {
		e := &r.entries[i]
		if used[i] <= e.Units {
			continue
		}
		if o == nil {
			o = &Overage{Request: Request{Owner: r.owner}}
		}
		at := o.lease(e) + e.Counter().Tier
		o.Leases[at] = LeaseRequest{Correction: used[i] - e.Units, CorrectionAt: AtDecision}
		o.entries[at] = i
	}
	return o
}

// lease returns the position of the first lease of the limit and value of e. It adds a charge of them if there is none.
func (o *Overage) lease(e *ReceiptEntry) int {
	l, first := e.Tier.limit, 0
	for _, c := range o.Charges {
		if c.Limit == l && c.Value == e.asked {
			return first
		}
		first += len(c.Limit.Tiers)
	}
	o.Charges = append(o.Charges, Charge{Limit: l, Value: e.asked, Cost: 1}) // of which nothing is needed
	for range l.Tiers {
		o.Leases, o.entries = append(o.Leases, LeaseRequest{}), append(o.entries, -1)
	}
	return first
}

// Report writes to out what the decision over the request has charged, and what it could not charge.
func (o *Overage) Report(d *Decision, out *Settlement) {
	for i, entry := range o.entries {
		if entry < 0 {
			continue
		}
		asked := o.Leases[i].Correction
		switch {
		case !d.Charges(i):
		case d.asked[i].Correction == 0: // the store has charged the units before the core saw the counter
			out.Charged[entry] = asked
		default:
			out.Charged[entry] = d.Results[i].corrected
		}
		out.Uncharged[entry] = asked - out.Charged[entry]
	}
}

// uncount takes at most units off *count, which it does not bring below 0, and returns how many it took.
func uncount(count *int64, units int64) int64 {
	back := min(units, max(*count, 0))
	*count -= back
	return back
}
