package router

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// undoTimeout bounds how long a decision waits until a store has taken back what it was charged.
const undoTimeout = 2 * time.Second

// part is the part of a request that one store counts, and the decision over it.
type part struct {
	backend  *Backend
	request  limit.Request
	tiers    int // of request
	isKnown  bool
	isSent   bool           // the store was asked to charge the part
	decision limit.Decision // if isKnown: what the store says, or what it would say if it is asked for nothing
	err      error          // of the decision
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

// note notes the store's answer. An error names the store, because a request may concern several of them.
func (p *part) note(err error) {
	if p.err, p.isKnown = err, true; err != nil {
		p.err = fmt.Errorf("%s: %w", p.backend.name, err)
	}
}

// refuses reports whether the store is known to deny the part, or not to answer.
func (p *part) refuses() bool { return p.isKnown && (p.err != nil || !p.decision.Allowed) }

// fillAsUnused fills the decision as if the counters had never been used, and marks its results as not asked.
func (p *part) fillAsUnused(now time.Time) {
	p.err, p.isKnown = nil, true
	e := p.decision.BeginChecked(&p.request, now.UnixMicro())
	for i := range e.Results {
		e.Evaluate(i, &limit.State{}, false)
		e.Results[i].Unasked = true
	}
	e.Settle()
}

// corrects reports whether the part makes a correction. It cannot be undone: others may have been admitted for units
// that came back.
func (p *part) corrects() bool {
	return slices.ContainsFunc(p.request.Leases, func(a limit.LeaseRequest) bool { return a.Correction != 0 })
}

// leavesTrace reports whether the counters can differ from what they were, once the part was charged and undone. Older
// receipts of a bucket that refills give back less after a refund, see [limit.Refunds].
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

// undo takes back what the part was charged, and waits for it. What cannot be taken back is lost, and never spent
// twice.
func (p *part) undo(ctx context.Context, now time.Time) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	back := limit.Request{Owner: p.request.Owner, Leases: make([]limit.LeaseRequest, len(p.request.Leases))}
	d, isEmpty := &p.decision, true
	for i := range p.request.Leases {
		r, lease := &d.Results[i], d.Lease(i)
		units := r.Charged + lease.Units
		if units == 0 || p.request.Leases[i].Largest() == 0 { // what was charged without a lease is refunded
			continue
		}
		// If the value used the counter that all values beyond MaxValues share, it may have a counter of its own
		// meanwhile, and the units would be taken from that one.
		if !r.Other {
			back.Leases[i] = limit.LeaseRequest{Correction: -min(units, limit.MaxUnits), CorrectionAt: lease.At}
			isEmpty = false
		}
		r.Uncharge()
		d.Revise().Credit(i, lease.Units)
	}
	if receipt := d.Receipt(); len(receipt.Entries()) > 0 {
		_, _ = p.backend.refund(ctx, receipt, 0, now)
	}
	if !isEmpty {
		p.correct(ctx, back, now)
	}
}

// correctAlone has the store make the part's corrections, if it answers and was not asked to charge the part.
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

// correct has the store make the corrections of a request for the part's limits, which needs nothing.
func (p *part) correct(ctx context.Context, only limit.Request, now time.Time) {
	only.Charges = slices.Clone(p.request.Charges)
	for i := range only.Charges {
		only.Charges[i].Cost = 1 // the least; nothing of it is charged, because nothing is needed
	}
	_ = p.backend.decide(ctx, &only, now, new(limit.Decision))
}
