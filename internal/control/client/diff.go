package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/audit"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/plan"
)

// Remote has the calls with which plans files are compared and applied.
type Remote interface {
	List(ctx context.Context, r *operate.ListRequest) (*operate.ListResponse, error)
	Preview(ctx context.Context, r *operate.PreviewRequest) (*operate.ApplyResponse, error)
	Apply(ctx context.Context, r *operate.ApplyRequest) (*operate.ApplyResponse, error)
}

// Action is the kind of an edit.
type Action string

// The actions.
const (
	Create Action = "create"
	Change Action = "change"
	Delete Action = "delete"
)

// Author is who wrote a version, when, and why.
type Author struct {
	Version   int64     `json:"version"`
	Actor     string    `json:"actor"`
	Reason    string    `json:"reason"`
	ChangedAt time.Time `json:"changed_at"`
}

func authorOf(i *control.Item) *Author { return &Author{i.Version, i.Actor, i.Reason, i.ChangedAt} }

// Edit is one document that differs.
type Edit struct {
	Action  Action         `json:"action"`
	Kind    plan.Kind      `json:"kind"`
	ID      string         `json:"id"`
	Version int64          `json:"version"`          // the stored version; 0: none
	Fields  []audit.Field  `json:"fields,omitempty"` // of a change
	Losses  []operate.Loss `json:"losses,omitempty"` // what the edit removes and weakens

	Was *Author `json:"was,omitempty"` // of a change and a deletion: who wrote the stored version
	// Own says who last changed the plan, the cells, the overrides or the boosts of a tenant. It is set if the edit
	// changes one of these and that author is known: see operate.PinOf. Was may name somebody else, who has changed
	// another part of the tenant later.
	Own *Author `json:"own,omitempty"`

	change operate.Change
	before []byte   // the stored body; nil: none
	afresh []string // counters that would start afresh
}

func (e *Edit) document() plan.Document {
	return plan.Document{Kind: e.Kind, ID: e.ID, Body: e.change.Body}
}

// Section is a section of a plans file whose entries a prune can remove.
type Section string

// The sections, by their names in a plans file.
const (
	Plans         Section = "plans"
	Tenants       Section = "tenants"
	IPLimits      Section = "ipLimits"
	IPv6Prefix    Section = "ipv6Prefix"
	AnonymousPlan Section = "anonymousPlan"
	Routes        Section = "routes"
)

// Sections returns all sections that can be pruned. API keys are not among them, since a key is revoked, with its own
// command.
func Sections() []Section {
	return []Section{Plans, Tenants, IPLimits, IPv6Prefix, AnonymousPlan, Routes}
}

// Diff is the difference between plans files and the control tables.
type Diff struct {
	Edits     []Edit          `json:"changes"`   // plans, settings, tenants, keys; then deletions
	Unchanged int             `json:"unchanged"` // number of documents
	Elsewhere int             `json:"elsewhere"` // plans and tenants that are not in the files and stay
	Stay      map[Section]int `json:"stay"`      // entries that are not in the files and stay
	Afresh    []string        `json:"afresh"`    // counters that would start afresh, one sentence for each limit
	Problems  []string        `json:"problems"`  // why the diff cannot be applied, one sentence each
	// Damaged are items that cannot be read and are left alone, one sentence each.
	Damaged []string `json:"damaged,omitempty"`

	withPlan map[string]bool       // ids of tenants that must be written together with the plans
	plans    map[string]*plan.Plan // the stored plans by id; nil: the plan exists and cannot be read
	edited   map[string]*Edit      // by the name of the document
	leave    map[string][]*Edit    // the edits of tenants by their stored plan
	stored   map[control.Ref]*control.Item
	prune    []Section
}

// Losses returns what the edits remove and weaken, in their order.
func (d *Diff) Losses() (all []operate.Loss) {
	for i := range d.Edits {
		all = append(all, d.Edits[i].Losses...)
	}
	return all
}

