package balancer

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// setHomed determines which limits of pinned tenants must be counted by a home cell: see the package comment.
func (b *Balancer) setHomed(ctx context.Context, s *shares.State, t *table, plans map[string]*plan.Plan) {
	cellLists := [][]shares.Weight{servingCells(s), t.wishedCells(s)}
	for i := range t.pins {
		w := &t.pins[i]
		if w.Homed = nil; len(w.tenant) == 0 {
			continue
		}
		homed, err := w.undivided(plans, cellLists)
		if err != nil {
			b.c.Log.WarnContext(ctx,
				"the overrides or boosts of a tenant cannot be read; its limits stay divided as they are",
				"pin", w.key, "version", w.version, "error", err)
			w.Homed = t.homedAfterTransition(s, w.Tenant)
			continue
		}
		if n := len(homed) - shares.MaxPlaced; n > 0 {
			b.c.Log.ErrorContext(ctx,
				"too many limits of a tenant are too small to be divided: large costs of some are denied",
				"pin", w.key, "limits", n, "first", homed[shares.MaxPlaced])
			homed = homed[:shares.MaxPlaced]
		}
		w.Homed = homed
	}
}

// servingCells returns the cells that serve, or will serve after the current transition.
func servingCells(s *shares.State) (cells []shares.Weight) {
	for _, m := range s.Members {
		if m.Weight > 0 && !m.Forced {
			cells = append(cells, shares.Weight{Cell: m.Cell, Weight: m.Weight})
		}
	}
	return cells
}

// wishedCells returns the cells that will serve when all wishes are fulfilled.
func (t *table) wishedCells(s *shares.State) (cells []shares.Weight) {
	asked := map[string]bool{}
	for i := range t.cells { // ordered by id
		w := &t.cells[i]
		asked[w.Cell] = true
		if (w.Kind == shares.Join || w.Kind == shares.Weigh) && w.Weight > 0 && w.Weight <= shares.MaxWeight {
			cells = append(cells, shares.Weight{Cell: w.Cell, Weight: w.Weight})
		}
	}
	for _, c := range servingCells(s) {
		if !asked[c.Cell] {
			cells = append(cells, c)
		}
	}
	slices.SortFunc(cells, func(a, b shares.Weight) int { return strings.Compare(a.Cell, b.Cell) })
	return cells
}

// undivided returns the ids, in ascending order, of the tenant's limits that are too small to be divided among the
// cells of at least one of the given lists. It leaves out limits that are the same as in the plan, which are homed for
// all tenants of the plan, unless only some of the cells serve the tenant.
func (w *wish) undivided(plans map[string]*plan.Plan, cellLists [][]shares.Weight) (ids []string, err error) {
	defer func() { // admin wrote the pin: a panic over its content must not end the process
		if p := recover(); p != nil {
			err = fmt.Errorf("the limits cannot be compiled: %v", p)
		}
	}()
	read, err := plan.ReadTenant(plan.Document{Kind: plan.KindTenant, ID: w.Tenant, Body: w.tenant})
	if err != nil {
		return nil, err
	}
	p := plans[read.PlanID()]
	if p == nil && read.PlanID() != "" {
		return nil, fmt.Errorf("plan %.80q does not exist or cannot be read", read.PlanID())
	}
	tenant, err := read.Compile(p)
	if err != nil {
		return nil, err
	}
	for _, cells := range cellLists {
		if len(w.Cells) > 0 {
			cells = slices.DeleteFunc(slices.Clone(cells),
				func(c shares.Weight) bool { return !slices.Contains(w.Cells, c.Cell) })
		}
		for _, set := range tenant.Sets() {
			for i, e := range set.Limits {
				own := len(w.Cells) > 0 || e != p.Set().Limits[i]
				// A limit that is Indivisible is counted by a home cell in any case.
				if own && !e.Limit.Tiers[0].Algorithm.Indivisible() && shares.NeedsHome(e.Limit, cells) {
					ids = append(ids, e.Limit.ID)
				}
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// homedAfterTransition returns the limits of the tenant that a home cell counts after the current transition.
func (t *table) homedAfterTransition(s *shares.State, tenant string) []string {
	if p := t.nextPlacement(s, tenant); p != nil {
		return p.Generations[len(p.Generations)-1].Homed
	}
	return nil
}
