package redis_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/limit/limittest"
	"github.com/sluicelimits/sluice/internal/store/redis"
	"github.com/sluicelimits/sluice/internal/store/redis/redistest"
)

var writeStored = flag.String("stored", "", "write testdata/stored-`COMMIT`.json, which must not be there, with what this code stores")

// storedKey is a key of Redis with its value, as testdata/stored-COMMIT.json has them. The code of that commit has written them,
// by the cases of limittest.Stored. Times to live are not kept.
type storedKey struct {
	Key     []byte        `json:"key"`
	Value   []byte        `json:"value,omitempty"`   // of a string
	Members []storedEntry `json:"members,omitempty"` // of a sorted set
}

type storedEntry struct {
	Score  float64 `json:"score"`
	Member []byte  `json:"member"`
}

// loadStored puts what the code of a commit stored into a server, and returns the names of the keys.
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

// TestWriteStored makes the fixture of a commit, with -stored. Without it there is nothing to do: the code of later commits stores
// what its own tests say.
func TestWriteStored(t *testing.T) {
	if *writeStored == "" {
		t.Skip("-stored is not given")
	}
	if _, err := os.Stat(storedFile(*writeStored)); err == nil {
		t.Fatalf("%s is there: a fixture never changes", storedFile(*writeStored))
	}
	server := redistest.Start(t)
	s := openAt(t, redis.Config{Addrs: []string{server.Addr}})
	for _, c := range limittest.Stored(t, s.Accepts) {
		if err := c.Fill(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(storedFile(*writeStored), limittest.StoredLines(t, dumpStored(t, server.Client(t))), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Guarantees that the fixture holds each form that the commit stored, so that a test over it is a test of them all.
func TestStoredFormsAreComplete(t *testing.T) {
	c := redistest.Start(t).Client(t)
	keys := loadStored(t, c, "71d6d5d")
	var burst string // what the records of the token bucket are found by
	for _, stored := range limittest.Stored(t, func(*limit.Limit) error { return nil }) {
		if stored.Name == "late" {
			digest := stored.Charges[0][0].Limit.Tiers[0].Digest()
			burst = string(digest[:])
		}
	}
	for what, has := range map[string]func(key, value string) bool{
		"a pack of all algorithms":             func(k, v string) bool { return k == "{rl:t14:stored windows,}" && strings.HasPrefix(v, "SLU1\x07\x00") },
		"a pack with leased units":             func(k, v string) bool { return k == "{rl:t13:stored leased,}" && strings.HasPrefix(v, "SLU2") },
		"a pack with units that may come late": func(k, v string) bool { return k == "{rl:t11:stored late,}" && strings.Contains(v, "\xe5"+burst) },
		"a pack with refunded units":           func(k, v string) bool { return k == "{rl:t15:stored refunded,}" && strings.Contains(v, "\x85"+burst) },
		"a pack of a scoped limit":             func(k, _ string) bool { return k == "{rl:t13:stored scoped,}6:writes,6:tenant," },
		"a pack of an endpoint": func(k, _ string) bool {
			return strings.HasPrefix(k, "{rl:t13:stored routes,}11:put-product,8:endpoint,=")
		},
		"a pack of a value":          func(k, _ string) bool { return k == "{rl:t13:stored values,}6:person,7:subject,=5:alice," },
		"a pack of no value":         func(k, _ string) bool { return k == "{rl:t13:stored values,}6:person,7:subject,~0:," },
		"a pack of all other values": func(k, _ string) bool { return k == "{rl:t13:stored values,}6:person,7:subject,*0:," },
		"a pack of an address":       func(k, _ string) bool { return strings.HasPrefix(k, "{rl:a32:0f0f") },
		"a set of values":            func(k, v string) bool { return strings.HasSuffix(k, ",7:subject,values") && v == "" },
		"a set of stamps":            func(k, v string) bool { return strings.Contains(k, "3:log,6:tenant,stamps") && v == "" },
		"a receipt":                  func(k, v string) bool { return strings.HasPrefix(k, "{rl:t15:stored refunded,}refunded:") && v == "1" },
	} {
		found := slices.ContainsFunc(keys, func(k string) bool {
			v, err := c.Get(t.Context(), k).Result()
			if err != nil && !strings.HasPrefix(err.Error(), "WRONGTYPE") {
				t.Fatal(err)
			}
			return has(k, v)
		})
		if !found {
			t.Errorf("%s is not among the stored keys: %q", what, keys)
		}
	}
}
