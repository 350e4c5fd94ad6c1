package dynamodb_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

var (
	noon = time.Date(2026, time.June, 1, 12, 0, 0, 0, time.UTC)
	acme = limit.Owner{Kind: limit.Tenant, Name: "acme"}
)

var must = limittest.MustNew

// threeLimits returns limits per tenant of three algorithms, as a plan has them. They admit rate units per second.
func threeLimits(tb testing.TB, rate int64) []limit.Charge {
	wide := func(id string, t limit.Tier) limit.Charge {
		return limit.Charge{Limit: must(tb, limit.Limit{ID: id, Tiers: []limit.Tier{t}}), Cost: 1}
	}
	return []limit.Charge{
		wide("burst", limit.Tier{Algorithm: limit.TokenBucket, Threshold: rate, Period: time.Second, Burst: 2 * rate}),
		wide("steady", limit.Tier{Algorithm: limit.FixedWindow, Threshold: 10 * rate, Period: 10 * time.Second}),
		wide("hourly", limit.Tier{Algorithm: limit.SlidingWindow, Threshold: 3600 * rate, Period: time.Hour}),
	}
}

// outcome is the result of a load.
type outcome struct{ allowed, denied, failed atomic.Int64 }

// load lets writers decide at the times that next gives. Each writer has a store of its own, like a process.
func load(tb testing.TB, c dynamodb.Config, writers, each int, charges []limit.Charge, next func() time.Time) *outcome {
	tb.Helper()
	var o outcome
	var wg sync.WaitGroup
	for range writers {
		s := open(tb, c)
		wg.Go(func() {
			var d limit.Decision
			for range each {
				err := s.Decide(tb.Context(), &limit.Request{Owner: acme, Charges: charges}, next(), &d)
				switch {
				case errors.Is(err, dynamodb.ErrUndecided): // eight processes start at once without copies
					o.failed.Add(1)
				case err != nil:
					tb.Errorf("Decide: %v", err)
				case d.Allowed:
					o.allowed.Add(1)
				default:
					o.denied.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return &o
}

// Guarantees the cost of a decision, which is most of the product's price: with three limits and eight writers on one
// key, hardly more than one write unit. The time is that of a synctest bubble, in which a call takes 5 to 7.5 ms.
func TestUnitsExact(t *testing.T) {
	const writers, each = 8, 150
	for name, test := range map[string]struct{ rate int64 }{
		"the bucket is always empty":       {rate: 100},
		"the bucket has room":              {rate: 2000},
		"the bucket is nearly always full": {rate: 1_000_000},
	} {
		if soak.RaceEnabled && name != "the bucket has room" { // which has the most calls at a time
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &dynamodbtest.Meter{Client: server(t)}
			bubble, stop := dynamodbtest.NewBubble(m, 5*time.Millisecond)
			defer stop()
			c := config(m.Client)
			c.Client = bubble
			var o *outcome
			synctest.Test(t, func(t *testing.T) {
				bubble.Enter()
				o = load(t, c, writers, each, threeLimits(t, test.rate), time.Now)
			})
			if o.failed.Load() > writers*each/1000 {
				t.Errorf("%d of %d decisions were not made in three tries", o.failed.Load(), writers*each)
			}
			used := m.Take()
			per := used.Writes / float64(o.allowed.Load()+o.denied.Load()) * 1000
			t.Logf("%.0f write units per 1,000 decisions (%d allowed, %d denied, %d conditions failed), %.0f read "+
				"units",
				per, o.allowed.Load(), o.denied.Load(), used.Failed, used.Reads)
			if per > 1100 {
				t.Errorf("%.0f write units per 1,000 decisions of three limits, want at most 1100", per)
			}
		})
	}
}

// Guarantees that a tenant that keeps sending requests after a denial causes few writes: neither the write capacity of
// its partition, 1,000 writes per second, nor the operator's money is used up. Eight writers make 1,000 decisions per
// second in one window of 60 s.
func TestUnitsDenied(t *testing.T) {
	t.Parallel()
	m := &dynamodbtest.Meter{Client: server(t)}
	c := config(m.Client)
	c.Client = m
	l := must(t, limit.Limit{ID: "minutely", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 1000,
		Period: time.Minute}}})
	charges := []limit.Charge{{Limit: l, Cost: 1}}
	if o := load(t, c, 8, 125, charges, func() time.Time { return noon }); o.allowed.Load() != 1000 {
		t.Fatalf("%d of 1,000 decisions were admitted, want as many as the limit allows", o.allowed.Load())
	}
	m.Take()
	var ticks atomic.Int64
	next := func() time.Time { return noon.Add(time.Duration(ticks.Add(1)) * time.Millisecond) }
	o := load(t, c, 8, 59_000/8, charges, next)
	if o.failed.Load() > 0 || o.allowed.Load() > 0 {
		t.Errorf("%d decisions failed and %d were admitted in a window that is used up, want none", o.failed.Load(),
			o.allowed.Load())
	}
	used := m.Take()
	per := used.Writes / float64(o.denied.Load()) * 1000
	t.Logf("%.2f write units per 1,000 denied decisions, %.2f read units", per,
		used.Reads/float64(o.denied.Load())*1000)
	if per > 2 {
		t.Errorf("%.2f write units per 1,000 denied decisions, want at most 2", per)
	}
}

// Guarantees that a process which knows the latest state of a bucket charges it by its first write, also while it
// assumes that other processes charge the bucket, and at every level: a second and third write would cost money, and
// without a fourth the request would fail.
func TestUnitsOfAContendedBucket(t *testing.T) {
	t.Parallel()
	m := &dynamodbtest.Meter{Client: server(t)}
	c := config(m.Client)
	other := open(t, c)
	c.Client = m
	s := open(t, c)
	const rate, burst = 1000, 500
	l := must(t, limit.Limit{ID: "burst", MaxCost: burst, Tiers: []limit.Tier{
		{Algorithm: limit.TokenBucket, Threshold: rate, Period: time.Second, Burst: burst}}})
	var d limit.Decision
	charge := func(s limit.Store, cost int64, at time.Time) {
		t.Helper()
		req := &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l, Cost: cost}}}
		if err := s.Decide(t.Context(), req, at, &d); err != nil || !d.Allowed {
			t.Fatalf("a charge of %d at %v: allowed %t, %v", cost, at, d.Allowed, err)
		}
	}
	at := noon
	charge(s, 1, at)
	charge(other, 1, at)
	charge(s, 1, at) // notices that another process charges the bucket
	m.Take()
	const slack, each = burst / 32, 50
	for taken := int64(1); taken < 2*slack; taken++ {
		for range each {
			at = at.Add(time.Second) // the bucket is full again
			charge(s, taken, at)
			charge(s, 1, at)
		}
	}
	if used := m.Take(); used.Failed > 0 {
		t.Errorf("%d of %v writes failed, want none", used.Failed, used.Writes)
	}
}
