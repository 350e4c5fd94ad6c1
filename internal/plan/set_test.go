package plan_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/route"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// parse parses a valid file.
func parse(t testing.TB, text string) *plan.Config {
	t.Helper()
	c, err := plan.ParseAt(noon, configyaml.Source("f.yaml", []byte(text)))
	if err != nil {
		t.Fatalf("%s\n%v", text, err)
	}
	return c
}

// request returns the attributes of a request.
func request(method, raw string) *plan.Attributes {
	path := route.Clean(raw)
	return &plan.Attributes{Method: method, Path: &path}
}

// charged writes charges as "id=value:cost".
func charged(charges []limit.Charge) []string {
	var out []string
	for _, c := range charges {
		out = append(out, fmt.Sprintf("%s=%s:%d", c.Limit.ID, valueText(c.Value), c.Cost))
	}
	return out
}

func valueText(v limit.Value) string {
	switch v.Kind {
	case limit.NoValue:
		return "-"
	case limit.ValueAbsent:
		return "absent"
	default:
		return v.Text
	}
}

// Guarantees that the SLA form means what its example says: 1,000 GETs and 100 PUTs per 10 s, per tenant, each counted
// per endpoint and not per path.
func TestSLAs(t *testing.T) {
	c := parse(t, `
slas:
- {id: get, match: {methods: [GET], pathPattern: "/product/*"}, tiers: [{period: 10, threshold: 1000}]}
- {id: put, enabled: true, match: {methods: [PUT], pathPattern: "/product/*"}, tiers: [{period: 10, threshold: 100}]}
- {id: gone, enabled: false, tiers: [{period: 1, threshold: 1}]}
tenants: [{id: acme}, {id: other, plan: slas}]
`)
	for _, id := range []string{"acme", "other"} {
		tenant, ok := c.Tenant(id)
		if !ok || tenant.Plan != "slas" {
			t.Fatalf("tenant %s = %+v, %v; want plan slas", id, tenant, ok)
		}
		set := tenant.Limits(noon)
		for method, want := range map[string]string{"GET": "get=GET /product/*:1", "PUT": "put=PUT /product/*:1"} {
			for _, path := range []string{"/product/1", "/product/2"} {
				if got := charged(set.AppendCharges(nil, request(method, path))); !slices.Equal(got, []string{want}) {
					t.Errorf("%s %s charges %q, want %q", method, path, got, want)
				}
			}
		}
		tier := set.Limits[0].Limit.Tiers[0]
		if tier.Algorithm != limit.FixedWindow || tier.Period.Seconds() != 10 || tier.Threshold != 1000 {
			t.Errorf("tier = %v %v %d, want fixed_window 10s 1000", tier.Algorithm, tier.Period, tier.Threshold)
		}
	}
}

// Guarantees which values name a counter: a mistake lets one user spend another's units, or lets a client create any
// number of counters.
func TestValues(t *testing.T) {
	long := strings.Repeat("s", 129)
	claims := func(name string) (string, bool) {
		v, ok := map[string]string{"region": "eu", "empty": ""}[name]
		return v, ok
	}
	full := &plan.Attributes{Method: "GET", Subject: "u", APIKey: "k", IP: "h", Claim: claims}
	for _, c := range []struct {
		name, per string
		a         *plan.Attributes
		want      string
	}{
		{"tenant", "tenant", full, "-"},
		{"tenant in a list", "[tenant]", full, "-"},
		{"subject", "subject", full, "u"},
		{"api key", "api_key", full, "k"},
		{"ip", "ip", full, "h"},
		{"claim", "claim:region", full, "eu"},
		{"claim that is empty", "claim:empty", full, ""},
		{"claim that is missing", "claim:zone", full, "absent"},
		{"no claims", "claim:region", request("GET", "/"), "absent"},
		{"no subject", "subject", request("GET", "/"), "absent"},
		{"long", "subject", &plan.Attributes{Subject: long}, "sha256:" + sha(long)},
		{"as long as may be", "subject", &plan.Attributes{Subject: long[1:]}, long[1:]},
		{"like a hash", "subject", &plan.Attributes{Subject: "sha256:" + sha(long)},
			"sha256:" + sha("sha256:"+sha(long))},
		{"endpoint", "endpoint", request("GET", "/x"), "GET /x/**"},
		{"endpoint of another spelling", "endpoint", request("get", "/x"), "GET /x/**"},
		{"endpoint of an unknown method", "endpoint", request("BREW", "/x"), "OTHER /x/**"},
		{"list in its order", "[ip, subject]", full, "1:h,1:u,"},
		{"list in another order", "[subject, ip]", full, "1:h,1:u,"},
		{"list with absent", "[subject, ip]", &plan.Attributes{IP: "h"}, "1:h,~"},
		{"list with endpoint", "[subject, endpoint]", request("PATCH", "/x"), "11:PATCH /x/**,~"},
	} {
		t.Run(c.name, func(t *testing.T) {
			match := ""
			if strings.Contains(c.per, "endpoint") {
				match = ", match: {pathPattern: /x/**}"
			}
			set := parse(t, planWithLimit("per: "+c.per+", tiers: [{period: 1s, threshold: 1}]"+match)).Plans()[0].Set()
			charges := set.AppendCharges(nil, c.a)
			if len(charges) != 1 || valueText(charges[0].Value) != c.want {
				t.Fatalf("per %s charges %q, want value %q", c.per, charged(charges), c.want)
			}
			if err := (&limit.Request{Charges: charges}).Check(); err != nil {
				t.Errorf("package limit refuses the charges of the plan: %v", err)
			}
		})
	}
}

