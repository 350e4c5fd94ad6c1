package infra

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsapigateway"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
)

// UsagePlansProps are the parameters of [NewUsagePlans].
type UsagePlansProps struct {
	Stage awsapigateway.IStage // required; a stage of a REST API: other APIs have no usage plans

	Plans     []byte // required; the content of a plans file
	PlansName string // the file's name in errors; default "plans.yaml"

	// Tenants maps the id of a plan to the number of tenants that it may come to have. The default is the number of its
	// tenants in the file. A plan without tenants in both places gets no key. A plan with more tenants in the file than
	// here is refused.
	Tenants map[string]int

	Headroom int // percent added to what the limits of all tenants admit together, 1 to 1000; default 20
}

// UsagePlans makes API Gateway throttle a REST API even while Sluice or its stores are unavailable. It has a usage plan
// with one API key for each plan of a plans file. The usage plan admits a little more than the limits of all tenants of
// the plan together. API Gateway answers what it throttles with 429, before it calls the authorizer.
//
// A client sends the key of its plan as X-API-Key, and its own credential as Authorization. At least one method must
// require a key (MethodOptions.ApiKeyRequired). API Gateway answers calls of such methods without a key with 403.
type UsagePlans struct {
	Construct constructs.Construct

	Keys map[string]awsapigateway.CfnApiKey // by the plan's id; API Gateway generates the values of the keys
}

const (
	defaultHeadroom = 20 // percent
	maxHeadroom     = 1000
)

// NewUsagePlans makes the usage plans. The error says what is wrong with the plans file, or for which plan no rate can
// be computed, because none of its limits covers all requests of a tenant.
func NewUsagePlans(scope constructs.Construct, id string, props *UsagePlansProps) (made *UsagePlans, err error) {
	defer recoverError(id, &err)
	if props.Stage == nil {
		return nil, fmt.Errorf("%s: Stage is missing", id)
	}
	rates, err := props.rates()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	f := &UsagePlans{Construct: constructs.NewConstruct(scope, &id), Keys: map[string]awsapigateway.CfnApiKey{}}
	api := props.Stage.RestApi().RestApiId()
	for _, name := range slices.Sorted(maps.Keys(rates)) {
		own, r := constructs.NewConstruct(f.Construct, jsii.String("Plan-"+name)), rates[name]
		usage := awsapigateway.NewCfnUsagePlan(own, jsii.String("UsagePlan"), &awsapigateway.CfnUsagePlanProps{
			Description: jsii.String("Sluice: all tenants together of the plan " + name),
			ApiStages: []any{&awsapigateway.CfnUsagePlan_ApiStageProperty{ApiId: api,
				Stage: props.Stage.StageName()}},
			Throttle: &awsapigateway.CfnUsagePlan_ThrottleSettingsProperty{RateLimit: &r.perSecond,
				BurstLimit: &r.burst},
		})
		key := awsapigateway.NewCfnApiKey(own, jsii.String("Key"), &awsapigateway.CfnApiKeyProps{
			Enabled: jsii.Bool(true), Description: jsii.String("Sluice: for all tenants of the plan " + name),
		})
		awsapigateway.NewCfnUsagePlanKey(own, jsii.String("UsagePlanKey"), &awsapigateway.CfnUsagePlanKeyProps{
			KeyId: key.Ref(), KeyType: jsii.String("API_KEY"), UsagePlanId: usage.Ref(),
		})
		f.Keys[name] = key
	}
	f.Construct.Node().AddValidation(&keyRequired{awscdk.Stack_Of(f.Construct), props.Stage.RestApi()})
	return f, nil
}

// keyRequired checks that a method of the API requires a key. Otherwise the usage plans throttle nobody.
type keyRequired struct {
	stack awscdk.Stack
	api   awsapigateway.IRestApi
}

// Validate implements constructs.IValidation.
func (r *keyRequired) Validate() *[]*string {
	id := asJSON(r.stack.Resolve(r.api.RestApiId()))
	for _, node := range *r.stack.Node().FindAll(constructs.ConstructOrder_PREORDER) {
		m, ok := node.(awsapigateway.CfnMethod)
		if ok && asJSON(r.stack.Resolve(m.RestApiId())) == id && resolved(r.stack, m.ApiKeyRequired()) == true {
			return &[]*string{}
		}
	}
	return jsii.Strings("no method of the API requires a key (ApiKeyRequired), so the usage plans throttle nobody")
}

// rate bounds what is admitted: at most burst + perSecond·t requests in any t seconds.
type rate struct{ perSecond, burst float64 }

