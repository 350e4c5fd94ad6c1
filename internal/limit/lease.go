package limit

// Lease is what is left of units of one counter that were charged ahead, and what the store said of that counter when it
// granted them. It is a plain value: its holder guards it, and knows when it ends. The zero Lease has nothing.
type Lease struct {
	Units int64 // not spent yet

	seen Result // after the grant, as if no unit of the lease were left
}

// Open reports whether the store has said anything of the counter.
func (l *Lease) Open() bool { return l.seen.Tier != nil }

// At names the window, stamp or slot that the units were charged in, for [Ahead.AdjustAt]. It is meaningful while the lease
// lasts.
func (l *Lease) At() int64 {
	if l.seen.slot != 0 {
		return l.seen.slot
	}
	return l.seen.at
}

// TakeLease makes of result i, and of units that were left of the lease before and are of the same window, the lease as the
// store's answer leaves it. The need is part of it where the decision was allowed: the caller spends that too.
func (d *Decision) TakeLease(i int, left int64) Lease {
	r := &d.Results[i]
	l := Lease{Units: left + d.Grant(i).Units + r.Charged, seen: *r}
	l.seen.Charged = 0
	if r.Tier.Algorithm == TokenBucket {
		l.seen.n -= r.Charged * r.Tier.den
	} else {
		l.seen.n += r.Charged
	}
	return l
}

// BeginLeased empties d for a request that is decided from leases, one result after the other, by FromLease.
func (d *Decision) BeginLeased(req *Request, now int64, id ReceiptID) {
	d.Allowed, d.Never, d.RetryAt, d.ID, d.denier, d.Degraded = true, false, 0, id, -1, false
	d.Owner, d.Now, d.charges, d.ahead = req.Owner, now, req.Charges, nil
	d.Results, d.grants = d.Results[:0], d.grants[:0]
}

// FromLease adds the result of the next tier, which is one of charge: admitted, out of the lease, or denied until retryAt
// where that is above 0. The caller takes the units off the lease if all are admitted, after the last result was added.
func (d *Decision) FromLease(charge int, l *Lease, retryAt int64) {
	n := len(d.Results)
	if n == cap(d.Results) {
		d.Results = append(d.Results, Result{})
	}
	d.Results = d.Results[:n+1]
	r := &d.Results[n]
	*r = l.seen
	r.Cost, r.Charged, r.charge = d.charges[charge].Cost, 0, int16(charge)
	r.Admits, r.Never, r.RetryAt = retryAt == 0, false, retryAt
	r.leave(l.Units)
	if retryAt != 0 && !r.shadow {
		d.Allowed = false
		d.deny(n, r)
	}
}

// leave says that of what is used so many units are not.
func (r *Result) leave(units int64) {
	if r.Tier.Algorithm == TokenBucket {
		r.n += units * r.Tier.den
	} else {
		r.n -= units
	}
}

// ChargeLeased marks the results of an allowed decision that FromLease made as charged: those of each enforcing limit, and
// of each shadow limit all of whose tiers admit. It calls spend for each, with the result's index and the units.
func (d *Decision) ChargeLeased(spend func(i int, units int64)) {
	for i := range d.Results {
		if d.Commits(i) {
			r := &d.Results[i]
			r.Charged = r.Cost
			spend(i, r.Cost)
		}
	}
}

// Credit says that units, of what the counter of result i counts, are in the asker's own hand, and evaluates anew whether
// the cost fits. It is for a peek; call [Decision.Settle] after the last one.
func (d *Decision) Credit(i int, units int64) {
	r := &d.Results[i]
	r.leave(units)
	if !r.Admits && !r.Never && r.Remaining() >= r.Cost {
		r.Admits, r.RetryAt = true, 0
	}
}
