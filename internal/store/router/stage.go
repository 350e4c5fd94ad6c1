package router

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
)

// stage decides over the limits of one backend, which it asks first, and over all others together with what is below.
// The limits of the backend are called the quotas here, and all others the rates: so it is at the lowest stage, which
// has the cell's own quotas. The stages above it have the limits that other cells keep, a stage for each home cell.
type stage struct {
	quotas    Backend
	rates     rest
	home      string      // whose limits are decided first; "": this cell's quotas
	held      heldCharges // of the quotas
	returns   returns
	ratesFail atomic.Bool // the rates did not answer the last decision that asked them
	refused   ownerSet    // owners whose last decision the rates answered they cannot make
	pool      sync.Pool
}

// rest decides over the limits that a stage leaves: the stage below it or, at the bottom, the backend of the rates.
type rest struct {
	stage   *stage // nil at the bottom
	backend Backend
}

func (r *rest) decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if r.stage != nil {
		return r.stage.decide(ctx, req, now, d)
	}
	return r.backend.decide(ctx, req, now, d)
}

func (r *rest) peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if r.stage != nil {
		return r.stage.peek(ctx, req, now, d)
	}
	return r.backend.peek(ctx, req, now, d)
}

func (r *rest) refund(ctx context.Context, receipt *limit.Receipt, units int64, now time.Time) (limit.Refund, error) {
	if r.stage != nil {
		return r.stage.refund(ctx, receipt, units, now)
	}
	return r.backend.refund(ctx, receipt, units, now)
}

func (r *rest) accepts(l *limit.Limit) error {
	if r.stage != nil {
		return r.stage.accepts(l)
	}
	return r.backend.Store.Accepts(l)
}

func (r *rest) acceptsPlan(all []*limit.Limit, together ...[]*limit.Limit) error {
	if r.stage != nil {
		return r.stage.acceptsPlan(all, together...)
	}
	return limit.AcceptsPlan(r.backend.Store, all, together...)
}

// mostOwners is how many owners a set remembers before it begins anew. An owner that is forgotten costs one more lease
// and its return.
const mostOwners = 1000

// ownerSet is a set of owners that is nearly always empty. It is safe for concurrent use.
type ownerSet struct {
	n  atomic.Int64
	mu sync.Mutex
	of map[limit.Owner]struct{}
}

func (o *ownerSet) has(owner limit.Owner) bool {
	if o.n.Load() == 0 {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	_, ok := o.of[owner]
	return ok
}

func (o *ownerSet) add(owner limit.Owner) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of == nil || len(o.of) >= mostOwners {
		o.of = map[limit.Owner]struct{}{}
	}
	o.of[owner] = struct{}{}
	o.n.Store(int64(len(o.of)))
}

func (o *ownerSet) remove(owner limit.Owner) {
	if o.n.Load() == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.of, owner)
	o.n.Store(int64(len(o.of)))
}

// newStage makes the stage of a home cell or, if home is "", of the cell's own quotas.
func newStage(home string, quotas Backend, rates rest, holdFor time.Duration) *stage {
	s := &stage{quotas: quotas, rates: rates, home: home}
	s.returns.quotas = &s.quotas
	s.returns.ctx, s.returns.stop = context.WithCancel(context.Background())
	s.held.holdFor, s.held.returnLater = holdFor, s.returns.later
	s.held.refund = func(ctx context.Context, r *limit.Receipt, now time.Time) error {
		_, err := s.quotas.refund(ctx, r, 0, now)
		return err
	}
	s.pool.New = func() any { return new(halves) }
	return s
}

// halves is a request that is divided in two, and the answers.
type halves struct {
	rates, quotas           limit.Request
	rateAnswer, quotaAnswer limit.Decision
}

// isQuota reports whether the limit is counted in s.quotas. At the stage of a home, these are the limits that the home
// keeps. At the lowest stage they are the quotas, and the rates that this cell keeps for several cells, which can reach
// only that store.
func (s *stage) isQuota(l *limit.Limit) bool {
	if s.home != "" {
		return l.Home == s.home
	}
	return IsQuota(l) || l.Home != ""
}

