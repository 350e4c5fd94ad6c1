package dynamodb

import "math/big"

// leasedBucketCharge charges a token bucket of which units are leased, or are to be leased. A lease belongs to a slot,
// which is a period of params.SlotLength. Leased units are out of the bucket, and nothing refills in their place, until
// their slot ends.
//
// The "level" is what is in the bucket. The "total" is the level and the leased units together. The total refills and
// overflows as the level of a bucket without leases does, and a lease leaves it unchanged. The counter keeps each as
// the time at which it would be full, in 1/Num µs: f (fieldFullTime) for the level and q (fieldTotalFullTime) for the
// total. A later time therefore means fewer units, and f − q is what is leased. A lease changes f alone, so that
// concurrent leases do not fail each other's conditions on q.
//
// Units that are given back after the end of their slot are "late". When a new slot begins, the field late
// (fieldLateFullTime) keeps the q of the slot before: the q that the total would have now if all units that were
// leased then had been given back. Late units are accepted up to q − late, and only while the total does not overflow
// by them. A lease changes neither q nor late. A charge that lowers the total removes late.
type leasedBucketCharge struct {
	*bucketCharge
	update counterUpdate

	decideAt      int64    // the time for which the charge is decided, µs: now, or the counter's own time if later
	hasSlot       bool     // the counter has a slot, which may have ended
	isInSlot      bool     // the slot has not ended
	returned      int64    // leased units that the request gives back
	isLate        bool     // the slot of the returned units has ended
	overflow      *big.Int // what is added to f because the total overflowed before the slot ended
	totalFullTime *big.Int // the stored q while the slot lasts, otherwise the f that remains after overflow
	// totalRaise is added to f and q because the total has overflowed since, or soon will. Its units are lost.
	totalRaise       *big.Int
	latest           int64 // the latest time of another charge at which the conditions still hold, µs
	pinsTotal        bool  // the condition admits only the stored q, which is raised to newTotalFullTime
	newTotalFullTime *big.Int
}

// addLeased adds the charge of a bucket with leases to the update.
func (b *bucketCharge) addLeased(u counterUpdate) {
	if b.stored == nil {
		u.require(u.isAbsent())
		u.replace(b.newFields())
		return
	}
	l := &leasedBucketCharge{
		bucketCharge: b, update: u, decideAt: max(b.now, b.before.AsOf), hasSlot: b.stored[fieldSlotEnd] != nil,
	}
	l.isInSlot = l.hasSlot && b.stored[fieldSlotEnd].Cmp(big.NewInt(l.decideAt)) > 0
	if !l.findReturned() || !l.findTotal() {
		b.compareWhole(u)
		return
	}
	l.addConditions()
	l.addAssignments()
}

// fullAt returns the q of a bucket whose total is full at a time, in µs.
func (l *leasedBucketCharge) fullAt(at int64) *big.Int {
	return multiplyAdd(at, l.params.Num, 0)
}

// findReturned sets returned and isLate. It reports false for the rare charges that need a comparison of the whole
// counter: a correction that adds units; more returned units than may come back; units of the slot before the last one
// if no slot is running; a lease of another slot; a bucket that leases more than its burst is at present; and a sum of
// refunds that is so large that it must begin at 0 again.
func (l *leasedBucketCharge) findReturned() bool {
	leased := l.before.Leased.Units
	if leased > l.params.Capacity {
		return false
	}
	if l.isInSlot && l.isLease() && big.NewInt(l.lease.At).Cmp(l.stored[fieldSlotEnd]) != 0 {
		return false
	}
	if l.correction() >= 0 {
		return l.correction() == 0
	}
	units, at := -l.correction(), l.leaseRequest.CorrectionAt
	isOfSlot := l.hasSlot && l.stored[fieldSlotEnd].Cmp(big.NewInt(at)) == 0
	switch {
	case isOfSlot && l.isInSlot:
		l.returned = units
		return units <= leased
	case !isOfSlot && at != l.before.Late.Ended, l.decideAt >= at+l.params.SlotLength:
		return true // the slot is unknown or ended long ago, so the units are lost
	case !isOfSlot && !l.isInSlot:
		return false
	case !isOfSlot:
		leased = l.before.Late.Level / l.params.Den
	}
	l.returned, l.isLate = units, true
	return units <= leased && l.before.Refunds.Total < maxRefunded
}

