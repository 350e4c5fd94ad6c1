package envoypeer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	peer "github.com/envoyproxy/ratelimit/src/config"
	"github.com/envoyproxy/ratelimit/src/settings"
	"github.com/envoyproxy/ratelimit/src/stats"
	gostats "github.com/lyft/gostats"

	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// loadPeer reads files with envoyproxy/ratelimit, which panics if anything is wrong.
func loadPeer(files []envoyconfig.File, merge bool) (c peer.RateLimitConfig, err error) {
	defer func() {
		if wrong := recover(); wrong != nil {
			err = wrong.(peer.RateLimitConfigError)
		}
	}()
	manager := stats.NewStatManager(gostats.NewStore(gostats.NewNullSink(), false), settings.Settings{})
	var roots []peer.RateLimitConfigToLoad
	for _, f := range files {
		roots = append(roots, peer.RateLimitConfigToLoad{Name: f.Name, ConfigYaml: peer.ConfigFileContentToYaml(f.Name,
			string(f.Data))})
	}
	return peer.NewRateLimitConfigImpl(roots, manager, merge), nil
}

// found is what a configuration says of a descriptor.
type found struct {
	limited          bool
	requests         uint32
	unit             string
	unlimited        bool
	shadow, quota    bool
	name, replaces   string
	statsKey, shared string
}

func findPeer(c peer.RateLimitConfig, domain string, entries []envoyconfig.Entry) found {
	d := new(ratelimitv3.RateLimitDescriptor)
	for _, e := range entries {
		d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: e.Key, Value: e.Value})
	}
	l := c.GetLimit(context.Background(), domain, d)
	if l == nil {
		return found{}
	}
	return found{limited: true, requests: l.Limit.RequestsPerUnit, unit: l.Limit.Unit.String(), unlimited: l.Unlimited,
		shadow: l.ShadowMode,
		quota:  l.QuotaMode, name: l.Name, replaces: strings.Join(l.Replaces, ","), statsKey: l.Stats.GetKey(),
		shared: strings.Join(l.ShareThresholdKeyPattern, ",")}
}

func findOurs(c *envoyconfig.Config, domain string, entries []envoyconfig.Entry) found {
	var m envoyconfig.Match
	c.Match(domain, entries, &m)
	r := m.Rule
	if r == nil {
		return found{}
	}
	return found{limited: true, requests: r.RequestsPerUnit, unit: r.Unit.String(), unlimited: r.Unlimited,
		shadow: r.ShadowMode,
		quota:  r.QuotaMode, name: r.Name, replaces: strings.Join(r.Replaces, ","), statsKey: m.StatsKey,
		shared: strings.Join(m.Shared, ",")}
}

// writer makes configuration files at random, of few texts, so that keys meet.
type writer struct {
	rng  *rand.Rand
	b    strings.Builder
	zero bool // some limits are 0, and no request has 0 hits
}

func (w *writer) one(of ...string) string { return of[w.rng.IntN(len(of))] }
func (w *writer) chance(percent int) bool { return w.rng.IntN(100) < percent }

func (w *writer) line(depth int, format string, args ...any) {
	fmt.Fprintf(&w.b, strings.Repeat("    ", depth)+format+"\n", args...)
}

func (w *writer) key() string   { return w.one("a", "b", "a_b", "a_", "c") }
func (w *writer) value() string { return w.one("", "", "a", "b", "b_a", "c") }

// descriptors writes a list. Each limit has a number of its own.
func (w *writer) descriptors(depth int) {
	for range 1 + w.rng.IntN(4) {
		key, value := w.key(), w.value()
		star := w.chance(30)
		if star && (value != "" || w.chance(80)) {
			value += "*"
		} else if star {
			key += "*"
		}
		w.line(depth, "- key: '%s'", key)
		if value != "" {
			w.line(depth, "  value: '%s'", value)
		}
		for _, flag := range []string{"shadow_mode", "quota_mode", "detailed_metric", "value_to_metric"} {
			if w.chance(15) {
				w.line(depth, "  %s: %s", flag, w.one("true", "false", "yes", "~"))
			}
		}
		if star && w.chance(50) {
			w.line(depth, "  share_threshold: true")
		}
		if w.chance(70) {
			w.rateLimit(depth)
		}
		if depth < 3 && w.chance(60) {
			w.line(depth, "  descriptors:")
			w.descriptors(depth + 1)
		}
	}
}

func (w *writer) rateLimit(depth int) {
	w.line(depth, "  rate_limit:")
	if w.chance(15) {
		w.line(depth, "    unlimited: true")
	} else {
		w.line(depth, "    unit: %s", w.one("second", "Minute", "HOUR", "day", "week", "month", "year"))
		w.line(depth, "    requests_per_unit: %d", w.rng.Uint32())
	}
	if w.chance(30) {
		w.line(depth, "    name: %s", w.one("x", "y", "z"))
	}
	if w.chance(20) {
		w.line(depth, "    replaces: [{name: %s}]", w.one("p", "q"))
	}
}

