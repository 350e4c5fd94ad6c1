package limit

import (
	"math/bits"
	"time"
)

// Decision is the outcome over all limits of a request. The zero Decision is ready for use, and it can be used again.
//
// Its unexported fields are the working memory of the store that makes it, see [Evaluation].
type Decision struct {
	Allowed bool
	Never   bool      // denied, and no wait would help: the cost is above what a limit can ever hold
	RetryAt int64     // denied and not Never: µs since 1970 at which the cost fits in every limit, if nobody else charges
	Results []Result  // one for each tier of each charge, in their order
	ID      ReceiptID // of the receipt, where Allowed
	Owner   Owner
	Now     int64 // the time of the decision by the store's clock, µs since 1970

	// Degraded says that the store did not answer, and that each limit's OnStoreFailure was applied instead.
	Degraded bool

	charges []Charge
	asked   []LeaseRequest
	granted []Lease // as many as results where asked is not empty
	denier  int     // index of the binding result of a denial, or -1
}

// Result is the outcome of one tier of one limit within a [Decision].
type Result struct {
	Tier    *Tier
	Cost    int64 // asked for, units
	Charged int64 // taken, units: Cost, or 0 where the decision denied or a shadow would have
	RetryAt int64 // where Admits is false and Never is too: µs since 1970 at which the cost fits, if nobody else charges
	Admits  bool  // this tier has room for the cost
	Never   bool  // the cost is above what the tier can ever hold
	Other   bool  // set by a store: counted in the counter shared by all values beyond the limit's bound
	Unasked bool  // set by a store, of a request with leases: the counter was not looked up, for nothing was asked of it

	shadow      bool  // only reports
	asksLease   bool  // the request has leases, see [Request.Leases]
	mayGrow     bool  // the charge may make the counter's state larger
	chargeIndex int16 // the index, in the request's Charges, of the charge that this result is about
	stale       int32 // logs: how many of the first entries no longer count
	need        int64 // what the counter must have room for: the cost, less what the caller has leased
	leaseAt     int64 // what is charged is a lease that is counted at this time, see [Lease]; 0: it is not
	window      span
	seen        numbers // the counter as of the decision's time, before the charge
	alsoSeen    int64   // a fifth number of seen: see refunded of token buckets, freedAt of logs. Apart, so that seen fits into registers
}

// numbers are what an algorithm remembers of a counter for a [Result]. Like those of a [State] they have names in each
// algorithm's file, by a type such as bucketSeen. They are four because the compiler keeps structs of up to four words in
// registers, and larger ones in memory.
type numbers struct{ a, b, c, d int64 }

// Limit is the limit the result is about.
func (r *Result) Limit() *Limit { return r.Tier.limit }

// Shadow reports whether the result only reports.
func (r *Result) Shadow() bool { return r.shadow }

// Used is what of the capacity is taken after the decision, units, rounded up. It may exceed the capacity where a limit
// was lowered.
func (r *Result) Used() int64 { return r.Tier.counts.used(r) }

// Remaining is what is left after the decision, units: the largest cost that would be admitted at the same time. Never
// negative.
func (r *Result) Remaining() int64 { return max(0, r.Tier.capacity-r.Used()) }

// ResetAt is when the counter will be as if it had never been used, if nothing more is charged: the end of a window, a
// bucket full again. µs since 1970; the time of the decision where nothing is used.
func (r *Result) ResetAt() int64 { return r.Tier.counts.resetAt(r) }

// MoreAt is the first time, µs since 1970, at which more remains than after the decision, if nothing more is charged: a token
// bucket's next unit, the end of a window, the next slot of a leaky bucket. Where the capacity remains, so that there can never be
// more, it is when more than nothing would remain if all of it was charged now. It is never after RetryAt where the result has one.
//
// The time is that of the state which was evaluated. A store whose states hold fewer entries than were made tells a later time,
// and the result of a lease tells what the store knew when it granted the lease.
func (r *Result) MoreAt() int64 {
	at := r.Tier.counts.moreAt(r)
	if !r.Admits && !r.Never {
		at = min(at, r.RetryAt)
	}
	return at
}

