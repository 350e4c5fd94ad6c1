// Package celldoc converts between items of the control tables and documents of a cell's configuration. The kinds of
// documents are listed in documents.go of package events. Operations, and the items of single cells, are not part of a
// cell's configuration. A document has the version and the body of its item.
package celldoc

import (
	"fmt"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// KindPlacement is the kind of the placements of tenants that not every cell serves.
const KindPlacement = cellconfig.KindPlacement

// KindKey is the kind of API keys.
const KindKey = plan.KindKey

// Kinds of documents that are not in a plans file. There is one document of each.
const (
	KindShares = cellconfig.KindShares
	SharesID   = cellconfig.SharesID

	KindCanary cellconfig.Kind = "canary"
	CanaryID   string          = "canary"
)

// Of returns the document of a changed item.
func Of(e *events.Changed) cellconfig.Document {
	kind, id := e.Document()
	d := cellconfig.Document{Ref: cellconfig.Ref{Kind: cellconfig.Kind(kind), ID: id}, Version: e.ItemVersion,
		Deleted: e.Deleted}
	if !e.Deleted {
		d.Body = e.Body
	}
	return d
}

// Ref names the document of an item; false if cells have no document of it.
func Ref(t events.Table, key string) (cellconfig.Ref, bool) {
	d, id, ok := events.DocumentOf(t, key)
	return cellconfig.Ref{Kind: cellconfig.Kind(d.Kind), ID: id}, ok
}

// Readable returns an error if this version of the software cannot read a document of the shares, or a placement:
// because it has a newer layout, was altered, or was deleted. Such a document must not be treated as absent. It must
// not replace one that can be read, because the shares that the cell knows stay in force. Documents of other kinds are
// checked by their readers.
func Readable(d *cellconfig.Document) error {
	if d.Kind != KindShares && d.Kind != KindPlacement {
		return nil
	}
	if d.Deleted {
		return fmt.Errorf("the document of kind %s was deleted, although cells need it to know what they may grant",
			d.Kind)
	}
	var err error
	if d.Kind == KindShares {
		_, err = shares.DecodeState(d.Body)
	} else {
		_, err = shares.ReadPlacement(d.ID, d.Body)
	}
	return err
}

// Unknown returns the document that a cell stores instead of a placement that it cannot read, if it may lack the
// earlier placements too. It is a tombstone, which tells the cell's readers that the tenant's placement is unknown.
func Unknown(d cellconfig.Document) cellconfig.Document {
	return cellconfig.Document{Ref: d.Ref, Version: d.Version, Deleted: true}
}

// Item returns the table and key of the item of a document; false if there can be no such item.
func Item(r cellconfig.Ref) (t events.Table, key string, ok bool) {
	if t, key, ok = events.ItemOf(string(r.Kind), r.ID); !ok {
		return "", "", false
	}
	back, there := Ref(t, key)
	return t, key, there && back == r && events.CheckKey(t, key) == nil
}

// Kinds returns the kinds of documents of a control table.
func Kinds(t events.Table) []cellconfig.Kind {
	var kinds []cellconfig.Kind
	for _, kind := range events.KindsIn(t) {
		kinds = append(kinds, cellconfig.Kind(kind))
	}
	return kinds
}
