package limit

// Evaluation is a [Decision] that a store is making: the same value, with the methods that make it. The package comment has
// their order.
type Evaluation Decision

// Begin checks the request, see [Request.Check], and empties d: the evaluation has one Result for each tier of the request,
// for the store to evaluate. After an error d has no outcome: nothing is allowed.
//
// The request's charges and leases must not change while d is in use. Begin must not be called under a lock: it computes
// the windows of the decision's time, and a calendar may take long.
func (d *Decision) Begin(req *Request, now int64) (*Evaluation, error) {
	if err := req.Check(); err != nil {
		d.Clear(now)
		return nil, err
	}
	return d.BeginChecked(req, now), nil
}

// BeginChecked is Begin for a request that was checked before.
func (d *Decision) BeginChecked(req *Request, now int64) *Evaluation {
	d.Allowed, d.Never, d.RetryAt, d.ID = false, false, 0, ReceiptID{}
	d.Owner, d.Now, d.charges, d.denier, d.Degraded = req.Owner, now, req.Charges, -1, false
	leases := len(req.Leases) > 0
	if leases || len(d.asked) > 0 {
		d.asked, d.granted = req.Leases, d.granted[:0]
	}
	n := 0
	for i := range req.Charges {
		c := &req.Charges[i]
		tiers, shadow := c.Limit.Tiers, c.Limit.Mode == Shadow
		for j := range tiers {
			if n == cap(d.Results) {
				d.Results = append(d.Results[:n], Result{})
			}
			t, r := &tiers[j], &d.Results[:n+1][n] // every field is set here or by evaluate, so the rest need not be cleared
			n++
			if r.Tier != t { // a store of a pointer costs more than a look
				r.Tier = t
			}
			r.Cost, r.need, r.Charged, r.RetryAt, r.leaseAt = c.Cost, c.Cost, 0, 0, 0
			r.Admits, r.Never, r.Other, r.Unasked = false, false, false, false
			r.shadow, r.asksLease, r.mayGrow, r.chargeIndex = shadow, leases, leases || t.grows != nil, int16(i)
			if w := t.windows; w != nil {
				r.window = w.window(req.Owner.Name, now)
			}
			if leases {
				d.granted = append(d.granted, Lease{})
			}
		}
	}
	d.Results = d.Results[:n]
	return (*Evaluation)(d)
}

// Clear leaves no outcome in d: nothing is allowed, and there are no results. A store calls it before it returns an error.
func (d *Decision) Clear(now int64) { d.BeginChecked(&Request{}, now) }

// Decision is the decision that e is.
func (e *Evaluation) Decision() *Decision { return (*Decision)(e) }

// Evaluate fills result i from its counter's state. It charges nothing. A state with times that only a clock which was far
// ahead can have written is repaired first: in place if repair is set, else in a copy.
func (e *Evaluation) Evaluate(i int, s *State, repair bool) {
	r := &e.Results[i]
	if len(e.asked) > 0 {
		e.evaluateLease(i, s, repair)
	} else if !r.Tier.counts.evaluate(s, e.Now, r) {
		e.repair(r, s, repair)
	}
}

// repair repairs the state, or a copy of it, and evaluates that.
func (e *Evaluation) repair(r *Result, s *State, inPlace bool) *State {
	if !inPlace {
		s = s.Clone()
	}
	r.Tier.counts.repair(s, e.Now, r)
	r.Tier.counts.evaluate(s, e.Now, r)
	return s
}

// evaluateLease is Evaluate for a request with leases.
func (e *Evaluation) evaluateLease(i int, s *State, repair bool) {
	r, ask, counts := &e.Results[i], &e.asked[i], e.Results[i].Tier.counts
	r.need, r.leaseAt, r.Admits, r.RetryAt = ask.Need, 0, false, 0
	if !counts.evaluate(s, e.Now, r) {
		s = e.repair(r, s, repair)
	}
	if ask.Correction != 0 {
		s = s.Clone()
		e.correct(r, s, ask)
		r.Admits, r.RetryAt = false, 0
		counts.evaluate(s, e.Now, r)
	}
	if r.need == 0 && !r.Never { // nothing is lacking, however full the counter is
		r.Admits, r.RetryAt = true, 0
	}
	e.granted[i] = Lease{}
	if r.Admits || r.shadow {
		e.granted[i] = counts.offer(s, e.Owner.Name, e.Now, ask, r)
	}
}

