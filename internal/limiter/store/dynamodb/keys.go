package dynamodb

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// The attributes of an item other than its counters. The name of a counter contains a slash, so it can be none of
// these.
const (
	attrPK      = "PK"
	attrSK      = "SK"
	attrVersion = "v"
	attrTTL     = "ttl"
	attrFull    = "full"

	layoutVersion   = 3
	perEndpoint     = "endpoint"
	maxSortKeyBytes = 1024 // DynamoDB's bound on a sort key, bytes
	maxInlineValue  = 24   // bytes; a longer endpoint is replaced by a digest in the name of a counter
)

// itemKey is the primary key of an item.
type itemKey struct{ partition, sort string }

// wrapError adds the item's key to an error.
func (k itemKey) wrapError(err error) error {
	return fmt.Errorf("item %q %q: %w", k.partition, k.sort, err)
}

func (k itemKey) attributes() map[string]types.AttributeValue {
	return map[string]types.AttributeValue{
		attrPK: &types.AttributeValueMemberB{Value: []byte(k.partition)},
		attrSK: &types.AttributeValueMemberB{Value: []byte(k.sort)},
	}
}

// partitionKey returns the partition key that all items of an owner have.
func (s *Store) partitionKey(o limit.Owner) string { return string(o.AppendKey([]byte(s.namespace))) }

// sharedSortKey returns the sort key of the item at a position in an owner's chain of shared items, from 0.
func sharedSortKey(chain int) string { return "s" + strconv.Itoa(chain) }

// isSharedSortKey reports whether a sort key is that of a shared item.
func isSharedSortKey(sk string) bool { return sk[0] == 's' }

// valueSortKey returns the sort key of the item of a value. A key that would be too long for DynamoDB is replaced by
// its SHA-256.
func valueSortKey(per string, v limit.Value) string {
	sk := string(v.AppendKey(limit.AppendNetstring([]byte("v"), per)))
	if len(sk) > maxSortKeyBytes {
		sum := sha256.Sum256([]byte(sk))
		sk = "V" + string(sum[:])
	}
	return sk
}

// receiptSortKey returns the sort key of the item that exists if the receipt was refunded.
func receiptSortKey(id limit.ReceiptID) string {
	return "r" + strconv.FormatUint(id.Hi, 36) + "." + strconv.FormatUint(id.Lo, 36)
}

// isInSharedItem reports whether the counters of a limit are in the owner's shared items. All others are in the items
// of values.
func isInSharedItem(l *limit.Limit) bool { return l.Per == limit.PerTenant || l.Per == perEndpoint }

// counterName returns the name of a counter's attribute. Within one item no two counters have the same name: the first
// part, of the tier, says itself where it ends, and in a shared item the endpoint follows, which begins with no digit.
func counterName(t *limit.Tier, v limit.Value) string {
	l := t.Limit()
	b := t.AppendName(make([]byte, 0, 64))
	if v.Kind == limit.NoValue || !isInSharedItem(l) {
		return string(b)
	}
	switch {
	case v.Kind != limit.ValueIs:
		b = append(append(b, byte(v.Kind)), v.Text...)
	case len(v.Text) <= maxInlineValue && utf8.ValidString(v.Text):
		b = append(append(b, '='), v.Text...)
	default:
		sum := sha256.Sum256([]byte(v.Text))
		b = base64.RawURLEncoding.AppendEncode(append(b, '#'), sum[:16])
	}
	return string(b)
}
