package router

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// undoTimeout limits how long a decision waits for one store to undo a charge.
const undoTimeout = 2 * time.Second

// part holds the limits of a request that one store counts, and that store's decision about them.
type part struct {
	backend  *Backend
	request  limit.Request
	tiers    int            // number of tiers in request
	isKnown  bool           // decision or err was set
	isSent   bool           // the store was asked to charge the part; the call may have failed
	decision limit.Decision // valid if isKnown and err is nil: the store's, or that of fillAsUnused
	err      error          // why there is no decision
}

// peek has the store evaluate the part.
func (p *part) peek(ctx context.Context, now time.Time) {
	p.note(p.backend.peek(ctx, &p.request, now, &p.decision))
}

// decide has the store charge the part.
func (p *part) decide(ctx context.Context, now time.Time) {
	p.isSent = true
	p.note(p.backend.decide(ctx, &p.request, now, &p.decision))
}

// note keeps the result of a call of the store. An error names the store, because a request may use several of them.
func (p *part) note(err error) {
	if p.err, p.isKnown = err, true; err != nil {
		p.err = fmt.Errorf("%s: %w", p.backend.name, err)
	}
}

// refuses reports whether the store has denied the part or failed.
func (p *part) refuses() bool { return p.isKnown && (p.err != nil || !p.decision.Allowed) }

// fillAsUnused replaces the decision or error by the decision over counters that were never used. It marks the results
// as not coming from the store.
func (p *part) fillAsUnused(now time.Time) {
	p.err, p.isKnown = nil, true
	e := p.decision.BeginChecked(&p.request, now.UnixMicro())
	for i := range e.Results {
		e.Evaluate(i, &limit.State{}, false)
		e.Results[i].Unasked = true
	}
	e.Settle()
}

// corrects reports whether the part has a correction. A correction cannot be undone: other requests may already have
// been admitted with the units that it returned.
func (p *part) corrects() bool {
	return slices.ContainsFunc(p.request.Leases, func(a limit.LeaseRequest) bool { return a.Correction != 0 })
}

// leavesTrace reports whether the counters may differ from their earlier state after the part is charged and undone.
// A correction cannot be undone. In a bucket that refills, a refund makes earlier receipts return fewer units, see
// [limit.Refunds].
func (p *part) leavesTrace() bool {
	for i := range p.request.Charges {
		tiers := p.request.Charges[i].Limit.Tiers
		for j := range tiers {
			if tiers[j].Leasing().Refills {
				return true
			}
		}
	}
	return p.corrects()
}

// undo returns the units that the part was charged, and waits for the store for at most undoTimeout. It ignores errors:
// units that cannot be returned stay charged, so that no unit is granted twice.
func (p *part) undo(ctx context.Context, now time.Time) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	back := limit.Request{Owner: p.request.Owner, Leases: make([]limit.LeaseRequest, len(p.request.Leases))}
	d, isEmpty := &p.decision, true
	for i := range p.request.Leases {
		r, lease := &d.Results[i], d.Lease(i)
		units := r.Charged + lease.Units
		if units == 0 || p.request.Leases[i].Largest() == 0 { // nothing to return, or it is refunded below
			continue
		}
		// All values beyond MaxValues share one counter. A value that was charged there may have got a counter of its
		// own since, and a correction would return the units to that one. So none is made, and the units stay charged.
		if !r.Other {
			back.Leases[i] = limit.LeaseRequest{Correction: -min(units, limit.MaxUnits), CorrectionAt: lease.At}
			isEmpty = false
		}
		r.Uncharge() // so that the refund below does not return these units as well
		d.Revise().Credit(i, lease.Units)
	}
	if receipt := d.Receipt(); len(receipt.Entries()) > 0 {
		_, _ = p.backend.settle(ctx, receipt, nil, now)
	}
	if !isEmpty {
		p.correct(ctx, back, now)
	}
}

// correctAlone makes the part's corrections without charging it. It does nothing if the store has failed, or if the
// store was asked to charge the part: that call had the corrections.
func (p *part) correctAlone(ctx context.Context, now time.Time) {
	if p.isSent || p.err != nil || !p.corrects() {
		return
	}
	only := limit.Request{Owner: p.request.Owner, Leases: make([]limit.LeaseRequest, len(p.request.Leases))}
	for i := range only.Leases {
		a := &p.request.Leases[i]
		only.Leases[i] = limit.LeaseRequest{Correction: a.Correction, CorrectionAt: a.CorrectionAt}
	}
	p.correct(ctx, only, now)
}

// correct sends the store a request that has only corrections. It fills in the part's limits.
func (p *part) correct(ctx context.Context, only limit.Request, now time.Time) {
	only.Charges = slices.Clone(p.request.Charges)
	for i := range only.Charges {
		only.Charges[i].Cost = 1 // the smallest valid cost; it is not charged, because the request needs no units
	}
	_ = p.backend.decide(ctx, &only, now, new(limit.Decision))
}
