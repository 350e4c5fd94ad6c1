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

// FloorProps say before which stage, and for which plans.
type FloorProps struct {
	Stage awsapigateway.IStage // required: of a REST API; HTTP and WebSocket APIs have no usage plans

	Plans     []byte // a plans file; required
	PlansName string // what errors call it; default "plans.yaml"

	// Tenants is how many tenants a plan may come to have, by its id. Default: those that the file has. A plan that has
	// none there and is not here gets no key, and one that has more than here is refused.
	Tenants map[string]int

	Headroom int // percent above what the tenants' limits admit together, 1 to 1000; default 20
}

// Floor is what holds where Sluice does not: a usage plan of API Gateway with one key for each plan of the file, above
// what all tenants of the plan may have together. It asks no store. What it throttles is answered 429 by API Gateway,
// before the authorizer.
//
// A client sends its plan's key as X-API-Key, and its own credential as Authorization; on methods that require a key
// (MethodOptions.ApiKeyRequired), of which there must be one, calls without are answered 403.
type Floor struct {
	Construct constructs.Construct

	Keys map[string]awsapigateway.CfnApiKey // by plan; their values are made by API Gateway
}

const (
	defaultHeadroom = 20 // percent
	maxHeadroom     = 1000
)

// NewFloor makes a floor. The error says what is wrong with the plans file, or of which plan no number can be had: none
// of its limits holds for all calls of a tenant in a time, so that nobody can say how much is too much.
func NewFloor(scope constructs.Construct, id string, props *FloorProps) (floor *Floor, err error) {
	defer recovered(id, &err)
	if props.Stage == nil {
		return nil, fmt.Errorf("%s: Stage is missing", id)
	}
	rates, err := props.rates()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	f := &Floor{Construct: constructs.NewConstruct(scope, &id), Keys: map[string]awsapigateway.CfnApiKey{}}
	api := props.Stage.RestApi().RestApiId()
	for _, name := range slices.Sorted(maps.Keys(rates)) {
		own, r := constructs.NewConstruct(f.Construct, jsii.String("Plan-"+name)), rates[name]
		usage := awsapigateway.NewCfnUsagePlan(own, jsii.String("UsagePlan"), &awsapigateway.CfnUsagePlanProps{
			Description: jsii.String("Sluice: the floor of all tenants of the plan " + name),
			ApiStages: []any{&awsapigateway.CfnUsagePlan_ApiStageProperty{ApiId: api,
				Stage: props.Stage.StageName()}},
			Throttle: &awsapigateway.CfnUsagePlan_ThrottleSettingsProperty{RateLimit: &r.perSecond,
				BurstLimit: &r.burst},
		})
		key := awsapigateway.NewCfnApiKey(own, jsii.String("Key"), &awsapigateway.CfnApiKeyProps{
			Enabled: jsii.Bool(true), Description: jsii.String("Sluice: of all tenants of the plan " + name),
		})
		awsapigateway.NewCfnUsagePlanKey(own, jsii.String("UsagePlanKey"), &awsapigateway.CfnUsagePlanKeyProps{
			KeyId: key.Ref(), KeyType: jsii.String("API_KEY"), UsagePlanId: usage.Ref(),
		})
		f.Keys[name] = key
	}
	f.Construct.Node().AddValidation(&required{awscdk.Stack_Of(f.Construct), props.Stage.RestApi()})
	return f, nil
}

// required is that a method requires a key: otherwise the floor throttles nobody.
type required struct {
	stack awscdk.Stack
	api   awsapigateway.IRestApi
}

// Validate implements constructs.IValidation.
func (r *required) Validate() *[]*string {
	id := asJSON(r.stack.Resolve(r.api.RestApiId()))
	for _, node := range *r.stack.Node().FindAll(constructs.ConstructOrder_PREORDER) {
		m, ok := node.(awsapigateway.CfnMethod)
		if ok && asJSON(r.stack.Resolve(m.RestApiId())) == id && resolved(r.stack, m.ApiKeyRequired()) == true {
			return &[]*string{}
		}
	}
	return jsii.Strings("no method of the API requires a key (ApiKeyRequired), so the floor throttles nobody")
}

// rate is what somebody admits: at most burst + perSecond·t in any t seconds.
type rate struct{ perSecond, burst float64 }