// findTotal determines the fields from overflow to newTotalFullTime, and likelyStale. It reports false if late units
// come back to a bucket that may overflow by them: the whole counter must then be compared.
func (l *leasedBucketCharge) findTotal() bool {
	p := &l.params
	l.overflow, l.totalRaise = new(big.Int), new(big.Int)
	full := l.fullAt(l.decideAt)
	if l.isInSlot {
		l.totalFullTime = l.stored[fieldTotalFullTime]
	} else {
		if l.hasSlot {
			fullAtSlotEnd := l.fullAt(l.stored[fieldSlotEnd].Int64())
			if q := l.stored[fieldTotalFullTime]; fullAtSlotEnd.Cmp(q) > 0 {
				l.overflow.Sub(fullAtSlotEnd, q)
			}
		}
		l.totalFullTime = new(big.Int).Add(l.stored[fieldFullTime], l.overflow)
	}
	spread := l.clockSpread()
	l.latest = l.decideAt + spread
	untilOverflow := new(big.Int).Sub(l.totalFullTime, full) // until the total overflows, in 1/Num µs
	if l.isLate {
		l.likelyStale = !l.isInSlot
		return untilOverflow.Sub(untilOverflow, l.refillTime(l.returned)).Cmp(multiplyAdd(spread, p.Num, 0)) >= 0
	}
	if l.contended && p.Capacity >= minSlackBurst && untilOverflow.Cmp(multiplyAdd(l.drawTime(spread), p.Num, 0)) < 0 {
		// Many processes charge the bucket, and its total is nearly full. This one gives units of the total up, so that
		// the total does not overflow for a while; see lowerNearlyFull.
		nearlyFull := new(big.Int).Add(full, big.NewInt(p.Full/slackDivisor))
		if nearlyFull.Cmp(l.totalFullTime) > 0 && l.hasRoom(nearlyFull) {
			l.pinsTotal, l.newTotalFullTime = true, nearlyFull
		}
	}
	if !l.pinsTotal && untilOverflow.Cmp(multiplyAdd(spread, p.Num, 0)) < 0 {
		l.latest = l.decideAt
		if untilOverflow.Sign() < 0 {
			l.pinsTotal, l.newTotalFullTime = true, full
		}
	}
	if l.pinsTotal {
		l.totalRaise.Sub(l.newTotalFullTime, l.totalFullTime)
	}
	l.likelyStale = l.pinsTotal || !l.isInSlot
	return true
}

// lateReturned returns the returned units whose slot has ended, as a time in 1/Num µs.
func (l *leasedBucketCharge) lateReturned() *big.Int {
	if !l.isLate {
		return new(big.Int)
	}
	return l.refillTime(l.returned)
}

// refillTime returns how long n units take to refill, in 1/Num µs, the unit of f and q.
func (l *leasedBucketCharge) refillTime(n int64) *big.Int {
	return new(big.Int).Mul(big.NewInt(n), big.NewInt(l.params.Den))
}

// maxFullTime returns the largest f for which the charge fits into a bucket with this q; nil if nothing is charged. It
// is a bound of the stored f with overflow and totalRaise added, and without the returned units.
func (l *leasedBucketCharge) maxFullTime(totalFullTime *big.Int) *big.Int {
	if l.chargedUnits() == 0 {
		return nil
	}
	var largest *big.Int
	for _, demand := range l.demands() {
		free := multiplyAdd(max(demand.at, l.decideAt), l.params.Num, l.params.Full)
		if free.Sub(free, l.refillTime(demand.units)); largest == nil || free.Cmp(largest) < 0 {
			largest = free
		}
	}
	if !l.hasRamp() {
		return largest
	}
	bounds := []*big.Int{multiplyAdd(l.decideAt, l.params.Num, l.params.Full)} // the level must not go below −burst
	if l.isInSlot {
		// The leased units must stay within the burst. Late units come back to the total, too.
		bounds = append(bounds, new(big.Int).Sub(totalFullTime, l.lateReturned()))
	}
	for _, bound := range bounds {
		bound = new(big.Int).Add(bound, big.NewInt(l.params.Full))
		if bound.Sub(bound, l.refillTime(l.chargedUnits())); largest == nil || bound.Cmp(largest) < 0 {
			largest = bound
		}
	}
	return largest
}

