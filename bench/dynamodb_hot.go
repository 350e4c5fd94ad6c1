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
)

// hotInstances share one tenant that asks 1,000 times a second.
const (
	hotInstances = 20
	hotRate      = 1000
	hotAway      = 5 * time.Millisecond // how long a call takes, and up to half as long again
	hotPeriod    = 10 * time.Second
	hotRoom      = 2.5  // a limit that does not bind, as a multiple of the demand,
	hotBinds     = 0.95 // and one that does
)

// dynamoHotFigure counts the write units of 1,000 decisions by leases on DynamoDB, in two ways, of which the most is
// the figure: by twenty instances that ask at once for a minute, over three limits, and by instances that take turns,
// over one limit of each algorithm. Both are in virtual time.
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
				if binding != (i > 0) { // the first never binds
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

// hotLimits are three tenant-wide limits, of which one may bind.
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

// hotAtOnce adds what a minute of twenty instances costs, each the whole store chain of a process of its own.
func hotAtOnce(r *Result, binding, short bool) error {
	length := time.Minute
	if short {
		length = 3 * time.Second
	}
	cases := []limit.Algorithm{limit.LeakyBucket} // none of the three limits is one, so none binds
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

const hotVar = "SLUICE_BENCH_HOT" // what the instances of a process of its own are to do, as JSON

// hotOrder is that.
type hotOrder struct {
	Binds  limit.Algorithm
	Length time.Duration
}

// Main makes the process the instances that a figure has started, and does not return then. Programs that measure
// figures call it first of all. The virtual time of testing/synctest is for tests only; so the process is one.
func Main() {
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

// hotProcess starts that process.
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

// hot is what a tenant's requests came to.
type hot struct {
	Requests, Admitted, Degraded int64
	Used                         dynamodbtest.Usage

	mu     sync.Mutex
	failed error
}

// runHot has instances decide for so long, each at random times of its own. What they do to begin and to end is
// counted.
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

// arrive is a Poisson process of requests at one instance, none of which waits for another.
func (h *hot) arrive(store limit.Store, req *limit.Request, length time.Duration, asking *sync.WaitGroup) {
	const mean = hotInstances * time.Second / hotRate // between two
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

// plausible reports a load that was not what it should be.
func (h *hot) plausible(binding bool, length time.Duration) error {
	demand := hotRate * length.Seconds()
	most := int64(hotBinds * (demand + 2*hotRate*hotPeriod.Seconds())) // two windows more, at either end
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