// Compare reads the control tables and compares them with files that will be merged into them. What the files do not
// name stays: documents, entries of the settings, and members of a tenant or key. In the sections to prune, everything
// that is not in the files is removed. The error is a *plan.Error if lines of the files do not fit the tables; other
// reasons why the diff cannot be applied are its Problems.
//
// Items that cannot be read were not written by Sluice. Compare lists them in Damaged, and leaves them out; the tables
// refuse an edit of such an item. With a prune, such an item is an error.
func Compare(ctx context.Context, remote Remote, draft *plan.Draft, prune ...Section) (*Diff, error) {
	d := &Diff{prune: prune, Edits: []Edit{}, Stay: map[Section]int{}, Afresh: []string{}, Problems: []string{},
		withPlan: map[string]bool{}, plans: map[string]*plan.Plan{}, edited: map[string]*Edit{},
		leave: map[string][]*Edit{}}
	var err error
	if d.stored, d.Damaged, err = load(ctx, remote, operate.Tables()...); err != nil {
		return nil, err
	}
	if len(prune) > 0 && len(d.Damaged) > 0 {
		return nil, fmt.Errorf("cannot tell what a prune would delete, because an item cannot be read: %s",
			d.Damaged[0])
	}
	d.eachLive(func(_ *control.Item, doc plan.Document) {
		if doc.Kind == plan.KindPlan {
			d.plans[doc.ID], _ = plan.CompilePlan(doc)
		}
	})
	named := map[control.Ref]bool{}
	for _, doc := range draft.Documents() {
		named[refOf(doc)] = true
	}
	if err := draft.Check(d.base(named)); err != nil {
		return nil, err
	}
	for _, doc := range draft.Documents() {
		if err := d.compare(doc); err != nil {
			return nil, err
		}
	}
	d.Edits = append(d.Edits, d.deletes(named)...)
	if d.checkTenants(draft); len(d.Problems) == 0 {
		if err := d.preview(ctx, remote); err != nil {
			return nil, err
		}
	}
	return d, d.authors(ctx, remote)
}

// refOf names the item that holds a document.
func refOf(doc plan.Document) control.Ref {
	table, key := operate.Place(doc)
	return control.Ref{Table: table, Key: key}
}

func (d *Diff) prunes(s Section) bool { return slices.Contains(d.prune, s) }

// eachLive calls f for the stored documents that are not deleted, in the order of their keys.
func (d *Diff) eachLive(f func(item *control.Item, doc plan.Document)) {
	for _, ref := range slices.SortedFunc(maps.Keys(d.stored), control.Ref.Compare) {
		item := d.stored[ref]
		if doc, ok := operate.DocumentOf(item.Table, item.Key, item.Body); ok && !item.Deleted {
			f(item, doc)
		}
	}
}

// base returns the stored documents that the prune does not remove, to which the files may refer.
func (d *Diff) base(named map[control.Ref]bool) plan.Base {
	b := plan.Base{Plans: map[string]*plan.Plan{}, Tenants: map[string]string{}}
	b.Pruned = d.prunes(Plans) || d.prunes(Tenants)
	d.eachLive(func(item *control.Item, doc plan.Document) {
		stays := named[item.Ref()]
		switch {
		case doc.Kind == plan.KindPlan && (stays || !d.prunes(Plans)):
			b.Plans[doc.ID] = d.plans[doc.ID]
		case doc.Kind == plan.KindTenant && (stays || !d.prunes(Tenants)):
			var t struct{ Plan string }
			_ = json.Unmarshal(item.Body, &t) // a tenant that cannot be read has no plan
			b.Tenants[doc.ID] = t.Plan
		case doc.Kind == plan.KindSettings && !d.prunes(Routes):
			b.Settings, _ = plan.CompileSettings(doc) // nil if the settings cannot be read
		}
	})
	return b
}

