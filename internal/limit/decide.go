package limit

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"
)

// Errors of a [Store] that answered: it could not decide this request, and nothing was charged. See [Answered]. Any other
// error means that the store could not answer.
var (
	ErrInvalidRequest   = errors.New("invalid request")                      // a limit that is nil or off, a value that does not match the limit's per
	ErrInvalidCost      = errors.New("invalid cost")                         // outside 1..MaxUnits, or above both MaxCost and what can be counted
	ErrDuplicateCounter = errors.New("one counter twice in a decision")      // two charges name the same limit and value, or values that share one
	ErrFull             = errors.New("store is full of counters still used") // nothing can be forgotten to make room

	// ErrUnreadable means that a stored counter of the request is of another version, or was not written by the store. The
	// error names the key. The store never takes such a counter for an empty one.
	ErrUnreadable = errors.New("stored counter cannot be read")

	// ErrTooLarge means that the request's counters do not fit into one operation of the store. The error says which bound.
	ErrTooLarge = errors.New("too many counters for one decision of this store")

	// ErrContended means that other requests changed the counters of the request at each of the store's tries.
	ErrContended = errors.New("other requests changed the counters at each try")

	// ErrRefundsFull means that the store remembers as many refunds as it may. The receipt stays valid: the same refund can
	// succeed later, until the receipt expires.
	ErrRefundsFull = errors.New("too many refunds within the life of a receipt")
)

// Answered reports whether err, from a method of a [Store], means that the store is in reach and answered, but could not
// decide this request. Such an error says nothing about other requests, so it is never a failure of the store: a circuit
// breaker must not count it.
func Answered(err error) bool {
	for _, of := range [...]error{
		ErrInvalidRequest, ErrInvalidCost, ErrDuplicateCounter, ErrFull, ErrUnreadable, ErrTooLarge, ErrContended,
		ErrRefundsFull,
	} {
		if errors.Is(err, of) {
			return true
		}
	}
	return false
}

// Store keeps counters and decides on them atomically. Implementations are safe for concurrent use. Whatever error a
// method returns, it has charged nothing, unless the implementation says otherwise.
type Store interface {
	// Decide charges every limit of the request, or none, as of now, and writes the outcome to d. A denial is an outcome,
	// not an error, and changes nothing. d is reset first, also before an error, and may be reused; its memory is kept.
	Decide(ctx context.Context, req *Request, now time.Time, d *Decision) error

	// Peek writes to d what Decide would answer. It changes nothing, anywhere. A store may answer a request that is too large
	// for Decide.
	Peek(ctx context.Context, req *Request, now time.Time, d *Decision) error

	// Refund gives back what a decision charged: at most units of each limit (0 means all), in the windows that were
	// charged and are still open, once for each receipt, within MaxReceiptAge of the decision. What a bucket has refilled by
	// now anyway is not given back. ErrRefundsFull means that nothing was given back and that the same call may succeed later.
	Refund(ctx context.Context, r *Receipt, units int64, now time.Time) (Refund, error)

	// Accepts says whether the store can keep the limit's counters; the error says why not.
	Accepts(l *Limit) error
}

// PlanAccepter is implemented by stores that bound how many counters one operation can have.
type PlanAccepter interface {
	// AcceptsPlan says whether the store can keep the counters of all these limits, and decide over the limits of each list in
	// one request, whatever their counters hold. The error wraps ErrTooLarge and says what to do.
	AcceptsPlan(all []*Limit, together ...[]*Limit) error
}

// AcceptsPlan asks the store, if it has bounds. See [PlanAccepter].
func AcceptsPlan(s Store, all []*Limit, together ...[]*Limit) error {
	if bounded, ok := s.(PlanAccepter); ok {
		return bounded.AcceptsPlan(all, together...)
	}
	return nil
}

const (
	maxCharges    = 1024              // limits in one decision
	maxValueBytes = 16 * MaxNameBytes // bytes in a value, which may join several components
)

// Request is one question: may this owner spend now?
type Request struct {
	Owner   Owner
	Charges []Charge // one for each limit that applies; none is admitted
	Ahead   []Ahead  // leases: none, or one for each tier of each charge, in their order
}

// Charge asks for units of one limit.
type Charge struct {
	Limit *Limit
	Value Value // which counter, where the limit's Per is not "tenant"; NoValue otherwise
	Cost  int64 // units, 1..MaxUnits
}

