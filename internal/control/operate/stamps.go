package operate

import (
	"context"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"slices"
)

// The counters of sliding_log and sliding_buckets consist of stamps: times, and how many units were charged at each. A
// stamp leaves the counter after a fixed time. A result says when the newest stamp will have left, from which newest
// computes the stamp itself.

// mostStamps bounds the calls of one operation: the largest number of stamps that a counter can have, twice, because as
// many may be added during the operation.
const mostStamps = 2 * limit.MaxLogEntries

func stamped(t *limit.Tier) bool { return t.Counting().Entries }

func (k *counters) anyStamped() bool {
	for _, c := range k.req.Charges {
		for i := range c.Limit.Tiers {
			if stamped(&c.Limit.Tiers[i]) {
				return true
			}
		}
	}
	return false
}

// newest returns the newest stamp of a counter in which something is used, µs since 1970.
func newest(r *limit.Result) int64 { return r.ResetAt() - r.Tier.Counting().Lasts }

// emptyStamped empties all counters that have stamps. Each round removes the newest stamp of each.
func (k *counters) emptyStamped(ctx context.Context) error {
	if !k.anyStamped() {
		return nil
	}
	d, err := k.peek(ctx, k.req)
	for range mostStamps {
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(d.Results, func(r limit.Result) bool { return stamped(r.Tier) && r.Used() > 0 }) {
			return nil
		}
		d, err = k.correct(ctx, func(i int, t *limit.Tier) limit.LeaseRequest {
			if r := &d.Results[i]; stamped(t) && r.Used() > 0 {
				return limit.LeaseRequest{Correction: -limit.MaxUnits, CorrectionAt: newest(r)}
			}
			return limit.LeaseRequest{}
		})
	}
	return Refuse(Conflict, "the counters are used as fast as they are emptied; most of their units are "+
		"gone: repeat the reset")
}

// refund gives units back to each tier.
func (k *counters) refund(ctx context.Context, units, now int64) error {
	for _, c := range k.req.Charges {
		for i := range c.Limit.Tiers {
			t := &c.Limit.Tiers[i]
			switch {
			case t.Leasing().Refills:
				return Refuse(Unsupported, "limit %s: a %s cannot be refunded without a receipt: what it "+
					"has refilled since the units were charged has already made up for them, and nobody knows how "+
					"much that is. Reset it, or boost the limit; nothing was changed", c.Limit.ID, t.Algorithm)
			case stamped(t):
				return Refuse(Unsupported, "limit %s: a %s cannot be refunded without a receipt: each of "+
					"its units belongs to the time at which it was charged, and nobody knows which these were. Reset "+
					"it, or boost the limit; nothing was changed", c.Limit.ID, t.Algorithm)
			}
		}
	}
	_, err := k.correct(ctx, func(_ int, _ *limit.Tier) limit.LeaseRequest {
		return limit.LeaseRequest{Correction: -units, CorrectionAt: now}
	})
	return err
}
