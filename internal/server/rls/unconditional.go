package rls

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// isUnconditional reports whether what happens to the item does not depend on whether its hits fit: negative hits are
// given back, an item without hits is only peeked at, and denied hits are charged if the service or the rule says so.
func (c *call) isUnconditional(it *item) bool {
	return it.negative || it.hits == 0 || c.chargesDeniedHits(it)
}

// chargeUnconditional decides an item for which isUnconditional holds.
func (c *call) chargeUnconditional(it *item) error {
	switch {
	case it.planned != nil:
		it.planned.request.Cost = 1 // the answer says whether one hit would be admitted
		return c.peekPlan(it)
	case it.rule.DeniesAll():
		it.state = uncharged
		if it.hits > 0 && !it.negative {
			it.state, it.permanent = over, true
		}
		return nil
	case it.negative:
		if err := c.correct(it, -it.hits, &c.correction); err != nil { // a counter does not fall below 0
			return err
		}
		return c.peekItem(it)
	case it.hits == 0:
		if err := c.peekItem(it); err != nil {
			return err
		}
		if it.countersKnown && exceeded(&it.decision) && c.chargesDeniedHits(it) {
			it.state = over
		}
		return nil
	}
	if err := c.setOutcome(it, c.correct(it, it.hits, &it.decision), charged); err != nil {
		return err
	}
	if it.state == charged && exceeded(&it.decision) {
		it.state = over
	}
	return nil
}

// exceeded reports whether a counter of the decision holds more units than its limit allows.
func exceeded(d *limit.Decision) bool {
	for i := range d.Results {
		if r := &d.Results[i]; r.Used() > r.Tier.Capacity() {
			return true
		}
	}
	return false
}

// peekItem reads how much the item's counters have left, and charges nothing.
func (c *call) peekItem(it *item) error {
	c.buildStoreRequest(it, 1)
	if err := c.service.config.Store.Peek(c.ctx, &c.storeRequest, c.now, &it.decision); err != nil {
		return err
	}
	for i := range it.decision.Results {
		it.decision.Results[i].Uncharge()
	}
	it.countersKnown, it.state = true, uncharged
	return nil
}

// checkNegativeHits returns an error if an item has negative hits and its counters do not allow them.
func (c *call) checkNegativeHits() error {
	for i := range c.items {
		it := &c.items[i]
		switch {
		case !it.negative || !it.hasCounters():
		case it.planned != nil:
			return status.Error(codes.InvalidArgument,
				"negative hits are not allowed for descriptors of a mapping: refund the receipt of a decision instead")
		default:
			if err := it.rule.CheckNegativeHits(); err != nil {
				return status.Error(codes.InvalidArgument, err.Error())
			}
		}
	}
	return nil
}

// correct adds units, which may be negative, to each of the item's counters, whether they fit or not. d receives the
// store's answer. If the store fails, units above 0 are decided like those of any other limit, and charged only if they
// fit.
func (c *call) correct(it *item, units int64, d *limit.Decision) error {
	c.buildStoreRequest(it, 1)
	for _, l := range it.rule.Limits {
		for range l.Tiers {
			c.storeRequest.Leases = append(c.storeRequest.Leases, limit.LeaseRequest{Correction: units,
				CorrectionAt: limit.AtDecision})
		}
	}
	return c.service.config.Store.Decide(c.ctx, &c.storeRequest, c.now, d)
}
