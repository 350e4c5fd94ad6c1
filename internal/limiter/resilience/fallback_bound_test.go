package resilience_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// event is a number of units that were admitted, by the store or without it.
type event struct {
	at, units int64
	without   bool
}

// world is several instances that share a store, which each of them loses now and then.
type world struct {
	tier      limit.Tier
	period    time.Duration
	inner     limit.Store
	paths     []*flaky
	instances []*resilience.Fallback
	request   limit.Request
	events    []event
}

const mostCost = 3

func newWorld(t *testing.T, tier limit.Tier, instances int, breaker bool) *world {
	w := &world{tier: tier, period: tier.Period, inner: newMemory(t)}
	if tier.Calendar != nil {
		w.period = 24 * time.Hour
	}
	l := newLimit(t, limit.Limit{ID: "l", MaxCost: mostCost, Tiers: []limit.Tier{tier}})
	w.request = limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l}}}
	for range instances {
		path := newFlaky(t, w.inner)
		var store limit.Store = path
		if breaker {
			store = newBreaker(t, path)
		}
		w.paths = append(w.paths, path)
		w.instances = append(w.instances, newStore(t, resilience.FallbackConfig{Store: store, PerSecond: 10_000,
			Instances: func(*limit.Limit) int { return instances }}))
	}
	return w
}

// step lets a little time pass, the store fail or recover for some instance, and some instance decide.
func (w *world) step(t *testing.T, rng *rand.Rand) {
	t.Helper()
	pass(time.Duration(rng.Int64N(int64(w.period) / 40)))
	if rng.IntN(40) == 0 {
		away := rng.IntN(2) == 0
		if rng.IntN(2) == 0 { // for all instances
			for _, p := range w.paths {
				p.down.Store(away)
			}
		} else {
			w.paths[rng.IntN(len(w.paths))].down.Store(away)
		}
	}
	for range rng.IntN(8) {
		w.ask(t, rng.IntN(len(w.instances)), 1+rng.Int64N(mostCost))
	}
}

func (w *world) ask(t *testing.T, instance int, cost int64) {
	t.Helper()
	w.request.Charges = []limit.Charge{{Limit: w.request.Charges[0].Limit, Cost: cost}}
	var d limit.Decision
	now := time.Now()
	if err := w.instances[instance].Decide(t.Context(), &w.request, now, &d); err != nil {
		t.Fatalf("Decide = %v, want no error whatever fails", err)
	}
	if d.Never {
		t.Fatalf("a cost of %d is denied for ever, want at most a denial for a time", cost)
	}
	if d.Allowed {
		w.events = append(w.events, event{now.UnixMicro(), cost, d.Degraded})
	}
}

// mostInPeriod returns the largest number of units, of the events that keep selects, in any interval as long as the
// period. If windows is set, it considers only the windows of the limit.
func (w *world) mostInPeriod(windows bool, keep func(event) bool) int64 {
	period := w.period.Microseconds()
	var sum, most int64
	from := 0
	for to, e := range w.events {
		if keep(e) {
			sum += e.units
		}
		for f := w.events[from]; from < to; f = w.events[from] {
			if windows && f.at/period == e.at/period || !windows && f.at > e.at-period {
				break
			}
			if keep(f) {
				sum -= f.units
			}
			from++
		}
		most = max(most, sum)
	}
	return most
}

// admits returns what the algorithm itself admits at most in an interval as long as the period.
func (w *world) admits() int64 {
	switch w.tier.Algorithm {
	case limit.SlidingWindow:
		return 2 * w.tier.Threshold
	case limit.TokenBucket:
		return w.tier.Threshold + max(w.tier.Threshold, w.tier.Burst)
	case limit.LeakyBucket:
		return w.tier.Threshold + mostCost
	default:
		return w.tier.Threshold
	}
}

