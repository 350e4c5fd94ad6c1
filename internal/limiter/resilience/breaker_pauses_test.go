package resilience_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
)

// Guarantees that one pause of the store, in which many calls fail together, does not open the breaker, and that a
// second pause without a success in between does.
func TestBreakerCountsPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const together = 200
		store := newFlaky(t, nil)
		b := newBreaker(t, store)
		l, err := limit.New(limit.Limit{ID: "a", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Period: time.Hour,
			Threshold: 1000}}})
		if err != nil {
			t.Fatal(err)
		}
		ask := func() {
			var d limit.Decision
			_ = b.Decide(context.Background(), &limit.Request{Charges: []limit.Charge{{Limit: l, Cost: 1}},
				// the test checks the state of the breaker, not the outcome
				Owner: limit.Owner{Kind: limit.Tenant, Name: "acme"}}, time.Now(), &d)
		}
		store.fault = func() error {
			<-time.After(8 * time.Millisecond) // the store's deadline, by the test's own clock
			return errGone
		}
		for pause := 1; pause <= 2; pause++ {
			var calls sync.WaitGroup
			for range together {
				calls.Go(ask)
			}
			calls.Wait()
			want := resilience.StateClosed
			if pause == 2 {
				want = resilience.StateOpen
			}
			if asked := store.asked.Load(); b.State() != want || asked != int64(pause*together) {
				t.Fatalf("after %d pauses and %d calls of the store: %s, want %s after %d", pause, asked, b.State(),
					want, pause*together)
			}
		}
	})
}
