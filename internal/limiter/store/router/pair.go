package router

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// pair decides over two parts of a request all or nothing: over the limits that the store first counts, and over all
// others, which the target second decides. It charges the first part before the second, and takes that charge back if
// the second denies or fails. The lowest pair of a cell has the cell's quotas first and its rates second. Each pair
// above it has the limits of one home cell first, and the pair below it second. The package comment lists the methods
// of a decision in order.
type pair struct {
	first         Backend
	second        target         // everything that is asked after first
	home          string         // the home cell whose limits first counts; "" for the cell's own quotas
	unspent       unspentCharges // charges of first
	returns       returnQueue    // to first
	secondFailed  atomic.Bool    // second did not answer the last decision that asked it
	refusedOwners ownerSet       // owners for whose last decision second answered that it cannot be made
	pool          sync.Pool      // of *splitRequest
}

// newPair returns the pair of a home cell or, if home is "", of the cell's own quotas.
func newPair(home string, first Backend, second target, holdFor time.Duration) *pair {
	p := &pair{first: first, second: second, home: home}
	p.returns.store = &p.first
	p.returns.ctx, p.returns.stop = context.WithCancel(context.Background())
	p.unspent.keepFor, p.unspent.returnLater = holdFor, p.returns.later
	p.unspent.refund = func(ctx context.Context, r *limit.Receipt, now time.Time) error {
		_, err := p.first.refund(ctx, r, 0, now)
		return err
	}
	p.pool.New = func() any { return new(splitRequest) }
	return p
}

// isFirst reports whether first counts the limit. In the pair of a home cell, these are the limits that the cell keeps.
// In the lowest pair, they are the quotas and the rates that this cell keeps for several cells, which can reach only
// that store.
func (p *pair) isFirst(l *limit.Limit) bool {
	if p.home != "" {
		return l.Home == p.home
	}
	return IsQuota(l) || l.Home != ""
}

// accepts returns what the store that would count the limit answers.
func (p *pair) accepts(l *limit.Limit) error {
	if p.isFirst(l) {
		return p.first.Store.Accepts(l)
	}
	return p.second.accepts(l)
}

// acceptsPlan asks both parts about the limits that they would count.
func (p *pair) acceptsPlan(all []*limit.Limit, together ...[]*limit.Limit) error {
	partOf := func(limits []*limit.Limit, first bool) []*limit.Limit {
		return slices.DeleteFunc(slices.Clone(limits), func(l *limit.Limit) bool { return p.isFirst(l) != first })
	}
	partsOf := func(first bool) [][]*limit.Limit {
		lists := make([][]*limit.Limit, len(together))
		for i := range together {
			lists[i] = partOf(together[i], first)
		}
		return lists
	}
	if err := p.second.acceptsPlan(partOf(all, false), partsOf(false)...); err != nil {
		return err
	}
	return limit.AcceptsPlan(p.first.Store, partOf(all, true), partsOf(true)...)
}

