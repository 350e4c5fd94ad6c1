package lease_test

import (
	"context"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

const (
	noFault     fault = ""
	clocksStand fault = "both clocks stand still while the process does"
	uncharged   fault = "the store leases what it does not charge"
	outlives    fault = "the store says that a lease ends later than it does"
	allAtOnce   fault = "the store says that all of a ramp may be spent at once"
	rampTooFar  fault = "the store leases twice what comes free"
	stampedNow  fault = "the store stamps leased units when it grants them"
	backTwice   fault = "what comes back comes back twice"
	backNow     fault = "what comes back is taken off the present window"
)

// decideBelow is the store's decision, with the fault of the script.
func (w *world) decideBelow(req *limit.Request, d *limit.Decision) error {
	asked := req
	if w.fault != noFault && len(req.Leases) > 0 {
		bent := *req
		bent.Leases = slices.Clone(req.Leases)
		i := 0
		for _, c := range req.Charges {
			for j := range c.Limit.Tiers {
				w.falsifyRequest(&bent.Leases[i], &c.Limit.Tiers[j])
				i++
			}
		}
		asked = &bent
	}
	if err := w.below.Decide(context.Background(), asked, time.UnixMicro(w.now), d); err != nil {
		return err
	}
	for i := range asked.Leases {
		w.falsifyGrant(&req.Leases[i], d, i)
	}
	return nil
}

// falsifyRequest changes a lease request before the store gets it, as the fault says.
func (w *world) falsifyRequest(a *limit.LeaseRequest, t *limit.Tier) {
	switch w.fault {
	case backTwice:
		if a.Correction < 0 {
			a.Correction *= 2
		}
	case backNow:
		if a.Correction < 0 {
			a.CorrectionAt = w.now
		}
	case uncharged:
		if a.Largest() > 0 && t.Algorithm != limit.LeakyBucket {
			a.Least, a.Most, a.Ample, a.Ramp = 0, 0, 0, false
		}
	case stampedNow:
		a.Life = 0
	case rampTooFar:
		if a.Ramp {
			a.Least, a.Most, a.Ample = a.Least/2, a.Most/2, a.Ample/2
		}
	}
}

// falsifyGrant changes a grant of the store, as the fault says.
func (w *world) falsifyGrant(a *limit.LeaseRequest, d *limit.Decision, i int) {
	g := d.Lease(i)
	if !d.Charges(i) || a.Largest() == 0 {
		return
	}
	switch w.fault {
	case uncharged:
		g.Units = min(a.Largest(), 3)
		g.Upfront = g.Units
	case outlives:
		g.Until += max(d.Results[i].Tier.Period.Microseconds(), 2_000_000)
	case stampedNow:
		g.Until += a.Life
	case allAtOnce:
		g.Upfront = g.Units
	case rampTooFar:
		if a.Ramp {
			g.Units *= 2
		}
	}
	d.Revise().AdoptLease(i, g)
}
