package bench

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
)

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
func leasing(store limit.Store, keys int, with ...limit.Tier) (*contender, *callCounter, error) {
	beneath := &callCounter{Store: store}
	leases, err := lease.New(lease.Config{Store: beneath})
	if err != nil {
		return nil, nil, err
	}
	c, err := deciding(leases, keys, plenty, with...)
	if err != nil {
		return nil, nil, err
	}
	c.name = fmt.Sprintf("sluice by leases of %d limits", len(with))
	used := c.spent
	c.spent = func(key int) (least, most int, err error) { // the store also counts units of leases that ended unspent
		_, most, err = used(key)
		return 0, most, err
	}
	c.close = func() { _ = leases.Close(context.Background()) } // nobody needs units that cannot be given back
	return c, beneath, nil
}

// redisHotFigure measures decisions per second of one key from leases on Redis, as a multiple of those of redis_rate.
// The calls for leases are included.
func redisHotFigure(short bool) (Result, error) {
	var r Result
	server, end, err := launchRedis()
	if err != nil {
		return r, err
	}
	defer end()
	store, err := redis.New(context.Background(), redis.Config{Addrs: []string{server.Addr}, Deadline: redisTimeout,
		PoolSize: redisWorkers})
	if err != nil {
		return r, err
	}
	defer func() { _ = store.Close() }()
	ours, beneath, err := leasing(store, 1, tiers[0])
	if err != nil {
		return r, err
	}
	defer ours.close()
	ours.workers = redisWorkers
	theirs := redisRate(server.Addr, 1)
	defer theirs.close()
	began := time.Now()
	c, err := compare(ours, theirs, loadFor(short), plenty)
	if err != nil {
		return r, err
	}
	if beneath.calls.Load() < 2 {
		return r, fmt.Errorf("%d calls for leases: the decisions were not made from leases", beneath.calls.Load())
	}
	r.Value = 1 / c.ratio
	r.note("one key, %d in parallel: %.0f ns against %.0f ns per decision, middle half of the rounds %.0f to %.0f x",
		redisWorkers, c.ours, c.theirs, 1/c.high, 1/c.low)
	r.note("%d calls for leases in %.1f s", beneath.calls.Load(), time.Since(began).Seconds())
	for _, c := range []*contender{ours, theirs} {
		decisions := loadFor(short).decisions()
		if c == ours {
			decisions *= 100 // so many that some of them need calls for leases
		}
		usage, err := usageOf(server.Addr, c, decisions)
		if err != nil {
			return r, err
		}
		r.note("%s, per decision: %s", c.name, usage)
	}
	return r, nil
}

// busyKeys is the number of keys in the load that the figure is about: a process that is busy with some keys.
const busyKeys = 100

// leaseLocalFigure measures the time of a decision from leases over three limits, as a multiple of that of the memory
// store over the same limits.
func leaseLocalFigure(short bool) (Result, error) {
	var r Result
	if err := noLeaseAllocations(); err != nil {
		return r, err
	}
	for _, keys := range []int{busyKeys, 1, memoryKeys} {
		c, beneath, err := leasedAgainstMemory(keys, loadFor(short))
		if err != nil {
			return r, err
		}
		if keys == busyKeys {
			r.Value = c.ratio
		}
		r.note("%d keys, 0 allocations: %.2f x, %s; %d calls for leases", keys, c.ratio, c, beneath.calls.Load())
	}
	return r, nil
}

func leasedAgainstMemory(keys int, l load) (c comparison, beneath *callCounter, err error) {
	var pair [2]limit.Store
	for i := range pair {
		if pair[i], err = memory.New(memory.Config{}); err != nil {
			return c, nil, err
		}
	}
	ours, beneath, err := leasing(pair[0], keys, tiers[:]...)
	if err != nil {
		return c, nil, err
	}
	defer ours.close()
	theirs, err := deciding(pair[1], keys, plenty, tiers[:]...)
	if err != nil {
		return c, nil, err
	}
	theirs.name = "memory store"
	if c, err = compare(ours, theirs, l, plenty); err == nil && beneath.calls.Load() < int64(keys) {
		err = fmt.Errorf("%d calls for leases of %d keys: the decisions were not made from leases",
			beneath.calls.Load(), keys)
	}
	return c, beneath, err
}

// noLeaseAllocations checks that a decision from leases over three limits allocates nothing and makes no call.
func noLeaseAllocations() error {
	store, err := memory.New(memory.Config{})
	if err != nil {
		return err
	}
	c, beneath, err := leasing(store, 1, tiers[:]...)
	if err != nil {
		return err
	}
	defer c.close()
	if _, err := c.spend(0, 100_000); err != nil { // gets leases
		return err
	}
	const ops = 1000
	var failed error
	var calls int64
	admitted, perCall := 0, math.Inf(1)
	// A call for the next lease allocates, and can happen at any time. Therefore the least of some runs counts.
	for try := 0; try < 5 && failed == nil && perCall/ops >= 0.01; try++ {
		before := beneath.calls.Load()
		admitted = 0
		// spend itself makes one Decision's results per call, whatever the number of operations.
		perCall = min(perCall, testing.AllocsPerRun(10, func() {
			n, err := c.spend(0, ops)
			admitted += n
			if err != nil {
				failed = err
			}
		}))
		calls = beneath.calls.Load() - before
	}
	switch {
	case failed != nil:
		return failed
	case admitted != 11*ops: // AllocsPerRun makes one run more, which it does not count
		return fmt.Errorf("%s: %d of %d admitted", c.name, admitted, 11*ops)
	case calls > 11:
		return fmt.Errorf("%s: %d calls in %d decisions: the decisions were not made from leases",
			c.name, calls, 11*ops)
	case perCall/ops >= 0.01:
		return fmt.Errorf("%s: %.2f allocations per decision, want 0", c.name, perCall/ops)
	}
	return nil
}