// decide charges all limits of the request or none. See [limit.Store] and the package comment.
func (p *pair) decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	switch concerns, err := p.partsOf(req); {
	case err != nil:
		d.Clear(now.UnixMicro())
		return err
	case concerns == onlyFirst:
		return p.decideFirstStore(ctx, req, now, d)
	case concerns == onlySecond:
		return p.second.decide(ctx, req, now, d)
	}
	split := p.split(req)
	defer p.pool.Put(split)
	if onlyCorrects(req) {
		return p.correctBoth(ctx, req, split, now, d)
	}
	if err := p.probeSecond(ctx, split, now); err != nil {
		d.Clear(now.UnixMicro())
		return fmt.Errorf("rates: %w", err)
	}
	firstDecision, unspent, err := p.decideFirst(ctx, split, now)
	if err != nil {
		d.Clear(now.UnixMicro())
		return fmt.Errorf("quotas: %w", err)
	} else if !firstDecision.Allowed {
		return p.completeFirstDenial(ctx, req, split, firstDecision, now, d)
	}
	err = p.second.decide(ctx, &split.second.request, now, &split.second.decision)
	p.noteSecondAnswer(ctx, req.Owner, err)
	if err = split.second.dropErrorIfUnasked(err, now); err == nil {
		p.join(d, req, firstDecision, &split.second.decision)
		d.ID = split.second.decision.ID
		if d.Revise().Settle() {
			return nil
		}
	} else {
		d.Clear(now.UnixMicro())
		err = fmt.Errorf("rates: %w", err)
	}
	switch {
	case asksForItsCostOnly(&split.first.request) && !hasOnlyQuotas(&split.first.request):
		p.returnUnits(ctx, &compensation{receipt: firstDecision.Receipt()}, now)
		unchargeAll(d)
	case asksForItsCostOnly(&split.first.request):
		unchargeAll(d)
		if unspent == nil {
			unspent = newUnspentCharge(&split.first.request, firstDecision, now)
		}
		p.unspent.keep(ctx, req.Owner, unspent, now)
	case err != nil:
		p.returnUnits(ctx, newCompensation(&split.first.request, firstDecision, false), now)
	default:
		return p.compensateDenial(ctx, split, firstDecision, now, d)
	}
	return err
}

// noteSecondAnswer remembers whether second answers, for probeSecond. If it answered that it cannot make a decision,
// this concerns only the owner of the request. The error of a call that the caller cancelled says nothing.
func (p *pair) noteSecondAnswer(ctx context.Context, owner limit.Owner, err error) {
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	answered := limit.Answered(err)
	p.secondFailed.Store(err != nil && !answered)
	switch {
	case answered:
		p.refusedOwners.add(owner)
	case err == nil:
		p.refusedOwners.remove(owner)
	}
}

// probeSecond returns an error if second does not answer. It asks only if second did not answer the last time. Without
// the probe, each request that leases would be charged in first, only to return the units.
func (p *pair) probeSecond(ctx context.Context, split *splitRequest, now time.Time) error {
	answeredLast := !p.secondFailed.Load() && !p.refusedOwners.has(split.second.request.Owner)
	if answeredLast || asksForItsCostOnly(&split.first.request) {
		return nil
	}
	err := p.second.peek(ctx, &split.second.request, now, &split.second.decision)
	return split.second.dropErrorIfUnasked(err, now)
}

// decideFirst decides over the first part of the request: by an unspent charge of just the same units, or by asking the
// store. It returns the unspent charge if it used one.
func (p *pair) decideFirst(
	ctx context.Context, split *splitRequest, now time.Time,
) (*limit.Decision, *unspentCharge, error) {
	if p.home != "" && asksForNothing(&split.first.request) {
		split.first.fillAsUnused(now.UnixMicro())
		return &split.first.decision, nil, nil
	}
	if !asksForItsCostOnly(&split.first.request) {
		err := p.decideFirstStore(ctx, &split.first.request, now, &split.first.decision)
		return &split.first.decision, nil, split.first.dropErrorIfUnasked(err, now)
	}
	if unspent := p.unspent.take(&split.first.request, now); unspent != nil {
		return unspent.decision, unspent, nil
	}
	d := new(limit.Decision) // not from the pool: it may become part of an unspent charge
	return d, nil, p.decideFirstStore(ctx, &split.first.request, now, d)
}

// decideFirstStore asks the first store. If the store denies while the owner has unspent charges, these are refunded,
// and the store is asked a second time.
func (p *pair) decideFirstStore(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	err := p.first.decide(ctx, req, now, d)
	if err == nil && !d.Allowed && !leasesAny(d) && p.unspent.refundOwner(ctx, req.Owner, now) {
		err = p.first.decide(ctx, req, now, d)
	}
	return err
}

