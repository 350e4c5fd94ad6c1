package rls_test

import (
	"fmt"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluicelimits/sluice/internal/server/rls"
)

// BenchmarkShouldRateLimit measures an admitted request, without the network: with one descriptor and with three, each
// with 10,000 values.
func BenchmarkShouldRateLimit(b *testing.B) {
	const file = "domain: d\ndescriptors:\n" +
		"  - {key: a, rate_limit: {unit: year, requests_per_unit: 4000000000}}\n" +
		"  - {key: b, rate_limit: {unit: year, requests_per_unit: 4000000000}}\n" +
		"  - {key: c, rate_limit: {unit: year, requests_per_unit: 4000000000}}\n"
	for _, descriptors := range []int{1, 3} {
		b.Run(fmt.Sprintf("descriptors=%d", descriptors), func(b *testing.B) {
			w := newWorld(b, rls.Config{Headers: rls.Headers{Exact: true}}, file)
			requests := make([]*rlsv3.RateLimitRequest, 10_000)
			for i := range requests {
				requests[i] = &rlsv3.RateLimitRequest{Domain: "d"}
				for _, key := range []string{"a", "b", "c"}[:descriptors] {
					requests[i].Descriptors = append(requests[i].Descriptors, descriptor(fmt.Sprint(key, "=", i)))
				}
			}
			i := 0
			for b.Loop() {
				out, err := w.ShouldRateLimit(b.Context(), requests[i%len(requests)])
				if err != nil || out.GetOverallCode() != rlsv3.RateLimitResponse_OK {
					b.Fatal(out, err)
				}
				i++
			}
		})
	}
}