// deletes returns the edits by which the prune deletes plans and tenants, tenants before plans. It counts the plans and
// tenants that are not in the files and are not deleted.
func (d *Diff) deletes(named map[control.Ref]bool) []Edit {
	var plans, tenants []Edit
	d.eachLive(func(item *control.Item, doc plan.Document) {
		into, section := &plans, Plans
		if doc.Kind == plan.KindTenant {
			into, section = &tenants, Tenants
		}
		switch {
		case doc.Kind == plan.KindSettings, doc.Kind == plan.KindKey, named[item.Ref()]:
		case !d.prunes(section):
			d.Elsewhere++
			d.Stay[section]++
		default:
			*into = append(*into, Edit{Action: Delete, Kind: doc.Kind, ID: doc.ID, Version: item.Version,
				Was:    authorOf(item),
				change: operate.Change{Table: item.Table, Key: item.Key, Expect: item.Version, Delete: true},
				before: item.Body})
		}
	})
	return append(tenants, plans...)
}

// load reads whole tables. damaged says what is wrong with items that cannot be read.
func load(
	ctx context.Context, remote Remote, tables ...control.Table,
) (stored map[control.Ref]*control.Item, damaged []string, err error) {
	stored = map[control.Ref]*control.Item{}
	for _, t := range tables {
		for after := ""; ; {
			page, err := remote.List(ctx, &operate.ListRequest{Table: t, After: after, Most: control.MaxPage})
			if err != nil {
				return nil, nil, err
			}
			for _, lines := range page.Damaged {
				damaged = append(damaged, strings.Split(lines, "\n")...)
			}
			for _, item := range page.Items {
				stored[item.Ref()] = item
			}
			if after = page.Next; after == "" {
				break
			}
		}
	}
	return stored, damaged, nil
}

// compare adds the edit for a document of the files, if the stored document differs.
func (d *Diff) compare(doc plan.Document) error {
	at, body := refOf(doc), doc.Body
	have := d.stored[at]
	edit := Edit{Action: Create, Kind: doc.Kind, ID: doc.ID}
	asks := doc.Kind != plan.KindSettings || string(body) != "{}"
	if have != nil {
		edit.Version = have.Version
	}
	if have != nil && !have.Deleted {
		var err error
		if body, err = d.mergeStored(doc, body, have.Body); err != nil {
			return fmt.Errorf("%s: %w", doc.Name(), err)
		}
		if bytes.Equal(body, have.Body) {
			if asks {
				d.Unchanged++
			}
			return nil
		}
		edit.Action, edit.before, edit.Fields, edit.Was = Change, have.Body, audit.Diff(have.Body, body), authorOf(have)
	} else if !asks {
		return nil // neither the files nor the tables have settings
	}
	edit.change = operate.Change{Table: at.Table, Key: at.Key, Expect: edit.Version, Body: body}
	d.Edits = append(d.Edits, edit)
	return nil
}

// mergeStored returns the body of a document of the files, merged with the stored body.
func (d *Diff) mergeStored(doc plan.Document, body, stored []byte) ([]byte, error) {
	if doc.Kind == plan.KindPlan {
		return body, nil // a plan in the files is always complete
	}
	var now, before map[string]json.RawMessage
	if err := json.Unmarshal(body, &now); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(stored, &before); err != nil {
		return nil, err
	}
	if doc.Kind == plan.KindSettings {
		if err := d.mergeSettings(now, before); err != nil {
			return nil, err
		}
		return events.MarshalCanonical(now)
	}
	for name, value := range before {
		if _, named := now[name]; !named {
			now[name] = value
		}
	}
	for name, value := range now { // files may write members that operations leave out; both mean the same
		switch have, there := before[name]; {
		case !empty(value):
		case there && empty(have):
			now[name] = have
		default:
			delete(now, name)
		}
	}
	return events.MarshalCanonical(now)
}

// empty reports whether a member of a tenant or key means the same as its absence.
func empty(value json.RawMessage) bool {
	return string(value) == "[]" || string(value) == "false"
}

