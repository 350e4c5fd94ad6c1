package redis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// threeCharges returns charges of one unit of 1,000. The units do not become free again while a test runs.
func threeCharges(tb testing.TB) []limit.Charge {
	tb.Helper()
	var charges []limit.Charge
	for _, a := range []limit.Algorithm{limit.TokenBucket, limit.FixedWindow, limit.SlidingWindow} {
		t := limit.Tier{Algorithm: a, Threshold: 1000, Period: limit.MaxPeriod}
		if a == limit.TokenBucket {
			t.Threshold, t.Burst, t.Period = 1, 1000, 24*time.Hour
		}
		charges = append(charges, limit.Charge{Limit: build(tb, limit.Limit{ID: a.String(), Tiers: []limit.Tier{t}}),
			Cost: 1})
	}
	return charges
}

// decideOnce makes one decision and returns what remains of the limit with the fewest units, or -1 after an error.
func decideOnce(tb testing.TB, s *redis.Store, charges []limit.Charge) (int64, error) {
	tb.Helper()
	var d limit.Decision
	if err := s.Decide(tb.Context(), &limit.Request{Owner: acme, Charges: charges}, time.Now(), &d); err != nil {
		if d.Allowed || len(d.Results) > 0 {
			tb.Errorf("after an error the decision has an outcome, want none: %+v", d)
		}
		return -1, err
	}
	if !d.Allowed {
		tb.Errorf("a request is denied, although %d units remain", d.Results[0].Remaining())
	}
	return d.Results[0].Remaining(), nil
}

// recovers waits until the store decides again, and returns what remains then.
func recovers(tb testing.TB, s *redis.Store, charges []limit.Charge) int64 {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patient)
	defer cancel()
	left := int64(-1)
	err := redistest.Until(ctx, func() (err error) {
		left, err = decideOnce(tb, s, charges)
		return err
	})
	if err != nil {
		tb.Fatalf("the store does not decide again: %v", err)
	}
	return left
}

// Guarantees that a server that dies makes decisions fail with errors, and that one that comes back empty is used at
// once.
func TestKillAndRestart(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, redis.Config{Addrs: []string{server.Addr}, Deadline: time.Second})
	charges := threeCharges(t)
	for i := range int64(5) {
		if left, err := decideOnce(t, s, charges); err != nil || left != 999-i {
			t.Fatalf("charge %d: %d left, %v; want %d", i+1, left, err, 999-i)
		}
	}
	server.Kill()
	if _, err := decideOnce(t, s, charges); err == nil {
		t.Fatal("a decision with a server that has ended returns no error, want one")
	}
	if err := s.Ping(t.Context()); err == nil {
		t.Error("Ping of a server that has ended returns no error, want one")
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	if left := recovers(t, s, charges); left != 999 {
		t.Errorf("after a restart %d are left, want 999: it comes back empty", left)
	}
}

// Guarantees that a server that has lost its scripts gets them again, and counts each charge once.
func TestScriptFlush(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, redis.Config{Addrs: []string{server.Addr}})
	admin, charges := server.Client(t), threeCharges(t)
	for i := range int64(20) {
		if err := admin.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		if left, err := decideOnce(t, s, charges); err != nil || left != 999-i {
			t.Fatalf("charge %d after SCRIPT FLUSH: %d left, %v; want %d", i+1, left, err, 999-i)
		}
	}
}

// Guarantees that a replica is never used: its data is old, and its changes are lost.
func TestReplicaRefused(t *testing.T) {
	primary, replica := redistest.Start(t), redistest.Start(t)
	host, port, _ := net.SplitHostPort(primary.Addr)
	if err := replica.Client(t).ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	s, err := redis.New(t.Context(), redis.Config{Addrs: []string{replica.Addr}})
	if !errors.Is(err, redis.ErrReplica) || !strings.Contains(fmt.Sprint(err), replica.Addr) {
		t.Errorf("New at a replica: %v, want ErrReplica that names %s", err, replica.Addr)
	}
	if s != nil {
		_ = s.Close()
	}
}

