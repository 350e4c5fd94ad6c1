package router

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
)

// asksForItsCostOnly reports whether the request asks for what it costs, and leases and gives back nothing.
func asksForItsCostOnly(req *limit.Request) bool {
	i := 0
	for c := range req.Charges {
		for range req.Charges[c].Limit.Tiers {
			if i < len(req.Leases) && req.Leases[i] != (limit.LeaseRequest{Need: req.Charges[c].Cost}) {
				return false
			}
			i++
		}
	}
	return true
}

// onlyCorrects reports whether the request needs nothing and leases nothing: it corrects what is counted, or does
// nothing at all.
func onlyCorrects(req *limit.Request) bool {
	for i := range req.Leases {
		if a := &req.Leases[i]; a.Need > 0 || a.Largest() > 0 {
			return false
		}
	}
	return len(req.Leases) > 0
}

// asksForNothing reports whether the request asks for nothing, because the caller has all units that it needs in hand.
func asksForNothing(req *limit.Request) bool {
	for i := range req.Leases {
		if req.Leases[i].Correction != 0 {
			return false
		}
	}
	return onlyCorrects(req)
}

// errorIfAsked returns the error of a half if anything was asked of it. If nothing was asked, it fills d as if the
// counters had never been used, and returns nil.
func errorIfAsked(err error, half *limit.Request, now time.Time, d *limit.Decision) error {
	if err != nil && asksForNothing(half) {
		fillAsUnused(d, half, now.UnixMicro())
		return nil
	}
	return err
}

// fillAsUnused fills d with results as if the counters of the half had never been used, and marks them as not asked.
func fillAsUnused(d *limit.Decision, half *limit.Request, now int64) {
	d.BeginChecked(half, now)
	for i := range d.Results {
		d.Revise().Evaluate(i, &limit.State{}, false)
		d.Results[i].Unasked = true
	}
	d.Revise().Settle()
}

// halvesError is the error of a correction that is not known to have been made by both halves.
type halvesError struct{ quotas, rates error }

// Error says what became of the halves.
func (e *halvesError) Error() string {
	switch {
	case e.rates == nil:
		return "quotas: " + e.quotas.Error() + "; the rates are corrected"
	case e.quotas == nil:
		return "rates: " + e.rates.Error() + "; the quotas are corrected"
	}
	return "quotas: " + e.quotas.Error() + "; rates: " + e.rates.Error()
}

// Is reports whether the target is true of both halves: a caller that hears that a correction was not sent may send all
// of it again. That the store answered is true of both halves if each half that failed says so.
func (e *halvesError) Is(target error) bool {
	quotas, rates := e.quotas == nil || limit.Answered(e.quotas), e.rates == nil || limit.Answered(e.rates)
	if quotas && rates && limit.Answered(target) {
		return errors.Is(e.quotas, target) || errors.Is(e.rates, target)
	}
	return e.quotas != nil && e.rates != nil && errors.Is(e.quotas, target) && errors.Is(e.rates, target)
}

// correct has both halves correct what they count, whatever becomes of the other one, and waits for both.
func (s *stage) correct(ctx context.Context, req *limit.Request, h *halves, now time.Time, d *limit.Decision) error {
	var both sync.WaitGroup
	var failed halvesError
	both.Go(func() {
		if s.home != "" && asksForNothing(&h.quotas) {
			fillAsUnused(&h.quotaAnswer, &h.quotas, now.UnixMicro())
			return
		}
		failed.quotas = errorIfAsked(s.quotas.decide(ctx, &h.quotas, now, &h.quotaAnswer), &h.quotas, now, &h.quotaAnswer)
	})
	failed.rates = errorIfAsked(s.rates.decide(ctx, &h.rates, now, &h.rateAnswer), &h.rates, now, &h.rateAnswer)
	both.Wait()
	if failed != (halvesError{}) {
		d.Clear(now.UnixMicro())
		return &failed
	}
	s.join(d, req, &h.rateAnswer, &h.quotaAnswer)
	d.ID = h.rateAnswer.ID
	d.Revise().Settle()
	return nil
}

// settlement is what happens to the quotas' half of a request if the rates have admitted nothing. After a denial, the
// caller keeps what it asked to lease, and expects that nothing else has changed. After an error, the caller takes
// everything for lost, also the units that its request gave back.
type settlement struct {
	denied  bool
	keeps   []bool         // for each result: its units are the caller's lease
	back    limit.Request  // corrections, for which nobody waits
	again   limit.Request  // leases of what came back with the request, and must be charged as before
	receipt *limit.Receipt // of what was charged and is not leased
}

func settle(h *halves, quotas *limit.Decision, denied bool) *settlement {
	x := &settlement{denied: denied, keeps: make([]bool, len(quotas.Results))}
	var refunds []bool // for each entry of the receipt
	for i := range quotas.Results {
		r := &quotas.Results[i]
		refund := quotas.Charges(i) && x.add(h, i, r, quotas.Lease(i))
		if r.Charged > 0 {
			refunds = append(refunds, refund)
		}
	}
	entry := -1
	x.receipt = quotas.Receipt().Part(func(*limit.ReceiptEntry) bool {
		entry++
		return refunds[entry]
	})
	return x
}

