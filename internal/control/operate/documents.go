package operate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/plan"
)

// DocumentOf returns the document that an item of plans, tenants or keys holds; false for an item of another kind.
func DocumentOf(t control.Table, key string, body []byte) (plan.Document, bool) {
	d, id, ok := events.KindOf(t, key)
	kind := d.Kind
	if !ok || !slices.Contains(plan.Kinds, kind) {
		return plan.Document{}, false
	}
	return plan.Document{Kind: kind, ID: id, Body: body}, true
}

// Place returns the table and key of the item that holds a document.
func Place(d plan.Document) (control.Table, string) {
	if d.Kind == plan.KindSettings {
		d.ID = plan.SettingsID
	}
	t, key, _ := events.ItemOf(d.Kind, d.ID)
	return t, key
}

// Tables lists the control tables that hold the documents of plans files, in the order of plan.Kinds.
func Tables() []control.Table {
	tables := make([]control.Table, len(plan.Kinds))
	for i, kind := range plan.Kinds {
		tables[i], _ = Place(plan.Document{Kind: kind})
	}
	return slices.Compact(tables)
}

// name names an item for people.
func name(t control.Table, key string) string {
	if d, ok := DocumentOf(t, key, nil); ok {
		return d.Name()
	}
	return fmt.Sprintf("%s/%q", t, key)
}

// edit is a change, and the item that it changes.
type edit struct {
	*Change
	doc  plan.Document
	have *control.Item // the stored item; nil: there has never been one

	applied *Applied // the result of the change
}

func (e *edit) absent() bool { return e.have == nil || e.have.Deleted }

// preview is the content of the tables as it will be after the edits are written. For items without an edit this is the
// stored content.
type preview struct {
	s        *Control
	now      time.Time
	edits    []*edit
	byRef    map[control.Ref]*edit
	plans    map[string]*plan.Plan // by id, compiled; nil: the plan does not exist or is not valid
	cells    map[string]bool       // ids of the registered cells; nil: not read yet
	ownHash  bool                  // the only edit is a key whose hash this service has just made
	problems []string
}

func (s *Control) preview(edits []*edit) *preview {
	w := &preview{s: s, now: s.c.Now(), edits: edits, byRef: map[control.Ref]*edit{}, plans: map[string]*plan.Plan{}}
	for _, e := range edits {
		w.byRef[e.ref()] = e
	}
	return w
}

