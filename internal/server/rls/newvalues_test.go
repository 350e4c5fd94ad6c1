package rls_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/server/rls"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// Guarantees that a value that was never seen costs one round trip to Redis and no more than four commands, with leases
// and without. Limits per address consist of such values.
func TestNewValuesTakeOneRoundTrip(t *testing.T) {
	const values = 200
	for _, unit := range []string{"second", "minute", "hour", "day"} {
		for _, leases := range []bool{true, false} {
			server := redistest.Start(t)
			w := newWorld(t, rls.Config{Store: onRedis(t, server, leases)}, "domain: d\ndescriptors:\n"+
				"  - {key: a, rate_limit: {unit: "+unit+", requests_per_unit: 30}}\n")
			w.want("ok: ok 29", descriptor("a=first"))
			c := server.Client(t)
			if err := c.ConfigResetStat(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			for i := range values {
				w.want("ok: ok 29", descriptor(fmt.Sprint("a=", i)))
			}
			info, err := c.Info(t.Context(), "commandstats").Result()
			if err != nil {
				t.Fatal(err)
			}
			each := map[string]int{"evalsha": 1, "time": 1, "get": 1, "set": 1, "zadd": 0, "expire": 0}
			for command, most := range each {
				calls := 0
				if _, text, found := strings.Cut(info, "cmdstat_"+command+":calls="); found {
					if _, err := fmt.Sscanf(text, "%d,", &calls); err != nil {
						t.Fatalf("%v: %s", err, info)
					}
				}
				// A script that counts the instances may run, too.
				if calls < most*values || calls > most*values+values/50 {
					t.Errorf("limits per %s, leases %t: %d times %s for %d new values, want %d for each", unit, leases,
						calls, command, values, most)
				}
			}
		}
	}
}
