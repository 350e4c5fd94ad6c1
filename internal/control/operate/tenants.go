package operate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
)

// tree is a stored document that is being edited. Numbers are kept as they are written.
type tree = map[string]any

// decodeTree decodes a JSON object, and keeps numbers as they are written.
func decodeTree(text []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return decoder.Decode(into)
}

// change is one edit of one stored document.
type change struct {
	table  control.Table
	key    string
	what   string // "tenant", "plan"
	reason string
	expect *int64
	yes    bool // accept that counters start afresh
	create bool // create the document if there is none
	edit   func(body tree) error
}

// editable reads the item of a document. It refuses an absent or deleted one, unless the change may create it.
func (s *Control) editable(ctx context.Context, c *change) (*control.Item, error) {
	if !c.create {
		return s.liveItem(ctx, c.table, c.key, c.what)
	}
	if err := control.CheckGet(c.table, c.key); err != nil {
		return nil, Refuse(Invalid, "%s: %v", c.what, err)
	}
	return s.item(ctx, c.table, c.key)
}

// change reads a document, edits it, and applies it.
func (s *Control) change(ctx context.Context, actor string, c change) (*control.Item, error) {
	if err := checkReason(c.reason); err != nil {
		return nil, err
	}
	have, err := s.editable(ctx, &c)
	if err != nil {
		return nil, err
	}
	if err := checkVersion(c.table, c.key, have, c.expect); err != nil {
		return nil, err
	}
	body := tree{"id": c.key}
	if have != nil && !have.Deleted {
		if err := decodeTree(have.Body, &body); err != nil {
			return nil, Refuse(Internal, "%s cannot be read", name(c.table, c.key))
		}
	}
	if err := c.edit(body); err != nil {
		return nil, err
	}
	text, err := events.MarshalCanonical(body)
	if err != nil {
		return nil, Refuse(Invalid, "%s: %v", name(c.table, c.key), err)
	}
	// The operation names exactly what it changes, so the operator has asked for every loss.
	_, err = s.Apply(ctx, actor, &ApplyRequest{Reason: c.reason, Yes: c.yes, AcceptLosses: true,
		Changes: []Change{{Table: c.table, Key: c.key, Expect: versionOf(have), Body: text}}})
	if err != nil {
		return nil, err
	}
	return s.item(ctx, c.table, c.key)
}

// listOf returns a member of a document that is a list of objects; nil if the member is absent.
func listOf(body tree, name string) []any {
	list, _ := body[name].([]any)
	return list
}

func setList(body tree, name string, list []any) {
	if len(list) == 0 {
		delete(body, name)
		return
	}
	body[name] = list
}

// find returns the index of the object with the id, or -1.
func find(list []any, id string) int {
	return slices.IndexFunc(list, func(v any) bool {
		one, ok := v.(tree)
		return ok && one["id"] == id
	})
}

// SetTenantRequest changes the named parts of a tenant. If Plan or Cells is null, the stored value stays.
type SetTenantRequest struct {
	Tenant string    `json:"tenant"`
	Reason string    `json:"reason"`
	Expect *int64    `json:"expect,omitempty"`
	Create bool      `json:"create,omitempty"` // create the tenant if there is none
	Plan   *string   `json:"plan,omitempty"`
	Cells  *[]string `json:"cells,omitempty"` // the home cell first; empty: all cells
	// Overrides are settings of limits, as in a plans file, each with its id. Settings that an entry does not name
	// stay.
	Overrides []json.RawMessage `json:"overrides,omitempty"`
	Drop      []string          `json:"drop,omitempty"` // ids of limits whose overrides end
	Yes       bool              `json:"yes,omitempty"`  // accept that counters start afresh
}

// SetTenant changes a tenant, or creates it.
func (s *Control) SetTenant(ctx context.Context, actor string, r *SetTenantRequest) (*control.Item, error) {
	if r.Plan == nil && r.Cells == nil && len(r.Overrides) == 0 && len(r.Drop) == 0 {
		return nil, Refuse(Invalid, "nothing to set: give plan, cells, overrides or drop")
	}
	return s.change(ctx, actor, change{table: control.Tenants, key: r.Tenant, what: "tenant", reason: r.Reason,
		expect: r.Expect, yes: r.Yes, create: r.Create, edit: r.applyTo})
}

// applyTo makes the requested changes in a tenant's document.
func (r *SetTenantRequest) applyTo(body tree) error {
	if r.Plan != nil {
		body["plan"] = *r.Plan
	}
	if r.Cells != nil {
		cells := make([]any, len(*r.Cells))
		for i, c := range *r.Cells {
			cells[i] = c
		}
		setList(body, "cells", cells)
	}
	list := listOf(body, "overrides")
	for _, id := range r.Drop {
		i := find(list, id)
		if i < 0 {
			return Refuse(NotFound, "tenant %q has no override of limit %q", r.Tenant, id)
		}
		list = slices.Delete(list, i, i+1)
	}
	for i, raw := range r.Overrides {
		var settings tree
		if err := decodeTree(raw, &settings); err != nil || settings == nil {
			return Refuse(Invalid, "overrides[%d]: want an object", i)
		}
		id, _ := settings["id"].(string)
		if at := find(list, id); at >= 0 {
			maps.Copy(list[at].(tree), settings)
		} else {
			list = append(list, settings)
		}
	}
	setList(body, "overrides", list)
	return nil
}

