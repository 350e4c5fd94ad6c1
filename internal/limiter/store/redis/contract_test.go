package redis_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// contract runs the contract suite on a server or cluster, with the generated scripts and, where there is none for a
// request, with decide.lua. On a server it runs the suite once more with decide.lua alone: both must decide alike.
func contract(t *testing.T, c redis.Config) {
	for _, way := range []struct {
		name    string
		general bool
	}{{"shapes", false}, {"general", true}} {
		if c.Cluster && way.general { // the scripts are the same on a cluster
			continue
		}
		t.Run(way.name, func(t *testing.T) {
			var shaped, general atomic.Int64
			connect := func(tb testing.TB, space string) limit.Store {
				s := openAt(tb, c)
				s.SetSpace(space)
				if way.general {
					s.GeneralOnly()
				}
				s.OnAnswer(func(g bool) {
					if g {
						general.Add(1)
					} else {
						shaped.Add(1)
					}
				})
				return s
			}
			config := limittest.Config{
				New: func(tb testing.TB) limit.Store { return connect(tb, newSpace()) },
				Peer: func(tb testing.TB, s limit.Store) limit.Store {
					return connect(tb, s.(*redis.Store).Space())
				},
				// the callers' clock is that of the test, whose times are below 2^53 µs
				SetClock:   func(limit.Store, time.Time) {},
				Seed:       uint64(time.Now().UnixNano()),
				Leases:     true,
				Goroutines: 16, // four for each handle, which ask for more than there is
				// with another seed each time; both ways use the same scripts
				Scripts: soak.Times(map[bool]int{true: 15, false: 60}[c.Cluster]),
				Repeats: soak.Times(map[bool]int{true: 20, false: 50}[c.Cluster]),
			}
			limittest.RunStoreContract(t, config)
			t.Run("while time passes", func(t *testing.T) {
				config.SetClock = nil
				for _, f := range limittest.Record(t, config,
					"concurrent requests stay within the bound while time passes") {
					t.Error(f)
				}
			})
			if soak.RaceEnabled {
				return // only few cases ran
			}
			if s, g := shaped.Load(), general.Load(); g == 0 || (s == 0) != way.general {
				t.Errorf("scripts of shapes answered %d times and decide.lua %d times: one of the two was not tested",
					s,
					g)
			}
		})
	}
}

func TestContract(t *testing.T) { contract(t, redis.Config{Addrs: []string{address(t)}}) }

func TestContractCluster(t *testing.T) {
	t.Parallel() // it first waits seconds for its cluster
	contract(t, redis.Config{Addrs: redistest.Addrs(redistest.StartCluster(t)), Cluster: true})
}