// Check reports what is wrong with the request, if anything: ErrInvalidRequest, ErrInvalidCost or ErrDuplicateCounter.
func (q *Request) Check() error {
	if len(q.Owner.Name) > MaxNameBytes {
		return fmt.Errorf("%w: owner's name has %d bytes, want at most %d", ErrInvalidRequest, len(q.Owner.Name), MaxNameBytes)
	}
	if len(q.Charges) > maxCharges {
		return fmt.Errorf("%w: %d limits, want at most %d", ErrInvalidRequest, len(q.Charges), maxCharges)
	}
	for i := range q.Charges {
		c := &q.Charges[i]
		l := c.Limit
		if l == nil || !l.compiled || l.Mode == Off || c.Cost < 1 || c.Cost > l.costMost ||
			(c.Value.Kind != NoValue) != l.valued || !c.Value.sound() {
			return c.invalid(i)
		}
		for j := range i {
			if o := &q.Charges[j]; o.Limit.idHash == l.idHash && (o.Value == c.Value) && sameCounters(o.Limit, l) {
				return fmt.Errorf("%w: limit %s", ErrDuplicateCounter, l.ID)
			}
		}
	}
	if len(q.Ahead) > 0 {
		return q.checkAhead()
	}
	return nil
}

// invalid says what Check found wrong with charge i.
func (c *Charge) invalid(i int) error {
	switch l := c.Limit; {
	case l == nil || !l.compiled:
		return fmt.Errorf("%w: charge %d has no limit made by New", ErrInvalidRequest, i+1)
	case c.Cost < 1 || c.Cost > l.costMost:
		return fmt.Errorf("%w: %d for limit %s is outside 1..%d", ErrInvalidCost, c.Cost, l.ID, l.costMost)
	case l.Mode == Off:
		return fmt.Errorf("%w: limit %s is off", ErrInvalidRequest, l.ID)
	case len(c.Value.Text) > maxValueBytes:
		return fmt.Errorf("%w: value of limit %s has %d bytes, want at most %d", ErrInvalidRequest, l.ID, len(c.Value.Text), maxValueBytes)
	case !c.Value.sound():
		return fmt.Errorf("%w: value of limit %s: kind %q with text %.200q", ErrInvalidRequest, l.ID, byte(c.Value.Kind), c.Value.Text)
	default:
		return fmt.Errorf("%w: limit %s is per %s, value is %.200q", ErrInvalidRequest, l.ID, l.Per, c.Value.Text)
	}
}

// sameCounters reports whether two limits share a counter.
func sameCounters(a, b *Limit) bool {
	for i := range a.Tiers {
		for j := range b.Tiers {
			if a.Tiers[i].identity == b.Tiers[j].identity {
				return true
			}
		}
	}
	return false
}

// Decision is the outcome over all limits of a request. The zero Decision is ready for use and reusable.
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
	ahead   []Ahead
	grants  []Grant // as many as results where ahead is not empty
	denier  int     // index of the binding result of a denial, or -1
}

// Begin empties d and gives it one Result for each tier of the request, for a store to evaluate. d refers to the
// request's charges from then on: they must not change while d is in use. Begin computes the calendar periods of quotas, so
// that no later step does, and must not be called under a lock if the request has any.
func (d *Decision) Begin(req *Request, now int64) {
	d.Allowed, d.Never, d.RetryAt, d.ID = false, false, 0, ReceiptID{}
	d.Owner, d.Now, d.charges, d.denier, d.Degraded = req.Owner, now, req.Charges, -1, false
	d.Results, d.ahead, d.grants = d.Results[:0], req.Ahead, d.grants[:0]
	for i := range req.Charges {
		c := &req.Charges[i]
		for j := range c.Limit.Tiers {
			n := len(d.Results)
			if n == cap(d.Results) {
				d.Results = append(d.Results, Result{})
			}
			d.Results = d.Results[:n+1]
			r := &d.Results[n] // every field is set here or by evaluate, so the rest need not be cleared
			r.Tier, r.Cost, r.Charged, r.RetryAt = &c.Limit.Tiers[j], c.Cost, 0, 0
			if r.slot = 0; len(d.ahead) > 0 {
				d.grants = append(d.grants, Grant{})
			}
			r.Admits, r.Never, r.Other, r.Unasked, r.shadow, r.charge = false, false, false, false, c.Limit.Mode == Shadow, int16(i)
			if r.Tier.Algorithm == Quota {
				r.start, r.end = r.Tier.CalendarPeriod(now)
			}
		}
	}
}

