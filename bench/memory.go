package bench

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sethvargo/go-limiter/memorystore"
	"golang.org/x/time/rate"

	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/store/memory"
)

const (
	memoryKeys = 10_000
	plenty     = 1_000_000_000 // units of a key that no measurement uses up
	scarce     = 100           // units of a key that are used up at once: after them, denials are measured
)

// keyNames are the same for every contender.
func keyNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = "tenant-" + strconv.Itoa(i)
	}
	return names
}

// tiers are token buckets of a tenant: a rate per second, one per minute, one per hour.
var tiers = [...]limit.Tier{
	{Algorithm: limit.TokenBucket, Period: time.Second, Threshold: 10},
	{Algorithm: limit.TokenBucket, Period: time.Minute, Threshold: 300},
	{Algorithm: limit.TokenBucket, Period: time.Hour, Threshold: 10_000},
}

// slow are buckets that refill by a unit a year, so that what they admit is their burst.
var slow = [...]limit.Tier{
	{Algorithm: limit.TokenBucket, Period: 366 * 24 * time.Hour, Threshold: 1},
	{Algorithm: limit.TokenBucket, Period: 365 * 24 * time.Hour, Threshold: 1},
	{Algorithm: limit.TokenBucket, Period: 364 * 24 * time.Hour, Threshold: 1},
}

// sluice is our memory store with a number of limits for each key, each with the given burst.
func sluice(burst int64, with ...limit.Tier) (*contender, error) {
	store, err := memory.New(memory.Config{})
	if err != nil {
		return nil, err
	}
	c, err := deciding(store, memoryKeys, burst, with...)
	if err != nil {
		return nil, err
	}
	c.name = fmt.Sprintf("sluice with %d limits", len(with))
	return c, nil
}

// deciding is a contender that asks a store of ours about a number of limits for each key, each with the given burst.
func deciding(store limit.Store, keys int, burst int64, with ...limit.Tier) (*contender, error) {
	charges := make([]limit.Charge, 0, len(with))
	perSecond := 0.0 // the fastest refill
	for i, tier := range with {
		tier.Burst = burst
		l, err := limit.New(limit.Limit{ID: "limit-" + strconv.Itoa(i), Tiers: []limit.Tier{tier}})
		if err != nil {
			return nil, err
		}
		charges = append(charges, limit.Charge{Limit: l, Cost: 1})
		perSecond = max(perSecond, float64(tier.Threshold)/tier.Period.Seconds())
	}
	names, began := keyNames(keys), time.Now()
	request := func(key int) limit.Request {
		return limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: names[key]}, Charges: charges}
	}
	return &contender{
		keys: len(names),
		spend: func(first, ops int) (admitted int, err error) {
			ctx := context.Background()
			req := request(first)
			var d limit.Decision
			var now clock.Clock
			key := first
			for range ops {
				req.Owner.Name = names[key]
				if key++; key == len(names) {
					key = 0
				}
				// The clock is read here, as the gateway does and with its clock: the peers read theirs inside.
				if err := store.Decide(ctx, &req, now.Now(), &d); err != nil {
					return admitted, err
				}
				if d.Allowed {
					admitted++
				}
			}
			return admitted, nil
		},
		spent: func(key int) (least, most int, err error) {
			req, now := request(key), time.Now()
			var d limit.Decision
			if err := store.Peek(context.Background(), &req, now, &d); err != nil {
				return 0, 0, err
			}
			least, most = 0, math.MaxInt
			refilled := int(math.Ceil(now.Sub(began).Seconds() * perSecond))
			for i := range d.Results {
				used := int(d.Results[i].Tier.Capacity() - d.Results[i].Remaining())
				least, most = max(least, used), min(most, used+refilled)
			}
			return least, most, nil
		},
		close: func() {},
	}, nil
}

