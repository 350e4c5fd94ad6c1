package redis_test

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
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

var writeStored = flag.String("stored", "",
	"write testdata/stored-`COMMIT`.json, which must not be there, with what this code stores")

// storedKey is a key of Redis with its value, as in testdata/stored-COMMIT.json. The code of that commit has written
// the keys for the cases of limittest.Stored. Expiries are not kept.
type storedKey struct {
	Key     []byte        `json:"key"`
	Value   []byte        `json:"value,omitempty"`   // the value of a string
	Members []storedEntry `json:"members,omitempty"` // the members of a sorted set
}

type storedEntry struct {
	Score  float64 `json:"score"`
	Member []byte  `json:"member"`
}

// loadStored copies what the code of a commit has stored to a server, and returns the names of the keys.
func loadStored(tb testing.TB, c *goredis.Client, commit string) (keys []string) {
	tb.Helper()
	text, err := os.ReadFile(storedFile(commit))
	if err != nil {
		tb.Fatal(err)
	}
	var all []storedKey
	if err := json.Unmarshal(text, &all); err != nil {
		tb.Fatal(err)
	}
	for _, k := range all {
		err := c.Set(tb.Context(), string(k.Key), k.Value, 0).Err()
		if len(k.Members) > 0 {
			err = c.Del(tb.Context(), string(k.Key)).Err()
		}
		for _, m := range k.Members {
			if err == nil {
				err = c.ZAdd(tb.Context(), string(k.Key), goredis.Z{Score: m.Score, Member: m.Member}).Err()
			}
		}
		if err != nil {
			tb.Fatal(err)
		}
		keys = append(keys, string(k.Key))
	}
	return keys
}

func storedFile(commit string) string { return filepath.Join("testdata", "stored-"+commit+".json") }

// dumpStored reads all keys of a server.
func dumpStored(tb testing.TB, c *goredis.Client) (all []storedKey) {
	tb.Helper()
	keys, err := c.Keys(tb.Context(), "*").Result()
	if err != nil {
		tb.Fatal(err)
	}
	slices.Sort(keys)
	for _, key := range keys {
		k := storedKey{Key: []byte(key)}
		kind, err := c.Type(tb.Context(), key).Result()
		if err == nil && kind == "string" {
			k.Value, err = c.Get(tb.Context(), key).Bytes()
		}
		if err == nil && kind == "zset" {
			var members []goredis.Z
			members, err = c.ZRangeWithScores(tb.Context(), key, 0, -1).Result()
			for _, m := range members {
				k.Members = append(k.Members, storedEntry{m.Score, []byte(m.Member.(string))})
			}
		}
		if err != nil || len(k.Value)+len(k.Members) == 0 {
			tb.Fatalf("the key %q is a %s: %v", key, kind, err)
		}
		all = append(all, k)
	}
	return all
}

