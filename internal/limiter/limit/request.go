package limit

import "fmt"

const (
	maxCharges    = 1024              // limits in one decision
	maxValueBytes = 16 * MaxNameBytes // bytes in a value, which may join several components
)

// Request is one question: may this owner spend now?
type Request struct {
	Owner   Owner
	Charges []Charge       // one for each limit that applies. A request without charges is admitted
	Leases  []LeaseRequest // empty, or one for each tier of each charge, in their order
}

// Charge asks for units of one limit.
type Charge struct {
	Limit *Limit
	Value Value // selects the counter, if the limit's Per is not "tenant"; NoValue otherwise
	Cost  int64 // units, 1..MaxUnits
}

// Check reports what is wrong with the request, if anything: ErrInvalidRequest, ErrInvalidCost or ErrDuplicateCounter.
func (q *Request) Check() error {
	if len(q.Owner.Name) > MaxNameBytes {
		return fmt.Errorf("%w: owner's name has %d bytes, want at most %d", ErrInvalidRequest,
			len(q.Owner.Name), MaxNameBytes)
	}
	if len(q.Charges) > maxCharges {
		return fmt.Errorf("%w: %d limits, want at most %d", ErrInvalidRequest, len(q.Charges), maxCharges)
	}
	// met has one bit for each limit before, chosen by the hash of its ID. Limits that share a counter have the same
	// ID, so repeats need be called only if the bit is set already.
	met := uint64(0)
	for i := range q.Charges {
		c := &q.Charges[i]
		l := c.Limit
		if l == nil || !l.usable || c.Cost < 1 || c.Cost > l.costMost {
			return c.invalid(i)
		}
		if (l.valued || c.Value.Kind != NoValue || c.Value.Text != "") && !c.valueFits() {
			return c.invalid(i)
		}
		bit := uint64(1) << (l.idHash % 64)
		if met&bit != 0 && q.repeats(i) {
			return fmt.Errorf("%w: limit %s", ErrDuplicateCounter, l.ID)
		}
		met |= bit
	}
	if len(q.Leases) > 0 {
		return q.checkLeases()
	}
	return nil
}

// valueFits reports whether the limit can have the value: none if it is per tenant, otherwise a sound one.
func (c *Charge) valueFits() bool {
	if !c.Limit.valued {
		return c.Value == Value{}
	}
	return c.Value.Kind != NoValue && c.Value.sound()
}

// repeats reports whether a charge before charge i is for the same counter.
func (q *Request) repeats(i int) bool {
	c := &q.Charges[i]
	for j := range i {
		if o := &q.Charges[j]; o.Value == c.Value && sameCounters(o.Limit, c.Limit) {
			return true
		}
	}
	return false
}

// invalid returns what Check found wrong with charge i.
func (c *Charge) invalid(i int) error {
	switch l := c.Limit; {
	case l == nil || !l.compiled:
		return fmt.Errorf("%w: charge %d has no limit made by New", ErrInvalidRequest, i+1)
	case c.Cost < 1 || c.Cost > l.costMost:
		return fmt.Errorf("%w: %d for limit %s is outside 1..%d", ErrInvalidCost, c.Cost, l.ID, l.costMost)
	case l.Mode == Off:
		return fmt.Errorf("%w: limit %s is off", ErrInvalidRequest, l.ID)
	case len(c.Value.Text) > maxValueBytes:
		return fmt.Errorf("%w: value of limit %s has %d bytes, want at most %d", ErrInvalidRequest, l.ID,
			len(c.Value.Text), maxValueBytes)
	case !c.Value.sound():
		return fmt.Errorf("%w: value of limit %s: kind %q with text %.200q", ErrInvalidRequest, l.ID,
			byte(c.Value.Kind), c.Value.Text)
	default:
		return fmt.Errorf("%w: limit %s is per %s, value is %.200q", ErrInvalidRequest, l.ID, l.Per, c.Value.Text)
	}
}

// sameCounters reports whether two limits have a tier with the same counters. Such limits have the same ID.
func sameCounters(a, b *Limit) bool {
	if a.idHash != b.idHash {
		return false
	}
	for i := range a.Tiers {
		for j := range b.Tiers {
			if a.Tiers[i].identity == b.Tiers[j].identity {
				return true
			}
		}
	}
	return false
}
