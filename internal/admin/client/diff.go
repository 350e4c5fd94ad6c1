package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/admin"
	"github.com/sluicelimits/sluice/internal/admin/call"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/canonical"
	"github.com/sluicelimits/sluice/internal/plan"
)

// Remote is what bringing a plans file to the control tables needs.
type Remote interface {
	List(ctx context.Context, r *admin.ListRequest) (*admin.ListResponse, error)
	Apply(ctx context.Context, r *admin.ApplyRequest) (*admin.ApplyResponse, error)
}

// Action is what a change does.
type Action string

// The actions.
const (
	Create Action = "create"
	Change Action = "change"
	Delete Action = "delete"
)

// Field is one value that a change changes.
type Field struct {
	Path   string `json:"path"`             // as in limits[burst].rate
	Before string `json:"before,omitempty"` // JSON; empty: there was none
	After  string `json:"after,omitempty"`  // JSON; empty: there will be none
}

// Edit is one document that differs.
type Edit struct {
	Action  Action    `json:"action"`
	Kind    plan.Kind `json:"kind"`
	ID      string    `json:"id"`
	Version int64     `json:"version"`          // that is there now; 0: none
	Fields  []Field   `json:"fields,omitempty"` // of a change
	change  admin.Change
	before  []byte // the body that is there; nil for none
}

// Diff is how a plans file differs from the control tables.
type Diff struct {
	Edits     []Edit   `json:"changes"`           // plans, settings, tenants, keys; then deletes
	Unchanged int      `json:"unchanged"`         // documents
	Elsewhere int      `json:"elsewhere"`         // plans and tenants that the file does not have, and that stay
	Afresh    []string `json:"afresh"`            // counters that would begin anew, one sentence each
	Problems  []string `json:"problems"`          // why it cannot be applied, one sentence each
	Damaged   []string `json:"damaged,omitempty"` // items that cannot be read and are left alone, one sentence each
	first     map[string]bool
	stored    map[string]*call.Item
}

func at(t control.Table, key string) string { return string(t) + "\x00" + key }

// kept are the members of stored documents that commands set, and a file that does not name them leaves as they are: a
// file that is older than a suspension must not undo it.
var kept = map[plan.Kind][]string{plan.KindTenant: {"suspended", "boosts"}, plan.KindKey: {"revoked"}}

// Compare reads the control tables and compares them with the documents of a file, as plan.Split gives them. With prune,
// plans and tenants that the file does not have are deleted.
//
// Items that cannot be read, which somebody wrote past Sluice, are in nobody's way: the diff names them. The tables refuse the change of a
// file that has one of them. With prune they are an error.
func Compare(ctx context.Context, remote Remote, documents []plan.Document, prune bool) (*Diff, error) {
	d := &Diff{Edits: []Edit{}, Afresh: []string{}, Problems: []string{}, first: map[string]bool{}}
	var err error
	if d.stored, d.Damaged, err = load(ctx, remote); err != nil {
		return nil, err
	}
	if prune && len(d.Damaged) > 0 {
		return nil, fmt.Errorf("what a prune would delete is not known, as an item cannot be read: %s", d.Damaged[0])
	}
	named := map[string]bool{}
	for _, doc := range documents {
		t, key := admin.Place(doc)
		named[at(t, key)] = true
		if err := d.compare(t, key, doc); err != nil {
			return nil, err
		}
	}
	var gone []Edit
	for _, item := range d.stored {
		doc, ok := admin.DocumentOf(item.Table, item.Key, item.Body)
		if !ok || item.Deleted || named[at(item.Table, item.Key)] || doc.Kind == plan.KindSettings || doc.Kind == plan.KindKey {
			continue
		}
		if !prune {
			d.Elsewhere++
			continue
		}
		gone = append(gone, Edit{Delete, doc.Kind, doc.ID, item.Version, nil,
			admin.Change{Table: item.Table, Key: item.Key, Expect: item.Version, Delete: true}, item.Body})
	}
	slices.SortFunc(gone, func(a, b Edit) int { // tenants before the plans that they are on
		if a.Kind != b.Kind {
			return -strings.Compare(string(a.Kind), string(b.Kind))
		}
		return strings.Compare(a.ID, b.ID)
	})
	d.Edits = append(d.Edits, gone...)
	d.depend()
	return d, nil
}

// load reads all plans, tenants and keys. Of those that cannot be read it returns what is wrong.
func load(ctx context.Context, remote Remote) (stored map[string]*call.Item, damaged []string, err error) {
	stored = map[string]*call.Item{}
	for _, t := range []control.Table{control.Plans, control.Tenants, control.Keys} {
		for after := ""; ; {
			page, err := remote.List(ctx, &admin.ListRequest{Table: t, After: after, Most: control.MaxPage})
			if err != nil {
				return nil, nil, err
			}
			for _, lines := range page.Damaged {
				damaged = append(damaged, strings.Split(lines, "\n")...)
			}
			for _, item := range page.Items {
				if !item.Deleted {
					if item.Body, err = canonical.Object(item.Body); err != nil { // on the way < became \u003c
						return nil, nil, fmt.Errorf("%s/%q: %w", item.Table, item.Key, err)
					}
				}
				stored[at(item.Table, item.Key)] = item
			}
			if after = page.Next; after == "" {
				break
			}
		}
	}
	return stored, damaged, nil
}