// Clear leaves no outcome in d: nothing allowed, no results. A store calls it before it returns an error.
func (d *Decision) Clear(now int64) { d.Begin(&Request{}, now) }

// Adopt takes result from, of a decision over part of the request, as result i. It is for stores that ask other stores.
func (d *Decision) Adopt(i int, from *Result) {
	charge := d.Results[i].charge
	d.Results[i] = *from
	d.Results[i].charge = charge
}

// Grant is what result i was charged ahead. Where the decision denied that is nothing, unless the store charges wider
// counters first, see KeepAhead: then it is the caller's lease all the same, and what Ahead.Adjust gave back has arrived. A
// result that is denied without a grant has changed nothing.
func (d *Decision) Grant(i int) Grant {
	if i >= len(d.grants) {
		return Grant{}
	}
	return d.grants[i]
}

// AdoptGrant takes what a result was charged ahead, in a decision over part of the request or by a write that went through
// before result i was evaluated anew, as that of result i.
func (d *Decision) AdoptGrant(i int, g Grant) {
	if i >= len(d.grants) {
		return
	}
	d.grants[i] = g
	if r := &d.Results[i]; r.slot != 0 {
		r.slot = g.At
	}
}

// KeepAhead makes of what result i was charged a lease: the need, too. It is for a store that charges the wider counters of
// a decision first, by Commit, and whose narrower ones then deny. Call it after Settle and AdoptGrant; the request must have
// asked for a lease of it.
func (d *Decision) KeepAhead(i int) {
	r, g := &d.Results[i], &d.grants[i]
	g.Units += r.Charged
	g.Upfront += r.Charged
	if r.Tier.Algorithm == TokenBucket {
		r.n -= r.Charged * r.Tier.den
	} else {
		r.n += r.Charged
	}
	r.Charged = 0
}

// Held is what of result i's token bucket is leased in the slot of the decision, units, what the decision itself leased
// included; 0 for other algorithms.
func (d *Decision) Held(i int) int64 {
	r := &d.Results[i]
	if r.Tier.Algorithm != TokenBucket {
		return 0
	}
	held := r.m / r.Tier.den
	if r.slot != 0 && d.Commits(i) {
		held += r.Charged + d.Grant(i).Units
	}
	return held
}

// Value is which counter of its limit result i was about.
func (d *Decision) Value(i int) Value {
	v := d.charges[d.Results[i].charge].Value
	if d.Results[i].Other {
		return d.Owner.OtherValue(v)
	}
	return v
}

// Evaluate fills result i from its counter's state. States that a leaping clock stamped are repaired first, in place if
// repair is set, else in a copy. It reports whether a charge may make the state grow.
func (d *Decision) Evaluate(i int, s *State, repair bool) (grows bool) {
	r := &d.Results[i]
	t := r.Tier
	r.need = r.Cost
	if t.Algorithm == TokenBucket && s.At <= d.Now+maxSkew && len(s.Stamps) == 0 && len(d.ahead) == 0 { // what most limits are
		t.evaluateTokenBucket(s, d.Now, r)
		return false
	}
	if t.ahead(s, d.Now) {
		if !repair {
			s = s.Clone()
		}
		t.repair(s, d.Now, r)
	}
	var a *Ahead
	if len(d.ahead) > 0 {
		a = &d.ahead[i]
		if r.need = a.Need; a.Adjust != 0 {
			s = s.Clone()
			t.adjust(s, d.Owner.Name, a.Adjust, a.AdjustAt, d.Now, r)
		}
	}
	t.evaluate(s, d.Owner.Name, d.Now, r)
	if a != nil {
		if r.need == 0 && !r.Never { // nothing is lacking, however full the counter is
			r.Admits, r.RetryAt = true, 0
		}
		t.grant(s, d.Owner.Name, d.Now, a, r, &d.grants[i])
		return true
	}
	return t.Algorithm == SlidingLog || t.Algorithm == SlidingBuckets || t.Algorithm == TokenBucket && len(s.Stamps) > 1
}

// Settle decides from the evaluated results, and returns whether it is allowed: iff each enforcing tier admits.
func (d *Decision) Settle() bool {
	d.Allowed, d.Never, d.RetryAt, d.denier = true, false, 0, -1
	for i := range d.Results {
		if r := &d.Results[i]; !r.Admits && !r.shadow {
			d.Allowed = false
			d.deny(i, r)
		}
	}
	for i := range d.grants {
		if !d.Commits(i) {
			d.grants[i] = Grant{}
		}
	}
	return d.Allowed
}

