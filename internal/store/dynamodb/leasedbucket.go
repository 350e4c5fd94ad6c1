package dynamodb

import "math/big"

// heldBucket charges a token bucket of which units are leased, or are to be: what is leased is held, and the bucket does not
// refill into its place until its slot ends. Of such a bucket q says when what it has and what it holds, together, were zero:
// the sum runs over as a bucket does that has no leases, and a lease does not change it. So writers that lease do not
// disturb each other.
type leasedBucketCharge struct {
	*bucketCharge
	update counterUpdate

	decideAt   int64    // the time decided at: a clock that is behind decides at the counter's own
	hasSlot    bool     // the counter holds something, or did
	isInSlot   bool     // and its slot has not ended
	returned   int64    // units that are given back, of those that are held
	overflow   *big.Int // what e must be raised by, since the bucket ran over before its slot ended
	total      *big.Int // q, or, in a new slot, what it begins with
	totalRaise *big.Int // what both are raised by, since the sum has run over
	latest     int64    // the sum does not run over until then
	pinsTotal  bool     // only that one sum will do: it is raised to target
	newTotal   *big.Int
}

func (b *bucketCharge) addLeased(u counterUpdate) {
	if b.stored == nil {
		u.require(u.isAbsent())
		u.replace(b.newFields())
		return
	}
	l := &leasedBucketCharge{bucketCharge: b, update: u, decideAt: max(b.now, b.before.AsOf), hasSlot: b.stored[fieldSlotEnd] != nil}
	l.isInSlot = l.hasSlot && b.stored[fieldSlotEnd].Cmp(big.NewInt(l.decideAt)) > 0
	if !l.findReturned() {
		b.compareWhole(u)
		return
	}
	l.findTotal()
	l.addConditions()
	l.addAssignments()
}

// usual reports whether the charge is none of the rare ones: units owed, a give-back that meets a bound, more held than the
// burst is by now.
func (l *leasedBucketCharge) findReturned() bool {
	leased := l.before.Leased.Units
	if leased > l.params.Capacity || l.isInSlot && l.isLease() && big.NewInt(l.lease.At).Cmp(l.stored[fieldSlotEnd]) != 0 {
		return false
	}
	if l.correction() < 0 && l.isInSlot && l.stored[fieldSlotEnd].Cmp(big.NewInt(l.leaseRequest.CorrectionAt)) == 0 {
		l.returned = min(-l.correction(), leased)
		return l.returned == -l.correction()
	}
	return l.correction() <= 0
}

// weigh finds what the sum is, and whether it has run over or soon will.
func (l *leasedBucketCharge) findTotal() {
	p := &l.params
	l.overflow, l.totalRaise = new(big.Int), new(big.Int)
	full := multiplyAdd(l.decideAt, p.Num, -p.Full) // a sum that is full now
	if l.isInSlot {
		l.total = l.stored[fieldTotalEmptyTime]
	} else {
		if l.hasSlot {
			l.overflow = excess(l.overflow, multiplyAdd(l.stored[fieldSlotEnd].Int64(), p.Num, -p.Full), l.stored[fieldTotalEmptyTime])
		}
		l.total = new(big.Int).Add(l.stored[fieldEmptyTime], l.overflow)
	}
	spread := l.clockSpread()
	l.latest = l.decideAt + spread
	left := new(big.Int).Sub(l.total, full) // until it runs over, in 1/num µs
	if l.contended && p.Capacity >= minSlackBurst && left.Cmp(multiplyAdd(drawTime(spread), p.Num, 0)) < 0 {
		// One writer, drawn by lot, makes room for what refills meanwhile, see nearlyFull.
		if nearly := new(big.Int).Add(full, big.NewInt(p.Full/slackDivisor)); nearly.Cmp(l.total) > 0 && l.hasRoom(nearly) {
			l.pinsTotal, l.newTotal = true, nearly
		}
	}
	switch {
	case l.pinsTotal:
	case left.Sign() < 0:
		l.pinsTotal, l.newTotal, l.latest = true, full, l.decideAt
	case left.Cmp(multiplyAdd(spread, p.Num, 0)) < 0:
		l.latest = l.decideAt
	}
	if l.pinsTotal {
		l.totalRaise.Sub(l.newTotal, l.total)
	}
	l.likelyStale = l.pinsTotal || !l.isInSlot
}

// larger is a − b where that is above zero, else zero.
func excess(zero, a, b *big.Int) *big.Int {
	if a.Cmp(b) <= 0 {
		return zero
	}
	return new(big.Int).Sub(a, b)
}

// units is that many in e and q.
func (l *leasedBucketCharge) inLevelUnits(n int64) *big.Int {
	return new(big.Int).Mul(big.NewInt(n), big.NewInt(l.params.Den))
}

