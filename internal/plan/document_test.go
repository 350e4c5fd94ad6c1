package plan_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/route"
)

// FuzzSplit guarantees that a plans file loses nothing when it is split into documents: if these are compiled one by
// one, they limit every tenant, address and anonymous call by the same numbers as the file does; and that splitting is
// repeatable.
func FuzzSplit(f *testing.F) {
	for _, text := range splitCases(f) {
		f.Add([]byte(text), "PUT", "/v1/organizations/7/product/1")
	}
	f.Fuzz(func(t *testing.T, data []byte, method, raw string) {
		src := configyaml.Source("f", data)
		c, err := plan.ParseAt(noon, src)
		documents, splitErr := plan.Split(noon, src)
		if err != nil {
			if splitErr == nil || splitErr.Error() != err.Error() {
				t.Fatalf("%q: Split says %v, Parse %v", data, splitErr, err)
			}
			return
		}
		if splitErr != nil {
			t.Fatalf("%q: Split says %v, Parse accepts it", data, splitErr)
		}
		checkSplit(t, c, documents, method, raw)
		checkJSON(t, src, documents)
	})
}

// splitCases are plans files with spellings that a document writes in another way.
func splitCases(tb testing.TB) []string {
	tb.Helper()
	cases := []string{designExample, boosted, many(3), readsPlan("  caseInsensitive: true\n", ", impliesHead: true"),
		"slas:\n- {id: get, enabled: false, match: {methods: GET, pathPattern: /p/*}, tiers: [{period: 10, " +
			"threshold: 1_000}]}\n" + "plans: [{id: p, limits: []}]\ntenants: [{id: " +
			"\"a\\u2028\\ufeff\\\"<b>\\\\é😀\"}, {id: b, plan: p}]\n",
		"plans:\n- &p {id: p, limits: [&l {id: a, algorithm: token_bucket, rate: +5, period: 1m}]}\n" +
			"ipLimits: [*l]\nipv6Prefix: 4_8\nanonymousPlan: p\ntenants:\n- {id: '7', plan: p, boosts: [{id: a, " +
			"factor: 02.50, until: 2026-07-01T02:00:00.5+02:00}]}\n",
	}
	for _, name := range []string{"../../cmd/sluice/example.yaml", "../../cmd/sluice/testdata/plans/good.yaml"} {
		text, err := os.ReadFile(name)
		if err != nil {
			tb.Fatal(err)
		}
		cases = append(cases, string(text))
	}
	return cases
}

// compiled is a configuration that was compiled from documents.
type compiled struct {
	plans    map[string]*plan.Plan
	tenants  []*plan.Tenant
	settings *plan.Settings
	keys     []plan.Key
}

func compile(t testing.TB, documents []plan.Document) compiled {
	t.Helper()
	c := compiled{plans: map[string]*plan.Plan{}}
	for _, d := range documents {
		var err error
		switch d.Kind {
		case plan.KindPlan:
			c.plans[d.ID], err = plan.CompilePlan(d)
		case plan.KindSettings:
			c.settings, err = plan.CompileSettings(d)
		case plan.KindTenant:
			var read *plan.TenantDocument
			if read, err = plan.ReadTenant(d); err == nil {
				var tenant *plan.Tenant
				tenant, err = read.Compile(c.plans[read.PlanID()])
				c.tenants = append(c.tenants, tenant)
			}
		case plan.KindKey:
			var key *plan.Key
			if key, err = plan.CompileKey(d); err == nil {
				c.keys = append(c.keys, *key)
			}
		}
		if err != nil {
			t.Fatalf("%s does not compile: %v\n%s", d.Name(), err, d.Body)
		}
	}
	return c
}