// Uncharge makes the result say what it would had its charge not been made, for a store that takes it back.
func (r *Result) Uncharge() {
	if r.Charged > 0 && r.Tier.grows != nil {
		r.Tier.grows.undoCharge(r)
	}
	r.Charged = 0
}

// Binding is the result that decided a denial, or that has least left by ratio on an allow; nil where there is no
// enforcing result.
func (d *Decision) Binding() *Result {
	if d.denier >= 0 && d.denier < len(d.Results) && !d.Allowed {
		return &d.Results[d.denier]
	}
	var least *Result
	for i := range d.Results {
		r := &d.Results[i]
		if r.shadow {
			continue
		}
		if least == nil || lessLeft(r, least) {
			least = r
		}
	}
	return least
}

// lessLeft compares remaining/capacity without division, in 128 bits.
func lessLeft(a, b *Result) bool {
	ahi, alo := bits.Mul64(uint64(a.Remaining()), uint64(b.Tier.capacity))
	bhi, blo := bits.Mul64(uint64(b.Remaining()), uint64(a.Tier.capacity))
	return ahi < bhi || (ahi == bhi && alo < blo)
}

// RetryAfter is the exact wait from the decision's time until the cost fits; 0 where it was allowed or never will be.
func (d *Decision) RetryAfter() time.Duration {
	if d.Allowed || d.Never {
		return 0
	}
	return time.Duration(max(0, d.RetryAt-d.Now)) * time.Microsecond
}

// Fullest is what the fullest counter of an allowed decision has taken in, in thousandths of what its limit holds, rounded
// down: above 1000 where more was admitted than that. Shadows do not count. It is 0 where the decision denies, or was made
// without the store.
func (d *Decision) Fullest() int64 {
	if !d.Allowed || d.Degraded {
		return 0
	}
	most := int64(0)
	for i := range d.Results {
		if r := &d.Results[i]; !r.shadow {
			used := max(r.Used(), 0)
			most = max(most, used/r.Tier.capacity*1000+used%r.Tier.capacity*1000/r.Tier.capacity)
		}
	}
	return most
}

// Value is which counter of its limit result i was about.
func (d *Decision) Value(i int) Value {
	v := d.charges[d.Results[i].chargeIndex].Value
	if d.Results[i].Other {
		return d.Owner.OtherValue(v)
	}
	return v
}

// ChargeIndex is the index, in the request, of the charge that result i is about.
func (d *Decision) ChargeIndex(i int) int { return int(d.Results[i].chargeIndex) }

// Lease is what was leased of result i. Where the decision denied that is nothing, unless the store charges wider counters
// first, see [Evaluation.KeepLease]: then it is the caller's lease all the same, and what [LeaseRequest.Correction] gave
// back has arrived. A result that is denied without a lease has changed nothing.
func (d *Decision) Lease(i int) Lease {
	if i >= len(d.granted) {
		return Lease{}
	}
	return d.granted[i]
}

// Leased is what of result i's token bucket is leased in the slot of the decision, units, what the decision itself leased
// included; 0 for other algorithms.
func (d *Decision) Leased(i int) int64 {
	r, own := &d.Results[i], int64(0)
	if r.leaseAt != 0 && d.Charges(i) {
		own = r.Charged + d.Lease(i).Units
	}
	return r.Tier.counts.leasedInSlot(r, own)
}

// Charges reports whether result i is charged: every enforcing one of an allowed decision, and each shadow limit of it all of
// whose tiers would admit.
func (d *Decision) Charges(i int) bool {
	return d.Allowed && (!d.Results[i].shadow || d.shadowAdmits(i))
}

// shadowAdmits reports whether all tiers of the shadow limit that result i is about admit.
func (d *Decision) shadowAdmits(i int) bool {
	r := &d.Results[i]
	for j := range d.Results {
		if o := &d.Results[j]; o.chargeIndex == r.chargeIndex && !o.Admits {
			return false
		}
	}
	return true
}
