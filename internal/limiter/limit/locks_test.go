package limit_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
)

// unavailable is a store that fails every call.
type unavailable struct{ limit.Store }

var errUnavailable = errors.New("unavailable")

func (unavailable) Decide(_ context.Context, _ *limit.Request, now time.Time, d *limit.Decision) error {
	d.Clear(now.UnixMicro())
	return errUnavailable
}

// Guarantees that no store computes a calendar period while it holds a lock: whenever one is computed, another request
// of the same owner, whose counters have the same locks, is decided at the same time.
func TestNoPeriodIsComputedUnderALock(t *testing.T) {
	var now time.Time // the time that the clock of the lease layer shows
	quota := mustNew(t, limit.Limit{ID: "quota", Tiers: []limit.Tier{daily}})
	rate := mustNew(t, limit.Limit{ID: "rate", Tiers: []limit.Tier{bucket}})
	for _, tt := range []struct {
		name  string
		store func() (limit.Store, error)
	}{
		{"memory", func() (limit.Store, error) { return memorytest.New(t), nil }},
		{"lease", func() (limit.Store, error) {
			return lease.New(lease.Config{Store: memorytest.New(t), GiveBackEvery: -1,
				Clock: func() time.Time { return now }})
		}},
		{"outage", func() (limit.Store, error) {
			return resilience.NewFallback(resilience.FallbackConfig{Store: unavailable{memorytest.New(t)},
				Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now = time.UnixMicro(noon)
			store, err := tt.store()
			if err != nil {
				t.Fatal(err)
			}
			decide := func(l *limit.Limit, cost int64) error {
				var d limit.Decision
				return store.Decide(t.Context(), &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: "acme"},
					Charges: []limit.Charge{{Limit: l, Cost: cost}}}, now, &d)
			}
			computed := 0
			limit.OnPeriod(t, func() {
				computed++
				done := make(chan error, 1)
				go func() { done <- decide(rate, 1) }()
				select {
				case err := <-done:
					if err != nil {
						t.Error(err)
					}
				case <-time.After(5 * time.Second):
					if !t.Failed() {
						t.Error("while a calendar period is computed, no other request of the owner is decided: a " +
							"lock is held")
					}
				}
			})
			for _, next := range []time.Duration{0, 24 * time.Hour, time.Hour, -25 * time.Hour, 800 * time.Hour} {
				now = now.Add(next)
				for _, cost := range []int64{1, 1, 40, 100, 1000} { // admitted, denied, and never admitted
					if err := decide(quota, cost); err != nil {
						t.Fatal(err)
					}
				}
				if leases, ok := store.(*lease.Store); ok {
					leases.GiveBackSpare(t.Context(), now)
				}
				if t.Failed() {
					return
				}
			}
			if computed == 0 {
				t.Error("no period was computed: the test shows nothing")
			}
		})
	}
}
