package router

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// compensation undoes the first part of a request whose second part has admitted nothing. After a denial, the caller
// keeps what it asked to lease, and expects that nothing else has changed. After an error, the caller assumes that
// everything is lost, including the units that its request returned.
type compensation struct {
	request  *limit.Request // the first part
	isDenial bool           // the second part has denied; otherwise it has failed

	decidedAt int64 // the time of the first part's decision, µs since 1970

	keptByCaller    []bool         // of each result: its units become the caller's lease
	rechargeRequest limit.Request  // charges the units that came back with the request, as they were charged before
	returnRequest   limit.Request  // corrections that return units, after the decision
	receipt         *limit.Receipt // of what was charged and is not leased; it is refunded after the decision
}

// newCompensation returns the compensation for the decision of the first part.
func newCompensation(first *limit.Request, decision *limit.Decision, isDenial bool) *compensation {
	c := &compensation{request: first, isDenial: isDenial, decidedAt: decision.Now,
		keptByCaller: make([]bool, len(decision.Results))}
	var refunds []bool // of each entry of the receipt: whether it is refunded
	for i := range decision.Results {
		r := &decision.Results[i]
		refund := decision.Charges(i) && c.addResult(i, r, decision.Lease(i))
		if r.Charged > 0 {
			refunds = append(refunds, refund)
		}
	}
	entry := -1
	c.receipt = decision.Receipt().Part(func(*limit.ReceiptEntry) bool {
		entry++
		return refunds[entry]
	})
	return c
}

// addResult adds the compensation of one result. It reports whether the result's charge is to be refunded.
func (c *compensation) addResult(i int, r *limit.Result, lease limit.Lease) (refund bool) {
	request, charged := &c.request.Leases[i], r.Charged+lease.Units
	leased := request.Largest() > 0
	if c.isDenial {
		switch returned := returnedUnits(request, r.Tier, lease); {
		case returned > 0 && lease.At == request.CorrectionAt && (leased || isWindow(r.Tier)):
			// In one window, charged units can replace returned ones.
			used := min(returned, charged)
			c.rechargeUnits(i, returned-used)
			c.returnUnits(i, r, charged-used, lease.At)
			return false
		case returned > 0:
			c.rechargeUnits(i, returned)
		case request.Correction > 0 && !r.Tier.Algorithm.HasRate(): // a bucket cannot undo the correction
			c.correct(i, -request.Correction, c.correctedAt(request))
		}
	}
	switch {
	case charged == 0:
	case !leased:
		return true
	case c.isDenial:
		c.keptByCaller[i] = true
	default:
		c.returnUnits(i, r, charged, lease.At)
	}
	return false
}

// correctedAt returns the time at which the first part made the correction of the request. The opposite correction
// follows later, perhaps in another window, so it must not say limit.AtDecision.
func (c *compensation) correctedAt(request *limit.LeaseRequest) int64 {
	if request.CorrectionAt == limit.AtDecision {
		return c.decidedAt
	}
	return request.CorrectionAt
}

// returnedUnits returns how many units the request has returned to the tier, at most.
func returnedUnits(request *limit.LeaseRequest, t *limit.Tier, lease limit.Lease) int64 {
	hasEnded := isWindow(t) && lease.At != request.CorrectionAt
	if request.Correction >= 0 || hasEnded {
		return 0
	}
	return -request.Correction
}

// isWindow reports whether everything that a tier is charged counts in the window that its lease names, and no other
// window counts.
func isWindow(t *limit.Tier) bool {
	return t.Leasing().Ends && t.Counting().Windows == 1
}

// returnUnits adds a correction that returns leased units. If the value used the counter that all values beyond
// MaxValues share, nothing is returned: meanwhile the value may have a counter of its own, and the units would be taken
// from that one.
func (c *compensation) returnUnits(i int, r *limit.Result, units, leasedAt int64) {
	if units > 0 && !r.Other {
		c.correct(i, -min(units, limit.MaxUnits), leasedAt)
	}
}

// correct adds a correction of result i's counter.
func (c *compensation) correct(i int, units, at int64) {
	a := c.leaseRequestFor(&c.returnRequest, i)
	a.Correction, a.CorrectionAt = units, at
}

