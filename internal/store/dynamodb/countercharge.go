package dynamodb

import (
	"math/big"

	"github.com/sluicelimits/sluice/internal/limit"
)

// charge is one counter that a write is to charge, as the writer believes it to be.
type counterCharge struct {
	tier         *limit.Tier
	params       limit.Params
	need         int64               // units that must fit
	leaseRequest *limit.LeaseRequest // nil: none
	lease        limit.Lease         // what is charged beyond the need
	now          int64
	stored       fields      // in the view; nil: none
	before       limit.State // old, as the core knows it, repaired
	after        limit.State // after the charge
	repaired     bool        // old has the mark of a clock that leapt ahead
	contended    bool        // others charge the same item at the same time

	likelyStale bool // what was guessed is likely to be wrong where others charge the item, see look
	scarce      bool // there is less room than for twice what is taken
}

// taken is all that is charged, units.
func (c *counterCharge) totalUnits() int64 { return c.need + c.lease.Units }

// leases reports whether what is taken is a lease, and not spent.
func (c *counterCharge) isLease() bool { return c.leaseRequest != nil && c.leaseRequest.Largest() > 0 }

// adjust is what the request corrects, units.
func (c *counterCharge) correction() int64 {
	if c.leaseRequest == nil {
		return 0
	}
	return c.leaseRequest.Correction
}

// ramps reports whether some of what is taken comes free later.
func (c *counterCharge) hasRamp() bool {
	return c.leaseRequest != nil && c.leaseRequest.Ramp && c.lease.Units > 0
}

// guess adds to the write the condition under which the core admits the cost, whatever the counter holds by then as
// long as it is of the class that was guessed, and the assignments that make of it what the core would.
// With whole it compares the whole counter instead.
func (c *counterCharge) addTo(u counterUpdate, whole bool) {
	if c.repaired || whole {
		c.compareWhole(u)
		return
	}
	algorithmOf(c.tier).charge(c, u)
}

// exact compares and sets the whole counter.
func (c *counterCharge) compareWhole(u counterUpdate) {
	c.likelyStale = true
	u.requireUnchanged(c.stored)
	f := algorithmOf(c.tier).encode(&c.params, &c.after, c.now)
	if x := c.stored[fieldLateCharges]; x != nil {
		f[fieldLateCharges] = new(big.Int).Add(x, one)
	}
	u.replace(f)
}

var one = big.NewInt(1)

func (c *counterCharge) newFields() fields {
	return algorithmOf(c.tier).encode(&c.params, &c.after, c.now)
}

// isCut reports whether a correction, of which this much was effective, met a bound of the counter.
func (c *counterCharge) isCutShort(effective int64) bool {
	return effective != 0 && effective != c.correction()
}

// fits requires of a count that the correction stays within 0..top, and that what is taken fits: the count, once it is
// corrected, is at most most.
func (c *counterCharge) requireRoom(u counterUpdate, field string, correction, maxCount, maxStored int64) {
	if c.totalUnits() == 0 {
		maxCount = maxStored
	}
	if left := maxCount - correction - c.stored[field].Int64(); left < c.totalUnits() {
		c.likelyStale, c.scarce = true, true
	}
	u.require(u.compare(field, "<=", big.NewInt(maxCount-correction)))
	if correction < 0 {
		u.require(u.compare(field, ">=", big.NewInt(-correction)))
	}
}

// addCount adds to the count n what is taken, and the correction.
func (c *counterCharge) addToCount(u counterUpdate, correction int64) {
	c.requireRoom(u, fieldCount, correction, c.tier.Threshold-c.totalUnits(), 2*limit.MaxUnits)
	u.addToField(fieldCount, big.NewInt(correction+c.totalUnits()))
}

// claim is units that must be free at a time.
type demand struct{ at, units int64 }

// claims are all that is taken, by when it must be free. Of a ramp nothing may be: then the counter may be more than full
// now, by other ramps that come free until the same time.
func (c *counterCharge) demands() []demand {
	upfront, all := c.need+c.lease.Upfront, demand{c.lease.Until, c.totalUnits()}
	switch {
	case !c.hasRamp():
		return []demand{{c.now, c.totalUnits()}}
	case upfront == 0:
		return []demand{all}
	}
	return []demand{{c.now, upfront}, all}
}
