package envoyconfig_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
)

func entries(pairs ...string) []envoyconfig.Entry {
	var out []envoyconfig.Entry
	for _, p := range pairs {
		key, value, _ := strings.Cut(p, "=")
		out = append(out, envoyconfig.Entry{Key: key, Value: value})
	}
	return out
}

const matchFile = `
domain: d
descriptors:
  - {key: k, value: v, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: k, value: 'v*z', rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: k, value: 'v*', rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: k, rate_limit: {unit: day, requests_per_unit: 4}}
  - key: deep
    value: x
    descriptors:
      - {key: only, rate_limit: {unit: day, requests_per_unit: 5}}
  - key: deep
    descriptors:
      - {key: default, rate_limit: {unit: day, requests_per_unit: 6}}
  - {key: metric, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 7}}
  - {key: detail, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 8}}
  - key: shared
    value: 'a*'
    share_threshold: true
    descriptors:
      - {key: leaf, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}
      - {key: full, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: wild, value: '*x', value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 11}}
`

// Guarantees the precedence of matching descriptors, that a request must be as deep as the file, that no other branch
// is tried after a match, and the names of the statistics.
func TestMatch(t *testing.T) {
	c := load(t, matchFile)
	var m envoyconfig.Match
	for _, tt := range []struct {
		entries  []envoyconfig.Entry
		want     uint32 // requests_per_unit of the rule; 0: no rule
		statsKey string
		shared   string
	}{
		{entries("k=v"), 1, "d.k_v", ""},
		{entries("k=v1z"), 2, "d.k_v*z", ""},
		{entries("k=vz"), 2, "d.k_v*z", ""},
		{entries("k=vy"), 3, "d.k_v*", ""},
		{entries("k=w"), 4, "d.k", ""},
		{entries("k"), 4, "d.k", ""},
		{entries("k=v", "k=v"), 0, "", ""},
		{entries("deep=x", "only=1"), 5, "d.deep_x.only", ""},
		{entries("deep=x", "default=1"), 0, "", ""},
		{entries("deep=y", "default=1"), 6, "d.deep.default", ""},
		{entries("deep=y"), 0, "", ""},
		{entries("other=y"), 0, "", ""},
		{entries("metric=1.2.3.4"), 7, "d.metric_1.2.3.4", ""},
		{entries("metric="), 7, "d.metric", ""},
		{entries("detail=y"), 8, "d.detail_y", ""},
		{entries("detail="), 8, "d.detail_", ""},
		{entries("shared=abc", "leaf=1"), 9, "d.shared_a*.leaf_1", "a*,"},
		{entries("shared=abc", "full=1"), 10, "d.shared_a*.full_1", "a*,"},
		{entries("shared=abc", "full="), 10, "d.shared_a*.full", "a*,"},
		{entries("wild=yx"), 11, "d.wild_yx", ""},
		{nil, 0, "", ""},
	} {
		if !c.Match("d", tt.entries, &m) {
			t.Fatal("Match does not find the domain")
		}
		got := uint32(0)
		if m.Rule != nil {
			got = m.Rule.RequestsPerUnit
		}
		if got != tt.want || m.StatsKey != tt.statsKey || strings.Join(m.Shared, ",") != tt.shared {
			t.Errorf("%v: rule %d, statistics %q, shared %q; want %d, %q, %q", tt.entries, got, m.StatsKey, m.Shared,
				tt.want, tt.statsKey, tt.shared)
		}
	}
	if c.Match("e", entries("k=v"), &m) || m.Rule != nil {
		t.Error("Match finds a domain that does not exist")
	}
}

func TestOverrideStatsKey(t *testing.T) {
	for _, tt := range []struct {
		entries []envoyconfig.Entry
		want    string
	}{
		{nil, "d."}, {entries("a=b", "c", "d=e"), "d.a_b.c.d_e"}, {entries("", "a=b"), "d.a_b"},
	} {
		if got := envoyconfig.OverrideStatsKey("d", tt.entries); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.entries, got, tt.want)
		}
	}
}

