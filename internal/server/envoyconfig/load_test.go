package envoyconfig_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
)

func load(t testing.TB, text string) *envoyconfig.Config {
	t.Helper()
	c, err := envoyconfig.Load([]envoyconfig.File{{Name: "test.yaml", Data: []byte(text)}}, envoyconfig.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Guarantees that a file that envoyproxy/ratelimit refuses is refused in the same words.
func TestErrors(t *testing.T) {
	one := func(descriptor string) string { return "domain: d\ndescriptors:\n  - " + descriptor + "\n" }
	for _, c := range []struct{ name, text, want string }{
		{"empty file", "", "config file cannot have empty domain"},
		{"null file", "~", "config file cannot have empty domain"},
		{"no domain", "descriptors: []", "config file cannot have empty domain"},
		{"empty key", one("value: x"), "descriptor has empty key"},
		{"duplicate key", one("key: a\n  - key: a"), "duplicate descriptor composite key 'd.a'"},
		{"duplicate composite key", one("{key: a_b}\n  - {key: a, value: b}"),
			"duplicate descriptor composite key 'd.a_b'"},
		{"duplicate key below", one("{key: x, descriptors: [{key: a}, {key: a}]}"),
			"duplicate descriptor composite key 'd.x.a'"},
		{"unit", one("{key: a, rate_limit: {unit: foo, requests_per_unit: 5}}"), "invalid rate limit unit 'foo'"},
		{"unit unknown", one("{key: a, rate_limit: {unit: unknown, requests_per_unit: 5}}"),
			"invalid rate limit unit 'unknown'"},
		{"no unit", one("{key: a, rate_limit: {}}"), "invalid rate limit unit ''"},
		{"unlimited and unit", one("{key: a, rate_limit: {unlimited: true, unit: DAY}}"),
			"should not specify rate limit unit when unlimited"},
		{"replaces nothing", one("{key: a, rate_limit: {unit: day, name: n, replaces: [{name: ''}]}}"),
			"should not have an empty replaces entry"},
		{"replaces itself", one("{key: a, rate_limit: {unit: day, name: n, replaces: [{name: n}]}}"),
			"replaces should not contain name of same descriptor"},
		{"shared, no wildcard", one("{key: a, value: b, share_threshold: true}"),
			"share_threshold can only be used with wildcard values (containing '*'), but found key 'a_b'"},
		{"metadata", one(`{key: a, metadata: {at: !!binary "/w=="}}`), "error parsing metadata: proto:"},
		{"number as a key", "domain: d\n1: x", "config error, key is not of type string: 1"},
		{"unknown key", one("{key: a, rate_limit: {unit: day, requests_per_units: 1}}"),
			"config error, unknown key 'requests_per_units'"},
		{"unknown key at the top", "domain: d\nfoo: x", "config error, unknown key 'foo'"},
		{"list of texts", one("a"), "config error, yaml file contains list of type other than map: a"},
		{"list of lists", one("[a, b]"), "config error, yaml file contains list of type other than map: [a b]"},
		{"fraction", one("{key: a, rate_limit: {unit: day, requests_per_unit: 1.5}}"), "error checking config"},
		{"below zero", one("{key: a, rate_limit: {unit: day, requests_per_unit: -1}}"),
			"error loading config file: yaml: unmarshal errors:\n  line 3: cannot unmarshal !!int `-1` into uint32"},
		{"above 32 bits", one("{key: a, rate_limit: {unit: day, requests_per_unit: 4294967296}}"),
			"error loading config file: yaml: unmarshal errors:\n  line 3: cannot unmarshal !!int `4294967296` into " +
				"uint32"},
		{"not YAML", "domain: [", "error loading config file: yaml: line 1: did not find expected node content"},
		{"a tab", "domain: d\ndescriptors:\n  \t- key: a\n",
			"error loading config file: yaml: line 3: found character that cannot start any token: a tab indents " +
				"line 3: indent it by spaces, as YAML wants"},
		{"a text for a list", "domain: d\ndescriptors: foo",
			"error loading config file: yaml: unmarshal errors:\n  line 2: cannot unmarshal !!str `foo` into a list " +
				"of descriptors"},
		{"not a mapping", "- a",
			"error loading config file: yaml: unmarshal errors:\n  line 1: cannot unmarshal !!seq into a mapping"},
		{"too large", strings.Repeat("#", envoyconfig.MaxFileBytes+1),
			"error loading config file: the file is larger than 16 MiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := envoyconfig.Load([]envoyconfig.File{{Name: "a.yaml", Data: []byte(c.text)}},
				envoyconfig.Options{})
			if err == nil || !strings.HasPrefix(err.Error(), "a.yaml: "+c.want) {
				t.Errorf("error %v, want a.yaml: %s", err, c.want)
			}
		})
	}
}

