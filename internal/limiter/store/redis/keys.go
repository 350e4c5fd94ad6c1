package redis

import (
	"strings"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// namespacePart returns the part of each key that names the namespace: its netstring, or nothing if the namespace is
// empty.
func namespacePart(namespace string) string {
	if namespace == "" {
		return ""
	}
	return string(limit.AppendNetstring(nil, hashable(namespace)))
}

// hashable escapes each "}" in a text. A cluster hashes only the part of a key up to the first "}", so without that all
// owners of a namespace, or all ledgers, would share one slot.
func hashable(text string) string { return strings.NewReplacer("%", "%25", "}", "%7D").Replace(text) }

// appendPrefix appends the beginning of every key of an owner: "{rl:", the namespace, the owner's part and "}". A
// cluster does not hash what follows the first "}", so all keys of an owner share a slot. A "}" in the owner's name
// only makes the hashed part shorter.
func (s *Store) appendPrefix(b []byte, o limit.Owner) []byte {
	return append(o.AppendKey(append(append(b, "{rl:"...), s.namespacePart...)), '}')
}

// appendPackKey appends the key of the pack that holds a counter of the limit. An owner has one pack for all limits
// that are per tenant, and one pack for each other limit and value.
func appendPackKey(b, prefix []byte, l *limit.Limit, v limit.Value) []byte {
	b = append(b, prefix...)
	if v.Kind == limit.NoValue {
		return b
	}
	return appendCounterKey(b, l, v)
}

// appendCounterKey appends the parts of a key that name the limit and the value.
func appendCounterKey(b []byte, l *limit.Limit, v limit.Value) []byte {
	return v.AppendKey(l.AppendKey(b))
}

// appendSetKey appends the key of the sorted set of a sliding_log or of sliding_buckets.
func appendSetKey(b, prefix []byte, l *limit.Limit, v limit.Value, digest [16]byte) []byte {
	return append(append(appendCounterKey(append(b, prefix...), l, v), "stamps"...), digest[:]...)
}
