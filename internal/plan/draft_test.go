package plan_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/plan"
)

// Guarantees that a draft of files that need no server has the documents of these files, and that any other draft can
// be checked repeatedly, each time with all problems and their places.
func TestDraft(t *testing.T) {
	whole := configyaml.Source("whole.yaml", []byte(`
plans: [ { id: pro, limits: [ { id: burst, algorithm: token_bucket, rate: 100, period: 1s } ] } ]
tenants: [ { id: acme, plan: pro, overrides: [ { id: burst, rate: 500 } ] } ]
`))
	want, err := plan.Split(noon, whole)
	if err != nil {
		t.Fatal(err)
	}
	d, err := plan.ReadDraft(noon, whole)
	if err != nil || !reflect.DeepEqual(d.Documents(), want) {
		t.Errorf("the documents are %v, %v; want %v", d.Documents(), err, want)
	}
	if err := d.Check(plan.Base{}); err != nil {
		t.Errorf("Check without a server = %v, want no error", err)
	}
	pro, err := plan.CompilePlan(want[0])
	if err != nil {
		t.Fatal(err)
	}
	settings, err := plan.CompileSettings(plan.Document{Kind: plan.KindSettings, ID: plan.SettingsID,
		Body: []byte(`{"routes":[{"pathPattern":"/a"}]}`)})
	if err != nil {
		t.Fatal(err)
	}
	base := plan.Base{Plans: map[string]*plan.Plan{"pro": pro, "unreadable": nil},
		Tenants: map[string]string{"acme": "pro", "planless": ""}, Settings: settings}
	for text, want := range map[string]string{
		"tenants: [ { id: acme, overrides: [ { id: burst, rate: 5 } ] }, { id: planless }, { id: new, plan: " +
			"unreadable } ]": "",
		"plans: [ { id: p, limits: [ { id: a, match: { pathPattern: \"/a\" }, tiers: [ { period: 1s, threshold: 1 } " +
			"] } ] } ]\nroutes: [ { pathPattern: \"/b\" } ]": "",
		"plans: [ { id: p, limits: [ { id: a, match: { pathPattern: \"/c\" }, tiers: [ { period: 1s, threshold: 1 } " +
			"] } ] } ]\nroutes: [ { pathPattern: \"/b\" } ]": "f:1:60: plans[0].limits[0].match.pathPattern: " +
			"unreachable: no declared route matches any request that this limit does",
		"anonymousPlan: prro\ntenants: [ { id: new }, { id: acme, overrides: [ { id: bursts, rate: 5 } ] } ]": "" +
			`f:1:16: anonymousPlan: ` +
			`there is no plan "prro", neither in the files nor on the server (did you mean "pro"?)
f:2:12: tenants[0]: plan is missing: the id of a plan, since the server has no tenant "new"
f:2:56: tenants[1].overrides[0].id: plan pro has no limit "bursts" (did you mean "burst"?)`,
	} {
		d, err := plan.ReadDraft(noon, configyaml.Source("f", []byte(text)))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		for range 2 {
			got := ""
			if err := d.Check(base); err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("%s\ngot\n%s\nwant\n%s", text, got, want)
			}
		}
	}
	d, err = plan.ReadDraft(noon, configyaml.Source("f", []byte("tenants: [ { id: acme, plan: pro } ]")))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Check(plan.Base{Pruned: true}); err == nil || !strings.HasSuffix(err.Error(),
		`there is no plan "pro", neither in the files nor on the server after the prune`) {
		t.Errorf("Check with a plan that is pruned = %v, want an error that says so", err)
	}
}
