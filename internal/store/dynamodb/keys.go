package dynamodb

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limit"
)

// The attributes of an item beside its counters. Counters' names hold a slash, so none can be one of these.
const (
	attrPK      = "PK"
	attrSK      = "SK"
	attrVersion = "v"
	attrTTL     = "ttl"
	attrFull    = "full"

	layoutVersion   = 2
	perEndpoint     = "endpoint"
	maxSortKeyBytes = 1024 // DynamoDB's bound on a sort key, bytes
	maxInlineValue  = 24   // longest endpoint that is written out in a counter's name; a longer one is digested
)

// itemKey names an item.
type itemKey struct{ partition, sort string }

// named says which item an error is about.
func (k itemKey) wrapError(err error) error {
	return fmt.Errorf("item %q %q: %w", k.partition, k.sort, err)
}

func (k itemKey) attributes() map[string]types.AttributeValue {
	return map[string]types.AttributeValue{
		attrPK: &types.AttributeValueMemberB{Value: []byte(k.partition)},
		attrSK: &types.AttributeValueMemberB{Value: []byte(k.sort)},
	}
}

func (s *Store) partitionKey(o limit.Owner) string { return string(o.AppendKey([]byte(s.namespace))) }

func sharedSortKey(chain int) string { return "s" + strconv.Itoa(chain) }

func isSharedSortKey(sk string) bool { return sk[0] == 's' }

// valueSK is the item of a value. One that does not fit a sort key is digested.
func valueSortKey(per string, v limit.Value) string {
	sk := string(v.AppendKey(limit.AppendNetstring([]byte("v"), per)))
	if len(sk) > maxSortKeyBytes {
		sum := sha256.Sum256([]byte(sk))
		sk = "V" + string(sum[:])
	}
	return sk
}

func receiptSortKey(id limit.ReceiptID) string {
	return "r" + strconv.FormatUint(id.Hi, 36) + "." + strconv.FormatUint(id.Lo, 36)
}

// inShared reports whether the counters of a limit live in the owner's shared items.
func isInSharedItem(l *limit.Limit) bool { return l.Per == limit.PerTenant || l.Per == perEndpoint }

// counterName is the attribute of a counter. Within one item it is injective: the counter's name ends where its own text
// says, and what follows it is the endpoint, which begins with none of the digits.
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
