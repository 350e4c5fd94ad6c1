package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
)

// dynamoWriters is how many stores, as in as many processes, all decide about one tenant.
const dynamoWriters = 8

// run lets each writer make the given number of decisions. The n-th decision of all is made at the time now(n). One
// decision in 100 may fail because it is undecided after three tries, as can happen when eight writers start at the
// same time. Its units are counted. A short run is little more than that start, and its figure is not compared: there
// one decision in four may fail.
func (w *dynamoWorkload) run(each int, now func(n int) time.Time) (allowed, denied int, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var failed error
	n, undecided := 0, 0
	for range dynamoWriters {
		s, err := dynamodb.New(w.config)
		if err != nil {
			return 0, 0, err
		}
		wg.Go(func() {
			var d limit.Decision
			for range each {
				mu.Lock()
				n++
				at := now(n)
				mu.Unlock()
				req := limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: "acme"}, Charges: w.charges}
				err := s.Decide(context.Background(), &req, at, &d)
				mu.Lock()
				switch {
				case errors.Is(err, dynamodb.ErrUndecided):
					undecided++
				case err != nil:
					failed = errors.Join(failed, err)
				case d.Allowed:
					allowed++
				default:
					denied++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	most := 1 + each*dynamoWriters/100
	if testing.Short() {
		most = each * dynamoWriters / 4
	}
	if undecided > most {
		failed = errors.Join(failed, fmt.Errorf("%d of %d decisions were not made in three tries", undecided,
			each*dynamoWriters))
	}
	return allowed, denied, failed
}

// BenchmarkDynamoDBExact counts the write units of decisions over three limits per tenant. All decisions admit. The
// store uses its own clock.
func BenchmarkDynamoDBExact(b *testing.B) {
	const rate = 2000
	w := made[*dynamoWorkload](b)(newDynamoWorkload("exact",
		limit.Limit{ID: "burst", Tiers: []limit.Tier{{Algorithm: limit.TokenBucket, Threshold: rate,
			Period: time.Second, Burst: 2 * rate}}},
		limit.Limit{ID: "steady", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 10 * rate,
			Period: 10 * time.Second}}},
		limit.Limit{ID: "hourly", Tiers: []limit.Tier{{Algorithm: limit.SlidingWindow, Threshold: 3600 * rate,
			Period: time.Hour}}}))
	defer w.close()
	w.config.CallerClock = false
	each := 500
	if testing.Short() {
		each = 50
	}
	b.Run("sluice", func(b *testing.B) {
		allowed := 0
		for range b.N {
			admitted, denied, err := w.run(each, func(int) time.Time { return time.Now() })
			if err != nil || denied > 0 {
				b.Fatalf("%d of %d decisions were denied by limits that are wide enough; error %v", denied,
					admitted+denied, err)
			}
			allowed += admitted
		}
		b.ReportMetric(w.meter.Take().Writes/float64(allowed)*1000, "units/1,000")
	})
}

// BenchmarkDynamoDBDenied counts the write units of denied decisions. A tenant uses up a window of a minute in the
// first second, and goes on with 1,000 requests per second. The times of the decisions are computed, so that nothing
// waits for the minute to pass.
func BenchmarkDynamoDBDenied(b *testing.B) {
	const units = 1000
	b.Run("sluice", func(b *testing.B) {
		for b.Loop() {
			w := made[*dynamoWorkload](b)(newDynamoWorkload("denied", limit.Limit{ID: "minutely",
				Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: units, Period: time.Minute}}}))
			start := time.Now().Truncate(time.Minute)
			allowed, denied, err := w.run(60_000/dynamoWriters, func(n int) time.Time {
				return start.Add(time.Duration(n-1) * time.Millisecond)
			})
			if err != nil || allowed != units {
				b.Fatalf("%d of %d were admitted, want %d; error %v", allowed, allowed+denied, units, err)
			}
			b.ReportMetric((w.meter.Take().Writes-units)/float64(denied)*1000, "units/1,000")
			w.close()
		}
	})
}