// TestWriteStored writes the fixture of a commit if the flag -stored is given. Otherwise it does nothing.
func TestWriteStored(t *testing.T) {
	if *writeStored == "" {
		return // the flag is not given
	}
	if _, err := os.Stat(storedFile(*writeStored)); err == nil {
		t.Fatalf("%s exists already, and a fixture must not be changed", storedFile(*writeStored))
	}
	server := redistest.Start(t)
	s := openAt(t, redis.Config{Addrs: []string{server.Addr}})
	for _, c := range limittest.Stored(t, s.Accepts) {
		if err := c.Fill(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(storedFile(*writeStored), limittest.StoredLines(t, dumpStored(t, server.Client(t))),
		0o644); err != nil {
		t.Fatal(err)
	}
}

// Guarantees that the fixture contains each form that the commit stored, so that a test over it covers all of them.
func TestStoredFormsAreComplete(t *testing.T) {
	c := redistest.Start(t).Client(t)
	keys := loadStored(t, c, "71d6d5d")
	var burst string // part of the keys of a token bucket's records
	for _, stored := range limittest.Stored(t, func(*limit.Limit) error { return nil }) {
		if stored.Name == "late" {
			digest := stored.Charges[0][0].Limit.Tiers[0].Digest()
			burst = string(digest[:])
		}
	}
	for _, want := range []struct{ what, key, value string }{ // how the key begins, and what the value contains
		{"a pack of all algorithms", "{rl:t14:stored windows,}", "SLU1\x07\x00"},
		{"a pack with leased units", "{rl:t13:stored leased,}", "SLU2"},
		{"a pack with units that may come late", "{rl:t11:stored late,}", "\xe5" + burst},
		{"a pack with refunded units", "{rl:t15:stored refunded,}", "\x85" + burst},
		{"a pack of a scoped limit", "{rl:t13:stored scoped,}6:writes,6:tenant,", "SLU1"},
		{"a pack of an endpoint", "{rl:t13:stored routes,}11:put-product,8:endpoint,=", "SLU1"},
		{"a pack of a value", "{rl:t13:stored values,}6:person,7:subject,=5:alice,", "SLU1"},
		{"a pack of no value", "{rl:t13:stored values,}6:person,7:subject,~0:,", "SLU1"},
		{"a pack of all other values", "{rl:t13:stored values,}6:person,7:subject,*0:,", "SLU1"},
		{"a pack of an address", "{rl:a32:0f0f", "SLU1"},
		{"a set of values", "{rl:t13:stored values,}6:person,7:subject,values", ""},
		{"a set of stamps", "{rl:t13:stored stamps,}3:log,6:tenant,stamps", ""},
		{"a receipt", "{rl:t15:stored refunded,}refunded:", "1"},
	} {
		found := slices.ContainsFunc(keys, func(key string) bool {
			if !strings.HasPrefix(key, want.key) {
				return false
			}
			kind, err := c.Type(t.Context(), key).Result()
			if err == nil && kind == "zset" {
				return want.value == ""
			}
			var value string
			if err == nil {
				value, err = c.Get(t.Context(), key).Result()
			}
			if err != nil {
				t.Fatal(err)
			}
			return want.value != "" && strings.Contains(value, want.value)
		})
		if !found {
			t.Errorf("%s is not among the stored keys: %q", want.what, keys)
		}
	}
}

// Guarantees that a pack of an earlier version is refused with its key and its version, by decisions, by peeks and with
// leases, and that it stays as it is, without an expiry. The entries of a sliding_log count even if somebody has
// deleted the pack that they belong to.
func TestStoredPacksAreRefused(t *testing.T) {
	server := redistest.Start(t)
	admin := server.Client(t)
	for _, general := range []bool{false, true} {
		s := openAt(t, redis.Config{Addrs: []string{server.Addr}})
		if general {
			s.GeneralOnly()
		}
		if err := admin.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		loadStored(t, admin, "71d6d5d")
		before := dumpStored(t, admin)
		for _, stored := range limittest.Stored(t, s.Accepts) {
			key := "{rl:" + string(stored.Owner.AppendKey(nil)) + "}"
			if !slices.ContainsFunc(before, func(k storedKey) bool { return strings.HasPrefix(string(k.Key), key) }) {
				continue // TestStoredFormsAreComplete checks that the fixture has all cases
			}
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
						t.Errorf("%s, general=%t: %s of %s is %v; want limit.ErrUnreadable with key and version",
							stored.Name, general, what, charges[0].Limit.ID, err)
					}
				}
			}
		}
		if after := dumpStored(t, admin); !reflect.DeepEqual(before, after) {
			t.Errorf("general=%t: the refused call has changed a stored value", general)
		}
		for _, k := range before {
			if ttl, err := admin.PTTL(t.Context(), string(k.Key)).Result(); err != nil || ttl != -1 {
				t.Errorf("general=%t: %q expires in %s, %v; it had no expiry", general, k.Key, ttl, err)
			}
		}
	}
}

// Guarantees that counters of a limit which an earlier version kept in a pack of their own lead to an error, and are
// not taken for a limit that was never used.
func TestStoredPackOfALimit(t *testing.T) {
	server := redistest.Start(t)
	admin := server.Client(t)
	loadStored(t, admin, "71d6d5d")
	s := openAt(t, redis.Config{Addrs: []string{server.Addr}})
	const shared, own = "{rl:t13:stored scoped,}", "{rl:t13:stored scoped,}6:writes,6:tenant,"
	remove := func(key string) {
		if n, err := admin.Del(t.Context(), key).Result(); err != nil || n != 1 {
			t.Fatalf("DEL %s: %d, %v", key, n, err)
		}
	}
	var charges []limit.Charge
	var owner limit.Owner
	for _, stored := range limittest.Stored(t, s.Accepts) {
		if stored.Name == "scoped" {
			charges, owner = stored.Charges[0][:2], stored.Owner
		}
	}
	decide := func(charges ...limit.Charge) error {
		var d limit.Decision
		return s.Decide(t.Context(), &limit.Request{Owner: owner, Charges: charges}, limittest.StoredAt, &d)
	}
	if err := decide(charges...); !contains(err, shared+" holds") {
		t.Errorf("%v; want an error about %s", err, shared)
	}
	remove(shared)
	for range 2 { // also beside a limit that has a record
		if err := decide(charges...); !errors.Is(err, limit.ErrUnreadable) ||
			!contains(err, own+` holds a pack of version "SLU1"`) {
			t.Errorf("%v; want an error about %s", err, own)
		}
		if err := decide(charges[0]); err != nil {
			t.Errorf("a request that does not name the limit: %v, want no error", err)
		}
	}
	remove(own)
	if err := decide(charges...); err != nil {
		t.Errorf("after the old key is deleted: %v, want no error", err)
	}
}

// Guarantees that entries of a sliding_log and of sliding_buckets count even if their pack is gone.
func TestEntriesWithoutAPack(t *testing.T) {
	server := redistest.Start(t)
	admin := server.Client(t)
	loadStored(t, admin, "71d6d5d")
	s := openAt(t, redis.Config{Addrs: []string{server.Addr}})
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
