package redis_test

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// Guarantees that a slot that moves to another node while its counters are charged takes their counts along. Decisions
// meanwhile are right or an error, and none is made twice.
func TestSlotMigration(t *testing.T) {
	t.Parallel() // it first waits seconds for its cluster
	servers := redistest.StartCluster(t)
	s := open(t, redis.Config{Addrs: redistest.Addrs(servers), Cluster: true})
	charges := threeCharges(t)
	// a second pack
	charges = append(charges, limit.Charge{Cost: 1, Value: limit.ValueOf("GET /"),
		Limit: build(t, limit.Limit{ID: "route", Per: "endpoint",
			Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 1 << 30, Period: limit.MaxPeriod}}})})
	if _, err := decideOnce(t, s, charges); err != nil {
		t.Fatal(err)
	}
	var admitted, failed atomic.Int64
	admitted.Add(1)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var d limit.Decision
			for {
				select {
				case <-stop:
					return
				default:
				}
				err := s.Decide(t.Context(), &limit.Request{Owner: acme, Charges: charges}, time.Now(), &d)
				switch {
				case err != nil:
					failed.Add(1)
				case d.Allowed:
					admitted.Add(1)
				case admitted.Load() < 900:
					t.Errorf("a request is denied after %d were admitted, although units are left", admitted.Load())
				}
			}
		})
	}
	m := migration{TB: t, servers: servers, slot: slotOf(t, servers[0].Client(t), "{rl:t4:acme,}")}
	for range 3 { // through all nodes of the cluster
		m.move()
	}
	close(stop)
	wg.Wait()
	var d limit.Decision
	if err := s.Peek(t.Context(), &limit.Request{Owner: acme, Charges: charges}, time.Now(), &d); err != nil {
		t.Fatal(err)
	}
	counted := (1<<30 - d.Results[3].Remaining())
	if a, f := admitted.Load(), failed.Load(); a > 1000 || counted < a || counted > a+f {
		t.Errorf("%d admitted, %d failed, %d counted; want admitted ≤ counted ≤ admitted + failed, and at most 1,000",
			a, f, counted)
	}
	t.Logf("%d admitted, %d errors while the slot moved three times", admitted.Load(), failed.Load())
}

// Guarantees that a node of a cluster that is used as a single server returns an error that says what to do.
func TestClusterWithoutClusterMode(t *testing.T) {
	t.Parallel() // it first waits seconds for its cluster
	servers := redistest.StartCluster(t)
	charges, refused := threeCharges(t), 0
	for _, server := range servers {
		s := open(t, redis.Config{Addrs: []string{server.Addr}})
		var d limit.Decision
		if err := s.Decide(t.Context(), &limit.Request{Owner: acme, Charges: charges}, time.Now(), &d); err != nil {
			refused++
			if want := "use cluster mode"; !contains(err, want) {
				t.Errorf("%v, want an error with %q", err, want)
			}
		}
	}
	if refused != len(servers)-1 {
		t.Errorf("%d of %d nodes refuse, want all but the one that has the slot", refused, len(servers))
	}
}

func slotOf(tb testing.TB, c *goredis.Client, key string) int64 {
	tb.Helper()
	slot, err := c.ClusterKeySlot(tb.Context(), key).Result()
	if err != nil {
		tb.Fatal(err)
	}
	return slot
}

// migration moves a slot from node to node, as operators' tools do.
type migration struct {
	testing.TB
	servers []*redistest.Server
	slot    int64
}

func (m *migration) do(s *redistest.Server, args ...any) any {
	m.Helper()
	v, err := s.Client(m).Do(m.Context(), args...).Result()
	if err != nil {
		m.Fatalf("%v at %s: %v", args, s.Addr, err)
	}
	return v
}

func (m *migration) id(s *redistest.Server) string { return fmt.Sprint(m.do(s, "CLUSTER", "MYID")) }

func (m *migration) move() {
	m.Helper()
	from := 0
	for i, s := range m.servers { // the owner of the slot returns its keys, the other nodes none
		if keys, ok := m.do(s, "CLUSTER", "GETKEYSINSLOT", m.slot, 100).([]any); ok && len(keys) > 0 {
			from = i
		}
	}
	a, b := m.servers[from], m.servers[(from+1)%len(m.servers)]
	m.do(b, "CLUSTER", "SETSLOT", m.slot, "IMPORTING", m.id(a))
	m.do(a, "CLUSTER", "SETSLOT", m.slot, "MIGRATING", m.id(b))
	host, port, _ := net.SplitHostPort(b.Addr)
	for {
		keys, _ := m.do(a, "CLUSTER", "GETKEYSINSLOT", m.slot, 1).([]any)
		if len(keys) == 0 {
			break
		}
		m.do(a, "MIGRATE", host, port, keys[0], 0, 5000)
	}
	id := m.id(b)
	for _, s := range []*redistest.Server{b, a, m.servers[(from+2)%len(m.servers)]} {
		m.do(s, "CLUSTER", "SETSLOT", m.slot, "NODE", id)
	}
}
