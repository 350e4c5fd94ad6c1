package devcells

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// Overview describes what a cell enforces, for the live page.
type Overview struct {
	ChangedAt time.Time      // when the last change arrived
	Head      int64          // number of that change
	InForce   int64          // number of the last change that decisions follow
	Tenants   []*plan.Tenant // the first ones by id, with the limits that this cell grants
	Total     int            // number of all tenants
	IPLimits  *plan.Set
	Routes    int          // number of declared routes
	Epoch     int64        // epoch of the shares that the cell knows; 0 if it knows none
	Phase     shares.Phase // phase of these shares
}

// Overview describes the cell. most bounds the number of tenants in it.
func (c *Cell) Overview(ctx context.Context, now time.Time, most int) Overview {
	view, join := c.Reader.Begin(ctx, now)
	if join != nil {
		defer join()
	}
	stats := c.Reader.Stats(now)
	out := Overview{InForce: stats.Seq, IPLimits: view.IPLimits()}
	if head, err := c.table.Head(ctx); err == nil {
		out.Head = head.Seq
		if last, err := c.table.Log(ctx, head.Seq-1, head.Seq); err == nil && len(last) == 1 {
			out.ChangedAt = last[0].At
		}
	}
	ids := c.ids(ctx, plan.KindTenant)
	out.Total = len(ids)
	for _, id := range ids[:min(len(ids), most)] {
		if t, err := view.Tenant(ctx, id); err == nil && t != nil {
			out.Tenants = append(out.Tenants, t)
		}
	}
	got, err := c.table.Get(ctx, table.Ref{Kind: plan.KindSettings, ID: plan.SettingsID},
		table.Ref{Kind: table.KindShares, ID: table.SharesID})
	if err != nil {
		return out
	}
	var settings struct{ Routes []json.RawMessage }
	if json.Unmarshal(got[0].Body, &settings) == nil {
		out.Routes = len(settings.Routes)
	}
	if s, err := shares.DecodeState(got[1].Body); err == nil {
		out.Epoch, out.Phase = s.Epoch, s.Phase
	}
	return out
}

// ids returns the ids of the documents of a kind, sorted.
func (c *Cell) ids(ctx context.Context, kind table.Kind) []string {
	var ids []string
	for d, err := range c.table.List(ctx, kind) {
		if err == nil && !d.Deleted {
			ids = append(ids, d.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// Keys returns the stored API keys, sorted by id.
func (c *Cell) Keys(ctx context.Context) []*plan.Key {
	var keys []*plan.Key
	for d, err := range c.table.List(ctx, plan.KindKey) {
		if err != nil || d.Deleted {
			continue
		}
		if k, err := plan.CompileKey(plan.Document{Kind: plan.KindKey, ID: d.ID, Body: d.Body}); err == nil {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b *plan.Key) int { return cmp.Compare(a.ID, b.ID) })
	return keys
}

// Tenant returns a tenant with the limits that the cell enforces; nil if there is no such tenant.
func (c *Cell) Tenant(ctx context.Context, id string, now time.Time) (*plan.Tenant, error) {
	view, join := c.Reader.Begin(ctx, now)
	if join != nil {
		defer join()
	}
	return view.Tenant(ctx, id)
}
