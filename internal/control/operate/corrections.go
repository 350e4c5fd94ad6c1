package operate

import (
	"context"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// peek reads the counters of a request.
func (k *counters) peek(ctx context.Context, req *limit.Request) (*limit.Decision, error) {
	d := new(limit.Decision)
	if err := k.c.Store.Peek(ctx, req, k.c.Now(), d); err != nil {
		return nil, k.failed(ctx, err)
	}
	return d, nil
}

// correct corrects counts, and charges nothing. correctionOf returns the correction of tier i of the request. correct
// returns the counts after the corrections.
func (k *counters) correct(
	ctx context.Context, correctionOf func(i int, t *limit.Tier) limit.LeaseRequest,
) (*limit.Decision, error) {
	asked := limit.Request{Owner: k.req.Owner, Charges: k.req.Charges}
	for _, c := range k.req.Charges {
		for j := range c.Limit.Tiers {
			asked.Leases = append(asked.Leases, correctionOf(len(asked.Leases), &c.Limit.Tiers[j]))
		}
	}
	d := new(limit.Decision)
	if err := k.c.Store.Decide(ctx, &asked, k.c.Now(), d); err != nil {
		return nil, k.failed(ctx, err)
	}
	return d, nil
}

// reset sets the counters to the state of unused ones. It gives back all units of each window, and makes the next
// request of a leaky bucket free at once. It empties sliding_log and sliding_buckets one stamp at a time, and fills
// token buckets.
func (k *counters) reset(ctx context.Context, now int64) error {
	var refill limit.Request // names the token buckets that are to be filled
	refill.Owner = k.req.Owner
	windows := 0 // the largest number of windows that a tier counts
	for _, c := range k.req.Charges {
		bucket := false
		for i := range c.Limit.Tiers {
			t := &c.Limit.Tiers[i]
			windows, bucket = max(windows, t.Counting().Windows), bucket || t.Algorithm.HasBurst()
		}
		if bucket {
			l, err := refillingLimit(c.Limit)
			if err != nil {
				return err
			}
			refill.Charges = append(refill.Charges, limit.Charge{Limit: l, Value: c.Value, Cost: 1})
		}
	}
	for window := range windows {
		_, err := k.correct(ctx, func(_ int, t *limit.Tier) limit.LeaseRequest {
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
	if err := k.emptyStamped(ctx); err != nil {
		return err
	}
	return k.fill(ctx, &refill)
}

// fill fills token buckets by evaluating them as if their plan had changed: see refillingLimit. It needs no units and
// gives units of a slot back that ended long ago, so the stores write the filled bucket and change nothing else. All
// tiers of a plan's limit have the same algorithm, so fill writes no other counters.
func (k *counters) fill(ctx context.Context, refill *limit.Request) error {
	if len(refill.Charges) == 0 {
		return nil
	}
	for _, c := range refill.Charges {
		for range c.Limit.Tiers {
			refill.Leases = append(refill.Leases, limit.LeaseRequest{Correction: -1})
		}
	}
	var d limit.Decision
	if err := k.c.Store.Decide(ctx, refill, k.c.Now(), &d); err != nil {
		return k.failed(ctx, err)
	}
	return nil
}

// refillingLimit returns a limit with the same counters, whose token buckets refill completely within a millisecond.
func refillingLimit(l *limit.Limit) (*limit.Limit, error) {
	fast := limit.Limit{ID: l.ID, Per: l.Per, Unit: l.Unit, Mode: l.Mode, OnStoreFailure: l.OnStoreFailure,
		Home: l.Home, Exact: l.Exact, AlignOwner: l.AlignOwner, MaxCost: l.MaxCost, MaxValues: l.MaxValues,
		Tiers: make([]limit.Tier, len(l.Tiers))}
	for divisor := int64(1); divisor <= 1000; divisor *= 10 { // the fastest refill that does not overflow
		fits := true
		for i := range l.Tiers {
			t := &l.Tiers[i]
			fast.Tiers[i] = limit.Tier{Algorithm: t.Algorithm, Period: t.Period, Threshold: t.Threshold,
				Burst: t.Burst, Buckets: t.Buckets, Calendar: t.Calendar}
			if t.Algorithm.HasBurst() {
				rate := t.Period.Microseconds() / divisor // units per period for each unit of burst
				fits = fits && t.Capacity() <= limit.MaxUnits/rate
				fast.Tiers[i].Threshold = max(t.Capacity()*rate, t.Threshold)
			}
		}
		if made, err := limit.New(fast); fits && err == nil {
			return made, nil
		}
	}
	return nil, Refuse(Unsupported, "limit %s: its bucket is too large to be reset; nothing was changed",
		l.ID)
}
