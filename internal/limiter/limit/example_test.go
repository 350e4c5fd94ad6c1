package limit_test

import (
	"fmt"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Example is a store that keeps one counter for each tier.
func Example() {
	l, err := limit.New(limit.Limit{ID: "burst", Tiers: []limit.Tier{
		{Algorithm: limit.TokenBucket, Threshold: 10, Period: time.Second, Burst: 20},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	states := make([]limit.State, len(l.Tiers)) // the zero State is a counter that was never used
	request := limit.Request{
		Owner:   limit.Owner{Kind: limit.Tenant, Name: "acme"},
		Charges: []limit.Charge{{Limit: l, Cost: 15}},
	}
	now := time.Date(2025, time.January, 1, 12, 0, 0, 0, time.UTC).UnixMicro()
	var d limit.Decision
	for range 2 {
		e, err := d.Begin(&request, now)
		if err != nil {
			fmt.Println(err)
			return
		}
		for i := range e.Results {
			// with true, a state that was written by a clock far ahead is repaired in place
			e.Evaluate(i, &states[i], true)
		}
		if e.Settle() {
			for i := range e.Results {
				if e.Charges(i) {
					e.Charge(i, &states[i])
				}
			}
		}
		fmt.Println("allowed:", d.Allowed, "remaining:", d.Results[0].Remaining(), "retry after:", d.RetryAfter())
	}
	// Output:
	// allowed: true remaining: 5 retry after: 0s
	// allowed: false remaining: 5 retry after: 1s
}
