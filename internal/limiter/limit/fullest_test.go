package limit_test

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
)

// Guarantees that Fullest returns the used part of the fullest counter after an admission, as the store counts it, also
// above the limit, and that a denial, a shadow limit and a lowered limit do not count.
func TestFullest(t *testing.T) {
	store := memorytest.New(t)
	made := func(id string, mode limit.Mode, units int64) *limit.Limit {
		l, err := limit.New(limit.Limit{ID: id, Mode: mode, MaxCost: 10,
			Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: units, Period: time.Hour}}})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	narrow, wide, shadow := made("narrow", limit.Enforce, 8), made("wide", limit.Enforce, limit.MaxUnits),
		made("shadow", limit.Shadow, 10)
	decide := func(ahead []limit.LeaseRequest, charges ...limit.Charge) (d limit.Decision) {
		t.Helper()
		req := &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: "acme"}, Charges: charges, Leases: ahead}
		if err := store.Decide(t.Context(), req, now, &d); err != nil {
			t.Fatal(err)
		}
		return d
	}
	want := func(what string, d limit.Decision, allowed bool, fullest int64) {
		t.Helper()
		if got := d.Fullest(); d.Allowed != allowed || got != fullest {
			t.Errorf("%s: allowed %t, Fullest %d thousandths; want allowed %t, %d", what, d.Allowed, got, allowed,
				fullest)
		}
	}
	want("the first of eight", decide(nil, limit.Charge{Limit: narrow, Cost: 1}, limit.Charge{Limit: wide, Cost: 1}),
		true, 125)
	want("a shadow is full", decide(nil, limit.Charge{Limit: shadow, Cost: 10}, limit.Charge{Limit: wide, Cost: 1}),
		true, 0)
	want("full", decide(nil, limit.Charge{Limit: narrow, Cost: 7}), true, 1000)
	want("denied", decide(nil, limit.Charge{Limit: narrow, Cost: 1}), false, 0)
	want("lowered", decide(nil, limit.Charge{Limit: made("narrow", limit.Enforce, 2), Cost: 1}), false, 0)
	// An instance has admitted ten units without the store, and the store is charged for them.
	past := decide([]limit.LeaseRequest{{Correction: 10, CorrectionAt: now.UnixMicro()}},
		limit.Charge{Limit: narrow, Cost: 1})
	want("counted past the limit", past, true, 2250)
	past.Degraded = true
	want("without the store", past, true, 0)
	if d := decide([]limit.LeaseRequest{{Correction: limit.MaxUnits, CorrectionAt: now.UnixMicro()}},
		limit.Charge{Limit: made("most", limit.Enforce, limit.MaxUnits), Cost: 1}); d.Fullest() != 1000 {
		t.Errorf("Fullest of the largest count that is possible is %d, want 1000 thousandths", d.Fullest())
	}
}
