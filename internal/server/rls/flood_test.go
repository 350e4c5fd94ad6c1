package rls_test

import (
	"fmt"
	"log/slog"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/server/rls"
)

// Guarantees that a flood of new addresses, or of other new values, causes no errors, admits nobody above a limit, and
// does not evict the counters of others.
func TestFlood(t *testing.T) {
	for key, minimum := range map[string]int{"remote_address": 100, "a": 1000} { // addresses share counters
		quiet := slog.New(slog.DiscardHandler)
		own, err := memory.New(memory.Config{MaxBytes: 256 << 10, Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		store, err := resilience.NewFallback(resilience.FallbackConfig{Store: own, Bytes: 256 << 10, Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, rls.Config{Store: store}, file)
		w.want("ok: ok 3", descriptorWithHits("b=early", 2))
		admitted := 0
		for i := range 20_000 {
			if w.ask(descriptor(fmt.Sprintf("%s=%d", key, i))).GetOverallCode() == rlsv3.RateLimitResponse_OK {
				admitted++
			}
		}
		if admitted < minimum {
			t.Errorf("%s: %d of 20,000 new values are admitted, want at least %d", key, admitted, minimum)
		}
		last := fmt.Sprintf("%s=%d", key, 19_999)
		for range 5 {
			w.ask(descriptor(last))
		}
		if got := w.ask(descriptor(last)).GetOverallCode(); got != rlsv3.RateLimitResponse_OVER_LIMIT {
			t.Errorf("%s: the last value is admitted although its limit is used up", key)
		}
		w.want("ok: ok 0", descriptorWithHits("b=early", 3))
		if n := own.Bytes(); n > 256<<10 {
			t.Errorf("%s: the counters take %d bytes, more than their maximum", key, n)
		}
	}
}
