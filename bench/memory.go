package bench

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sethvargo/go-limiter/memorystore"
	"golang.org/x/time/rate"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
)

const (
	memoryKeys = 10_000
	plenty     = 1_000_000_000 // units of a key that no measurement uses up
	scarce     = 100           // units of a key that are soon used up, so that the measurement is about denials
)

// keyNames returns n names of keys. Every contender uses the same names.
func keyNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = "tenant-" + strconv.Itoa(i)
	}
	return names
}

// tiers are three token buckets: with a rate per second, per minute and per hour.
var tiers = [...]limit.Tier{
	{Algorithm: limit.TokenBucket, Period: time.Second, Threshold: 10},
	{Algorithm: limit.TokenBucket, Period: time.Minute, Threshold: 300},
	{Algorithm: limit.TokenBucket, Period: time.Hour, Threshold: 10_000},
}

// mixed has a tier of each of three algorithms. Their windows are so long that the units that a measurement spends
// still count when they are verified.
var mixed = [...]limit.Tier{
	{Algorithm: limit.FixedWindow, Period: 366 * 24 * time.Hour, Threshold: plenty},
	{Algorithm: limit.SlidingWindow, Period: 365 * 24 * time.Hour, Threshold: plenty},
	{Algorithm: limit.Quota, Calendar: &limit.Calendar{Every: limit.Month, Location: time.UTC}, Threshold: plenty},
}

// slow are token buckets that refill by about one unit a year, so that they admit their burst and no more.
var slow = [...]limit.Tier{
	{Algorithm: limit.TokenBucket, Period: 366 * 24 * time.Hour, Threshold: 1},
	{Algorithm: limit.TokenBucket, Period: 365 * 24 * time.Hour, Threshold: 1},
	{Algorithm: limit.TokenBucket, Period: 364 * 24 * time.Hour, Threshold: 1},
}

// sluice returns a contender that decides in our memory store. Each key has one limit for each of the given tiers, with
// the given burst.
func sluice(burst int64, with ...limit.Tier) (*contender, error) {
	return sluiceOver(memoryKeys, burst, with...)
}

// sluiceOver is like sluice, but with the given number of keys.
func sluiceOver(keys int, burst int64, with ...limit.Tier) (*contender, error) {
	store, err := memory.New(memory.Config{MaxBytes: 1 << 30})
	if err != nil {
		return nil, err
	}
	c, err := deciding(store, keys, burst, with...)
	if err != nil {
		return nil, err
	}
	c.name = fmt.Sprintf("sluice with %d limits", len(with))
	return c, nil
}

