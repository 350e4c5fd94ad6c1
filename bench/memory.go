package bench

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"time"

	"github.com/sethvargo/go-limiter/memorystore"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
)

const (
	memoryKeys = 10_000
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

// sluice returns a contender that decides in our memory store. Each key has one limit for each of the given tiers, with
// the given burst.
func sluice(keys int, burst int64, with ...limit.Tier) (*contender, error) {
	store, err := memory.New(memory.Config{MaxBytes: 1 << 30})
	if err != nil {
		return nil, err
	}
	return deciding(fmt.Sprintf("sluice with %d limits", len(with)), store, keys, burst, with...)
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
		name: "go-limiter", keys: keys,
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

// farStride is the distance between a key and the next one that is used, if there are many keys: their counters are
// then far apart in memory. It is a prime number, so that every key is used.
const farStride = 368_789

// memoryFigure compares our memory store with the given tiers and go-limiter's store, which has one limit, both with
// the given number of keys, on all cores at once.
func memoryFigure(keys int, with ...limit.Tier) func(short bool) (Result, error) {
	return func(short bool) (r Result, err error) {
		keys := keys
		if short {
			keys = min(keys, memoryKeys)
		}
		ours, err := sluice(memoryKeys, plenty, with...)
		if err == nil {
			err = ours.allocatesNothing(ours.unit())
		}
		if err != nil {
			return r, err
		}
		if ours, err = sluice(keys, plenty, with...); err != nil {
			return r, err
		}
		theirs, err := goLimiter(keys, plenty)
		if err != nil {
			return r, err
		}
		if keys > memoryKeys {
			ours.stride, theirs.stride = farStride, farStride
		}
		c, err := compare(ours, theirs, short)
		if err != nil {
			return r, err
		}
		r.Value = c.ratio
		r.note("all admitted, 0 allocations, %d keys: %s", keys, c)
		return r, nil
	}
}

// memoryBytesFigure measures by how many bytes the heap grows for each key that has one token bucket, without the bytes
// of the key's name.
func memoryBytesFigure(bool) (r Result, err error) {
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
		if _, err := c.trial(c.unit()); err != nil {
			return 0, err
		}
		grown := heapInUse() - before - texts
		return float64(grown) / keys, c.verify(plenty)
	}
	if r.Value, err = perKey(func() (*contender, error) { return sluice(keys, plenty, tiers[0]) }); err != nil {
		return r, err
	}
	theirs, err := perKey(func() (*contender, error) { return goLimiter(keys, plenty) })
	r.note("%d keys; go-limiter with one limit: %.0f", keys, theirs)
	return r, err
}

// heapInUse returns how many bytes the live objects take.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // the first one may leave garbage that a sweep in progress has not reached
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
