package dynamodb

import "math/big"

// leasedBucketCharge charges a token bucket of which units are leased, or are to be leased. Leased units stay out of
// the bucket, and nothing refills in their place, until their slot ends.
//
// The "total" is the level and the leased units together. It refills and runs over as the level of a bucket without
// leases does, and a lease leaves it unchanged. The field q (fieldTotalEmptyTime) is the time at which the total was
// zero, as e (fieldEmptyTime) is for the level; e − q is what is leased. Processes that lease change e alone, so they
// do not disturb each other.
type leasedBucketCharge struct {
	*bucketCharge
	update counterUpdate

	decideAt       int64    // the time decided by, µs: now, or the counter's own time if that is later
	hasSlot        bool     // the counter has a slot, which may have ended
	isInSlot       bool     // the slot has not ended
	returned       int64    // leased units that the request gives back
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
	l.findTotal()
	l.addConditions()
	l.addAssignments()
}

// findReturned sets returned. It reports false for the rare charges that need a comparison of the whole counter: a
// correction that adds units, more returned units than are leased, a lease of another slot, and a bucket that leases
// more than its burst is at present. Units that were leased in another slot do not come back.
func (l *leasedBucketCharge) findReturned() bool {
	leased := l.before.Leased.Units
	if leased > l.params.Capacity {
		return false
	}
	if l.isInSlot && l.isLease() && big.NewInt(l.lease.At).Cmp(l.stored[fieldSlotEnd]) != 0 {
		return false
	}
	if l.correction() < 0 && l.isInSlot && l.stored[fieldSlotEnd].Cmp(big.NewInt(l.leaseRequest.CorrectionAt)) == 0 {
		l.returned = min(-l.correction(), leased)
		return l.returned == -l.correction()
	}
	return l.correction() <= 0
}

// findTotal determines totalEmptyTime, and by how much it must be raised.
func (l *leasedBucketCharge) findTotal() {
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
		bounds = append(bounds, totalEmptyTime) // the leased units must stay within the burst
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
	switch {
	case l.hasSlot && (!l.isInSlot || l.pinsTotal):
		u.requireEqual(fieldTotalEmptyTime, l.stored[fieldTotalEmptyTime])
	case l.isInSlot:
		least := multiplyAdd(l.latest, p.Num, -p.Full)
		// how many units a ramp may lease depends on the total
		if l.hasRamp() && l.stored[fieldTotalEmptyTime].Cmp(least) > 0 {
			least = l.stored[fieldTotalEmptyTime]
		}
		u.require(u.compare(fieldTotalEmptyTime, ">=", least))
	}
	if !l.isInSlot && l.pinsTotal { // any e below newTotalEmptyTime is raised to it
		u.require(u.compare(fieldEmptyTime, "<=", new(big.Int).Sub(l.newTotalEmptyTime, l.overflow)))
		return
	}
	if !l.isInSlot {
		least := multiplyAdd(l.latest, p.Num, -p.Full)
		u.require(u.compare(fieldEmptyTime, ">=", least.Sub(least, l.overflow)))
	}
	totalEmptyTime := new(big.Int).Add(l.totalEmptyTime, l.totalRaise)
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
	if l.returned > 0 {
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

// addAssignments adds the assignments.
func (l *leasedBucketCharge) addAssignments() {
	u := l.update
	raise := new(big.Int).Add(l.overflow, l.totalRaise)
	change := l.inLevelUnits(l.chargedUnits() - l.returned)
	spent := new(big.Int) // units that are spent leave the total; units that are leased do not
	if !l.isLease() {
		spent = l.inLevelUnits(l.chargedUnits())
	}
	if !l.isInSlot && l.pinsTotal {
		u.setField(fieldEmptyTime, new(big.Int).Add(l.newTotalEmptyTime, change))
	} else {
		u.addToField(fieldEmptyTime, change.Add(change, raise))
	}
	switch {
	case l.isInSlot && l.pinsTotal:
		u.setField(fieldTotalEmptyTime, spent.Add(spent, l.newTotalEmptyTime))
	case l.isInSlot && spent.Sign() != 0:
		u.addToField(fieldTotalEmptyTime, spent)
	case l.isInSlot:
	case l.isLease() && l.pinsTotal:
		u.setField(fieldTotalEmptyTime, l.newTotalEmptyTime)
		u.setField(fieldSlotEnd, big.NewInt(l.lease.At))
	case l.isLease():
		u.copyField(fieldTotalEmptyTime, fieldEmptyTime, raise)
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
