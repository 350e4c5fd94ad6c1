package redis_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
)

// Guarantees that the value which a store keeps is the same for all processes, though each brings its own at the same
// moment, that namespaces have values of their own, that the value never expires, and that other data under its key is
// an error.
func TestKeep(t *testing.T) {
	addr := address(t)
	spaces := []string{t.Name(), t.Name() + "}"}
	kept := map[string]string{}
	for _, space := range spaces {
		var mu sync.Mutex
		var many sync.WaitGroup
		seen := map[string]bool{}
		for i := range 8 {
			s := open(t, redis.Config{Addrs: []string{addr}, Namespace: space})
			many.Go(func() {
				value, place, err := s.Keep(t.Context(), "name", fmt.Appendf(nil, "%s %d", space, i))
				if err != nil || !strings.Contains(place, "{rl:") {
					t.Error(place, err)
				}
				mu.Lock()
				defer mu.Unlock()
				seen[string(value)] = true
				kept[space] = string(value)
			})
		}
		many.Wait()
		if len(seen) != 1 || !strings.HasPrefix(kept[space], space+" ") {
			t.Errorf("namespace %s: eight processes got %v", space, seen)
		}
	}
	s := open(t, redis.Config{Addrs: []string{addr}, Namespace: spaces[0]})
	if value, place, err := s.Keep(t.Context(), "name", []byte("later")); string(value) != kept[spaces[0]] {
		t.Errorf("a later process got %q, %s, %v", value, place, err)
	}
	key := fmt.Sprintf("{rl:%d:%s,s4:name,}", len(spaces[0]), spaces[0])
	client := goredis.NewClient(&goredis.Options{Addr: addr})
	t.Cleanup(func() { _ = client.Close() })
	if ttl := client.TTL(t.Context(), key).Val(); ttl != -1 {
		t.Errorf("%s expires after %s", key, ttl)
	}
	if err := client.Del(t.Context(), key).Err(); err != nil {
		t.Fatal(err)
	}
	if err := client.LPush(t.Context(), key, "x").Err(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Keep(t.Context(), "name", []byte("later")); !errors.Is(err, limit.ErrUnreadable) ||
		!strings.Contains(err.Error(), key) {
		t.Errorf("a list under the key: %v", err)
	}
}