// rechargeUnits adds a lease of units that came back to result i's counter.
func (c *compensation) rechargeUnits(i int, units int64) {
	if units > 0 {
		a := c.leaseRequestFor(&c.rechargeRequest, i)
		a.Least, a.CorrectionAt = units, c.request.Leases[i].CorrectionAt
	}
}

// leaseRequestFor returns the entry of result i in a request over the limits of the first part that needs nothing. It
// fills in the request if it is still empty.
func (c *compensation) leaseRequestFor(req *limit.Request, i int) *limit.LeaseRequest {
	if len(req.Leases) == 0 {
		req.Owner, req.Charges = c.request.Owner, slices.Clone(c.request.Charges)
		for j := range req.Charges {
			req.Charges[j].Cost = 1
		}
		req.Leases = make([]limit.LeaseRequest, len(c.request.Leases))
	}
	return &req.Leases[i]
}

// compensateDenial undoes the first part after a denial by the second, and writes to d what the caller keeps.
func (p *pair) compensateDenial(
	ctx context.Context, split *splitRequest, firstDecision *limit.Decision, now time.Time, d *limit.Decision,
) error {
	c := newCompensation(&split.first.request, firstDecision, true)
	if err := p.recharge(ctx, &c.rechargeRequest, now); err != nil {
		d.Clear(now.UnixMicro())
		p.returnUnits(ctx, newCompensation(&split.first.request, firstDecision, false), now)
		return fmt.Errorf("quotas, charging again what came back: %w", err)
	}
	p.returnUnits(ctx, c, now)
	position := 0
	for i := range d.Results {
		if !p.isFirst(d.Results[i].Limit()) {
			continue
		}
		if c.keptByCaller[position] {
			d.Revise().AdoptLease(i, convertClock(firstDecision.Lease(position), firstDecision, d))
			d.Revise().KeepLease(i)
		} else {
			d.Results[i].Uncharge()
		}
		position++
	}
	return nil
}

// returnUnits returns, after the decision, what the compensation gives back.
func (p *pair) returnUnits(ctx context.Context, c *compensation, now time.Time) {
	if len(c.returnRequest.Leases) > 0 {
		p.returnOrQueue(ctx, unitReturn{request: &c.returnRequest, callerNow: now})
	}
	if len(c.receipt.Entries()) > 0 {
		p.returnOrQueue(ctx, unitReturn{receipt: c.receipt, callerNow: now})
	}
}

// returnOrQueue returns units at once if no unspent charges are kept (Config.KeepUnspentFor), and otherwise queues the
// return.
func (p *pair) returnOrQueue(ctx context.Context, r unitReturn) {
	if p.unspent.keepFor < 0 {
		_ = p.returns.do(ctx, &r) // units that cannot be returned are lost
		return
	}
	p.returns.later(r)
}

// errRechargedElsewhere is the error of a recharge that comes too late.
var errRechargedElsewhere = errors.New("it has been charged to others, or its window has ended")

// recharge charges the units that came back with a request which was denied, because a denial changes nothing for the
// caller. It must get exactly these units, in the windows from which they came. Otherwise it returns an error, because
// others may have been admitted for them.
func (p *pair) recharge(ctx context.Context, recharge *limit.Request, now time.Time) error {
	if len(recharge.Leases) == 0 {
		return nil
	}
	var d limit.Decision
	if err := p.first.decide(ctx, recharge, now, &d); err != nil {
		return err
	}
	short := false
	for i := range recharge.Leases {
		a, g := &recharge.Leases[i], d.Lease(i)
		short = short || a.Least > 0 && (g.Units != a.Least || g.At != a.CorrectionAt)
	}
	if !short {
		return nil
	}
	for i := range recharge.Leases {
		g := d.Lease(i)
		recharge.Leases[i] = limit.LeaseRequest{Correction: -g.Units, CorrectionAt: g.At}
	}
	p.returnUnits(ctx, &compensation{returnRequest: *recharge, receipt: new(limit.Receipt)}, now)
	return errRechargedElsewhere
}
