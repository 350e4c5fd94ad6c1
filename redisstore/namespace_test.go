package redisstore_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
	"github.com/sluicelimits/sluice/redisstore"
)

const patient = 20 * time.Second // a deadline for tests that are not about deadlines

func connect(t *testing.T, addr, namespace string) *redisstore.Store {
	t.Helper()
	s, err := redisstore.New(t.Context(),
		redisstore.Config{Addrs: []string{addr}, Namespace: namespace, Deadline: patient})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// Guarantees that programs with different namespaces share no counter of one Redis, and that those with the same
// namespace do.
func TestNamespace(t *testing.T) {
	const plans = "plans: [ { id: p, limits: [ { id: total, algorithm: token_bucket, rate: 1, period: 1h, burst: 5 } " +
		"] } ]\ntenants: [ { id: acme, plan: p } ]\n"
	addr := redistest.Start(t).Addr
	admitted := func(namespace string) (n int) {
		l, err := sluice.New(sluice.Config{PlansData: []byte(plans), Store: connect(t, addr, namespace),
			NoLeases: true})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close(context.Background()) }()
		for range 7 {
			d := l.Decide(t.Context(), sluice.Identity{Tenant: "acme"}, sluice.Request{})
			if d.StoreFailed {
				t.Fatal("Redis did not decide")
			}
			if d.Allowed {
				n++
			}
		}
		return n
	}
	for _, step := range []struct {
		namespace string
		want      int
	}{{"", 5}, {"billing", 5}, {"search", 5}, {"billing", 0}, {"search", 0}, {"", 0}, {"Billing", 5},
		{strings.Repeat("n", 64), 5}} {
		if got := admitted(step.namespace); got != step.want {
			t.Errorf("namespace %q admits %d, want %d", step.namespace, got, step.want)
		}
	}
}

// Guarantees that no two pairs of a namespace and an owner have a key in common, whatever the texts are: each pair has
// a key of its own on the server, which begins as every key of the store does.
func TestNamespacesAreInjective(t *testing.T) {
	addr := redistest.Start(t).Addr
	l := limittest.MustNew(t, limit.Limit{ID: "l",
		Tiers: []limit.Tier{{Algorithm: limit.TokenBucket, Threshold: 1, Burst: 5, Period: time.Hour}}})
	texts := []string{"", "a", "aa", "1", "1:", "1:a,", "t1:a,", "4:t1:a", ",", "}", "%7D", "%", "%25", "a}", "a%7D",
		"t", "i", "0:,", "1:a,t1:a,", "\x00", "é"}
	pairs := 0
	for _, namespace := range texts {
		s := connect(t, addr, namespace).Backend().Counters
		for _, name := range texts {
			for _, kind := range []limit.OwnerKind{limit.Tenant, limit.Address} {
				if name == "" {
					continue
				}
				req := &limit.Request{Owner: limit.Owner{Kind: kind, Name: name},
					Charges: []limit.Charge{{Limit: l, Cost: 1}}}
				var d limit.Decision
				if err := s.Decide(t.Context(), req, time.Now(), &d); err != nil || d.Results[0].Remaining() != 4 {
					t.Fatalf("namespace %q, %c %q: %d left of 5, %v: the counter is another one's", namespace, kind,
						name, d.Results[0].Remaining(), err)
				}
				pairs++
			}
		}
	}
	client := goredis.NewClient(&goredis.Options{Addr: addr})
	defer func() { _ = client.Close() }()
	keys, err := client.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(keys, func(k string) bool { return !strings.HasPrefix(k, "{rl:") }) {
		t.Errorf("a key does not begin with {rl: in %q", keys)
	}
	if len(keys) != pairs {
		t.Errorf("%d keys for %d pairs", len(keys), pairs)
	}
}

// Guarantees that in a cluster a namespace does not put all its owners into one slot.
func TestNamespaceSpreadsOverSlots(t *testing.T) {
	server := redistest.Start(t)
	l := limittest.MustNew(t, limit.Limit{ID: "l",
		Tiers: []limit.Tier{{Algorithm: limit.TokenBucket, Threshold: 1, Burst: 5, Period: time.Hour}}})
	s := connect(t, server.Addr, "a}b").Backend().Counters
	for i := range 20 {
		var d limit.Decision
		req := &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: fmt.Sprint("tenant-", i)},
			Charges: []limit.Charge{{Limit: l, Cost: 1}}}
		if err := s.Decide(t.Context(), req, time.Now(), &d); err != nil {
			t.Fatal(err)
		}
	}
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr})
	defer func() { _ = client.Close() }()
	keys, err := client.Keys(t.Context(), "*").Result()
	if err != nil || len(keys) != 20 {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
	hashed := map[string]bool{} // what a cluster hashes: up to the first "}"
	for _, k := range keys {
		tag, _, _ := strings.Cut(k, "}")
		hashed[tag] = true
	}
	if len(hashed) != 20 {
		t.Errorf("20 tenants have %d hash tags: %q", len(hashed), keys)
	}
}

// Guarantees that a namespace that is too long is refused by name.
func TestNamespaceTooLong(t *testing.T) {
	_, err := redisstore.New(t.Context(),
		redisstore.Config{Addrs: []string{"127.0.0.1:1"}, Namespace: strings.Repeat("n", 65)})
	if err == nil || !strings.Contains(err.Error(), "namespace has 65 bytes, want at most 64") {
		t.Errorf("a namespace of 65 bytes: %v", err)
	}
}
