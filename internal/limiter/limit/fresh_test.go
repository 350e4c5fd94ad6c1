package limit_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Guarantees that from FreshAt on a bucket is no different from one that was never used, to receipts of earlier charges,
// too. A store that forgot a bucket before would not know what had been refunded to it, and would give units back for a
// second receipt that the bucket has refilled since.
func TestFreshBucketAfterRefunds(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	late := 0
	for round := range 3000 {
		l := mustNew(t, limit.Limit{ID: "l", MaxCost: 100, Tiers: []limit.Tier{{Algorithm: limit.TokenBucket,
			Threshold: 1 + rng.Int64N(3), Burst: 20 + rng.Int64N(80), Period: time.Second}}})
		var kept limit.State
		spend := func(s *limit.State, now, cost int64) *limit.Decision {
			states := []limit.State{*s}
			d := decideOn(&limit.Request{Charges: []limit.Charge{{Limit: l, Cost: cost}}}, now, states)
			*s = states[0]
			return d
		}
		now := noon
		var receipts []*limit.Receipt
		for range 2 + rng.IntN(4) {
			if d := spend(&kept, now, 1+rng.Int64N(60)); d.Allowed {
				receipts = append(receipts, d.Receipt())
			}
			if n := len(receipts); n > 1 && rng.IntN(2) == 0 {
				receipts[0].Entries()[0].Apply(&kept, 0, now)
				receipts = receipts[1:]
			}
			now += rng.Int64N(3 * second)
		}
		now = max(now, l.Tiers[0].FreshAt(&kept)-limit.MaxSkew.Microseconds())
		var forgotten limit.State
		for i := 0; i < len(receipts); i++ {
			cost := 1 + rng.Int64N(100)
			if a, b := spend(&kept, now, cost), spend(&forgotten, now, cost); a.Allowed != b.Allowed || a.RetryAt != b.RetryAt {
				t.Fatalf("round %d: a cost of %d is allowed %t, retry at %d, and by a new bucket %t, %d", round, cost, a.Allowed, a.RetryAt,
					b.Allowed, b.RetryAt)
			}
			e := &receipts[i].Entries()[0]
			now += rng.Int64N(second)
			a, b := e.Apply(&kept, 0, now), e.Apply(&forgotten, 0, now)
			if a != b {
				t.Fatalf("round %d: a receipt of %d units gives back %d, and %d if the bucket was forgotten", round, e.Units, a, b)
			}
			late++
		}
	}
	if late < 1000 {
		t.Errorf("%d receipts were refunded late: the test shows nothing", late)
	}
}

// decideOn decides on the states, and charges them.
func decideOn(req *limit.Request, now int64, states []limit.State) *limit.Decision {
	d := new(limit.Decision)
	e := d.BeginChecked(req, now)
	for i := range states {
		e.Evaluate(i, &states[i], true)
	}
	e.Settle()
	for i := range states {
		if d.Charges(i) {
			e.Charge(i, &states[i])
		}
	}
	return d
}
