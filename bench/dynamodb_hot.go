package bench

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
)

// The load of the figures about one busy tenant on DynamoDB.
const (
	hotInstances = 20                   // instances that share the requests of the tenant
	hotRate      = 1000                 // requests per second of the tenant
	hotAway      = 5 * time.Millisecond // a call to DynamoDB takes 1 to 1.5 times as long
	hotPeriod    = 10 * time.Second
	hotRoom      = 2.5  // a limit that does not bind, as a multiple of the demand
	hotBinds     = 0.95 // a limit that binds, as a multiple of the demand
)

// hotLimits returns three limits per tenant. The one with the algorithm binds, if there is one, binds.
func hotLimits(binds limit.Algorithm) []limit.Limit {
	units := func(a limit.Algorithm, per time.Duration) int64 {
		share := hotRoom
		if a == binds {
			share = hotBinds
		}
		return int64(share * hotRate * per.Seconds())
	}
	rate := units(limit.TokenBucket, time.Second)
	return []limit.Limit{
		{ID: "burst", Tiers: []limit.Tier{{Algorithm: limit.TokenBucket, Threshold: rate, Period: time.Second,
			Burst: 2 * rate}}},
		{ID: "steady", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: units(limit.FixedWindow,
			hotPeriod), Period: hotPeriod}}},
		{ID: "sliding", Tiers: []limit.Tier{{Algorithm: limit.SlidingWindow, Threshold: units(limit.SlidingWindow,
			hotPeriod), Period: hotPeriod}}},
	}
}

// dynamoHotFigure counts the write units of 1,000 decisions from leases on DynamoDB. Twenty instances, each with a
// whole store chain, decide at once for a minute of virtual time, over three limits. If binding is true, each of the
// limits binds in a run of its own, and the largest value is the figure.
func dynamoHotFigure(binding bool) func(short bool) (Result, error) {
	return func(short bool) (r Result, err error) {
		length := time.Minute
		if short {
			length = 3 * time.Second
		}
		cases := []limit.Algorithm{limit.LeakyBucket} // none of the three limits has this algorithm, so none binds
		if binding {
			cases = []limit.Algorithm{limit.FixedWindow, limit.TokenBucket, limit.SlidingWindow}
		}
		for _, binds := range cases {
			h, err := runHotChild(hotOrder{binds, length})
			if err == nil {
				err = h.plausible(binding, length)
			}
			if err != nil {
				return r, fmt.Errorf("%s binds: %w", binds, err)
			}
			units := h.Used.Writes / float64(h.Requests) * 1000
			r.Value = max(r.Value, units)
			name := binds.String()
			if !binding {
				name = "none"
			}
			r.note("%s binds: %.1f units for 1,000 decisions, %d conditions failed, %.0f read units; %d of %d admitted",
				name, units, h.Used.Failed, h.Used.Reads, h.Admitted, h.Requests)
		}
		return r, nil
	}
}

// hotOrder is the message to a process that runs the instances.
type hotOrder struct {
	Binds  limit.Algorithm
	Length time.Duration
}

// hot counts the outcomes of the tenant's requests.
type hot struct {
	Requests, Admitted, Degraded int64
	Used                         dynamodbtest.Usage

	mu     sync.Mutex
	failed error
}

func runHotChild(o hotOrder) (*hot, error) {
	c, err := startChild("hot", &o)
	if err != nil {
		return nil, err
	}
	defer c.close()
	h := new(hot)
	return h, c.from.Decode(h)
}

// hotChild is the main function of the process that runs the instances. It is a test of its own, because the virtual
// time of testing/synctest is only for tests.
func hotChild(from *gob.Decoder, to *gob.Encoder) error {
	var o hotOrder
	if err := from.Decode(&o); err != nil {
		return err
	}
	os.Args = os.Args[:1]
	testing.Main(func(_, _ string) (bool, error) { return true, nil },
		[]testing.InternalTest{{Name: "hot", F: func(t *testing.T) {
			h, err := runHot(t, &o)
			if err := errors.Join(err, to.Encode(h)); err != nil {
				t.Fatal(err)
			}
		}}}, nil, nil)
	return nil
}

// runHot runs the instances, which decide at random times. The usage includes calls at the start and the end of an
// instance.
func runHot(t *testing.T, o *hotOrder) (*hot, error) {
	h := new(hot)
	w, err := newDynamoWorkload("hot", hotLimits(o.Binds)...)
	if err != nil {
		return h, err
	}
	defer w.close()
	bubble, stop := dynamodbtest.NewBubble(w.meter, hotAway)
	defer stop()
	w.config.Client, w.config.Timeout = bubble, dynamodb.DefaultTimeout
	synctest.Test(t, func(*testing.T) {
		bubble.Enter()
		err = h.run(w, o.Length)
	})
	h.Used = w.meter.Take()
	return h, errors.Join(err, h.failed)
}

func (h *hot) run(w *dynamoWorkload, length time.Duration) error {
	req := &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: "acme"}, Charges: w.charges}
	var asking sync.WaitGroup
	var chains []*resilience.Chain
	for range hotInstances {
		store, err := dynamodb.New(w.config)
		if err != nil {
			return err
		}
		l, err := resilience.NewChain(resilience.ChainConfig{Rates: resilience.NamedStore{Name: "dynamodb",
			Store: store}, MaxInstances: hotInstances})
		if err != nil {
			return err
		}
		chains = append(chains, l)
		asking.Go(func() { h.arrive(l, req, length, &asking) })
	}
	asking.Wait()
	var err error
	for _, l := range chains {
		err = errors.Join(err, l.Close(context.Background()))
	}
	return err
}

// arrive sends requests to one instance at the times of a Poisson process. No request waits for another one.
func (h *hot) arrive(store limit.Store, req *limit.Request, length time.Duration, asking *sync.WaitGroup) {
	const mean = hotInstances * time.Second / hotRate // mean time between two requests of an instance
	began := time.Now()
	for at := time.Duration(0); ; {
		at += time.Duration(rand.ExpFloat64() * float64(mean))
		if at >= length {
			return
		}
		time.Sleep(time.Until(began.Add(at)))
		asking.Go(func() {
			var d limit.Decision
			err := store.Decide(context.Background(), req, time.Now(), &d)
			h.mu.Lock()
			defer h.mu.Unlock()
			h.Requests++
			switch {
			case err != nil:
				h.failed = err
			case d.Degraded:
				h.Degraded++
			case d.Allowed:
				h.Admitted++
			}
		})
	}
}

// plausible returns an error if the load was not the intended one.
func (h *hot) plausible(binding bool, length time.Duration) error {
	demand := hotRate * length.Seconds()
	// A run can overlap a window at its beginning and one at its end, so it can use two windows more than its length.
	most := int64(hotBinds * (demand + 2*hotRate*hotPeriod.Seconds()))
	denied := h.Requests - h.Admitted
	switch {
	case float64(h.Requests) < 0.95*demand || float64(h.Requests) > 1.05*demand:
		return fmt.Errorf("%d requests, want about %.0f", h.Requests, demand)
	case h.Degraded > h.Requests/1000:
		return fmt.Errorf("%d of %d decisions were made without the store", h.Degraded, h.Requests)
	case !binding && denied > h.Requests/1000:
		return fmt.Errorf("%d of %d were denied by limits that are wide enough", denied, h.Requests)
	case binding && length > 2*hotPeriod && (denied == 0 || h.Admitted > most ||
		float64(h.Admitted) < 0.8*hotBinds*demand):
		return fmt.Errorf("%d of %d were admitted by a limit of %g of them", h.Admitted, h.Requests, hotBinds)
	}
	return nil
}
