package dynamodb

import (
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limit"
)

// view is what the writer knows of an item. It is never changed, only replaced.
type itemCopy struct {
	exists     bool
	full       bool
	ttl        int64 // seconds since 1970; 0: none
	size       int   // bytes, about
	counters   map[string]fields
	unreadable map[string]error // counters that cannot be read, and why; nil: none

	decidedAt      int64     // time of the decision to which the store last showed the item, µs
	readAt         time.Time // when that was, by this machine's clocks; zero: the view is a guess
	contendedUntil time.Time // until then others are taken to charge the item as well
}

const contendedDuration = 10 * time.Second

// parseItem reads an item as the store returns it, nil where there is none. A counter that cannot be read is noted in the
// view, for the requests that need it: the item's other counters are read all the same. An attribute that is not ours is
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
		return fmt.Errorf("%w: its layout version is %s, and this version of Sluice reads and writes %d: delete the item, or use "+
			"another table or namespace; its counters then begin empty", ErrBadItem, n, layoutVersion)
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

// counter is a counter of the item as the core knows it, and as it is stored; nil is one that was never used.
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

// has reports whether the item holds a counter, readable or not.
func (i *itemCopy) hasCounter(name string) bool {
	return i.counters[name] != nil || i.unreadable[name] != nil
}

// sizeOf is about what DynamoDB charges for a value, bytes.
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

func estimatedFieldBytes(f fields) int {
	n := 3
	for name, value := range f {
		n += 1 + len(name) + len(value.String())/2 + 2
	}
	return n
}

// view is what is known of an item, nil where nothing is.
func (s *Store) cachedCopy(key itemKey) *itemCopy {
	v, _ := s.copies.Get(key)
	return v
}

// learn keeps an item as the store showed it for the decision at now.
func (s *Store) cacheItem(key itemKey, item map[string]types.AttributeValue, now int64, sent time.Time) (*itemCopy, error) {
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

// keep remembers a view, unless what is remembered was asked for later.
func (s *Store) cacheCopy(key itemKey, v *itemCopy) {
	if old := s.cachedCopy(key); old == nil || !old.readAt.After(v.readAt) {
		s.copies.Add(key, v)
	}
}

// sureOf reports whether a denial may be answered from the view alone.
func (s *Store) isRecent(v *itemCopy, now int64) bool {
	if v == nil || v.readAt.IsZero() {
		return false
	}
	age := time.Duration(now-v.decidedAt) * time.Microsecond
	return age >= 0 && age <= s.denyFor && time.Since(v.readAt) <= s.denyFor
}
