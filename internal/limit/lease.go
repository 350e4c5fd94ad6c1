package limit

// Lease is what is left of units of one counter that were charged ahead, and what the store said of that counter when it
// granted them. It is a plain value: its holder guards it, and knows when it ends. The zero Lease has nothing.
type Lease struct {
	Units int64 // not spent yet
	At    int64 // names the window, stamp or slot that they were charged in, for [Ahead.AdjustAt]; 0: nothing was leased

	seen Result // after the grant, as if no unit of the lease were left
}

// Open reports whether the store has said anything of the counter.
func (l *Lease) Open() bool { return l.seen.Tier != nil }

// Keep makes units and the window at, of a lease that was there before, those of l, which is what the store has said since.
func (l *Lease) Keep(units, at int64) {
	l.Units, l.At = units, at
	if l.seen.Tier == nil {
		return
	}
	switch l.seen.Tier.Algorithm {
	case TokenBucket, SlidingLog, SlidingBuckets:
		l.seen.slot = at
	default: // a window's result says itself which one it is
	}
}

// Other reports that the counter is the one shared by all values beyond the limit's bound.
func (l *Lease) Other() bool { return l.seen.Other }

// Left is what remained in the store when it granted, units: what others may have by now is not known.
func (l *Lease) Left() int64 {
	if l.seen.Tier == nil {
		return 0
	}
	return l.seen.Remaining()
}

// Rebind makes the lease one of another tier of the same identity and numbers.
func (l *Lease) Rebind(t *Tier) {
	if l.seen.Tier != nil {
		l.seen.Tier = t
	}
}

// Count says that so many units are used, too, which what the store said leaves out.
func (l *Lease) Count(units int64) { l.seen.leave(-units) }

// Charge is the index, in the request, of the charge that result i is about.
func (d *Decision) Charge(i int) int { return int(d.Results[i].charge) }

// LeaseEnd is when a lease that is granted now ends at the latest, µs since 1970: the window, the period, the slot. Zero
// for the algorithms whose leases have no end of their own. For a quota it must not be called under a lock, see
// [Tier.CalendarPeriod].
func (t *Tier) LeaseEnd(owner string, now int64) int64 {
	switch t.Algorithm {
	case FixedWindow, SlidingWindow:
		return t.windowStart(owner, now) + t.period
	case Quota:
		_, end := t.CalendarPeriod(now)
		return end
	case TokenBucket:
		return t.slotEnd(owner, now)
	default:
		return 0
	}
}

// LeaseTime is the longest time, µs, to LeaseEnd; 0 for a quota and for the algorithms whose leases have no end of their own.
func (t *Tier) LeaseTime() int64 {
	switch t.Algorithm {
	case FixedWindow, SlidingWindow:
		return t.period
	case TokenBucket:
		return t.slot
	default:
		return 0
	}
}

// RampEnd is when a ramp that is granted now ends. See [Ahead].
func (t *Tier) RampEnd(owner string, now int64) int64 {
	if t.Algorithm != SlidingWindow {
		return t.LeaseEnd(owner, now)
	}
	return t.rampEnd(t.LeaseEnd(owner, now)-t.period, now)
}

// TakeLease is what the store said of result i, and the window of what it granted, without any units. Those are the need,
// where the decision was allowed, and Grant(i).Units.
func (d *Decision) TakeLease(i int) Lease {
	r := &d.Results[i]
	l := Lease{At: d.Grant(i).At, seen: *r}
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
	if r.Cost > r.Tier.capacity {
		r.Admits, r.Never, r.RetryAt = false, true, 0
	}
	if left := r.Remaining(); !r.Admits && left >= r.Cost { // of a ramp, not to be spent yet: no cost up to that is admitted now
		r.leave(r.Cost - 1 - left)
	}
	if !r.Admits && !r.shadow {
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

// ChargeLeased marks result i, which [Decision.Commits] says is to be charged, as charged, and returns the units that the
// caller takes off its lease.
func (d *Decision) ChargeLeased(i int) int64 {
	r := &d.Results[i]
	r.Charged = r.Cost
	return r.Cost
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
