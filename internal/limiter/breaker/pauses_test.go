package breaker_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/breaker"
)

// Guarantees that one pause of the store, in which many calls fail together, does not open the breaker, and that a
// second pause without a success in between does.
func TestBreakerCountsPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const together = 200
		store := new(flaky)
		b := newBreaker()
		store.fault = func() error {
			<-time.After(8 * time.Millisecond) // the store's deadline, by the test's own clock
			return errGone
		}
		for pause := 1; pause <= 2; pause++ {
			var calls sync.WaitGroup
			for range together {
				calls.Go(func() { _ = ask(b, store) }) // the test checks the state of the breaker, not the outcome
			}
			calls.Wait()
			want := breaker.Closed
			if pause == 2 {
				want = breaker.Open
			}
			if asked := store.asked.Load(); b.State() != want || asked != int64(pause*together) {
				t.Fatalf("after %d pauses and %d calls of the store: %s, want %s after %d", pause, asked, b.State(),
					want, pause*together)
			}
		}
	})
}