// rates are those of the usage plans, by plan.
func (props *FloorProps) rates() (map[string]rate, error) {
	headroom := props.Headroom
	standardInt(&headroom, defaultHeadroom)
	if headroom < 1 || headroom > maxHeadroom {
		return nil, fmt.Errorf("the headroom is %d, want 1 to %d percent", headroom, maxHeadroom)
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
		sum, err := props.sum(p, tenants[p.ID])
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("plan %s: %w", p.ID, err))
		case sum.perSecond > 0:
			all[p.ID] = sum.above(headroom)
			if all[p.ID].burst > math.MaxInt32 || all[p.ID].perSecond > math.MaxInt32 {
				errs = append(errs, fmt.Errorf("plan %s: its tenants' limits together, %.0f/s and %.0f at once, are "+
					"more than API Gateway can be told", p.ID, sum.perSecond, sum.burst))
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(props.Tenants)) {
		if !known[id] {
			errs = append(errs, fmt.Errorf("the plan %s, of which Tenants speaks, is not in %s", id, name))
		}
	}
	if len(errs) == 0 && len(all) == 0 {
		errs = append(errs, fmt.Errorf("%s has no tenants: say by Tenants how many each plan may come to have", name))
	}
	return all, oneLine(errs)
}

// above is what is so many percent above it, in whole calls.
func (r rate) above(percent int) rate {
	const whole = 100
	factor := func(v float64) float64 { return math.Ceil(v * float64(whole+percent) / whole) }
	return rate{factor(r.perSecond), factor(r.burst)}
}

// sum is what all tenants of a plan are admitted together; nothing where it has none.
func (props *FloorProps) sum(p *plan.Plan, tenants []*plan.Tenant) (rate, error) {
	count, given := props.Tenants[p.ID]
	if !given {
		count = len(tenants)
	}
	switch {
	case count == 0 && !given:
		return rate{}, nil
	case count < 1 || count < len(tenants):
		return rate{}, fmt.Errorf("there may be %d tenants, says Tenants, and the file has %d", count, len(tenants))
	}
	return together(p, tenants, count)
}

func standardInt(to *int, value int) {
	if *to == 0 {
		*to = value
	}
}

// oneLine joins errors into one of one line.
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

// together is what so many tenants of a plan are admitted: those that there are, each with its overrides and its
// largest boost, and others with the plan's own limits.
func together(p *plan.Plan, tenants []*plan.Tenant, count int) (rate, error) {
	var sum rate
	for _, t := range tenants {
		var most rate
		for _, set := range t.Sets() {
			r, err := bound(set)
			if err != nil {
				return rate{}, fmt.Errorf("tenant %q: %w", t.ID, err)
			}
			most = rate{max(most.perSecond, r.perSecond), max(most.burst, r.burst)}
		}
		sum = rate{sum.perSecond + most.perSecond, sum.burst + most.burst}
	}
	if others := float64(count - len(tenants)); others > 0 {
		r, err := bound(p.Set())
		if err != nil {
			return rate{}, err
		}
		sum = rate{sum.perSecond + others*r.perSecond, sum.burst + others*r.burst}
	}
	return sum, nil
}

var errUnbounded = errors.New("no limit of it holds for all calls of a tenant (per: tenant, mode: enforce, no " +
	"match, no group, and no quota), so no number is above all of them")

// bound is the least that one of the limits admits of all calls of a tenant, in calls: a call costs a unit or more.
func bound(set *plan.Set) (rate, error) {
	least, found := rate{}, false
	for _, e := range set.Limits {
		l := e.Limit
		if l.Mode != limit.Enforce || !e.CountsAll() || l.Per != limit.PerTenant && l.Per != "" {
			continue
		}
		for i := range l.Tiers {
			r, ok := admitted(&l.Tiers[i])
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

// admitted is what a tier admits in any time, as docs/accuracy.md says; false of a quota, whose period is not one of
// seconds.
func admitted(t *limit.Tier) (rate, bool) {
	if t.Calendar != nil {
		return rate{}, false
	}
	return rate{perSecond: float64(t.Threshold) / t.Period.Seconds(), burst: float64(t.Counting().AtOnce)}, true
}
