package bench

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
)

// leasedTiers are three token buckets with a rate per second, per minute and per hour. Of each, so many units come free
// that they are leased.
var leasedTiers = [...]limit.Tier{
	{Algorithm: limit.TokenBucket, Period: time.Second, Threshold: 10},
	{Algorithm: limit.TokenBucket, Period: time.Minute, Threshold: 1200},
	{Algorithm: limit.TokenBucket, Period: time.Hour, Threshold: 100_000},
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
func leasing(store limit.Store, keys int, with ...limit.Tier) (*contender, *callCounter, error) {
	beneath := &callCounter{Store: store}
	leases, err := lease.New(lease.Config{Store: beneath})
	if err != nil {
		return nil, nil, err
	}
	c, err := deciding(fmt.Sprintf("sluice by leases of %d limits", len(with)), leases, keys, plenty, with...)
	if err != nil {
		return nil, nil, err
	}
	used := c.spent
	c.spent = func(key int) (least, most int, err error) { // the store also counts units of leases that ended unspent
		_, most, err = used(key)
		return 0, most, err
	}
	c.close = func() { _ = leases.Close(context.Background()) } // nobody needs units that cannot be given back
	return c, beneath, nil
}

// leased returns an error if a comparison's decisions were not made from leases: then every decision was a call.
func (a *callCounter) leased(c *contender) error {
	if calls := a.calls.Load(); calls < int64(c.keys) || calls > int64(c.total)/2 {
		return fmt.Errorf("%d calls for leases of %d keys in %d decisions: the decisions were not made from leases",
			calls, c.keys, c.total)
	}
	return nil
}

// redisHotFigure measures decisions per second of one key from leases on Redis, as a multiple of those of redis_rate.
// The calls for leases are included.
func redisHotFigure(short bool) (r Result, err error) {
	server, end, err := launchRedis()
	if err != nil {
		return r, err
	}
	defer end()
	store, err := redis.New(context.Background(), redisConfig(server.Addr))
	if err != nil {
		return r, err
	}
	defer func() { _ = store.Close() }()
	ours, beneath, err := leasing(store, 1, tiers[0])
	if err != nil {
		return r, err
	}
	ours.workers = redisWorkers
	c, err := compare(ours, redisRate(server.Addr, 1), short)
	if err == nil {
		err = beneath.leased(ours)
	}
	if err != nil {
		return r, err
	}
	r.Value = 1 / c.ratio
	r.note("one key, %d in parallel, %d calls for leases: %s", redisWorkers, beneath.calls.Load(), c)
	return r, nil
}

// busyKeys is the number of keys in the load that the figure is about: a process that is busy with some keys.
const busyKeys = 100

// leaseLocalFigure measures the time of a decision from leases over three limits, as a multiple of that of the memory
// store over the same limits.
func leaseLocalFigure(short bool) (r Result, err error) {
	store, err := memory.New(memory.Config{})
	if err != nil {
		return r, err
	}
	one, _, err := leasing(store, 1, leasedTiers[:]...)
	if err == nil {
		err = one.allocatesNothing(100_000)
	}
	if err != nil {
		return r, err
	}
	for _, keys := range []int{busyKeys, 1, memoryKeys} {
		store, err := memory.New(memory.Config{})
		if err != nil {
			return r, err
		}
		ours, beneath, err := leasing(store, keys, leasedTiers[:]...)
		if err != nil {
			return r, err
		}
		theirs, err := sluice(keys, plenty, leasedTiers[:]...)
		if err != nil {
			return r, err
		}
		c, err := compare(ours, theirs, short)
		if err == nil {
			err = beneath.leased(ours)
		}
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
