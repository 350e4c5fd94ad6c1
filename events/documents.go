package events

import (
	"slices"
	"strings"
)

// This file lists the kinds of documents, for all of Sluice. To add a kind, add its line to documents and its type of
// event; unless it has a table of its own, also the key of its document, or the prefix of its keys.

// Types of a [Changed].
const (
	PlanChanged Type = "plan.changed" // a plan
	// SettingsChanged is about the settings, which are ipLimits, ipv6Prefix, anonymousPlan and routes.
	SettingsChanged Type = "settings.changed"
	TenantChanged   Type = "tenant.changed" // a tenant
	KeyChanged      Type = "key.changed"    // an API key, as its hash
	// SharesChanged is about the cells' shares of all limits, or about the placement of a tenant: see PlacementPrefix.
	SharesChanged Type = "shares.changed"
	// Canary is about the canary's mark, which has no other content. It measures how long changes take to reach the
	// cells.
	Canary Type = "canary"
)

// Keys of the documents that exist once. No plan and no cell can have these names.
const (
	SettingsKey = "@settings" // in Plans: ipLimits, ipv6Prefix, anonymousPlan, routes
	CanaryKey   = "@canary"   // in Plans, because the canary measures how long changes of plans take
	SharesKey   = "@shares"   // in Cells
)

// PlacementPrefix begins the keys, in Cells, of the placements of tenants that not every cell serves. No cell has such
// a name.
const PlacementPrefix = "placed."

// Kind is the kind of a document, by its name in a cell's configuration.
type Kind string

// The kinds of documents.
const (
	KindPlan      Kind = "plan"
	KindSettings  Kind = "settings"
	KindTenant    Kind = "tenant"
	KindKey       Kind = "key"
	KindCanary    Kind = "canary"
	KindShares    Kind = "shares"
	KindPlacement Kind = "placement"
)

// DocumentKind is a kind of item in the control tables whose changes are published to cells and subscribers.
type DocumentKind struct {
	Table Table
	Kind  Kind
	Type  Type // of the event of a change

	// Key and Prefix select the items of the table that are of this kind: the item with this Key; or, if Key is empty,
	// the items whose keys begin with Prefix, except those that another kind has as Key.
	Key, Prefix string

	// ID is the id that the item with Key has in a cell's configuration. Every other item has its key as id.
	ID string
}

var documents = [...]DocumentKind{
	{Table: Plans, Kind: KindPlan, Type: PlanChanged},
	{Table: Plans, Kind: KindSettings, Type: SettingsChanged, Key: SettingsKey, ID: "settings"},
	{Table: Plans, Kind: KindCanary, Type: Canary, Key: CanaryKey, ID: "canary"},
	{Table: Tenants, Kind: KindTenant, Type: TenantChanged},
	{Table: Keys, Kind: KindKey, Type: KeyChanged},
	{Table: Cells, Kind: KindShares, Type: SharesChanged, Key: SharesKey, ID: "shares"},
	{Table: Cells, Kind: KindPlacement, Type: SharesChanged, Prefix: PlacementPrefix},
}

// KindOf returns the kind of an item, and its id in a cell's configuration. It returns false if changes of the item
// are not published: these are the items of operations, and those of single cells, which only the balancer reads.
func KindOf(t Table, key string) (d DocumentKind, id string, ok bool) {
	for _, one := range documents {
		switch {
		case one.Table != t:
		case one.Key == key && key != "":
			return one, one.ID, true
		case one.Key == "" && strings.HasPrefix(key, one.Prefix):
			d, id, ok = one, key, true
		}
	}
	return d, id, ok
}

// ItemOf is the inverse of [KindOf]: it returns the table and key of the item that has this kind and id in a cell's
// configuration. It does not check the key: see [CheckKey].
func ItemOf(kind Kind, id string) (t Table, key string, ok bool) {
	for _, one := range documents {
		switch {
		case one.Kind != kind:
		case one.Key != "":
			return one.Table, one.Key, id == one.ID
		default:
			return one.Table, id, true
		}
	}
	return "", "", false
}

// KindsIn returns the kinds of documents of a table.
func KindsIn(t Table) []Kind {
	var kinds []Kind
	for _, one := range documents {
		if one.Table == t {
			kinds = append(kinds, one.Kind)
		}
	}
	return kinds
}

// DocumentTables lists the control tables that have documents, in the order of [AllTables].
func DocumentTables() []Table {
	return slices.DeleteFunc(AllTables(), func(t Table) bool { return len(KindsIn(t)) == 0 })
}

// ChangedType returns the type of the events about an item; false if its changes are not published.
func ChangedType(t Table, key string) (Type, bool) {
	d, _, ok := KindOf(t, key)
	return d.Type, ok
}

// Document returns the kind and the id that the changed document has in a cell's configuration; "" if no item of this
// type and key is a document.
func (e *Changed) Document() (kind Kind, id string) {
	d, id, _ := KindOf(e.Type.table(), e.Key)
	return d.Kind, id
}

// table returns the control table of the documents whose changes have this type; "" if the type is not one of a
// [Changed].
func (t Type) table() Table {
	for _, one := range documents {
		if one.Type == t {
			return one.Table
		}
	}
	return ""
}

// isFixedKey reports whether the key belongs to a kind of which there is one document only, under this key.
func isFixedKey(t Table, key string) bool {
	d, _, _ := KindOf(t, key)
	return d.Key != ""
}
