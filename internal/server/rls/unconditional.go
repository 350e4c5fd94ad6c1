package rls

import (
	"context"
	"errors"
	"math"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
)

// isUnconditional reports whether it makes no difference to the item's counters if its hits fit: negative hits are
// given back, an item with 0 hits is only peeked at, and an item with countDenied is charged in any case.
func (c *call) isUnconditional(it *item) bool {
	return it.negative || it.hits == 0 || c.chargesDeniedHits(it)
}

// chargeUnconditional decides an item for which isUnconditional holds.
func (c *call) chargeUnconditional(it *item) error {
	switch {
	case it.planned != nil:
		// checkNegativeHits has refused negative hits, and a plan never charges what does not fit. So there are 0 hits.
		it.planned.request.Cost = 1 // the answer says whether one hit would be admitted
		return c.peekPlan(it)
	case it.rule.DeniesAll():
		it.state = uncharged // there is nothing to give back or to peek at
		if it.hits > 0 && !it.negative {
			it.state, it.permanent = over, true
		}
		return nil
	case it.negative:
		return c.giveBack(it)
	case it.hits == 0:
		return c.checkExceeded(it)
	}
	err := c.addToCounters(it, it.hits, &it.decision)
	if err := c.setOutcome(it, err, charged); err != nil {
		return err
	}
	if it.state == charged && exceeded(&it.decision) {
		it.state = over
	}
	return nil
}

// giveBack subtracts negative hits from the item's counters, none of which falls below 0, and reads what is left. The
// item's status is OK, whatever is left. If the store fails, the hits are not given back, or nothing is known of the
// counters afterwards, and the status is still OK: an error would leave the other descriptors of the request undecided,
// and let Envoy admit or deny the request whatever they say.
func (c *call) giveBack(it *item) error {
	err := c.addToCounters(it, -it.hits, &it.decision)
	lost := err != nil
	if !lost {
		c.service.denials.forgetWait(&it.owner, math.MaxInt64)
		err = c.peekItem(it)
	}
	it.state = uncharged
	if err == nil || errors.Is(err, limit.ErrInvalidRequest) || errors.Is(c.ctx.Err(), context.Canceled) {
		return err
	}
	if lost {
		c.service.stats.RefundError.Add(1)
	}
	c.service.logStore(err)
	return nil
}

// checkExceeded decides an item with 0 hits: it denies only if its denied hits are counted, and a counter is above its
// limit.
func (c *call) checkExceeded(it *item) error {
	if err := c.peekItem(it); err != nil {
		return err
	}
	if it.countersKnown && exceeded(&it.decision) && c.chargesDeniedHits(it) {
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

// peekItem reads how much the item's counters have left, and charges nothing. The item denies if the store is away and
// a limit has onStoreFailure: closed.
func (c *call) peekItem(it *item) error {
	it.buildStoreRequest(1) // 1 is the smallest cost of a request; Uncharge takes it off the results
	err := c.service.config.Store.Peek(c.ctx, &it.storeRequest, c.now, &it.decision)
	if errors.Is(err, resilience.ErrFailClosed) {
		it.state = over
		return nil
	}
	if err != nil {
		return err
	}
	for i := range it.decision.Results {
		it.decision.Results[i].Uncharge()
	}
	it.countersKnown, it.state = true, uncharged // whether one hit would fit does not matter: there are none
	return nil
}

// checkNegativeHits returns an error if an item has negative hits and its counters do not allow them.
func (c *call) checkNegativeHits() error {
	for i := range c.items {
		it := &c.items[i]
		switch {
		case !it.negative || !it.hasCounters():
		case it.planned != nil:
			return status.Errorf(codes.InvalidArgument, "descriptor %d has negative hits, and is decided by the plan "+
				"of a tenant (the mapping of domain %q): hits that a plan counted cannot be given back over this "+
				"protocol. Send such descriptors without is_negative_hits", i+1, it.planned.domain)
		default:
			if err := it.rule.CheckNegativeHits(); err != nil {
				return status.Errorf(codes.InvalidArgument, "descriptor %d has negative hits: %v", i+1, err)
			}
		}
	}
	return nil
}

// addToCounters adds units to each of the item's counters, or takes them off if they are negative, whether they fit or
// not. d receives the store's answer. While the store is away, the fallback limiter decides units above 0 like those of
// any other limit, and charges them only if they fit. Units below 0 are then an error.
func (c *call) addToCounters(it *item, units int64, d *limit.Decision) error {
	// The units are a correction of the count, which is made in any case. A request must have a cost as well, and this
	// cost of 1 is not charged: a request with leases charges what each of them needs, which is 0 here.
	it.buildStoreRequest(1)
	for _, l := range it.rule.Limits {
		for range l.Tiers {
			it.storeRequest.Leases = append(it.storeRequest.Leases, limit.LeaseRequest{Correction: units,
				CorrectionAt: limit.AtDecision})
		}
	}
	return c.service.config.Store.Decide(c.ctx, &it.storeRequest, c.now, d)
}
