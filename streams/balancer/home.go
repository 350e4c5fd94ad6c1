package balancer

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// home works out which limits of pinned tenants are to be homed: see the package comment.
func (b *Balancer) home(ctx context.Context, s *shares.State, t *table, plans map[string]*plan.Plan) {
	fleets := [][]shares.Weight{serving(s), t.wished(s)}
	for i := range t.pins {
		w := &t.pins[i]
		if w.Homed = nil; len(w.tenant) == 0 {
			continue
		}
		homed, err := w.homed(plans, fleets)
		if err != nil {
			b.c.Log.WarnContext(ctx, "what a tenant has for itself cannot be read; its limits are divided as they were",
				"pin", w.key, "version", w.version, "error", err)
			w.Homed = t.homedNow(s, w.Tenant)
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

// serving are the cells that serve, or are to by the transition under way.
func serving(s *shares.State) (cells []shares.Weight) {
	for _, m := range s.Members {
		if m.Weight > 0 && !m.Forced {
			cells = append(cells, shares.Weight{Cell: m.Cell, Weight: m.Weight})
		}
	}
	return cells
}

// wished are the cells that serve once all is as it is asked for.
func (t *table) wished(s *shares.State) (cells []shares.Weight) {
	asked := map[string]bool{}
	for i := range t.cells { // by id
		w := &t.cells[i]
		asked[w.Cell] = true
		if (w.Kind == shares.Join || w.Kind == shares.Weigh) && w.Weight > 0 && w.Weight <= shares.MaxWeight {
			cells = append(cells, shares.Weight{Cell: w.Cell, Weight: w.Weight})
		}
	}
	for _, c := range serving(s) {
		if !asked[c.Cell] {
			cells = append(cells, c)
		}
	}
	slices.SortFunc(cells, func(a, b shares.Weight) int { return strings.Compare(a.Cell, b.Cell) })
	return cells
}

// homed are the ids, ascending, of the tenant's limits that one of the fleets cannot divide. Those that are the plan's
// own are left to the plan, unless few cells serve the tenant.
func (w *wish) homed(plans map[string]*plan.Plan, fleets [][]shares.Weight) (ids []string, err error) {
	defer func() { // a pin is what others wrote: it may not end the process
		if p := recover(); p != nil {
			err = fmt.Errorf("it cannot be compiled: %v", p)
		}
	}()
	read, err := plan.ReadTenant(plan.Document{Kind: plan.KindTenant, ID: w.Tenant, Body: w.tenant})
	if err != nil {
		return nil, err
	}
	p := plans[read.PlanID()]
	if p == nil && read.PlanID() != "" {
		return nil, fmt.Errorf("there is no plan %.80q that can be read", read.PlanID())
	}
	tenant, err := read.Compile(p)
	if err != nil {
		return nil, err
	}
	for _, cells := range fleets {
		if len(w.Cells) > 0 {
			cells = slices.DeleteFunc(slices.Clone(cells),
				func(c shares.Weight) bool { return !slices.Contains(w.Cells, c.Cell) })
		}
		for _, set := range tenant.Sets() {
			for i, e := range set.Limits {
				own := len(w.Cells) > 0 || e != p.Set().Limits[i]
				// A limit that cannot be divided is homed wherever it is.
				if own && !e.Limit.Tiers[0].Algorithm.Indivisible() && shares.NeedsHome(e.Limit, cells) {
					ids = append(ids, e.Limit.ID)
				}
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// homedNow is what is homed of the tenant, once the transition under way has ended.
func (t *table) homedNow(s *shares.State, tenant string) []string {
	if p := t.placement(s, tenant); p != nil {
		return p.Generations[len(p.Generations)-1].Homed
	}
	return nil
}
