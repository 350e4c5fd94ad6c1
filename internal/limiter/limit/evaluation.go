package limit

import "slices"

// Evaluation is a [Decision] that a store is making: the same value, with the methods that make it. The package comment
// has their order.
type Evaluation Decision

// Begin checks the request, see [Request.Check], and empties d. The Evaluation has one Result for each tier of the
// request, which the store must evaluate. After an error d has no outcome: nothing is allowed.
//
// The request's charges and leases must not change while d is in use. Begin must not be called under a lock: it
// computes the windows of the decision's time, and a calendar may take long.
func (d *Decision) Begin(req *Request, now int64) (*Evaluation, error) {
	if err := req.Check(); err != nil {
		d.Clear(now)
		return nil, err
	}
	return d.BeginChecked(req, now), nil
}

// BeginChecked is [Decision.Begin] for a request that [Request.Check] has accepted before.
func (d *Decision) BeginChecked(req *Request, now int64) *Evaluation {
	d.clearOutcome(req, now)
	leases, n := len(req.Leases) > 0, 0
	for i := range req.Charges {
		c := &req.Charges[i]
		for j := range c.Limit.Tiers {
			if n == cap(d.Results) {
				d.Results = append(d.Results[:n], Result{})
			}
			t, r := &c.Limit.Tiers[j], &d.Results[:n+1][n]
			n++
			r.clear(t, int16(i), c.Cost, c.Limit.Mode == Shadow)
			r.asksLease, r.mayGrow = leases, leases || t.grows != nil
			if t.windows != nil && !r.hasWindow(now) {
				r.window = t.windows.window(req.Owner.Name, now)
			}
		}
	}
	d.Results = d.Results[:n]
	if leases || len(d.asked) > 0 { // otherwise both are empty already
		d.asked, d.granted = req.Leases, slices.Grow(d.granted[:0], n)[:len(req.Leases)]
		clear(d.granted)
	}
	return (*Evaluation)(d)
}

// clearOutcome leaves no outcome in d.
func (d *Decision) clearOutcome(req *Request, now int64) {
	d.Allowed, d.Never, d.RetryAt, d.ID = false, false, 0, ReceiptID{}
	d.Owner, d.Now, d.charges, d.denier, d.Degraded = req.Owner, now, req.Charges, -1, false
}

// clear makes r a Result of the tier t, which evaluate has not filled yet. The fields that it does not set are set by
// evaluate, for the algorithms that read them: seen, alsoSeen and stale. The window stays that of an earlier
// decision, if that was about the same tier.
func (r *Result) clear(t *Tier, chargeIndex int16, cost int64, shadow bool) {
	if r.Tier != t { // to write a pointer costs more than to compare one
		r.Tier, r.window = t, span{}
	}
	r.Cost, r.need, r.Charged, r.RetryAt, r.leaseAt, r.moreFrom, r.corrected = cost, cost, 0, 0, 0, 0, 0
	r.Admits, r.Never, r.Other, r.Unasked, r.asksLease, r.mayGrow = false, false, false, false, false, false
	r.shadow, r.chargeIndex = shadow, chargeIndex
}

// hasWindow reports whether the window of r, which is that of an earlier decision, is the one that contains now.
// Windows that are aligned to owners are always computed anew, because the earlier decision may have been about
// another owner.
func (r *Result) hasWindow(now int64) bool {
	return r.window.start <= now && now < r.window.end && !r.Tier.limit.AlignOwner
}

// Clear leaves no outcome in d: nothing is allowed, and there are no results. A store calls it before it returns an
// error.
func (d *Decision) Clear(now int64) { d.BeginChecked(&Request{}, now) }

// Decision returns e as a Decision.
func (e *Evaluation) Decision() *Decision { return (*Decision)(e) }

// AlignTo makes the window of result i, from now on, that of another owner: where windows begin can depend on the
// owner's name. Calendar periods do not, so nothing is computed for them, and AlignTo may be called under a lock.
func (e *Evaluation) AlignTo(i int, owner string) {
	if t := e.Results[i].Tier; t.windows != nil && t.Calendar == nil {
		e.Results[i].window = t.windows.window(owner, e.Now)
	}
}

