package devcells_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/dev/devcells"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// newPlaneOfTwo returns a plane to which the cells a and b can be added, and their names.
func newPlaneOfTwo(t *testing.T, every time.Duration) (*devcells.Plane, []string) {
	t.Helper()
	p, err := devcells.Open(devcells.Config{Folder: t.TempDir(),
		Peppers: map[string][]byte{identity.DevPepperID: identity.DevPepper()},
		NewKeys: identity.DevPepperID, Several: true, Log: slog.New(slog.DiscardHandler), ReconcileEvery: every,
		CanaryEvery: every})
	if err != nil {
		t.Fatal(err)
	}
	names, err := p.Join(t.Context(), []string{"a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Divide(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p, names
}

func addCell(t *testing.T, p *devcells.Plane, name string) *devcells.Cell {
	t.Helper()
	c, err := p.AddCell(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// scheduled returns a plane with two cells that are checked every so often.
func scheduled(t *testing.T, every time.Duration) (*devcells.Plane, []*devcells.Cell) {
	t.Helper()
	p, names := newPlaneOfTwo(t, every)
	var cells []*devcells.Cell
	for _, name := range names {
		cells = append(cells, addCell(t, p, name))
	}
	return p, cells
}

// Guarantees that a cell which is added after the first checks, as on a slow machine, is checked soon and not only when
// the others are due again.
func TestLaterCellIsCheckedSoon(t *testing.T) {
	p, names := newPlaneOfTwo(t, time.Hour)
	defer closed(t, p)
	for _, name := range names {
		c := addCell(t, p, name)
		waitUntil(t, "cell "+name+" was measured and compared", func() bool {
			k := checked(t, c)
			return !k.ReconciledAt.IsZero() && !k.CanaryAt.IsZero()
		})
	}
}

func waitUntil(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(30 * time.Second); !holds(); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("after 30 s it is still not true that %s", what)
		}
	}
}

// checked returns the latest checks of a cell.
func checked(t *testing.T, c *devcells.Cell) devcells.Checked {
	t.Helper()
	return c.Overview(t.Context(), time.Now(), 0).Checked
}

// value returns a metric of the plane, or -1 if there is none.
func value(p *devcells.Plane, function, cell, name string) float64 {
	for _, m := range p.Metrics() {
		if m.Function == function && m.Cell == cell && m.Name == name {
			return m.Value
		}
	}
	return -1
}

// Guarantees that cells which share limits are measured and compared with the control tables on a schedule, as those in
// AWS are. The checks show how long a change takes and what was written past the control plane; what was lost is
// restored; and the metrics of all functions can be read.
func TestSchedules(t *testing.T) {
	p, cells := scheduled(t, 20*time.Millisecond)
	defer closed(t, p)
	if _, err := p.ApplyFiles(t.Context(), "plans.yaml", file(base)); err != nil {
		t.Fatal(err)
	}
	for _, c := range cells {
		waitUntil(t, "the canary has been seen in "+c.Name, func() bool {
			k := checked(t, c)
			return k.Enforced > 0 &&
				k.Applied > 0
		})
		if k := checked(t, c); k.Missed || k.CanaryAt.IsZero() || k.Applied > k.Enforced {
			t.Errorf("the checks of cell %s are %+v", c.Name, k)
		}
	}
	item, err := p.Tables().Get(t.Context(), control.Plans, "@canary")
	if err != nil || item.Actor != "function:canary" {
		t.Errorf("the canary's item is %+v, %v", item, err)
	}
	// Somebody writes a plan into the table of one cell.
	if k := checked(t, cells[0]); k.Drift != 0 {
		t.Fatalf("before the forged write the checks are %+v", k)
	}
	stray := cellconfig.Document{Ref: cellconfig.Ref{Kind: plan.KindPlan, ID: "stray"}, Version: 1,
		Body: []byte(`{"id":"stray","limits":[{"id":"l","tiers":[{"period":"1s","threshold":1}]}]}`)}
	if _, err := cellconfig.Apply(t.Context(), cells[0].Store(), []cellconfig.Document{stray}, time.Now); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "the plan of nobody is removed", func() bool {
		got, err := cells[0].Store().Get(t.Context(), stray.Ref)
		return err == nil && got[0].Version == 0
	})
	if k := checked(t, cells[1]); k.Drift != 0 || k.ReconciledAt.IsZero() {
		t.Errorf("the checks of the other cell are %+v", k)
	}
	for _, want := range []struct {
		function, cell, name string
		least, most          float64
	}{
		{"publisher", "", "events_published", 2, 1e9},
		{"archiver", "", "objects_made", 2, 1e9},
		{"balancer", "", "active_cell_count", 2, 2},
		{"applier", "a", "documents_applied", 2, 1e9},
		{"applier", "b", "apply_seconds", 1e-6, 70},
		{"canary", "b", "propagation_seconds", 1e-6, 70},
		{"canary", "b", "canary_missed", 0, 0},
		{"reconcile", "a", "drift_unknown", 0, 1}, // counted by the run that removed it, or by the one after
		{"reconcile", "b", "drift_unknown", 0, 0},
	} {
		if got := value(p, want.function, want.cell, want.name); got < want.least || got > want.most {
			t.Errorf("%s %s of cell %q is %v, want %v to %v", want.function, want.name, want.cell, got, want.least,
				want.most)
		}
	}
}

// Guarantees that each cell shows its part of each limit as soon as it has read a plan with limits.
func TestPartOfLimits(t *testing.T) {
	p, cells := scheduled(t, time.Hour)
	defer closed(t, p)
	if _, err := p.ApplyFiles(t.Context(), "plans.yaml",
		file(base+"tenants: [ { id: acme, plan: p } ]\n")); err != nil {
		t.Fatal(err)
	}
	if err := p.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	sum := func() (sum float64) {
		for _, c := range cells {
			if _, err := c.Tenant(t.Context(), "acme", time.Now()); err != nil {
				t.Fatal(err)
			}
			sum += max(value(p, "authorizer", c.Name, "per_cell_limit_effective"), 0)
		}
		return sum
	}
	waitUntil(t, "the cells together grant all of it", func() bool { return sum() == 100 })
}
