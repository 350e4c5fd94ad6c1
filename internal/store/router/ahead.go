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

// plain reports whether the request asks for what it costs, and for nothing else.
func plain(req *limit.Request) bool {
	i := 0
	for c := range req.Charges {
		for range req.Charges[c].Limit.Tiers {
			if i < len(req.Ahead) && req.Ahead[i] != (limit.Ahead{Need: req.Charges[c].Cost}) {
				return false
			}
			i++
		}
	}
	return true
}

// corrects reports whether the request needs nothing and leases nothing: it corrects what is counted, or does nothing.
func corrects(req *limit.Request) bool {
	for i := range req.Ahead {
		if a := &req.Ahead[i]; a.Need > 0 || a.Largest() > 0 {
			return false
		}
	}
	return len(req.Ahead) > 0
}

// idle reports whether nothing is asked: the caller has all that it needs in hand.
func idle(req *limit.Request) bool {
	for i := range req.Ahead {
		if req.Ahead[i].Adjust != 0 {
			return false
		}
	}
	return corrects(req)
}

// needed is the error of a half, if anything was asked of it; if not, d is as if its counters had never been used.
func needed(err error, half *limit.Request, now time.Time, d *limit.Decision) error {
	if err != nil && idle(half) {
		unused(d, half, now.UnixMicro())
		return nil
	}
	return err
}

func unused(d *limit.Decision, half *limit.Request, now int64) {
	d.Begin(half, now)
	for i := range d.Results {
		d.Evaluate(i, &limit.State{}, false)
		d.Results[i].Unasked = true
	}
	d.Settle()
}

// errHalves is the error of a correction that is not known to have been made by both stores.
type errHalves struct{ quotas, rates error }

// Error says what became of the halves.
func (e *errHalves) Error() string {
	switch {
	case e.rates == nil:
		return "quotas: " + e.quotas.Error() + "; the rates are corrected"
	case e.quotas == nil:
		return "rates: " + e.rates.Error() + "; the quotas are corrected"
	}
	return "quotas: " + e.quotas.Error() + "; rates: " + e.rates.Error()
}

// Is reports what is true of both halves: who hears that a correction was not sent may send all of it again. That the store
// answered is true of both if each half that failed says so.
func (e *errHalves) Is(target error) bool {
	quotas, rates := e.quotas == nil || limit.Answered(e.quotas), e.rates == nil || limit.Answered(e.rates)
	if quotas && rates && limit.Answered(target) {
		return errors.Is(e.quotas, target) || errors.Is(e.rates, target)
	}
	return e.quotas != nil && e.rates != nil && errors.Is(e.quotas, target) && errors.Is(e.rates, target)
}

// correct has both stores correct what they count, whatever becomes of the other, and however long that takes.
func (s *stage) correct(ctx context.Context, req *limit.Request, h *halves, now time.Time, d *limit.Decision) error {
	var both sync.WaitGroup
	var failed errHalves
	both.Go(func() {
		if s.home != "" && idle(&h.quotas) {
			unused(&h.quotaAnswer, &h.quotas, now.UnixMicro())
			return
		}
		failed.quotas = needed(s.quotas.decide(ctx, &h.quotas, now, &h.quotaAnswer), &h.quotas, now, &h.quotaAnswer)
	})
	failed.rates = needed(s.rates.decide(ctx, &h.rates, now, &h.rateAnswer), &h.rates, now, &h.rateAnswer)
	both.Wait()
	if failed != (errHalves{}) {
		d.Clear(now.UnixMicro())
		return &failed
	}
	s.join(d, req, &h.rateAnswer, &h.quotaAnswer)
	d.ID = h.rateAnswer.ID
	d.Settle()
	return nil
}