// Evaluate fills result i from its counter's state. It charges nothing. If s holds a time that only a clock which was
// far ahead can have written, it is repaired first: s itself if inPlace is true, even if the decision is then denied,
// or else a copy of s.
func (e *Evaluation) Evaluate(i int, s *State, inPlace bool) {
	r := &e.Results[i]
	if len(e.asked) > 0 {
		e.evaluateLease(i, s, inPlace)
	} else if !r.Tier.counts.evaluate(s, e.Now, r) {
		e.repair(r, s, inPlace)
	}
}

// repair repairs the state, or a copy of it, and evaluates the repaired state, which it returns. No time in that is
// ahead of now by more than a correct clock could have set it, so the second evaluate succeeds.
func (e *Evaluation) repair(r *Result, s *State, inPlace bool) *State {
	if !inPlace {
		s = s.Clone()
	}
	r.Tier.counts.repair(s, e.Now, r)
	r.Tier.counts.evaluate(s, e.Now, r)
	return s
}

// evaluateLease is Evaluate for a request with leases.
func (e *Evaluation) evaluateLease(i int, s *State, inPlace bool) {
	r, ask, counts := &e.Results[i], &e.asked[i], e.Results[i].Tier.counts
	r.need, r.leaseAt, r.Admits, r.RetryAt = ask.Need, 0, false, 0
	if !counts.evaluate(s, e.Now, r) {
		s = e.repair(r, s, inPlace)
	}
	if ask.Correction != 0 { // the correction is tried on a copy; Charge makes it in the state
		s = s.Clone()
		e.correct(r, s, ask)
		r.Admits, r.RetryAt = false, 0
		counts.evaluate(s, e.Now, r)
	}
	if r.need == 0 && !r.Never { // nothing is charged for the cost, so a full counter does not matter
		r.Admits, r.RetryAt = true, 0
	}
	e.granted[i] = Lease{}
	if r.Admits || r.shadow {
		e.granted[i] = counts.offer(s, e.Owner.Name, e.Now, ask, r)
	}
}

// correct makes the correction that ask demands in s.
func (e *Evaluation) correct(r *Result, s *State, ask *LeaseRequest) {
	if ask.Correction < 0 {
		r.Tier.counts.returnUnspent(s, -ask.Correction, ask.CorrectionAt, e.Now, r.window)
	} else if ask.Correction > 0 {
		r.corrected = r.Tier.counts.replay(s, ask.Correction, ask.CorrectionAt, e.Now, r.window)
	}
}

// Settle decides from the evaluated results. It returns whether the request is allowed: whether each enforcing tier
// admits it.
func (e *Evaluation) Settle() bool {
	e.Allowed, e.Never, e.RetryAt, e.denier = true, false, 0, -1
	for i := range e.Results {
		if r := &e.Results[i]; !r.Admits && !r.shadow {
			e.Allowed = false
			e.deny(i, r)
		}
	}
	for i := range e.granted {
		if !e.Charges(i) {
			e.granted[i] = Lease{}
		}
	}
	return e.Allowed
}

// deny records that result i denied. The binding result is one that can never fit, if there is one, or else the one
// with the latest RetryAt.
func (e *Evaluation) deny(i int, r *Result) {
	switch {
	case e.Never:
	case r.Never:
		e.Never, e.RetryAt, e.denier = true, 0, i
	case e.denier < 0 || r.RetryAt > e.RetryAt:
		e.RetryAt, e.denier = r.RetryAt, i
	}
}

// Charges is [Decision.Charges].
func (e *Evaluation) Charges(i int) bool { return e.Decision().Charges(i) }

