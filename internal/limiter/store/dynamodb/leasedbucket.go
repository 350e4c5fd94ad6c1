package dynamodb

import "math/big"

// leasedBucketCharge charges a token bucket of which units are leased, or are to be leased. Leased units stay out of
// the bucket, and nothing refills in their place, until their slot ends.
//
// The "total" is the level and the leased units together. It refills and runs over as the level of a bucket without
// leases does, and a lease leaves it unchanged. The field q (fieldTotalEmptyTime) is the time at which the total was
// zero, as e (fieldEmptyTime) is for the level; e − q is what is leased. Processes that lease change e alone, so they
// do not disturb each other.
//
// When a new slot begins, the q of the last one becomes l (fieldLateEmptyTime): the time at which the total would have
// been zero if all leased units had come back. Late units come back up to q − l, and while the total does not run over
// by them. Units that are leased change neither q nor l; a charge that lowers the total removes l.
type leasedBucketCharge struct {
	*bucketCharge
	update counterUpdate

	decideAt       int64    // the time decided by, µs: now, or the counter's own time if that is later
	hasSlot        bool     // the counter has a slot, which may have ended
	isInSlot       bool     // the slot has not ended
	returned       int64    // leased units that the request gives back
	isLate         bool     // the slot of the returned units has ended
	overflow       *big.Int // by how much e must rise because the total ran over before the slot ended
	totalEmptyTime *big.Int // the stored q, or its first value in a new slot
	// by how much e and q must rise because the total has run over since, or soon will
	totalRaise        *big.Int
	latest            int64 // the total does not run over before this time, µs
	pinsTotal         bool  // the condition admits only the stored q, which is raised to newTotalEmptyTime
	newTotalEmptyTime *big.Int
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
	if !l.findReturned() {
		b.compareWhole(u)
		return
	}
	if !l.findTotal() {
		b.compareWhole(u)
		return
	}
	l.addConditions()
	l.addAssignments()
}

// findReturned sets returned and isLate. It reports false for the rare charges that need a comparison of the whole
// counter: a correction that adds units, more returned units than may come back, a lease of another slot, a bucket that
// leases more than its burst is at present, and a total of refunds that is about to begin at 0.
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
		return true // nothing comes back
	case !isOfSlot && !l.isInSlot:
		return false
	case !isOfSlot:
		leased = l.before.Late.Level / l.params.Den
	}
	l.returned, l.isLate = units, true
	return units <= leased && l.before.Refunds.Total < maxRefunded
}

// findTotal determines totalEmptyTime, and by how much it must be raised. It reports false if units come back late to a
// bucket that may run over by them: the whole counter must then be compared.
func (l *leasedBucketCharge) findTotal() bool {
	p := &l.params
	l.overflow, l.totalRaise = new(big.Int), new(big.Int)
	full := multiplyAdd(l.decideAt, p.Num, -p.Full) // the total empty time of a bucket that is full now
	if l.isInSlot {
		l.totalEmptyTime = l.stored[fieldTotalEmptyTime]
	} else {
		if l.hasSlot {
			fullAtSlotEnd := multiplyAdd(l.stored[fieldSlotEnd].Int64(), p.Num, -p.Full)
			if total := l.stored[fieldTotalEmptyTime]; fullAtSlotEnd.Cmp(total) > 0 {
				l.overflow.Sub(fullAtSlotEnd, total)
			}
		}
		l.totalEmptyTime = new(big.Int).Add(l.stored[fieldEmptyTime], l.overflow)
	}
	spread := l.clockSpread()
	l.latest = l.decideAt + spread
	untilOverflow := new(big.Int).Sub(l.totalEmptyTime, full) // until the total runs over, in 1/num µs
	if l.isLate {
		l.likelyStale = !l.isInSlot
		return untilOverflow.Sub(untilOverflow, l.inLevelUnits(l.returned)).Cmp(multiplyAdd(spread, p.Num, 0)) >= 0
	}
	if l.contended && p.Capacity >= minSlackBurst && untilOverflow.Cmp(multiplyAdd(l.drawTime(spread), p.Num, 0)) < 0 {
		// One process lowers the total, so that it does not run over for a while; see lowerNearlyFull.
		nearlyFull := new(big.Int).Add(full, big.NewInt(p.Full/slackDivisor))
		if nearlyFull.Cmp(l.totalEmptyTime) > 0 && l.hasRoom(nearlyFull) {
			l.pinsTotal, l.newTotalEmptyTime = true, nearlyFull
		}
	}
	switch {
	case l.pinsTotal:
	case untilOverflow.Sign() < 0:
		l.pinsTotal, l.newTotalEmptyTime, l.latest = true, full, l.decideAt
	case untilOverflow.Cmp(multiplyAdd(spread, p.Num, 0)) < 0:
		l.latest = l.decideAt
	}
	if l.pinsTotal {
		l.totalRaise.Sub(l.newTotalEmptyTime, l.totalEmptyTime)
	}
	l.likelyStale = l.pinsTotal || !l.isInSlot
	return true
}