// settlement is what becomes of the quotas' half where the rates have admitted nothing. After a denial the caller keeps what
// it asked to lease, and takes it that nothing else has changed. After an error it takes everything for lost, also what came
// back with its request.
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
		refund := quotas.Commits(i) && x.add(h, i, r, quotas.Grant(i))
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
func (x *settlement) add(h *halves, i int, r *limit.Result, g limit.Grant) (refund bool) {
	a, charged := &h.quotas.Ahead[i], r.Charged+g.Units
	leased := a.Largest() > 0
	if x.denied {
		switch back := cameBack(a, r.Tier, g); {
		case back > 0 && g.At == a.AdjustAt && (leased || isWindow(r.Tier)): // units of one window make up for each other
			made := min(back, charged)
			x.chargeAgain(h, i, back-made)
			x.giveBack(h, i, r, charged-made, g.At)
			return false
		case back > 0:
			x.chargeAgain(h, i, back)
		case a.Adjust > 0 && !isBucket(r.Tier):
			x.correct(h, i, -a.Adjust, a.AdjustAt)
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

// cameBack is how many units the request has given back, at most.
func cameBack(a *limit.Ahead, t *limit.Tier, g limit.Grant) int64 {
	if a.Adjust >= 0 || isWindow(t) && g.At != a.AdjustAt { // their window had ended
		return 0
	}
	return -a.Adjust
}

// isWindow reports whether all that a tier is charged counts in the window that its grant names, and no other window counts.
func isWindow(t *limit.Tier) bool {
	return t.Algorithm == limit.Quota || t.Algorithm == limit.FixedWindow
}

// isBucket reports whether units that were counted, though admitted elsewhere, cannot be taken off again.
func isBucket(t *limit.Tier) bool {
	return t.Algorithm == limit.TokenBucket || t.Algorithm == limit.LeakyBucket
}

// giveBack has units of a lease given back. Those of the counter that other values share are not: they might be looked for in
// another one then.
func (x *settlement) giveBack(h *halves, i int, r *limit.Result, units, at int64) {
	if units > 0 && !r.Other {
		x.correct(h, i, -min(units, limit.MaxUnits), at)
	}
}

func (x *settlement) correct(h *halves, i int, units, at int64) {
	a := aheadOf(&x.back, h, i)
	a.Adjust, a.AdjustAt = units, at
}

func (x *settlement) chargeAgain(h *halves, i int, units int64) {
	if units > 0 {
		a := aheadOf(&x.again, h, i)
		a.Least, a.AdjustAt = units, h.quotas.Ahead[i].AdjustAt
	}
}

// aheadOf is where the request asks for result i, in a request about the same limits that costs nothing. It is made where it
// does not exist yet.
func aheadOf(req *limit.Request, h *halves, i int) *limit.Ahead {
	if len(req.Ahead) == 0 {
		req.Owner, req.Charges = h.quotas.Owner, slices.Clone(h.quotas.Charges)
		for c := range req.Charges {
			req.Charges[c].Cost = 1
		}
		req.Ahead = make([]limit.Ahead, len(h.quotas.Ahead))
	}
	return &req.Ahead[i]
}

// ratesDenied settles the quotas' half of a denial by the rates, and writes to d what the caller keeps of it.
func (s *stage) ratesDenied(ctx context.Context, h *halves, quotas *limit.Decision, now time.Time, d *limit.Decision) error {
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
			d.AdoptGrant(i, onClock(quotas.Grant(q), quotas, d))
			d.KeepAhead(i)
		} else {
			d.Results[i].Uncharge()
		}
		q++
	}
	return nil
}

// giveBack gives back what nobody keeps.
func (s *stage) giveBack(ctx context.Context, x *settlement, now time.Time) {
	if len(x.back.Ahead) > 0 {
		s.giveBackOne(ctx, giveBack{request: &x.back, now: now})
	}
	if len(x.receipt.Entries()) > 0 {
		s.giveBackOne(ctx, giveBack{receipt: x.receipt, now: now})
	}
}

func (s *stage) giveBackOne(ctx context.Context, g giveBack) {
	if s.held.holdFor < 0 {
		_ = s.returns.do(ctx, &g) // what cannot be given back is lost, not spent twice
		return
	}
	s.returns.later(g)
}

var errSpent = errors.New("it has been charged to others, or its window has ended")

// chargeAgain leases what the caller believes it has not given back: these units in these windows, or else it is an error, for
// others may have been admitted for them.
func (s *stage) chargeAgain(ctx context.Context, again *limit.Request, now time.Time) error {
	if len(again.Ahead) == 0 {
		return nil
	}
	var d limit.Decision
	if err := s.quotas.decide(ctx, again, now, &d); err != nil {
		return err
	}
	short := false
	for i := range again.Ahead {
		a, g := &again.Ahead[i], d.Grant(i)
		short = short || a.Least > 0 && (g.Units != a.Least || g.At != a.AdjustAt)
	}
	if !short {
		return nil
	}
	for i := range again.Ahead {
		g := d.Grant(i)
		again.Ahead[i] = limit.Ahead{Adjust: -g.Units, AdjustAt: g.At}
	}
	s.giveBack(ctx, &settlement{back: *again, receipt: new(limit.Receipt)}, now)
	return errSpent
}

// onClock is a grant by the clock of the whole decision. Its end is as far from the time of the decision as the quotas' store
// says, whatever time that has.
func onClock(g limit.Grant, from, d *limit.Decision) limit.Grant {
	if g.At != 0 {
		g.Until += d.Now - from.Now
	}
	return g
}