func (w *preview) problem(format string, args ...any) {
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

// addProblems adds the problems of a document.
func (w *preview) addProblems(err error) {
	var list *plan.Error
	if !errors.As(err, &list) {
		w.problem("%v", err)
		return
	}
	for _, p := range list.Problems {
		w.problems = append(w.problems, shown(p))
	}
}

// shown returns a problem without its line and column, since a stored document is one line.
func shown(p plan.Problem) string {
	p.Line, p.Column = 0, 0
	return p.String()
}

// bodyAfter returns the body of an item after the edits; nil if the item will not exist.
func (w *preview) bodyAfter(ctx context.Context, t control.Table, key string) ([]byte, error) {
	if e := w.byRef[control.Ref{Table: t, Key: key}]; e != nil {
		return e.Body, nil
	}
	item, err := w.s.item(ctx, t, key)
	if err != nil || item == nil {
		return nil, err
	}
	return item.Body, nil
}

// plan returns a plan after the edits; nil if the plan will not exist or is not valid. Each plan is compiled, and its
// problems reported, once.
func (w *preview) plan(ctx context.Context, id string) (*plan.Plan, error) {
	if p, known := w.plans[id]; known {
		return p, nil
	}
	body, err := w.bodyAfter(ctx, control.Plans, id)
	if err != nil {
		return nil, err
	}
	var p *plan.Plan
	if body != nil {
		p = w.compilePlan(plan.Document{Kind: plan.KindPlan, ID: id, Body: body})
	}
	w.plans[id] = p
	return p, nil
}

// compilePlan compiles a plan, and adds its problems.
func (w *preview) compilePlan(d plan.Document) *plan.Plan {
	p, err := plan.CompilePlan(d)
	if err != nil {
		w.addProblems(err)
		return nil
	}
	w.checkAccepted(d.Name(), p.Set())
	w.checkDecidable(d.Name(), p.Set())
	return p
}

// checkDecidable reports a plan or tenant if the cells' stores cannot decide some request over its limits.
func (w *preview) checkDecidable(name string, set *plan.Set) {
	if w.s.c.AcceptsPlan == nil {
		return
	}
	if err := set.AcceptedBy(w.s.c.AcceptsPlan); err != nil {
		w.problem("%s: %v", name, err)
	}
}

// checkAccepted reports limits that the cells' stores cannot keep.
func (w *preview) checkAccepted(name string, set *plan.Set) {
	if w.s.c.Accepts == nil {
		return
	}
	for _, l := range set.Limits {
		if err := w.s.c.Accepts(l.Limit); err != nil {
			w.problem("%s: limit %s: %v", name, l.Limit.ID, err)
		}
	}
}

// check finds all problems of the edits, and of stored documents that depend on them.
func (w *preview) check(ctx context.Context) error {
	for _, kind := range plan.Kinds {
		for _, e := range w.edits {
			if e.doc.Kind != kind || e.Delete {
				continue
			}
			if err := kinds[kind].check(w, ctx, e); err != nil {
				return err
			}
		}
	}
	if err := w.checkAnonymous(ctx); err != nil {
		return err
	}
	if err := w.checkHashes(ctx); err != nil {
		return err
	}
	return w.checkDependents(ctx)
}

// hashOf returns the hash in the body of a key, or "" if the body has none.
func hashOf(body []byte) string {
	var key struct{ Hash string }
	_ = json.Unmarshal(body, &key) // a body that is not a key's has no hash
	return key.Hash
}

// checkHashes refuses a key with the hash of another key, including a revoked one: requests find keys by hash, and a
// cell keeps the first key that it reads for a hash. checkHashes reads all keys if an edit sets a new hash. A hash that
// this service has just made needs no check.
func (w *preview) checkHashes(ctx context.Context) error {
	edited := map[string]*edit{} // by hash
	for _, e := range w.edits {
		hash := hashOf(e.Body)
		if e.doc.Kind != plan.KindKey || w.ownHash || hash == "" || !e.absent() && hashOf(e.have.Body) == hash {
			continue
		}
		if other := edited[hash]; other != nil {
			w.problem("%s: key %q has the same hash", e.doc.Name(), other.Key)
			continue
		}
		edited[hash] = e
	}
	if len(edited) == 0 || len(w.problems) > 0 {
		return nil
	}
	return w.s.eachLive(ctx, control.Keys, true, func(i *control.Item) error {
		if e := edited[hashOf(i.Body)]; e != nil && e.Key != i.Key {
			w.problem("%s: key %q has the same hash", e.doc.Name(), i.Key)
		}
		return nil
	})
}

// checkTenantDocument compiles a tenant with the plan that it will have, and adds the problems. If the tenant itself is
// edited, isNew is true, and checkTenantDocument also checks the end of its boosts, its cells, and whether the cells'
// stores accept its limits.
func (w *preview) checkTenantDocument(ctx context.Context, d plan.Document, isNew bool) error {
	doc, err := plan.ReadTenant(d)
	if err != nil {
		w.addProblems(err)
		return nil
	}
	var p *plan.Plan
	if id := doc.PlanID(); id != "" {
		if p, err = w.plan(ctx, id); err != nil {
			return err
		}
		if p == nil {
			w.reportMissingPlan(d, id)
			return nil
		}
	}
	t, err := doc.Compile(p)
	if err != nil {
		w.addProblems(err)
		return nil
	}
	if !isNew {
		return nil
	}
	for _, set := range t.Sets() {
		w.checkAccepted(d.Name(), set)
		w.checkDecidable(d.Name(), set)
	}
	w.checkBoostLengths(d)
	return w.checkCells(ctx, d.Name(), t.Cells)
}

// reportMissingPlan reports why a tenant's plan is missing. It reports nothing if the plan exists and is not valid:
// that problem was already reported for the plan.
func (w *preview) reportMissingPlan(d plan.Document, id string) {
	switch e := w.byRef[control.Ref{Table: control.Plans, Key: id}]; {
	case e == nil:
		w.problem("%s: plan: there is no plan %q", d.Name(), id)
	case e.Delete:
		w.problem("%s: plan: plan %q is being deleted", d.Name(), id)
	}
}

// checkBoostLengths reports boosts that have no from, so that they begin now, and that last too long.
func (w *preview) checkBoostLengths(d plan.Document) {
	var tenant struct {
		Boosts []struct{ ID, From, Until string }
	}
	if json.Unmarshal(d.Body, &tenant) != nil {
		return // not reached: the tenant has been compiled
	}
	for i, b := range tenant.Boosts {
		until, err := time.Parse(time.RFC3339, b.Until)
		if err == nil && b.From == "" && until.Sub(w.now) > plan.MaxBoost {
			w.problem("%s: boosts[%d].until: more than %d days from now", d.Name(), i, plan.MaxBoost/(24*time.Hour))
		}
	}
}

// checkCells reports cells that are not registered. If no cell is registered, a tenant may name any, since there is
// nothing to compare the names with.
func (w *preview) checkCells(ctx context.Context, name string, cells []string) error {
	if len(cells) == 0 {
		return nil
	}
	if w.cells == nil {
		w.cells = map[string]bool{}
		err := w.s.eachLive(ctx, control.Cells, true, func(i *control.Item) error {
			if doc, err := ReadCell(i.Body); err == nil && doc.ID == i.Key && doc.Request.Kind != "" &&
				doc.Request.Cell == i.Key {
				w.cells[i.Key] = true
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for i, c := range cells {
		if len(w.cells) > 0 && !w.cells[c] {
			w.problem("%s: cells[%d]: there is no cell %q", name, i, c)
		}
	}
	return nil
}

// checkAnonymous checks that the anonymousPlan of the settings will exist, if the settings change or a plan is
// deleted.
func (w *preview) checkAnonymous(ctx context.Context) error {
	concerned := slices.ContainsFunc(w.edits, func(e *edit) bool {
		return e.doc.Kind == plan.KindSettings || e.doc.Kind == plan.KindPlan && e.Delete
	})
	if !concerned {
		return nil
	}
	stored, err := w.bodyAfter(ctx, control.Plans, events.SettingsKey)
	if err != nil || stored == nil {
		return err
	}
	var settings struct {
		AnonymousPlan string `json:"anonymousPlan"`
	}
	if json.Unmarshal(stored, &settings) != nil || settings.AnonymousPlan == "" {
		return nil //nolint:nilerr // the problem was reported when the settings were compiled
	}
	body, err := w.bodyAfter(ctx, control.Plans, settings.AnonymousPlan)
	if err == nil && body == nil {
		w.problem("settings: anonymousPlan: there will be no plan %q", settings.AnonymousPlan)
	}
	return err
}

// checkDependents checks every stored tenant that is not edited against the plans that change. If a tenant's overrides
// no longer fit its plan, each cell would continue with the last limits that it knows for the tenant.
func (w *preview) checkDependents(ctx context.Context) error {
	changed := map[string]*edit{}
	for _, e := range w.edits {
		if e.doc.Kind == plan.KindPlan && !e.absent() {
			changed[e.Key] = e
		}
	}
	if len(changed) == 0 || len(w.problems) > 0 {
		return nil
	}
	deletes := false
	for _, e := range changed {
		deletes = deletes || e.Delete
	}
	var inUse []string
	// A tenant's item that cannot be read was not written by Sluice. It cannot be checked, and must not prevent the
	// change of a plan: if its overrides no longer fit, cells continue with its last limits until the item is repaired.
	// But such a tenant may use a plan that is being deleted, so a deletion is refused.
	err := w.s.eachLive(ctx, control.Tenants, !deletes, func(i *control.Item) error {
		if w.byRef[i.Ref()] != nil {
			return nil
		}
		var t struct {
			Plan              string
			Overrides, Boosts []json.RawMessage
		}
		if err := body(i, &t); err != nil {
			return err
		}
		e := changed[t.Plan]
		switch {
		case e == nil:
		case e.Delete:
			inUse = append(inUse, fmt.Sprintf("plan %q: tenant %q uses it", t.Plan, i.Key))
		case len(t.Overrides)+len(t.Boosts) > 0:
			return w.checkTenantDocument(ctx, plan.Document{Kind: plan.KindTenant, ID: i.Key, Body: i.Body}, false)
		}
		return nil
	})
	w.problems = append(w.problems, inUse...)
	return err
}

// effects returns the effects of an edit on limits and credentials.
func (w *preview) effects(ctx context.Context, e *edit) (Effects, error) {
	var stored []byte
	if !e.absent() {
		stored = e.have.Body
	}
	was := func(id string) (*plan.Plan, error) { return w.planBefore(ctx, id) }
	will := func(id string) (*plan.Plan, error) { return w.plan(ctx, id) }
	return EffectsOf(e.doc, stored, was, will, w.now)
}

// planBefore returns a plan as it is stored; nil if there is none or it cannot be read.
func (w *preview) planBefore(ctx context.Context, id string) (*plan.Plan, error) {
	e := w.byRef[control.Ref{Table: control.Plans, Key: id}]
	if e == nil {
		return w.plan(ctx, id)
	}
	if e.absent() {
		return nil, nil //nolint:nilnil // callers check for nil
	}
	p, err := plan.CompilePlan(plan.Document{Kind: plan.KindPlan, ID: id, Body: e.have.Body})
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // the stored plan is damaged
	}
	return p, nil
}
