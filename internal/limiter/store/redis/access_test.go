package redis_test

import (
	"context"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/aws/grants"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// allow creates the user of a deployed cache on servers, with these rights.
func allow(t *testing.T, servers []*redistest.Server, access string) {
	t.Helper()
	for _, s := range servers {
		args := []any{"ACL", "SETUSER", "functions", ">password"}
		for word := range strings.FieldsSeq(access) {
			args = append(args, word)
		}
		if err := s.Client(t).Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

func asFunctions(c redis.Config) redis.Config {
	c.Credentials = func(context.Context) (user, password string, err error) { return "functions", "password", nil }
	return c
}

// Guarantees that the user of a deployed cache may do what the scripts do and what the client asks, and nothing else. A
// command that a script begins to use would otherwise be refused only on AWS.
func TestAccessIsWhatScriptsDo(t *testing.T) {
	// See Store.runScript, Store.Ping and Config.authenticate.
	want := map[string]bool{"evalsha": true, "eval": true, "ping": true, "role": true}
	for _, own := range []string{"hello", "asking", "command", "cluster|slots"} { // which the client calls
		want[own] = true
	}
	calls := regexp.MustCompile(`call\('([A-Z]+)'`)
	for _, file := range []string{"shared.lua", "decide.lua", "settle.lua", "lostreply.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := calls.FindAllStringSubmatch(string(text), -1)
		if len(found) == 0 {
			t.Errorf("no command is found in %s: the test's search must be changed", file)
		}
		for _, c := range found {
			want[strings.ToLower(c[1])] = true
		}
	}
	got := map[string]bool{}
	for word := range strings.FieldsSeq(grants.CacheAccess) {
		if command, ok := strings.CutPrefix(word, "+"); ok {
			got[command] = true
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("it may %v, want %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
	if !strings.HasPrefix(grants.CacheAccess, "on ~{rl:* -@all +") {
		t.Errorf("the user may use other keys, or is off: %s", grants.CacheAccess)
	}
}

// Guarantees that a server, alone or in a cluster, accepts these rights, and refuses everything else that the user
// asks.
func TestAccess(t *testing.T) {
	t.Parallel() // it first waits seconds for its cluster
	alone := redistest.Start(t)
	cluster := redistest.StartCluster(t)
	for name, c := range map[string]struct {
		servers []*redistest.Server
		config  redis.Config
	}{
		"one":     {[]*redistest.Server{alone}, redis.Config{Addrs: []string{alone.Addr}}},
		"cluster": {cluster, redis.Config{Addrs: redistest.Addrs(cluster), Cluster: true}},
	} {
		t.Run(name, func(t *testing.T) {
			allow(t, c.servers, grants.CacheAccess)
			s := open(t, asFunctions(c.config))
			if left, err := decideOnce(t, s, threeCharges(t)); err != nil || left != 999 {
				t.Errorf("%d left, %v; want 999", left, err)
			}
			if err := s.Ping(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	user := goredis.NewClient(&goredis.Options{Addr: alone.Addr, Username: "functions", Password: "password",
		DisableIdentity: true})
	defer func() { _ = user.Close() }()
	for _, args := range [][]any{{"flushall"}, {"config", "get", "*"}, {"keys", "*"}, {"get", "other"},
		{"del", "{rl:t4:acme,}"}, {"acl", "whoami"}} {
		if err := user.Do(t.Context(), args...).Err(); err == nil || !strings.Contains(err.Error(), "NOPERM") {
			t.Errorf("%v: %v, want NOPERM", args, err)
		}
	}
}
