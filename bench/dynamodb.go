package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
)

const (
	dynamoTable   = "bench"
	dynamoWriters = 8 // stores, as in as many processes, that all decide about one tenant
	dynamoTimeout = 30 * time.Second
)

// dynamoWorkload is a workload in which several writers decide about the requests of one tenant.
type dynamoWorkload struct {
	meter   *dynamodbtest.Meter
	config  dynamodb.Config
	charges []limit.Charge
	close   func()
}

func newDynamoWorkload(name string, limits ...limit.Limit) (*dynamoWorkload, error) {
	endpoint, err := dynamodbtest.Endpoint()
	if err != nil {
		return nil, err
	}
	client, done := dynamodbtest.Connect(endpoint)
	if err := dynamodb.Create(context.Background(), client, dynamoTable); err != nil {
		done()
		return nil, err
	}
	w := &dynamoWorkload{meter: &dynamodbtest.Meter{Client: client}, close: done}
	w.config = dynamodb.Config{
		Client: w.meter, Table: dynamoTable, Timeout: dynamoTimeout, CallerClock: true,
		Namespace: fmt.Sprintf("%s-%d-%d", name, os.Getpid(), time.Now().UnixNano()),
	}
	for _, l := range limits {
		built, err := limit.New(l)
		if err != nil {
			done()
			return nil, err
		}
		w.charges = append(w.charges, limit.Charge{Limit: built, Cost: 1})
	}
	return w, nil
}

// run lets each writer make the given number of decisions. The n-th decision of all is made at the time now(n). One
// decision in 100 may fail because it is undecided after three tries, as can happen when eight writers start at the
// same time. Its units are counted.
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
	if undecided > 1+each*dynamoWriters/100 {
		failed = errors.Join(failed, fmt.Errorf("%d of %d decisions were not made in three tries", undecided,
			each*dynamoWriters))
	}
	return allowed, denied, failed
}

// dynamoExactFigure counts the write units of decisions over three limits per tenant. All decisions admit. The store
// uses its own clock.
func dynamoExactFigure(short bool) (Result, error) {
	var r Result
	const rate = 2000
	w, err := newDynamoWorkload("exact",
		limit.Limit{ID: "burst", Tiers: []limit.Tier{{Algorithm: limit.TokenBucket, Threshold: rate,
			Period: time.Second, Burst: 2 * rate}}},
		limit.Limit{ID: "steady", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 10 * rate,
			Period: 10 * time.Second}}},
		limit.Limit{ID: "hourly", Tiers: []limit.Tier{{Algorithm: limit.SlidingWindow, Threshold: 3600 * rate,
			Period: time.Hour}}})
	if err != nil {
		return r, err
	}
	defer w.close()
	each := 500
	if short {
		each = 50
	}
	w.config.CallerClock = false
	began := time.Now()
	allowed, denied, err := w.run(each, func(int) time.Time { return time.Now() })
	if err != nil {
		return r, err
	}
	if denied > 0 {
		return r, fmt.Errorf("%d of %d decisions were denied by limits that are wide enough", denied, allowed+denied)
	}
	used := w.meter.Take()
	r.Value = used.Writes / float64(allowed) * 1000
	r.note("%d decisions by %d writers on one key at %.0f per second; %d conditions failed; %.0f read units",
		allowed, dynamoWriters, float64(allowed)/time.Since(began).Seconds(), used.Failed, used.Reads)
	return r, nil
}

// dynamoDeniedFigure counts the write units of denied decisions. A tenant uses up a window of a minute in the first
// second, and goes on with 1,000 requests per second. The times of the decisions are computed, so that nothing waits
// for the minute to pass.
func dynamoDeniedFigure(bool) (Result, error) {
	var r Result
	const units = 1000
	w, err := newDynamoWorkload("denied",
		limit.Limit{ID: "minutely", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: units,
			Period: time.Minute}}})
	if err != nil {
		return r, err
	}
	defer w.close()
	start := time.Now().Truncate(time.Minute)
	at := func(n int) time.Time { return start.Add(time.Duration(n-1) * time.Millisecond) }
	allowed, denied, err := w.run(60_000/dynamoWriters, at)
	if err != nil {
		return r, err
	}
	if allowed != units {
		return r, fmt.Errorf("%d of %d were admitted, want %d", allowed, allowed+denied, units)
	}
	used := w.meter.Take()
	r.Value = (used.Writes - units) / float64(denied) * 1000
	r.note("%d admitted and %d denied; %d conditions failed; %.0f read units", allowed, denied, used.Failed, used.Reads)
	return r, nil
}