// Guarantees that a primary that is demoted refuses charges and peeks, and that a promoted one continues with its data.
func TestFailover(t *testing.T) {
	a, b := redistest.Start(t), redistest.Start(t)
	adminA, adminB := a.Client(t), b.Client(t)
	host, port, _ := net.SplitHostPort(a.Addr)
	follow(t, adminB, host, port)
	sa := open(t, redis.Config{Addrs: []string{a.Addr}, Deadline: time.Second})
	charges := threeCharges(t)
	for range 10 {
		if _, err := decideOnce(t, sa, charges); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := adminA.Wait(t.Context(), 1, patient).Result(); n != 1 || err != nil {
		t.Fatalf("WAIT: %d replicas have the data, %v; want one", n, err)
	}
	if err := adminB.ReplicaOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	hostB, portB, _ := net.SplitHostPort(b.Addr)
	follow(t, adminA, hostB, portB)
	// First on the old connections, and then on new ones.
	for i := range 3 {
		if _, err := decideOnce(t, sa, charges); !errors.Is(err, redis.ErrReplica) {
			t.Errorf("charge %d at a demoted server: %v, want ErrReplica", i+1, err)
		}
		var d limit.Decision
		if err := sa.Peek(t.Context(), &limit.Request{Owner: acme, Charges: charges}, time.Now(), &d); !errors.Is(err,
			redis.ErrReplica) {
			t.Errorf("peek %d at a demoted server: %v, want ErrReplica", i+1, err)
		}
	}
	sb := open(t, redis.Config{Addrs: []string{b.Addr}})
	if left, err := decideOnce(t, sb, charges); err != nil || left != 989 {
		t.Errorf("at the promoted server %d are left, %v; want 989", left, err)
	}
	if n, err := adminB.Wait(t.Context(), 1, patient).Result(); n != 1 || err != nil {
		t.Fatalf("WAIT: %d replicas have the data, %v; want one", n, err)
	}
	if err := adminA.ReplicaOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	if left := recovers(t, sa, charges); left != 988 {
		t.Errorf("at the server that is a primary again %d are left, want 988", left)
	}
}

func follow(tb testing.TB, c *goredis.Client, host, port string) {
	tb.Helper()
	if err := c.ReplicaOf(tb.Context(), host, port).Err(); err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), patient)
	defer cancel()
	err := redistest.Until(ctx, func() error {
		info, err := c.Info(ctx, "replication").Result()
		if err == nil && !strings.Contains(info, "master_link_status:up") {
			err = errors.New("the replica does not have all data yet")
		}
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// Guarantees that a charge whose reply is lost is an error and is not sent again. What is counted is at least what was
// admitted, and never more than was requested: units are lost, and never granted twice.
func TestLostReply(t *testing.T) {
	server := redistest.Start(t)
	p := newProxy(t, server.Addr)
	s := open(t, redis.Config{Addrs: []string{p.addr}, Deadline: time.Second})
	charges := threeCharges(t)
	// Afterwards the server knows both scripts, that of the first use of a pack and that of others, and the pool has a
	// connection.
	for range 2 {
		if _, err := decideOnce(t, s, charges); err != nil {
			t.Fatal(err)
		}
	}
	asked, admitted := int64(2), int64(2)
	for _, cut := range []int64{0, 1, 5, 20, 60} {
		p.cut.Store(cut)
		asked++
		if _, err := decideOnce(t, s, charges); err == nil {
			t.Errorf("a reply that is cut off after %d bytes is accepted, want an error", cut)
		}
		p.cut.Store(-1)
		asked++
		recovers(t, s, charges)
		admitted++
	}
	direct := open(t, redis.Config{Addrs: []string{server.Addr}})
	left, err := decideOnce(t, direct, charges)
	if err != nil {
		t.Fatal(err)
	}
	if counted := 999 - left; counted != asked || counted < admitted {
		t.Errorf("%d charges were sent, %d admitted, %d counted; want each that was sent counted once", asked,
			admitted, counted)
	}
}

// Guarantees that with random resets of connections no more is admitted than the limit allows, whatever is lost.
func TestLostRepliesNeverOver(t *testing.T) {
	server := redistest.Start(t)
	p := newProxy(t, server.Addr)
	s := open(t, redis.Config{Addrs: []string{p.addr}, Deadline: time.Second, PoolSize: 8})
	charges := threeCharges(t)
	stop := make(chan struct{})
	var disturb, wg sync.WaitGroup
	disturb.Go(func() {
		tick := time.NewTicker(3 * time.Millisecond)
		defer tick.Stop()
		for i := int64(0); ; i++ {
			select {
			case <-stop:
				p.cut.Store(-1)
				return
			case <-tick.C:
				p.cut.Store(i%4*9 - 1) // -1: the whole reply passes
			}
		}
	})
	var admitted, failed atomic.Int64
	// a pool that has lost all connections fails every call for a second
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for range 8 {
		wg.Go(func() {
			var d limit.Decision
			for n := 0; n < 400 || (admitted.Load() == 0 || failed.Load() == 0) && ctx.Err() == nil; n++ {
				err := s.Decide(t.Context(), &limit.Request{Owner: acme, Charges: charges}, time.Now(), &d)
				switch {
				case err != nil:
					failed.Add(1)
				case d.Allowed:
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	disturb.Wait()
	if failed.Load() == 0 || admitted.Load() == 0 {
		t.Fatalf("%d failed and %d were admitted: the test shows nothing", failed.Load(), admitted.Load())
	}
	var d limit.Decision
	if err := open(t, redis.Config{Addrs: []string{server.Addr}}).Peek(t.Context(),
		&limit.Request{Owner: acme, Charges: charges}, time.Now(), &d); err != nil {
		t.Fatal(err)
	}
	counted := 1000 - d.Results[0].Remaining()
	if a, f := admitted.Load(), failed.Load(); a > 1000 || counted < a || counted > a+f {
		t.Errorf("%d admitted, %d failed, %d counted; want admitted ≤ counted ≤ admitted + failed, at most 1,000", a,
			f, counted)
	}
}

// Guarantees that a server that hangs delays a decision until its deadline and no longer, and is used again when it is
// back.
func TestPause(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, redis.Config{Addrs: []string{server.Addr}, Deadline: 50 * time.Millisecond})
	charges := threeCharges(t)
	recovers(t, s, charges)
	if err := server.Client(t).Do(t.Context(), "CLIENT", "PAUSE", "700").Err(); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		began := time.Now()
		_, err := decideOnce(t, s, charges)
		if err == nil {
			t.Fatalf("decision %d at a paused server returns no error, want one", i+1)
		}
		if took := time.Since(began); took > 500*time.Millisecond { // with some extra time for a busy machine
			t.Errorf("decision %d took %s, want about 50ms", i+1, took)
		}
	}
	left := recovers(t, s, charges)
	if left < 1000-8-100 || left > 1000-2 {
		t.Errorf("%d are left after a pause, want every charge counted at most once", left)
	}
}

// Guarantees that the first decision ends in time, too, if no server is at the address.
func TestUnreachable(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections, and sends nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for name, addr := range map[string]string{"silent": silent.Addr().String(), "closed": fmt.Sprintf("127.0.0.1:%d",
		redistest.FreePort(t))} {
		t.Run(name, func(t *testing.T) {
			s := open(t, redis.Config{Addrs: []string{addr}, Deadline: 20 * time.Millisecond})
			began := time.Now()
			if _, err := decideOnce(t, s, threeCharges(t)); err == nil {
				t.Error("a decision without a server returns no error, want one")
			}
			if took := time.Since(began); took > 500*time.Millisecond {
				t.Errorf("the decision took %s, want about 20ms", took)
			}
		})
	}
}

// Guarantees that closing a store ends all of its connections.
func TestCloseLeavesNothing(t *testing.T) {
	server := redistest.Start(t)
	admin := server.Client(t)
	s := open(t, redis.Config{Addrs: []string{server.Addr}, PoolSize: 16})
	charges := threeCharges(t)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 20 {
				var d limit.Decision
				if err := s.Decide(t.Context(), &limit.Request{Owner: acme, Charges: charges}, time.Now(),
					&d); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := sockets(t, admin); n < 2 || n > 17 {
		t.Errorf("%d connections, want the test's and at most 16 of the store", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	err := redistest.Until(ctx, func() error {
		if n := sockets(t, admin); n != 1 {
			return fmt.Errorf("%d connections after Close, want the test's own", n)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := decideOnce(t, s, charges); err == nil {
		t.Error("a closed store returns no error, want one")
	}
}

func sockets(tb testing.TB, admin *goredis.Client) int {
	tb.Helper()
	list, err := admin.ClientList(tb.Context()).Result()
	if err != nil {
		tb.Fatal(err)
	}
	return strings.Count(list, "\n")
}

// Guarantees that New refuses an invalid configuration with an error that names the problem.
func TestConfig(t *testing.T) {
	for _, tt := range []struct {
		name string
		c    redis.Config
		want string
	}{
		{"no address", redis.Config{}, "no address"},
		{"two addresses", redis.Config{Addrs: []string{"a:1", "b:1"}}, "2 addresses"},
		{"a deadline too short", redis.Config{Addrs: []string{"a:1"}, Deadline: time.Microsecond}, "1µs"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := redis.New(t.Context(), tt.c)
			if err == nil {
				_ = s.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("New(%+v): %v, want an error with %q", tt.c, err, tt.want)
			}
		})
	}
}
