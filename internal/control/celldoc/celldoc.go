// Package celldoc says which document of a cell's configuration an item of the control tables is, and which item a
// document is. The kinds are listed in documents.go of package events. Operations and single cells are in no cell's
// configuration. Version and body of a document are the item's own.
package celldoc

import (
	"fmt"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// KindPlacement is that of the placements of tenants which not every cell serves.
const KindPlacement = cellconfig.KindPlacement

// KindKey is that of API keys.
const KindKey = plan.KindKey

// Kinds of documents that are not those of a plans file, and of which there is one each.
const (
	KindShares = cellconfig.KindShares
	SharesID   = cellconfig.SharesID

	KindCanary cellconfig.Kind = "canary"
	CanaryID   string          = "canary"
)

// Of is the document that a changed item is.
func Of(e *events.Changed) cellconfig.Document {
	kind, id := e.Document()
	d := cellconfig.Document{Ref: cellconfig.Ref{Kind: cellconfig.Kind(kind), ID: id}, Version: e.ItemVersion,
		Deleted: e.Deleted}
	if !e.Deleted {
		d.Body = e.Body
	}
	return d
}

// Ref names the document of an item; false where cells have none.
func Ref(t events.Table, key string) (cellconfig.Ref, bool) {
	d, id, ok := events.DocumentOf(t, key)
	return cellconfig.Ref{Kind: cellconfig.Kind(d.Kind), ID: id}, ok
}

// Readable returns an error that says why this version cannot read a document of the shares, or a placement: it is of a
// newer layout, something else altered it, or it was deleted. Such a document is not an absent one. It must not replace
// one that can be read, because what the cell knows of the shares stays in force. Documents of other kinds are checked
// by those who read them.
func Readable(d *cellconfig.Document) error {
	if d.Kind != KindShares && d.Kind != KindPlacement {
		return nil
	}
	if d.Deleted {
		return fmt.Errorf("the document of kind %s was deleted, and it says what cells may still grant", d.Kind)
	}
	var err error
	if d.Kind == KindShares {
		_, err = shares.DecodeState(d.Body)
	} else {
		_, err = shares.ReadPlacement(d.ID, d.Body)
	}
	return err
}

// Unknown is the document that a cell stores in place of a placement that it cannot read, if it may lack the placements
// from before: a tombstone, by which its readers know that they do not know where the tenant is served.
func Unknown(d cellconfig.Document) cellconfig.Document {
	return cellconfig.Document{Ref: d.Ref, Version: d.Version, Deleted: true}
}

// Item is the item that a document is; false where there can be none.
func Item(r cellconfig.Ref) (t events.Table, key string, ok bool) {
	if t, key, ok = events.ItemOf(string(r.Kind), r.ID); !ok {
		return "", "", false
	}
	back, there := Ref(t, key)
	return t, key, there && back == r && events.CheckKey(t, key) == nil
}

// Kinds are those of a control table's documents.
func Kinds(t events.Table) []cellconfig.Kind {
	var kinds []cellconfig.Kind
	for _, kind := range events.KindsIn(t) {
		kinds = append(kinds, cellconfig.Kind(kind))
	}
	return kinds
}
