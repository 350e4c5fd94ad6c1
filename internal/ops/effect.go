package ops

import (
	"context"

	"github.com/sluicelimits/sluice/internal/admin/call"
	"github.com/sluicelimits/sluice/internal/limit"
)

// adjust corrects what is counted: of each tier by what ahead says, and charges nothing.
func (s *Service) adjust(ctx context.Context, req *limit.Request, ahead func(*limit.Tier) limit.Ahead) error {
	asked := limit.Request{Owner: req.Owner, Charges: req.Charges}
	for _, c := range req.Charges {
		for i := range c.Limit.Tiers {
			asked.Ahead = append(asked.Ahead, ahead(&c.Limit.Tiers[i]))
		}
	}
	var d limit.Decision
	if err := s.c.Store.Decide(ctx, &asked, s.c.Now(), &d); err != nil {
		return s.failed(ctx, err)
	}
	return nil
}

// reset empties the counters of windows by giving back all that is in each of them, and fills buckets.
func (s *Service) reset(ctx context.Context, req *limit.Request, now int64) error {
	err := only(req, "reset", limit.FixedWindow, limit.SlidingWindow, limit.SlidingBuckets, limit.Quota, limit.TokenBucket)
	if err != nil {
		return err
	}
	var full limit.Request // the charges whose buckets are to be filled
	full.Owner = req.Owner
	calls := 0 // as many as the most parts of a window
	for _, c := range req.Charges {
		bucket := false
		for i := range c.Limit.Tiers {
			t := &c.Limit.Tiers[i]
			calls, bucket = max(calls, parts(t, req.Owner)), bucket || t.Algorithm == limit.TokenBucket
		}
		if bucket {
			l, err := filling(c.Limit)
			if err != nil {
				return err
			}
			full.Charges = append(full.Charges, limit.Charge{Limit: l, Value: c.Value, Cost: 1})
		}
	}
	for part := range calls {
		err := s.adjust(ctx, req, func(t *limit.Tier) limit.Ahead {
			if part >= parts(t, req.Owner) {
				return limit.Ahead{}
			}
			return limit.Ahead{Adjust: -limit.MaxUnits, AdjustAt: now - int64(part)*width(t, req.Owner)}
		})
		if err != nil {
			return err
		}
	}
	return s.fill(ctx, &full)
}

// parts is how many counts a tier's window is made of; 0 of a token bucket.
func parts(t *limit.Tier, o limit.Owner) int {
	switch t.Algorithm {
	case limit.FixedWindow, limit.Quota:
		return 1
	case limit.SlidingWindow:
		return 2 // this one, and the last
	case limit.SlidingBuckets:
		return int(t.Params(o).Buckets) + 1
	default:
		return 0
	}
}

// width is how far the parts lie apart, µs.
func width(t *limit.Tier, o limit.Owner) int64 {
	if t.Algorithm == limit.SlidingBuckets {
		return t.Params(o).Width
	}
	return t.Period.Microseconds()
}

// fill fills token buckets: one unit is charged under a limit that refills at once and holds one unit more, as after a
// change of the plan. The next request finds a bucket that is full, at its own rate. All tiers of a limit of a plan have
// one algorithm, so no window is charged.
func (s *Service) fill(ctx context.Context, full *limit.Request) error {
	if len(full.Charges) == 0 {
		return nil
	}
	var d limit.Decision
	if err := s.c.Store.Decide(ctx, full, s.c.Now(), &d); err != nil {
		return s.failed(ctx, err)
	}
	if !d.Allowed {
		return call.Refuse(call.Conflict, "the counters were used up again meanwhile")
	}
	return nil
}

// filling is the limit with the same counters, whose buckets hold one unit more and refill within a millisecond.
func filling(l *limit.Limit) (*limit.Limit, error) {
	fast := limit.Limit{ID: l.ID, Per: l.Per, Mode: l.Mode, OnStoreFailure: l.OnStoreFailure, Scoped: l.Scoped, Exact: l.Exact,
		AlignOwner: l.AlignOwner, MaxCost: l.MaxCost, MaxValues: l.MaxValues, Tiers: make([]limit.Tier, len(l.Tiers))}
	for divisor := int64(1); divisor <= 1000; divisor *= 10 { // the fastest that the arithmetic has room for
		fits := true
		for i := range l.Tiers {
			t := &l.Tiers[i]
			fast.Tiers[i] = limit.Tier{Algorithm: t.Algorithm, Period: t.Period, Threshold: t.Threshold, Burst: t.Burst, Buckets: t.Buckets, Calendar: t.Calendar}
			if t.Algorithm == limit.TokenBucket {
				rate := t.Period.Microseconds() / divisor // for each unit of burst
				fits = fits && t.Capacity() < limit.MaxUnits/rate
				fast.Tiers[i].Burst, fast.Tiers[i].Threshold = t.Capacity()+1, max((t.Capacity()+1)*rate, t.Threshold)
			}
		}
		if made, err := limit.New(fast); fits && err == nil {
			return made, nil
		}
	}
	return nil, call.Refuse(call.Unsupported, "limit %s: its bucket is too large to be reset; nothing was changed", l.ID)
}
