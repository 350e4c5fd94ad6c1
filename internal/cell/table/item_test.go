package table_test

import (
	"slices"
	"testing"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// Guarantees that each item that cells receive is one document, and that ItemOf reverses this: reconcile must find an
// item and its document under each other's names.
func TestItems(t *testing.T) {
	for _, tt := range []struct {
		of   events.Table
		key  string
		want table.Ref // zero: not in cells
	}{
		{events.Plans, "pro", table.Ref{Kind: plan.KindPlan, ID: "pro"}},
		{events.Plans, "settings", table.Ref{Kind: plan.KindPlan, ID: "settings"}},
		{events.Plans, events.SettingsKey, table.Ref{Kind: plan.KindSettings, ID: plan.SettingsID}},
		{events.Plans, events.CanaryKey, table.Ref{Kind: table.KindCanary, ID: table.CanaryID}},
		{events.Tenants, "@settings", table.Ref{Kind: plan.KindTenant, ID: "@settings"}},
		{events.Keys, "k1", table.Ref{Kind: plan.KindKey, ID: "k1"}},
		{events.Cells, events.SharesKey, table.Ref{Kind: table.KindShares, ID: table.SharesID}},
		{events.Cells, shares.PlacementKey("acme"), table.Ref{Kind: table.KindPlacement,
			ID: shares.PlacementKey("acme")}},
		{events.Cells, shares.AckKey("eu-1"), table.Ref{}},
		{events.Cells, "eu-1", table.Ref{}},
		{events.Operations, "op", table.Ref{}},
	} {
		ref, ok := table.RefOf(tt.of, tt.key)
		if ref != tt.want || ok != (tt.want != table.Ref{}) {
			t.Errorf("RefOf(%s, %q) = %+v, %t; want %+v", tt.of, tt.key, ref, ok, tt.want)
		}
		if !ok {
			continue
		}
		if of, key, ok := table.ItemOf(ref); of != tt.of || key != tt.key || !ok {
			t.Errorf("ItemOf(%+v) = %s, %q, %t; want %s, %q", ref, of, key, ok, tt.of, tt.key)
		}
		if !slices.Contains(events.KindsIn(tt.of), ref.Kind) {
			t.Errorf("the kind %s is missing in the kinds of %s, want it there", ref.Kind, tt.of)
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
	named := append([]table.Kind{table.KindCanary, table.KindShares, table.KindPlacement},
		plan.Kinds...)
	var kinds []table.Kind
	for _, of := range events.AllTables() {
		kinds = append(kinds, events.KindsIn(of)...)
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
	for _, r := range []table.Ref{
		{}, {Kind: "keyhash", ID: "00"}, {Kind: plan.KindSettings, ID: "other"}, {Kind: plan.KindPlan, ID: "no id"},
		{Kind: plan.KindPlan, ID: events.SettingsKey},
		{Kind: table.KindShares, ID: "eu-1"}, {Kind: table.KindPlacement, ID: "eu-1"}, {Kind: plan.KindTenant,
			ID: "a\x00b"},
	} {
		if of, key, ok := table.ItemOf(r); ok {
			t.Errorf("%+v: got the item %s %q, want none", r, of, key)
		}
	}
	if got := events.KindsIn(events.Operations); got != nil {
		t.Errorf("operations: got the documents %v, want none", got)
	}
}

// Guarantees that shares and placements that this version cannot read, including deleted ones, are distinguished from
// readable ones, and that documents of other kinds are not checked.
func TestReadable(t *testing.T) {
	placement := shares.PlacementKey("acme")
	for _, tt := range []struct {
		ref  table.Ref
		body string // "": deleted
		want bool
	}{
		{table.Ref{Kind: table.KindShares, ID: table.SharesID}, `{"version":2}`, true},
		{table.Ref{Kind: table.KindShares, ID: table.SharesID}, `{"version":3}`, false},
		{table.Ref{Kind: table.KindShares, ID: table.SharesID}, ``, false},
		{table.Ref{Kind: table.KindPlacement, ID: placement},
			`{"version":2,"tenant":"acme","generations":[{"epoch":0,"from":1}]}`, true},
		{table.Ref{Kind: table.KindPlacement, ID: placement},
			`{"version":2,"tenant":"other","generations":[{"epoch":0,"from":1}]}`, false},
		{table.Ref{Kind: table.KindPlacement, ID: placement}, `{"version":2,"tenant":"acme"}`, false},
		{table.Ref{Kind: table.KindPlacement, ID: placement}, ``, false},
		{table.Ref{Kind: plan.KindTenant, ID: "acme"}, ``, true},
		{table.Ref{Kind: plan.KindPlan, ID: "pro"}, `{"version":2}`, true},
	} {
		d := table.Document{Ref: tt.ref, Version: 3, Deleted: tt.body == "", Body: []byte(tt.body)}
		if err := table.Readable(&d); (err == nil) != tt.want {
			t.Errorf("%s %q: %v, want readable %t", tt.ref.Kind, tt.body, err, tt.want)
		}
		if u := table.Unknown(d); u.Ref != tt.ref || u.Version != 3 || !u.Deleted || u.Body != nil {
			t.Errorf("got the document of an unknown item %+v, want a tombstone of version 3", u)
		}
	}
}

// Guarantees that a tombstone has no body, and that version and body are copied unchanged.
func TestOf(t *testing.T) {
	d := table.DocumentOf(&events.Changed{Type: events.TenantChanged, Key: "acme", ItemVersion: 7,
		Body: []byte(`{"id":"acme"}`)})
	if d.ID != "acme" || d.Version != 7 || d.Deleted || string(d.Body) != `{"id":"acme"}` || d.Check() != nil {
		t.Errorf("got %+v, want version 7 of acme with its body", d)
	}
	d = table.DocumentOf(&events.Changed{Type: events.TenantChanged, Key: "acme", ItemVersion: 8, Deleted: true})
	if d.Version != 8 || !d.Deleted || d.Body != nil || d.Check() != nil {
		t.Errorf("got %+v, want a tombstone of version 8", d)
	}
}