// accepts asks the store that would keep the limit.
func (s *stage) accepts(l *limit.Limit) error {
	if s.isQuota(l) {
		return s.quotas.Store.Accepts(l)
	}
	return s.rates.accepts(l)
}

// acceptsPlan asks all stores, each about the limits that it would keep.
func (s *stage) acceptsPlan(all []*limit.Limit, together ...[]*limit.Limit) error {
	part := func(limits []*limit.Limit, quotas bool) []*limit.Limit {
		return slices.DeleteFunc(slices.Clone(limits), func(l *limit.Limit) bool { return s.isQuota(l) != quotas })
	}
	parts := func(quotas bool) [][]*limit.Limit {
		lists := make([][]*limit.Limit, len(together))
		for i := range together {
			lists[i] = part(together[i], quotas)
		}
		return lists
	}
	if err := s.rates.acceptsPlan(part(all, false), parts(false)...); err != nil {
		return err
	}
	return limit.AcceptsPlan(s.quotas.Store, part(all, true), parts(true)...)
}

// decide charges all limits of the request or none, over both halves. See [limit.Store].
func (s *stage) decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	switch concerns, err := s.concerned(req); {
	case err != nil:
		d.Clear(now.UnixMicro())
		return err
	case concerns == onlyTheQuotas:
		return s.decideQuotas(ctx, req, now, d)
	case concerns == onlyTheRates:
		return s.rates.decide(ctx, req, now, d)
	}
	h := s.divide(req)
	defer s.pool.Put(h)
	if onlyCorrects(req) {
		return s.correct(ctx, req, h, now, d)
	}
	if err := s.probeRates(ctx, h, now); err != nil {
		d.Clear(now.UnixMicro())
		return fmt.Errorf("rates: %w", err)
	}
	quotas, held, err := s.decideQuotasHalf(ctx, h, now)
	if err != nil {
		d.Clear(now.UnixMicro())
		return fmt.Errorf("quotas: %w", err)
	} else if !quotas.Allowed {
		return s.completeQuotaDenial(ctx, req, h, quotas, now, d)
	}
	err = s.rates.decide(ctx, &h.rates, now, &h.rateAnswer)
	s.noteRatesAnswer(ctx, req.Owner, err)
	if err = errorIfAsked(err, &h.rates, now, &h.rateAnswer); err == nil {
		s.join(d, req, &h.rateAnswer, quotas)
		d.ID = h.rateAnswer.ID
		if d.Revise().Settle() {
			return nil
		}
	} else {
		d.Clear(now.UnixMicro())
		err = fmt.Errorf("rates: %w", err)
	}
	switch {
	case asksForItsCostOnly(&h.quotas) && !holdsOnlyQuotas(&h.quotas):
		s.giveBack(ctx, &settlement{receipt: quotas.Receipt()}, now)
		unchargeAll(d)
	case asksForItsCostOnly(&h.quotas):
		unchargeAll(d)
		if held == nil {
			held = newHeldCharge(&h.quotas, quotas, now)
		}
		s.held.put(ctx, req.Owner, held, now)
	case err != nil:
		s.giveBack(ctx, settle(h, quotas, false), now)
	default:
		return s.settleRatesDenial(ctx, h, quotas, now, d)
	}
	return err
}

// noteRatesAnswer notes how the rates answered. If they answered that they cannot decide a request, this concerns only
// its owner. A call that its caller gave up says nothing.
func (s *stage) noteRatesAnswer(ctx context.Context, owner limit.Owner, err error) {
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	answered := limit.Answered(err)
	s.ratesFail.Store(err != nil && !answered)
	switch {
	case answered:
		s.refused.add(owner)
	case err == nil:
		s.refused.remove(owner)
	}
}

// holdsOnlyQuotas reports whether all units of the request may be held for another request. Units of a rate may not:
// spent later than they were charged, they would come on top of what the rate allows then.
func holdsOnlyQuotas(req *limit.Request) bool {
	for i := range req.Charges {
		if !IsQuota(req.Charges[i].Limit) {
			return false
		}
	}
	return true
}

