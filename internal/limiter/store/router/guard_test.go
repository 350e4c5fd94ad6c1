package router_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// counting is a guard that counts the calls which it lets through, or refuses all calls.
type counting struct {
	refusal                error
	decided, peeked, given atomic.Int64
}

func (g *counting) Decide(
	ctx context.Context, s limit.Store, req *limit.Request, now time.Time, d *limit.Decision,
) error {
	if g.decided.Add(1); g.refusal != nil {
		d.Clear(now.UnixMicro())
		return g.refusal
	}
	return s.Decide(ctx, req, now, d)
}

func (g *counting) Peek(
	ctx context.Context, s limit.Store, req *limit.Request, now time.Time, d *limit.Decision,
) error {
	if g.peeked.Add(1); g.refusal != nil {
		d.Clear(now.UnixMicro())
		return g.refusal
	}
	return s.Peek(ctx, req, now, d)
}

func (g *counting) Settle(
	ctx context.Context, s limit.Store, r *limit.Receipt, used []int64, now time.Time,
) (limit.Settlement, error) {
	if g.given.Add(1); g.refusal != nil {
		return limit.Settlement{}, g.refusal
	}
	return s.Settle(ctx, r, used, now)
}

// Guarantees that every call of a store goes through its guard. Otherwise a store that does not answer would be called
// for every request.
func TestEveryCallIsGuarded(t *testing.T) {
	for name, of := range map[string]func(rates, quotas, home router.Backend) router.Config{
		"one store": func(rates, _, _ router.Backend) router.Config { return router.Config{Rates: rates} },
		"two stores": func(rates, quotas, _ router.Backend) router.Config {
			return router.Config{Rates: rates, Quotas: quotas}
		},
		"and a home": func(rates, quotas, home router.Backend) router.Config {
			return router.Config{Rates: rates, Quotas: quotas, Homes: map[string]router.Backend{"there": home}}
		},
	} {
		var guards [3]counting
		c := of(router.Backend{Store: newMemory(t), Guard: &guards[0]}, router.Backend{Store: newMemory(t),
			Guard: &guards[1]},
			router.Backend{Store: newMemory(t), Guard: &guards[2]})
		s, err := router.New(c)
		if err != nil {
			t.Fatal(err)
		}
		limits, concerned := []*limit.Limit{rate(t, 9)}, guards[:1]
		if c.Quotas.Store != nil {
			limits, concerned = append(limits, quota(t, 9)), guards[:2]
		}
		if c.Homes != nil {
			limits, concerned = append(limits, newLimit(t, "kept", limits[1].Tiers[0]).KeptIn("there")), guards[:]
		}
		var d limit.Decision
		if err := s.Decide(t.Context(), requestOf(limits...), start, &d); err != nil || !d.Allowed {
			t.Fatalf("%s: allowed %t, %v", name, d.Allowed, err)
		}
		if _, err := s.Settle(t.Context(), d.Receipt(), nil, start); err != nil {
			t.Fatal(err)
		}
		if err := s.Peek(t.Context(), requestOf(limits...), start, &d); err != nil {
			t.Fatal(err)
		}
		for i := range concerned {
			if g := &concerned[i]; g.decided.Load() != 1 || g.peeked.Load() != 1 || g.given.Load() != 1 {
				t.Errorf("%s: guard %d made %d, %d and %d calls, want one of each kind", name, i, g.decided.Load(),
					g.peeked.Load(), g.given.Load())
			}
		}
		for i := range concerned {
			concerned[i].refusal = errUnavailable
			err := s.Decide(t.Context(), requestOf(limits...), start, &d)
			if !errors.Is(err, errUnavailable) || d.Allowed || len(d.Results) > 0 {
				t.Errorf("%s: guard %d refuses, but the decision has the error %v, allowed %t; want the guard's error",
					name, i, err, d.Allowed)
			}
			concerned[i].refusal = nil
		}
	}
}

// Guarantees that one store through its guard keeps the contract of a store.
func TestContractOfOneBackend(t *testing.T) {
	limittest.RunStoreContract(t, limittest.Config{
		New: func(tb testing.TB) limit.Store {
			s, err := router.New(router.Config{Rates: router.Backend{Store: newMemory(tb), Guard: new(counting)}})
			if err != nil {
				tb.Fatal(err)
			}
			return s
		},
		Scripts: soak.Times(20), Leases: true,
	})
}

func TestNewRefuses(t *testing.T) {
	full := router.Backend{Store: newMemory(t)}
	for want, c := range map[string]router.Config{
		"needs a store for rates": {Quotas: full},
		`home "" needs a name`:    {Rates: full, Homes: map[string]router.Backend{"": full}},
		`home "a" needs`:          {Rates: full, Homes: map[string]router.Backend{"a": {}}},
		`home "a" is the cell`:    {Rates: full, Cell: "a", Homes: map[string]router.Backend{"a": full}},
	} {
		if _, err := router.New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v, want an error with %q", err, want)
		}
	}
}