// requests are descriptors that a file may have something to say about.
func (w *writer) requests() (out [][]envoyconfig.Entry) {
	for range 100 {
		var entries []envoyconfig.Entry
		for range 1 + w.rng.IntN(4) {
			entries = append(entries, envoyconfig.Entry{Key: w.one(w.key(), "a*"),
				Value: w.one(w.value(), w.value()+w.value(), "a*", "*", "10.0.0.1")})
		}
		out = append(out, entries)
	}
	return out
}

// Guarantees that files made at random are accepted or refused as by envoyproxy/ratelimit, in the same words, and that
// each descriptor of a request gets the same limit, the same name of its statistics and the same shared counter.
func TestConfigLikePeer(t *testing.T) {
	rounds := soak.Times(12_000)
	refused, limited := 0, 0
	for round := range rounds {
		w := &writer{rng: rand.New(rand.NewPCG(1, uint64(round)))}
		var files []envoyconfig.File
		for i := range 1 + w.rng.IntN(2) {
			w.b.Reset()
			w.line(0, "domain: %s", w.one("d", "e", "d.a"))
			w.line(0, "descriptors:")
			w.descriptors(1)
			files = append(files, envoyconfig.File{Name: fmt.Sprint("file", i), Data: []byte(w.b.String())})
		}
		merge := w.chance(50)
		theirs, theirErr := loadPeer(files, merge)
		ours, ourErr := envoyconfig.Load(files, envoyconfig.Options{MergeDomains: merge})
		if fmt.Sprint(ourErr) != fmt.Sprint(theirErr) {
			t.Fatalf("round %d: error %v, the peer's %v, of\n%s", round, ourErr, theirErr, files)
		}
		if ourErr != nil {
			refused++
			continue
		}
		if got, want := sorted(asPeerLists(ours)), sorted(theirs.Dump()); got != want {
			t.Fatalf("round %d: limits\n%s\nthe peer's\n%s", round, got, want)
		}
		for _, entries := range w.requests() {
			for _, domain := range []string{"d", "e", "d.a"} {
				got, want := findOurs(ours, domain, entries), findPeer(theirs, domain, entries)
				if got != want {
					t.Fatalf("round %d: %s %q:\n got %+v\nwant %+v\nof %s", round, domain, entries, got, want, files)
				}
				if got.limited {
					limited++
				}
			}
		}
	}
	if refused < rounds/20 || refused > rounds*3/4 || limited < rounds {
		t.Errorf("the files are no test: %d of %d refused, %d requests limited", refused, rounds, limited)
	}
}

// asPeerLists returns the list of rules without what ours adds at the end of lines.
func asPeerLists(c *envoyconfig.Config) string {
	return strings.ReplaceAll(strings.ReplaceAll(c.Dump(), ", unlimited: true", ""), ", share_threshold: true", "")
}

