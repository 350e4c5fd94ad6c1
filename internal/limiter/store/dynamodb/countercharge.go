package dynamodb

import (
	"math/big"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// counterCharge is the charge of one counter, as the process assumes the counter to be. decision.addCharge makes it,
// and the charge method of the counter's algorithm turns it into a condition and assignments.
type counterCharge struct {
	tier         *limit.Tier
	params       limit.Params
	need         int64               // units that must fit
	leaseRequest *limit.LeaseRequest // nil if the request leases nothing
	lease        limit.Lease         // units that are charged in addition to need
	now          int64
	stored       fields      // the counter in the copy of its item; nil if it is not there
	before       limit.State // the core's state of stored, repaired if needed
	after        limit.State // the core's state after the charge
	repaired     bool        // a clock that leapt ahead has written stored
	contended    bool        // other processes charge the same item at the same time

	// set by algorithm.charge: the condition will probably fail if other processes charge the item; see readLikelyStale
	likelyStale bool
	scarce      bool // set by algorithm.charge: there is no room for the same charge by another process
}

// chargedUnits returns all units that are charged: those that are needed, and those that are leased.
func (c *counterCharge) chargedUnits() int64 { return c.need + c.lease.Units }

// isLease reports whether the charged units are leased instead of spent.
func (c *counterCharge) isLease() bool { return c.leaseRequest != nil && c.leaseRequest.Largest() > 0 }

// correction returns by how much the request corrects the count, units.
func (c *counterCharge) correction() int64 {
	if c.leaseRequest == nil {
		return 0
	}
	return c.leaseRequest.Correction
}

// hasRamp reports whether some of the leased units become free later.
func (c *counterCharge) hasRamp() bool {
	return c.leaseRequest != nil && c.leaseRequest.Ramp && c.lease.Units > 0
}

// addTo adds to the update the condition under which the core admits the charge, and the assignments that lead to the
// core's next state. If whole is true, or if the counter was repaired, the counter is compared and replaced as a whole.
func (c *counterCharge) addTo(u counterUpdate, whole bool) {
	if c.repaired || whole {
		c.compareWhole(u)
		return
	}
	algorithmOf(c.tier).charge(c, u)
}

// compareWhole compares and replaces the whole counter.
func (c *counterCharge) compareWhole(u counterUpdate) {
	c.likelyStale = true
	u.requireUnchanged(c.stored)
	f := algorithmOf(c.tier).encode(&c.params, &c.after, c.now)
	if x := c.stored[fieldLateCharges]; x != nil {
		f[fieldLateCharges] = new(big.Int).Add(x, one)
	}
	u.replace(f)
}

// one is the number 1, which is never changed.
var one = big.NewInt(1)

// newFields returns the fields of the counter after the charge.
func (c *counterCharge) newFields() fields {
	return algorithmOf(c.tier).encode(&c.params, &c.after, c.now)
}

// isCutShort reports whether the core could apply only part of the correction; effective is that part.
func (c *counterCharge) isCutShort(effective int64) bool {
	return effective != 0 && effective != c.correction()
}

// requireRoom requires of a count that it stays within 0..maxStored when it is corrected, and that the corrected count
// is at most maxCount, so that the charged units fit.
func (c *counterCharge) requireRoom(u counterUpdate, field string, correction, maxCount, maxStored int64) {
	if c.chargedUnits() == 0 {
		maxCount = maxStored
	}
	if left := maxCount - correction - c.stored[field].Int64(); left < c.chargedUnits() {
		c.likelyStale, c.scarce = true, true
	}
	u.require(u.compare(field, "<=", big.NewInt(maxCount-correction)))
	if correction < 0 {
		u.require(u.compare(field, ">=", big.NewInt(-correction)))
	}
}

// addToCount requires that the charged units fit into the count n, and adds them and the correction.
func (c *counterCharge) addToCount(u counterUpdate, correction int64) {
	c.requireRoom(u, fieldCount, correction, c.tier.Threshold-c.chargedUnits(), 2*limit.MaxUnits)
	u.addToField(fieldCount, big.NewInt(correction+c.chargedUnits()))
}

// demand is an amount of units that must be free at a time.
type demand struct{ at, units int64 }

// demands returns the units that must be free, and when. All units of a lease without a ramp must be free now. With a
// ramp, only Upfront units must be free now, and all units at the end of the lease. If nothing of a ramp must be free
// now, the counter may even be over its limit at present, because of other ramps whose units become free until the same
// time.
func (c *counterCharge) demands() []demand {
	upfront, all := c.need+c.lease.Upfront, demand{c.lease.Until, c.chargedUnits()}
	switch {
	case !c.hasRamp():
		return []demand{{c.now, c.chargedUnits()}}
	case upfront == 0:
		return []demand{all}
	}
	return []demand{{c.now, upfront}, all}
}
