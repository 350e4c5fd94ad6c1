package events

import (
	"slices"
	"strings"
)

// This file is the one list of the kinds of documents. A new kind is a type of event, a key or a prefix unless it has a
// table of its own, and a line in documents.

// Types of a [Changed].
const (
	PlanChanged Type = "plan.changed" // a plan
	// SettingsChanged is about the settings, which are ipLimits, ipv6Prefix, anonymousPlan and routes.
	SettingsChanged Type = "settings.changed"
	TenantChanged   Type = "tenant.changed" // a tenant
	KeyChanged      Type = "key.changed"    // an API key, as its hash
	// SharesChanged is about the cells' shares of all limits, or about the placement of a tenant: see PlacementPrefix.
	SharesChanged Type = "shares.changed"
	// Canary is about a mark without other content. Canaries measure how long it takes to reach cells.
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

// Document is a kind of item in the control tables whose changes are told to cells and subscribers.
type Document struct {
	Table Table
	Kind  string // what a cell's configuration calls it
	Type  Type   // of the event of a change

	// Which items of the table it is: the one with this key; or, if Key is empty, each whose key begins with Prefix and
	// is the Key of no other kind.
	Key, Prefix string

	// ID is what a cell's configuration calls the one item with Key. Every other item has its key as id.
	ID string
}

var documents = [...]Document{
	{Table: Plans, Kind: "plan", Type: PlanChanged},
	{Table: Plans, Kind: "settings", Type: SettingsChanged, Key: SettingsKey, ID: "settings"},
	{Table: Plans, Kind: "canary", Type: Canary, Key: CanaryKey, ID: "canary"},
	{Table: Tenants, Kind: "tenant", Type: TenantChanged},
	{Table: Keys, Kind: "key", Type: KeyChanged},
	{Table: Cells, Kind: "shares", Type: SharesChanged, Key: SharesKey, ID: "shares"},
	{Table: Cells, Kind: "placement", Type: SharesChanged, Prefix: PlacementPrefix},
}

// DocumentOf returns the kind of an item, and its id in a cell's configuration; false if its changes are told to
// nobody: those of operations, and of single cells, which only the balancer reads.
func DocumentOf(t Table, key string) (d Document, id string, ok bool) {
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

// ItemOf is the inverse of [DocumentOf]: the item that a cell's configuration calls by that kind and id. It does not
// check that such an item can be: see [CheckKey].
func ItemOf(kind, id string) (t Table, key string, ok bool) {
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
func KindsIn(t Table) []string {
	var kinds []string
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

// ChangedType returns the type of event for a document of a control table; false if nobody is told of it.
func ChangedType(t Table, key string) (Type, bool) {
	d, _, ok := DocumentOf(t, key)
	return d.Type, ok
}

// Document returns the kind of the document that changed, and its id in a cell's configuration; "" if it is no
// document.
func (e *Changed) Document() (kind, id string) {
	d, id, _ := DocumentOf(e.Type.table(), e.Key)
	return d.Kind, id
}

// table returns where the documents of a type of [Changed] are kept; "" for other types.
func (t Type) table() Table {
	for _, one := range documents {
		if one.Type == t {
			return one.Table
		}
	}
	return ""
}

// single reports whether the key is that of a document of which there is one.
func single(t Table, key string) bool {
	d, _, _ := DocumentOf(t, key)
	return d.Key != ""
}
