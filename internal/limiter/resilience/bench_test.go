package resilience

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
)

// brokenStore fails every decision.
type brokenStore struct{ limit.Store }

func (brokenStore) Decide(context.Context, *limit.Request, time.Time, *limit.Decision) error {
	return errors.New("the store is away")
}

// BenchmarkFallback decides without the store, in turn for 3,000 tenants that each have a limit of their own.
func BenchmarkFallback(b *testing.B) {
	next, err := memory.New(memory.Config{})
	if err != nil {
		b.Fatal(err)
	}
	f, err := NewFallback(FallbackConfig{Store: brokenStore{next}, MaxInstances: 10, Bytes: 64 << 20,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	requests := make([]limit.Request, 3000)
	for i := range requests {
		l, err := limit.New(limit.Limit{ID: "requests", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow,
			Period: time.Minute, Threshold: int64(1_000_000_000 + i)}}})
		if err != nil {
			b.Fatal(err)
		}
		requests[i] = limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: fmt.Sprint("tenant-", i)},
			Charges: []limit.Charge{{Limit: l, Cost: 1}}}
	}
	now := time.Unix(1_800_000_000, 0)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		var d limit.Decision
		for i := 0; pb.Next(); i++ {
			if err := f.Decide(b.Context(), &requests[i%len(requests)], now, &d); err != nil || !d.Degraded {
				b.Errorf("degraded %t, %v", d.Degraded, err)
				return
			}
		}
	})
}
