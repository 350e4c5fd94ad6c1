package redis_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// storedKey is a key of Redis with its value, and without its expiry.
type storedKey struct {
	Key, Value string      // Value is the value of a string
	Members    []goredis.Z // the members of a sorted set
}

// fillStored makes the charges of all cases of limittest.Stored, and then changes the version of each pack.
func fillStored(tb testing.TB, c *goredis.Client, s *redis.Store, version string) {
	tb.Helper()
	for _, stored := range limittest.Stored(tb, s.Accepts) {
		if err := stored.Fill(tb.Context(), s); err != nil {
			tb.Fatal(err)
		}
	}
	packs := 0
	for _, k := range dumpStored(tb, c) {
		if err := c.Persist(tb.Context(), k.Key).Err(); err != nil {
			tb.Fatal(err)
		}
		if !strings.HasPrefix(k.Value, "SLU") {
			continue
		}
		packs++
		if err := c.Set(tb.Context(), k.Key, version+k.Value[4:], 0).Err(); err != nil {
			tb.Fatal(err)
		}
	}
	if packs == 0 {
		tb.Fatal("no pack is stored")
	}
}

// dumpStored reads all keys of a server.
func dumpStored(tb testing.TB, c *goredis.Client) (all []storedKey) {
	tb.Helper()
	keys, err := c.Keys(tb.Context(), "*").Result()
	if err != nil {
		tb.Fatal(err)
	}
	slices.Sort(keys)
	for _, key := range keys {
		k := storedKey{Key: key}
		kind, err := c.Type(tb.Context(), key).Result()
		if err == nil && kind == "string" {
			k.Value, err = c.Get(tb.Context(), key).Result()
		}
		if err == nil && kind == "zset" {
			k.Members, err = c.ZRangeWithScores(tb.Context(), key, 0, -1).Result()
		}
		if err != nil || len(k.Value)+len(k.Members) == 0 {
			tb.Fatalf("the key %q is a %s: %v", key, kind, err)
		}
		all = append(all, k)
	}
	return all
}

// Guarantees that a pack of an earlier version is refused with its key and its version, by decisions, by peeks and with
// leases, and that it stays as it is, without an expiry. The entries of a sliding_log count even if somebody has
// deleted the pack that they belong to.
func TestStoredPacksAreRefused(t *testing.T) {
	server := redistest.Start(t)
	admin := server.Client(t)
	s := openAt(t, redis.Config{Addrs: []string{server.Addr}})
	if err := admin.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	fillStored(t, admin, s, "SLU1")
	before := dumpStored(t, admin)
	for _, stored := range limittest.Stored(t, s.Accepts) {
		key := "{rl:" + string(stored.Owner.AppendKey(nil)) + "}"
		for _, charges := range stored.Charges {
			plain := &limit.Request{Owner: stored.Owner, Charges: charges}
			leased := &limit.Request{Owner: stored.Owner, Charges: charges}
			for _, c := range charges {
				leased.Leases = append(leased.Leases, slices.Repeat([]limit.LeaseRequest{{Need: c.Cost}},
					len(c.Limit.Tiers))...)
			}
			for what, ask := range map[string]func(*limit.Decision) error{
				"a decision": func(d *limit.Decision) error {
					return s.Decide(t.Context(), plain,
						limittest.StoredAt, d)
				},
				"a look": func(d *limit.Decision) error {
					return s.Peek(t.Context(), plain, limittest.StoredAt,
						d)
				},
				"a lease": func(d *limit.Decision) error {
					return s.Decide(t.Context(), leased,
						limittest.StoredAt, d)
				},
			} {
				var d limit.Decision
				err := ask(&d)
				if !errors.Is(err, limit.ErrUnreadable) || d.Allowed || !contains(err, "SLU") ||
					!contains(err, key) {
					t.Errorf("%s: %s of %s is %v; want limit.ErrUnreadable with key and version",
						stored.Name, what, charges[0].Limit.ID, err)
				}
			}
		}
	}
	if after := dumpStored(t, admin); !reflect.DeepEqual(before, after) {
		t.Error("the refused call has changed a stored value")
	}
	for _, k := range before {
		if ttl, err := admin.PTTL(t.Context(), k.Key).Result(); err != nil || ttl != -1 {
			t.Errorf("%q expires in %s, %v; it had no expiry", k.Key, ttl, err)
		}
	}
}

// Guarantees that entries of a sliding_log and of sliding_buckets count even if their pack is gone.
func TestEntriesWithoutAPack(t *testing.T) {
	server := redistest.Start(t)
	admin := server.Client(t)
	s := openAt(t, redis.Config{Addrs: []string{server.Addr}})
	fillStored(t, admin, s, "SLU1")
	for _, stored := range limittest.Stored(t, s.Accepts) {
		if stored.Name != "stamps" {
			continue
		}
		if n, err := admin.Del(t.Context(), "{rl:t13:stored stamps,}").Result(); err != nil || n != 1 {
			t.Fatalf("DEL: %d, %v", n, err)
		}
		for i, want := range []int64{3, 4} { // two entries of each are stored
			var d limit.Decision
			at := limittest.StoredAt.Add(2 * time.Second)
			req := &limit.Request{Owner: stored.Owner, Charges: stored.Charges[0][:2]}
			if err := s.Decide(t.Context(), req, at, &d); err != nil {
				t.Fatal(err)
			}
			for j := range d.Results {
				if r := &d.Results[j]; r.Used() != want {
					t.Errorf("decision %d: %s has used %d, want %d", i+1, r.Limit().ID, r.Used(), want)
				}
			}
		}
		return
	}
	t.Fatal("no such case")
}
