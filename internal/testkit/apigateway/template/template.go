// Package template reads a stage of an API from a CloudFormation template, as `cdk synth` writes it, so that tests
// serve what will be deployed. It knows Ref, Fn::GetAtt, Fn::Join and Fn::Sub, and fails at every other function of the
// template's language.
package template

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicelimits/sluice/internal/testkit/apigateway"
)

// Options select an API of the template, and set what the template does not contain.
type Options struct {
	API string // logical id of the API; "" if the template has only one
	// Region and Account are the values of AWS::Region and AWS::AccountId. The defaults are those of the template's
	// ARNs, or else "us-east-1" and "000000000000".
	Region, Account string
	// Targets maps the beginning of the URL of an integration to the URL to call instead. A URL without a match is not
	// called: the route is an ECHO of the request.
	Targets map[string]string
}

// object is an object of the template.
type object = map[string]any

// resource is a resource of the template. The API of a resource is named by RestApiId or ApiId.
type resource struct {
	id, typ    string
	properties object
}

// Parse reads a template. name is the name of the file, for errors. The description names a function by its
// FunctionName, or by its logical id if it has no name; a function of another stack by the name in its ARN. The id of
// the API is its logical id.
func Parse(name string, data []byte, o Options) (*apigateway.Description, error) {
	var in struct {
		Resources map[string]struct {
			Type       string
			Properties object
		}
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	r := &reader{o: o, all: map[string]*resource{}, d: &apigateway.Description{
		Authorizers: map[string]apigateway.Authorizer{}, Responses: map[string]apigateway.GatewayResponse{}}}
	for id, found := range in.Resources {
		r.all[id] = &resource{id, found.Type, found.Properties}
	}
	region, account := home(data)
	r.d.Region, r.d.Account = cmp.Or(o.Region, region, "us-east-1"), cmp.Or(o.Account, account, "000000000000")
	r.parameters = map[string]string{"AWS::Partition": "aws", "AWS::URLSuffix": "amazonaws.com",
		"AWS::StackName": "stack", "AWS::Region": r.d.Region, "AWS::AccountId": r.d.Account}
	r.api()
	if err := cmp.Or(errors.Join(r.problems...), r.d.Check()); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return r.d, nil
}

// homes matches the region and the account in the ARNs of APIs and functions, and the region in the URIs with which API
// Gateway invokes a function.
var homes = regexp.MustCompile(`:(?:execute-api|lambda):([a-z]{2,}(?:-[a-z]+)+-[0-9]+):([0-9]{12}` +
	`):|:apigateway:([a-z]{2,}(?:-[a-z]+)+-[0-9]+):lambda:`)

func home(data []byte) (region, account string) {
	for _, m := range homes.FindAllSubmatch(data, -1) {
		region, account = cmp.Or(region, string(m[1]), string(m[3])), cmp.Or(account, string(m[2]))
	}
	return region, account
}

type reader struct {
	o          Options
	d          *apigateway.Description
	all        map[string]*resource
	parameters map[string]string // pseudo parameters, by name
	problems   []error
}

// of returns the resources of a type that belong to the API, in the order of their ids.
func (r *reader) of(typ string) (found []*resource) {
	for _, id := range slices.Sorted(maps.Keys(r.all)) {
		res := r.all[id]
		if res.typ == typ && cmp.Or(r.text(res.properties["RestApiId"]), r.text(res.properties["ApiId"])) == r.d.API {
			found = append(found, res)
		}
	}
	return found
}

// api reads the selected API.
func (r *reader) api() {
	var ids []string
	for id, res := range r.all {
		if res.typ == "AWS::ApiGateway::RestApi" || res.typ == "AWS::ApiGatewayV2::Api" {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	if r.d.API = r.o.API; r.d.API == "" && len(ids) == 1 {
		r.d.API = ids[0]
	}
	if !slices.Contains(ids, r.d.API) {
		r.problems = append(r.problems, fmt.Errorf("want one of the APIs %s, got %q", strings.Join(ids, ", "), r.d.API))
		return
	}
	group := "AWS::ApiGatewayV2::"
	switch api := r.all[r.d.API]; {
	case api.typ == "AWS::ApiGateway::RestApi":
		r.d.Kind, group = apigateway.REST, "AWS::ApiGateway::"
	case r.text(api.properties["ProtocolType"]) == "HTTP":
		r.d.Kind = apigateway.HTTP
	default:
		r.d.Kind = apigateway.WebSocket
	}
	for _, res := range r.of(group + "Stage") {
		r.d.Stage = r.text(res.properties["StageName"])
	}
	for _, res := range r.of(group + "Authorizer") {
		r.authorizer(res)
	}
	for _, res := range r.of(group + "Method") {
		r.method(res)
	}
	for _, res := range r.of(group + "Route") {
		r.route(res)
	}
	for _, res := range r.of(group + "GatewayResponse") {
		r.d.Responses[r.text(res.properties["ResponseType"])] = apigateway.GatewayResponse{
			StatusCode: r.text(res.properties["StatusCode"]),
			Parameters: r.table(res.properties["ResponseParameters"]),
			Templates:  r.table(res.properties["ResponseTemplates"])}
	}
}

func (r *reader) authorizer(res *resource) {
	p := res.properties
	a := apigateway.Authorizer{Type: cmp.Or(r.text(p["AuthorizerType"]), r.text(p["Type"])),
		Payload: r.text(p["AuthorizerPayloadFormatVersion"]), Simple: p["EnableSimpleResponses"] == true,
		Function: r.function(p["AuthorizerUri"])}
	if ttl, ok := p["AuthorizerResultTtlInSeconds"].(float64); ok {
		seconds := int(ttl)
		a.TTLSeconds = &seconds
	} else if r.d.Kind == apigateway.WebSocket {
		a.TTLSeconds = new(int) // API Gateway does not cache authorizers' answers of a WebSocket API
	}
	switch source := p["IdentitySource"].(type) {
	case string:
		a.IdentitySource = []string{source}
	case []any:
		for _, one := range source {
			a.IdentitySource = append(a.IdentitySource, r.text(one))
		}
	}
	r.d.Authorizers[res.id] = a
}

// method reads a method of a REST API.
func (r *reader) method(res *resource) {
	p := res.properties
	var parts []string
	for id := r.text(p["ResourceId"]); r.all[id] != nil; id = r.text(r.all[id].properties["ParentId"]) {
		parts = append(parts, r.text(r.all[id].properties["PathPart"]))
	}
	slices.Reverse(parts)
	g, _ := p["Integration"].(object)
	route := r.protected(p, r.text(p["HttpMethod"])+" /"+strings.Join(parts, "/"))
	route.Integration = r.integration(g, "Type", "Uri", "IntegrationHttpMethod")
	if responses, _ := g["IntegrationResponses"].([]any); len(responses) == 1 {
		one, _ := responses[0].(object)
		route.Integration.StatusCode = r.text(one["StatusCode"])
		route.Integration.ResponseParameters = map[string]map[string]string{
			route.Integration.StatusCode: r.table(one["ResponseParameters"])}
	}
	r.d.Routes = append(r.d.Routes, route)
}

// route reads a route of an HTTP or WebSocket API.
func (r *reader) route(res *resource) {
	p := res.properties
	route := r.protected(p, r.text(p["RouteKey"]))
	if r.d.Kind == apigateway.WebSocket {
		if route.Key == "$connect" { // no messages are passed
			route.Integration.Type = apigateway.Mock
			r.d.Routes = append(r.d.Routes, route)
		}
		return
	}
	id := strings.TrimPrefix(r.text(p["Target"]), "integrations/")
	if r.all[id] == nil {
		r.problems = append(r.problems, fmt.Errorf("%s: there is no integration %q", res.id, id))
		return
	}
	g := r.all[id].properties
	route.Integration = r.integration(g, "IntegrationType", "IntegrationUri", "IntegrationMethod")
	if route.Integration.Type == apigateway.AWSProxy {
		route.Integration.Payload = r.text(g["PayloadFormatVersion"])
	}
	byStatus, _ := g["ResponseParameters"].(object)
	route.Integration.ResponseParameters = map[string]map[string]string{}
	for status, one := range byStatus {
		all := map[string]string{}
		list, _ := one.(object)["ResponseParameters"].([]any)
		for _, m := range list {
			all[r.text(m.(object)["Destination"])] = r.text(m.(object)["Source"])
		}
		route.Integration.ResponseParameters[status] = all
	}
	r.d.Routes = append(r.d.Routes, route)
}

// protected returns a route with what protects it.
func (r *reader) protected(p object, key string) apigateway.Route {
	route := apigateway.Route{Key: key}
	switch r.text(p["AuthorizationType"]) {
	case "CUSTOM":
		route.Authorizer = r.text(p["AuthorizerId"])
	case apigateway.AWSIAM:
		route.Authorization = apigateway.AWSIAM
	}
	return route
}

// integration reads an integration, whose properties have other names on a REST API.
func (r *reader) integration(p object, typ, uri, method string) (g apigateway.Integration) {
	g.Type, g.RequestParameters = r.text(p[typ]), r.table(p["RequestParameters"])
	switch g.Type {
	case apigateway.AWSProxy:
		g.Function = r.function(p[uri])
	case apigateway.HTTPProxy:
		if g.Method = r.text(p[method]); g.Method == "ANY" {
			g.Method = ""
		}
		g.Type, g.URL = apigateway.Echo, r.text(p[uri])
		for from, to := range r.o.Targets {
			if rest, ok := strings.CutPrefix(g.URL, from); ok {
				g.Type, g.URL = apigateway.HTTPProxy, to+rest
			}
		}
	}
	return g
}

// invocation matches the name of the function in the URI with which API Gateway invokes it.
var invocation = regexp.MustCompile(`:function:([^:/]+)(?:/invocations)?$`)

func (r *reader) function(uri any) string {
	m := invocation.FindStringSubmatch(r.text(uri))
	if m == nil {
		r.problems = append(r.problems, fmt.Errorf("%q does not invoke a function", r.text(uri)))
		return ""
	}
	return m[1]
}

// table returns an object whose values are texts.
func (r *reader) table(v any) map[string]string {
	from, _ := v.(object)
	out := make(map[string]string, len(from))
	for name, one := range from {
		out[name] = r.text(one)
	}
	return out
}

var variable = regexp.MustCompile(`\$\{([^}]+)\}`)

// text returns a scalar as text, and evaluates the functions of the template's language. "" stands for no value.
func (r *reader) text(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case bool:
		return strconv.FormatBool(v)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case object:
		for name, argument := range v {
			switch list, _ := argument.([]any); {
			case name == "Ref":
				return r.ref(r.text(argument))
			case name == "Fn::GetAtt" && len(list) == 2:
				return r.attribute(r.text(list[0]), r.text(list[1]))
			case name == "Fn::Join" && len(list) == 2:
				var parts []string
				items, _ := list[1].([]any)
				for _, item := range items {
					parts = append(parts, r.text(item))
				}
				return strings.Join(parts, r.text(list[0]))
			case name == "Fn::Sub" && len(list) == 0:
				return variable.ReplaceAllStringFunc(r.text(argument), func(s string) string {
					id, attribute, ok := strings.Cut(s[2:len(s)-1], ".")
					if ok {
						return r.attribute(id, attribute)
					}
					return r.ref(id)
				})
			}
		}
	}
	r.problems = append(r.problems, fmt.Errorf("want a text, Ref, Fn::GetAtt, Fn::Join or Fn::Sub, got %v", v))
	return ""
}

func (r *reader) ref(id string) string {
	switch res := r.all[id]; {
	case id == "AWS::NoValue":
		return ""
	case res != nil && res.typ == "AWS::Lambda::Function":
		return cmp.Or(r.text(res.properties["FunctionName"]), id)
	}
	return cmp.Or(r.parameters[id], id)
}

// attribute returns an attribute of a resource: the ARN of a function, the root of a REST API, which is no resource of
// the template, or else the resource's id.
func (r *reader) attribute(id, name string) string {
	switch res := r.all[id]; {
	case res == nil:
		err := fmt.Errorf("Fn::GetAtt: there is no resource %q", id) //nolint:staticcheck // its name
		r.problems = append(r.problems, err)
	case res.typ == "AWS::Lambda::Function":
		return "arn:aws:lambda:" + r.d.Region + ":" + r.d.Account + ":function:" + r.ref(id)
	case name == "RootResourceId":
		return ""
	}
	return r.ref(id)
}