func (e *Evaluation) correct(r *Result, s *State, ask *LeaseRequest) {
	if ask.Correction < 0 {
		r.Tier.counts.returnUnspent(s, -ask.Correction, ask.CorrectionAt, e.Now, r.window)
	} else if ask.Correction > 0 {
		r.Tier.counts.replay(s, ask.Correction, ask.CorrectionAt, e.Now, r.window)
	}
}

// Settle decides from the evaluated results, and returns whether it is allowed: iff each enforcing tier admits.
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

// deny records the refusal; the binding one is never, or else the one that lasts longest.
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

// Charge charges result i to its counter's state, which must be the one that Evaluate saw, and charges what is leased.
func (e *Evaluation) Charge(i int, s *State) {
	r := &e.Results[i]
	if len(e.asked) > 0 {
		e.correct(r, s, &e.asked[i])
	}
	r.Charged = r.need
	r.Tier.counts.charge(s, e.Now, r)
	if len(e.asked) > 0 {
		r.Tier.counts.chargeLease(s, r, &e.granted[i])
	}
}

// Room is for a store that bounds its memory. It returns how many bytes [State.Bytes] may grow by when result i is charged to
// s, and for how many entries Grow should make room first; 0 if there is enough. Call it after Evaluate, with the same state.
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
	if !r.Tier.Leasing().Apart { // what is leased is in the counts
		return 0, 0
	}
	return bytes, 0
}

// Grow prepares s for the charge of result i, by room for so many entries, or for no more than it has if entries is 0. If that
// is less than Room says, the state drops what no longer counts, and the limit may become stricter, and never looser. The
// first entry is always made. Requests with leases need what Room says.
func (e *Evaluation) Grow(i int, s *State, entries int) {
	if r := &e.Results[i]; r.Tier.grows != nil {
		r.Tier.grows.grow(s, r, entries)
	}
}

// Adopt takes result from, of a decision over part of the request, as result i. It is for stores that ask other stores.
func (e *Evaluation) Adopt(i int, from *Result) {
	charge := e.Results[i].chargeIndex
	e.Results[i] = *from
	e.Results[i].chargeIndex = charge
}

// AdoptLease takes what a result was leased, in a decision over part of the request or by a write that went through before
// result i was evaluated anew, as that of result i.
func (e *Evaluation) AdoptLease(i int, l Lease) {
	if i >= len(e.granted) {
		return
	}
	e.granted[i] = l
	if r := &e.Results[i]; r.leaseAt != 0 {
		r.leaseAt = l.At
	}
}

// KeepLease makes of what result i was charged a lease: what the request needed, too. It is for a store that charges the
// wider counters of a decision first, and whose narrower ones then deny. Call it after Settle and AdoptLease; the request
// must have asked for a lease of it.
func (e *Evaluation) KeepLease(i int) {
	r, l := &e.Results[i], &e.granted[i]
	l.Units += r.Charged
	l.Upfront += r.Charged
	r.Tier.counts.addUsed(r, r.Charged)
	r.Charged = 0
}

// Leases reports whether the request asks for leases.
func (e *Evaluation) Leases() bool { return len(e.asked) > 0 }

// Revise is for a store that completes or corrects a decision which other stores have made: it is the decision as one that is
// still being made. Call [Evaluation.Settle] after the last change.
func (d *Decision) Revise() *Evaluation { return (*Evaluation)(d) }

// Restart empties e for the same or another checked request, as [Decision.BeginChecked] does.
func (e *Evaluation) Restart(req *Request, now int64) { e.Decision().BeginChecked(req, now) }

// Value is [Decision.Value].
func (e *Evaluation) Value(i int) Value { return e.Decision().Value(i) }

// Lease is [Decision.Lease].
func (e *Evaluation) Lease(i int) Lease { return e.Decision().Lease(i) }