// rates returns the rates of the usage plans, by plan.
func (props *UsagePlansProps) rates() (map[string]rate, error) {
	headroom := props.Headroom
	setDefault(&headroom, defaultHeadroom)
	if headroom < 1 || headroom > maxHeadroom {
		return nil, fmt.Errorf("property Headroom is %d, want 1 to %d percent", headroom, maxHeadroom)
	}
	name := props.PlansName
	if name == "" {
		name = "plans.yaml"
	}
	file, err := plan.Parse(configyaml.Source(name, props.Plans))
	if err != nil {
		return nil, err
	}
	tenants := map[string][]*plan.Tenant{}
	for _, t := range file.Tenants() {
		tenants[t.Plan] = append(tenants[t.Plan], t)
	}
	known, all := map[string]bool{}, map[string]rate{}
	var errs []error
	for _, p := range file.Plans() {
		known[p.ID] = true
		sum, err := props.planRate(p, tenants[p.ID])
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("plan %s: %w", p.ID, err))
		case sum.perSecond > 0:
			all[p.ID] = sum.withHeadroom(headroom)
			if all[p.ID].burst > math.MaxInt32 || all[p.ID].perSecond > math.MaxInt32 {
				errs = append(errs, fmt.Errorf("plan %s: its tenants' limits together, %.0f/s and %.0f at once, "+
					"exceed "+"what API Gateway accepts", p.ID, sum.perSecond, sum.burst))
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(props.Tenants)) {
		if !known[id] {
			errs = append(errs, fmt.Errorf("property Tenants names the plan %s, which is not in %s", id, name))
		}
	}
	if len(errs) == 0 && len(all) == 0 {
		errs = append(errs, fmt.Errorf("%s has no tenants: say in Tenants how many each plan may come to have", name))
	}
	return all, oneLine(errs)
}

// withHeadroom returns the rate plus a percentage of it, rounded up to whole requests.
func (r rate) withHeadroom(percent int) rate {
	const whole = 100
	factor := func(v float64) float64 { return math.Ceil(v * float64(whole+percent) / whole) }
	return rate{factor(r.perSecond), factor(r.burst)}
}

// planRate returns what all tenants of a plan are admitted together, or a zero rate if the plan has no tenants.
func (props *UsagePlansProps) planRate(p *plan.Plan, tenants []*plan.Tenant) (rate, error) {
	count, given := props.Tenants[p.ID]
	if !given {
		count = len(tenants)
	}
	switch {
	case count == 0 && !given:
		return rate{}, nil
	case count < 1 || count < len(tenants):
		return rate{}, fmt.Errorf("property Tenants allows %d tenants, and the file has %d", count, len(tenants))
	}
	return tenantsRate(p, tenants, count)
}

func setDefault(to *int, value int) {
	if *to == 0 {
		*to = value
	}
}

// oneLine joins errors into one error of a single line.
func oneLine(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	all := make([]string, len(errs))
	for i, err := range errs {
		all[i] = err.Error()
	}
	return errors.New(strings.Join(all, "; "))
}

// tenantsRate returns what count tenants of a plan are admitted together. The known tenants have their overrides and
// their largest boosts, and the others the limits of the plan.
func tenantsRate(p *plan.Plan, tenants []*plan.Tenant, count int) (rate, error) {
	var sum rate
	for _, t := range tenants {
		var most rate
		for _, set := range t.Sets() {
			r, err := tightestLimit(set)
			if err != nil {
				return rate{}, fmt.Errorf("tenant %q: %w", t.ID, err)
			}
			most = rate{max(most.perSecond, r.perSecond), max(most.burst, r.burst)}
		}
		sum = rate{sum.perSecond + most.perSecond, sum.burst + most.burst}
	}
	if others := float64(count - len(tenants)); others > 0 {
		r, err := tightestLimit(p.Set())
		if err != nil {
			return rate{}, err
		}
		sum = rate{sum.perSecond + others*r.perSecond, sum.burst + others*r.burst}
	}
	return sum, nil
}

var errUnbounded = errors.New("no limit covers all requests of a tenant, so no rate can be computed (it would need " +
	"per: tenant, " + "mode: enforce, no match, no group, and no quota)")

// tightestLimit returns the smallest rate of the limits that cover all requests of a tenant. The unit is requests: a
// request costs one unit or more.
func tightestLimit(set *plan.Set) (rate, error) {
	least, found := rate{}, false
	for _, e := range set.Limits {
		l := e.Limit
		if l.Mode != limit.Enforce || !e.CountsAll() || l.Per != limit.PerTenant && l.Per != "" {
			continue
		}
		for i := range l.Tiers {
			r, ok := tierRate(&l.Tiers[i])
			if ok && (!found || r.perSecond+r.burst < least.perSecond+least.burst) {
				least, found = r, true
			}
		}
	}
	if !found {
		return rate{}, errUnbounded
	}
	return least, nil
}

// tierRate returns what a tier admits in any interval, as docs/accuracy.md says. It returns false for a quota, whose
// period has no fixed length.
func tierRate(t *limit.Tier) (rate, bool) {
	if t.Calendar != nil {
		return rate{}, false
	}
	return rate{perSecond: float64(t.Threshold) / t.Period.Seconds(), burst: float64(t.Counting().AtOnce)}, true
}
