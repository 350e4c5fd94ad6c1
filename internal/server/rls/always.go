package rls

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// chargeAlways does what does not depend on whether the hits fit: it looks if there are no hits, gives back negative
// hits, and counts the hits of an item with countDenied.
func (c *call) chargeAlways(it *item) error {
	switch {
	case it.planned != nil && it.negative:
		return refusesNegative()
	case it.planned != nil:
		it.planned.request.Cost = 1
		return c.decidePlan(it, true)
	case it.rule.DeniesAll():
		it.state = passed
		if it.hits > 0 && !it.negative {
			it.state, it.never = over, true
		}
		return nil
	case it.negative:
		if err := c.giveBack(it); err != nil {
			return err
		}
		return c.look(it)
	case it.hits == 0:
		if err := c.look(it); err != nil {
			return err
		}
		if it.known && usedUp(&it.decision) && c.countsDenied(it) {
			it.state = over
		}
		return nil
	}
	if err := c.correct(it, it.hits, &it.decision); err != nil {
		return err
	}
	it.known, it.state = true, charged
	if usedUp(&it.decision) {
		it.state = over
	}
	return nil
}

// usedUp reports whether more is counted than a limit allows.
func usedUp(d *limit.Decision) bool {
	for i := range d.Results {
		if r := &d.Results[i]; r.Used() > r.Tier.Capacity() {
			return true
		}
	}
	return false
}

// look reads how the item's counters stand, and charges nothing.
func (c *call) look(it *item) error {
	c.askFor(it, 1)
	if err := c.service.config.Store.Peek(c.ctx, &c.ask, c.now, &it.decision); err != nil {
		return err
	}
	c.noteClock(&it.decision)
	for i := range it.decision.Results {
		it.decision.Results[i].Uncharge()
	}
	it.known, it.state = true, passed
	return nil
}

// giveBack takes hits off the item's counters, which it does not bring below 0.
func (c *call) giveBack(it *item) error {
	for _, l := range it.rule.Limits {
		for i := range l.Tiers {
			if t := &l.Tiers[i]; t.Leasing().Refills || t.Counting().Entries {
				return status.Errorf(codes.InvalidArgument, "limit %s is a %s, to which no hits can be given back: "+
					"nobody knows which of them still count", l.ID, t.Algorithm)
			}
		}
	}
	return c.correct(it, -it.hits, &c.corrected)
}

// correct changes what the item's counters have, whether it fits or not. A correction names a time by the store's
// clock, which a look tells if there was no decision before.
func (c *call) correct(it *item, units int64, d *limit.Decision) error {
	c.askFor(it, 1)
	if !c.service.clockKnown.Load() {
		if err := c.service.config.Store.Peek(c.ctx, &c.ask, c.now, d); err != nil {
			return err
		}
		c.noteClock(d)
	}
	at := c.now.UnixMicro() + c.service.clockOffset.Load()
	for _, l := range it.rule.Limits {
		for range l.Tiers {
			c.ask.Leases = append(c.ask.Leases, limit.LeaseRequest{Correction: units, CorrectionAt: at})
		}
	}
	if err := c.service.config.Store.Decide(c.ctx, &c.ask, c.now, d); err != nil {
		return err
	}
	c.noteClock(d)
	return nil
}