// deciding returns a contender that decides in the given store of ours. Each key has one limit for each of the given
// tiers, with the given burst.
func deciding(store limit.Store, keys int, burst int64, with ...limit.Tier) (*contender, error) {
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
	c := &contender{keys: len(names), stride: 1, close: func() {}}
	c.spend = func(first, ops int) (admitted int, err error) {
		ctx := context.Background()
		req := request(first)
		var d limit.Decision
		var now clock.Clock
		key, stride := first, c.stride
		for range ops {
			req.Owner.Name = names[key]
			if key += stride; key >= len(names) {
				key -= len(names)
			}
			// Reading the clock is measured too, because the peers read theirs within a decision. This is the clock
			// that the gateway uses.
			if err := store.Decide(ctx, &req, now.Now(), &d); err != nil {
				return admitted, err
			}
			if d.Allowed {
				admitted++
			}
		}
		return admitted, nil
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
func goLimiter(burst uint64) (*contender, error) { return goLimiterOver(memoryKeys, burst) }

// goLimiterOver is like goLimiter, but with the given number of keys.
func goLimiterOver(keys int, burst uint64) (*contender, error) {
	store, err := memorystore.New(&memorystore.Config{Tokens: burst, Interval: time.Hour, InitialAlloc: keys})
	if err != nil {
		return nil, err
	}
	names := keyNames(keys)
	c := &contender{name: "go-limiter", keys: len(names), stride: 1}
	c.spend = func(first, ops int) (admitted int, err error) {
		ctx := context.Background()
		key, stride := first, c.stride
		for range ops {
			_, _, _, ok, err := store.Take(ctx, names[key])
			if err != nil {
				return admitted, err
			}
			if key += stride; key >= len(names) {
				key -= len(names)
			}
			if ok {
				admitted++
			}
		}
		return admitted, nil
	}
	c.spent = func(key int) (least, most int, err error) {
		tokens, remaining, err := store.Get(context.Background(), names[key])
		used := int(tokens) - int(remaining)
		return used, used, err
	}
	c.close = func() { _ = store.Close(context.Background()) } // it only ever returns nil
	return c, nil
}

// timeRate returns a contender that uses golang.org/x/time/rate, with a limiter for each key in a map, as many services
// do.
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

// compareWith compares our memory store with the given tiers and a peer, on new counters.
func compareWith(
	peer func() (*contender, error), l load, units int64, with ...limit.Tier,
) (comparison, error) {
	ours, err := sluice(units, with...)
	if err != nil {
		return comparison{}, err
	}
	theirs, err := peer()
	if err != nil {
		ours.close()
		return comparison{}, err
	}
	return compareAndClose(ours, theirs, l, 0, units)
}

// compareAndClose compares two contenders and closes them. Each uses the given number of goroutines; 0 means one for
// each core.
func compareAndClose(ours, theirs *contender, l load, workers int, units int64) (comparison, error) {
	defer ours.close()
	defer theirs.close()
	ours.workers, theirs.workers = workers, workers
	l.atOnce = workers != 1
	return compare(ours, theirs, l, int(units))
}

// memoryFigure compares our memory store with the given tiers and go-limiter's store, which has one limit. Each uses a
// goroutine for each core.
func memoryFigure(with ...limit.Tier) func(short bool) (Result, error) {
	return func(short bool) (Result, error) {
		var r Result
		if err := noAllocations(with); err != nil {
			return r, err
		}
		l := loadFor(short)
		admitted, err := compareWith(func() (*contender, error) { return goLimiter(plenty) }, l, plenty,
			with...)
		if err != nil {
			return r, err
		}
		r.Value = admitted.ratio
		r.note("all admitted, %d keys: %s", memoryKeys, admitted)
		if !with[0].Algorithm.HasBurst() {
			return r, nil
		}

		l.rounds = max(3, l.rounds/3) | 1 // what follows is only noted and not compared with a goal
		denied, err := compareWith(func() (*contender, error) { return goLimiter(scarce) }, l, scarce,
			slow[:len(with)]...)
		if err != nil {
			return r, err
		}
		r.note("%d of each key admitted, then denied: %.2f x, %s", scarce, denied.ratio, denied)
		other, err := compareWith(func() (*contender, error) { return timeRate(plenty) }, l, plenty, with...)
		if err != nil {
			return r, err
		}
		r.note("compared with x/time/rate in a map, all admitted: %.2f x, %s", other.ratio, other)
		return r, nil
	}
}

// farStride is the distance between a key and the next one that is used, so that their counters are far apart in
// memory. It is a prime number, so that every key is used.
const farStride = 368_789

// memoryKeysFigure compares our memory store with the given tiers and go-limiter's store, both with the given number of
// keys, on all cores at once. If there are many keys, the counters of two that are used one after the other are far
// apart in memory, also by the order in which they were made.
func memoryKeysFigure(keys int, with ...limit.Tier) func(short bool) (Result, error) {
	return func(short bool) (Result, error) {
		var r Result
		l := loadFor(short)
		if short {
			keys = min(keys, memoryKeys)
		}
		ours, err := sluiceOver(keys, plenty, with...)
		if err != nil {
			return r, err
		}
		theirs, err := goLimiterOver(keys, plenty)
		if err != nil {
			ours.close()
			return r, err
		}
		if keys > memoryKeys {
			ours.measuredStride, theirs.measuredStride = farStride, farStride
		}
		c, err := compareAndClose(ours, theirs, l, 0, plenty)
		if err != nil {
			return r, err
		}
		r.Value = c.ratio
		r.note("all admitted, %d keys: %s", keys, c)
		return r, nil
	}
}

// memoryBytesFigure measures by how many bytes the heap grows for each key that has the given tiers, without the bytes
// of the key's name.
func memoryBytesFigure(with ...limit.Tier) func(short bool) (Result, error) {
	return func(bool) (Result, error) {
		var r Result
		const keys = 100_000
		before := heapInUse()
		names := keyNames(keys) // each contender makes such names, too, which are not counted
		texts := heapInUse() - before
		runtime.KeepAlive(names)
		perKey := func(newContender func() (*contender, error)) (float64, error) {
			before := heapInUse()
			c, err := newContender()
			if err != nil {
				return 0, err
			}
			defer c.close()
			c.workers = 1
			_, admitted, err := c.trial(c.unit())
			if err != nil {
				return 0, err
			}
			grown := heapInUse() - before - texts
			return float64(grown) / keys, c.verify(c.unit(), admitted, plenty)
		}
		ours, err := perKey(func() (*contender, error) { return sluiceOver(keys, plenty, with...) })
		if err != nil {
			return r, err
		}
		theirs, err := perKey(func() (*contender, error) { return goLimiterOver(keys, plenty) })
		if err != nil {
			return r, err
		}
		r.Value = ours
		r.note("%d keys; go-limiter with one limit: %.0f", keys, theirs)
		return r, nil
	}
}

// heapInUse returns how many bytes the live objects take.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // the first one may leave garbage that a sweep in progress has not reached
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
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
	// Each call of spend allocates the results of one Decision, whatever the number of operations.
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
