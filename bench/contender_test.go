package bench

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/sethvargo/go-limiter/memorystore"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/pacer"
)

// rounds is how often both sides of a benchmark are measured, in turn.
var rounds = flag.Int("rounds", 1, "how often each side of a benchmark is measured")

// contender is one of the two limiters of a comparison. Its counters are new, and used for one comparison only.
type contender struct {
	name    string
	keys    int
	workers int // goroutines; 0 means one for each core
	stride  int // the distance from one key that is used to the next; 0 means 1

	// ask returns a function that asks for one unit of a key, for one goroutine.
	ask func() func(key int) (admitted bool, err error)

	// spent returns how many units of a key have been used, at least and at most: token buckets refill during the
	// measurement.
	spent func(key int) (least, most int, err error)

	close func()

	total, admitted int // units that were asked for, and those that were admitted
}

// goroutines returns how many goroutines ask at once.
func (c *contender) goroutines() int { return cmp.Or(c.workers, runtime.GOMAXPROCS(0)) }

// unit returns a small number of operations that uses every key equally often.
func (c *contender) unit() int {
	if c.stride == 0 && c.keys%c.goroutines() == 0 {
		return c.keys // each goroutine uses a part of the keys
	}
	return c.keys * c.goroutines()
}

// timing is the duration of one operation, in ns. If n cores work at the same time, the processor time is n times the
// wall time.
type timing struct{ wall, processor float64 }

// trial asks for ops units with the contender's goroutines, and returns the time for one. Each key gets the same number
// of requests if ops is a multiple of unit.
func (c *contender) trial(ops int) (perOp timing, err error) {
	workers := c.goroutines()
	counts, errs := make([]int, workers), make([]error, workers)
	start := make(chan struct{})
	var done sync.WaitGroup
	for w := range workers {
		done.Go(func() {
			ask, key, stride := c.ask(), w*c.keys/workers, cmp.Or(c.stride, 1)
			<-start
			for range ops / workers {
				admitted, err := ask(key)
				if err != nil {
					errs[w] = fmt.Errorf("%s: %w", c.name, err)
					return
				}
				if admitted {
					counts[w]++
				}
				if key += stride; key >= c.keys {
					key -= c.keys
				}
			}
		})
	}
	used, began := processorTime(), time.Now()
	close(start)
	done.Wait()
	elapsed, used := time.Since(began), processorTime()-used
	c.total += ops
	for _, n := range counts {
		c.admitted += n
	}
	return timing{wall: float64(elapsed) / float64(ops), processor: float64(used) / float64(ops)}, errors.Join(errs...)
}

// verify checks that every key was asked for the same number of units, and that at most limit units of each key were
// admitted.
func (c *contender) verify(limit int) error {
	share := min(c.total/c.keys, limit)
	if want := share * c.keys; c.admitted != want {
		return fmt.Errorf("%s admitted %d of %d, want %d", c.name, c.admitted, c.total, want)
	}
	for key := range c.keys {
		least, most, err := c.spent(key)
		if err != nil {
			return fmt.Errorf("%s, key %d: %w", c.name, key, err)
		}
		if share < least || share > most {
			return fmt.Errorf("%s: key %d has spent %d to %d, want %d: the load was not even", c.name, key, least,
				most, share)
		}
	}
	return nil
}

// allocatesNothing fails the benchmark if a decision allocates after the given number of decisions. It closes the
// contender.
func allocatesNothing(b *testing.B, c *contender, after int) {
	defer c.close()
	if _, err := c.trial(after); err != nil {
		b.Fatal(err)
	}
	const ops = 1000
	ask, perOp := c.ask(), 1.0
	for range 5 { // the least of some runs: a call for the next lease allocates, and can happen at any time
		perOp = min(perOp, testing.AllocsPerRun(1, func() {
			for i := range ops {
				if _, err := ask(i % c.keys); err != nil {
					b.Error(err)
				}
			}
		})/ops)
	}
	if perOp >= 0.01 {
		b.Fatalf("%s: %.2f allocations per decision, want 0", c.name, perOp)
	}
}

const (
	memoryKeys = 10_000
	redisKeys  = 1000
	plenty     = 1_000_000_000 // units of a key that no measurement uses up
)

// keyNames returns n names of keys. Every contender uses the same names.
func keyNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = "tenant-" + strconv.Itoa(i)
	}
	return names
}

// sluice returns a contender that decides in our memory store. Each key has one limit for each of the given tiers, with
// the given burst.
func sluice(keys int, burst int64, with ...limit.Tier) (*contender, error) {
	store, err := memory.New(memory.Config{MaxBytes: 1 << 30})
	if err != nil {
		return nil, err
	}
	return deciding("sluice", store, keys, burst, with...)
}

// deciding returns a contender that decides in the given store of ours. Each key has one limit for each of the given
// tiers, with the given burst.
func deciding(name string, store limit.Store, keys int, burst int64, with ...limit.Tier) (*contender, error) {
	charges := make([]limit.Charge, 0, len(with))
	perSecond := 0.0 // the fastest refill
	for i, tier := range with {
		if tier.Algorithm.HasBurst() {
			tier.Burst = burst
		}
		l, err := limit.New(limit.Limit{ID: "limit-" + strconv.Itoa(i), Tiers: []limit.Tier{tier}})
		if err != nil {
			return nil, err
		}
		charges = append(charges, limit.Charge{Limit: l, Cost: 1})
		if tier.Algorithm.HasRate() {
			perSecond = max(perSecond, float64(tier.Threshold)/tier.Period.Seconds())
		}
	}
	names, began := keyNames(keys), time.Now()
	request := func(key int) limit.Request {
		return limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: names[key]}, Charges: charges}
	}
	c := &contender{name: name, keys: keys, close: func() {}}
	c.ask = func() func(key int) (bool, error) {
		ctx, req := context.Background(), request(0)
		var d limit.Decision
		var now clock.Clock
		return func(key int) (bool, error) {
			req.Owner.Name = names[key]
			// Reading the clock is measured too, because the peers read theirs within a decision. This is the clock
			// that the gateway uses.
			err := store.Decide(ctx, &req, now.Now(), &d)
			return d.Allowed, err
		}
	}
	c.spent = func(key int) (least, most int, err error) {
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
	}
	return c, nil
}