// TenantRequest names a tenant.
type TenantRequest struct {
	Tenant string `json:"tenant"`
	Reason string `json:"reason"`
	Expect *int64 `json:"expect,omitempty"`
}

// Suspend refuses every call of the tenant, until Resume.
func (s *Control) Suspend(ctx context.Context, actor string, r *TenantRequest) (*control.Item, error) {
	return s.changeTenant(ctx, actor, r, func(body tree) error {
		body["suspended"] = true
		return nil
	})
}

// changeTenant edits the document of a tenant.
func (s *Control) changeTenant(
	ctx context.Context, actor string, r *TenantRequest, edit func(body tree) error,
) (*control.Item, error) {
	return s.change(ctx, actor, change{table: control.Tenants, key: r.Tenant, what: "tenant", reason: r.Reason,
		expect: r.Expect, edit: edit})
}

// Resume ends a suspension.
func (s *Control) Resume(ctx context.Context, actor string, r *TenantRequest) (*control.Item, error) {
	return s.changeTenant(ctx, actor, r, func(body tree) error {
		delete(body, "suspended")
		return nil
	})
}

// BoostRequest asks for a temporary raise of a limit of a tenant.
type BoostRequest struct {
	Tenant string      `json:"tenant"`
	Limit  string      `json:"limit"`
	Factor json.Number `json:"factor"` // above 1, at most 100, up to three digits after the point
	From   *time.Time  `json:"from,omitempty"`
	Until  time.Time   `json:"until"`
	Reason string      `json:"reason"`
	Expect *int64      `json:"expect,omitempty"`
}

// AddBoost adds a boost, or replaces the boost of the same limit. It drops boosts of the tenant that have ended.
func (s *Control) AddBoost(ctx context.Context, actor string, r *BoostRequest) (*control.Item, error) {
	now := s.c.Now()
	switch {
	case r.Until.IsZero():
		return nil, Refuse(Invalid, "until is missing")
	case !r.Until.After(now):
		return nil, Refuse(Invalid, "until: %s is in the past", r.Until.UTC().Format(time.RFC3339))
	case r.Factor == "":
		return nil, Refuse(Invalid, "factor is missing")
	}
	return s.changeTenant(ctx, actor, &TenantRequest{r.Tenant, r.Reason, r.Expect}, func(body tree) error {
		boost := tree{"id": r.Limit, "factor": r.Factor, "until": r.Until.UTC().Format(time.RFC3339Nano)}
		if r.From != nil {
			boost["from"] = r.From.UTC().Format(time.RFC3339Nano)
		}
		var list []any
		for _, one := range listOf(body, "boosts") {
			old, _ := one.(tree)
			text, _ := old["until"].(string)
			if until, err := time.Parse(time.RFC3339, text); old["id"] != r.Limit &&
				(err != nil || until.After(now)) {
				list = append(list, one)
			}
		}
		setList(body, "boosts", append(list, boost))
		return nil
	})
}

// RemoveBoostRequest names a boost.
type RemoveBoostRequest struct {
	Tenant string `json:"tenant"`
	Limit  string `json:"limit"`
	Reason string `json:"reason"`
	Expect *int64 `json:"expect,omitempty"`
}

// RemoveBoost ends a boost before its time.
func (s *Control) RemoveBoost(ctx context.Context, actor string, r *RemoveBoostRequest) (*control.Item, error) {
	return s.changeTenant(ctx, actor, &TenantRequest{r.Tenant, r.Reason, r.Expect}, func(body tree) error {
		list := listOf(body, "boosts")
		i := find(list, r.Limit)
		if i < 0 {
			return Refuse(NotFound, "tenant %q has no boost of limit %q", r.Tenant, r.Limit)
		}
		setList(body, "boosts", slices.Delete(list, i, i+1))
		return nil
	})
}

// PromoteRequest names a shadow limit.
type PromoteRequest struct {
	Plan   string `json:"plan"`
	Limit  string `json:"limit"`
	Reason string `json:"reason"`
	Expect *int64 `json:"expect,omitempty"`
}

// Promote changes the mode of a plan's shadow limit to enforce. The limit begins with empty counters, since a shadow
// limit has other counters than an enforcing one. Tenants whose override sets the limit's mode keep that mode.
func (s *Control) Promote(ctx context.Context, actor string, r *PromoteRequest) (*control.Item, error) {
	return s.change(ctx, actor, change{table: control.Plans, key: r.Plan, what: "plan", reason: r.Reason,
		expect: r.Expect, yes: true, edit: func(body tree) error {
			list := listOf(body, "limits")
			i := find(list, r.Limit)
			if i < 0 {
				return Refuse(NotFound, "plan %q has no limit %q", r.Plan, r.Limit)
			}
			l, _ := list[i].(tree)
			if l["mode"] != "shadow" {
				mode := "enforce"
				if m, ok := l["mode"]; ok {
					mode = fmt.Sprint(m)
				}
				return Refuse(Invalid, "limit %q of plan %q is not a shadow: its mode is %s", r.Limit, r.Plan,
					mode)
			}
			delete(l, "mode")
			return nil
		}})
}