// probeRates returns an error if the rates do not answer. It asks them only if they did not answer the last time.
// Without it, each request that leases would be charged its quotas and given them back.
func (s *stage) probeRates(ctx context.Context, h *halves, now time.Time) error {
	if asksForItsCostOnly(&h.quotas) || !s.ratesFail.Load() && !s.refused.has(h.rates.Owner) {
		return nil
	}
	return errorIfAsked(s.rates.peek(ctx, &h.rates, now, &h.rateAnswer), &h.rates, now, &h.rateAnswer)
}

// decideQuotasHalf decides over the quotas of the request: from what is held for it, if it needs just that, or by
// asking their store.
func (s *stage) decideQuotasHalf(ctx context.Context, h *halves, now time.Time) (*limit.Decision, *heldCharge, error) {
	if s.home != "" && asksForNothing(&h.quotas) {
		fillAsUnused(&h.quotaAnswer, &h.quotas, now.UnixMicro())
		return &h.quotaAnswer, nil, nil
	}
	if !asksForItsCostOnly(&h.quotas) {
		err := s.decideQuotas(ctx, &h.quotas, now, &h.quotaAnswer)
		return &h.quotaAnswer, nil, errorIfAsked(err, &h.quotas, now, &h.quotaAnswer)
	}
	if held := s.held.take(&h.quotas, now); held != nil {
		return held.decision, held, nil
	}
	d := new(limit.Decision) // it may be held
	return d, nil, s.decideQuotas(ctx, &h.quotas, now, d)
}

// decideQuotas asks the store of the quotas. If it denies, and units were held here for the owner, these are given back
// and the store is asked once more.
func (s *stage) decideQuotas(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	err := s.quotas.decide(ctx, req, now, d)
	if err == nil && !d.Allowed && !leasesAny(d) && s.held.giveBack(ctx, req.Owner, now) {
		err = s.quotas.decide(ctx, req, now, d)
	}
	return err
}

// leasesAny reports whether a denial has leased units all the same.
func leasesAny(d *limit.Decision) bool {
	for i := range d.Results {
		if d.Lease(i).Units > 0 {
			return true
		}
	}
	return false
}

// completeQuotaDenial completes a denial by the quotas with what the rates would answer, because the time at which the
// cost fits is that of all limits. The caller keeps what the store of the quotas has leased all the same.
func (s *stage) completeQuotaDenial(ctx context.Context, req *limit.Request, h *halves, denial *limit.Decision,
	now time.Time, d *limit.Decision) error {
	switch err := s.rates.peek(ctx, &h.rates, now, &h.rateAnswer); {
	case err == nil:
		s.join(d, req, &h.rateAnswer, denial)
	// If not, the denial stands without the rates. It must not become an error, because an error might admit the
	// request elsewhere.
	case len(req.Leases) > 0: // who leases wants a result of each tier
		fillAsUnused(&h.rateAnswer, &h.rates, denial.Now)
		s.join(d, req, &h.rateAnswer, denial)
	default:
		d.BeginChecked(&limit.Request{Owner: req.Owner, Charges: slices.Clone(h.quotas.Charges)}, denial.Now)
		for i := range denial.Results {
			d.Revise().Adopt(i, &denial.Results[i])
		}
	}
	d.Revise().Settle()
	if len(req.Leases) == 0 {
		return nil
	}
	q := 0
	for i := range d.Results {
		if s.isQuota(d.Results[i].Limit()) {
			d.Revise().AdoptLease(i, byClockOf(denial.Lease(q), denial, d))
			q++
		}
	}
	return nil
}

// peek is decide without the charge. What is held for the owner is given back first, because no request has spent it.
func (s *stage) peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	s.held.giveBack(ctx, req.Owner, now)
	switch concerns, err := s.concerned(req); {
	case err != nil:
		d.Clear(now.UnixMicro())
		return err
	case concerns == onlyTheQuotas:
		return s.quotas.peek(ctx, req, now, d)
	case concerns == onlyTheRates:
		return s.rates.peek(ctx, req, now, d)
	}
	h := s.divide(req)
	defer s.pool.Put(h)
	err := s.quotas.peek(ctx, &h.quotas, now, &h.quotaAnswer)
	if err == nil {
		err = s.rates.peek(ctx, &h.rates, now, &h.rateAnswer)
	}
	if err != nil {
		d.Clear(now.UnixMicro())
		return err
	}
	s.join(d, req, &h.rateAnswer, &h.quotaAnswer)
	d.Revise().Settle()
	return nil
}