// lateReturned returns the returned units whose slot has ended, in the measure of e and q.
func (l *leasedBucketCharge) lateReturned() *big.Int {
	if !l.isLate {
		return new(big.Int)
	}
	return l.inLevelUnits(l.returned)
}

// inLevelUnits returns n units in the measure of e and q, 1/num µs.
func (l *leasedBucketCharge) inLevelUnits(n int64) *big.Int {
	return new(big.Int).Mul(big.NewInt(n), big.NewInt(l.params.Den))
}

// maxEmptyTime returns the largest e for which the charge fits into a bucket with this total empty time. e counts as
// raised, and without the returned units. The result is nil if nothing is charged.
func (l *leasedBucketCharge) maxEmptyTime(totalEmptyTime *big.Int) *big.Int {
	if l.chargedUnits() == 0 {
		return nil
	}
	var largest *big.Int
	for _, demand := range l.demands() {
		free := multiplyAdd(max(demand.at, l.decideAt), l.params.Num, 0)
		if free.Sub(free, l.inLevelUnits(demand.units)); largest == nil || free.Cmp(largest) < 0 {
			largest = free
		}
	}
	if !l.hasRamp() {
		return largest
	}
	bounds := []*big.Int{multiplyAdd(l.decideAt, l.params.Num, 0)} // the level must not go below −burst
	if l.isInSlot {
		// The leased units must stay within the burst. Late units come back to the total, too.
		bounds = append(bounds, new(big.Int).Sub(totalEmptyTime, l.lateReturned()))
	}
	for _, bound := range bounds {
		bound = new(big.Int).Add(bound, big.NewInt(l.params.Full))
		if bound.Sub(bound, l.inLevelUnits(l.chargedUnits())); largest == nil || bound.Cmp(largest) < 0 {
			largest = bound
		}
	}
	return largest
}

// hasRoom reports whether the charge fits into the stored bucket if its total empty time is raised to this one.
func (l *leasedBucketCharge) hasRoom(totalEmptyTime *big.Int) bool {
	largest := l.maxEmptyTime(totalEmptyTime)
	if largest == nil {
		return true
	}
	e := new(big.Int).Add(l.stored[fieldEmptyTime], l.overflow)
	e.Sub(e, l.inLevelUnits(l.returned))
	return e.Add(e, new(big.Int).Sub(totalEmptyTime, l.totalEmptyTime)).Cmp(largest) <= 0
}

// addTotalConditions adds the conditions on the total of the slot, and returns the total for which the condition on the
// level must hold.
func (l *leasedBucketCharge) addTotalConditions() (totalEmptyTime *big.Int) {
	u, p := l.update, &l.params
	totalEmptyTime = new(big.Int).Add(l.totalEmptyTime, l.totalRaise)
	switch {
	case l.hasSlot && (!l.isInSlot || l.pinsTotal):
		u.requireEqual(fieldTotalEmptyTime, l.stored[fieldTotalEmptyTime])
	case l.isInSlot:
		least := multiplyAdd(l.latest, p.Num, -p.Full)
		if l.isLate { // so many units may come back, and the total does not run over by them
			u.requireEqual(fieldLateEmptyTime, l.stored[fieldLateEmptyTime])
			if late := l.stored[fieldLateEmptyTime]; late.Cmp(least) > 0 {
				least = late
			}
			least = new(big.Int).Add(least, l.lateReturned())
		}
		if l.hasRamp() {
			if totalEmptyTime = l.leastOfRamp(); totalEmptyTime.Cmp(least) > 0 {
				least = totalEmptyTime
			}
		}
		u.require(u.compare(fieldTotalEmptyTime, ">=", least))
	}
	return totalEmptyTime
}

