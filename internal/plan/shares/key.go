package shares

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// What begins the keys of items, in the control table of the cells, that are no cells. No cell can be called so.
const (
	PinPrefix       = "pin."    // of what an operator asks for a tenant: the request that places it
	PlacementPrefix = "placed." // of a tenant's stored [Placement]; cells are told of it
	AckPrefix       = "ack."    // of a cell's newest [Ack]
)

// PlacementKey is the key of a tenant's placement.
func PlacementKey(tenant string) string { return keyOf(PlacementPrefix, tenant) }

// AckKey is the key of a cell's acknowledgement.
func AckKey(cell string) string { return keyOf(AckPrefix, cell) }

// keyOf is an id that any name fits into.
func keyOf(prefix, name string) string {
	sum := sha256.Sum256([]byte(name))
	return prefix + hex.EncodeToString(sum[:20])
}

// Reserved reports whether a key of the control table of the cells is not that of a cell.
func Reserved(key string) bool {
	return strings.HasPrefix(key, PinPrefix) || strings.HasPrefix(key, PlacementPrefix) ||
		strings.HasPrefix(key, AckPrefix) ||
		strings.HasPrefix(key, "@")
}
