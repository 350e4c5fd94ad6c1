package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
)

// DocumentOf is the document of an item of plans, tenants or keys; false for any other.
func DocumentOf(t control.Table, key string, body []byte) (plan.Document, bool) {
	d, id, ok := events.DocumentOf(t, key)
	switch kind := plan.Kind(d.Kind); kind {
	case plan.KindPlan, plan.KindSettings, plan.KindTenant, plan.KindKey:
		return plan.Document{Kind: kind, ID: id, Body: body}, ok
	default:
		return plan.Document{}, false
	}
}

// Place is the table and key of a document's item.
func Place(d plan.Document) (control.Table, string) {
	if d.Kind == plan.KindSettings {
		d.ID = plan.SettingsID
	}
	t, key, _ := events.ItemOf(string(d.Kind), d.ID)
	return t, key
}

// name is an item in words.
func name(t control.Table, key string) string {
	if d, ok := DocumentOf(t, key, nil); ok {
		return d.Name()
	}
	return fmt.Sprintf("%s/%q", t, key)
}

// edit is a change that is looked at together with others.
type edit struct {
	*Change
	doc  plan.Document
	have *control.Item // what is there now, nil where there is nothing
}

func (e *edit) gone() bool { return e.have == nil || e.have.Deleted }

// world is the tables as they will be once edits are written: what the edits say, and beneath it what is stored.
type world struct {
	s        *Service
	now      time.Time
	edits    []*edit
	byPlace  map[string]*edit
	plans    map[string]*plan.Plan // nil: there is none, or it is bad
	cells    map[string]bool       // nil: not read yet; empty: none is registered
	made     bool                  // the edit is a key with a hash that was made here
	problems []string
}

func place(t control.Table, key string) string { return string(t) + "\x00" + key }

func (s *Service) world(edits []*edit) *world {
	w := &world{s: s, now: s.c.Now(), edits: edits, byPlace: map[string]*edit{}, plans: map[string]*plan.Plan{}}
	for _, e := range edits {
		w.byPlace[place(e.Table, e.Key)] = e
	}
	return w
}