// goLimiter returns a contender that uses the memory store of github.com/sethvargo/go-limiter. It refills once an hour,
// so not during a measurement.
func goLimiter(keys int, burst uint64) (*contender, error) {
	store, err := memorystore.New(&memorystore.Config{Tokens: burst, Interval: time.Hour, InitialAlloc: keys})
	if err != nil {
		return nil, err
	}
	names := keyNames(keys)
	return &contender{
		name: "golimiter", keys: keys,
		ask: func() func(key int) (bool, error) {
			ctx := context.Background()
			return func(key int) (bool, error) {
				_, _, _, admitted, err := store.Take(ctx, names[key])
				return admitted, err
			}
		},
		spent: func(key int) (least, most int, err error) {
			tokens, remaining, err := store.Get(context.Background(), names[key])
			used := int(tokens) - int(remaining)
			return used, used, err
		},
		close: func() { _ = store.Close(context.Background()) }, // it only ever returns nil
	}, nil
}

// callCounter counts the calls of a store.
type callCounter struct {
	limit.Store
	calls atomic.Int64
}

func (a *callCounter) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	a.calls.Add(1)
	return a.Store.Decide(ctx, req, now, d)
}

// leasing returns a contender that decides from leases of a store. Each key has the given limits. The counter of calls
// counts the calls of the lease layer to the store.
func leasing(b *testing.B, store limit.Store, keys int, with ...limit.Tier) (*contender, *callCounter) {
	beneath := &callCounter{Store: store}
	leases := made[*lease.Store](b)(lease.New(lease.Config{Store: beneath}))
	c := made[*contender](b)(deciding("sluice", leases, keys, plenty, with...))
	used := c.spent
	c.spent = func(key int) (least, most int, err error) { // the store also counts units of leases that ended unspent
		_, most, err = used(key)
		return 0, most, err
	}
	c.close = func() { _ = leases.Close(context.Background()) } // nobody needs units that cannot be given back
	return c, beneath
}

// leased fails the benchmark if the decisions were not made from leases: then every decision was a call. The first
// leases of a key are small, so fewer than 100 decisions of each key say nothing.
func (a *callCounter) leased(b *testing.B, c *contender) {
	tooFew := c.total < 100*c.keys
	if calls := a.calls.Load(); calls < int64(c.keys) || calls > int64(c.total)/2 && !tooFew {
		b.Fatalf("%d calls for leases of %d keys in %d decisions: the decisions were not made from leases", calls,
			c.keys, c.total)
	}
}

// sluiceRedis returns a contender that decides in our Redis store. Each key has one limit for each of the given tiers.
func sluiceRedis(addr string, with ...limit.Tier) (*contender, error) {
	store, err := redis.New(context.Background(), redisConfig(addr))
	if err != nil {
		return nil, err
	}
	c, err := deciding("sluice", store, redisKeys, plenty, with...)
	if err != nil {
		return nil, err
	}
	c.workers = redisWorkers
	c.close = func() { _ = store.Close() }
	return c, nil
}

// redisRate returns a contender that uses github.com/go-redis/redis_rate, with one limit for each key.
func redisRate(addr string, keys int) *contender {
	client := redisClient(addr)
	limiter := redis_rate.NewLimiter(client)
	rule := redis_rate.Limit{Rate: 10, Period: time.Second, Burst: plenty}
	names, began, ctx := keyNames(keys), time.Now(), context.Background()
	return &contender{
		name: "redis_rate", keys: keys, workers: redisWorkers,
		ask: func() func(key int) (bool, error) {
			return func(key int) (bool, error) {
				r, err := limiter.Allow(ctx, names[key], rule)
				return err == nil && r.Allowed > 0, err
			}
		},
		spent: func(key int) (least, most int, err error) {
			r, err := limiter.AllowN(ctx, names[key], rule, 0)
			if err != nil {
				return 0, 0, err
			}
			used := plenty - r.Remaining
			// It counts in floating-point seconds, so it may be wrong by a few units at 10 units per second.
			return used - 3, used + 3 + int(math.Ceil(time.Since(began).Seconds()*float64(rule.Rate))), nil
		},
		close: func() { _ = client.Close() },
	}
}

// pacing returns a contender of one goroutine with units in hand, so that nobody waits.
func pacing(name string, wait func(context.Context) error, used func() int) *contender {
	return &contender{
		name: name, keys: 1, workers: 1, close: func() {},
		ask: func() func(int) (bool, error) {
			ctx := context.Background()
			return func(int) (bool, error) {
				err := wait(ctx)
				return err == nil, err
			}
		},
		spent: func(int) (least, most int, err error) { return used(), used() + 1, nil },
	}
}

// pacerContender is a pacer.
func pacerContender() (*contender, error) {
	p, err := pacer.New(pacer.Config{Limit: pacer.Limit{Units: pacer.MaxUnits, Period: pacer.MaxPeriod}})
	if err != nil {
		return nil, err
	}
	c := pacing("sluice", func(ctx context.Context) error {
		_, err := p.Acquire(ctx, "key", 1)
		return err
	}, func() int { return int(p.Status().Used) })
	c.close = p.Close
	return c, nil
}
