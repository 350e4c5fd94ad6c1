package limit

// The usual request asks for token buckets of a tenant, each of one tier, whose counters exist and were last charged
// under the same configuration. What follows decides it in one pass over the limits and one over the states. It comes to
// what Check, Begin, Evaluate, Settle and Commit come to, which TestQuick holds, and leaves everything else to them.

// Quick reports whether [Decision.Weigh] may decide the request, if its counters are as usual, too.
func (q *Request) Quick() bool {
	for i := range q.Charges {
		if l := q.Charges[i].Limit; l == nil || !l.quick || l.Mode != Enforce {
			return false
		}
	}
	return len(q.Ahead) == 0
}

// quickly reports whether the limit may be weighed by Weigh.
func (l *Limit) quickly() bool {
	return l.Mode == Enforce && !l.valued && len(l.Tiers) == 1 && l.Tiers[0].Algorithm == TokenBucket
}

// Open empties d for a request that Weigh is going to decide. The request must be Quick.
func (d *Decision) Open(req *Request, now int64) {
	d.Never, d.RetryAt, d.ID, d.denier = false, 0, ReceiptID{}, -1
	d.Allowed, d.Owner, d.Now, d.charges, d.Results = true, req.Owner, now, req.Charges, d.Results[:0]
	d.Degraded, d.ahead, d.grants = false, nil, d.grants[:0]
}

// Weigh evaluates the next charge of the request on a state that belongs to tier, and denies the decision if the charge
// does not fit. It reports false, and d is to begin anew, unless tier is the charge's only one and all is as usual. A
// caller that passes a different counter each time need not look for duplicates.
func (d *Decision) Weigh(tier *Tier, s *State) bool {
	n := len(d.Results)
	c := &d.charges[n]
	l := c.Limit
	if tier != &l.Tiers[0] || c.Cost < 1 || c.Cost > tier.capacity || c.Value != (Value{}) ||
		s.M != tier.Threshold || s.At > d.Now+maxSkew || len(s.Stamps) > 0 {
		return false
	}
	at, level := tier.refilled(s.At, s.N, d.Now)
	if n == cap(d.Results) {
		d.Results = append(d.Results, Result{})
	}
	d.Results = d.Results[:n+1]
	r := &d.Results[n]
	r.Tier, r.Cost, r.Charged, r.RetryAt = tier, c.Cost, 0, 0
	r.Admits, r.Never, r.Other, r.shadow, r.charge = true, false, false, false, int16(n)
	r.at, r.n, r.m, r.background, r.later, r.need, r.slot = at, level, 0, 0, 0, c.Cost, 0
	if need := c.Cost * tier.den; level < need {
		r.Admits, r.RetryAt, d.Allowed = false, at+ceilDiv(need-level, tier.num), false
		d.deny(n, r)
	}
	return true
}

// CommitWeighed charges result i of an allowed decision that Weigh made, to the state it was weighed on.
func (d *Decision) CommitWeighed(i int, s *State) {
	r := &d.Results[i]
	r.Charged = r.Cost
	s.At, s.N = r.at, r.n-r.Cost*r.Tier.den
}