func (w *world) problem(format string, args ...any) {
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

// bad takes the problems of a document.
func (w *world) bad(err error) {
	var list *plan.Error
	if !errors.As(err, &list) {
		w.problem("%v", err)
		return
	}
	for _, p := range list.Problems {
		w.problems = append(w.problems, shown(p))
	}
}

// shown is a problem without the line of a stored document: it has only one.
func shown(p plan.Problem) string {
	p.Line, p.Column = 0, 0
	return p.String()
}

// stored is the body of an item as it will be; nil where there will be none.
func (w *world) stored(ctx context.Context, t control.Table, key string) ([]byte, error) {
	if e := w.byPlace[place(t, key)]; e != nil {
		return e.Body, nil
	}
	item, err := w.s.item(ctx, t, key)
	if err != nil || item == nil {
		return nil, err
	}
	return item.Body, nil
}

// plan is a plan as it will be; nil where there will be none. What is wrong with one of the edits is reported once.
func (w *world) plan(ctx context.Context, id string) (*plan.Plan, error) {
	if p, known := w.plans[id]; known {
		return p, nil
	}
	body, err := w.stored(ctx, control.Plans, id)
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

func (w *world) compilePlan(d plan.Document) *plan.Plan {
	p, err := plan.CompilePlan(d)
	if err != nil {
		w.bad(err)
		return nil
	}
	w.accepted(d.Name(), p.Set())
	w.decidable(d.Name(), p.Set())
	return p
}

// decidable reports a plan or tenant of which the cells' stores cannot decide a request.
func (w *world) decidable(name string, set *plan.Set) {
	if w.s.c.AcceptsPlan == nil {
		return
	}
	if err := set.AcceptedBy(w.s.c.AcceptsPlan); err != nil {
		w.problem("%s: %v", name, err)
	}
}

// accepted reports limits that the cells' stores cannot keep.
func (w *world) accepted(name string, set *plan.Set) {
	if w.s.c.Accepts == nil {
		return
	}
	for _, l := range set.Limits {
		if err := w.s.c.Accepts(l.Limit); err != nil {
			w.problem("%s: limit %s: %v", name, l.Limit.ID, err)
		}
	}
}

// check finds all problems of the edits, and of what is stored and depends on them.
func (w *world) check(ctx context.Context) error {
	for _, kind := range []plan.Kind{plan.KindPlan, plan.KindSettings, plan.KindTenant, plan.KindKey} {
		for _, e := range w.edits {
			if e.doc.Kind != kind || e.Delete {
				continue
			}
			if err := w.checkOne(ctx, e); err != nil {
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
	_ = json.Unmarshal(body, &key) // what is no key has no hash
	return key.Hash
}

// checkHashes refuses a key under the hash of another one, be that revoked: requests find keys by the hash, and a cell
// takes the first that it reads. Where a key comes with a hash of its own, all keys are read. The hash of a key that is
// made here is nobody else's.
func (w *world) checkHashes(ctx context.Context) error {
	edited := map[string]*edit{} // by hash
	for _, e := range w.edits {
		hash := hashOf(e.Body)
		if e.doc.Kind != plan.KindKey || w.made || hash == "" || !e.gone() && hashOf(e.have.Body) == hash {
			continue
		}
		if other := edited[hash]; other != nil {
			w.problem("%s: key %q has its hash", e.doc.Name(), other.Key)
			continue
		}
		edited[hash] = e
	}
	if len(edited) == 0 || len(w.problems) > 0 {
		return nil
	}
	return w.s.each(ctx, control.Keys, true, func(i *control.Item) error {
		if e := edited[hashOf(i.Body)]; e != nil && e.Key != i.Key {
			w.problem("%s: key %q has its hash", e.doc.Name(), i.Key)
		}
		return nil
	})
}

func (w *world) checkOne(ctx context.Context, e *edit) error {
	switch e.doc.Kind {
	case plan.KindPlan:
		_, err := w.plan(ctx, e.Key)
		return err
	case plan.KindSettings:
		settings, err := plan.CompileSettings(e.doc)
		if err != nil {
			w.bad(err)
			return nil
		}
		w.accepted(e.doc.Name(), settings.IPLimits())
	case plan.KindTenant:
		return w.tenant(ctx, e.doc, true)
	case plan.KindKey:
		key, err := plan.CompileKey(e.doc)
		if err != nil {
			w.bad(err)
			return nil
		}
		tenant, err := w.stored(ctx, control.Tenants, key.Tenant)
		if err != nil {
			return err
		}
		if tenant == nil {
			w.problem("%s: there is no tenant %q", e.doc.Name(), key.Tenant)
		}
		if !e.gone() && !key.Revoked {
			old := e.doc
			old.Body = e.have.Body
			if was, err := plan.CompileKey(old); err == nil && was.Revoked {
				w.problem("%s: it is revoked, for good: create another", e.doc.Name())
			}
		}
	}
	return nil
}

// tenant compiles a tenant with the plan that it will have, and keeps its problems. New ones are also held to what
// depends on the time and on cells.
func (w *world) tenant(ctx context.Context, d plan.Document, isNew bool) error {
	doc, err := plan.ReadTenant(d)
	if err != nil {
		w.bad(err)
		return nil
	}
	var p *plan.Plan
	if id := doc.PlanID(); id != "" {
		if p, err = w.plan(ctx, id); err != nil {
			return err
		}
		if p == nil {
			w.planless(d, id)
			return nil
		}
	}
	t, err := doc.Compile(p)
	if err != nil {
		w.bad(err)
		return nil
	}
	if !isNew {
		return nil
	}
	for _, set := range t.Sets() {
		w.accepted(d.Name(), set)
		w.decidable(d.Name(), set)
	}
	w.measure(d)
	return w.pinned(ctx, d.Name(), t.Cells)
}

// planless says why a tenant has no plan to be compiled with. Where the plan itself is bad, that was said.
func (w *world) planless(d plan.Document, id string) {
	switch e := w.byPlace[place(control.Plans, id)]; {
	case e == nil:
		w.problem("%s: plan: there is no plan %q", d.Name(), id)
	case e.Delete:
		w.problem("%s: plan: plan %q is being deleted", d.Name(), id)
	}
}

// measure holds boosts without a beginning to their longest time, which is counted from now.
func (w *world) measure(d plan.Document) {
	var tenant struct {
		Boosts []struct{ ID, From, Until string }
	}
	if json.Unmarshal(d.Body, &tenant) != nil {
		return // not reached: it was compiled
	}
	for i, b := range tenant.Boosts {
		until, err := time.Parse(time.RFC3339, b.Until)
		if err == nil && b.From == "" && until.Sub(w.now) > plan.MaxBoost {
			w.problem("%s: boosts[%d].until: more than %d days from now", d.Name(), i, plan.MaxBoost/(24*time.Hour))
		}
	}
}

// pinned refuses cells that nobody added. Where none was, a tenant may name any: there is nothing yet to tell a typo
// by.
func (w *world) pinned(ctx context.Context, name string, cells []string) error {
	if len(cells) == 0 {
		return nil
	}
	if w.cells == nil {
		w.cells = map[string]bool{}
		err := w.s.each(ctx, control.Cells, true, func(i *control.Item) error {
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

// checkAnonymous holds the settings, as they will be, to a plan that will be there, where one of the two changes.
func (w *world) checkAnonymous(ctx context.Context) error {
	concerned := slices.ContainsFunc(w.edits, func(e *edit) bool {
		return e.doc.Kind == plan.KindSettings || e.doc.Kind == plan.KindPlan && e.Delete
	})
	if !concerned {
		return nil
	}
	stored, err := w.stored(ctx, control.Plans, events.SettingsKey)
	if err != nil || stored == nil {
		return err
	}
	var settings struct {
		AnonymousPlan string `json:"anonymousPlan"`
	}
	if json.Unmarshal(stored, &settings) != nil || settings.AnonymousPlan == "" {
		return nil //nolint:nilerr // reported where it was compiled
	}
	body, err := w.stored(ctx, control.Plans, settings.AnonymousPlan)
	if err == nil && body == nil {
		w.problem("settings: anonymousPlan: there will be no plan %q", settings.AnonymousPlan)
	}
	return err
}

// checkDependents holds every stored tenant that is not edited itself to the plans that change. A tenant whose override
// no longer fits would be left on its last limits, cell by cell for as long as each remembers them.
func (w *world) checkDependents(ctx context.Context) error {
	changed := map[string]*edit{}
	for _, e := range w.edits {
		if e.doc.Kind == plan.KindPlan && !e.gone() {
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
	var without []string
	// A tenant whose item cannot be read was written past Sluice. It cannot be checked, and keeps nobody from changing
	// a plan: where its overrides no longer fit, cells go on with its last limits until the item is mended. It may be
	// on a plan that is deleted.
	err := w.s.each(ctx, control.Tenants, !deletes, func(i *control.Item) error {
		if w.byPlace[place(i.Table, i.Key)] != nil {
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
			without = append(without, fmt.Sprintf("plan %q: tenant %q is on it", t.Plan, i.Key))
		case len(t.Overrides)+len(t.Boosts) > 0:
			return w.tenant(ctx, plan.Document{Kind: plan.KindTenant, ID: i.Key, Body: i.Body}, false)
		}
		return nil
	})
	w.problems = append(w.problems, without...)
	return err
}

// Afresh says which counters begin anew when the limits of before become those of after: those whose limit is in both
// under one id, with another identity, or with another pattern where that names its counters. A limit that is off has
// none.
func Afresh(before, after *plan.Set) []string {
	had := map[string]*plan.Effective{}
	for _, e := range before.Limits {
		had[e.Limit.ID] = e
	}
	var out []string
	for _, e := range after.Limits {
		was := had[e.Limit.ID]
		if was == nil || was.Limit.Mode == limit.Off || e.Limit.Mode == limit.Off {
			continue
		}
		if perEndpoint(was.Limit) && perEndpoint(e.Limit) && was.Pattern() != e.Pattern() {
			out = append(out, fmt.Sprintf("limit %s starts afresh: its endpoints were those of %s, and are those of %s",
				e.Limit.ID, was.Pattern(), e.Pattern()))
			continue
		}
		known := map[string]bool{}
		for i := range was.Limit.Tiers {
			known[was.Limit.Tiers[i].Identity()] = true
		}
		for i := range e.Limit.Tiers {
			if !known[e.Limit.Tiers[i].Identity()] {
				out = append(out, fmt.Sprintf("limit %s starts afresh: it was a %s, and is a %s", e.Limit.ID,
					counters(was.Limit), counters(e.Limit)))
				break
			}
		}
	}
	return out
}

// AfreshSettings says which counters begin anew when the settings change.
func AfreshSettings(before, after *plan.Settings) []string {
	out := Afresh(before.IPLimits(), after.IPLimits())
	if was, is := before.IPv6Prefix(), after.IPv6Prefix(); was != is {
		out = append(out, fmt.Sprintf("counters of IPv6 addresses start afresh: they were by /%d, and are by /%d", was,
			is))
	}
	return out
}

// perEndpoint reports whether the limit's pattern is part of the names of its counters.
func perEndpoint(l *limit.Limit) bool {
	return slices.Contains(strings.Split(l.Per, "+"), "endpoint")
}

// counters says in words what makes a limit's counters these.
func counters(l *limit.Limit) string {
	var windows []string
	for i := range l.Tiers {
		if t := &l.Tiers[i]; t.Calendar != nil {
			windows = append(windows, t.Calendar.String())
		} else {
			windows = append(windows, limit.DurationText(t.Period))
		}
	}
	text := fmt.Sprintf("%s of %s per %s", l.Tiers[0].Algorithm, strings.Join(windows, " and "), l.Per)
	if l.Mode == limit.Shadow {
		text += ", as a shadow"
	}
	return text
}

// afresh says it of every edit.
func (w *world) afresh(ctx context.Context) ([]string, error) {
	var out []string
	add := func(e *edit, before, after *plan.Set) {
		for _, line := range Afresh(before, after) {
			out = append(out, e.doc.Name()+": "+line)
		}
	}
	for _, e := range w.edits {
		if e.Delete || e.gone() {
			continue
		}
		old := e.doc
		old.Body = e.have.Body
		switch e.doc.Kind {
		case plan.KindPlan:
			if before, err := plan.CompilePlan(old); err == nil {
				add(e, before.Set(), w.plans[e.Key].Set())
			}
		case plan.KindSettings:
			before, err := plan.CompileSettings(old)
			after, bad := plan.CompileSettings(e.doc)
			if err == nil && bad == nil {
				for _, line := range AfreshSettings(before, after) {
					out = append(out, e.doc.Name()+": "+line)
				}
			}
		case plan.KindTenant:
			if err := w.tenantAfresh(ctx, e, old, add); err != nil {
				return nil, err
			}
		case plan.KindKey: // has no counters
		}
	}
	return out, nil
}

// tenantAfresh compares a tenant's limits with overrides under one and the same plan: what the plan itself changes is
// said of the plan, and a tenant that moves to another plan has that plan's limits.
func (w *world) tenantAfresh(
	ctx context.Context, e *edit, old plan.Document, add func(e *edit, before, after *plan.Set),
) error {
	was, err := plan.ReadTenant(old)
	if err != nil {
		return nil //nolint:nilerr // what was there was damaged, and is replaced
	}
	now, err := plan.ReadTenant(e.doc)
	if err != nil || now.PlanID() == "" || was.PlanID() == "" {
		return nil //nolint:nilerr // checked before
	}
	p, err := w.plan(ctx, now.PlanID())
	if err != nil || p == nil {
		return err
	}
	q, err := w.plan(ctx, was.PlanID())
	if err != nil || q == nil {
		return err
	}
	before, err := was.Compile(q)
	if err != nil {
		return nil //nolint:nilerr // it does not fit the plan as it will be, so nothing can be compared
	}
	after, err := now.Compile(p)
	if err != nil {
		return nil //nolint:nilerr // checked before
	}
	add(e, before.Limits(w.now), after.Limits(w.now))
	return nil
}

// losses says what the edits remove and weaken.
func (w *world) losses(ctx context.Context) ([]Loss, error) {
	var out []Loss
	for _, e := range w.edits {
		var stored []byte
		if !e.gone() {
			stored = e.have.Body
		}
		was := func(id string) (*plan.Plan, error) { return w.planBefore(ctx, id) }
		will := func(id string) (*plan.Plan, error) { return w.plan(ctx, id) }
		lost, err := Losses(e.doc, stored, was, will, w.now)
		if err != nil {
			return nil, err
		}
		out = append(out, lost...)
	}
	return out, nil
}

// planBefore is a plan as it is stored; nil where there is none, or it cannot be read.
func (w *world) planBefore(ctx context.Context, id string) (*plan.Plan, error) {
	e := w.byPlace[place(control.Plans, id)]
	if e == nil {
		return w.plan(ctx, id)
	}
	if e.gone() {
		return nil, nil //nolint:nilnil // there is none
	}
	p, err := plan.CompilePlan(plan.Document{Kind: plan.KindPlan, ID: id, Body: e.have.Body})
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // what is stored was damaged
	}
	return p, nil
}