// most is the largest e, once it is raised and what is given back is off it, for which what is taken fits where the sum is
// that one; nil where nothing is taken.
func (l *leasedBucketCharge) maxEmptyTime(total *big.Int) *big.Int {
	if l.totalUnits() == 0 {
		return nil
	}
	var most *big.Int
	for _, demand := range l.demands() {
		free := multiplyAdd(max(demand.at, l.decideAt), l.params.Num, 0)
		if free.Sub(free, l.inLevelUnits(demand.units)); most == nil || free.Cmp(most) < 0 {
			most = free
		}
	}
	if !l.hasRamp() {
		return most
	}
	bounds := []*big.Int{multiplyAdd(l.decideAt, l.params.Num, 0)} // the level stays above -burst
	if l.isInSlot {
		bounds = append(bounds, total) // and what is held within the burst
	}
	for _, bound := range bounds {
		bound = new(big.Int).Add(bound, big.NewInt(l.params.Full))
		if bound.Sub(bound, l.inLevelUnits(l.totalUnits())); most == nil || bound.Cmp(most) < 0 {
			most = bound
		}
	}
	return most
}

// hasRoom reports whether what is taken fits a bucket whose sum is raised to that one.
func (l *leasedBucketCharge) hasRoom(total *big.Int) bool {
	most := l.maxEmptyTime(total)
	if most == nil {
		return true
	}
	e := new(big.Int).Add(l.stored[fieldEmptyTime], l.overflow)
	e.Sub(e, l.inLevelUnits(l.returned))
	return e.Add(e, new(big.Int).Sub(total, l.total)).Cmp(most) <= 0
}

// require adds the condition.
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
		if l.hasRamp() && l.stored[fieldTotalEmptyTime].Cmp(least) > 0 { // what may be held goes by the sum
			least = l.stored[fieldTotalEmptyTime]
		}
		u.require(u.compare(fieldTotalEmptyTime, ">=", least))
	}
	if !l.isInSlot && l.pinsTotal { // whatever it was below the target, it is raised to that
		u.require(u.compare(fieldEmptyTime, "<=", new(big.Int).Sub(l.newTotal, l.overflow)))
		return
	}
	if !l.isInSlot {
		least := multiplyAdd(l.latest, p.Num, -p.Full)
		u.require(u.compare(fieldEmptyTime, ">=", least.Sub(least, l.overflow)))
	}
	total := new(big.Int).Add(l.total, l.totalRaise)
	if most := l.maxEmptyTime(total); most != nil {
		most = new(big.Int).Add(most, l.inLevelUnits(l.returned))
		most.Sub(most.Sub(most, l.overflow), l.totalRaise)
		u.require(u.compare(fieldEmptyTime, "<=", most))
		// Others may have taken what refilled since.
		refilled := multiplyAdd(l.decideAt-l.stored[fieldChargedAt].Int64(), p.Num, l.totalUnits()*p.Den)
		l.likelyStale = l.likelyStale || refilled.Add(refilled, l.stored[fieldEmptyTime]).Cmp(most) > 0
		l.scarce = new(big.Int).Add(l.stored[fieldEmptyTime], l.inLevelUnits(l.totalUnits())).Cmp(most) > 0
	}
	if l.returned > 0 { // that much is held: e is that far ahead of the sum, wherever between the two others have moved them
		total := l.stored[fieldTotalEmptyTime]
		if !l.pinsTotal {
			spare := new(big.Int).Sub(l.stored[fieldEmptyTime], l.stored[fieldTotalEmptyTime])
			spare.Sub(spare, l.inLevelUnits(l.returned))
			total = new(big.Int).Add(total, spare.Rsh(spare, 1))
			u.require(u.compare(fieldTotalEmptyTime, "<=", total))
		}
		u.require(u.compare(fieldEmptyTime, ">=", new(big.Int).Add(total, l.inLevelUnits(l.returned))))
	}
}

// set adds the assignments.
func (l *leasedBucketCharge) addAssignments() {
	u := l.update
	raise := new(big.Int).Add(l.overflow, l.totalRaise)
	change := l.inLevelUnits(l.totalUnits() - l.returned)
	spent := new(big.Int) // what is not held is off the sum
	if !l.isLease() {
		spent = l.inLevelUnits(l.totalUnits())
	}
	if !l.isInSlot && l.pinsTotal {
		u.setField(fieldEmptyTime, new(big.Int).Add(l.newTotal, change))
	} else {
		u.addToField(fieldEmptyTime, change.Add(change, raise))
	}
	switch {
	case l.isInSlot && l.pinsTotal:
		u.setField(fieldTotalEmptyTime, spent.Add(spent, l.newTotal))
	case l.isInSlot && spent.Sign() != 0:
		u.addToField(fieldTotalEmptyTime, spent)
	case l.isInSlot:
	case l.isLease() && l.pinsTotal:
		u.setField(fieldTotalEmptyTime, l.newTotal)
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
	if !l.contended || l.now-l.stored[fieldChargedAt].Int64() > drawTime(minStampSpreads*l.clockSpread()) {
		u.setField(fieldChargedAt, big.NewInt(l.now))
	}
}
