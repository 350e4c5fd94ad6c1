package rls_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/server/rls"
	"github.com/sluicelimits/sluice/internal/testkit/logtest"
)

// smallStore returns a store in memory with room for few counters, and the same behind a fallback limiter.
func smallStore(t *testing.T, log *slog.Logger) (own *memory.Store, store *resilience.Fallback) {
	t.Helper()
	own, err := memory.New(memory.Config{MaxBytes: 256 << 10, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	store, err = resilience.NewFallback(resilience.FallbackConfig{Store: own, Bytes: 256 << 10, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	return own, store
}

// Guarantees that a flood of new addresses, or of other new values, causes no errors, admits nobody above a limit, and
// does not evict the counters of others.
func TestFlood(t *testing.T) {
	for key, minimum := range map[string]int{"remote_address": 100, "a": 1000} { // addresses share counters
		own, store := smallStore(t, slog.New(slog.DiscardHandler))
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

// Guarantees that values which clients choose take no more memory than is left for others, with whatever descriptor and
// algorithm they fill it: new values of the other descriptors are decided exactly, those of the flooded one are limited
// at most as loosely as alone, and the log names the descriptor that fills the memory.
func TestFloodLeavesRoom(t *testing.T) {
	const limits = `
domain: d
descriptors:
  - key: path
    rate_limit: {unit: day, requests_per_unit: 100}
  - key: tenant
    rate_limit: {unit: day, requests_per_unit: 3}
    descriptors:
      - key: user
        rate_limit: {unit: day, requests_per_unit: 3}
  - key: log
    sluice: {limits: [{id: log, algorithm: sliding_log, threshold: 50, period: 24h}]}
`
	for _, c := range []struct{ flood, names string }{
		{"path=%d", "d.path"}, {"log=%d", "d.log"}, {"tenant=evil,user=%d", "d.tenant.user"},
		{"path and log", ""}, // two descriptors of one request
	} {
		log := new(logtest.Buffer)
		logger := slog.New(slog.NewTextHandler(log, nil))
		own, store := smallStore(t, logger)
		w := newWorld(t, rls.Config{Store: store}, limits)
		flood := func(value any) rlsv3.RateLimitResponse_Code {
			if c.names != "" {
				return w.ask(descriptor(fmt.Sprintf(c.flood, value))).GetOverallCode()
			}
			return w.ask(descriptor(fmt.Sprintf("path=%v", value)), descriptor(fmt.Sprintf("log=%v", value))).
				GetOverallCode()
		}
		for i := range 10_000 {
			flood(i)
		}
		last := 0
		for range 200 {
			if flood("last") == rlsv3.RateLimitResponse_OK {
				last++
			}
		}
		if last > 100 {
			t.Errorf("%s: %d requests of one value are admitted, more than its limit", c.flood, last)
		}
		for i := range 50 {
			for n := range 4 {
				code := w.ask(descriptor(fmt.Sprintf("tenant=new%d", i))).GetOverallCode()
				if want := n < 3; (code == rlsv3.RateLimitResponse_OK) != want {
					t.Fatalf("%s: request %d of new tenant %d gets %s", c.flood, n, i, code)
				}
			}
		}
		if text := log.String(); !strings.Contains(text, "descriptor="+c.names) || strings.Contains(text, "d.tenant ") {
			t.Errorf("%s: the log says %q", c.flood, text)
		}
		if n := own.Bytes(); n > 256<<10 {
			t.Errorf("%s: the counters take %d bytes, more than their maximum", c.flood, n)
		}
	}
}
