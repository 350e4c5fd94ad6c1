package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

const (
	redisKeys    = 1000
	redisWorkers = 8 // goroutines, each with a connection
	redisTimeout = 5 * time.Second
	redisUnits   = 1_000_000_000
)

// redisClient returns a client with the settings of our store's client.
func redisClient(addr string) *goredis.Client {
	return goredis.NewClient(redis.Options(redis.Config{Addrs: []string{addr}, Deadline: redisTimeout,
		PoolSize: redisWorkers}))
}

// sluiceRedis returns a contender that decides in our Redis store. Each key has one limit for each of the given tiers.
func sluiceRedis(addr string, with ...limit.Tier) (*contender, error) {
	store, err := redis.New(context.Background(), redis.Config{Addrs: []string{addr}, Deadline: redisTimeout,
		PoolSize: redisWorkers})
	if err != nil {
		return nil, err
	}
	c, err := deciding(store, redisKeys, redisUnits, with...)
	if err != nil {
		return nil, err
	}
	c.name = fmt.Sprintf("sluice on Redis with %d limits", len(with))
	c.workers = redisWorkers
	c.close = func() { _ = store.Close() }
	return c, nil
}

// redisRate returns a contender that uses github.com/go-redis/redis_rate, with one limit for each key.
func redisRate(addr string, keys int) *contender {
	client := redisClient(addr)
	limiter := redis_rate.NewLimiter(client)
	rule := redis_rate.Limit{Rate: 10, Period: time.Second, Burst: redisUnits}
	names, began := keyNames(keys), time.Now()
	return &contender{
		name:    "redis_rate",
		keys:    len(names),
		workers: redisWorkers,
		spend: func(first, ops int) (admitted int, err error) {
			ctx := context.Background()
			key := first
			for range ops {
				r, err := limiter.Allow(ctx, names[key], rule)
				if err != nil {
					return admitted, err
				}
				admitted += r.Allowed
				if key++; key == len(names) {
					key = 0
				}
			}
			return admitted, nil
		},
		spent: func(key int) (least, most int, err error) {
			r, err := limiter.AllowN(context.Background(), names[key], rule, 0)
			if err != nil {
				return 0, 0, err
			}
			used := redisUnits - r.Remaining
			// It counts in floating-point seconds, so it may be wrong by a few units at 10 units per second.
			return used - 3, used + 3 + int(math.Ceil(time.Since(began).Seconds()*float64(rule.Rate))), nil
		},
		close: func() { _ = client.Close() },
	}
}

// launchRedis starts a Redis server, which runs until end is called.
func launchRedis() (server *redistest.Server, end func(), err error) {
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return nil, nil, err
	}
	if server, err = redistest.Launch(dir); err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	return server, func() {
		server.Kill()
		_ = os.RemoveAll(dir) // if this fails, the system deletes it with its other temporary files
	}, nil
}

// redisFigure compares a decision of our Redis store about three limits with one of redis_rate about one limit.
func redisFigure(short bool) (Result, error) {
	var r Result
	server, end, err := launchRedis()
	if err != nil {
		return r, err
	}
	defer end()
	ours, err := sluiceRedis(server.Addr, tiers[:]...)
	if err != nil {
		return r, err
	}
	defer ours.close()
	theirs := redisRate(server.Addr, redisKeys)
	defer theirs.close()
	c, err := compare(ours, theirs, loadFor(short), redisUnits)
	if err != nil {
		return r, err
	}
	r.Value = c.ratio
	r.note("%d keys, %d in parallel: %s", redisKeys, redisWorkers, c)
	for _, c := range []*contender{ours, theirs} {
		perOp, err := allocations(c)
		if err != nil {
			return r, err
		}
		usec, err := serverTime(server.Addr, c)
		if err != nil {
			return r, err
		}
		usage, err := usageOf(server.Addr, c, loadFor(short).decisions())
		if err != nil {
			return r, err
		}
		r.note("%s: %.0f allocations per decision, %.2f µs in the script", c.name, perOp, usec)
		r.note("%s, per decision: %s", c.name, usage)
	}
	return r, nil
}

// allocations returns the number of allocations for one decision on counters that exist.
func allocations(c *contender) (float64, error) {
	const ops = 1000
	var failed error
	perCall := testing.AllocsPerRun(5, func() {
		if _, err := c.spend(0, ops); err != nil {
			failed = err
		}
	})
	return perCall / ops, failed
}

// serverTime returns how many µs one script takes, as the server reports it. It is the least of several runs, because
// other programs use the machine, too.
func serverTime(addr string, c *contender) (float64, error) {
	client := redisClient(addr)
	defer func() { _ = client.Close() }()
	ctx := context.Background()
	least := math.MaxFloat64
	for range 20 {
		if err := client.ConfigResetStat(ctx).Err(); err != nil {
			return 0, err
		}
		if _, err := c.spend(0, 500); err != nil {
			return 0, err
		}
		info, err := client.InfoMap(ctx, "commandstats").Result()
		if err != nil {
			return 0, err
		}
		var calls, usec int64
		var perCall float64
		if _, err := fmt.Sscanf(info["Commandstats"]["cmdstat_evalsha"], "calls=%d,usec=%d,usec_per_call=%f", &calls,
			&usec, &perCall); err != nil {
			return 0, fmt.Errorf("INFO commandstats: %w: %v", err,
				strconv.Quote(info["Commandstats"]["cmdstat_evalsha"]))
		}
		least = min(least, perCall)
	}
	return least, nil
}
