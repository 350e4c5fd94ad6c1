package infra_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsapigateway"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra"
)

var examplePlans = `plans:
  - id: pro
    limits:
      - { id: burst, algorithm: token_bucket, rate: 100, period: 1s, burst: 200 }
      - { id: minute, tiers: [ { period: 1m, threshold: 60000 } ] }
      - { id: put, match: { methods: [PUT] }, tiers: [ { period: 1s, threshold: 1 } ] }
  - id: free
    limits:
      - { id: second, tiers: [ { period: 10s, threshold: 20 } ] }
      - { id: each, per: subject, tiers: [ { period: 1s, threshold: 1 } ] }
  - id: slow
    limits: [ { id: leak, algorithm: leaky_bucket, rate: 5, period: 1s } ]
  - id: nobody
    limits: [ { id: l, tiers: [ { period: 1s, threshold: 1 } ] } ]
tenants:
  - { id: acme, plan: pro }
  - { id: initech, plan: pro, overrides: [ { id: burst, rate: 300, burst: 400 } ] }
  - { id: globex, plan: free }
  - { id: umbrella, plan: slow, boosts: [ { id: leak, factor: 2, until: ` +
	time.Now().AddDate(0, 1, 0).UTC().Format(time.RFC3339) + ` } ] }
`

// apiWithMethods returns a stack with a REST API. wants says whether its one method requires an API key.
func apiWithMethods(id string, wants bool, app awscdk.App) (awscdk.Stack, awsapigateway.RestApi) {
	s := awscdk.NewStack(app, &id, &awscdk.StackProps{Env: &awscdk.Environment{Account: jsii.String("123456789012"),
		Region: jsii.String("eu-west-1")}})
	api := awsapigateway.NewRestApi(s, jsii.String("Api"),
		&awsapigateway.RestApiProps{CloudWatchRole: jsii.Bool(false)})
	api.Root().AddMethod(jsii.String("GET"), awsapigateway.NewMockIntegration(nil),
		&awsapigateway.MethodOptions{ApiKeyRequired: &wants})
	return s, api
}

// Guarantees the rates of the usage plans: for each plan with tenants, the rate is above what the limits admit of all
// these tenants together in any interval. Each plan has its own key on the stage.
func TestUsagePlans(t *testing.T) {
	out := *outdir(t)
	app := awscdk.NewApp(&awscdk.AppProps{AnalyticsReporting: jsii.Bool(false), Outdir: &out})
	s, api := apiWithMethods("Floored", true, app)
	made, err := infra.NewUsagePlans(s, "Floor", &infra.UsagePlansProps{Stage: api.DeploymentStage(),
		Plans:   []byte(examplePlans),
		Tenants: map[string]int{"free": 1000}})
	if err != nil {
		t.Fatal(err)
	}
	if len(made.Keys) != 3 || made.Keys["nobody"] != nil {
		t.Errorf("there are keys for %v", made.Keys)
	}
	app.Synth(nil)
	raw, err := os.ReadFile(filepath.Join(out, "Floored.template.json"))
	if err != nil {
		t.Fatal(err)
	}
	one := decode(t, raw)
	want := map[string]string{
		"pro":  "480 720",    // 100 and 300 requests a second, by buckets of 200 and 400, plus a fifth
		"free": "2400 48000", // 1,000 tenants of 20 in 10 s; two windows can meet, so 40 at a time
		"slow": "12 2",       // 5 a second, twice that while boosted; one at a time
	}
	keys := map[string]bool{}
	for id, r := range one.ofType("AWS::ApiGateway::UsagePlanKey") {
		plan, key := fmt.Sprint(get(r.get("UsagePlanId"), "Ref")), fmt.Sprint(get(r.get("KeyId"), "Ref"))
		if one.Resources[key].get("Value") != nil || one.Resources[key].get("Enabled") != true || keys[key] ||
			r.get("KeyType") != "API_KEY" {
			t.Errorf("%s: the key has a fixed value, is disabled, or belongs to two plans", id)
		}
		keys[key] = true
		usage := one.Resources[plan]
		description := fmt.Sprint(usage.get("Description"))
		name := description[strings.LastIndex(description, " ")+1:]
		if got := fmt.Sprint(usage.get("Throttle", "RateLimit"), " ",
			usage.get("Throttle", "BurstLimit")); got != want[name] {
			t.Errorf("the usage plan of %s admits %s, want %s", name, got, want[name])
		}
		if get(usage.get("ApiStages", 0, "ApiId"), "Ref") == nil || get(usage.get("ApiStages", 0, "Stage"),
			"Ref") == nil {
			t.Errorf("the usage plan of %s names no stage", name)
		}
		delete(want, name)
	}
	if len(want) != 0 {
		t.Errorf("these plans have no usage plan: %v", want)
	}
}

