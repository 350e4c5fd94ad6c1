package router_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// slow returns a store whose calls take some time, half of it before they have an effect, and which counts them.
func slow(store limit.Store, by time.Duration, calls *atomic.Int64) *around {
	return &around{store, func(f func() error) error {
		calls.Add(1)
		<-time.After(by / 2)
		err := f()
		<-time.After(by / 2)
		return err
	}}
}

// Guarantees that a tenant whose quota is used up, and who goes on asking, takes no units of a rate from its other
// requests: those get all units of each second. Few of them are denied early: while units of the second are left, which
// requests that the quota denies have not given back yet. The log has the figures of docs/accuracy.md.
func TestUsedUpQuotaTakesNothingFromARate(t *testing.T) {
	const units, perSecond, others = 100, 400, 200 // of the rate; requests a second with and without the quota
	synctest.Test(t, func(t *testing.T) {
		var made atomic.Int64
		rates := slow(newMemory(t), 500*time.Microsecond, &made)
		quotas := slow(newMemory(t), 5*time.Millisecond, &made)
		s := newStore(t, rates, quotas)
		r, q, random := rate(t, units), quota(t, 1), rand.New(rand.NewPCG(1, 1))
		var d limit.Decision
		if err := quotas.Store.Decide(t.Context(), requestOf(q), time.Now(), &d); err != nil || !d.Allowed {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		var mu sync.Mutex
		asked, early, denied, admitted, undecided := 0, 0, 0, map[int64]int{}, map[int64]int{}
		ask := func(limits ...*limit.Limit) {
			now := time.Now()
			var d limit.Decision
			if err := s.Decide(t.Context(), requestOf(limits...), now, &d); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			switch second := now.Unix(); {
			case len(limits) > 1:
				denied++
			case d.Allowed: // those that were denied in this second before were denied early
				early, admitted[second], undecided[second] = early+undecided[second], admitted[second]+1, 0
				asked++
			default:
				undecided[second]++
				asked++
			}
		}
		began, seconds := time.Now().Unix(), int64(soak.Times(10)) // a bubble's time begins with a whole second
		for time.Now().Unix() < began+seconds {
			limits := []*limit.Limit{r, q}
			if random.IntN(perSecond+others) < others {
				limits = limits[:1]
			}
			all.Go(func() { ask(limits...) })
			<-time.After(time.Duration(random.ExpFloat64() * float64(time.Second) / (perSecond + others)))
		}
		all.Wait()
		for second := range seconds {
			if n := admitted[began+second]; n != units {
				t.Errorf("second %d: %d of %d units of the rate were admitted", second+1, n, units)
			}
		}
		if early > asked/25 {
			t.Errorf("%d of %d requests were denied early, want at most 4 %%", early, asked)
		}
		calls := made.Load() - int64(asked)
		t.Logf("%d of %d requests of the rate alone were denied early; %d with the quota were denied, with %.2f calls "+
			"each", early, asked, denied, float64(calls)/float64(denied))
	})
}
