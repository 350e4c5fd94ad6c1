package rls_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/server/rls"
)

// far is a store that is 3 ms away. One of its calls can panic.
type far struct {
	limit.Store
	panics atomic.Int64 // the number of the call that panics, counted down; 0: none
}

const roundTrip = 3 * time.Millisecond

func (f *far) wait() {
	<-time.After(roundTrip) // in a bubble of synctest
	if f.panics.Load() > 0 && f.panics.Add(-1) == 0 {
		panic("broken")
	}
}

func (f *far) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	f.wait()
	return f.Store.Decide(ctx, req, now, d)
}

func (f *far) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	f.wait()
	return f.Store.Peek(ctx, req, now, d)
}

func (f *far) Settle(ctx context.Context, r *limit.Receipt, used []int64, now time.Time) (limit.Settlement, error) {
	f.wait()
	return f.Store.Settle(ctx, r, used, now)
}

// Guarantees that a request waits for one round trip to the store, however many descriptors it has and whatever kinds
// they are of; that a first denial costs one more, to refund the others; that a denial which repeats makes one call;
// and that a panic in one of the calls is one of the request.
func TestOneRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, err := memory.New(memory.Config{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		store := &far{Store: inner}
		w := newWorld(t, rls.Config{Store: store, Together: true}, file)
		trips := func(want time.Duration, result string, asked ...*ratelimitv3.RateLimitDescriptor) {
			t.Helper()
			began := time.Now()
			w.want(result, asked...)
			if took := time.Since(began) / roundTrip; took != want {
				t.Errorf("%v: %d round trips, want %d", asked, took, want)
			}
		}
		for n, want := range map[int]string{1: "ok: ok 4", 3: "ok: ok 4 ok 4 ok 4", 5: "ok: ok 4 ok 4 ok 4 ok 4 ok 4"} {
			var asked []*ratelimitv3.RateLimitDescriptor
			for i := range n {
				asked = append(asked, descriptor(fmt.Sprintf("b=%d of %d", i, n)))
			}
			trips(1, want, asked...)
		}
		trips(1, "ok: ok 2 ok 4 ok 0 ok 0 ok 2 ok 10", descriptor("a=x"), descriptor("b=x"), descriptor("shadow=x"),
			descriptor("q1=x"), descriptorWithHits("tokens=x", 8), descriptorWithHits("mixed=x", 0))
		trips(2, "over: ok 4 over 0 ok - ok -", descriptor("b=x"), descriptorWithHits("a=x", 3), descriptor("shadow=x"),
			descriptor("q1=x"))
		trips(1, "over: ok - over 0", descriptor("b=x"), descriptorWithHits("a=x", 3))
		trips(1, "ok: ok 1", descriptor("a=x"))
		w.now = w.now.Add(2 * time.Second) // the denial is no longer a likely one
		trips(1, "ok: ok 3 ok 0", descriptor("b=x"), descriptor("a=x"))
		for call := int64(1); call <= 2; call++ {
			store.panics.Store(call)
			func() {
				defer func() {
					if p := recover(); p != "broken" {
						t.Errorf("call %d panicked, and the request ends with %v", call, p)
					}
				}()
				_, _ = w.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "d",
					Descriptors: []*ratelimitv3.RateLimitDescriptor{descriptor("b=p"), descriptor("a=p")}})
			}()
		}
	})
}
