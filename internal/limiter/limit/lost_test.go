package limit_test

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
)

// Guarantees that more never remains than the capacity, and that nothing is less than unused, if unspent leases are
// credited to a counter that the store has lost meanwhile.
func TestCreditOfLostCounter(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for _, algorithm := range []limit.Algorithm{limit.TokenBucket, limit.FixedWindow, limit.SlidingWindow,
		limit.SlidingLog, limit.SlidingBuckets, limit.LeakyBucket, limit.Quota} {
		t.Run(algorithm.String(), func(t *testing.T) {
			tier := limit.Tier{Algorithm: algorithm, Threshold: 100, Period: time.Hour}
			if algorithm == limit.Quota {
				tier.Period, tier.Calendar = 0, &limit.Calendar{Every: limit.Day, Location: time.UTC}
			}
			l, err := limit.New(limit.Limit{ID: "a", MaxCost: 10, Tiers: []limit.Tier{tier}})
			if err != nil {
				t.Fatal(err)
			}
			store := memorytest.New(t)
			var d limit.Decision
			req := &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: "acme"},
				Charges: []limit.Charge{{Limit: l, Cost: 1}}}
			if err := store.Peek(t.Context(), req, now, &d); err != nil {
				t.Fatal(err)
			}
			fresh := d.Results[0].Remaining()
			e := (*limit.Evaluation)(&d)
			e.Credit(0, 8)
			e.Settle()
			if r := &d.Results[0]; r.Used() != 0 || r.Remaining() != fresh || r.MoreAt() < d.Now {
				t.Errorf("used %d, %d remain, more at %d; want 0, %d, and not before %d", r.Used(), r.Remaining(),
					r.MoreAt(), fresh, d.Now)
			}
		})
	}
}
