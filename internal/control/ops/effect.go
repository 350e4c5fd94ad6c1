package ops

import (
	"context"

	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// peek reads the counters of a request.
func (k *counters) peek(ctx context.Context, req *limit.Request) (*limit.Decision, error) {
	d := new(limit.Decision)
	if err := k.store.Peek(ctx, req, k.c.Now(), d); err != nil {
		return nil, k.failed(ctx, err)
	}
	return d, nil
}

// adjust changes what is counted, and charges nothing. ahead returns the correction of tier i of the request. adjust
// returns the counts after the correction.
func (k *counters) adjust(
	ctx context.Context, ahead func(i int, t *limit.Tier) limit.LeaseRequest,
) (*limit.Decision, error) {
	asked := limit.Request{Owner: k.req.Owner, Charges: k.req.Charges}
	for _, c := range k.req.Charges {
		for j := range c.Limit.Tiers {
			asked.Leases = append(asked.Leases, ahead(len(asked.Leases), &c.Limit.Tiers[j]))
		}
	}
	d := new(limit.Decision)
	if err := k.store.Decide(ctx, &asked, k.c.Now(), d); err != nil {
		return nil, k.failed(ctx, err)
	}
	return d, nil
}

// reset empties the counters of windows by giving back all units of each window. It removes the stamps of logs and of
// the buckets of sliding_buckets one by one, frees the slots of leaky buckets, and fills token buckets.
func (k *counters) reset(ctx context.Context, now int64) error {
	var full limit.Request // the charges whose token buckets are to be filled
	full.Owner = k.req.Owner
	calls := 0 // the largest number of windows that a tier counts
	for _, c := range k.req.Charges {
		bucket := false
		for i := range c.Limit.Tiers {
			t := &c.Limit.Tiers[i]
			calls, bucket = max(calls, t.Counting().Windows), bucket || t.Algorithm.HasBurst()
		}
		if bucket {
			l, err := filling(c.Limit)
			if err != nil {
				return err
			}
			full.Charges = append(full.Charges, limit.Charge{Limit: l, Value: c.Value, Cost: 1})
		}
	}
	for window := range calls {
		_, err := k.adjust(ctx, func(_ int, t *limit.Tier) limit.LeaseRequest {
			if window >= t.Counting().Windows {
				return limit.LeaseRequest{}
			}
			return limit.LeaseRequest{Correction: -limit.MaxUnits,
				CorrectionAt: now - int64(window)*t.Period.Microseconds()}
		})
		if err != nil {
			return err
		}
	}
	if err := k.unstamp(ctx); err != nil {
		return err
	}
	return k.fill(ctx, &full)
}

// fill fills token buckets. It charges one unit under a limit with the same counters that refills within a millisecond
// and holds one unit more, as if the plan had changed. The next request finds a full bucket, with its own rate. All
// tiers of a limit of a plan have the same algorithm, so no window is charged.
func (k *counters) fill(ctx context.Context, full *limit.Request) error {
	if len(full.Charges) == 0 {
		return nil
	}
	var d limit.Decision
	if err := k.store.Decide(ctx, full, k.c.Now(), &d); err != nil {
		return k.failed(ctx, err)
	}
	if !d.Allowed {
		return call.Refuse(call.Conflict, "the counters were used up again during the reset: repeat it")
	}
	return nil
}

// filling returns a limit with the same counters whose token buckets hold one unit more and refill within a
// millisecond.
func filling(l *limit.Limit) (*limit.Limit, error) {
	fast := limit.Limit{ID: l.ID, Per: l.Per, Mode: l.Mode, OnStoreFailure: l.OnStoreFailure, Home: l.Home,
		Exact: l.Exact, AlignOwner: l.AlignOwner, MaxCost: l.MaxCost, MaxValues: l.MaxValues,
		Tiers: make([]limit.Tier, len(l.Tiers))}
	for divisor := int64(1); divisor <= 1000; divisor *= 10 { // the fastest refill that does not overflow
		fits := true
		for i := range l.Tiers {
			t := &l.Tiers[i]
			fast.Tiers[i] = limit.Tier{Algorithm: t.Algorithm, Period: t.Period, Threshold: t.Threshold,
				Burst: t.Burst, Buckets: t.Buckets, Calendar: t.Calendar}
			if t.Algorithm.HasBurst() {
				rate := t.Period.Microseconds() / divisor // units per period for each unit of burst
				fits = fits && t.Capacity() < limit.MaxUnits/rate
				fast.Tiers[i].Burst, fast.Tiers[i].Threshold = t.Capacity()+1, max((t.Capacity()+1)*rate, t.Threshold)
			}
		}
		if made, err := limit.New(fast); fits && err == nil {
			return made, nil
		}
	}
	return nil, call.Refuse(call.Unsupported, "limit %s: its bucket is too large to be reset; nothing was changed",
		l.ID)
}