// addConditions adds the conditions.
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
	totalEmptyTime := l.addTotalConditions()
	if !l.isInSlot && l.pinsTotal { // any e below newTotalEmptyTime is raised to it
		u.require(u.compare(fieldEmptyTime, "<=", new(big.Int).Sub(l.newTotalEmptyTime, l.overflow)))
		return
	}
	if !l.isInSlot {
		least := multiplyAdd(l.latest, p.Num, -p.Full)
		least.Sub(least, l.overflow)
		if total := l.stored[fieldTotalEmptyTime]; l.isLate && total.Cmp(least) > 0 {
			least = total // the returned units are leased
		}
		u.require(u.compare(fieldEmptyTime, ">=", new(big.Int).Add(least, l.lateReturned())))
	}
	if largest := l.maxEmptyTime(totalEmptyTime); largest != nil {
		largest = new(big.Int).Add(largest, l.inLevelUnits(l.returned))
		largest.Sub(largest.Sub(largest, l.overflow), l.totalRaise)
		u.require(u.compare(fieldEmptyTime, "<=", largest))
		// Other processes may have charged what was refilled since the last charge.
		refilled := multiplyAdd(l.decideAt-l.stored[fieldChargedAt].Int64(), p.Num, l.chargedUnits()*p.Den)
		l.likelyStale = l.likelyStale || refilled.Add(refilled, l.stored[fieldEmptyTime]).Cmp(largest) > 0
		l.scarce = new(big.Int).Add(l.stored[fieldEmptyTime], l.inLevelUnits(l.chargedUnits())).Cmp(largest) > 0
	}
	// At least the returned units must be leased: e − q ≥ returned. A condition cannot subtract, so both fields are
	// compared with a value between them. Other processes may change either field as long as it stays on its side.
	if l.returned > 0 && !l.isLate {
		totalEmptyTime := l.stored[fieldTotalEmptyTime]
		if !l.pinsTotal {
			spare := new(big.Int).Sub(l.stored[fieldEmptyTime], l.stored[fieldTotalEmptyTime])
			spare.Sub(spare, l.inLevelUnits(l.returned))
			totalEmptyTime = new(big.Int).Add(totalEmptyTime, spare.Rsh(spare, 1))
			u.require(u.compare(fieldTotalEmptyTime, "<=", totalEmptyTime))
		}
		u.require(u.compare(fieldEmptyTime, ">=", new(big.Int).Add(totalEmptyTime, l.inLevelUnits(l.returned))))
	}
}

// leastOfRamp returns the least q with which the ramp is granted. How many units a ramp may lease depends on the total,
// which other processes lower when they give back late units. The condition leaves them half of the room that there is.
func (l *leasedBucketCharge) leastOfRamp() *big.Int {
	q := l.stored[fieldTotalEmptyTime]
	room := new(big.Int).Add(q, big.NewInt(l.params.Full))
	room.Sub(room, l.inLevelUnits(l.chargedUnits()))
	if room.Sub(room, l.stored[fieldEmptyTime]).Sign() < 0 {
		return q
	}
	return new(big.Int).Sub(q, room.Rsh(room, 1))
}

// addAssignments adds the assignments.
func (l *leasedBucketCharge) addAssignments() {
	u := l.update
	raise := new(big.Int).Add(l.overflow, l.totalRaise)
	change := l.inLevelUnits(l.chargedUnits() - l.returned)
	// Units that are spent leave the total, and late units come back to it; units that are leased stay in it.
	ofTotal := new(big.Int).Neg(l.lateReturned())
	if !l.isLease() {
		ofTotal.Add(ofTotal, l.inLevelUnits(l.chargedUnits()))
	}
	l.assignLate()
	if !l.isInSlot && l.pinsTotal {
		u.setField(fieldEmptyTime, new(big.Int).Add(l.newTotalEmptyTime, change))
	} else {
		u.addToField(fieldEmptyTime, change.Add(change, raise))
	}
	switch {
	case l.isInSlot && l.pinsTotal:
		u.setField(fieldTotalEmptyTime, ofTotal.Add(ofTotal, l.newTotalEmptyTime))
	case l.isInSlot && ofTotal.Sign() != 0:
		u.addToField(fieldTotalEmptyTime, ofTotal)
	case l.isInSlot:
	case l.isLease() && l.pinsTotal:
		u.setField(fieldTotalEmptyTime, l.newTotalEmptyTime)
		u.setField(fieldSlotEnd, big.NewInt(l.lease.At))
	case l.isLease():
		u.copyField(fieldTotalEmptyTime, fieldEmptyTime, raise.Sub(raise, l.lateReturned()))
		u.setField(fieldSlotEnd, big.NewInt(l.lease.At))
	case l.hasSlot:
		u.removeField(fieldTotalEmptyTime)
		u.removeField(fieldSlotEnd)
	}
	if l.decideAt > l.now {
		return
	}
	if !l.contended || l.now-l.stored[fieldChargedAt].Int64() > l.drawTime(minStampSpreads*l.clockSpread()) {
		u.setField(fieldChargedAt, big.NewInt(l.now))
	}
}

// assignLate adds the assignments that say what may still come back of the slot that ended last.
func (l *leasedBucketCharge) assignLate() {
	u := l.update
	if l.isLate && l.returned > 0 { // refunds of other charges must not count on the same headroom
		u.addOrCreate(fieldRefunded, l.lateReturned())
		u.setField(fieldRefundedAt, big.NewInt(l.decideAt))
	}
	endsSlot := l.hasSlot && !l.isInSlot
	if endsSlot && l.isLease() && !l.pinsTotal {
		u.setField(fieldLateEmptyTime, new(big.Int).Add(l.stored[fieldTotalEmptyTime], l.overflow))
		u.setField(fieldLateSlotEnd, l.stored[fieldSlotEnd])
		return
	}
	if lowersTotal := !l.isLease() && l.chargedUnits() > 0; l.stored[fieldLateEmptyTime] != nil &&
		(endsSlot || l.pinsTotal || lowersTotal) {
		u.removeField(fieldLateEmptyTime)
		u.removeField(fieldLateSlotEnd)
	}
}
