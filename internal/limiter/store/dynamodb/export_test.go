package dynamodb

import (
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Counted returns the algorithms that the store accepts.
func Counted() (counted []limit.Algorithm) {
	for _, a := range limit.Algorithms() {
		if algorithms[a] != nil {
			counted = append(counted, a)
		}
	}
	return counted
}

// Remembered returns the copies that the store has read from the table, by sort key.
func Remembered(s *Store) map[string]map[string]map[string]string {
	out := map[string]map[string]map[string]string{}
	for _, key := range s.copies.Keys() {
		if v := s.cachedCopy(key); v != nil && !v.readAt.IsZero() {
			out[key.sort] = texts(v)
		}
	}
	return out
}

// Counters returns the counters of an item.
func Counters(item map[string]types.AttributeValue) (map[string]map[string]string, error) {
	v, err := parseItem(item)
	if err != nil {
		return nil, err
	}
	return texts(v), nil
}

func texts(v *itemCopy) map[string]map[string]string {
	out := map[string]map[string]string{}
	for name, f := range v.counters {
		out[name] = map[string]string{}
		for field, n := range f {
			out[name][field] = n.String()
		}
	}
	return out
}