// Guarantees that an error under the key "sluice" is refused and not ignored.
func TestExtensionErrors(t *testing.T) {
	const window = "rate_limit: {unit: day, requests_per_unit: 5}, "
	for _, c := range []struct{ descriptor, want string }{
		{"sluice: 1", "want a mapping"},
		{"sluice: {}", "limits are missing: add limits here, or a rate_limit to the descriptor"},
		{window + "sluice: {limit: []}", `unknown key "limit"`},
		{window + "sluice: {exact: yess}", "exact: line 3: cannot unmarshal !!str `yess` into bool"},
		{window + "sluice: {exact: true, exact: false}", "exact is there twice"},
		{window + "sluice: {onStoreFailure: never}", `onStoreFailure "never" is not backstop, open or closed`},
		{"sluice: {limits: []}", "want a list of limits"},
		{"sluice: {limits: [1]}", "limits: "},
		{"sluice: {limits: [{id: a, per: subject, threshold: 1}]}", `a limit of a descriptor has no "per"`},
		{"sluice: {limits: [{id: a, algorithm: fixed_window, threshold: 0, period: 1s}]}", "limits: 0 is outside 1 to"},
		{"sluice: {limits: [{id: rate_limit, algorithm: fixed_window, threshold: 1, period: 1s}]}", "choose another"},
		{"rate_limit: {unlimited: true}, " +
			"sluice: {limits: [{id: a, algorithm: fixed_window, threshold: 1, period: 1s}]}",
			"not allowed together with unlimited"},
		{"rate_limit: {requests_per_unit: 5}, sluice: {limits: [{id: a, algorithm: fixed_window, threshold: 1, " +
			"period: 1s}]}",
			"invalid rate limit unit ''"},
	} {
		text := "domain: d\ndescriptors:\n  - {key: a, " + c.descriptor + "}\n"
		_, err := envoyconfig.Load([]envoyconfig.File{{Name: "a.yaml", Data: []byte(text)}}, envoyconfig.Options{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", c.descriptor, err, c.want)
		}
	}
	text := "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, sluice: {}}}]\n"
	_, err := envoyconfig.Load([]envoyconfig.File{{Name: "a.yaml", Data: []byte(text)}}, envoyconfig.Options{})
	if err == nil || !strings.Contains(err.Error(), "unknown key 'sluice'") {
		t.Errorf("sluice in rate_limit: %v", err)
	}
}

// Guarantees that a descriptor can have several limits, of any algorithm, with or without a window of its own.
func TestExtension(t *testing.T) {
	c := load(t, `
domain: d
descriptors:
  - key: both
    rate_limit: {unit: minute, requests_per_unit: 5, name: n}
    sluice:
      exact: true
      onStoreFailure: closed
      countDenied: true
      limits:
        - {id: burst, algorithm: token_bucket, rate: 1, period: 1s, burst: 7}
        - {id: monthly, quota: {units: 9, every: month, timezone: Europe/Paris}}
  - key: only
    sluice: {limits: [{id: tiers, tiers: [{period: 1s, threshold: 2}, {period: 10s, threshold: 9}]}]}
  - key: named
    rate_limit: {name: x, replaces: [{name: n}]}
    sluice: {limits: [{id: log, algorithm: sliding_log, threshold: 2, period: 1s}]}
`)
	var m envoyconfig.Match
	c.Match("d", []envoyconfig.Entry{{Key: "both", Value: "x"}}, &m)
	r := m.Rule
	if len(r.Limits) != 3 || !r.CountDenied {
		t.Fatalf("rule %+v", r)
	}
	w := r.Limits[0]
	if w.ID != envoyconfig.WindowID || !w.Exact || w.OnStoreFailure != limit.Closed ||
		w.Tiers[0].Algorithm != limit.FixedWindow || w.Tiers[0].Threshold != 5 || w.Tiers[0].Period != time.Minute {
		t.Errorf("window %+v", w)
	}
	if b := r.Limits[1]; b.ID != "burst" || b.Exact || b.Tiers[0].Algorithm != limit.TokenBucket ||
		b.Tiers[0].Burst != 7 {
		t.Errorf("bucket %+v", b)
	}
	if q := r.Limits[2]; q.ID != "monthly" || q.Tiers[0].Algorithm != limit.Quota {
		t.Errorf("quota %+v", q)
	}
	c.Match("d", []envoyconfig.Entry{{Key: "only", Value: "x"}}, &m)
	if r = m.Rule; r.Unit != envoyconfig.Unknown || r.DeniesAll() || len(r.Limits) != 1 || len(r.Limits[0].Tiers) != 2 {
		t.Errorf("only: %+v", r)
	}
	c.Match("d", []envoyconfig.Entry{{Key: "named", Value: "x"}}, &m)
	if r = m.Rule; r.Name != "x" || len(r.Replaces) != 1 || len(r.Limits) != 1 {
		t.Errorf("named: %+v", r)
	}
}

// Guarantees that the time to read a file is bounded by its length, however deep its aliases are.
func TestAliases(t *testing.T) {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n  - &a0 {key: k0}\n")
	for i := range 60 {
		n := string(rune('0'+i%10)) + string(rune('a'+i/10))
		prev := "a0"
		if i > 0 {
			prev = "b" + string(rune('0'+(i-1)%10)) + string(rune('a'+(i-1)/10))
		}
		b.WriteString("  - &b" + n + " {key: k" + n + ", descriptors: [*" + prev + "], metadata: {x: *" + prev +
			", y: *" +
			prev + "}}\n")
	}
	_, err := envoyconfig.Load([]envoyconfig.File{{Name: "a.yaml", Data: []byte(b.String())}}, envoyconfig.Options{})
	if err == nil || !strings.Contains(err.Error(), "excessive aliasing") {
		t.Errorf("error %v", err)
	}
	c := load(t, "domain: d\ndescriptors:\n  - &a {key: a, rate_limit: &r {unit: day, requests_per_unit: 3}}\n"+
		"  - {<<: *a, key: b}\n  - {key: c, rate_limit: *r}\n")
	for _, key := range []string{"a", "b", "c"} {
		var m envoyconfig.Match
		if c.Match("d", []envoyconfig.Entry{{Key: key}}, &m); m.Rule == nil || m.Rule.RequestsPerUnit != 3 {
			t.Errorf("%s: %+v", key, m.Rule)
		}
	}
}

// Guarantees that several files for one domain are refused, or merged on request, and that one bad file refuses all
// files.
func TestFiles(t *testing.T) {
	file := func(name, text string) envoyconfig.File { return envoyconfig.File{Name: name, Data: []byte(text)} }
	a := file("a", "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]")
	b := file("b", "domain: d\ndescriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 2}}]")
	other := file("c", "domain: e\ndescriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 3}}]")
	if _, err := envoyconfig.Load([]envoyconfig.File{a, other, b}, envoyconfig.Options{}); err == nil ||
		err.Error() != "b: duplicate domain 'd' in config file" {
		t.Errorf("two files for one domain: %v", err)
	}
	merge := envoyconfig.Options{MergeDomains: true}
	if _, err := envoyconfig.Load([]envoyconfig.File{a, a}, merge); err == nil ||
		err.Error() != "a: duplicate descriptor composite key 'd.a'" {
		t.Errorf("merged duplicates: %v", err)
	}
	c, err := envoyconfig.Load([]envoyconfig.File{a, other, b}, merge)
	if err != nil {
		t.Fatal(err)
	}
	const want = "d.a: unit=DAY requests_per_unit=1, shadow_mode: false, quota_mode: false\n" +
		"d.b: unit=DAY requests_per_unit=2, shadow_mode: false, quota_mode: false\n" +
		"e.b: unit=DAY requests_per_unit=3, shadow_mode: false, quota_mode: false\n"
	if got := c.Dump(); got != want || c.Rules() != 3 {
		t.Errorf("%d rules:\n%s", c.Rules(), got)
	}
	refuse := envoyconfig.Options{
		Accepts: func([]*limit.Limit) error { return errors.New("the store cannot keep this") },
	}
	if _, err := envoyconfig.Load([]envoyconfig.File{a}, refuse); err == nil ||
		err.Error() != "a: d.a: the store cannot keep this" {
		t.Errorf("a limit that the store refuses: %v", err)
	}
}

// Guarantees that /rlconfig lists what envoyproxy/ratelimit lists, and after it the settings that it does not.
func TestDump(t *testing.T) {
	c, err := loadMapping("domain: d\nsluice: {mapping: {tenant: t}}\ndescriptors:\n"+
		"  - {key: a, rate_limit: {unlimited: true}}\n"+
		"  - {key: b, value: 'x*', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}\n"+
		"  - key: c\n    sluice: {countDenied: true, limits: [{id: x, algorithm: token_bucket, rate: 1, period: 1s, "+
		"burst: 2}, {id: y, quota: {units: 9, every: month}}]}\n", true)
	if err != nil {
		t.Fatal(err)
	}
	const want = `d: sluice: mapping: tenant="t" subject="" method="" path="" address=""
d.a: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false, unlimited: true
d.b_x*: unit=DAY requests_per_unit=1, shadow_mode: false, quota_mode: false, share_threshold: true
d.c: shadow_mode: false, quota_mode: false, sluice: countDenied: true, sluice: limit x: token_bucket of 2 in 1s, ` +
		`sluice: limit y: quota of 9 each month@1 UTC
`
	if got := c.Dump(); got != want {
		t.Errorf("\n%swant\n%s", got, want)
	}
}

// Guarantees that a key at a place where it has no effect is reported, since envoyproxy/ratelimit ignores it silently.
func TestWarnings(t *testing.T) {
	c := load(t,
		"domain: d\ndescriptors:\n  - key: a\n    rate_limit:\n      unit: day\n      shadow_mode: true\n"+
			"      requests_per_unit: 1\n    name: n\n")
	got := strings.Join(c.Warnings(), "; ")
	const want = "test.yaml:6: shadow_mode has no effect in rate_limit; " +
		"test.yaml:8: name has no effect in a descriptor"
	if got != want {
		t.Errorf("warnings %q, want %q", got, want)
	}
}

// Guarantees that what envoyproxy/ratelimit ignores or confuses in silence has its verdict and a warning with file,
// line and key.
func TestWarningsOfWhatIsIgnored(t *testing.T) {
	const limit = "rate_limit: {unit: minute, requests_per_unit: 5}"
	for name, c := range map[string]struct {
		text, want string
		rules      int
	}{
		"a second document": {"domain: web\ndescriptors:\n  - {key: ip, " + limit + "}\n---\ndomain: login\n",
			"test.yaml:4: a second YAML document begins here, and is ignored: put it into a file of its own", 1},
		"a second document that is not YAML": {"domain: web\n---\na: [\n",
			"test.yaml:2: a second YAML document begins here, and is ignored: put it into a file of its own", 0},
		"an empty second document": {"domain: web\n---\n", "", 0},
		"descriptors twice": {"domain: web\ndescriptors:\n  - {key: ip, " + limit + "}\n" +
			"descriptors:\n  - {key: user, " + limit + "}\n",
			"test.yaml:2: descriptors is ignored, because the key is there again in line 4", 1},
		"a key of a limit twice": {"domain: web\ndescriptors:\n- key: ip\n  rate_limit:\n    unit: day\n" +
			"    unit: hour\n    requests_per_unit: 1\n",
			"test.yaml:5: unit is ignored, because the key is there again in line 6", 1},
		"a unit without a number": {"domain: web\ndescriptors:\n- key: ip\n  rate_limit:\n    unit: minute\n",
			"test.yaml:5: rate_limit has a unit and no requests_per_unit, so it denies every request: add the " +
				"number, or write requests_per_unit: 0 if that is meant", 1},
		"metadata at another place": {"domain: web\nmetadata: {1: [a, 1.5]}\n",
			"test.yaml:2: metadata has no effect in the file itself", 0},
		"keys that can be confused": {"domain: web\ndescriptors:\n- {key: user, " + limit + "}\n" +
			"- {key: user_tier, value: gold, " + limit + "}\n- {key: username, " + limit + "}\n",
			"test.yaml:4: descriptors with the keys user_tier and user (line 3) can be confused, as in " +
				"envoyproxy/ratelimit: a request with user=tier_x gets the rule of user_tier=x. Rename " +
				"one of the keys if clients choose the value of user", 3},
	} {
		config := load(t, c.text)
		if got := strings.Join(config.Warnings(), "; "); got != c.want || config.Rules() != c.rules {
			t.Errorf("%s: %d rules, want %d; warnings\n%q, want\n%q", name, config.Rules(), c.rules, got, c.want)
		}
	}
	_, err := envoyconfig.Load([]envoyconfig.File{{Name: "v.yaml", Data: []byte("domain: web\ndescriptors:\n" +
		"  - key: api_version\n    value: 1.0\n")}}, envoyconfig.Options{})
	var wrong *envoyconfig.ValueError
	if !errors.As(err, &wrong) || err.Error() != "v.yaml: error checking config" ||
		!strings.HasPrefix(wrong.Detail(), ", line 4: value is 1.0,") ||
		!strings.Contains(wrong.Detail(), `value: "1.0"`) {
		t.Errorf("a number with a fraction: %v", err)
	}
}

// Guarantees that metadata may have any keys and values.
func TestMetadata(t *testing.T) {
	c := load(t,
		"domain: d\ndescriptors:\n  - key: a\n    rate_limit: {unit: day}\n    metadata: {x: [1, {2: b}], foo: "+
			"{bar: yes}, day: 2020-01-02}\n")
	var m envoyconfig.Match
	c.Match("d", []envoyconfig.Entry{{Key: "a"}}, &m)
	got, err := m.Rule.Metadata.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.ReplaceAll(string(got), " ",
		""); text != `{"day":"2020-01-02","foo":{"bar":true},"x":[1,{"2":"b"}]}` {
		t.Errorf("metadata %s", text)
	}
	if !m.Rule.DeniesAll() {
		t.Error("DeniesAll of a limit of 0 is false, want true")
	}
}

// Guarantees that no file makes Load panic, and that an accepted configuration can be matched with any descriptor.
func FuzzLoad(f *testing.F) {
	f.Add("domain: d\ndescriptors:\n  - key: a\n    value: 'b*'\n    share_threshold: true\n    rate_limit: {unit: "+
		"day, requests_per_unit: 3}", "a", "bc")
	f.Add("domain: d\ndescriptors: [{key: a, sluice: {limits: [{id: x, quota: {units: 1, every: day}}]}}]", "a", "")
	f.Add("a: &a [*a]", "", "")
	f.Add("domain: d\ndescriptors: [{<<: [{key: x}, {key: y}], metadata: {? [1] : 2}}]", "x", "y")
	f.Add("? {a: b}\n: c", "", "")
	f.Fuzz(func(t *testing.T, text, key, value string) {
		c, err := envoyconfig.Load([]envoyconfig.File{{Name: "f", Data: []byte(text)}}, envoyconfig.Options{})
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f: ") {
				t.Errorf("the error does not name the file: %v", err)
			}
			return
		}
		rules := 0
		c.EachRule(func(r *envoyconfig.Rule) {
			rules++
			if len(r.Limits) == 0 && !r.Unlimited && !r.DeniesAll() {
				t.Errorf("rule %s has no limits, but is not unlimited and does not deny all", r.Path)
			}
		})
		if rules != c.Rules() {
			t.Errorf("the configuration has %d rules, but Rules returns %d", rules, c.Rules())
		}
		var m envoyconfig.Match
		for _, domain := range c.Domains() {
			if !c.Match(domain, []envoyconfig.Entry{{Key: key, Value: value}}, &m) {
				t.Errorf("domain %q is not known", domain)
			}
		}
	})
}