// Guarantees that the cost stays within the plan's bounds whatever the header contains, since a client chooses the
// header unless the operator's edge overwrites it.
func TestCost(t *testing.T) {
	set := parse(t, planWithLimit("tiers: [{period: 1s, threshold: 5000}], cost: {trustedHeader: x-query-cost, max: "+
		"1000, default: 3}")).Plans()[0].Set()
	for header, want := range map[string]int64{
		"1": 1, "7": 7, "007": 7, "1000": 1000, "1001": 1000, "99999999999999999999999999": 1000, strings.Repeat("9",
			10_000): 1000,
		"": 3, "0": 3, "00": 3, "-1": 3, "+1": 3, " 1": 3, "1 ": 3, "1.5": 3, "1e3": 3, "0x10": 3, "１": 3, "1,2": 3,
		"x": 3,
	} {
		a := request("GET", "/")
		a.Header = func(name string) (string, bool) { return header, name == "X-Query-Cost" }
		if got := set.AppendCharges(nil, a)[0].Cost; got != want {
			t.Errorf("header %.40q costs %d, want %d", header, got, want)
		}
	}
	absent := request("GET", "/")
	if got := set.AppendCharges(nil, absent)[0].Cost; got != 3 {
		t.Errorf("no headers cost %d, want the default 3", got)
	}
	if got := set.Limits[0].Limit.MaxCost; got != 1000 {
		t.Errorf("the limit's largest cost is %d, want 1000", got)
	}
}

// Guarantees that a path with two readings is charged for both: a specific, generous limit that one reading matches
// must not displace the strict limit that the other reading matches.
func TestGroupsWithAliases(t *testing.T) {
	set := parse(t, group("match: {pathPattern: /a/**}", "match: {pathPattern: /a/free/x}")).Plans()[0].Set()
	for path, want := range map[string][]string{
		"/a/b":                            {"l0=-:1"},
		"/a/free/x":                       {"l1=-:1"},
		"/a/free%2Fx":                     {"l1=-:1", "l0=-:1"},
		"/a/free//x":                      {"l1=-:1"},
		"/b":                              nil,
		"/" + strings.Repeat("%2525", 99): {"l1=-:1", "l0=-:1"}, // too odd to analyse: every limit
	} {
		got := charged(set.AppendCharges(nil, request("GET", path)))
		if p := route.Clean(path); len(path) > 100 && !p.Ambiguous() {
			continue // the last case only needs an ambiguous path
		}
		if !slices.Equal(got, want) {
			t.Errorf("%.40s charges %q, want %q", path, got, want)
		}
	}
}