// mergeSettings adds the stored settings that stay to those of the files, and counts them.
func (d *Diff) mergeSettings(now, before map[string]json.RawMessage) error {
	for _, section := range []Section{IPv6Prefix, AnonymousPlan} {
		if name := string(section); now[name] == nil && before[name] != nil && !d.prunes(section) {
			now[name] = before[name]
			d.Stay[section]++
		}
	}
	for section, name := range map[Section]func(json.RawMessage) (string, error){IPLimits: idOf, Routes: routeOf} {
		var entries, stored []json.RawMessage
		for _, list := range []struct {
			raw  json.RawMessage
			into *[]json.RawMessage
		}{{now[string(section)], &entries}, {before[string(section)], &stored}} {
			if list.raw == nil {
				continue
			}
			if err := json.Unmarshal(list.raw, list.into); err != nil {
				return err
			}
		}
		all, stay, err := merge(entries, stored, name, d.prunes(section))
		if err != nil {
			return err
		}
		delete(now, string(section))
		if len(all) > 0 {
			if now[string(section)], err = json.Marshal(all); err != nil {
				return err
			}
		}
		if stay > 0 {
			d.Stay[section] = stay
		}
	}
	return nil
}

// merge replaces the stored entries by entries of the same name, in their places, and appends the new ones. stay
// counts the stored entries that have no counterpart; they are kept unless prune is set.
func merge(
	entries, stored []json.RawMessage, name func(json.RawMessage) (string, error), prune bool,
) (all []json.RawMessage, stay int, err error) {
	named := map[string]json.RawMessage{}
	order := make([]string, len(entries))
	for i, e := range entries {
		if order[i], err = name(e); err != nil {
			return nil, 0, err
		}
		named[order[i]] = e
	}
	placed := map[string]bool{}
	for _, old := range stored {
		id, err := name(old)
		if err != nil {
			return nil, 0, err
		}
		placed[id] = true
		switch e, there := named[id]; {
		case there:
			all = append(all, e)
		case !prune:
			all = append(all, old)
			stay++
		}
	}
	for i, e := range entries {
		if !placed[order[i]] {
			all = append(all, e)
		}
	}
	return all, stay, nil
}

// idOf returns the id of an entry.
func idOf(entry json.RawMessage) (string, error) {
	var named struct{ ID string }
	err := json.Unmarshal(entry, &named)
	return named.ID, err
}

// routeOf names a route by what it matches, since it has no id.
func routeOf(entry json.RawMessage) (string, error) {
	body := slices.Concat([]byte(`{"routes":[`), entry, []byte(`]}`))
	s, err := plan.CompileSettings(plan.Document{Kind: plan.KindSettings, ID: plan.SettingsID, Body: body})
	if err != nil {
		return string(entry), nil //nolint:nilerr // a route that cannot be read equals only itself
	}
	return s.Routes()[0], nil
}

// authors finds who last changed the placement fields of each tenant whose edit changes one of them.
func (d *Diff) authors(ctx context.Context, remote Remote) error {
	var about []*Edit
	for i := range d.Edits {
		e := &d.Edits[i]
		touched := slices.ContainsFunc(e.Fields, func(f audit.Field) bool {
			name, _, _ := strings.Cut(f.Path, "[")
			return name == "overrides" || name == "boosts" || name == "cells" || name == "plan"
		})
		if e.Kind == plan.KindTenant && (touched || e.Action == Delete) {
			about = append(about, e)
		}
	}
	if len(about) == 0 {
		return nil
	}
	pins, _, err := load(ctx, remote, control.Cells)
	if err != nil {
		return err
	}
	for _, e := range about {
		pin := pins[control.Ref{Table: control.Cells, Key: operate.PinKey(e.ID)}]
		if pin != nil && operate.PinOf(pin.Body, e.ID, e.before) {
			e.Own = authorOf(pin)
		}
	}
	return nil
}

// checkTenants finds out which edited tenants do not fit their plans, because of what they keep from the server, and
// which must be written together with a plan.
func (d *Diff) checkTenants(draft *plan.Draft) {
	will := maps.Clone(d.plans) // id → the plan after the edits; nil if it will not exist or cannot be read
	for i := range d.Edits {
		if e := &d.Edits[i]; e.Kind == plan.KindPlan {
			will[e.ID] = draft.Plan(e.ID) // nil for a deletion
		}
	}
	for i := range d.Edits {
		e := &d.Edits[i]
		if e.Kind != plan.KindTenant || e.Action != Change || will[namedIn(e.change.Body).Plan] == nil {
			continue // the admin endpoint reports a plan that will be missing
		}
		if err := fits(e.document(), will); err != nil {
			d.Problems = append(d.Problems, strings.Split(draft.PlaceKeptProblems(e.ID, err).Error(), "\n")...)
			continue
		}
		stored := e.document()
		stored.Body = e.before
		if will[namedIn(e.before).Plan] != nil && fits(stored, will) != nil {
			d.withPlan[e.ID] = true // the plan must not be written without the tenant
		}
	}
}

