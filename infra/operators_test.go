package infra_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/infra/config"
	"github.com/sluicelimits/sluice/internal/control/operate"
)

const operatorARN = "arn:aws:iam::123456789012:role/operators"

// throttle is a rate in calls per second, and a burst.
type throttle struct{ perSecond, burst any }

// operatorsAPI is what a template has of an operators' API.
type operatorsAPI struct {
	methods   map[string]string   // how each method is authorized, by method and path
	throttles map[string]throttle // the throttle of each, by method and path
	policy    []any               // statements
}

func operatorsAPIOf(one *template) *operatorsAPI {
	api := &operatorsAPI{methods: map[string]string{}, throttles: map[string]throttle{}}
	api.policy = list(firstOf(one, "AWS::ApiGateway::RestApi").get("Policy", "Statement"))
	resources := one.ofType("AWS::ApiGateway::Resource")
	var path func(id any) string
	path = func(id any) string {
		name, _ := get(id, "Ref").(string)
		if r := resources[name]; r != nil {
			return path(r.get("ParentId")) + "/" + fmt.Sprint(r.get("PathPart"))
		}
		return ""
	}
	for _, m := range one.ofType("AWS::ApiGateway::Method") {
		api.methods[fmt.Sprint(m.get("HttpMethod"))+" "+path(m.get("ResourceId"))] = fmt.Sprint(
			m.get("AuthorizationType"))
	}
	for _, s := range list(firstOf(one, "AWS::ApiGateway::Stage").get("MethodSettings")) {
		at := strings.NewReplacer("~1", "/", "~0", "~").Replace(strings.TrimPrefix(fmt.Sprint(get(s, "ResourcePath")),
			"/"))
		of := throttle{get(s, "ThrottlingRateLimit"), get(s, "ThrottlingBurstLimit")}
		api.throttles[fmt.Sprint(get(s, "HttpMethod"))+" "+at] = of
	}
	return api
}

// Guarantees that API Gateway has a path for each operation and no other, lets IAM authorize each, and throttles each
// as the page about permissions says. If all operations had one path, a flood of one of them would use up the rate of
// the others.
func TestOperatorsAPIs(t *testing.T) {
	for stack, all := range map[string][]operate.Operation{
		"sluice-control": operate.ControlOperations(), "sluice-cell-us-1": operate.CellOperations(),
	} {
		methods, throttles := map[string]string{}, map[string]throttle{}
		for _, o := range all {
			methods["POST "+o.Path] = "AWS_IAM"
			throttles["POST "+o.Path] = throttle{float64(o.PerSecond), float64(o.Burst)}
		}
		api := operatorsAPIOf(watchedStack(t, stack))
		if !maps.Equal(api.methods, methods) {
			t.Errorf("%s has the methods %v, want %v", stack, api.methods, methods)
		}
		if !maps.Equal(api.throttles, throttles) {
			t.Errorf("%s has the throttles %v, want %v", stack, api.throttles, throttles)
		}
	}
}

// Guarantees that an operators' API denies callers of other accounts and calls without a signature, and denies all but
// certain callers and addresses if the deployment says so. Its policy allows nothing, since that would be valid beside
// IAM.
func TestOperatorsPolicies(t *testing.T) {
	all := made()
	if all.err != nil {
		t.Fatal(all.err)
	}
	account := map[string]any{"StringNotEquals": map[string]any{"aws:PrincipalAccount": "123456789012"}}
	callers := []any{
		account,
		map[string]any{"ArnNotLike": map[string]any{"aws:PrincipalArn": []any{operatorARN}}},
		map[string]any{"NotIpAddress": map[string]any{"aws:SourceIp": []any{"203.0.113.0/24", "2001:db8::/32"}}},
	}
	for name, tt := range map[string]struct {
		one  *template
		want []any
	}{
		"control":           {decode(t, all.raw["sluice-control"]), []any{account}},
		"cell":              {decode(t, all.raw["sluice-cell-a-1"]), []any{account}},
		"control, narrowed": {watchedStack(t, "sluice-control"), callers},
		"cell, narrowed":    {watchedStack(t, "sluice-cell-us-1"), callers},
	} {
		var got []any
		for _, s := range operatorsAPIOf(tt.one).policy {
			everybody := slices.Contains([]any{"*"}, get(s, "Principal")) || get(s, "Principal", "AWS") == "*"
			whole := get(s, "Action") == "execute-api:Invoke" && get(s, "Resource") == "execute-api:/*"
			if get(s, "Effect") != "Deny" || !everybody || !whole {
				t.Errorf("%s has the unexpected statement %v", name, s)
			}
			condition, _ := get(s, "Condition").(map[string]any)
			if of, ok := condition["StringNotEquals"].(map[string]any); ok {
				of["aws:PrincipalAccount"] = tt.one.text(of["aws:PrincipalAccount"])
			}
			got = append(got, condition)
		}
		if !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s denies %v, want %v", name, got, tt.want)
		}
	}
}

// Guarantees that a caller who is removed from the policy is shut out by the next deployment. API Gateway keeps using
// the policy of the time at which the stage of the API was last deployed.
func TestOperatorsPolicyIsDeployed(t *testing.T) {
	deployment := func(let config.Callers) string {
		d := world("a-1")
		d.Operators = let
		raw, _, err := synthesize(d)
		if err != nil {
			t.Fatal(err)
		}
		one := decode(t, raw["sluice-cell-a-1"])
		return fmt.Sprint(slices.Sorted(maps.Keys(one.ofType("AWS::ApiGateway::Deployment"))))
	}
	before, after := deployment(config.Callers{}), deployment(config.Callers{Addresses: []string{"203.0.113.7"}})
	if before == after {
		t.Errorf("with another policy, the stage still has the deployment %s", before)
	}
}