// hasRoom reports whether the charge fits into the stored bucket if q is raised to totalFullTime.
func (l *leasedBucketCharge) hasRoom(totalFullTime *big.Int) bool {
	largest := l.maxFullTime(totalFullTime)
	if largest == nil {
		return true
	}
	fullTime := new(big.Int).Add(l.stored[fieldFullTime], l.overflow)
	fullTime.Sub(fullTime, l.refillTime(l.returned))
	return fullTime.Add(fullTime, new(big.Int).Sub(totalFullTime, l.totalFullTime)).Cmp(largest) <= 0
}

// addTotalConditions adds the conditions on q, and returns the q for which the condition on f must hold.
func (l *leasedBucketCharge) addTotalConditions() (totalFullTime *big.Int) {
	u := l.update
	totalFullTime = new(big.Int).Add(l.totalFullTime, l.totalRaise)
	switch {
	case l.hasSlot && (!l.isInSlot || l.pinsTotal):
		u.requireEqual(fieldTotalFullTime, l.stored[fieldTotalFullTime])
	case l.isInSlot:
		least := l.fullAt(l.latest)
		if l.isLate { // so many units are still out, and the total has room for them
			u.requireEqual(fieldLateFullTime, l.stored[fieldLateFullTime])
			if late := l.stored[fieldLateFullTime]; late.Cmp(least) > 0 {
				least = late
			}
			least = new(big.Int).Add(least, l.lateReturned())
		}
		if l.hasRamp() {
			totalFullTime = l.leastOfRamp()
			if totalFullTime.Cmp(least) > 0 {
				least = totalFullTime
			}
		}
		u.require(u.compare(fieldTotalFullTime, ">=", least))
	}
	return totalFullTime
}

func (l *leasedBucketCharge) addConditions() {
	u, p := l.update, &l.params
	u.requireEqual(fieldRate, l.stored[fieldRate])
	u.require(u.compare(fieldChargedAt, "<=", big.NewInt(l.latest)))
	if l.before.AsOf > l.now {
		u.require(u.compare(fieldChargedAt, ">=", big.NewInt(l.before.AsOf)))
	}
	if l.hasSlot {
		u.requireEqual(fieldSlotEnd, l.stored[fieldSlotEnd])
	} else {
		u.require(u.fieldIsAbsent(fieldSlotEnd))
	}
	totalFullTime := l.addTotalConditions()
	if !l.isInSlot && l.pinsTotal { // addAssignments sets f, so any f counts that is not above newTotalFullTime
		u.require(u.compare(fieldFullTime, "<=", new(big.Int).Sub(l.newTotalFullTime, l.overflow)))
		return
	}
	if !l.isInSlot {
		least := l.fullAt(l.latest)
		least.Sub(least, l.overflow)
		if q := l.stored[fieldTotalFullTime]; l.isLate && q.Cmp(least) > 0 {
			least = q // with the condition below: at least the returned units are leased, f − q ≥ returned
		}
		u.require(u.compare(fieldFullTime, ">=", new(big.Int).Add(least, l.lateReturned())))
	}
	if largest := l.maxFullTime(totalFullTime); largest != nil {
		largest.Add(largest, l.refillTime(l.returned))
		largest.Sub(largest.Sub(largest, l.overflow), l.totalRaise)
		u.require(u.compare(fieldFullTime, "<=", largest))
		// Other processes may have charged what was refilled since the last charge. Then the charge may not fit.
		worst := multiplyAdd(l.decideAt-l.stored[fieldChargedAt].Int64(), p.Num, l.chargedUnits()*p.Den)
		l.likelyStale = l.likelyStale || worst.Add(worst, l.stored[fieldFullTime]).Cmp(largest) > 0
		// A second charge of the same size would not fit.
		l.scarce = new(big.Int).Add(l.stored[fieldFullTime], l.refillTime(l.chargedUnits())).Cmp(largest) > 0
	}
	// At least the returned units must be leased: f − q ≥ returned. A condition cannot subtract, so both fields are
	// compared with a boundary: q stays below it, and f stays at least the returned units above it.
	if l.returned > 0 && !l.isLate {
		boundary := l.stored[fieldTotalFullTime]
		if !l.pinsTotal {
			spare := new(big.Int).Sub(l.stored[fieldFullTime], boundary)
			spare.Sub(spare, l.refillTime(l.returned))
			boundary = new(big.Int).Add(boundary, spare.Rsh(spare, 1))
			u.require(u.compare(fieldTotalFullTime, "<=", boundary))
		}
		u.require(u.compare(fieldFullTime, ">=", new(big.Int).Add(boundary, l.refillTime(l.returned))))
	}
}

