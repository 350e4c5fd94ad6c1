package plan_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/plan"
)

// readsPlan returns a plan with a limit on GET and one on PUT; options are added to the plan, and match to each match.
func readsPlan(options, match string) string {
	return "plans:\n- id: p\n" + options + `  limits:
  - id: get
    per: endpoint
    match: { methods: [GET], pathPattern: "/product/{id}"` + match + ` }
    tiers: [ { period: 1s, threshold: 1 } ]
  - id: both
    per: endpoint
    match: { methods: [GET, HEAD], pathPattern: "/v1/*"` + match + ` }
    tiers: [ { period: 1s, threshold: 1 } ]
  - id: put
    match: { methods: [PUT], pathPattern: "/product/*"` + match + ` }
    tiers: [ { period: 1s, threshold: 1 } ]
`
}

// TestSpellings guarantees that caseInsensitive and impliesHead count what a backend treats as the same request, that
// HEAD shares the units of GET, and that a plan without the options keeps its meaning.
func TestSpellings(t *testing.T) {
	const both = "  caseInsensitive: true\n  impliesHead: true\n"
	for _, tt := range []struct {
		name, options, match, method, path string
		want                               []string
	}{
		{"as written", "", "", "GET", "/product/1", []string{"get=GET /product/{id}:1"}},
		{"case, without the options", "", "", "GET", "/Product/1", nil},
		{"HEAD, without the options", "", "", "HEAD", "/product/1", nil},
		{"case", both, "", "GET", "/PRODUCT/1", []string{"get=GET /product/{id}:1"}},
		{"case of an encoded letter", both, "", "GET", "/%50roduct/1", []string{"get=GET /product/{id}:1"}},
		{"case of another letter than ASCII", both, "", "GET", "/V1/É", []string{"both=GET /v1/*:1"}},
		{"HEAD", both, "", "HEAD", "/product/1", []string{"get=GET /product/{id}:1"}},
		{"HEAD in small letters, and case", both, "", "head", "/Product/1", []string{"get=GET /product/{id}:1"}},
		{"HEAD that is named", both, "", "HEAD", "/v1/x", []string{"both=HEAD /v1/*:1"}},
		{"HEAD where PUT is named", both, "", "PUT", "/PRODUCT/1", []string{"put=-:1"}},
		{"in the match", "", ", caseInsensitive: true", "GET", "/Product/1", []string{"get=GET /product/{id}:1"}},
		{"HEAD in the match", "", ", impliesHead: true", "HEAD", "/product/1", []string{"get=GET /product/{id}:1"}},
		{"the match has the last word", both, ", caseInsensitive: false, impliesHead: false", "GET", "/Product/1", nil},
		{"the match has the last word on HEAD", both, ", impliesHead: false", "HEAD", "/product/1", nil},
		{"one alone", "  impliesHead: true\n", "", "GET", "/Product/1", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := readsPlan(tt.options, tt.match)
			set := parse(t, text).Plans()[0].Set()
			a := request(tt.method, tt.path)
			if got := charged(set.AppendCharges(nil, a)); !slices.Equal(got, tt.want) {
				t.Errorf("%s %s charges %q, want %q", tt.method, tt.path, got, tt.want)
			}
			applies := 0
			for _, v := range set.Explain(a) {
				if v.Status == plan.Applies {
					applies++
				}
			}
			if applies != len(tt.want) {
				t.Errorf("Explain says that %d limits apply, want %d", applies, len(tt.want))
			}
			documents, err := plan.Split(noon, configyaml.Source("f.yaml", []byte(text)))
			if err != nil {
				t.Fatal(err)
			}
			stored, err := plan.CompilePlan(documents[0])
			if err != nil {
				t.Fatal(err)
			}
			if got := charged(stored.Set().AppendCharges(nil, a)); !slices.Equal(got, tt.want) {
				t.Errorf("%s %s charges %q by the stored plan, want %q", tt.method, tt.path, got, tt.want)
			}
		})
	}
}

