package dynamodb

import (
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limit"
)

// view is what the writer knows of an item. It is never changed, only replaced.
type view struct {
	exists   bool
	full     bool
	ttl      int64 // seconds since 1970; 0: none
	size     int   // bytes, about
	counters map[string]fields
	broken   map[string]error // counters that cannot be read, and why; nil: none

	at        int64     // time of the decision to which the store last showed the item, µs
	seen      time.Time // when that was, by this machine's clocks; zero: the view is a guess
	contended time.Time // until then others are taken to charge the item as well
}

const contendedFor = 10 * time.Second

// parseItem reads an item as the store returns it, nil where there is none. A counter that cannot be read is noted in the
// view, for the requests that need it: the item's other counters are read all the same. An attribute that is not ours is
// ignored.
func parseItem(item map[string]types.AttributeValue) (*view, error) {
	v := &view{counters: map[string]fields{}}
	if len(item) == 0 {
		return v, nil
	}
	v.exists = true
	if err := v.parseHead(item); err != nil {
		return nil, err
	}
	for name, value := range item {
		v.size += len(name) + sizeOf(value)
		if !strings.Contains(name, "/") {
			continue
		}
		f, err := parseFields(value)
		if err != nil {
			if v.broken == nil {
				v.broken = map[string]error{}
			}
			v.broken[name] = err
			continue
		}
		v.counters[name] = f
	}
	return v, nil
}

func (v *view) parseHead(item map[string]types.AttributeValue) error {
	version, ok := item[attrV]
	if !ok {
		return fmt.Errorf("%w: it has no layout version (attribute %q)", ErrBadItem, attrV)
	}
	n, err := parseNumber(version)
	if err != nil {
		return fmt.Errorf("%w: attribute %q %w", ErrBadItem, attrV, err)
	}
	if !n.IsInt64() || n.Int64() != layout {
		return fmt.Errorf("%w: its layout version is %s, and this version of Sluice reads and writes %d: delete the item, or use "+
			"another table or namespace; its counters then begin empty", ErrBadItem, n, layout)
	}
	if value, ok := item[attrTTL]; ok {
		n, err := parseNumber(value)
		if err != nil || !n.IsInt64() {
			return fmt.Errorf("%w: attribute %q is not a number of seconds", ErrBadItem, attrTTL)
		}
		v.ttl = n.Int64()
	}
	_, v.full = item[attrFull]
	return nil
}

// counter is a counter of the item as the core knows it, and as it is stored; nil is one that was never used.
func (v *view) counter(t *limit.Tier, p *limit.Params, name string) (fields, limit.State, error) {
	if err := v.broken[name]; err != nil {
		return nil, limit.State{}, fmt.Errorf("%w: counter %.80q %w", ErrBadItem, name, err)
	}
	f := v.counters[name]
	st, err := stateOf(t, p, f)
	if err != nil {
		err = fmt.Errorf("%w: counter %.80q: %w", ErrBadItem, name, err)
	}
	return f, st, err
}

// has reports whether the item holds a counter, readable or not.
func (v *view) has(name string) bool { return v.counters[name] != nil || v.broken[name] != nil }

// sizeOf is about what DynamoDB charges for a value, bytes.
func sizeOf(v types.AttributeValue) int {
	switch v := v.(type) {
	case *types.AttributeValueMemberM:
		n := 3
		for name, value := range v.Value {
			n += 1 + len(name) + sizeOf(value)
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

func sizeOfFields(f fields) int {
	n := 3
	for name, value := range f {
		n += 1 + len(name) + len(value.String())/2 + 2
	}
	return n
}

// view is what is known of an item, nil where nothing is.
func (s *Store) view(key itemKey) *view {
	v, _ := s.views.Get(key)
	return v
}

// learn keeps an item as the store showed it for the decision at now.
func (s *Store) learn(key itemKey, item map[string]types.AttributeValue, now int64, sent time.Time) (*view, error) {
	v, err := parseItem(item)
	if err != nil {
		s.views.Remove(key)
		return nil, err
	}
	v.at, v.seen = now, sent
	if old := s.view(key); old != nil {
		v.contended = old.contended
	}
	s.keep(key, v)
	return v, nil
}

// keep remembers a view, unless what is remembered was asked for later.
func (s *Store) keep(key itemKey, v *view) {
	if old := s.view(key); old == nil || !old.seen.After(v.seen) {
		s.views.Add(key, v)
	}
}

// sureOf reports whether a denial may be answered from the view alone.
func (s *Store) sureOf(v *view, now int64) bool {
	if v == nil || v.seen.IsZero() {
		return false
	}
	age := time.Duration(now-v.at) * time.Microsecond
	return age >= 0 && age <= s.denyFor && time.Since(v.seen) <= s.denyFor
}