// goLimiter is the memory store of github.com/sethvargo/go-limiter. An hour's interval: no refill while it is measured.
func goLimiter(burst uint64) (*contender, error) {
	store, err := memorystore.New(&memorystore.Config{Tokens: burst, Interval: time.Hour, InitialAlloc: memoryKeys})
	if err != nil {
		return nil, err
	}
	names := keyNames(memoryKeys)
	return &contender{
		name: "go-limiter",
		keys: len(names),
		spend: func(first, ops int) (admitted int, err error) {
			ctx := context.Background()
			key := first
			for range ops {
				_, _, _, ok, err := store.Take(ctx, names[key])
				if err != nil {
					return admitted, err
				}
				if key++; key == len(names) {
					key = 0
				}
				if ok {
					admitted++
				}
			}
			return admitted, nil
		},
		spent: func(key int) (least, most int, err error) {
			tokens, remaining, err := store.Get(context.Background(), names[key])
			used := int(tokens) - int(remaining)
			return used, used, err
		},
		close: func() { _ = store.Close(context.Background()) }, // it only ever returns nil
	}, nil
}

// timeRate is golang.org/x/time/rate with a limiter for each key in a map, as many services have it.
func timeRate(burst int) (*contender, error) {
	names := keyNames(memoryKeys)
	var mu sync.RWMutex
	limiters := make(map[string]*rate.Limiter, len(names))
	limiter := func(name string) *rate.Limiter {
		mu.RLock()
		l := limiters[name]
		mu.RUnlock()
		if l != nil {
			return l
		}
		mu.Lock()
		defer mu.Unlock()
		if l = limiters[name]; l == nil {
			l = rate.NewLimiter(rate.Every(365*24*time.Hour), burst)
			limiters[name] = l
		}
		return l
	}
	return &contender{
		name: "x/time/rate in a map",
		keys: len(names),
		spend: func(first, ops int) (admitted int, err error) {
			key := first
			for range ops {
				if limiter(names[key]).Allow() {
					admitted++
				}
				if key++; key == len(names) {
					key = 0
				}
			}
			return admitted, nil
		},
		spent: func(key int) (least, most int, err error) {
			used := burst - int(math.Floor(limiter(names[key]).Tokens()))
			return used, used + 1, nil
		},
		close: func() {},
	}, nil
}

// against measures ours with the given tiers against a peer, on new counters.
func against(peer func() (*contender, error), l load, units int64, with ...limit.Tier) (comparison, error) {
	ours, err := sluice(units, with...)
	if err != nil {
		return comparison{}, err
	}
	defer ours.close()
	theirs, err := peer()
	if err != nil {
		return comparison{}, err
	}
	defer theirs.close()
	return compare(ours, theirs, l, int(units))
}

// memoryFigure measures our memory store with the given tiers against go-limiter's with one.
func memoryFigure(with ...limit.Tier) func(short bool) (Result, error) {
	return func(short bool) (Result, error) {
		var r Result
		if err := noAllocations(with); err != nil {
			return r, err
		}
		l := loadFor(short)
		admitted, err := against(func() (*contender, error) { return goLimiter(plenty) }, l, plenty, with...)
		if err != nil {
			return r, err
		}
		r.Value = admitted.ratio
		r.note("all admitted, %d keys: %s", memoryKeys, admitted)

		l.rounds = max(3, l.rounds/3) | 1 // what follows is for the reader, not for the goal
		denied, err := against(func() (*contender, error) { return goLimiter(scarce) }, l, scarce, slow[:len(with)]...)
		if err != nil {
			return r, err
		}
		r.note("%d of each key admitted, then denied: %.2f x, %s", scarce, denied.ratio, denied)
		other, err := against(func() (*contender, error) { return timeRate(plenty) }, l, plenty, with...)
		if err != nil {
			return r, err
		}
		r.note("beside x/time/rate in a map, all admitted: %.2f x, %s", other.ratio, other)
		return r, nil
	}
}

// noAllocations checks that a decision on counters that exist allocates nothing.
func noAllocations(with []limit.Tier) error {
	c, err := sluice(plenty, with...)
	if err != nil {
		return err
	}
	defer c.close()
	if _, err := c.spend(0, c.keys); err != nil { // makes the counters
		return err
	}
	const ops = 1000
	var failed error
	// spend itself makes one Decision's results per call, whatever the number of operations.
	perCall := testing.AllocsPerRun(10, func() {
		if _, err := c.spend(0, ops); err != nil {
			failed = err
		}
	})
	if failed != nil {
		return failed
	}
	if perOp := perCall / ops; perOp >= 0.01 {
		return fmt.Errorf("%s: %.2f allocations per decision, want 0", c.name, perOp)
	}
	return nil
}