// TestSpellingsElsewhere guarantees that ipLimits and slas, which are not plans, take the options in each match.
func TestSpellingsElsewhere(t *testing.T) {
	const match = "match: { methods: [GET], pathPattern: /login, caseInsensitive: true, impliesHead: true }"
	c := parse(t, "slas: [ { id: s, "+match+", tiers: [ { period: 1, threshold: 1 } ] } ]\n"+
		"ipLimits: [ { id: i, "+match+", tiers: [ { period: 1s, threshold: 1 } ] } ]\ntenants: [ { id: acme } ]\n"+
		"routes: [ { methods: [GET, HEAD], pathPattern: /login } ]\n")
	tenant, _ := c.Tenant("acme")
	for _, set := range []*plan.Set{tenant.Limits(noon), c.IPLimits()} {
		if got := set.AppendCharges(nil, request("HEAD", "/Login")); len(got) != 1 {
			t.Errorf("HEAD /Login charges %q, want one limit", charged(got))
		}
	}
	if len(c.Warnings()) > 0 {
		t.Errorf("warnings %v, want none", c.Warnings())
	}
}

// TestSpellingWarnings guarantees that the author of a plan is warned once of limits that another spelling avoids,
// however many there are, and no longer after setting the options.
func TestSpellingWarnings(t *testing.T) {
	const (
		pass  = "requests may pass limits uncounted: "
		cases = "a path in another case does if the backend ignores case "
		paths = pass + cases + "(limits get, both, put)"
		head  = "HEAD does where only GET is named (limit get)"
		both  = "write caseInsensitive: true and impliesHead: true in the plan "
		tiers = "tiers: [ { period: 1s, threshold: 1 } ] }"
		last  = "to count them, or false if they are not to be counted"
	)
	wide := "plans:\n- id: p\n  limits:\n"
	for i := range 100 {
		wide += fmt.Sprintf("  - { id: l%d, match: { pathPattern: /r%d }, tiers: [ { period: 1s, threshold: 1 } ] }\n",
			i, i)
	}
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"none is written", readsPlan("", ""), []string{
			"f.yaml:2:3: plans[0]: " + paths + ", and " + head + "; " + both + last}},
		{"case is written", readsPlan("  caseInsensitive: true\n", ""), []string{
			"f.yaml:2:3: plans[0]: " + pass + head + "; write impliesHead: true in the plan " + last}},
		{"HEAD is written", readsPlan("  impliesHead: true\n", ""), []string{
			"f.yaml:2:3: plans[0]: " + paths + "; write caseInsensitive: true in the plan " + last}},
		{"both are written", readsPlan("  caseInsensitive: true\n  impliesHead: true\n", ""), nil},
		{"both are refused", readsPlan("  caseInsensitive: false\n  impliesHead: false\n", ""), nil},
		{"in each match", readsPlan("", ", caseInsensitive: false, impliesHead: true"), nil},
		{"many limits", wide, []string{"f.yaml:2:3: plans[0]: " + pass + cases +
			"(limits l0, l1, l2 and 97 more); write caseInsensitive: true in the plan " + last}},
		{"no route", "plans: [ { id: p, limits: [ { id: a, match: { methods: [PUT], pathPattern: '/{x}/1/**' }, " +
			tiers + " ] } ]", nil},
		{"off", "plans: [ { id: p, limits: [ { id: a, mode: off, match: { methods: [GET], pathPattern: /a }, " +
			tiers + " ] } ]", nil},
		{"ipLimits and slas", "ipLimits:\n- { id: a, match: { pathPattern: /a }, " + tiers + "\n" +
			"slas:\n- { id: b, match: { methods: GET }, tiers: [ { period: 1, threshold: 1 } ] }\n", []string{
			"f.yaml:2:3: ipLimits[0]: " + pass + cases + "(limit a); " +
				"write caseInsensitive: true in the match of each entry of ipLimits " + last,
			"f.yaml:4:1: slas: requests may pass limits uncounted: HEAD does where only GET is named (limit b); " +
				"write impliesHead: true in each match " + last,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			const routes = "\nroutes: [ { methods: [GET, HEAD, PUT] } ]\n" // otherwise TestMethodWarnings has one more
			for _, w := range parse(t, tt.text+routes).Warnings() {
				got = append(got, w.String())
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("warnings\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

// TestMethodWarnings guarantees that the author of a plan is warned of methods that no limit counts on a path on which
// another method is limited: many backends answer them as they answer GET. Nothing is said if an enforcing limit counts
// every method there, or if declared routes say which methods are served.
func TestMethodWarnings(t *testing.T) {
	const (
		tiers = "tiers: [ { period: 1s, threshold: 1 } ] }"
		get   = "{ id: get, match: { methods: [GET, HEAD], pathPattern: '/1/*' }, " + tiers
		rest  = ": no limit counts POST, PUT, PATCH, DELETE, OPTIONS on the same paths, "
	)
	for _, tt := range []struct {
		name, limits, routes, want string
	}{
		{"alone", get, "", "limit get" + rest},
		{"beside another path", get + ", { id: o, match: { pathPattern: '/2/*' }, " + tiers, "", "limit get" + rest},
		{"beside a shadow", get + ", { id: o, mode: shadow, " + tiers, "", "limit get" + rest},
		{"beside a quota", get + ", { id: o, quota: { units: 1, every: day } }", "", ""},
		{"beside a wider path", get + ", { id: o, match: { pathPattern: '/1/**' }, " + tiers, "", ""},
		{"beside a narrower path", get + ", { id: o, match: { pathPattern: '/1/1' }, " + tiers, "", "limit get" + rest},
		{"beside PUT", get + ", { id: put, match: { methods: [PUT], pathPattern: '/1/*' }, " + tiers, "",
			"limits get, put: no limit counts POST, PATCH, DELETE, OPTIONS on the same paths, "},
		{"beside all others", get + ", { id: put, match: { methods: [POST, PUT, PATCH, DELETE, OPTIONS], " +
			"pathPattern: '/1/*' }, " + tiers, "", ""},
		{"off", "{ id: get, mode: off, match: { methods: [GET], pathPattern: '/1/*' }, " + tiers, "", ""},
		{"routes with methods", get, "{ methods: [GET, DELETE], pathPattern: '/1/*' }, { pathPattern: /2 }", ""},
		{"routes without methods", get, "{ pathPattern: '/1/*' }", "limit get" + rest},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := "plans:\n- id: p\n  caseInsensitive: true\n  impliesHead: true\n  limits: [ " + tt.limits + " ]\n"
			if tt.routes != "" {
				text += "routes: [ " + tt.routes + " ]\n"
			}
			var got string
			for _, w := range parse(t, text).Warnings() {
				got += w.String()
			}
			want := tt.want
			if want != "" {
				want = "f.yaml:2:3: plans[0]: " + want
			}
			if !strings.HasPrefix(got, want) || want == "" && got != "" {
				t.Errorf("warnings %q, want %q", got, tt.want)
			}
		})
	}
}

// TestExampleHasOptions guarantees that a plan made from the example of `sluice dev` has both options on.
func TestExampleHasOptions(t *testing.T) {
	text, err := os.ReadFile("../../cmd/sluice/example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c := parse(t, string(text))
	if len(c.Warnings()) > 0 {
		t.Errorf("the example has the warnings %v, want none", c.Warnings())
	}
	acme, _ := c.Tenant("acme")
	a := request("PUT", "/Product/1")
	a.Subject = "ci"
	if got := charged(acme.Limits(noon).AppendCharges(nil, a)); !slices.Contains(got, "put-product=ci:1") {
		t.Errorf("PUT /Product/1 charges %q, want put-product among them", got)
	}
	if got := charged(acme.Limits(noon).AppendCharges(nil, request("HEAD", "/x"))); !slices.Contains(got, "reads=-:1") {
		t.Errorf("HEAD /x charges %q, want reads among them", got)
	}
}

// TestSpellingsInGroups guarantees that a limit that ignores case is reachable below one for a single spelling, and
// that two limits that count the same requests are a tie.
func TestSpellingsInGroups(t *testing.T) {
	group := func(options string, matches ...string) string {
		text := "plans:\n- id: p\n" + options + "  limits:\n"
		for i, m := range matches {
			text += fmt.Sprintf("  - { id: l%d, group: g, match: { %s }, tiers: [ { period: 1s, threshold: 1 } ] }\n",
				i, m)
		}
		return text
	}
	c := parse(t, group("", "pathPattern: /a, caseInsensitive: true", "pathPattern: /a", "pathPattern: /A"))
	for path, want := range map[string]string{"/a": "l1=-:1", "/A": "l2=-:1"} {
		if got := charged(c.Plans()[0].Set().AppendCharges(nil, request("GET", path))); !slices.Equal(got,
			[]string{want}) {
			t.Errorf("%s charges %q, want %q", path, got, want)
		}
	}
	c = parse(t, group("", "pathPattern: /key, caseInsensitive: true", "pathPattern: /key"))
	for path, want := range map[string]string{"/key": "l1=-:1", "/Key": "l0=-:1", "/KEY": "l0=-:1"} {
		if got := charged(c.Plans()[0].Set().AppendCharges(nil, request("GET", path))); !slices.Equal(got,
			[]string{want}) {
			t.Errorf("%s charges %q, want %q", path, got, want)
		}
	}
	for name, text := range map[string]string{
		"paths that differ in case": group("  caseInsensitive: true\n", "pathPattern: '/a/{x}'", "pathPattern: /A/*"),
		"HEAD beside GET": group("  impliesHead: true\n",
			"methods: [GET], pathPattern: /a", "methods: [HEAD], pathPattern: /a"),
	} {
		_, err := plan.ParseAt(noon, configyaml.Source("f", []byte(text)))
		if err == nil || !strings.Contains(err.Error(), "a tie in group g") {
			t.Errorf("%s: %v, want a tie", name, err)
		}
	}
	apart := group("  impliesHead: true\n",
		"methods: [GET], pathPattern: /a, impliesHead: false", "methods: [HEAD], pathPattern: /a")
	if _, err := plan.ParseAt(noon, configyaml.Source("f", []byte(apart))); err != nil {
		t.Errorf("different limits for HEAD and GET: %v, want no error", err)
	}
}

// TestSpellingValues guarantees that `check --effective` shows the options if they matter, with their origins.
func TestSpellingValues(t *testing.T) {
	set := parse(t, readsPlan("  caseInsensitive: true\n  impliesHead: true\n", "")).Plans()[0].Set()
	for i, want := range []string{
		"match.methods=GET match.impliesHead=true match.pathPattern=/product/{id} match.caseInsensitive=true",
		"match.methods=GET, HEAD match.pathPattern=/v1/* match.caseInsensitive=true",
		"match.methods=PUT match.pathPattern=/product/* match.caseInsensitive=true",
	} {
		var got []string
		for _, v := range set.Limits[i].Values() {
			if strings.HasPrefix(v.Name, "match.") {
				got = append(got, v.Name+"="+v.Text)
			}
			if v.Name == "match.caseInsensitive" && (v.Origin.Layer != "plan p" || v.Origin.Line != 3) {
				t.Errorf("match.caseInsensitive is from %s, want line 3 of plan p", v.Origin)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("limit %d: %s, want %s", i, strings.Join(got, " "), want)
		}
	}
}