// deny records the refusal; the binding one is never, or else the one that lasts longest.
func (d *Decision) deny(i int, r *Result) {
	switch {
	case d.Never:
	case r.Never:
		d.Never, d.RetryAt, d.denier = true, 0, i
	case d.denier < 0 || r.RetryAt > d.RetryAt:
		d.RetryAt, d.denier = r.RetryAt, i
	}
}

// Commits reports whether result i is to be charged: every enforcing one of an allowed decision, and each shadow limit
// of it all of whose tiers would admit.
func (d *Decision) Commits(i int) bool {
	if !d.Allowed {
		return false
	}
	r := &d.Results[i]
	if !r.shadow {
		return true
	}
	for j := range d.Results {
		if o := &d.Results[j]; o.charge == r.charge && !o.Admits {
			return false
		}
	}
	return true
}

// Commit charges result i to its counter's state. It must be the state that Evaluate saw.
func (d *Decision) Commit(i int, s *State) {
	r := &d.Results[i]
	if len(d.ahead) == 0 {
		r.Tier.commit(s, d.Now, r)
		return
	}
	if a := &d.ahead[i]; a.Adjust != 0 {
		r.Tier.adjust(s, d.Owner.Name, a.Adjust, a.AdjustAt, d.Now, r)
	}
	r.Tier.commit(s, d.Now, r)
	r.Tier.lease(s, r, &d.grants[i])
}

// Leases reports whether the request asked for leases.
func (d *Decision) Leases() bool { return len(d.ahead) > 0 }

// StampCapacity is for a store that bounds its memory. It reports whether Commit can charge result i to s within the
// present capacity of the Stamps of s. If not, it returns the capacity that [Decision.FitStamps] is to give them.
// What they take now is [Tier.StampRoom]. Call it after Evaluate, with the same state.
func (d *Decision) StampCapacity(i int, s *State) (capacity int, fits bool) {
	r := &d.Results[i]
	n, capacity, more := len(s.Stamps), cap(s.Stamps), 1
	switch {
	case r.Tier.Algorithm == TokenBucket && (d.Leases() || n > 1):
		return max(capacity, bucketStamps), capacity >= bucketStamps
	case r.Tier.Algorithm != SlidingLog && r.Tier.Algorithm != SlidingBuckets:
		return capacity, true
	case d.Leases():
		more = leaseStamps
	case n > 0 && s.Stamps[n-1].At == r.stamp():
		more = 0
	}
	if n+more <= capacity {
		return capacity, true
	}
	n += more - d.forgets(r)
	return max(capacity, n+n/2), false // a half more, so that few charges move all stamps
}

// The most stamps that a charge needs.
const (
	bucketStamps = 3 // all that a token bucket ever has
	leaseStamps  = 3 // that a log or buckets get: for the need, the units leased, and the units given back
)

// forgets returns how many leading stamps of its state result i may drop before Commit. A request with leases may
// change them first, see Ahead.Adjust.
func (d *Decision) forgets(r *Result) int {
	if d.Leases() || !r.Tier.remembersTimes() {
		return 0
	}
	return int(r.stale)
}

// FitStamps prepares s so that Commit of result i needs no more memory than the capacity says, which is not below the
// present one. It drops the stamps that no longer count. If then there is no room for one more stamp, the units of the
// last stamp will count as long as those of the charge do. That makes the limit stricter, and never looser. A request
// with leases needs the capacity that StampCapacity returns.
func (d *Decision) FitStamps(i int, s *State, capacity int) {
	r := &d.Results[i]
	stale := d.forgets(r)
	if capacity > cap(s.Stamps) {
		s.Stamps = append(make([]Stamp, 0, capacity), s.Stamps[stale:]...)
		if r.Tier.remembersTimes() {
			s.M = 0
		}
	} else {
		s.Stamps = slices.Delete(s.Stamps, 0, stale)
	}
	r.stale -= int32(stale)
	n := len(s.Stamps)
	if n == 0 || n < cap(s.Stamps) || d.Leases() || r.Tier.Algorithm == TokenBucket {
		return
	}
	last := &s.Stamps[n-1]
	r.slot = max(last.At, r.stamp())
	last.At = r.slot
	r.later = r.Tier.leftBy(s.Stamps, max(r.n-r.Tier.Threshold, 0)+1)
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
