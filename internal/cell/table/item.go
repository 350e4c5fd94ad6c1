package table

import (
	"fmt"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// DocumentOf returns the document of a changed item, which has the version and the body of the item. The kinds of
// documents are listed in documents.go of package events. Operations, and the items of single cells, are not part of a
// cell's configuration.
func DocumentOf(e *events.Changed) Document {
	kind, id := e.Document()
	d := Document{Ref: Ref{Kind: kind, ID: id}, Version: e.ItemVersion, Deleted: e.Deleted}
	if !e.Deleted {
		d.Body = e.Body
	}
	return d
}

// RefOf names the document of an item; false if cells have no document of it.
func RefOf(t events.Table, key string) (Ref, bool) {
	d, id, ok := events.KindOf(t, key)
	return Ref{Kind: d.Kind, ID: id}, ok
}

// Readable returns an error if this version of the software cannot read a document of the shares, or a placement:
// because it has a newer layout, was altered, or was deleted. Such a document must not be treated as absent. It must
// not replace one that can be read, because the shares that the cell knows stay in force. Documents of other kinds are
// checked by their readers.
func Readable(d *Document) error {
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
func Unknown(d Document) Document {
	return Document{Ref: d.Ref, Version: d.Version, Deleted: true}
}

// ItemOf returns the table and key of the item of a document; false if there can be no such item.
func ItemOf(r Ref) (t events.Table, key string, ok bool) {
	if t, key, ok = events.ItemOf(r.Kind, r.ID); !ok {
		return "", "", false
	}
	back, there := RefOf(t, key)
	return t, key, there && back == r && events.CheckKey(t, key) == nil
}