// Charge charges what result i needs, and the lease that it is granted, to its counter's state, which must be the one
// that Evaluate got. It makes the correction of the request first. It returns by how many bytes [State.Bytes] has
// grown; a log that drops its oldest entries can shrink.
func (e *Evaluation) Charge(i int, s *State) (grown int64) {
	r := &e.Results[i]
	r.Charged = r.need
	if !r.mayGrow {
		r.Tier.counts.charge(s, e.Now, r)
		return 0
	}
	before := s.Bytes()
	if len(e.asked) > 0 {
		e.correct(r, s, &e.asked[i])
	}
	r.Tier.counts.charge(s, e.Now, r)
	if len(e.asked) > 0 {
		r.Tier.counts.chargeLease(s, r, &e.granted[i])
	}
	return s.Bytes() - before
}

// Room is for a store that bounds its memory. It returns by how many bytes [State.Bytes] may grow when result i is
// charged to s, and for how many entries in total Grow should make room first; 0 if there is room enough. Call it after
// Evaluate, with the same state.
func (e *Evaluation) Room(i int, s *State) (bytes int64, entries int) {
	if r := &e.Results[i]; r.mayGrow {
		return r.room(s)
	}
	return 0, 0
}

func (r *Result) room(s *State) (bytes int64, entries int) {
	has := 0
	if s.extra == nil {
		bytes = extraBytes
	} else {
		has = s.extra.room()
	}
	if g := r.Tier.grows; g != nil {
		entries = g.room(s, r)
		return bytes + int64(max(entries-has, 0))*entryBytes, entries
	}
	if !r.Tier.Leasing().Apart { // leased units are part of the count, so the state needs no extra
		return 0, 0
	}
	return bytes, 0
}

// Grow prepares s for the charge of result i: it gives s memory for that number of entries in total. If entries is 0, s
// keeps the memory that it has. With less memory than Room returned, s drops entries that no longer count. If there is
// still none for one more entry, the charge shares the last one, which then counts for longer: the limit gets stricter,
// never looser. s always gets memory for one entry. For a request with leases entries must be what Room returned.
func (e *Evaluation) Grow(i int, s *State, entries int) {
	if r := &e.Results[i]; r.Tier.grows != nil {
		r.Tier.grows.grow(s, r, entries)
	}
}

// Adopt replaces result i by part, the result of the same tier in a decision over part of the request. It is for stores
// that ask other stores.
func (e *Evaluation) Adopt(i int, part *Result) {
	chargeIndex := e.Results[i].chargeIndex
	e.Results[i] = *part
	e.Results[i].chargeIndex = chargeIndex
}

// AdoptLease makes l the lease of result i. l was granted by another store, in a decision over part of the request, or
// charged by a write for which the store had evaluated an older state.
func (e *Evaluation) AdoptLease(i int, l Lease) {
	if i >= len(e.granted) {
		return
	}
	e.granted[i] = l
	if r := &e.Results[i]; r.leaseAt != 0 {
		r.leaseAt = l.At
	}
}

// KeepLease turns all that result i was charged into a lease of the caller, including the units that the request
// needed. It is for a caller that gives back all that a decision has charged. The request must have asked for a lease
// of the tier.
func (e *Evaluation) KeepLease(i int) {
	r, l := &e.Results[i], &e.granted[i]
	l.Units += r.Charged
	l.Upfront += r.Charged
	r.addUsed(r.Charged)
	r.Charged = 0
}

// Leases reports whether the request has leases, see [Request].Leases.
func (e *Evaluation) Leases() bool { return len(e.asked) > 0 }

// Revise returns d as a decision that is still being made. It is for a store that completes or changes a decision which
// other stores have made. Call [Evaluation.Settle] after the last change.
func (d *Decision) Revise() *Evaluation { return (*Evaluation)(d) }

// Restart empties e for the same or another checked request, as [Decision.BeginChecked] does.
func (e *Evaluation) Restart(req *Request, now int64) { e.Decision().BeginChecked(req, now) }

// Value is [Decision.Value].
func (e *Evaluation) Value(i int) Value { return e.Decision().Value(i) }

// Lease is [Decision.Lease].
func (e *Evaluation) Lease(i int) Lease { return e.Decision().Lease(i) }
