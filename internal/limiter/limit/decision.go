package limit

import (
	"math/bits"
	"time"
)

// Decision is the outcome over all limits of a request. The zero Decision is ready for use. A Decision can be reused.
//
// Its unexported fields are the working memory of the store that makes it, see [Evaluation].
type Decision struct {
	Allowed bool
	Never   bool      // denied, and no wait would help: the cost is above what a limit can ever hold
	RetryAt int64     // if neither Allowed nor Never: when the cost fits if nobody else charges, µs since 1970
	Results []Result  // one for each tier of each charge, in their order
	ID      ReceiptID // the name of the receipt, if Allowed
	Owner   Owner
	Now     int64 // the time of the decision by the store's clock, µs since 1970

	// Degraded means that the store did not answer, and that each limit's OnStoreFailure was applied instead.
	Degraded bool

	charges []Charge
	asked   []LeaseRequest
	granted []Lease // one for each result, if asked is not empty
	denier  int     // index of the binding result of a denial, or -1
}

// Result is the outcome of one tier of one limit within a [Decision].
type Result struct {
	Tier *Tier
	Cost int64 // what the request asked for, units

	// Charged is what the decision charged to the counter, units: the cost, or the part of it that the caller had not
	// leased. If the decision was made from leases, it is the whole cost, which is taken off the lease. 0 if the
	// decision denied, or if this is a shadow limit that would have denied.
	Charged int64

	RetryAt int64 // if neither Admits nor Never is set: µs since 1970 at which the cost fits, if nobody else charges
	Admits  bool  // this tier has room for the cost
	Never   bool  // the cost is above what the tier can ever hold
	Other   bool  // set by a store: the counter is the one shared by all values beyond the limit's bound

	// Unasked is set by a store if the counter was not read, and the result is that of an unused counter. This is so if
	// a request with leases neither needs nor wants anything of the counter. It is also so if the counter's store did
	// not answer while another store has denied the request.
	Unasked bool

	shadow      bool  // the limit is a shadow: it only reports
	asksLease   bool  // the request has leases, see [Request.Leases]
	mayGrow     bool  // the charge may make the counter's state larger
	chargeIndex int16 // the index, in the request's Charges, of the charge that this result is about
	stale       int32 // logs: how many of the first entries no longer count
	need        int64 // what the counter must have room for: the cost, less what the caller has leased

	// leaseAt is where the charge is counted, if not at the time of the decision: the end of a token bucket's slot, or
	// the time of a log's entry; see [Lease].At. offer sets it if the charge counts as leased, and grow of a log if the
	// charge shares the last entry. 0: at the time of the decision.
	leaseAt int64

	moreFrom int64 // MoreAt is not before this time, see MoreFrom

	corrected int64 // how many units a [LeaseRequest].Correction above zero has charged

	window span    // of a windowed algorithm: the window or calendar period of the decision's time
	seen   numbers // the counter as of the decision's time. charge and addUsed may change it

	// alsoSeen is a fifth number of seen: see refunded of token buckets and freedAt of logs. It is a field of its own
	// because the compiler keeps a struct in registers only if it has at most four words.
	alsoSeen int64
}

// numbers are what an algorithm remembers of a counter for a [Result]. Each algorithm's file names them by a type such
// as bucketSeen, as it names the numbers of a [State]. They are four because the compiler keeps structs of up to four
// words in registers, and larger ones in memory.
type numbers struct {
	a      int64
	amount int64 // what is used, or what is left; a unit that is used changes it by perUnit of the algorithm
	c, d   int64
}

// addUsed adds units, which may be negative, to what r says is used. It changes no State.
func (r *Result) addUsed(units int64) { r.seen.amount += units * r.Tier.perUnit }

// Limit returns the limit that the result is about.
func (r *Result) Limit() *Limit { return r.Tier.limit }

// Shadow reports whether the limit is a shadow, which cannot deny.
func (r *Result) Shadow() bool { return r.shadow }

// Used returns how much of the capacity is used after the decision, units, rounded up. It exceeds the capacity if the
// limit was lowered, if units were charged that had been admitted without the store, or if a token bucket leased units
// ahead of its refill. It is never below 0, also if unspent leases come back to a counter that the store has lost.
func (r *Result) Used() int64 { return max(0, r.Tier.counts.used(r)) }

// Remaining returns the units that are left after the decision: the largest cost that the tier would admit at the same
// time. It is never below 0.
func (r *Result) Remaining() int64 { return max(0, r.Tier.capacity-r.Used()) }

