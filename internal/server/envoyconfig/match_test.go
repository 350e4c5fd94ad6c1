package envoyconfig_test

import (
	"fmt"
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
}

// find is the model of the matcher: it finds the limit of a request by searching all descriptors of each level.
func find(level []*modelNode, request []envoyconfig.Entry) uint32 {
	if len(request) == 0 {
		return 0
	}
	e := request[0]
	choices := []func(n *modelNode) bool{
		func(n *modelNode) bool { return n.composite == e.Key+"_"+e.Value },
		func(n *modelNode) bool {
			pattern := "(?s)^" + strings.ReplaceAll(regexp.QuoteMeta(n.composite), `\*`, ".*") + "$"
			return strings.Contains(n.composite, "*") && regexp.MustCompile(pattern).MatchString(e.Key+"_"+e.Value)
		},
		func(n *modelNode) bool { return n.composite == e.Key },
	}
	for _, fits := range choices {
		for _, n := range level {
			if !fits(n) {
				continue
			}
			if len(request) == 1 {
				return n.id
			}
			return find(n.children, request[1:])
		}
	}
	return 0
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
		indent := strings.Repeat("  ", depth)
		fmt.Fprintf(yaml, "%s- key: %q\n%s  value: %q\n", indent, key, indent, value)
		if g.byte()%3 > 0 {
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

// Guarantees that the matcher finds the limit that the simple model finds, for any file and request.
func FuzzMatch(f *testing.F) {
	f.Add([]byte("\x03\x00\x00\x01\x01\x01\x01\x00\x02\x01\x02\x03\x01\x01"), "a", "b", "", "")
	f.Add([]byte("aaaaaaaabbbbbbbbccccccccddddddddaaaaaaaabbbbbbbbccccccccdddddddd"), "b", "a_a", "b", "ab")
	f.Add([]byte(strings.Repeat("\x04\x01\x02\x03\x01\x02\x01\x03", 40)), "b*", "_b*", "a", "")
	f.Fuzz(func(t *testing.T, tree []byte, k1, v1, k2, v2 string) {
		g := &grower{bytes: tree}
		var yaml strings.Builder
		yaml.WriteString("domain: d\ndescriptors:\n")
		model := g.level(1, &yaml)
		c := load(t, yaml.String())
		for _, request := range [][]envoyconfig.Entry{
			{{Key: k1, Value: v1}}, {{Key: k2, Value: v2}}, {{Key: k1, Value: v1}, {Key: k2, Value: v2}},
			{{Key: k2, Value: v2}, {Key: k1, Value: v1}, {Key: k2, Value: v1}},
		} {
			var m envoyconfig.Match
			c.Match("d", request, &m)
			got := uint32(0)
			if m.Rule != nil {
				got = m.Rule.RequestsPerUnit
			}
			if want := find(model, request); got != want {
				t.Errorf("%v gets limit %d, want %d, in\n%s", request, got, want, yaml.String())
			}
		}
	})
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
