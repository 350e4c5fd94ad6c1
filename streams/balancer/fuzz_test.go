package balancer

import (
	"slices"
	"testing"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// FuzzPin guarantees that every pin is either refused or homes limits of the tenant's plan, each once and in order, and
// none if one cell serves the tenant.
func FuzzPin(f *testing.F) {
	p, err := plan.CompilePlan(plan.Document{Kind: plan.KindPlan, ID: "pro", Body: []byte(`{"id":"pro","limits":[
		{"id":"burst","algorithm":"token_bucket","rate":9,"period":"1s","burst":9},
		{"id":"calls","algorithm":"fixed_window","threshold":9,"period":"1s"},
		{"id":"even","algorithm":"leaky_bucket","rate":9,"period":"1s"}]}`)})
	if err != nil {
		f.Fatal(err)
	}
	plans := map[string]*plan.Plan{"pro": p}
	three := []shares.Weight{{Cell: "a", Weight: 1}, {Cell: "b", Weight: 1}, {Cell: "c", Weight: 5}}
	for _, own := range []string{
		`null`, `{"id":"t","plan":"pro","overrides":[{"id":"burst","rate":1}]}`,
		`{"id":"t","plan":"pro","overrides":[{"id":"calls","threshold":1},{"id":"even","rate":1}]}`,
		`{"id":"t","plan":"none"}`, `{"id":"t"}`,
		`{"id":"t","plan":"pro","boosts":[{"id":"calls","factor":2,"until":"2026-12-01T00:00:00Z"}]}`,
		`{"id":"t","plan":"pro","overrides":[{"id":"none"}]}`,
	} {
		f.Add([]byte(`{"request":{"id":"i","kind":"place","tenant":"t","cells":["a","b"]},"tenant":` + own + `}`))
		f.Add([]byte(`{"request":{"id":"i","kind":"place","tenant":"t"},"tenant":` + own + `}`))
	}
	const want = "limits of the plan, each once and in order, and none if one cell serves the tenant"
	f.Fuzz(func(t *testing.T, body []byte) {
		w, err := readWish(&control.Item{Key: "pin.t", Version: 1, Body: body})
		if err != nil || len(w.tenant) == 0 {
			return
		}
		ids, err := w.undivided(plans, [][]shares.Weight{three, three[:1], nil})
		if err != nil {
			return
		}
		if !slices.IsSorted(ids) || len(slices.Compact(slices.Clone(ids))) != len(ids) || len(w.Cells) == 1 &&
			len(ids) > 0 {
			t.Fatalf("%s: the homed limits are %q, want %s", body, ids, want)
		}
		for _, id := range ids {
			if !limit.ValidID(id) || id == "even" ||
				!slices.ContainsFunc(p.Set().Limits, func(e *plan.Effective) bool { return e.Limit.ID == id }) {
				t.Fatalf("%s: the homed limits are %q, want %s", body, ids, want)
			}
		}
	})
}
