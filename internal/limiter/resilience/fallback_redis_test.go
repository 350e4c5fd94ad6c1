package resilience_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/breaker"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// Guarantees with a real server that is killed and comes back empty, for every algorithm: no caller gets an error, the
// instance's part uses the instance count from before, the breaker prevents waits, and the server is then charged for
// what was admitted meanwhile.
func TestRedisKilled(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	server := redistest.Start(t)
	inner, err := redis.New(ctx, redis.Config{Addrs: []string{server.Addr}, Deadline: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = inner.Close() })
	guard := newBreaker(t, inner)
	var counts [2]*resilience.Instances
	for i := range counts {
		if counts[i], err = resilience.NewInstances(resilience.InstancesConfig{Store: guard, Max: 50}); err != nil {
			t.Fatal(err)
		}
		if err := counts[i].Announce(ctx, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	s := newStore(t, resilience.FallbackConfig{Store: guard, MaxInstances: 50,
		Instances: func(*limit.Limit) int { return counts[1].Count() }})

	var limits []*limit.Limit
	for _, a := range limit.Algorithms() {
		tier := limit.Tier{Algorithm: a, Period: 24 * time.Hour, Threshold: 100}
		if a == limit.Quota {
			tier = limit.Tier{Algorithm: a, Threshold: 100, Calendar: &limit.Calendar{Every: limit.Month,
				Location: time.UTC}}
		}
		limits = append(limits, newLimit(t, limit.Limit{ID: a.String(), Tiers: []limit.Tier{tier}}))
	}
	req := requestOf(limits...)
	var d limit.Decision
	if err := s.Decide(ctx, req, time.Now(), &d); err != nil || !d.Allowed || d.Degraded {
		t.Fatalf("with the server: err %v, allowed %v, degraded %v; want it allowed by the server", err, d.Allowed,
			d.Degraded)
	}
	server.Kill()
	allowed := 0
	for range 200 {
		if err := s.Decide(ctx, req, time.Now(), &d); err != nil || !d.Degraded {
			t.Fatalf("without the server: err %v, degraded %v; want a degraded decision", err, d.Degraded)
		}
		if d.Allowed {
			allowed++
		}
	}
	if st := guard.Stats(); allowed != 50 || st.State == breaker.Closed || st.Refused < 150 {
		t.Errorf("%d units are admitted, want 50, half of the limit; breaker %+v", allowed, st)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	other := requestOf(window(t, "other", 1000, limit.Backstop))
	other.Owner.Name = "somebody else"
	if err := redistest.Until(ctx, func() error {
		if err := s.Decide(ctx, other, time.Now(), &d); err != nil {
			t.Fatal(err)
		}
		if st := s.Stats(); st.Waiting > 0 {
			return fmt.Errorf("%+v", st)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := inner.Peek(ctx, req, time.Now(), &d); err != nil {
		t.Fatal(err)
	}
	for i := range d.Results {
		r, want := &d.Results[i], int64(50)
		if r.Tier.Algorithm == limit.LeakyBucket {
			want = 100 // a leaky bucket is full or empty
		}
		if r.Used() != want {
			t.Errorf("%s: the server counts %d, want %d", r.Tier.Algorithm, r.Used(), want)
		}
	}
	if err := s.Close(ctx); err != nil && !errors.Is(err, breaker.ErrOpen) {
		t.Error(err)
	}
	t.Logf("%+v, breaker %+v", s.Stats(), guard.Stats())
}