// add settles one result. It reports whether its charge is to be refunded.
func (x *settlement) add(h *halves, i int, r *limit.Result, g limit.Lease) (refund bool) {
	a, charged := &h.quotas.Leases[i], r.Charged+g.Units
	leased := a.Largest() > 0
	if x.denied {
		switch back := cameBack(a, r.Tier, g); {
		case back > 0 && g.At == a.CorrectionAt && (leased || isWindow(r.Tier)): // units of one window make up for each other
			made := min(back, charged)
			x.chargeAgain(h, i, back-made)
			x.giveBack(h, i, r, charged-made, g.At)
			return false
		case back > 0:
			x.chargeAgain(h, i, back)
		case a.Correction > 0 && !r.Tier.Algorithm.HasRate(): // what a bucket was charged cannot be taken off again
			x.correct(h, i, -a.Correction, a.CorrectionAt)
		}
	}
	switch {
	case charged == 0:
	case !leased:
		return true
	case x.denied:
		x.keeps[i] = true
	default:
		x.giveBack(h, i, r, charged, g.At)
	}
	return false
}

// cameBack returns how many units the request has given back, at most.
func cameBack(a *limit.LeaseRequest, t *limit.Tier, g limit.Lease) int64 {
	if a.Correction >= 0 || isWindow(t) && g.At != a.CorrectionAt { // their window had ended
		return 0
	}
	return -a.Correction
}

// isWindow reports whether all that a tier is charged counts in the window that its grant names, and no other window
// counts.
func isWindow(t *limit.Tier) bool {
	return t.Leasing().Ends && t.Counting().Windows == 1
}

// giveBack has units of a lease given back. Units of the counter that all other values share are not given back: by
// then the value may have a counter of its own, from which they would be taken.
func (x *settlement) giveBack(h *halves, i int, r *limit.Result, units, at int64) {
	if units > 0 && !r.Other {
		x.correct(h, i, -min(units, limit.MaxUnits), at)
	}
}

func (x *settlement) correct(h *halves, i int, units, at int64) {
	a := aheadOf(&x.back, h, i)
	a.Correction, a.CorrectionAt = units, at
}

func (x *settlement) chargeAgain(h *halves, i int, units int64) {
	if units > 0 {
		a := aheadOf(&x.again, h, i)
		a.Least, a.CorrectionAt = units, h.quotas.Leases[i].CorrectionAt
	}
}

// aheadOf returns the place for result i in a request about the same limits that costs nothing. It fills in the request
// if that is still empty.
func aheadOf(req *limit.Request, h *halves, i int) *limit.LeaseRequest {
	if len(req.Leases) == 0 {
		req.Owner, req.Charges = h.quotas.Owner, slices.Clone(h.quotas.Charges)
		for c := range req.Charges {
			req.Charges[c].Cost = 1
		}
		req.Leases = make([]limit.LeaseRequest, len(h.quotas.Leases))
	}
	return &req.Leases[i]
}

// settleRatesDenial settles the quotas' half of a denial by the rates, and writes to d what the caller keeps of it.
func (s *stage) settleRatesDenial(ctx context.Context, h *halves, quotas *limit.Decision, now time.Time,
	d *limit.Decision) error {
	x := settle(h, quotas, true)
	if err := s.chargeAgain(ctx, &x.again, now); err != nil {
		d.Clear(now.UnixMicro())
		s.giveBack(ctx, settle(h, quotas, false), now)
		return fmt.Errorf("quotas, charging again what came back: %w", err)
	}
	s.giveBack(ctx, x, now)
	q := 0
	for i := range d.Results {
		if !s.isQuota(d.Results[i].Limit()) {
			continue
		}
		if x.keeps[q] {
			d.Revise().AdoptLease(i, byClockOf(quotas.Lease(q), quotas, d))
			d.Revise().KeepLease(i)
		} else {
			d.Results[i].Uncharge()
		}
		q++
	}
	return nil
}

// giveBack gives back, beside the decision, what nobody keeps.
func (s *stage) giveBack(ctx context.Context, x *settlement, now time.Time) {
	if len(x.back.Leases) > 0 {
		s.giveBackOne(ctx, unitReturn{request: &x.back, now: now})
	}
	if len(x.receipt.Entries()) > 0 {
		s.giveBackOne(ctx, unitReturn{receipt: x.receipt, now: now})
	}
}

func (s *stage) giveBackOne(ctx context.Context, g unitReturn) {
	if s.held.holdFor < 0 {
		_ = s.returns.do(ctx, &g) // what cannot be given back is lost, not spent twice
		return
	}
	s.returns.later(g)
}

var errSpent = errors.New("it has been charged to others, or its window has ended")

// chargeAgain leases the units that came back with a request which was denied, because a denial changes nothing for the
// caller. It must get these units in these windows. If it does not, it returns an error, because others may have been
// admitted for them.
func (s *stage) chargeAgain(ctx context.Context, again *limit.Request, now time.Time) error {
	if len(again.Leases) == 0 {
		return nil
	}
	var d limit.Decision
	if err := s.quotas.decide(ctx, again, now, &d); err != nil {
		return err
	}
	short := false
	for i := range again.Leases {
		a, g := &again.Leases[i], d.Lease(i)
		short = short || a.Least > 0 && (g.Units != a.Least || g.At != a.CorrectionAt)
	}
	if !short {
		return nil
	}
	for i := range again.Leases {
		g := d.Lease(i)
		again.Leases[i] = limit.LeaseRequest{Correction: -g.Units, CorrectionAt: g.At}
	}
	s.giveBack(ctx, &settlement{back: *again, receipt: new(limit.Receipt)}, now)
	return errSpent
}

// byClockOf returns a grant of one decision by the clock of another: its end is as far away from the other decision's
// time as it is from the time of its own.
func byClockOf(g limit.Lease, from, d *limit.Decision) limit.Lease {
	if g.At != 0 {
		g.Until += d.Now - from.Now
	}
	return g
}