func sorted(dump string) string {
	lines := strings.Split(dump, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// Guarantees that a file with one thing wrong is refused in the peer's words, or accepted where the peer accepts it.
func TestDefectsLikePeer(t *testing.T) {
	const good = "domain: d\ndescriptors:\n  - key: a\n    value: b\n    rate_limit:\n      unit: day\n      " +
		"requests_per_unit: 5\n      name: n\n"
	refused := 0
	for _, c := range []struct{ old, new string }{
		{"domain: d", ""}, {"domain: d", "domain:"}, {"domain: d", "domain: 5"}, {"domain: d", "domain: 1.5"},
		{"domain: d",
			"domain: yes"},
		{"domain: d", "domain: d\nfoo: bar"}, {"domain: d", "domain: d\n1: bar"}, {"domain: d",
			"domain: d\n1.5: bar"}, {"domain: d", "domain: d\n~: bar"},
		{"domain: d", "domain: d\ntrue: bar"}, {"domain: d", "domain: d\nyes: bar"}, {"domain: d",
			"domain: d\n2020-01-02: bar"}, {"domain: d", "domain: 2020-01-02"}, {"domain: d", "domain: d\nunit: day"},
		{"key: a", "key:"}, {"key: a", "key: ''"}, {"key: a", "key: 5"}, {"key: a", "keys: a"}, {"key: a",
			"key: [x]"}, {"key: a", "key: {key: x}"},
		{"value: b", "value: ~"}, {"value: b", "value: 07"}, {"value: b", "value: 1e3"}, {"value: b",
			"value: b\n    shadow_mode: 5"},
		{"value: b", "value: b\n    shadow_mode: maybe"}, {"value: b", "value: b\n    shadow_mode: on"}, {"value: b",
			"value: b\n    value: c"},
		{"value: b", "value: b\n    unlimited: true"}, {"value: b", "value: b\n    detailed_metric: 'true'"},
		{"unit: day", "unit: days"}, {"unit: day", "unit: 5"}, {"unit: day", "unit: ~"}, {"unit: day",
			"unit: day\n      unlimited: true"},
		{"unit: day", "unlimited: true"}, {"unit: day", "unlimited: true\n      unit: unknown"}, {"unit: day",
			"unit: day\n      shadow_mode: true"},
		{"unit: 5", "unit: -5"}, {"unit: 5", "unit: 4294967296"}, {"unit: 5", "unit: 0x10"}, {"unit: 5",
			"unit: 010"}, {"unit: 5", "unit: 1_000"},
		{"unit: 5", "unit: '5'"}, {"unit: 5", "unit: 5.0"}, {"unit: 5", "unit: 99999999999999999999"}, {"unit: 5",
			"unit: 18446744073709551615"},
		{"unit: 5", "unit: ~"}, {"unit: 5", "unit: five"}, {"unit: 5", "unit: true"},
		{"name: n", "name: n\n      replaces: [{name: n}]"}, {"name: n",
			"name: n\n      replaces: [{name: ''}]"}, {"name: n", "name: n\n      replaces: [{}]"},
		{"name: n", "name: n\n      replaces: [x]"}, {"name: n", "name: n\n      replaces: {name: x}"}, {"name: n",
			"name: n\n      replaces: [[x, z]]"},
		{"name: n", "name: n\n      replaces: x"}, {"name: n", "replaces: [{name: ''}]"},
		{"  - key: a", "  - key: a\n  - 5\n  - key: c"}, {"  - key: a", "  - key: c\n  - key: c\n  - key: a"},
		{"  - key: a", "  - ~\n  - key: a"},
		{"  - key: a", "  - &x {key: c, rate_limit: {unit: day}}\n  - {<<: *x, key: e}\n  - key: a"},
		{"  - key: a", "  - &x {key: c, keys: d}\n  - {<<: *x, key: e}\n  - key: a"},
		{"rate_limit:", "descriptors: [{key: c}, {key: c}]\n    rate_limit:"},
		{"rate_limit:", "descriptors: {key: c}\n    rate_limit:"}, {good, "- a"}, {good, "a"}, {good, "~"}, {good,
			"5"}, {good, ""},
		{good, "domain: d\ndescriptors: ~"}, {good, "domain: d\ndescriptors: []"}, {good,
			"domain: d\ndescriptors: [{key: a, rate_limit: []}]"},
		{good, "domain: d\ndescriptors: [{key: a, rate_limit: x}]"}, {good, "domain: d\n---\ndomain: e"},
	} {
		if !strings.Contains(good, c.old) {
			t.Fatalf("%q is not in the file", c.old)
		}
		files := []envoyconfig.File{{Name: "f", Data: []byte(strings.Replace(good, c.old, c.new, 1))}}
		theirs, theirErr := loadPeer(files, false)
		ours, ourErr := envoyconfig.Load(files, envoyconfig.Options{})
		if words(ourErr) != words(theirErr) {
			t.Errorf("%q for %q: error %v, the peer's %v", c.new, c.old, ourErr, theirErr)
			continue
		}
		if ourErr != nil {
			refused++
		} else if got, want := asPeerLists(ours), theirs.Dump(); sorted(got) != sorted(want) {
			t.Errorf("%q for %q: limits\n%s\nthe peer's\n%s", c.new, c.old, got, want)
		}
	}
	if refused < 30 {
		t.Errorf("only %d files were refused", refused)
	}
}

// words is the text of an error up to the names of Go's types, which differ.
func words(err error) string {
	text, _, _ := strings.Cut(fmt.Sprint(err), " into ")
	return text
}

// Guarantees that the peer's own test files and examples are accepted or refused in the peer's words, and have the same
// limits.
func TestPeersFiles(t *testing.T) {
	// The package go/build finds no module in a program that was built with -trimpath.
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/envoyproxy/ratelimit")
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	root := strings.TrimSpace(string(out))
	tests, _ := filepath.Glob(filepath.Join(root, "test", "config", "*.yaml"))
	examples, _ := filepath.Glob(filepath.Join(root, "examples", "*", "*", "*.yaml"))
	compared := 0
	for _, name := range slices.Concat(tests, examples) {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files := []envoyconfig.File{{Name: filepath.Base(name), Data: data}}
		theirs, theirErr := loadPeer(files, false)
		ours, ourErr := envoyconfig.Load(files, envoyconfig.Options{})
		if fmt.Sprint(ourErr) != fmt.Sprint(theirErr) {
			t.Errorf("%s: error %v, the peer's %v", files[0].Name, ourErr, theirErr)
		} else if ourErr == nil && sorted(asPeerLists(ours)) != sorted(theirs.Dump()) {
			t.Errorf("%s: limits\n%s\nthe peer's\n%s", files[0].Name, asPeerLists(ours), theirs.Dump())
		}
		compared++
	}
	if compared < 15 {
		t.Errorf("found only %d files below %s", compared, root)
	}
}