// named holds the ids of other documents in a tenant or a key.
type named struct{ Plan, Tenant string }

// namedIn returns what a tenant or a key names. A document that cannot be read names nothing.
func namedIn(body []byte) (n named) {
	_ = json.Unmarshal(body, &n)
	return n
}

// index makes it possible to find the edits that decide whether others are valid: see withRelated.
func (d *Diff) index() {
	for i := range d.Edits {
		e := &d.Edits[i]
		d.edited[e.document().Name()] = e
		if from := namedIn(e.before).Plan; e.Kind == plan.KindTenant && from != "" {
			d.leave[from] = append(d.leave[from], e)
		}
	}
}

// preview has the admin endpoint check the edits, and say what each removes, weakens and starts afresh.
func (d *Diff) preview(ctx context.Context, remote Remote) error {
	d.index()
	batches, err := d.batches()
	if err != nil {
		return err
	}
	for _, batch := range batches {
		// A tenant or key that is created loses nothing. It is sent only together with what depends on it.
		batch = slices.DeleteFunc(batch, func(e *Edit) bool {
			return e.Action == Create && (e.Kind == plan.KindTenant || e.Kind == plan.KindKey)
		})
		if len(batch) == 0 {
			continue
		}
		all := d.withRelated(batch)
		if err := checkSize(all); err != nil {
			return err
		}
		r := &operate.PreviewRequest{}
		for _, e := range all {
			r.Changes = append(r.Changes, e.change)
		}
		answer, err := remote.Preview(ctx, r)
		var refused *operate.Error
		switch {
		case errors.As(err, &refused) && refused.Code == operate.Invalid:
			for _, p := range refused.Problems {
				if !slices.Contains(d.Problems, p) {
					d.Problems = append(d.Problems, p)
				}
			}
		case err != nil:
			return err
		case len(answer.Results) != len(all):
			return errMismatch
		default:
			for i, e := range batch {
				e.Losses, e.afresh = answer.Results[i].Losses, answer.Results[i].Afresh
			}
		}
	}
	for i := range d.Edits {
		d.Afresh = append(d.Afresh, d.Edits[i].afresh...)
	}
	return nil
}

// withRelated returns edits, followed by the other edits that decide whether these are valid: of the plan that a tenant
// gets, of the tenant that a key gets, and of whatever leaves a plan that is deleted.
func (d *Diff) withRelated(edits []*Edit) []*Edit {
	all, sent := slices.Clone(edits), map[*Edit]bool{nil: true}
	for _, e := range edits {
		sent[e] = true
	}
	add := func(related ...*Edit) {
		for _, e := range related {
			if !sent[e] {
				sent[e], all = true, append(all, e)
			}
		}
	}
	for i := 0; i < len(all); i++ { // all grows
		switch e := all[i]; {
		case e.Action == Delete && e.Kind == plan.KindPlan:
			add(d.edited[plan.Document{Kind: plan.KindSettings, ID: plan.SettingsID}.Name()])
			add(d.leave[e.ID]...)
		case e.Action == Delete:
		case e.Kind == plan.KindTenant:
			add(d.edited[plan.Document{Kind: plan.KindPlan, ID: namedIn(e.change.Body).Plan}.Name()])
		case e.Kind == plan.KindKey:
			add(d.edited[plan.Document{Kind: plan.KindTenant, ID: namedIn(e.change.Body).Tenant}.Name()])
		}
	}
	return all
}

// fits returns why a tenant does not fit its plan, or nil.
func fits(doc plan.Document, plans map[string]*plan.Plan) error {
	t, err := plan.ReadTenant(doc)
	if err != nil {
		return err
	}
	_, err = t.Compile(plans[t.PlanID()])
	return err
}
