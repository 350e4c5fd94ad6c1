package rls_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluicelimits/sluice/internal/server/rls"
)

// modelRule is a rule of the model of the service, which has one window that does not end.
type modelRule struct {
	limit         int64
	shadow, quota bool
}

// modelItem is one descriptor of a request to the model.
type modelItem struct {
	key      string // of the rule
	value    string
	hits     int64
	negative bool
}

// model is a service that decides one request after the other.
type model struct {
	rules map[string]modelRule
	used  map[string]int64 // by key and value
}

// decide charges all descriptors of a request or none, and reports whether it denies.
func (m *model) decide(items []modelItem) (denied bool) {
	for _, it := range items {
		if counter := it.key + "=" + it.value; it.negative {
			m.used[counter] = max(m.used[counter]-it.hits, 0)
		}
	}
	charges, quotas, full := map[string]int64{}, 0, 0
	fits := func(it modelItem) bool {
		counter := it.key + "=" + it.value
		if m.used[counter]+charges[counter]+it.hits > m.rules[it.key].limit {
			return false
		}
		charges[counter] += it.hits
		return true
	}
	each := func(do func(modelItem), shadow, quota bool) {
		for _, it := range items {
			if rule := m.rules[it.key]; rule.shadow == shadow && rule.quota == quota {
				do(it)
			}
		}
	}
	counts := func(it modelItem) bool { return it.hits > 0 && !it.negative }
	each(func(it modelItem) { denied = denied || counts(it) && !fits(it) }, false, false)
	each(func(it modelItem) {
		if quotas++; counts(it) && !fits(it) {
			full++
		}
	}, false, true)
	each(func(modelItem) { quotas++ }, true, true)
	if denied = denied || quotas > 0 && quotas == full; denied {
		return true
	}
	for _, quota := range []bool{false, true} {
		each(func(it modelItem) {
			if counts(it) {
				fits(it)
			}
		}, true, quota)
	}
	for counter, n := range charges {
		m.used[counter] += n
	}
	return false
}

// Guarantees that random requests get the decisions of a simple model, and leave its counts behind, whatever modes
// their rules have, and also if they name one counter several times, or give hits back.
func TestLikeModel(t *testing.T) {
	for _, together := range []bool{false, true} {
		t.Run(fmt.Sprint("together=", together), func(t *testing.T) { likeModel(t, together) })
	}
}

func likeModel(t *testing.T, together bool) {
	m := &model{rules: map[string]modelRule{"a": {limit: 7}, "b": {limit: 4}, "c": {limit: 9}, "s": {3, true, false},
		"q": {3, false, true}, "r": {5, false, true}, "x": {2, true, true}}, used: map[string]int64{}}
	var yaml strings.Builder
	yaml.WriteString("domain: d\ndescriptors:\n")
	keys := slices.Sorted(maps.Keys(m.rules))
	for _, key := range keys {
		rule := m.rules[key]
		fmt.Fprintf(&yaml, "  - {key: %s, shadow_mode: %t, quota_mode: %t, rate_limit: {unit: year, "+
			"requests_per_unit: %d}, sluice: {countDenied: false}}\n", key, rule.shadow, rule.quota, rule.limit)
	}
	w := newWorld(t, rls.Config{Together: together}, yaml.String())
	random := rand.New(rand.NewPCG(1, 7))
	denials := 0
	for i := range 20_000 {
		var items []modelItem
		var asked []*ratelimitv3.RateLimitDescriptor
		for range 1 + random.IntN(5) {
			it := modelItem{keys[random.IntN(len(keys))], string(rune('0' + random.IntN(3))), int64(random.IntN(4)),
				random.IntN(4) == 0}
			d := descriptorWithHits(it.key+"="+it.value, uint64(it.hits))
			d.IsNegativeHits = it.negative
			items, asked = append(items, it), append(asked, d)
		}
		want := m.decide(items)
		out := w.ask(asked...)
		if got := out.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT; got != want {
			t.Fatalf("request %d, %+v: denied %t, want %t", i, items, got, want)
		}
		if want {
			denials++
		}
		for _, it := range items {
			left := w.ask(descriptorWithHits(it.key+"="+it.value, 0)).GetStatuses()[0].GetLimitRemaining()
			if want := m.rules[it.key].limit - m.used[it.key+"="+it.value]; int64(left) != want {
				t.Fatalf("after request %d, %+v: of %s=%s %d are left, want %d", i, items, it.key, it.value, left, want)
			}
		}
	}
	if denials < 2000 {
		t.Errorf("only %d requests were denied", denials)
	}
}