func checkSplit(t *testing.T, want *plan.Config, documents []plan.Document, method, raw string) {
	t.Helper()
	for _, d := range documents {
		if err := events.CheckCanonical(d.Body); err != nil { // the body is stored and hashed as it is
			t.Fatalf("%s: %v\n%s", d.Name(), err, d.Body)
		}
	}
	got := compile(t, documents)
	path := route.Clean(raw)
	a := &plan.Attributes{Method: method, Path: &path, Subject: raw, IP: "i"}
	same := func(what string, got, want *plan.Set) {
		t.Helper()
		if g, w := describe(got, a), describe(want, a); g != w {
			t.Fatalf("%s is, through documents,\n%s\nwant\n%s", what, g, w)
		}
	}
	if len(got.plans) != len(want.Plans()) || len(got.tenants) != len(want.Tenants()) {
		t.Fatalf("%d plans and %d tenants, want %d and %d", len(got.plans), len(got.tenants), len(want.Plans()),
			len(want.Tenants()))
	}
	for _, p := range want.Plans() {
		same("plan "+p.ID, got.plans[p.ID].Set(), p.Set())
	}
	for _, tenant := range got.tenants {
		w, ok := want.Tenant(tenant.ID)
		if !ok || w.Plan != tenant.Plan || w.Suspended != tenant.Suspended || !slices.Equal(w.Cells, tenant.Cells) {
			t.Fatalf("tenant %+v, want %+v", tenant, w)
		}
		for _, now := range []time.Time{noon, {}, noon.AddDate(0, 0, 14),
			noon.AddDate(0, 0, 15).Add(12*time.Hour + time.Second/2), noon.AddDate(1, 0, 0)} {
			same(fmt.Sprintf("tenant %q at %s", tenant.ID, now), tenant.Limits(now), w.Limits(now))
		}
	}
	same("ipLimits", got.settings.IPLimits(), want.IPLimits())
	if got.settings.IPv6Prefix() != want.IPv6Prefix() {
		t.Fatalf("settings: ipv6Prefix %d, want %d", got.settings.IPv6Prefix(), want.IPv6Prefix())
	}
	if got.settings.AnonymousPlan() != want.AnonymousPlan() ||
		got.settings.Routed(method, &path) != want.Routed(method, &path) {
		t.Fatalf("settings: anonymousPlan %q routed %v, want %q %v", got.settings.AnonymousPlan(),
			got.settings.Routed(method, &path),
			want.AnonymousPlan(), want.Routed(method, &path))
	}
	if len(got.keys) != len(want.Keys()) || len(got.keys) > 0 && !reflect.DeepEqual(got.keys, want.Keys()) {
		t.Fatalf("keys %+v, want %+v", got.keys, want.Keys())
	}
	for _, d := range documents {
		var again any
		if err := json.Unmarshal(d.Body, &again); err != nil {
			t.Fatalf("%s is not JSON: %v\n%s", d.Name(), err, d.Body)
		}
	}
}

// describe returns everything that a set says, except for the places of its settings.
func describe(s *plan.Set, a *plan.Attributes) string {
	var b strings.Builder
	for _, e := range s.Limits {
		fmt.Fprintf(&b, "%s %q %v %s:", e.Limit.ID, e.Group, e.Methods(), e.Pattern())
		for _, v := range e.Values() {
			fmt.Fprintf(&b, " %s=%s", v.Name, v.Text)
		}
		b.WriteString("\n")
	}
	fmt.Fprintln(&b, charged(s.AppendCharges(nil, a)))
	return b.String()
}