// Guarantees that groups are resolved as a slow implementation of the design does: of the enforcing matches of a group
// the most specific one applies, and each shadow that would apply if it enforced. A wrong result lets requests pass or
// denies them twice.
func TestGroupsAgainstBruteForce(t *testing.T) {
	soak.SkipUnderRace(t)
	rng := rand.New(rand.NewPCG(1, 2))
	segments := []string{"a", "b", "*", "{x}"}
	checked, displaced, shadows := 0, 0, 0
	for range 1500 {
		var b strings.Builder
		b.WriteString("plans:\n- id: p\n  limits:\n")
		for i := range 1 + rng.IntN(8) {
			pattern := ""
			for range rng.IntN(3) {
				pattern += "/" + segments[rng.IntN(len(segments))]
			}
			if rng.IntN(3) == 0 || pattern == "" {
				pattern += "/**"
			}
			methods := []string{"", "methods: [GET], ", "methods: [PUT], "}[rng.IntN(3)]
			fmt.Fprintf(&b, "  - {id: l%d, mode: %s, match: {%spathPattern: %q}, tiers: [{period: 1s, threshold: "+
				"1}]%s}\n", i,
				[]string{"enforce", "enforce", "shadow", "off"}[rng.IntN(4)], methods, pattern,
				[]string{"", ", group: g", ", group: h"}[rng.IntN(3)])
		}
		c, err := plan.ParseAt(noon, configyaml.Source("f", []byte(b.String())))
		if err != nil {
			continue // ties and unreachable limits are refused, see TestProblems
		}
		checked++
		set := c.Plans()[0].Set()
		for range 20 {
			path := "/" + []string{"", "a", "b", "a/b", "b/a", "c/c", "a/b/c", "a/", "b/b/", "/"}[rng.IntN(10)]
			a := request([]string{"GET", "PUT", "POST"}[rng.IntN(3)], path)
			got := charged(set.AppendCharges(nil, a))
			slices.Sort(got)
			want := bruteForce(set, a.Method, path)
			if !slices.Equal(got, want) {
				t.Fatalf("%s%s %s charges %q, want %q", b.String(), a.Method, a.Path, got, want)
			}
			for _, v := range set.Explain(a) {
				switch v.Status {
				case plan.Displaced:
					displaced++
				case plan.Reports:
					shadows++
				default:
				}
				applies := v.Status == plan.Applies || v.Status == plan.Reports
				if applies != slices.Contains(got, v.Limit.Limit.ID+"=-:1") || v.Why == "" {
					t.Fatalf("%s%s %s: explain says %s is %q (%s), charged are %q", b.String(), a.Method, a.Path,
						v.Limit.Limit.ID, v.Status, v.Why, got)
				}
			}
		}
	}
	if checked < 300 || displaced < 300 || shadows < 300 {
		t.Errorf("%d configurations, %d displaced limits, %d shadow limits: the test shows too little", checked,
			displaced, shadows)
	}
}