// Guarantees that a match allocates nothing if the names of the statistics hold no values of the request.
func TestMatchAllocatesNothing(t *testing.T) {
	c := load(t, matchFile)
	request := entries("deep=x", "only=1")
	var m envoyconfig.Match
	if n := testing.AllocsPerRun(100, func() { c.Match("d", request, &m) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// modelNode is a descriptor of a file in the model of the matcher.
type modelNode struct {
	composite string
	id        uint32 // requests_per_unit; 0: no limit
	children  []*modelNode

	detailedMetric, valueToMetric, shareThreshold bool
}

// modelMatch is what the model finds for a request.
type modelMatch struct {
	id      uint32 // 0: no limit
	stats   string // the name of the statistics
	counter string // identifies the counter
}

// The ways in which the model's descriptors match an entry, the first one that fits first.
const (
	byKeyAndValue = iota
	byPattern
	byKey
)

// fits reports whether the descriptor matches the entry in that way.
func (n *modelNode) fits(e envoyconfig.Entry, way int) bool {
	switch way {
	case byKeyAndValue:
		return n.composite == e.Key+"_"+e.Value
	case byPattern:
		pattern := "(?s)^" + strings.ReplaceAll(regexp.QuoteMeta(n.composite), `\*`, ".*") + "$"
		return strings.Contains(n.composite, "*") && regexp.MustCompile(pattern).MatchString(e.Key+"_"+e.Value)
	}
	return n.composite == e.Key
}

// modelStep is the descriptor that the model finds for one entry of a request.
type modelStep struct {
	node    *modelNode
	way     int
	pattern string // the value of the descriptor; "" if the way is not byPattern
	shared  bool   // all entries that the pattern matches have one counter
}

// find is the model of the matcher: it searches all descriptors of each level, in each way.
func find(level []*modelNode, request []envoyconfig.Entry) modelMatch {
	var steps []modelStep
	for _, e := range request {
		step := modelStep{}
		for way := byKeyAndValue; way <= byKey && step.node == nil; way++ {
			for _, n := range level {
				if step.node == nil && n.fits(e, way) {
					step = modelStep{node: n, way: way}
				}
			}
		}
		if step.node == nil {
			return modelMatch{}
		}
		if step.way == byPattern {
			step.pattern = strings.TrimPrefix(step.node.composite, e.Key+"_")
			step.shared = step.node.shareThreshold
		}
		steps, level = append(steps, step), step.node.children
	}
	last := steps[len(steps)-1].node
	if last.id == 0 {
		return modelMatch{}
	}
	m := modelMatch{id: last.id, stats: "d"}
	anyShared := false
	for _, s := range steps {
		anyShared = anyShared || s.shared
	}
	for i, e := range request {
		s := &steps[i]
		name, counted := e.Value, e.Value
		switch {
		case s.shared && s.pattern != "":
			name, counted = s.pattern, s.pattern
		case last.detailedMetric: // the value of the request
		case s.way == byPattern && !s.node.valueToMetric:
			name = s.pattern
		case s.way == byKey && !s.node.valueToMetric:
			name = ""
		}
		m.stats += "." + e.Key
		if name != "" || last.detailedMetric && !anyShared {
			m.stats += "_" + name
		}
		m.counter += fmt.Sprintf("%q=%q,", e.Key, counted)
	}
	return m
}

// grower makes a tree of descriptors from bytes. The bytes have few different values, so that keys are often equal.
type grower struct {
	bytes []byte
	next  uint32
}

func (g *grower) byte() byte {
	if len(g.bytes) == 0 {
		return 0
	}
	b := g.bytes[0]
	g.bytes = g.bytes[1:]
	return b
}

func (g *grower) text(minLength int) string {
	n := minLength + int(g.byte()%4)
	var b strings.Builder
	for range n {
		b.WriteByte("ab_*"[g.byte()%4])
	}
	return b.String()
}

func (g *grower) level(depth int, yaml *strings.Builder) []*modelNode {
	var nodes []*modelNode
	used := map[string]bool{}
	for range g.byte() % 5 {
		key, value := g.text(1), g.text(0)
		n := &modelNode{composite: key}
		if value != "" {
			n.composite += "_" + value
		}
		if used[n.composite] {
			continue
		}
		used[n.composite] = true
		flags := g.byte()
		n.detailedMetric, n.valueToMetric = flags&1 != 0, flags&2 != 0
		n.shareThreshold = flags&4 != 0 && strings.Contains(n.composite, "*")
		indent := strings.Repeat("  ", depth)
		fmt.Fprintf(yaml, "%s- key: %q\n%s  value: %q\n", indent, key, indent, value)
		fmt.Fprintf(yaml, "%s  detailed_metric: %t\n%s  value_to_metric: %t\n%s  share_threshold: %t\n", indent,
			n.detailedMetric, indent, n.valueToMetric, indent, n.shareThreshold)
		if flags&24 != 0 {
			g.next++
			n.id = g.next
			fmt.Fprintf(yaml, "%s  rate_limit: {unit: day, requests_per_unit: %d}\n", indent, n.id)
		}
		if depth < 3 {
			fmt.Fprintf(yaml, "%s  descriptors:\n", indent)
			n.children = g.level(depth+1, yaml)
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// randomText returns up to 3 of the characters that a grower's keys and values have.
func randomText(r *rand.Rand) string {
	g := grower{bytes: []byte{byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())}}
	return g.text(0)
}

// randomRequest returns a request of 1 to 3 entries. Most of them match a descriptor of their level.
func randomRequest(r *rand.Rand, level []*modelNode) []envoyconfig.Entry {
	var request []envoyconfig.Entry
	for range 1 + r.IntN(3) {
		e := envoyconfig.Entry{Key: randomText(r), Value: randomText(r)}
		if len(level) > 0 && r.IntN(10) > 0 {
			n := level[r.IntN(len(level))]
			text := n.composite
			for r.IntN(4) > 0 && strings.Contains(text, "*") { // sometimes "*" stays: the pattern is the value itself
				text = strings.Replace(text, "*", strings.ReplaceAll(randomText(r), "*", "a"), 1)
			}
			e.Key = text
			if at := strings.IndexByte(text, '_'); at >= 0 && r.IntN(3) > 0 {
				e = envoyconfig.Entry{Key: text[:at], Value: text[at+1:]}
			}
			level = n.children
		}
		request = append(request, e)
	}
	return request
}

// Guarantees that for any file and request the matcher finds the limit and the name of the statistics that the simple
// model finds, and that two requests of one limit share a counter if, and only if, they do so in the model:
// share_threshold puts the pattern in the place of the value.
func FuzzMatch(f *testing.F) {
	f.Add([]byte("\x03\x00\x00\x01\x01\x01\x01\x00\x02\x01\x02\x03\x01\x01"), uint64(1), "a", "b", "", "")
	f.Add([]byte("aaaaaaaabbbbbbbbccccccccddddddddaaaaaaaabbbbbbbbccccccccdddddddd"), uint64(2), "b", "a_a", "b", "ab")
	f.Add([]byte(strings.Repeat("\x04\x01\x02\x03\x01\x02\x01\x03", 40)), uint64(3), "b*", "_b*", "a", "")
	random := rand.New(rand.NewPCG(1, 1))
	for seed := range uint64(100) {
		tree := make([]byte, 400)
		for i := range tree {
			tree[i] = byte(random.Uint32())
		}
		f.Add(tree, seed, "a", "b", "b", "*")
	}
	f.Fuzz(func(t *testing.T, tree []byte, seed uint64, k1, v1, k2, v2 string) {
		g := &grower{bytes: tree}
		var yaml strings.Builder
		yaml.WriteString("domain: d\ndescriptors:\n")
		model := g.level(1, &yaml)
		c := load(t, yaml.String())
		requests := [][]envoyconfig.Entry{
			{{Key: k1, Value: v1}}, {{Key: k2, Value: v2}}, {{Key: k1, Value: v1}, {Key: k2, Value: v2}},
			{{Key: k2, Value: v2}, {Key: k1, Value: v1}, {Key: k2, Value: v1}},
		}
		random := rand.New(rand.NewPCG(seed, 2))
		for range 50 {
			requests = append(requests, randomRequest(random, model))
		}
		counters, names := map[string]string{}, map[string]string{} // the matcher's by the model's, and reverse
		var m envoyconfig.Match
		for _, request := range requests {
			c.Match("d", request, &m)
			got, want := modelMatch{stats: m.StatsKey}, find(model, request)
			if m.Rule != nil {
				got.id = m.Rule.RequestsPerUnit
			}
			if got.id != want.id || got.stats != want.stats {
				t.Errorf("%q gets limit %d with the statistics %q, want %d and %q, in\n%s", request, got.id, got.stats,
					want.id, want.stats, yaml.String())
			}
			if want.id == 0 {
				continue
			}
			got.counter = string(envoyconfig.AppendKey(nil, "d", request, m.Shared))
			if counters[want.counter] == "" && names[got.counter] == "" {
				counters[want.counter], names[got.counter] = got.counter, want.counter
			}
			if counters[want.counter] != got.counter || names[got.counter] != want.counter {
				t.Errorf("%q has the counter %q, and that of the model is %s, in\n%s", request, got.counter,
					want.counter, yaml.String())
			}
		}
	})
}

// Guarantees that a client cannot name another descriptor's counter by a value that holds the name's own delimiters.
func TestKeyDelimitsEveryText(t *testing.T) {
	inner := entries("k=v")
	text := string(envoyconfig.AppendKey(nil, "x", inner, nil))
	key := func(shared []string, pairs ...envoyconfig.Entry) string {
		return string(envoyconfig.AppendKey(nil, "d", pairs, shared))
	}
	apart := key(nil, append(entries("a=x"), inner...)...)
	for where, got := range map[string]string{
		"value":        key(nil, envoyconfig.Entry{Key: "a", Value: text}),
		"shared value": key([]string{text}, entries("a=x")...),
		"key":          key(nil, envoyconfig.Entry{Key: "a" + text}),
		"domain":       string(envoyconfig.AppendKey(nil, "d1:a,"+text, nil, nil)),
	} {
		if got == apart || strings.HasPrefix(got, apart) || strings.HasPrefix(apart, got) {
			t.Errorf("a %s has the key %q, and two entries have %q; want neither to begin with the other", where, got,
				apart)
		}
	}
}

// Guarantees that descriptors with different texts never share a counter, also if their texts are equal when joined by
// "_".
func FuzzKey(f *testing.F) {
	f.Add("d", "a_b", "c", "d", "a", "b_c")
	f.Add("d", "1:a,", "", "d1:a", "", "")
	f.Fuzz(func(t *testing.T, d1, k1, v1, d2, k2, v2 string) {
		one := func(d, k, v string) string {
			return string(envoyconfig.AppendKey(nil, d, []envoyconfig.Entry{{Key: k, Value: v}}, nil))
		}
		same := d1 == d2 && k1 == k2 && v1 == v2
		if (one(d1, k1, v1) == one(d2, k2, v2)) != same {
			t.Errorf("%q %q=%q and %q %q=%q: keys %q and %q", d1, k1, v1, d2, k2, v2, one(d1, k1, v1), one(d2, k2, v2))
		}
		two := string(envoyconfig.AppendKey(nil, d1, []envoyconfig.Entry{{Key: k1, Value: v1}, {Key: k2, Value: v2}},
			nil))
		if two == one(d1, k1, v1) || two == one(d2, k2, v2) {
			t.Errorf("two entries have the key of one: %q", two)
		}
	})
}
