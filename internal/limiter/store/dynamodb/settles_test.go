package dynamodb_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
)

// Guarantees that settlements of several processes, beside decisions, leave each process a copy of the item that it can
// read: a copy to which an update is applied twice cannot be.
func TestSettlementsKeepCopies(t *testing.T) {
	c := config(server(t))
	stores := []limit.Store{open(t, c), open(t, c)}
	l := limittest.MustNew(t, limit.Limit{ID: "in-flight", Unit: limit.ConcurrentRequests, Tiers: []limit.Tier{{
		Algorithm: limit.SlidingBuckets, Threshold: 8, Period: 2 * time.Second, Buckets: 8}}})
	req := &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: "acme"},
		Charges: []limit.Charge{{Limit: l, Cost: 1}}}
	var wg sync.WaitGroup
	for g := range 24 {
		wg.Go(func() {
			s := stores[g%2]
			for range 40 {
				var d limit.Decision
				err := s.Decide(t.Context(), req, time.Now(), &d)
				if err == nil && d.Allowed {
					_, err = s.Settle(t.Context(), d.Receipt(), nil, time.Now())
				}
				if errors.Is(err, limit.ErrUnreadable) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