// compare adds the edit that makes a document what the file says, if it is not.
func (d *Diff) compare(t control.Table, key string, doc plan.Document) error {
	body, err := canonical.Object(doc.Body)
	if err != nil {
		return fmt.Errorf("%s: %w", doc.Name(), err)
	}
	have := d.stored[at(t, key)]
	if have == nil && doc.Kind == plan.KindSettings && string(body) == "{}" {
		return nil // no settings, and none are asked for
	}
	edit := Edit{Action: Create, Kind: doc.Kind, ID: doc.ID}
	if have != nil {
		edit.Version = have.Version
	}
	if have != nil && !have.Deleted {
		if body, err = keep(doc.Kind, body, have.Body); err != nil {
			return fmt.Errorf("%s: %w", doc.Name(), err)
		}
		if bytes.Equal(body, have.Body) {
			d.Unchanged++
			return nil
		}
		edit.Action, edit.before, edit.Fields = Change, have.Body, Fields(have.Body, body)
	}
	edit.change = admin.Change{Table: t, Key: key, Expect: edit.Version, Body: body}
	d.Edits = append(d.Edits, edit)
	return nil
}

// keep adds to a body what is kept of the stored one.
func keep(kind plan.Kind, body, stored []byte) ([]byte, error) {
	if kept[kind] == nil {
		return body, nil
	}
	var now, before map[string]json.RawMessage
	if err := json.Unmarshal(body, &now); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(stored, &before); err != nil {
		return nil, err
	}
	for _, name := range kept[kind] {
		if _, named := now[name]; !named && before[name] != nil {
			now[name] = before[name]
		}
	}
	return canonical.Marshal(now)
}

// depend finds what the edits of plans mean for tenants: whose counters begin anew, who no longer fits, and who must be
// written together with the plan.
func (d *Diff) depend() {
	plans := map[string]*plan.Plan{} // as they will be; nil: there will be none
	changed := map[string]bool{}
	for _, item := range d.stored {
		if doc, ok := admin.DocumentOf(item.Table, item.Key, item.Body); ok && doc.Kind == plan.KindPlan && !item.Deleted {
			if p, err := plan.CompilePlan(doc); err == nil {
				plans[doc.ID] = p
			}
		}
	}
	olds, edited := maps.Clone(plans), map[string]*Edit{}
	for i := range d.Edits {
		e := &d.Edits[i]
		edited[at(e.change.Table, e.change.Key)] = e
		if e.Kind != plan.KindPlan {
			continue
		}
		changed[e.ID] = olds[e.ID] != nil
		delete(plans, e.ID)
		if p, err := plan.CompilePlan(plan.Document{Kind: plan.KindPlan, ID: e.ID, Body: e.change.Body}); err == nil {
			plans[e.ID] = p
			if old := olds[e.ID]; old != nil {
				d.afresh(e, old.Set(), p.Set())
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(d.stored)) {
		if item := d.stored[key]; item.Table == control.Tenants && !item.Deleted {
			d.tenant(item, edited[key], plans, changed)
		}
	}
}

func (d *Diff) afresh(e *Edit, before, after *plan.Set) {
	name := plan.Document{Kind: e.Kind, ID: e.ID}.Name()
	for _, line := range admin.Afresh(before, after) {
		d.Afresh = append(d.Afresh, name+": "+line)
	}
}

// tenant looks at a stored tenant under the plans as they will be. e is its edit, or nil.
func (d *Diff) tenant(item *call.Item, e *Edit, plans map[string]*plan.Plan, changed map[string]bool) {
	var t struct {
		Plan              string
		Overrides, Boosts []json.RawMessage
	}
	if json.Unmarshal(item.Body, &t) != nil || e == nil && !changed[t.Plan] || e != nil && e.Action == Delete {
		return
	}
	p := plans[t.Plan]
	if p == nil {
		if e == nil && t.Plan != "" {
			d.Problems = append(d.Problems, fmt.Sprintf("plan %q cannot be deleted: tenant %q is on it", t.Plan, item.Key))
		}
		return
	}
	if len(t.Overrides)+len(t.Boosts) == 0 && e == nil {
		return
	}
	doc := plan.Document{Kind: plan.KindTenant, ID: item.Key, Body: item.Body}
	before, err := compile(doc, plans)
	switch {
	case err != nil && e == nil:
		d.Problems = append(d.Problems, err.Error())
	case err != nil:
		d.first[item.Key] = true // the plan must not be written without it
	case e != nil:
		doc.Body = e.change.Body
		if after, err := compile(doc, plans); err == nil {
			now := time.Now()
			d.afresh(e, before.Limits(now), after.Limits(now))
		}
	}
}

func compile(doc plan.Document, plans map[string]*plan.Plan) (*plan.Tenant, error) {
	t, err := plan.ReadTenant(doc)
	if err != nil {
		return nil, err
	}
	return t.Compile(plans[t.PlanID()])
}

// Fields lists what differs between two bodies, by path.
func Fields(before, after []byte) []Field {
	was, is := map[string]string{}, map[string]string{}
	flatten(was, "", before)
	flatten(is, "", after)
	paths := slices.Concat(slices.Collect(maps.Keys(was)), slices.Collect(maps.Keys(is)))
	slices.Sort(paths)
	var out []Field
	for _, p := range slices.Compact(paths) {
		if was[p] != is[p] {
			out = append(out, Field{p, was[p], is[p]})
		}
	}
	return out
}

// flatten writes the values of a JSON text by their paths. Objects in lists go by their id, where they have one.
func flatten(into map[string]string, path string, raw json.RawMessage) {
	var object map[string]json.RawMessage
	if json.Unmarshal(raw, &object) == nil && object != nil {
		for name, value := range object {
			flatten(into, strings.TrimPrefix(path+"."+name, "."), value)
		}
		return
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) == nil && len(list) > 0 && list[0] != nil && list[0][0] == '{' {
		for i, one := range list {
			var named struct{ ID string }
			label := strconv.Itoa(i)
			if json.Unmarshal(one, &named) == nil && named.ID != "" {
				label = named.ID
			}
			flatten(into, path+"["+label+"]", one)
		}
		return
	}
	into[path] = string(raw)
}
