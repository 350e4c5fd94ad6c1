package ops

import (
	"context"
	"slices"

	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
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
	return call.Refuse(call.Conflict, "the counters are used as fast as they are emptied; most of their units are "+
		"gone: repeat the reset")
}

// refund gives units back to each tier.
func (k *counters) refund(ctx context.Context, units, now int64) error {
	for _, c := range k.req.Charges {
		for i := range c.Limit.Tiers {
			if t := &c.Limit.Tiers[i]; t.Leasing().Refills {
				return call.Refuse(call.Unsupported, "limit %s: a %s cannot be refunded without a receipt: what it "+
					"has refilled since the units were charged has already made up for them, and nobody knows how "+
					"much that is. Reset it, or boost the limit; nothing was changed", c.Limit.ID, t.Algorithm)
			}
		}
	}
	_, err := k.correct(ctx, func(_ int, t *limit.Tier) limit.LeaseRequest {
		if stamped(t) {
			return limit.LeaseRequest{}
		}
		return limit.LeaseRequest{Correction: -units, CorrectionAt: now}
	})
	if err != nil || !k.anyStamped() {
		return err
	}
	d, err := k.peek(ctx, k.req)
	if err != nil {
		return err
	}
	for i := range d.Results {
		if stamped(d.Results[i].Tier) {
			if err := k.refundStamps(ctx, i, units, &d.Results[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// refundStamps gives units back to the tier of result i, the newest first. Each step gives back at most as many units
// as the newest stamp is known to have, so that exactly these units are given back even if the counter is charged
// meanwhile.
func (k *counters) refundStamps(ctx context.Context, i int, units int64, r *limit.Result) error {
	for range mostStamps {
		if units == 0 || r.Used() <= 0 {
			return nil
		}
		back, at, err := k.inNewest(ctx, i, units, r)
		if err != nil {
			return err
		}
		d, err := k.correct(ctx, func(j int, _ *limit.Tier) limit.LeaseRequest {
			if j == i {
				return limit.LeaseRequest{Correction: -back, CorrectionAt: at}
			}
			return limit.LeaseRequest{}
		})
		if err != nil {
			return err
		}
		r, units = &d.Results[i], units-back
	}
	return call.Refuse(call.Conflict, "the counter changes too fast: %d of the units were not given back", units)
}

// inNewest returns how many of the wanted units the newest stamp has, at least 1, and that stamp.
func (k *counters) inNewest(ctx context.Context, i int, want int64, r *limit.Result) (units, at int64, err error) {
	at = newest(r)
	if r.Tier.Counting().EachCharge { // each charge has a stamp of its own, and most charges have one unit
		return 1, at, nil
	}
	has := func(units int64) (bool, error) {
		there, stamp, err := k.newestHas(ctx, i, units)
		return there && stamp == at, err
	}
	least, most := int64(1), min(want, r.Used(), r.Tier.Threshold) // bounds of the binary search
	if all, err := has(most); all || err != nil {
		return most, at, err
	}
	for most--; least < most; {
		middle := (least + most + 1) / 2
		if more, err := has(middle); err != nil {
			return 0, 0, err
		} else if more {
			least = middle
		} else {
			most = middle - 1
		}
	}
	return least, at, nil
}

// newestHas reports whether the newest stamp has at least this many units, 1..threshold, and returns that stamp. It
// peeks a cost of threshold − units + 1. Such a cost fits only when fewer than units are left in the counter. If the
// newest stamp has that many units, this is the case only after that stamp has left.
func (k *counters) newestHas(ctx context.Context, i int, units int64) (has bool, at int64, err error) {
	asked := limit.Request{Owner: k.req.Owner, Charges: slices.Clone(k.req.Charges)}
	for c, first := 0, 0; c < len(asked.Charges); c++ {
		tiers := asked.Charges[c].Limit.Tiers
		if i < first+len(tiers) {
			asked.Charges[c].Cost = tiers[i-first].Threshold - units + 1
			break
		}
		first += len(tiers)
	}
	d, err := k.peek(ctx, &asked)
	if err != nil {
		return false, 0, err
	}
	r := &d.Results[i]
	return r.Used() >= units && !r.Admits && r.RetryAt == r.ResetAt(), newest(r), nil
}
