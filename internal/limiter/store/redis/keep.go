package redis

import (
	"context"
	"fmt"
	"sync"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

var keepScript = sync.OnceValue(func() *script {
	return newScript(`local kept = redis.call("GET", KEYS[1])
if not kept then
	kept = ARGV[1]
	redis.call("SET", KEYS[1], kept)
end
return kept
`)
})

// Keep implements [store.Keeper]. One script looks the value up and stores it, so that all processes get the same
// value. The value never expires. place names the key in Redis.
func (s *Store) Keep(ctx context.Context, name string, value []byte) (kept []byte, place string, err error) {
	if err := ctx.Err(); err != nil {
		return nil, "", err
	}
	key := string(limit.AppendNetstring(append(append([]byte("{rl:"), s.namespacePart...), 's'), hashable(name))) + "}"
	within := withTimeout(ctx, max(s.deadline, dialTimeout))
	defer within.release()
	text, err := s.runScript(within, keepScript(), []any{nil, nil, 1, key, string(value)})
	if err != nil {
		return nil, "", fmt.Errorf("redis store: key %s: %w", key, err)
	}
	return []byte(text), "the key " + key + " of Redis", nil
}
