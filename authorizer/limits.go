package authorizer

import (
	"context"
	"errors"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/answer"
)

// defaultRetryAfter is the wait in the answer to a client if nobody knows when a retry will succeed, because a store or
// the configuration does not answer.
const defaultRetryAfter = time.Second

var errAddressUnknown = errors.New("ipLimits are configured, and the authorizer's type tells it no address: " +
	"attach it with type REQUEST")

// chargeIPLimits is step 1: it charges the limits of the client's address.
func (a *Authorizer) chargeIPLimits(ctx context.Context, out *Answer, current Configuration) answer.Kind {
	limits := current.IPLimits()
	if len(limits.Limits) == 0 || out.request.SkipIPLimits || out.Mode == limit.Off {
		return answer.Allowed
	}
	if out.request.AddressUnknown {
		out.Err = errAddressUnknown
		return answer.Internal
	}
	out.ipCheck.request.Owner = limit.Owner{Kind: limit.Address, Name: out.Source}
	out.ipCheck.request.Charges = limits.AppendCharges(out.ipCheck.request.Charges[:0], &out.attributes)
	kind := a.charge(ctx, out, a.addresses, &out.ipCheck)
	if kind == answer.Limited {
		return answer.IPLimited
	}
	return kind
}

// chargePlan is step 5: it charges the owner for the limits of a plan. It charges nothing if step 1 denied the request
// in shadow, because nothing would be charged if that denial were enforced.
func (a *Authorizer) chargePlan(ctx context.Context, out *Answer, owner limit.Owner, limits *plan.Set) answer.Kind {
	if out.Mode == limit.Off || out.ShadowDenial != answer.Allowed {
		return answer.Allowed
	}
	request := &out.planCheck.request
	request.Owner, out.limits = owner, limits
	out.attributes.Cost, out.attributes.Costs = out.request.Cost, out.request.Costs
	request.Charges = limits.AppendCharges(request.Charges[:0], &out.attributes)
	if e := limits.Withheld(request.Charges); e != nil {
		return out.denyWithheld(e)
	}
	kind := a.charge(ctx, out, a.store, &out.planCheck)
	switch {
	case kind == answer.NeverFits && out.planCheck.made:
		// The store compared the cost with this cell's share. If the cost fits the whole limit, it is only this cell
		// that can never grant it.
		if r := out.planCheck.decision.Binding(); r != nil && limits.FitsWhole(r.Tier, r.Cost) {
			out.NotGranted = r.Tier.Limit().ID
			return answer.NotHere
		}
	case kind == answer.Limited && out.ipCheck.made && out.Mode == limit.Enforce:
		a.extendWaitToIPLimits(ctx, out)
	}
	return kind
}

// denyWithheld denies a request that counts against a limit of which this cell grants nothing. No store is asked. The
// wait is known if the cell's share begins at a known time.
func (a *Answer) denyWithheld(e *plan.Effective) answer.Kind {
	a.NotGranted = e.Whole().ID
	if until := e.Share().Until; until > 0 {
		a.wait = answer.Wait{Micros: max(until-a.At.UnixMicro(), 1), Known: true}
	}
	return answer.NotHere
}

// extendWaitToIPLimits extends the wait of a denial by the plan to the time at which the ipLimits admit another
// request, because the next attempt has to pass both. It peeks at the ipLimits and charges nothing.
func (a *Authorizer) extendWaitToIPLimits(ctx context.Context, out *Answer) {
	err := a.addresses.Peek(ctx, &out.ipCheck.request, out.At, &out.ipPeek)
	if err != nil || out.ipPeek.Allowed || out.ipPeek.Never {
		return
	}
	out.wait.Micros = max(out.wait.Micros, out.ipPeek.RetryAt-out.ipPeek.Now)
}

// charge has the store decide a check, and keeps how long a denial lasts. A check without charges is allowed, and no
// decision is made. If the caller gave the request up meanwhile, the answer is Unavailable.
func (a *Authorizer) charge(ctx context.Context, out *Answer, store *resilience.Fallback, c *check) answer.Kind {
	if len(c.request.Charges) == 0 {
		return answer.Allowed
	}
	err := a.askStore(ctx, out, store, c)
	if errors.Is(err, limit.ErrInvalidCost) { // a cost of the Request is more than any counter can count, or negative
		out.Err = err
		return answer.NeverFits
	}
	if err != nil {
		out.StoreFailed = true
		out.wait = answer.Wait{Micros: defaultRetryAfter.Microseconds(), Known: true}
		return answer.Unavailable
	}
	out.StoreFailed = out.StoreFailed || c.decision.Degraded
	c.made = true
	switch d := &c.decision; {
	case d.Allowed:
		return answer.Allowed
	case d.Never:
		return answer.NeverFits
	default:
		out.wait = answer.Wait{Micros: d.RetryAt - d.Now, Known: true}
		return answer.Limited
	}
}

// askStore writes the store's decision to c, without a charge if the request is a peek. It adds the time that a charge
// takes to out.Took, if Config.Measure says so.
func (a *Authorizer) askStore(ctx context.Context, out *Answer, store *resilience.Fallback, c *check) error {
	if out.peeking {
		return store.Peek(ctx, &c.request, out.At, &c.decision)
	}
	if !a.config.Measure {
		return store.Decide(ctx, &c.request, out.At, &c.decision)
	}
	began := time.Now()
	err := store.Decide(ctx, &c.request, out.At, &c.decision)
	out.Took += time.Since(began)
	return err
}
