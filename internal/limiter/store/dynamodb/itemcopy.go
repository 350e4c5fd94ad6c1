package dynamodb

import (
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// itemCopy is this process's copy of an item: what a decision assumes the table to hold until a write or a read shows
// otherwise. A copy is never changed, only replaced by another one.
type itemCopy struct {
	exists     bool              // the table has the item
	full       bool              // has the attribute "full": takes no new counters
	ttl        int64             // seconds since 1970; 0 if the item has none
	size       int               // estimate, bytes
	counters   map[string]fields // by the name of the attribute
	unreadable map[string]error  // counters that cannot be read, and why; nil if there are none

	decidedAt int64 // time of the decision to which the table last showed the item, µs
	// when the call that showed it was sent, by this machine's clock; zero if the table has not shown the item
	readAt         time.Time
	contendedUntil time.Time // until then the decisions assume that other processes charge the item, too
}

// for how long an item counts as contended after another process was seen to charge it
const contendedDuration = 10 * time.Second

// parseItem reads an item as the table returns it; the item is nil if it does not exist. A counter that cannot be read
// is noted in the copy and fails only the requests that need it. Attributes that this package does not know are
// ignored.
func parseItem(item map[string]types.AttributeValue) (*itemCopy, error) {
	v := &itemCopy{counters: map[string]fields{}}
	if len(item) == 0 {
		return v, nil
	}
	v.exists = true
	if err := v.parseHeader(item); err != nil {
		return nil, err
	}
	for name, value := range item {
		v.size += len(name) + estimatedBytes(value)
		if !strings.Contains(name, "/") {
			continue
		}
		f, err := parseFields(value)
		if err != nil {
			if v.unreadable == nil {
				v.unreadable = map[string]error{}
			}
			v.unreadable[name] = err
			continue
		}
		v.counters[name] = f
	}
	return v, nil
}

// parseHeader reads the attributes that are no counters. It returns an error if the item has another layout version.
func (i *itemCopy) parseHeader(item map[string]types.AttributeValue) error {
	version, ok := item[attrVersion]
	if !ok {
		return fmt.Errorf("%w: it has no layout version (attribute %q)", ErrBadItem, attrVersion)
	}
	n, err := parseNumber(version)
	if err != nil {
		return fmt.Errorf("%w: attribute %q %w", ErrBadItem, attrVersion, err)
	}
	if !n.IsInt64() || n.Int64() != layoutVersion {
		return fmt.Errorf("%w: its layout version is %s, and this version of Sluice reads and writes %d: delete the "+
			"item, or use another table or namespace; its counters then begin empty", ErrBadItem, n, layoutVersion)
	}
	if value, ok := item[attrTTL]; ok {
		n, err := parseNumber(value)
		if err != nil || !n.IsInt64() {
			return fmt.Errorf("%w: attribute %q is not a number of seconds", ErrBadItem, attrTTL)
		}
		i.ttl = n.Int64()
	}
	_, i.full = item[attrFull]
	return nil
}

// readCounter returns a counter as it is stored and as the core's state. Both are empty if the counter was never used.
func (i *itemCopy) readCounter(t *limit.Tier, p *limit.Params, name string) (fields, limit.State, error) {
	if err := i.unreadable[name]; err != nil {
		return nil, limit.State{}, fmt.Errorf("%w: counter %.80q %w", ErrBadItem, name, err)
	}
	f := i.counters[name]
	st, err := stateOf(t, p, f)
	if err != nil {
		err = fmt.Errorf("%w: counter %.80q: %w", ErrBadItem, name, err)
	}
	return f, st, err
}

// hasCounter reports whether the item holds a counter, readable or not.
func (i *itemCopy) hasCounter(name string) bool {
	return i.counters[name] != nil || i.unreadable[name] != nil
}

// estimatedBytes returns about how many bytes DynamoDB bills for a value.
func estimatedBytes(v types.AttributeValue) int {
	switch v := v.(type) {
	case *types.AttributeValueMemberM:
		n := 3
		for name, value := range v.Value {
			n += 1 + len(name) + estimatedBytes(value)
		}
		return n
	case *types.AttributeValueMemberN:
		return len(v.Value)/2 + 2
	case *types.AttributeValueMemberS:
		return len(v.Value)
	case *types.AttributeValueMemberB:
		return len(v.Value)
	default:
		return 1
	}
}

// estimatedFieldBytes returns the same as estimatedBytes does for the attribute of f.
func estimatedFieldBytes(f fields) int {
	n := 3
	for name, value := range f {
		n += 1 + len(name) + len(value.String())/2 + 2
	}
	return n
}

// cachedCopy returns the copy of an item, or nil if there is none.
func (s *Store) cachedCopy(key itemKey) *itemCopy {
	v, _ := s.copies.Get(key)
	return v
}

// cacheItem makes a copy of an item that the table has shown to a decision, and caches it. now is the decision's time,
// and sent is when the call was sent.
func (s *Store) cacheItem(
	key itemKey, item map[string]types.AttributeValue, now int64, sent time.Time,
) (*itemCopy, error) {
	v, err := parseItem(item)
	if err != nil {
		s.copies.Remove(key)
		return nil, err
	}
	v.decidedAt, v.readAt = now, sent
	if old := s.cachedCopy(key); old != nil {
		v.contendedUntil = old.contendedUntil
	}
	s.cacheCopy(key, v)
	return v, nil
}

// cacheCopy caches a copy, unless the cached one was read later.
func (s *Store) cacheCopy(key itemKey, v *itemCopy) {
	if old := s.cachedCopy(key); old == nil || !old.readAt.After(v.readAt) {
		s.copies.Add(key, v)
	}
}

// isRecent reports whether a copy is recent enough for a denial without a call.
func (s *Store) isRecent(v *itemCopy, now int64) bool {
	if v == nil || v.readAt.IsZero() {
		return false
	}
	age := time.Duration(now-v.decidedAt) * time.Microsecond
	return age >= 0 && age <= s.denyFor && time.Since(v.readAt) <= s.denyFor
}
