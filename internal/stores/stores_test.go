package stores_test

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/stores"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// Guarantees that processes with the same flags count together, in the stores that the flags name, and have one name
// for each address, whenever they start; and that another namespace, or another table, shares neither.
func TestProcessesShareStores(t *testing.T) {
	redis := func(t *testing.T, o *stores.Options) { o.Redis = "redis://" + redistest.Start(t).Addr + "/1" }
	dynamo := func(t *testing.T, o *stores.Options) {
		o.DynamoDB, o.Table = dynamodbtest.Need(t), fmt.Sprintf("sluice-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	}
	for _, c := range []struct {
		name    string
		named   func(*testing.T, *stores.Options)
		another func(*stores.Options) // makes the flags those of other processes
	}{
		{"Redis", redis, func(o *stores.Options) { o.RedisNamespace = "another" }},
		{"DynamoDB", dynamo, func(o *stores.Options) { o.Table += "-another" }},
		{"rates in Redis, quotas in DynamoDB", func(t *testing.T, o *stores.Options) {
			redis(t, o)
			dynamo(t, o)
		}, func(o *stores.Options) { o.RedisNamespace, o.Table = "another", o.Table+"-another" }},
		{"Redis, and a key for addresses", func(t *testing.T, o *stores.Options) {
			redis(t, o)
			o.AddressKey = filepath.Join(t.TempDir(), "key")
			if err := os.WriteFile(o.AddressKey, []byte(strings.Repeat("k", 32)+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, func(o *stores.Options) { o.RedisNamespace, o.AddressKey = "another", "" }},
	} {
		for _, leases := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, leases %t", c.name, leases), func(t *testing.T) {
				// The deadlines are long, because the test is about counting and the machine may be busy.
				o := stores.Options{RedisDeadline: 10 * time.Second, DynamoDBDeadline: 20 * time.Second,
					Leases: leases, MaxInstances: 3}
				c.named(t, &o)
				one, other := open(t, o), open(t, o)
				rate := limitOf(t, "rate", limit.Tier{Algorithm: limit.FixedWindow, Threshold: 20,
					Period: 24 * time.Hour})
				quota := limitOf(t, "quota", limit.Tier{Algorithm: limit.Quota, Threshold: 15,
					Calendar: &limit.Calendar{Every: limit.Year, Location: time.UTC}})
				for l, threshold := range map[*limit.Limit]int{rate: 20, quota: 15} {
					admitted := 0
					for i := range 60 {
						if decide(t, []*stores.Counters{one, other}[i%2].Tenants, l).Allowed {
							admitted++
						}
					}
					// Units that the other process has leased at that moment are denied early.
					if admitted > threshold || admitted < threshold/2 || !leases && admitted < threshold {
						t.Errorf("two processes together admitted %d of limit %s, want %d", admitted, l.ID, threshold)
					}
				}
				last := len(one.Shared) - 1 // the store of rates
				for l, in := range map[*limit.Limit]stores.Shared{quota: one.Shared[0], rate: one.Shared[last]} {
					var d limit.Decision
					err := in.Store.Peek(t.Context(), requestOf(l), time.Now(), &d)
					if err != nil || d.Results[0].Used() == 0 {
						t.Errorf("the store of %s does not count limit %s: %v", in.Flag, l.ID, err)
					}
				}
				address := netip.MustParseAddr("192.0.2.1")
				name := one.Names.Anonymise(address)
				for _, c := range []*stores.Counters{other, open(t, o)} { // and a process that starts later
					if got := c.Names.Anonymise(address); got != name {
						t.Errorf("another process names an address %s, want %s", got, name)
					}
				}
				apart := o
				c.another(&apart)
				third := open(t, apart)
				if third.Names.Anonymise(address) == name || !decide(t, third.Tenants, rate).Allowed {
					t.Error("processes with another namespace or table share counters or names")
				}
			})
		}
	}
}

// open opens the stores as a process does.
func open(t *testing.T, o stores.Options) *stores.Counters {
	t.Helper()
	if err := o.Check(); err != nil {
		t.Fatal(err)
	}
	c, err := o.Open(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func limitOf(t *testing.T, id string, tier limit.Tier) *limit.Limit {
	t.Helper()
	l, err := limit.New(limit.Limit{ID: id, Tiers: []limit.Tier{tier}})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// decide charges one unit.
func decide(t *testing.T, s limit.Store, l *limit.Limit) (d limit.Decision) {
	t.Helper()
	if err := s.Decide(t.Context(), requestOf(l), time.Now(), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func requestOf(l *limit.Limit) *limit.Request {
	return &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: "acme"},
		Charges: []limit.Charge{{Limit: l, Cost: 1}}}
}