// completeFirstDenial completes a denial by first with what second would answer, because Retry-After depends on all
// limits. The caller keeps what first has leased in spite of the denial.
func (p *pair) completeFirstDenial(
	ctx context.Context, req *limit.Request, split *splitRequest, denial *limit.Decision, now time.Time,
	d *limit.Decision,
) error {
	switch err := p.second.peek(ctx, &split.second.request, now, &split.second.decision); {
	case err == nil:
		p.join(d, req, denial, &split.second.decision)
	// If second does not answer, the denial stands without it. The denial must not become an error, because a fallback
	// limiter might admit the request after an error.
	case len(req.Leases) > 0: // a caller that leases needs a result of each tier
		split.second.fillAsUnused(denial.Now)
		p.join(d, req, denial, &split.second.decision)
	default:
		d.BeginChecked(&limit.Request{Owner: req.Owner, Charges: slices.Clone(split.first.request.Charges)}, denial.Now)
		for i := range denial.Results {
			d.Revise().Adopt(i, &denial.Results[i])
		}
	}
	d.Revise().Settle()
	if len(req.Leases) == 0 {
		return nil
	}
	position := 0
	for i := range d.Results {
		if p.isFirst(d.Results[i].Limit()) {
			d.Revise().AdoptLease(i, convertClock(denial.Lease(position), denial, d))
			position++
		}
	}
	return nil
}

// peek evaluates both parts of the request and charges nothing. It first refunds the unspent charges of the owner, so
// that they do not count as spent.
func (p *pair) peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	p.unspent.refundOwner(ctx, req.Owner, now)
	switch concerns, err := p.partsOf(req); {
	case err != nil:
		d.Clear(now.UnixMicro())
		return err
	case concerns == onlyFirst:
		return p.first.peek(ctx, req, now, d)
	case concerns == onlySecond:
		return p.second.peek(ctx, req, now, d)
	}
	split := p.split(req)
	defer p.pool.Put(split)
	err := p.first.peek(ctx, &split.first.request, now, &split.first.decision)
	if err == nil {
		err = p.second.peek(ctx, &split.second.request, now, &split.second.decision)
	}
	if err != nil {
		d.Clear(now.UnixMicro())
		return err
	}
	p.join(d, req, &split.first.decision, &split.second.decision)
	d.Revise().Settle()
	return nil
}

// refund gives back in both parts. If one part fails, or remembers too many refunds ([limit.ErrRefundsFull]), the other
// may have given back its units. Calling refund again refunds what is still missing.
func (p *pair) refund(ctx context.Context, r *limit.Receipt, units int64, now time.Time) (limit.Refund, error) {
	if err := limit.CheckRefund(r, units); err != nil {
		return limit.Refund{}, err
	}
	isQuota := func(e *limit.ReceiptEntry) bool { return p.isFirst(e.Tier.Limit()) }
	quotas, rates := r.Part(isQuota), r.Part(func(e *limit.ReceiptEntry) bool { return !isQuota(e) })
	var parts [2]limit.Refund
	for i, half := range []struct {
		refund  func(context.Context, *limit.Receipt, int64, time.Time) (limit.Refund, error)
		receipt *limit.Receipt
	}{{p.first.refund, quotas}, {p.second.refund, rates}} {
		if len(half.receipt.Entries()) == 0 {
			continue
		}
		var err error
		if parts[i], err = half.refund(ctx, half.receipt, units, now); err != nil {
			return limit.Refund{}, err
		}
	}
	out := limit.Refund{Units: make([]int64, 0, len(r.Entries()))}
	given := int64(0)
	for _, e := range r.Entries() {
		p := &parts[1]
		if isQuota(&e) {
			p = &parts[0]
		}
		out.Units = append(out.Units, p.Units[0])
		given += p.Units[0]
		p.Units = p.Units[1:]
	}
	// Nothing was given back this time. A part that has forgotten the receipt, or that failed the first time, must not
	// hide what the other one says.
	out.Repeated = given == 0 && (parts[0].Repeated || parts[1].Repeated)
	out.Expired = given == 0 && (parts[0].Expired || parts[1].Expired)
	return out, nil
}

// close refunds the unspent charges, and waits for the returns that are under way, until ctx ends.
func (p *pair) close(ctx context.Context) error {
	return errors.Join(p.unspent.close(ctx), p.returns.close(ctx))
}