// ResetAt returns when nothing will be used any more, if nothing more is charged: the end of a window, the time at
// which a bucket is full. µs since 1970. If nothing is used it is the time of the decision or the end of the present
// window. It is meant for callers. A store that wants to forget a counter must go by [Tier.FreshAt], which is later.
func (r *Result) ResetAt() int64 { return r.Tier.counts.resetAt(r) }

// MoreAt returns the first time, µs since 1970, at which more remains than after the decision, if nothing more is
// charged: the time of a token bucket's next unit, the end of a window, the next free time of a leaky bucket. It is
// never after RetryAt, if the result has one.
//
// If nothing is used, no more than the capacity can ever remain. MoreAt is then the time at which the first unit would
// come free if the whole capacity was charged now.
//
// A store that merges entries of a log for lack of memory reports a later time. A decision from a lease reports the
// time that was true when the lease was granted.
func (r *Result) MoreAt() int64 {
	at := max(r.Tier.counts.moreAt(r), r.moreFrom)
	if !r.Admits && !r.Never {
		at = min(at, r.RetryAt)
	}
	return at
}

// Uncharge removes from the result what the decision charged. It is for a store that has taken the charge back.
func (r *Result) Uncharge() {
	if r.Charged > 0 && r.Tier.grows != nil {
		r.Tier.grows.undoCharge(r)
	}
	r.Charged = 0
}

// Binding returns the result that decided a denial or, if the request was allowed, the one with the smallest
// Remaining/Capacity. It returns nil if no limit of the request enforces.
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
		switch {
		case least == nil:
			least = r
		// Clients need not wait for places, which come back.
		case r.Limit().CountsPlaces() != least.Limit().CountsPlaces():
			if least.Limit().CountsPlaces() {
				least = r
			}
		case lessLeft(r, least):
			least = r
		}
	}
	return least
}

// lessLeft reports whether Remaining/Capacity of a is below that of b. It multiplies in 128 bits, and so never rounds.
func lessLeft(a, b *Result) bool {
	ahi, alo := bits.Mul64(uint64(a.Remaining()), uint64(b.Tier.capacity))
	bhi, blo := bits.Mul64(uint64(b.Remaining()), uint64(a.Tier.capacity))
	return ahi < bhi || (ahi == bhi && alo < blo)
}

// RetryAfter returns the exact wait from the decision's time until the cost fits; 0 if it was allowed, or if it will
// never fit.
func (d *Decision) RetryAfter() time.Duration {
	if d.Allowed || d.Never {
		return 0
	}
	return time.Duration(max(0, d.RetryAt-d.Now)) * time.Microsecond
}

// Fullest returns the largest Used/Capacity of the results of an allowed decision, in thousandths, rounded down. It is
// above 1000 if more is used than the capacity. Shadow limits are left out. Fullest is 0 if the decision denies, or was
// made without the store.
func (d *Decision) Fullest() int64 {
	if !d.Allowed || d.Degraded {
		return 0
	}
	most := int64(0)
	for i := range d.Results {
		if r := &d.Results[i]; !r.shadow {
			used := r.Used()
			most = max(most, used/r.Tier.capacity*1000+used%r.Tier.capacity*1000/r.Tier.capacity)
		}
	}
	return most
}

// Value returns the value whose counter result i is about.
func (d *Decision) Value(i int) Value {
	v := d.charges[d.Results[i].chargeIndex].Value
	if d.Results[i].Other {
		return d.Owner.OtherValue(v)
	}
	return v
}

// ChargeIndex returns the index, in the request's Charges, of the charge that result i is about.
func (d *Decision) ChargeIndex(i int) int { return int(d.Results[i].chargeIndex) }

// Lease returns what was leased of the tier of result i. After a denial it is empty, and the counter is unchanged.
func (d *Decision) Lease(i int) Lease {
	if i >= len(d.granted) {
		return Lease{}
	}
	return d.granted[i]
}

// Leased returns how many units of the token bucket of result i are leased in the slot of the decision. They include
// units that the decision itself leased. For other algorithms it returns 0.
func (d *Decision) Leased(i int) int64 {
	r, own := &d.Results[i], int64(0)
	if r.leaseAt != 0 && d.Charges(i) {
		own = r.Charged + d.Lease(i).Units
	}
	return r.Tier.counts.leasedInSlot(r, own)
}

// Charges reports whether result i is charged. In an allowed decision these are all results of enforcing limits, and
// those of shadow limits all of whose tiers admit. In a denied decision there are none.
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
