package router_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
)

// spoiled is a store that answers that it cannot decide the requests of one owner.
type spoiled struct {
	limit.Store
	bad     limit.Owner
	decided atomic.Int64
}

func (s *spoiled) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	s.decided.Add(1)
	if req.Owner == s.bad {
		return limit.ErrUnreadable
	}
	return s.Store.Decide(ctx, req, now, d)
}

func (s *spoiled) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if req.Owner == s.bad {
		return limit.ErrUnreadable
	}
	return s.Store.Peek(ctx, req, now, d)
}

// Guarantees that rates that cannot be decided for one owner cost the owner's quotas nothing.
func TestUndecidableRates(t *testing.T) {
	rates, quotas := &spoiled{Store: newMemory(t), bad: limit.Owner{Kind: limit.Tenant, Name: "bad"}},
		&spoiled{Store: newMemory(t)}
	s, err := router.New(router.Config{Rates: router.Backend{Store: rates}, Quotas: router.Backend{Store: quotas}})
	if err != nil {
		t.Fatal(err)
	}
	r, q := rate(t, 10), quota(t, 100)
	decide := func(o limit.Owner) error {
		var d limit.Decision
		return s.Decide(t.Context(), &limit.Request{Owner: o, Charges: []limit.Charge{{Limit: r, Cost: 1},
			{Limit: q, Cost: 1}},
			Leases: []limit.LeaseRequest{leaseOf(1, 1), leaseOf(1, 5)}}, start, &d)
	}
	for range 50 {
		if err := decide(rates.bad); !errors.Is(err, limit.ErrUnreadable) || !limit.Answered(err) {
			t.Fatalf("Decide = %v, want ErrUnreadable", err)
		}
	}
	if n := quotas.decided.Load(); n != 0 {
		t.Errorf("the quotas were charged %d times for an owner whose rates cannot be decided, want never", n)
	}
	if err := decide(owner); err != nil {
		t.Errorf("another owner: %v", err)
	}
}

// Guarantees that the error of a correction says that the stores answered if one part was corrected and the other store
// answered that it cannot be.
func TestUndecidableCorrection(t *testing.T) {
	for name, c := range map[string]struct {
		rates, quotas error
		answered      bool
	}{
		"the rates cannot be read":                       {limit.ErrUnreadable, nil, true},
		"the quotas are too many":                        {nil, limit.ErrTooLarge, true},
		"both, for different reasons":                    {limit.ErrUnreadable, limit.ErrTooLarge, true},
		"the quotas are away and the rates are not read": {limit.ErrUnreadable, errUnavailable, false},
	} {
		s, err := router.New(router.Config{Rates: router.Backend{Store: &failing{newMemory(t), c.rates}},
			Quotas: router.Backend{Store: &failing{newMemory(t), c.quotas}}})
		if err != nil {
			t.Fatal(err)
		}
		at := start.UnixMicro()
		var d limit.Decision
		err = s.Decide(t.Context(), &limit.Request{Owner: owner, Charges: []limit.Charge{{Limit: rate(t, 10), Cost: 1},
			{Limit: quota(t, 10), Cost: 1}},
			Leases: []limit.LeaseRequest{{Correction: 1, CorrectionAt: at},
				{Correction: 1, CorrectionAt: at}}}, start, &d)
		if err == nil || limit.Answered(err) != c.answered || errors.Is(err, errUnavailable) {
			t.Errorf("%s: %v says that the stores answered: %t, want %t", name, err, limit.Answered(err), c.answered)
		}
	}
}
