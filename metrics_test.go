package sluice_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// Guarantees that the metrics of a limiter tell of its decisions by reason, of the calls of its store, of leases and of
// the circuit breaker, that no tenant is in them, and that a peek is not counted.
func TestMetrics(t *testing.T) {
	store := openRedis(t, redistest.Start(t).Addr)
	for _, measure := range []bool{true, false} {
		l := open(t, daily, func(c *sluice.Config) { c.Store, c.Measure, c.Now = store, measure, time.Now })
		for range 30 {
			l.Decide(t.Context(), sluice.Identity{Tenant: "acme"}, sluice.Request{})
		}
		l.Decide(t.Context(), sluice.Identity{Tenant: "nobody"}, sluice.Request{})
		l.Peek(t.Context(), sluice.Identity{Tenant: "acme"}, sluice.Request{})
		var text strings.Builder
		if err := l.WriteMetrics(&text); err != nil {
			t.Fatal(err)
		}
		for want, always := range map[string]bool{
			`sluice_decision_seconds_count{reason="allowed"} 30`:             false,
			`sluice_decision_seconds_count{reason="unknown_tenant"} 1`:       false,
			`sluice_store_call_seconds_count{store="Redis",failed="false"} `: false,
			`sluice_lease_decisions_total{how="admitted_from_leases"} `:      true,
			`sluice_breaker_open{store="Redis"} 0`:                           true,
			"sluice_instances ":                                              true,
		} {
			if got := strings.Contains(text.String(), "\n"+want); got != (measure || always) {
				t.Errorf("Measure %v: %s is there: %v, in\n%s", measure, want, got, &text)
			}
		}
		if strings.Contains(text.String(), "acme") {
			t.Errorf("a tenant is in the metrics:\n%s", &text)
		}
	}
	if got := open(t, daily, nil).Metrics(); len(got) != 0 {
		t.Errorf("without a store and Measure: %v", got)
	}
}

// Guarantees that settlements are counted by result.
func TestSettlementMetrics(t *testing.T) {
	l := open(t, reservable, func(c *sluice.Config) { c.Measure = true })
	_, r := l.Reserve(t.Context(), acme, sluice.Request{}, sluice.Costs{"tokens": 40}, time.Hour)
	for range 3 {
		if _, err := l.Settle(t.Context(), r, sluice.Costs{"tokens": 30}); err != nil {
			t.Error(err)
		}
	}
	if _, err := open(t, reservable, nil).Cancel(t.Context(), r); err == nil {
		t.Error("another limiter settles the reservation")
	}
	var text strings.Builder
	if err := l.WriteMetrics(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`{result="settled"} 1`, `{result="repeated"} 2`} {
		if !strings.Contains(text.String(), "\nsluice_settlement_seconds_count"+want) {
			t.Errorf("no %s in\n%s", want, &text)
		}
	}
}
