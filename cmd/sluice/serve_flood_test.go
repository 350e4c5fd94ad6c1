package main

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// Guarantees that a flood of new values, with a store that leases and without one, is decided without an error, neither
// exceeds a limit nor loses the counters of other values, and adds no metrics.
func TestServeFlood(t *testing.T) {
	const values, clients = 3000, 4
	for name, flags := range map[string][]string{
		"memory": {"--store-mb", "1"},
		"Redis":  {"--redis", redistest.Start(t).Addr, "--redis-deadline", "10s"},
	} {
		t.Run(name, func(t *testing.T) {
			s := startServe(t, append(flags, "--config", limitsFile(t, 3))...)
			ask := func(value string) (rlsv3.RateLimitResponse_Code, error) {
				out, err := s.client.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "api",
					Descriptors: []*ratelimitv3.RateLimitDescriptor{{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{
						{Key: "tenant", Value: value}}}}}, grpc.WaitForReady(true))
				return out.GetOverallCode(), err
			}
			for i := range 3 {
				if code, err := ask("early"); err != nil || code != rlsv3.RateLimitResponse_OK {
					t.Fatalf("request %d of the early value: %s, %v", i, code, err)
				}
			}
			_, _, before := get(t, s.debug+"/metrics", "")
			var group sync.WaitGroup
			var mu sync.Mutex
			wrong := map[string]int{}
			for c := range clients {
				group.Go(func() {
					for i := range values / clients {
						if code, err := ask(fmt.Sprintf("%d-%d", c, i)); err != nil ||
							code != rlsv3.RateLimitResponse_OK {
							mu.Lock()
							wrong[fmt.Sprint(code, err)]++
							mu.Unlock()
						}
					}
				})
			}
			group.Wait()
			if len(wrong) > 0 {
				t.Errorf("of %d new values, each below its limit, these were denied or failed: %v", values, wrong)
			}
			if code, err := ask("early"); err != nil || code != rlsv3.RateLimitResponse_OVER_LIMIT {
				t.Errorf("the early value after the flood: %s, %v", code, err)
			}
			_, _, after := get(t, s.debug+"/metrics", "")
			if b, a := strings.Count(before, "\nsluice_hits_total"), strings.Count(after,
				"\nsluice_hits_total"); a > b+2 {
				t.Errorf("the number of metrics of hits grew from %d to %d", b, a)
			}
		})
	}
}
