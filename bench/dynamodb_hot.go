package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/bench/shared"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
	"github.com/sluicelimits/sluice/internal/testkit/standin"
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

// dynamoHotFigure counts the write units of 1,000 decisions from leases on DynamoDB. It measures two loads, and the
// larger value is the figure. In the first, twenty instances decide concurrently for a minute, over three limits. In
// the second, the instances take turns in one goroutine, over one limit of each algorithm. Both run in virtual time.
func dynamoHotFigure(binding bool) func(short bool) (Result, error) {
	return func(short bool) (Result, error) {
		var r Result
		if err := hotAtOnce(&r, binding, short); err != nil {
			return r, err
		}
		length := shared.Length{Measured: 6}
		if short {
			length.Measured = 1
		}
		for _, alg := range shared.Algorithms() {
			for i, s := range shared.Hot(alg, hotInstances, hotRate) {
				if binding != (i > 0) { // the limit of the first scenario never binds
					continue
				}
				used, g, err := dynamoHot(&s, length)
				if err != nil {
					return r, err
				}
				units := used.Writes / float64(g.Requests) * 1000
				r.Value = max(r.Value, units)
				r.note("in turns, %s, limit %s: %.1f units for 1,000 decisions, %d conditions failed; %d of %d "+
					"admitted, short %.2f %%, early %.2f %%, missed %.2f %%", alg, s.Name, units, used.Failed,
					g.Admitted, g.Requests, g.ShortPct, g.EarlyPct, g.MissedPct)
			}
		}
		return r, nil
	}
}

// dynamoHot runs a scenario whose instances take turns, and returns its usage and score.
func dynamoHot(s *shared.Scenario, length shared.Length) (used dynamodbtest.Usage, g shared.Score, err error) {
	w, err := newDynamoWorkload("hot")
	if err != nil {
		return used, g, err
	}
	defer w.close()
	if g, err = shared.SimulateOn(context.Background(), s, shared.Leased, workloadSeed, length, w.store); err != nil {
		return used, g, fmt.Errorf("%s: %w", s.Algorithm, err)
	}
	if g.Over > 0 {
		return used, g, fmt.Errorf("%d units were admitted beyond the limit", g.Over)
	}
	return w.meter.Take(), g, nil
}

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

// hotAtOnce adds to the result what a minute of twenty concurrent instances costs. Each has a whole store chain.
func hotAtOnce(r *Result, binding, short bool) error {
	length := time.Minute
	if short {
		length = 3 * time.Second
	}
	cases := []limit.Algorithm{limit.LeakyBucket} // none of the three limits has this algorithm, so none binds
	if binding {
		cases = shared.Algorithms()
	}
	for _, binds := range cases {
		h, err := hotProcess(binds, length)
		if err != nil {
			return err
		}
		name := binds.String() + " binds"
		if !binding {
			name = "none binds"
		}
		if err := h.plausible(binding, length); err != nil {
			return fmt.Errorf("at once, %s: %w", name, err)
		}
		units := h.Used.Writes / float64(h.Requests) * 1000
		r.Value = max(r.Value, units)
		r.note("at once, three limits, %s: %.1f units for 1,000 decisions, %d conditions failed, %.0f read units; "+
			"%d of %d admitted",
			name, units, h.Used.Failed, h.Used.Reads, h.Admitted, h.Requests)
	}
	return nil
}

// hotVar is the environment variable that makes a process run the concurrent instances. Its value is a hotOrder as
// JSON.
const hotVar = "SLUICE_BENCH_HOT"

type hotOrder struct {
	Binds  limit.Algorithm
	Length time.Duration
}

// Main runs the instances, the client or the server for which a figure has started this process, and then does not
// return. Programs that measure figures must call it first. The process runs its instances in a test, because the
// virtual time of testing/synctest is only for tests.
func Main() {
	standin.Main(pollingPeers)
	if order := os.Getenv(rlsVar); order != "" {
		if err := rlsMain(order); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	var order hotOrder
	text := os.Getenv(hotVar)
	if text == "" {
		return
	}
	os.Args = os.Args[:1]
	testing.Main(func(_, _ string) (bool, error) { return true, nil },
		[]testing.InternalTest{{Name: "hot", F: func(t *testing.T) {
			if err := json.Unmarshal([]byte(text), &order); err != nil {
				t.Fatal(err)
			}
			h, err := runHot(t, hotLimits(order.Binds), order.Length)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.NewEncoder(os.Stdout).Encode(h); err != nil {
				t.Fatal(err)
			}
		}}}, nil, nil)
}

// hotProcess starts a process that runs the concurrent instances, and returns its result.
func hotProcess(binds limit.Algorithm, length time.Duration) (*hot, error) {
	order, err := json.Marshal(hotOrder{binds, length})
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program) //nolint:gosec // this program, from no input
	cmd.Env = append(os.Environ(), hotVar+"="+string(order))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("instances at once: %w: %s", err, out)
	}
	h := new(hot)
	return h, json.NewDecoder(bytes.NewReader(out)).Decode(h)
}

// hot counts the outcomes of the tenant's requests.
type hot struct {
	Requests, Admitted, Degraded int64
	Used                         dynamodbtest.Usage

	mu     sync.Mutex
	failed error
}

// runHot runs the concurrent instances for the given time. Each decides at random times. Calls at the start and the end
// of an instance are included in the usage.
func runHot(t *testing.T, limits []limit.Limit, length time.Duration) (*hot, error) {
	w, err := newDynamoWorkload("hot", limits...)
	if err != nil {
		return nil, err
	}
	defer w.close()
	bubble, stop := dynamodbtest.NewBubble(w.meter, hotAway)
	defer stop()
	w.config.Client, w.config.Timeout = bubble, dynamodb.DefaultTimeout
	h := &hot{}
	synctest.Test(t, func(*testing.T) {
		bubble.Enter()
		err = h.run(w, length)
	})
	h.Used = w.meter.Take()
	return h, errors.Join(err, h.failed)
}

func (h *hot) run(w *dynamoWorkload, length time.Duration) error {
	req := &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: "acme"}, Charges: w.charges}
	var asking sync.WaitGroup
	var chains []*resilience.Chain
	for range hotInstances {
		store, err := w.store()
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