// bruteForce resolves groups for each reading of a path that has no other oddity than slashes at its end. In a reading
// with empty segments it considers only the patterns that need one of them for a parameter.
func bruteForce(set *plan.Set, method, path string) []string {
	readings := []string{strings.TrimRight(path, "/")}
	for reading := readings[0]; reading != path; readings = append(readings, reading) {
		reading += "/"
	}
	var out []string
	for _, reading := range readings {
		segments := strings.Split(reading, "/")[1:]
		if reading == "" {
			segments = nil
		}
		var matching []*plan.Effective
		for _, e := range set.Limits {
			accepts, empty := matchSegments(strings.Split(e.Pattern(), "/")[1:], segments)
			accepts = accepts && (len(e.Methods()) == 0 || slices.Contains(e.Methods(), method))
			if accepts && e.Limit.Mode != limit.Off && (empty || !slices.Contains(segments, "")) {
				matching = append(matching, e)
			}
		}
		for _, e := range matching {
			if !slices.ContainsFunc(matching, func(o *plan.Effective) bool {
				return o != e && e.Group != "" && o.Group == e.Group && o.Limit.Mode == limit.Enforce &&
					route.Compare(ruleOf(o), ruleOf(e)) < 0
			}) {
				out = append(out, e.Limit.ID+"=-:1")
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// matchSegments reports whether a pattern matches segments, and whether one of its parameters is then empty.
func matchSegments(pattern, segments []string) (matches, empty bool) {
	for i, p := range pattern {
		if p == "**" {
			return true, empty
		}
		if i == len(segments) || p != "*" && p[0] != '{' && p != segments[i] {
			return false, false
		}
		empty = empty || segments[i] == ""
	}
	return len(pattern) == len(segments), empty
}

func ruleOf(e *plan.Effective) route.Rule {
	p, err := route.ParsePattern(e.Pattern())
	if err != nil {
		panic(err)
	}
	return route.Rule{Methods: e.Methods(), Pattern: p}
}

// Guarantees that a limit with mode off costs nothing and displaces nothing.
func TestOff(t *testing.T) {
	set := parse(t, group("match: {pathPattern: /a/**}", "mode: off, match: {pathPattern: /a/b}")).Plans()[0].Set()
	if got := charged(set.AppendCharges(nil, request("GET", "/a/b"))); !slices.Equal(got, []string{"l0=-:1"}) {
		t.Errorf("charges %q, want only l0", got)
	}
}

func TestRouted(t *testing.T) {
	open := parse(t, planWithLimit("tiers: [{period: 1s, threshold: 1}]"))
	declared := parse(t, planWithLimit("tiers: [{period: 1s, threshold: 1}]")+"routes: [{methods: [GET], "+
		"pathPattern: /a/*}]\n")
	for _, c := range []struct {
		method, path   string
		open, declared bool
	}{
		{"GET", "/a/b", true, true}, {"PUT", "/a/b", true, false}, {"GET", "/a", true, false},
	} {
		a := request(c.method, c.path)
		if got := open.Routed(c.method, a.Path); got != c.open {
			t.Errorf("without routes: Routed(%s %s) = %v, want %v", c.method, c.path, got, c.open)
		}
		if got := declared.Routed(c.method, a.Path); got != c.declared {
			t.Errorf("with routes: Routed(%s %s) = %v, want %v", c.method, c.path, got, c.declared)
		}
	}
}

// Guarantees that declared routes admit no path that a server behind the gateway could read as an undeclared one: each
// reading of a path must be declared.
func TestEveryReadingIsRouted(t *testing.T) {
	c := parse(t, planWithLimit("tiers: [{period: 1s, threshold: 1}]")+`routes:
- {methods: [GET], pathPattern: /a/*}
- {pathPattern: /health}
- {pathPattern: "/files/**"}
- {pathPattern: "/accounts/*/public"}
- {pathPattern: "/café/100%25/*"}
`)
	for path, want := range map[string]bool{
		"/a/b": true, "/a/b/": true, "/a/b%20c": true, "/a/%C3%A9": true, "/a/b;v=1": true, "/a/b%3Fx": true,
		"/%61/b":                               true,
		"/files/https%3A%2F%2Fexample.com%2Fx": true, "/files/a//b": true, "/files/x/../y": true,
		"/caf%C3%A9/100%25/a%20b": true, "/caf%c3%a9/100%25/x/": true,

		"/health/": true, "/accounts/1/public": true, "/accounts/1/public/": true,
		"/accounts/1;/public": false, "/accounts/1%3B/public": false, "/accounts/1%253b/public": false,
		"/accounts/1;v=1/public": false, "/a//b": false, "/a/b//": false, "/health//": false, "/a/": false,
		"/accounts//public": false, "/accounts/1%00/public": false,

		"/a/%2e%2e%2Fadmin": false, "/a/..%2Fadmin": false, "/a/..;/admin": false, `/a/..\admin`: false,
		"/a/../admin":             false,
		"/a/%252e%252e%252fadmin": false, "/a/b%2Fc": false, "/a/b/..": false, "/admin/../a/b": false,
		"/admin%2F..%2Fa/b": false, "/files/../admin": false, "/files/..%2Fadmin": false, "//admin/a/b": false,
		"//a/b": false, "/admin;/../health": false, "/A/b": false, "/caf%25C3%25A9/100%25/x": false, "/%2561/b": false,
		"/a/%" + strings.Repeat("25", 110) + "41/../b": false, // has more readings than are followed
	} {
		if got := c.Routed("GET", request("GET", path).Path); got != want {
			t.Errorf("Routed(GET %s) = %v, want %v", path, got, want)
		}
	}
	if c.Routed("PUT", request("PUT", "/health%2F..%2Fa%2Fb").Path) {
		t.Error("Routed accepts a path because one reading of it is a route of another method")
	}
	methods := parse(t, planWithLimit("tiers: [{period: 1s, threshold: 1}]")+"routes: [{methods: [GET]}]\n")
	for _, path := range []string{"/a/b", "/a/..%2Fadmin", "/%" + strings.Repeat("25", 110) + "41/../a"} {
		if !methods.Routed("GET", request("GET", path).Path) || methods.Routed("PUT", request("PUT", path).Path) {
			t.Errorf("a route of GET and any path: GET %.40s is refused, or PUT is accepted", path)
		}
	}
}

// many returns a plan of n limits on as many routes, and a few limits for all routes.
func many(n int) string {
	var b strings.Builder
	b.WriteString("plans:\n- id: p\n  limits:\n  - {id: all, algorithm: token_bucket, rate: 10, period: 1s}\n")
	for i := range n {
		fmt.Fprintf(&b, "  - {id: l%d, per: [endpoint], group: g, match: {methods: [GET], pathPattern: "+
			"\"/v1/r%d/{id}/x\"}, tiers: [{period: 1s, threshold: 5}]}\n", i, i)
	}
	b.WriteString("  - {id: rest, per: subject, group: g, match: {pathPattern: /v1/**}, tiers: [{period: 1s, " +
		"threshold: 5}], cost: {trustedHeader: x-cost, max: 9}}\n")
	return b.String()
}

// Guarantees that charging does not allocate, since one allocation for each of 100,000 requests per second would be
// noticeable.
func TestAppendChargesDoesNotAllocate(t *testing.T) {
	set := parse(t, many(500)).Plans()[0].Set()
	hit, miss := request("GET", "/v1/r77/5/x"), request("PUT", "/v1/r77/5/x")
	miss.Subject, miss.Header = "u", func(string) (string, bool) { return "12", true }
	dst := make([]limit.Charge, 0, 8)
	for _, c := range []struct {
		a    *plan.Attributes
		want []string
	}{
		{hit, []string{"all=-:1", "l77=GET /v1/r77/{id}/x:1"}},
		{miss, []string{"all=-:1", "rest=u:9"}},
	} {
		if got := charged(set.AppendCharges(nil, c.a)); !slices.Equal(got, c.want) {
			t.Fatalf("%s charges %q, want %q", c.a.Method, got, c.want)
		}
		if n := testing.AllocsPerRun(100, func() { dst = set.AppendCharges(dst[:0], c.a) }); n != 0 {
			t.Errorf("%s allocates %v times, want 0", c.a.Method, n)
		}
	}
}

// Guarantees that a limit that gets or loses a match or a group keeps what was consumed: only its identity names its
// counters.
func TestMatchAndGroupKeepCounters(t *testing.T) {
	inMemory := memorytest.New(t)
	inRedis, err := redis.New(t.Context(), redis.Config{Addrs: []string{redistest.Start(t).Addr},
		Deadline: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = inRedis.Close() })
	scopes := map[string]string{
		"all requests": "",
		"a method":     "match: { methods: [GET] }, ",
		"any case":     `match: { pathPattern: "/v1/**", caseInsensitive: true }, `,
		"HEAD too":     "match: { methods: [GET], impliesHead: true }, ",
		"a path":       `match: { pathPattern: "/v1/**" }, `,
		"a group":      `match: { pathPattern: "/v1/**" }, group: g, `,
	}
	for name, store := range map[string]limit.Store{"memory": inMemory, "Redis": inRedis} {
		for from, before := range scopes {
			for to, after := range scopes {
				owner := limit.Owner{Kind: limit.Tenant, Name: from + " to " + to}
				decide := func(scope string) bool {
					set := parse(t, "plans: [ { id: p, limits: [ { id: hourly, "+scope+
						"algorithm: token_bucket, rate: 1, period: 24h } ] } ]").Plans()[0].Set()
					req := &limit.Request{Owner: owner, Charges: set.AppendCharges(nil, request("GET", "/v1/x"))}
					var d limit.Decision
					if err := store.Decide(t.Context(), req, time.Now(), &d); err != nil || len(d.Results) != 1 {
						t.Fatalf("%s: %s with %q: %d limits, %v", name, owner.Name, scope, len(d.Results), err)
					}
					return d.Allowed
				}
				if !decide(before) {
					t.Errorf("%s: from %s to %s: the first request is denied, want it admitted", name, from, to)
				}
				if decide(after) {
					t.Errorf("%s: from %s to %s: after the change a request is admitted: the units used before it "+
						"are forgotten", name, from, to)
				}
			}
		}
	}
}
