package shares

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Prefixes of the keys in the control table of the cells whose items are not cells. No cell's id can begin with them.
const (
	PinPrefix       = "pin."    // an operator's request to place a tenant
	PlacementPrefix = "placed." // a tenant's stored [Placement], which is sent to the cells
	AckPrefix       = "ack."    // a cell's newest [Ack]
	PacePrefix      = "pace."   // a pace plan, which only pacers read
)

// PlacementKey returns the key of a tenant's placement.
func PlacementKey(tenant string) string { return keyOf(PlacementPrefix, tenant) }

// IsPlacement reports whether a stored item with this key is a [Placement].
func IsPlacement(key string) bool { return strings.HasPrefix(key, PlacementPrefix) }

// AckKey returns the key of a cell's acknowledgement.
func AckKey(cell string) string { return keyOf(AckPrefix, cell) }

// keyOf returns a key of fixed length, since a name may be longer than a key.
func keyOf(prefix, name string) string {
	sum := sha256.Sum256([]byte(name))
	return prefix + hex.EncodeToString(sum[:20])
}

// Reserved reports whether a key of the control table of the cells belongs to something else than a cell.
func Reserved(key string) bool {
	return strings.HasPrefix(key, PinPrefix) || strings.HasPrefix(key, PlacementPrefix) ||
		strings.HasPrefix(key, AckPrefix) || strings.HasPrefix(key, PacePrefix) ||
		strings.HasPrefix(key, "@")
}