// Guarantees the bound that Store documents, for every algorithm, whatever fails when and for which instance: the
// store's units and twice the instances' parts; that no error reaches the caller; and that the store, when it answers
// again, is charged for what was admitted without it in windows that are still open.
func TestBound(t *testing.T) {
	tiers := []limit.Tier{
		{Algorithm: limit.FixedWindow, Period: time.Minute, Threshold: 40},
		{Algorithm: limit.SlidingWindow, Period: time.Minute, Threshold: 40},
		{Algorithm: limit.SlidingBuckets, Period: time.Minute, Threshold: 40, Buckets: 10},
		{Algorithm: limit.SlidingLog, Period: time.Minute, Threshold: 40},
		{Algorithm: limit.TokenBucket, Period: time.Minute, Threshold: 40},
		{Algorithm: limit.TokenBucket, Period: time.Minute, Threshold: 40, Burst: 90},
		{Algorithm: limit.LeakyBucket, Period: time.Minute, Threshold: 40},
		{Algorithm: limit.Quota, Threshold: 40, Calendar: &limit.Calendar{Every: limit.Day, Location: time.UTC}},
	}
	without, reached := int64(0), 0.0
	for i := range max(soak.Times(240), 48) { // fewer fail too seldom
		rng := rand.New(rand.NewPCG(1, uint64(i)))
		tier := tiers[i%len(tiers)]
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, tier, 1+rng.IntN(5), rng.IntN(2) == 0)
			name := fmt.Sprintf("run %d: %s, %d instances", i, tier.Algorithm, len(w.instances))
			for range 200 + rng.IntN(100) {
				w.step(t, rng)
			}
			n := int64(len(w.instances))
			part := 2 * n * max(1, tier.Threshold/n)
			if tier.Burst > 0 {
				part = n*max(1, tier.Threshold/n) + n*max(1, tier.Burst/n)
			}
			windows := tier.Algorithm == limit.FixedWindow || tier.Algorithm == limit.Quota
			alone := w.mostInPeriod(false, func(e event) bool { return e.without })
			all := w.mostInPeriod(windows, func(event) bool { return true })
			if alone > part || all > w.admits()+part {
				t.Errorf("%s: %d units are admitted without the store and %d in all within a period; want at most "+
					"%d and %d", name, alone, all, part, w.admits()+part)
			}
			for _, e := range w.events {
				if e.without {
					without += e.units
				}
			}
			reached = max(reached, float64(all)/float64(w.admits()+part))
			w.recover(t, name)
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d units were admitted without the store; at most %.2f of the bound was reached", without, reached)
	if without < 1000 || reached < 0.5 {
		t.Error("the test shows too little: few units were admitted without the store, or the bound was never " +
			"nearly reached")
	}
}

// recover restores the store for all instances, waits for the replay, and checks what the store counts.
func (w *world) recover(t *testing.T, name string) {
	t.Helper()
	for _, p := range w.paths {
		p.down.Store(false)
	}
	dropped := int64(0)
	for i, s := range w.instances {
		for s.Stats().Waiting > 0 {
			pass(100 * time.Millisecond) // until the breaker sends a probe
			w.ask(t, i, mostCost)
		}
		dropped += s.Stats().Dropped
	}
	var d limit.Decision
	now := time.Now()
	if err := w.inner.Peek(t.Context(), &w.request, now, &d); err != nil {
		t.Fatal(err)
	}
	want, exact := w.counts(now.UnixMicro())
	if got := d.Results[0].Used(); got < want-dropped || exact && got > want {
		t.Errorf("%s: the store counts %d units, want %d, less %d that were dropped", name, got, want, dropped)
	}
}

// counts returns how many units the store should count at now. If exact is false, it may count more.
func (w *world) counts(now int64) (units int64, exact bool) {
	period := w.period.Microseconds()
	var here, last, recent int64
	for _, e := range w.events {
		switch now/period - e.at/period {
		case 0:
			here += e.units
		case 1:
			last += e.units
		}
		if e.at > now-period {
			recent += e.units
		}
	}
	switch w.tier.Algorithm {
	case limit.FixedWindow, limit.Quota:
		return here, true
	case limit.SlidingWindow:
		left := period - now%period
		return here + last*left/period, false
	case limit.SlidingBuckets, limit.SlidingLog:
		return recent, false
	default: // TestChargedBack covers the buckets
		return 0, false
	}
}