// Guarantees that equal configurations give equal documents, so that changing only the spelling of a file changes no
// document.
func TestSplitIsCanonical(t *testing.T) {
	one := `plans: [{limits: [{rate: 1_000, period: 1s, algorithm: token_bucket, id: a}], id: p}]
tenants: [{id: t, plan: p, boosts: [{id: a, factor: 2.50, until: 2026-07-01T02:00:00+02:00}]}]`
	two := `{"plans":[{"id":"p","limits":[{"id":"a","algorithm":"token_bucket","rate":1000,"period":"1s"}]}],
"tenants":[{"plan":"p","id":"t","boosts":[{"until":"2026-07-01T00:00:00Z","id":"a","factor":2.5}]}]}`
	a, errA := plan.Split(noon, configyaml.Source("a", []byte(one)))
	b, errB := plan.Split(noon, configyaml.Source("b", []byte(two)))
	if errA != nil || errB != nil || !reflect.DeepEqual(a, b) {
		t.Fatalf("the documents of equal sources differ: %v %v\n%s\n%s", errA, errB, a, b)
	}
	var got []string
	for _, d := range a {
		got = append(got, d.Name()+" "+string(d.Body))
	}
	want := []string{
		`plan "p" {"id":"p","limits":[{"algorithm":"token_bucket","id":"a","period":"1s","rate":1000}]}`,
		`settings {}`,
		`tenant "t" {"boosts":[{"factor":2.5,"id":"a","until":"2026-07-01T00:00:00Z"}],"id":"t","plan":"p"}`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("documents\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Guarantees that a plans file and its JSON mean the same, and that the JSON is in canonical form: a function with the
// JSON in its zip decides as the original file says.
func TestJSON(t *testing.T) {
	for _, text := range append(splitCases(t), "ipv6Prefix: 56\n", "tenants: []\nplans: []\n") {
		source := configyaml.Source("f", []byte(text))
		documents, err := plan.Split(noon, source)
		if err != nil {
			t.Fatal(err)
		}
		checkJSON(t, source, documents)
	}
	if body, err := plan.JSON(noon, configyaml.Source("f", []byte("plans: 1"))); err == nil || body != nil {
		t.Errorf("%s, %v; want an error", body, err)
	}
}

// checkJSON compares the documents of a good source with those of its JSON.
func checkJSON(t *testing.T, source plan.Source, want []plan.Document) {
	t.Helper()
	body, err := plan.JSON(noon, source)
	if err != nil || !json.Valid(body) {
		t.Fatalf("%q is not JSON: %v\n%s", source.Data, err, body)
	}
	written := plan.Source{Name: "f.json", Data: body}
	if got, err := plan.Split(noon, written); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%s\nis %s, %v; want %s", body, got, err, want)
	}
	if again, err := plan.JSON(noon, written); err != nil || !bytes.Equal(again, body) {
		t.Fatalf("the JSON\n%s\nis converted again to\n%s, %v; want it unchanged", body, again, err)
	}
}

// Guarantees that several files are split as one configuration: lists of the same name are joined.
func TestSplitOfSeveralFiles(t *testing.T) {
	sources := []plan.Source{
		configyaml.Source("a", []byte("slas: [{id: a, tiers: [{period: 1, threshold: 1}]}]\nipLimits: [{id: x, "+
			"tiers: [{period: 1, threshold: 5}]}]")),
		configyaml.Source("b", []byte("slas: [{id: b, tiers: [{period: 1, threshold: 2}]}]\nipLimits: [{id: y, "+
			"tiers: [{period: 1, threshold: 6}]}]\ntenants: [{id: t}]")),
	}
	want, err := plan.ParseAt(noon, sources...)
	if err != nil {
		t.Fatal(err)
	}
	documents, err := plan.Split(noon, sources...)
	if err != nil {
		t.Fatal(err)
	}
	checkSplit(t, want, documents, "GET", "/")
	if len(documents) != 3 {
		t.Errorf("%d documents, want the plan slas, settings and one tenant", len(documents))
	}
}

// Guarantees that a boost that was valid when it was written stays valid: neither the passing of time nor a clock that
// is behind may take a tenant's limits away.
func TestStoredBoostIsNotMeasuredAgain(t *testing.T) {
	text := "plans: [{id: p, limits: [{id: a, tiers: [{period: 1s, threshold: 3}]}]}]\n" +
		"tenants: [{id: t, plan: p, boosts: [{id: a, factor: 2, until: 2026-07-01T00:00:00Z}]}]"
	documents, err := plan.Split(noon, configyaml.Source("f", []byte(text)))
	if err != nil {
		t.Fatal(err)
	}
	tenant := compile(t, documents).tenants[0]
	end := time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)
	for now, want := range map[time.Time]string{end.Add(-1): "a 6", end: "a 3", end.AddDate(-9, 0, 0): "a 6"} {
		if got := numbers(tenant.Limits(now)); got != want {
			t.Errorf("limits at %s = %s, want %s", now, got, want)
		}
	}
	bounded := `{"id":"t","plan":"p","boosts":[{"id":"a","factor":2,"from":"2026-01-01T00:00:00Z",` +
		`"until":"2028-01-01T00:00:00Z"}]}`
	if _, err := plan.ReadTenant(plan.Document{Kind: plan.KindTenant, ID: "t", Body: []byte(bounded)}); err == nil {
		t.Error("a boost of two years with both ends is accepted, want an error")
	}
}

// Guarantees that a document that is not valid is refused, with its name and with what is wrong in it.
func TestBadDocuments(t *testing.T) {
	p, err := plan.CompilePlan(plan.Document{Kind: plan.KindPlan, ID: "p",
		Body: []byte(`{"id":"p","limits":[{"id":"a","tiers":[{"period":1,"threshold":3}]}]}`)})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		kind plan.Kind
		id   string
		body string
		want string
	}{
		{plan.KindPlan, "p", `{"id":"p","limits":[{"id":"a","tiers":[{"period":1,"threshold":0}]}]}`,
			`plan "p":1:64: limits[0].tiers[0].threshold: 0 is outside`},
		{plan.KindPlan, "q", `{"id":"p","limits":[]}`, `plan "q":1:7: id: the document's id is "p", want "q"`},
		{plan.KindPlan, "p", ``, `plan "p": the document is not valid JSON`},
		{plan.KindPlan, "p", "id: p\nlimits: []", `plan "p": the document is not valid JSON`},
		{plan.KindPlan, "p", `null`, `plan "p": the document is empty`},
		{plan.KindPlan, "p", `[]`, `plan "p":1:1: want a plan (a mapping), got a list`},
		{plan.KindSettings, plan.SettingsID, `{"plans":[]}`, `settings:1:2: unknown key "plans" in settings`},
		{plan.KindSettings, plan.SettingsID, `{"ipLimits":7,"routes":[{}]}`,
			`settings:1:13: ipLimits: want a list of limits`},
		{plan.KindSettings, plan.SettingsID, `[]`, `settings:1:1: want settings (a mapping), got a list`},
		{plan.KindKey, "k", `{"id":"k","tenant":"t","hash":"00","pepper":"dev"}`,
			`key "k":1:31: hash: want 64 hex digits`},
		{plan.KindKey, "k", `7`, `key "k":1:1: want a key (a mapping), got the integer 7`},
		{plan.KindTenant, "t", `{"id":"t","plan":"p","limit":1}`, `tenant "t":1:22: unknown key "limit" in a tenant`},
		{plan.KindTenant, "t", `"t"`, `tenant "t":1:1: want a tenant (a mapping)`},
		{plan.KindTenant, "t", `{"id":"t","plan":"p","overrides":[{"id":"b","threshold":1}]}`,
			`tenant "t":1:41: overrides[0].id: plan p has no limit "b"`},
		{plan.KindTenant, "t", `{"id":"t","plan":"other"}`, `tenant "t":1:18: plan: the plan at hand is not "other"`},
	} {
		d := plan.Document{Kind: c.kind, ID: c.id, Body: []byte(c.body)}
		var err error
		switch c.kind {
		case plan.KindPlan:
			_, err = plan.CompilePlan(d)
		case plan.KindSettings:
			_, err = plan.CompileSettings(d)
		case plan.KindKey:
			_, err = plan.CompileKey(d)
		case plan.KindTenant:
			var read *plan.TenantDocument
			if read, err = plan.ReadTenant(d); err == nil {
				_, err = read.Compile(p)
			}
		}
		var bad *plan.Error
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: error %v, want %s", d.Name(), c.body, err, c.want)
		}
	}
	if _, err := plan.CompilePlan(plan.Document{Kind: plan.KindTenant, ID: "p",
		Body: []byte(`{"id":"p","limits":[]}`)}); err == nil {
		t.Error("CompilePlan accepts the document of a tenant, want an error")
	}
}

