// Package celldoc says which document of a cell's configuration an item of the control tables is, and which item a document is.
//
//	control table  key                  kind          id
//	plans          a plan's id          plan          the same
//	plans          events.SettingsKey   settings      plan.SettingsID
//	plans          events.CanaryKey     KindCanary    CanaryID
//	tenants        a tenant's id        tenant        the same
//	keys           a key's id           key           the same
//	cells          events.SharesKey     KindShares    SharesID
//	cells          a placement's key    KindPlacement the same
//
// Operations and single cells are in no cell's configuration. Version and body are the item's own.
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
	d := cellconfig.Document{Ref: refOf(e.Type, e.Key), Version: e.ItemVersion, Deleted: e.Deleted}
	if !e.Deleted {
		d.Body = e.Body
	}
	return d
}

// Ref names the document of an item; false where cells have none.
func Ref(t events.Table, key string) (cellconfig.Ref, bool) {
	typ, ok := events.ChangedType(t, key)
	if !ok {
		return cellconfig.Ref{}, false
	}
	return refOf(typ, key), true
}

func refOf(t events.Type, key string) cellconfig.Ref {
	switch t {
	case events.PlanChanged:
		return cellconfig.Ref{Kind: plan.KindPlan, ID: key}
	case events.TenantChanged:
		return cellconfig.Ref{Kind: plan.KindTenant, ID: key}
	case events.KeyChanged:
		return cellconfig.Ref{Kind: plan.KindKey, ID: key}
	case events.SettingsChanged:
		return cellconfig.Ref{Kind: plan.KindSettings, ID: plan.SettingsID}
	case events.Canary:
		return cellconfig.Ref{Kind: KindCanary, ID: CanaryID}
	case events.SharesChanged:
		if key != events.SharesKey {
			return cellconfig.Ref{Kind: KindPlacement, ID: key}
		}
		return cellconfig.Ref{Kind: KindShares, ID: SharesID}
	default: // no document
		return cellconfig.Ref{}
	}
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
	switch r.Kind {
	case plan.KindPlan:
		t, key = events.Plans, r.ID
	case plan.KindTenant:
		t, key = events.Tenants, r.ID
	case plan.KindKey:
		t, key = events.Keys, r.ID
	case plan.KindSettings:
		t, key = events.Plans, events.SettingsKey
	case KindCanary:
		t, key = events.Plans, events.CanaryKey
	case KindShares:
		t, key = events.Cells, events.SharesKey
	case KindPlacement:
		t, key = events.Cells, r.ID
	default:
		return "", "", false
	}
	back, there := Ref(t, key)
	return t, key, there && back == r && events.CheckKey(t, key) == nil
}

// Kinds are those of a control table's documents.
func Kinds(t events.Table) []cellconfig.Kind {
	switch t {
	case events.Plans:
		return []cellconfig.Kind{plan.KindPlan, plan.KindSettings, KindCanary}
	case events.Tenants:
		return []cellconfig.Kind{plan.KindTenant}
	case events.Keys:
		return []cellconfig.Kind{plan.KindKey}
	case events.Cells:
		return []cellconfig.Kind{KindShares, KindPlacement}
	case events.Operations:
	}
	return nil
}