// leastOfRamp returns the least q with which the condition grants the ramp. How many units a ramp may lease depends on
// the total, and other processes lower q when they give back late units. The condition leaves half of the free room to
// such processes, and the other half to those that lease at the same time.
func (l *leasedBucketCharge) leastOfRamp() *big.Int {
	q := l.stored[fieldTotalFullTime]
	room := new(big.Int).Add(q, big.NewInt(l.params.Full))
	room.Sub(room, l.refillTime(l.chargedUnits()))
	if room.Sub(room, l.stored[fieldFullTime]).Sign() < 0 {
		return q
	}
	return new(big.Int).Sub(q, room.Rsh(room, 1))
}

func (l *leasedBucketCharge) addAssignments() {
	u := l.update
	raise := new(big.Int).Add(l.overflow, l.totalRaise)
	change := l.refillTime(l.chargedUnits() - l.returned)
	// Units that are spent leave the total, and late units come back to it; units that are leased stay in it.
	changeOfTotal := new(big.Int).Neg(l.lateReturned())
	if !l.isLease() {
		changeOfTotal.Add(changeOfTotal, l.refillTime(l.chargedUnits()))
	}
	l.assignLate()
	if !l.isInSlot && l.pinsTotal {
		u.setField(fieldFullTime, new(big.Int).Add(l.newTotalFullTime, change))
	} else {
		u.addToField(fieldFullTime, change.Add(change, raise))
	}
	switch {
	case l.isInSlot && l.pinsTotal:
		u.setField(fieldTotalFullTime, changeOfTotal.Add(changeOfTotal, l.newTotalFullTime))
	case l.isInSlot && changeOfTotal.Sign() != 0:
		u.addToField(fieldTotalFullTime, changeOfTotal)
	case l.isInSlot: // the charge does not change the total
	case l.isLease() && l.pinsTotal:
		u.setField(fieldTotalFullTime, l.newTotalFullTime)
		u.setField(fieldSlotEnd, big.NewInt(l.lease.At))
	case l.isLease():
		u.copyField(fieldTotalFullTime, fieldFullTime, raise.Sub(raise, l.lateReturned()))
		u.setField(fieldSlotEnd, big.NewInt(l.lease.At))
	case l.hasSlot:
		u.removeField(fieldTotalFullTime)
		u.removeField(fieldSlotEnd)
	}
	if l.decideAt > l.now {
		return // the stored time of the last charge is later
	}
	// Whoever ends a slot moves the time past its end. Otherwise a process whose clock is behind would decide as of a
	// time before that end, and give units of the slot back as late units, which the core refuses until then.
	endsSlot := l.hasSlot && !l.isInSlot
	if endsSlot || !l.contended ||
		l.now-l.stored[fieldChargedAt].Int64() > l.drawTime(minStampSpreads*l.clockSpread()) {
		u.setField(fieldChargedAt, big.NewInt(l.now))
	}
}

// assignLate adds the assignments that say what may still come back of the slot that ended last.
func (l *leasedBucketCharge) assignLate() {
	u := l.update
	if l.isLate { // refunds of other charges must not count on the same headroom
		u.addOrCreate(fieldRefunded, l.lateReturned())
		u.setField(fieldRefundedAt, big.NewInt(l.decideAt))
	}
	endsSlot, lowersTotal := l.hasSlot && !l.isInSlot, !l.isLease() && l.chargedUnits() > 0
	if endsSlot && l.isLease() && !l.pinsTotal {
		u.setField(fieldLateFullTime, new(big.Int).Add(l.stored[fieldTotalFullTime], l.overflow))
		u.setField(fieldLateSlotEnd, l.stored[fieldSlotEnd])
		return
	}
	if l.stored[fieldLateFullTime] != nil && (endsSlot || l.pinsTotal || lowersTotal) {
		u.removeField(fieldLateFullTime)
		u.removeField(fieldLateSlotEnd)
	}
}
