package resilience

import (
	"context"
	"errors"
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

// TestTouch guarantees that Touch finds the part and the pending units of an owner that was decided without the store,
// finds no pending units of another owner, and changes nothing.
func TestTouch(t *testing.T) {
	next, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := NewFallback(FallbackConfig{Store: brokenStore{next}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	l, err := limit.New(limit.Limit{ID: "requests", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow,
		Period: time.Minute, Threshold: 10}}})
	if err != nil {
		t.Fatal(err)
	}
	charges := []limit.Charge{{Limit: l, Cost: 1}}
	known := limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: "acme"}, Charges: charges}
	unknown := limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: "globex"}, Charges: charges}
	var d limit.Decision
	if err := f.Decide(t.Context(), &known, time.Unix(1_800_000_000, 0), &d); err != nil {
		t.Fatal(err)
	}
	before := f.Stats()
	all := []Touched{{Fallback: f, Request: &known, Hash: f.Hash(known.Owner)},
		{Fallback: f, Request: &unknown, Hash: f.Hash(unknown.Owner)}, {Fallback: f, Request: &limit.Request{}}}
	Touch(all)
	if all[0].part == nil || all[0].part != all[1].part || all[2].part != nil {
		t.Errorf("Touch found the parts %p, %p and %p, want one part twice, and none of a request without limits",
			all[0].part, all[1].part, all[2].part)
	}
	if all[0].pending == nil || all[1].pending != nil {
		t.Errorf("Touch found the pending units %p of the owner that has some and %p of the other, want one and nil",
			all[0].pending, all[1].pending)
	}
	if after := f.Stats(); after != before {
		t.Errorf("Touch changed the stats from %+v to %+v, want no change", before, after)
	}
}
