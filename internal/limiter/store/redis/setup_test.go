package redis_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// patient is a time limit that is not reached even on a busy machine, for tests that are not about time limits.
const patient = 20 * time.Second

// open returns a store that is connected to the address.
func open(tb testing.TB, c redis.Config) *redis.Store {
	tb.Helper()
	if c.Deadline == 0 {
		c.Deadline = patient
	}
	s, err := redis.New(context.Background(), c)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

// openAt is like open, for a store that uses the times that the test gives.
func openAt(tb testing.TB, c redis.Config) *redis.Store {
	tb.Helper()
	s := open(tb, c)
	s.UseCallerClock()
	return s
}

// address returns the address of the server in SLUICE_REDIS, or of a server that is started for tb.
func address(tb testing.TB) string {
	tb.Helper()
	if addr := os.Getenv("SLUICE_REDIS"); addr != "" {
		return addr
	}
	return redistest.Start(tb).Addr
}

var spaces atomic.Int64

// newSpace separates the counters of a test from all others, whatever the server holds.
func newSpace() string { return fmt.Sprintf("%d.%d.", os.Getpid(), spaces.Add(1)) }

var build = limittest.MustNew

func contains(err error, text string) bool { return err != nil && strings.Contains(err.Error(), text) }