// Guarantees that a plan for which no rate can be computed is refused, in one line that says why. A rate that is too
// low would deny requests within the limits, and one that is too high would not protect anything.
func TestUsagePlansRefusals(t *testing.T) {
	app := awscdk.NewApp(&awscdk.AppProps{AnalyticsReporting: jsii.Bool(false), Outdir: outdir(t)})
	s, api := apiWithMethods("Refused", true, app)
	plans := func(limits string) string {
		return "plans: [ { id: p, limits: [ " + limits + " ] } ]\ntenants: [ { id: acme, plan: p } ]\n"
	}
	const unbounded = `plan p: tenant "acme": no limit covers all requests of a tenant`
	n := 0
	for name, tt := range map[string]struct {
		plans    string
		tenants  map[string]int
		headroom int
		want     string
	}{
		"matched": {plans("{ id: l, match: { methods: [PUT] }, tiers: [ { period: 1s, threshold: 1 } ] }"), nil, 0,
			unbounded},
		"subjects": {plans("{ id: l, per: subject, tiers: [ { period: 1s, threshold: 1 } ] }"), nil, 0, unbounded},
		"shadow":   {plans("{ id: l, mode: shadow, tiers: [ { period: 1s, threshold: 1 } ] }"), nil, 0, unbounded},
		"quota":    {plans("{ id: l, quota: { units: 5, every: month } }"), nil, 0, unbounded},
		"others": {"plans: [ { id: p, limits: [ { id: l, quota: { units: 5, every: month } } ] } ]\n",
			map[string]int{"p": 3}, 0, "plan p: no limit covers all requests of a tenant"},
		"too few": {examplePlans, map[string]int{"pro": 1}, 0,
			"plan pro: property Tenants allows 1 tenants, and the file has 2"},
		"negative": {examplePlans, map[string]int{"nobody": -1}, 0,
			"plan nobody: property Tenants allows -1 tenants, and the file has 0"},
		"misspelt": {examplePlans, map[string]int{"por": 1}, 0,
			"property Tenants names the plan por, which is not in plans.yaml"},
		"nobody": {"plans: [ { id: p, limits: [ { id: l, tiers: [ { period: 1s, threshold: 1 } ] } ] } ]\n", nil, 0,
			"plans.yaml has no tenants"},
		"too much": {plans("{ id: l, tiers: [ { period: 1s, threshold: 2000000000 } ] }"), nil, 0,
			"exceed what API Gateway accepts"},
		"headroom":  {examplePlans, nil, -1, "Headroom is -1"},
		"no plans":  {"", nil, 0, "plans.yaml"},
		"a mistake": {"plans: [ { id: p, limit: [] } ]\n", nil, 0, "plans.yaml:1:19: "},
	} {
		n++
		_, err := infra.NewUsagePlans(s, fmt.Sprintf("Floor%d", n), &infra.UsagePlansProps{Stage: api.DeploymentStage(),
			Plans: []byte(tt.plans), Tenants: tt.tenants, Headroom: tt.headroom})
		if err == nil || !strings.Contains(err.Error(), tt.want) || tt.plans != "" && name != "a mistake" &&
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v\nwant one line with %q", name, err, tt.want)
		}
	}
	if _, err := infra.NewUsagePlans(s, "NoStage", &infra.UsagePlansProps{Plans: []byte(examplePlans)}); err == nil ||
		err.Error() != "NoStage: Stage is missing" {
		t.Errorf("without a stage: %v", err)
	}

	open := awscdk.NewApp(&awscdk.AppProps{AnalyticsReporting: jsii.Bool(false), Outdir: outdir(t)})
	s, api = apiWithMethods("Open", false, open)
	if _, err := infra.NewUsagePlans(s, "Floor", &infra.UsagePlansProps{Stage: api.DeploymentStage(),
		Plans: []byte(examplePlans)}); err != nil {
		t.Fatal(err)
	}
	if err := infra.Synth(open); err == nil || !strings.Contains(err.Error(), "no method of the API requires a key") {
		t.Errorf("usage plans that throttle nobody: %v", err)
	}
}