// refund gives back in both halves. If one fails, or remembers too many refunds ([limit.ErrRefundsFull]), the other may
// have given back its part, and asking again refunds what is still missing.
func (s *stage) refund(ctx context.Context, r *limit.Receipt, units int64, now time.Time) (limit.Refund, error) {
	if err := limit.CheckRefund(r, units); err != nil {
		return limit.Refund{}, err
	}
	isQuota := func(e *limit.ReceiptEntry) bool { return s.isQuota(e.Tier.Limit()) }
	quotas, rates := r.Part(isQuota), r.Part(func(e *limit.ReceiptEntry) bool { return !isQuota(e) })
	var parts [2]limit.Refund
	for i, half := range []struct {
		refund  func(context.Context, *limit.Receipt, int64, time.Time) (limit.Refund, error)
		receipt *limit.Receipt
	}{{s.quotas.refund, quotas}, {s.rates.refund, rates}} {
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
	// One store may have forgotten the receipt by now, or have failed the first time.
	out.Repeated = given == 0 && (parts[0].Repeated || parts[1].Repeated)
	out.Expired = given == 0 && (parts[0].Expired || parts[1].Expired)
	return out, nil
}

// close refunds what is held, and waits for what is being given back, until ctx ends.
func (s *stage) close(ctx context.Context) error {
	return errors.Join(s.held.close(ctx), s.returns.close(ctx))
}

// concern says which halves of a stage a request is about.
type concern uint8

const (
	bothHalves concern = iota
	onlyTheQuotas
	onlyTheRates // also a request that is about no limit
)

// concerned returns which halves the request is about. The error says what is wrong with the request.
func (s *stage) concerned(req *limit.Request) (concern, error) {
	if err := req.Check(); err != nil {
		return bothHalves, err
	}
	quotas := 0
	for i := range req.Charges {
		if s.isQuota(req.Charges[i].Limit) {
			quotas++
		}
	}
	switch quotas {
	case 0:
		return onlyTheRates, nil
	case len(req.Charges):
		return onlyTheQuotas, nil
	}
	return bothHalves, nil
}

// divide returns the halves of the request.
func (s *stage) divide(req *limit.Request) *halves {
	h := s.pool.Get().(*halves)
	h.rates.Owner, h.quotas.Owner = req.Owner, req.Owner
	h.rates.Charges, h.quotas.Charges = h.rates.Charges[:0], h.quotas.Charges[:0]
	h.rates.Leases, h.quotas.Leases = h.rates.Leases[:0], h.quotas.Leases[:0]
	first := 0
	for i := range req.Charges {
		half, next := &h.rates, first+len(req.Charges[i].Limit.Tiers)
		if s.isQuota(req.Charges[i].Limit) {
			half = &h.quotas
		}
		half.Charges = append(half.Charges, req.Charges[i])
		if len(req.Leases) > 0 {
			half.Leases = append(half.Leases, req.Leases[first:next]...)
		}
		first = next
	}
	return h
}

// join writes to d the results and the leases of both halves, in the request's order.
func (s *stage) join(d *limit.Decision, req *limit.Request, rates, quotas *limit.Decision) {
	d.BeginChecked(req, rates.Now)
	r, q := 0, 0
	for i := range d.Results {
		if s.isQuota(d.Results[i].Limit()) {
			d.Revise().Adopt(i, &quotas.Results[q])
			d.Revise().AdoptLease(i, byClockOf(quotas.Lease(q), quotas, d))
			q++
		} else {
			d.Revise().Adopt(i, &rates.Results[r])
			d.Revise().AdoptLease(i, rates.Lease(r))
			r++
		}
	}
}

// unchargeAll says that the request was charged nothing: its units of the quotas are held for another request, or given
// back.
func unchargeAll(d *limit.Decision) {
	for i := range d.Results {
		d.Results[i].Uncharge()
	}
}
