package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

const (
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

// redisInfo returns the sum of some fields of a section of INFO.
func redisInfo(client *goredis.Client, section string, fields ...string) (sum float64, err error) {
	info, err := client.InfoMap(context.Background(), section).Result()
	if err != nil {
		return 0, err
	}
	for _, values := range info {
		for _, field := range fields {
			value, err := strconv.ParseFloat(values[field], 64)
			if err != nil {
				return 0, fmt.Errorf("INFO %s: %s: %w", section, field, err)
			}
			sum += value
		}
	}
	return sum, nil
}
