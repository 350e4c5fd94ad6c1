package memory_test

import (
	"context"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
)

// benchmarkLimits decides over n limits like in, each with another period. All decisions are admissions. If each is
// set, the last limit has a counter for each of ten values.
func benchmarkLimits(b *testing.B, n int, in limit.Tier, each bool) {
	const keys = 10_000
	s := memorytest.New(b)
	var charges []limit.Charge
	for i := range n {
		tier := in
		tier.Period *= time.Duration(i + 1)
		per := limit.PerTenant
		if each && i == n-1 {
			per = "subject"
		}
		l, err := limit.New(limit.Limit{ID: "l" + strconv.Itoa(i), Per: per, Tiers: []limit.Tier{tier}})
		if err != nil {
			b.Fatal(err)
		}
		charges = append(charges, limit.Charge{Limit: l, Cost: 1})
	}
	names := make([]string, keys)
	for i := range names {
		names[i] = "tenant-" + strconv.Itoa(i)
	}
	var subjects [10]limit.Value
	for i := range subjects {
		subjects[i] = limit.ValueOf("subject-" + strconv.Itoa(i))
	}
	base := time.Now()
	var allowed, start atomic.Int64
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		req := limit.Request{Charges: slices.Clone(charges)}
		var d limit.Decision
		ok := int64(0)
		i := int(start.Add(keys / 3))
		for pb.Next() {
			req.Owner = limit.Owner{Kind: limit.Tenant, Name: names[i%keys]}
			if each {
				req.Charges[n-1].Value = subjects[i%len(subjects)]
			}
			i++
			if err := s.Decide(context.Background(), &req, base.Add(time.Since(base)), &d); err != nil {
				b.Error(err)
				return
			}
			if d.Allowed {
				ok++
			}
		}
		allowed.Add(ok)
	})
	if allowed.Load() != int64(b.N) {
		b.Fatalf("allowed %d of %d", allowed.Load(), b.N)
	}
}

var (
	bucketTier = limit.Tier{Algorithm: limit.TokenBucket, Period: time.Second, Threshold: 1e9, Burst: 1e9}
	windowTier = limit.Tier{Algorithm: limit.FixedWindow, Period: time.Hour, Threshold: 1e9}
)

func BenchmarkDecide1(b *testing.B)  { benchmarkLimits(b, 1, bucketTier, false) }
func BenchmarkDecide3(b *testing.B)  { benchmarkLimits(b, 3, bucketTier, false) }
func BenchmarkWindows1(b *testing.B) { benchmarkLimits(b, 1, windowTier, false) }
func BenchmarkWindows3(b *testing.B) { benchmarkLimits(b, 3, windowTier, false) }
func BenchmarkValues3(b *testing.B)  { benchmarkLimits(b, 3, windowTier, true) }