// Guarantees that a tenant may have no plan yet: it is then compiled without limits, and PlanID is empty.
func TestTenantWithoutPlan(t *testing.T) {
	read, err := plan.ReadTenant(plan.Document{Kind: plan.KindTenant, ID: "t",
		Body: []byte(`{"id":"t","cells":["eu-1"]}`)})
	if err != nil {
		t.Fatal(err)
	}
	tenant, err := read.Compile(nil)
	if err != nil || tenant.Plan != "" || len(tenant.Limits(noon).Limits) != 0 ||
		!slices.Equal(tenant.Cells, []string{"eu-1"}) {
		t.Errorf("tenant %+v, %v; want one without plan and limits in eu-1", tenant, err)
	}
}

// Guarantees that 10,000 tenants of one plan share its limits: each takes less than 1,500 bytes, including its read
// document.
func TestTenantsShareTheirPlan(t *testing.T) {
	p := bigPlan(t)
	const tenants = 10_000
	kept := make([]any, 0, 2*tenants)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range tenants {
		read, tenant := compileTenant(t, p, fmt.Sprintf("tenant-%05d", i))
		if tenant.Limits(noon) != p.Set() {
			t.Fatal("a tenant without overrides has a set of its own")
		}
		kept = append(kept, read, tenant)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := int64(after.HeapAlloc-before.HeapAlloc) / tenants
	t.Logf("%d bytes for each of %d tenants", each, tenants)
	if each > 1500 {
		t.Errorf("%d bytes for each tenant, want at most 1500", each)
	}
	runtime.KeepAlive(kept)
}

func bigPlan(t testing.TB) *plan.Plan {
	t.Helper()
	var limits []string
	for i := range 20 {
		limits = append(limits, fmt.Sprintf(`{"id":"l%d","match":{"pathPattern":"/v1/r%d/*"},"tiers":[{"period":10,`+
			`"threshold":100}]}`, i, i))
	}
	p, err := plan.CompilePlan(plan.Document{Kind: plan.KindPlan, ID: "p",
		Body: []byte(`{"id":"p","limits":[` + strings.Join(limits, ",") + `]}`)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func compileTenant(t testing.TB, p *plan.Plan, id string) (*plan.TenantDocument, *plan.Tenant) {
	t.Helper()
	read, err := plan.ReadTenant(plan.Document{Kind: plan.KindTenant, ID: id,
		Body: []byte(`{"id":"` + id + `","plan":"p"}`)})
	if err != nil {
		t.Fatal(err)
	}
	tenant, err := read.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	return read, tenant
}

// FuzzDocument guarantees that no body, of whatever kind, can stop the program that compiles it: each gives a result
// with limits that the core accepts, or problems under the document's name.
func FuzzDocument(f *testing.F) {
	for _, text := range splitCases(f) {
		documents, err := plan.Split(noon, configyaml.Source("f", []byte(text)))
		if err != nil {
			f.Fatal(err)
		}
		for _, d := range documents {
			f.Add(string(d.Kind), d.ID, d.Body)
		}
	}
	f.Add("tenant", "t", []byte(`{"id":"t"}`))
	f.Add("plan", "p", []byte(`null`))
	p := bigPlan(f)
	a := request("GET", "/v1/r1/x")
	f.Fuzz(func(t *testing.T, kind, id string, body []byte) {
		d := plan.Document{Kind: plan.Kind(kind), ID: id, Body: body}
		var sets []*plan.Set
		_, keyErr := plan.CompileKey(d)
		made, planErr := plan.CompilePlan(d)
		settings, settingsErr := plan.CompileSettings(d)
		read, tenantErr := plan.ReadTenant(d)
		good := 0
		for _, err := range []error{keyErr, planErr, settingsErr, tenantErr} {
			var bad *plan.Error
			if err == nil {
				good++
			} else if !errors.As(err, &bad) || len(bad.Problems) == 0 || bad.Problems[0].File != d.Name() {
				t.Fatalf("%s %q: error %v", d.Name(), body, err)
			}
		}
		if good > 1 {
			t.Fatalf("the document %s %q is valid as %d kinds, want at most one", d.Name(), body, good)
		}
		if planErr == nil {
			sets = append(sets, made.Set())
		}
		if settingsErr == nil {
			sets = append(sets, settings.IPLimits())
		}
		if tenantErr == nil {
			if tenant, err := read.Compile(p); err == nil {
				sets = append(sets, tenant.Sets()...)
			}
			if tenant, err := read.Compile(nil); err == nil {
				sets = append(sets, tenant.Limits(noon))
			}
		}
		for _, set := range sets {
			checkSet(t, body, set, a)
		}
	})
}

// Guarantees that a document is read in the same way whether its body escapes characters or not. The control tables
// store the form with the fewest escapes, in which the name of a tenant must be read unchanged.
func TestUnescapedBodies(t *testing.T) {
	for _, id := range []string{"a\u2028b", "a\u2029", " \u2028 c", "\ufeffd", "e\ufffe", "f\uffff", "<g> & h"} {
		body := []byte(`{"id":"` + id + `"}`)
		tenant, err := plan.ReadTenant(plan.Document{Kind: plan.KindTenant, ID: id, Body: body})
		if err != nil || tenant.PlanID() != "" {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// Guarantees that an empty SLA form is the document of a plan without limits, which a cell can read.
func TestEmptySLAForm(t *testing.T) {
	documents, err := plan.Split(noon, configyaml.Source("f.yaml", []byte("slas: []\n")))
	if err != nil || len(documents) == 0 || string(documents[0].Body) != `{"id":"slas","limits":[]}` {
		t.Fatalf("Split of an empty form = %s, %v; want the plan slas without limits", documents, err)
	}
	if _, err := plan.CompilePlan(documents[0]); err != nil {
		t.Errorf("CompilePlan of the empty form: %v, want no error", err)
	}
}
