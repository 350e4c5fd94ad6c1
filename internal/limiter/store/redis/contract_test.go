package redis_test

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// contract runs the contract suite on a server or cluster.
func contract(t *testing.T, c redis.Config) {
	connect := func(tb testing.TB, space string) limit.Store {
		s := openAt(tb, c)
		s.SetSpace(space)
		return s
	}
	config := limittest.Config{
		New: func(tb testing.TB) limit.Store { return connect(tb, newSpace()) },
		Peer: func(tb testing.TB, s limit.Store) limit.Store {
			return connect(tb, s.(*redis.Store).Space())
		},
		// The store decides by the time that the test passes: the test has times of its own, not those of the server.
		SetClock:   func(limit.Store, time.Time) {},
		Seed:       uint64(time.Now().UnixNano()),
		Leases:     true,
		Goroutines: 16, // four for each handle, which ask for more than there is
		Scripts:    soak.Times(map[bool]int{true: 15, false: 120}[c.Cluster]),
		Repeats:    soak.Times(map[bool]int{true: 20, false: 100}[c.Cluster]),
	}
	limittest.RunStoreContract(t, config)
	t.Run("while time passes", func(t *testing.T) {
		config.SetClock = nil
		for _, f := range limittest.Record(t, config, "concurrent requests stay within the bound while time passes") {
			t.Error(f)
		}
	})
}

func TestContract(t *testing.T) { contract(t, redis.Config{Addrs: []string{address(t)}}) }

func TestContractCluster(t *testing.T) {
	t.Parallel() // it first waits seconds for its cluster
	contract(t, redis.Config{Addrs: redistest.Addrs(redistest.StartCluster(t)), Cluster: true})
}
