package cellconfig_test

import (
	"slices"
	"testing"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// Guarantees that each item that cells receive is one document, and that ItemOf reverses this: reconcile must find an
// item and its document under each other's names.
func TestItems(t *testing.T) {
	for _, tt := range []struct {
		table events.Table
		key   string
		want  cellconfig.Ref // zero: not in cells
	}{
		{events.Plans, "pro", cellconfig.Ref{Kind: plan.KindPlan, ID: "pro"}},
		{events.Plans, "settings", cellconfig.Ref{Kind: plan.KindPlan, ID: "settings"}},
		{events.Plans, events.SettingsKey, cellconfig.Ref{Kind: plan.KindSettings, ID: plan.SettingsID}},
		{events.Plans, events.CanaryKey, cellconfig.Ref{Kind: cellconfig.KindCanary, ID: cellconfig.CanaryID}},
		{events.Tenants, "@settings", cellconfig.Ref{Kind: plan.KindTenant, ID: "@settings"}},
		{events.Keys, "k1", cellconfig.Ref{Kind: plan.KindKey, ID: "k1"}},
		{events.Cells, events.SharesKey, cellconfig.Ref{Kind: cellconfig.KindShares, ID: cellconfig.SharesID}},
		{events.Cells, shares.PlacementKey("acme"), cellconfig.Ref{Kind: cellconfig.KindPlacement,
			ID: shares.PlacementKey("acme")}},
		{events.Cells, shares.AckKey("eu-1"), cellconfig.Ref{}},
		{events.Cells, "eu-1", cellconfig.Ref{}},
		{events.Operations, "op", cellconfig.Ref{}},
	} {
		ref, ok := cellconfig.RefOf(tt.table, tt.key)
		if ref != tt.want || ok != (tt.want != cellconfig.Ref{}) {
			t.Errorf("RefOf(%s, %q) = %+v, %t; want %+v", tt.table, tt.key, ref, ok, tt.want)
		}
		if !ok {
			continue
		}
		if table, key, ok := cellconfig.ItemOf(ref); table != tt.table || key != tt.key || !ok {
			t.Errorf("ItemOf(%+v) = %s, %q, %t; want %s, %q", ref, table, key, ok, tt.table, tt.key)
		}
		if !slices.Contains(cellconfig.KindsOf(tt.table), ref.Kind) {
			t.Errorf("the kind %s is missing in the kinds of %s, want it there", ref.Kind, tt.table)
		}
	}
}

// Guarantees that names which packages repeat because they cannot import each other are equal, and that each kind of
// document has a constant in the packages that read documents.
func TestRepeatedNames(t *testing.T) {
	if events.PlacementPrefix != shares.PlacementPrefix {
		t.Errorf("placements begin with %q in package events, and with %q in package shares; want the same",
			events.PlacementPrefix, shares.PlacementPrefix)
	}
	named := append([]cellconfig.Kind{cellconfig.KindCanary, cellconfig.KindShares, cellconfig.KindPlacement},
		plan.Kinds...)
	var kinds []cellconfig.Kind
	for _, table := range events.AllTables() {
		kinds = append(kinds, cellconfig.KindsOf(table)...)
	}
	slices.Sort(named)
	slices.Sort(kinds)
	if !slices.Equal(kinds, named) {
		t.Errorf("the kinds of documents are %v, and those with a constant %v; want the same", kinds, named)
	}
}

// Guarantees that a document without a possible item is recognised, so that nothing else in a cell's table is mistaken
// for one.
func TestNoItems(t *testing.T) {
	for _, r := range []cellconfig.Ref{
		{}, {Kind: "keyhash", ID: "00"}, {Kind: plan.KindSettings, ID: "other"}, {Kind: plan.KindPlan, ID: "no id"},
		{Kind: plan.KindPlan, ID: events.SettingsKey},
		{Kind: cellconfig.KindShares, ID: "eu-1"}, {Kind: cellconfig.KindPlacement, ID: "eu-1"}, {Kind: plan.KindTenant,
			ID: "a\x00b"},
	} {
		if table, key, ok := cellconfig.ItemOf(r); ok {
			t.Errorf("%+v: got the item %s %q, want none", r, table, key)
		}
	}
	if got := cellconfig.KindsOf(events.Operations); got != nil {
		t.Errorf("operations: got the documents %v, want none", got)
	}
}

// Guarantees that shares and placements that this version cannot read, including deleted ones, are distinguished from
// readable ones, and that documents of other kinds are not checked.
func TestReadable(t *testing.T) {
	placement := shares.PlacementKey("acme")
	for _, tt := range []struct {
		ref  cellconfig.Ref
		body string // "": deleted
		want bool
	}{
		{cellconfig.Ref{Kind: cellconfig.KindShares, ID: cellconfig.SharesID}, `{"version":2}`, true},
		{cellconfig.Ref{Kind: cellconfig.KindShares, ID: cellconfig.SharesID}, `{"version":3}`, false},
		{cellconfig.Ref{Kind: cellconfig.KindShares, ID: cellconfig.SharesID}, ``, false},
		{cellconfig.Ref{Kind: cellconfig.KindPlacement, ID: placement},
			`{"version":2,"tenant":"acme","generations":[{"epoch":0,"from":1}]}`, true},
		{cellconfig.Ref{Kind: cellconfig.KindPlacement, ID: placement},
			`{"version":2,"tenant":"other","generations":[{"epoch":0,"from":1}]}`, false},
		{cellconfig.Ref{Kind: cellconfig.KindPlacement, ID: placement}, `{"version":2,"tenant":"acme"}`, false},
		{cellconfig.Ref{Kind: cellconfig.KindPlacement, ID: placement}, ``, false},
		{cellconfig.Ref{Kind: plan.KindTenant, ID: "acme"}, ``, true},
		{cellconfig.Ref{Kind: plan.KindPlan, ID: "pro"}, `{"version":2}`, true},
	} {
		d := cellconfig.Document{Ref: tt.ref, Version: 3, Deleted: tt.body == "", Body: []byte(tt.body)}
		if err := cellconfig.Readable(&d); (err == nil) != tt.want {
			t.Errorf("%s %q: %v, want readable %t", tt.ref.Kind, tt.body, err, tt.want)
		}
		if u := cellconfig.Unknown(d); u.Ref != tt.ref || u.Version != 3 || !u.Deleted || u.Body != nil {
			t.Errorf("got the document of an unknown item %+v, want a tombstone of version 3", u)
		}
	}
}

// Guarantees that a tombstone has no body, and that version and body are copied unchanged.
func TestOf(t *testing.T) {
	d := cellconfig.DocumentOf(&events.Changed{Type: events.TenantChanged, Key: "acme", ItemVersion: 7,
		Body: []byte(`{"id":"acme"}`)})
	if d.ID != "acme" || d.Version != 7 || d.Deleted || string(d.Body) != `{"id":"acme"}` || d.Check() != nil {
		t.Errorf("got %+v, want version 7 of acme with its body", d)
	}
	d = cellconfig.DocumentOf(&events.Changed{Type: events.TenantChanged, Key: "acme", ItemVersion: 8, Deleted: true})
	if d.Version != 8 || !d.Deleted || d.Body != nil || d.Check() != nil {
		t.Errorf("got %+v, want a tombstone of version 8", d)
	}
}
