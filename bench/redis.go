package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
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

	// redisTimeout is far longer than a deployed store waits, so that a slow call is measured as slow, and not as an
	// error.
	redisTimeout = 5 * time.Second
)

func redisConfig(addr string) redis.Config {
	return redis.Config{Addrs: []string{addr}, Deadline: redisTimeout, PoolSize: redisWorkers}
}

// redisClient returns a client with the settings of our store's client.
func redisClient(addr string) *goredis.Client {
	return goredis.NewClient(redis.Options(redisConfig(addr)))
}

// sluiceRedis returns a contender that decides in our Redis store. Each key has one limit for each of the given tiers.
func sluiceRedis(addr string, with ...limit.Tier) (*contender, error) {
	store, err := redis.New(context.Background(), redisConfig(addr))
	if err != nil {
		return nil, err
	}
	c, err := deciding(fmt.Sprintf("sluice on Redis with %d limits", len(with)), store, redisKeys, plenty, with...)
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

// redisCommands returns how many of the commands that count a Redis server has carried out, those of scripts included.
func redisCommands(client *goredis.Client, counts func(name string) bool) (sum float64, err error) {
	info, err := client.InfoMap(context.Background(), "commandstats").Result()
	if err != nil {
		return 0, err
	}
	for name, text := range info["Commandstats"] {
		var calls float64
		if _, err := fmt.Sscanf(text, "calls=%f,", &calls); err != nil {
			return 0, fmt.Errorf("INFO commandstats: %s: %w: %q", name, err, text)
		}
		if counts(strings.TrimPrefix(name, "cmdstat_")) {
			sum += calls
		}
	}
	return sum, nil
}

// exceptInfo counts every command but the one that asks for the counts.
func exceptInfo(name string) bool { return name != "info" }

// redisFigure compares a decision of our Redis store about three limits with one of redis_rate about one limit.
func redisFigure(short bool) (r Result, err error) {
	server, end, err := launchRedis()
	if err != nil {
		return r, err
	}
	defer end()
	ours, err := sluiceRedis(server.Addr, tiers[:]...)
	if err != nil {
		return r, err
	}
	c, err := compare(ours, redisRate(server.Addr, redisKeys), short)
	if err != nil {
		return r, err
	}
	r.Value = c.ratio
	r.note("%d keys, %d in parallel: %s", redisKeys, redisWorkers, c)
	return r, nil
}
