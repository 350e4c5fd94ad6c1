package lease

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
)

// Guarantees that a counter which denies does not lower the estimate of how many units all processes want: fewer units
// are used than requested.
func TestDenialDoesNotLowerTheEstimate(t *testing.T) {
	below := memorytest.New(t)
	l := limittest.MustNew(t, limit.Limit{ID: "a", MaxCost: 100, Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Period: time.Hour, Threshold: 100},
	}})
	start := time.Unix(1_800_000_000, 0)
	owner := limit.Owner{Kind: limit.Tenant, Name: "acme"}
	var u supply
	answer := func(after time.Duration, cost int64) (total float64, allowed bool) {
		var d limit.Decision
		now := start.Add(after)
		req := &limit.Request{Owner: owner, Charges: []limit.Charge{{Limit: l, Cost: cost}}}
		if err := below.Decide(t.Context(), req, now, &d); err != nil {
			t.Fatal(err)
		}
		u.noteAnswer(owner, after.Microseconds(), d.Now, &d.Results[0], 0, cost)
		return u.total, d.Allowed
	}
	answer(0, 1)
	before, allowed := answer(time.Second, 90)
	if !allowed || before < 40 {
		t.Fatalf("allowed %t, and the estimate is %.1f units per second after 90 in a second; want it allowed, and "+
			"an estimate of at least 40", allowed, before)
	}
	if after, allowed := answer(3*time.Second, 50); allowed || after != before {
		t.Errorf("allowed %t, and the estimate changes from %.1f to %.1f; want a denial that leaves it unchanged",
			allowed, before, after)
	}
	if after, allowed := answer(10*time.Second, 1); !allowed || after >= before {
		t.Errorf("allowed %t, and the estimate is %.1f after a pause; want it allowed, and a lower estimate than "+
			"before", allowed, after)
	}
}

// Guarantees that the estimate does not depend on the reading of the shard's clock. That clock begins with the first
// owner of a shard, so the first answer to an owner may come at 0 or later.
func TestEstimateDoesNotDependOnTheClocksStart(t *testing.T) {
	l := limittest.MustNew(t, limit.Limit{ID: "a", MaxCost: 100, Tiers: []limit.Tier{
		{Algorithm: limit.TokenBucket, Period: time.Minute, Threshold: 100},
	}})
	owner := limit.Owner{Kind: limit.Tenant, Name: "acme"}
	estimate := func(began int64) float64 {
		store := memorytest.New(t)
		var u supply
		leased := int64(0)
		for _, after := range []time.Duration{0, 20 * time.Millisecond, 300 * time.Millisecond} {
			var d limit.Decision
			req := &limit.Request{Owner: owner, Charges: []limit.Charge{{Limit: l, Cost: 10}}}
			if err := store.Decide(t.Context(), req, time.Unix(1_800_000_000, 0).Add(after), &d); err != nil {
				t.Fatal(err)
			}
			leased += 10
			u.noteAnswer(owner, began+after.Microseconds(), d.Now, &d.Results[0], leased, 10)
		}
		return u.total
	}
	if at0, later := estimate(0), estimate(5_000_000); at0 != later || at0 == 0 {
		t.Errorf("%g units per second if the clock begins with the owner, %g if it began earlier; want the same", at0,
			later)
	}
}
