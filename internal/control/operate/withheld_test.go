package operate_test

import (
	"context"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/plan"
	"strings"
	"testing"
)

// Guarantees that an operator who asks a cell about a limit that is kept in another cell, which it cannot reach, gets
// an error: the cell's own store does not have the counters.
func TestLimitsOfOtherCells(t *testing.T) {
	w, _ := newClockedWorld(t)
	if !w.spend("acme", "long", 10) || !w.spend("acme", "fixed", 3) {
		t.Fatal("the first charges are denied, want them allowed")
	}
	c := w.settings(w.store, w.tables)
	c.Tenant = func(_ context.Context, id string) (*plan.Tenant, error) {
		tenant, _ := w.config.Tenant(id)
		return tenant.WithParts(func(set *plan.Set) []plan.Part {
			return []plan.Part{{Set: set.WithShares(func(e *plan.Effective) plan.Share {
				if e.Limit.ID == "long" {
					return plan.Share{Why: "kept in another cell"}
				}
				return plan.Share{Limit: e.Limit}
			})}}
		}), nil
	}
	s := operate.NewCell(c)
	of := operate.Counters{Tenant: "acme", Limit: "long", Reason: "our fault"}
	back := of
	back.Units = 10
	_, peek := s.Peek(t.Context(), actor, &of)
	_, reset := s.Reset(t.Context(), actor, &of)
	_, refund := s.Refund(t.Context(), actor, &back)
	for does, err := range map[string]error{"peek": peek, "reset": reset, "refund": refund} {
		if codeOf(err) != operate.Unsupported || !strings.Contains(err.Error(), "kept in another cell") {
			t.Errorf("%s: %v, want %s", does, err, operate.Unsupported)
		}
	}
	if r, err := w.s.Peek(t.Context(), actor, &operate.Counters{Tenant: "acme", Limit: "long"}); err != nil ||
		r.Counters[0].Used != 10 {
		t.Errorf("%+v, %v: want the 10 that the store was charged", r, err)
	}
	for _, path := range []string{"", "/x"} {
		r, err := s.Peek(t.Context(), actor, &operate.Counters{Tenant: "acme", Path: path})
		if err != nil || len(r.Notes) != 2 || !strings.HasSuffix(r.Notes[0], ": long") ||
			!strings.Contains(r.Notes[1], "leased") {
			t.Fatalf("peek of all: %+v, %v; want a note about what is left out", r, err)
		}
		used := map[string]int64{}
		for _, k := range r.Counters {
			used[k.Limit] = k.Used
		}
		if _, there := used["long"]; there || used["fixed"] != 3 {
			t.Errorf("peek of all: %v, want 3 of fixed, and nothing of what is kept elsewhere", used)
		}
	}
}
