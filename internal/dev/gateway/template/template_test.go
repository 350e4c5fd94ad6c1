package template_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/dev/gateway/stage"
	"github.com/sluicelimits/sluice/internal/dev/gateway/template"
)

// synthesized is the template that cdk synth makes of an API of each kind with Sluice attached. The tests of package
// infra keep it up to date.
const synthesized = "../../../../infra/testdata/attach.template.json"

func readSynthesized(t testing.TB) []byte {
	t.Helper()
	data, err := os.ReadFile(synthesized)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// api returns the logical id, with the given prefix, of one of the APIs of the synthesized template.
func api(t *testing.T, data []byte, prefix string) string {
	t.Helper()
	_, err := template.Parse("t.json", data, template.Options{})
	if err == nil {
		t.Fatal("a template with three APIs was accepted without the choice of one")
	}
	_, list, _ := strings.Cut(err.Error(), "the template has 3 APIs; select one of ")
	for id := range strings.SplitSeq(list, ", ") {
		if strings.HasPrefix(id, prefix) {
			return id
		}
	}
	t.Fatalf("the template has no API whose id begins with %s: %v", prefix, err)
	return ""
}

// Guarantees that the template which CDK makes of each kind of API is read in full: routes, authorizer, answers,
// mappings, and the URLs of integrations.
func TestSynthesized(t *testing.T) {
	data := readSynthesized(t)
	if !template.Is(data) || template.Is([]byte("kind: REST\n")) || template.Is([]byte(`{"kind":"REST"}`)) {
		t.Error("a template was not recognised as one")
	}
	read := func(prefix string) *stage.Description {
		d, err := template.Parse("t.json", data, template.Options{API: api(t, data, prefix), Targets: map[string]string{
			"https://shop.example.com":     "http://127.0.0.1:1",
			"https://shop.example.com/v1/": "http://127.0.0.1:9000/shop"}})
		if err != nil {
			t.Fatal(err)
		}
		if d.Region != "eu-west-1" || d.Account != "123456789012" || len(d.Authorizers) != 1 {
			t.Errorf("%s is read as %+v", prefix, d)
		}
		for _, a := range d.Authorizers {
			if a.Function != "sluice-eu-1-authorizer" || *a.TTLSeconds != 0 || a.Type != "REQUEST" ||
				a.IdentitySource != nil || a.Simple != (prefix == "Http") {
				t.Errorf("%s has the authorizer %+v", prefix, a)
			}
		}
		return d
	}
	route := func(d *stage.Description, key string) stage.Route {
		t.Helper()
		at := slices.IndexFunc(d.Routes, func(r stage.Route) bool { return r.Key == key })
		if at < 0 {
			t.Fatalf("no route %s in %+v", key, d.Routes)
		}
		return d.Routes[at]
	}

	rest := read("Rest")
	if rest.Kind != stage.REST || rest.Stage != "prod" || len(rest.Routes) != 8 {
		t.Errorf("%s %s with %d routes", rest.Kind, rest.Stage, len(rest.Routes))
	}
	product := route(rest, "GET /product/{id}")
	if g := product.Integration; g.Type != stage.HTTPProxy || g.URL != "http://127.0.0.1:9000/shop/product/{id}" ||
		g.Method != "GET" || product.Authorizer == "" ||
		g.RequestParameters["integration.request.path.id"] != "method.request.path.id" ||
		g.RequestParameters["integration.request.header.x-sluice-caller"] != "context.authorizer.caller" {
		t.Errorf("the REST API's route of a product is %+v", product)
	}
	if o := route(rest, "POST /orders"); o.Integration.Type != stage.AWSProxy || o.Integration.Function != "orders" ||
		o.Authorizer == "" {
		t.Errorf("%+v", o)
	}
	if h := route(rest, "GET /healthz"); h.Authorizer != "" || h.Integration.URL != "http://127.0.0.1:1/healthz" {
		t.Errorf("the REST API's route of /healthz is %+v", h)
	}
	if o := route(rest, "OPTIONS /orders"); o.Integration.Type != stage.Mock || o.Integration.StatusCode != "204" ||
		o.Authorizer != "" ||
		o.Integration.ResponseParameters["204"]["method.response.header.Access-Control-Allow-Origin"] !=
			"'https://app.example.com'" {
		t.Errorf("%+v", o)
	}
	if denied := rest.Responses["ACCESS_DENIED"]; len(rest.Responses) != 6 || denied.StatusCode != "429" ||
		denied.Parameters["gatewayresponse.header.Retry-After"] != "context.authorizer.retryAfter" ||
		denied.Templates["application/json"] !=
			`{"message":$context.error.messageString$context.authorizer.problemMembers}` {
		t.Errorf("the REST API's gateway responses are %+v", rest.Responses)
	}

	http := read("Http")
	if p := route(http, "GET /product/{id}"); http.Kind != stage.HTTP || http.Stage != "$default" ||
		len(http.Routes) != 3 || p.Authorizer == "" ||
		p.Integration.RequestParameters["overwrite:header.x-sluice-problem"] != "$context.authorizer.problem" ||
		p.Integration.Payload != "" {
		t.Errorf("the HTTP API is %+v", http)
	}
	if o := route(http, "POST /orders"); o.Integration.Payload != "2.0" || o.Integration.Function != "orders" {
		t.Errorf("%+v", o)
	}
	if c := http.CORS; c == nil || !slices.Contains(c.ExposeHeaders, "Retry-After") ||
		!slices.Equal(c.AllowMethods, []string{"GET"}) {
		t.Errorf("the HTTP API's CORS is %+v", c)
	}

	socket := read("Socket")
	if c := route(socket, "$connect"); socket.Kind != stage.WebSocket || socket.Stage != "prod" ||
		len(socket.Routes) != 1 || c.Authorizer == "" {
		t.Errorf("the WebSocket API is %+v", socket)
	}
}

// small is a template with a REST API and a WebSocket API that uses the functions of CloudFormation.
const small = `{
 "Parameters": {"Where": {"Type": "String", "Default": "shop"}, "Size": {"Type": "AWS::SSM::Parameter::Value<String>",
   "Default": "/x"}},
 "Resources": {
  "Api": {"Type": "AWS::ApiGateway::RestApi", "Properties": {"Name": {"Ref": "AWS::StackName"},
    "ApiKeySourceType": {"Ref": "AWS::NoValue"}}},
  "A": {"Type": "AWS::ApiGateway::Resource", "Properties": {"RestApiId": {"Ref": "Api"},
    "ParentId": {"Fn::GetAtt": "Api.RootResourceId"}, "PathPart": "a"}},
  "Get": {"Type": "AWS::ApiGateway::Method",
   "Properties": {"RestApiId": {"Ref": "Api"}, "ResourceId": {"Fn::GetAtt": ["A", "ResourceId"]}, "HttpMethod": "GET",
   "AuthorizationType": "CUSTOM", "AuthorizerId": {"Ref": "Auth"},
   "Integration": {"Type": "HTTP_PROXY", "IntegrationHttpMethod": "ANY",
     "Uri": {"Fn::Sub": ["https://${Where}.${Top}${!x}/a", {"Top": "example.com"}]}}}},
  "Auth": {"Type": "AWS::ApiGateway::Authorizer", "Properties": {"RestApiId": {"Ref": "Api"}, "Type": "REQUEST",
    "AuthorizerResultTtlInSeconds": 0, "AuthorizerUri":
  {"Fn::Sub":
   "arn:${AWS::Partition}:apigateway:${AWS::Region}:lambda:path/2015-03-31/functions/${Live}/invocations"}}},
  "Function": {"Type": "AWS::Lambda::Function", "Properties": {}},
  "Live": {"Type": "AWS::Lambda::Alias", "Properties": {"Name": "live", "FunctionName": {"Ref": "Function"}}},
  "May": {"Type": "AWS::Lambda::Permission", "Properties": {"Action": "lambda:InvokeFunction",
    "FunctionName": {"Ref": "Live"}, "Principal": "apigateway.amazonaws.com",
   "SourceArn": {"Fn::Sub": "arn:aws:execute-api:${AWS::Region}:${AWS::AccountId}:${Api}/authorizers/${Auth}"}}},
  "Denied": {"Type": "AWS::ApiGateway::GatewayResponse",
   "Properties": {"RestApiId": {"Ref": "Api"}, "ResponseType": "ACCESS_DENIED", "StatusCode": 429,
    "ResponseParameters": {"gatewayresponse.header.X": "'1'"}}},
  "Deployment": {"Type": "AWS::ApiGateway::Deployment",
   "DependsOn": ["Get", "Denied"], "Properties": {"RestApiId": {"Ref": "Api"}}},
  "Stage": {"Type": "AWS::ApiGateway::Stage", "Properties": {"RestApiId": {"Ref": "Api"},
    "DeploymentId": {"Ref": "Deployment"}, "StageName": {"Fn::Join": ["-", ["prod", {"Ref": "AWS::Region"}]]},
   "TracingEnabled": true}}
 }
}`

// Guarantees that the functions in a template are evaluated as CloudFormation documents them.
func TestLanguage(t *testing.T) {
	d, err := template.Parse("t.json", []byte(strings.Replace(small, "${!x}", "", 1)),
		template.Options{Region: "eu-west-3"})
	if err != nil {
		t.Fatal(err)
	}
	if d.API != "Api" || d.Stage != "prod-eu-west-3" || d.Region != "eu-west-3" ||
		d.Responses["ACCESS_DENIED"].Parameters["gatewayresponse.header.X"] != "'1'" ||
		d.Authorizers["Auth"].Function != "Function" {
		t.Errorf("the REST API is %+v", d)
	}
	if r := d.Routes[0]; r.Key != "GET /a" || r.Authorizer != "Auth" || r.Integration.Type != stage.Echo ||
		r.Integration.URL != "https://shop.example.com/a" || r.Integration.Method != "" {
		t.Errorf("the REST API's route is %+v", r)
	}
	if d.Responses["ACCESS_DENIED"].StatusCode != "429" {
		t.Errorf("the REST API's gateway responses are %+v", d.Responses)
	}
	named := strings.Replace(strings.Replace(strings.Replace(small, "${!x}", "", 1), `"Default": "shop"`,
		`"Default": "store"`, 1), `"AWS::Lambda::Function", "Properties": {}`, `"AWS::Lambda::Function", `+
		`"Properties": {"FunctionName": "f"}`, 1)
	if d, err = template.Parse("t.json", []byte(named), template.Options{}); err != nil {
		t.Fatal(err)
	}
	if d.Authorizers["Auth"].Function != "f" || d.Routes[0].Integration.URL != "https://store.example.com/a" ||
		d.Region != "us-east-1" {
		t.Errorf("the WebSocket API is %+v", d)
	}
}

// denying is a statement of a resource policy as package infra writes it.
const denying = `{"Effect": "Deny", "Principal": {"AWS": "*"}, "Action": "execute-api:Invoke", ` +
	`"Resource": "execute-api:/*", "Condition": {"StringNotEquals": {"aws:PrincipalAccount": {"Ref": ` +
	`"AWS::AccountId"}}}}`

// named is the member of the template that a policy replaces.
const named = `"Name": {"Ref": "AWS::StackName"}`

// policyOf returns a resource policy with that statement, in which from is replaced with to.
func policyOf(statement, from, to string) string {
	return `"Policy": {"Version": "2012-10-17", "Statement": [` + strings.Replace(statement, from, to, 1) + `]}`
}

// Guarantees that everything unknown is refused with its logical id and property, and that a mistake which would
// otherwise fail only when a client calls is found. Each case is one of the templates above with one change.
func TestRefused(t *testing.T) {
	good := strings.Replace(small, "${!x}", "", 1)
	for _, c := range []struct{ name, old, broken, want string }{
		{"no JSON", `{`, `[`, "t.json: line "},
		{"a name twice", `"DependsOn": ["Get", "Denied"]`, `"DependsOn": ["Get", "Denied"], "DependsOn": []`,
			`the object has two members "DependsOn"`},
		{"a section", `"Parameters"`, `"Transform": "AWS::Serverless-2016-10-31", "Parameters"`,
			"Transform: not a section of a template"},
		{"a type of API Gateway", `"AWS::ApiGateway::GatewayResponse"`, `"AWS::ApiGateway::UsagePlan"`,
			`Resources.Denied.Type: "AWS::ApiGateway::UsagePlan" is not known`},
		{"a firewall", `"Deployment": {`, `"Wall": {"Type": "AWS::WAFv2::WebACLAssociation", "Properties": ` +
			`{"ResourceArn": {"Fn::Sub": "arn:aws:apigateway:${AWS::Region}::/restapis/${Api}/stages/prod"}}}, ` +
			`"Deployment": {`, "Resources.Wall.Properties.ResourceArn: the local gateway has no firewall"},
		{"a firewall in front of who knows", `"Deployment": {`,
			`"Wall": {"Type": "AWS::WAFv2::WebACLAssociation", "Properties": {"ResourceArn": {"Ref": "May"}}}, ` +
				`"Deployment": {`, "Resources.Wall.Properties.ResourceArn: Ref: "},
		{"a set of addresses", `"AWS::Lambda::Alias"`, `"AWS::WAFv2::IPSet"`, "Resources.Live.Type: "},
		{"a condition", `"DependsOn": [`, `"Condition": "Big", "DependsOn": [`,
			"Resources.Deployment.Condition: not known"},
		{"a property of the API", `"Name": {"Ref": "AWS::StackName"}`, `"BinaryMediaTypes": ["a/b"]`,
			"t.json:5:82: Resources.Api.Properties.BinaryMediaTypes: not known to the local gateway"},
		{"a policy of nothing", `"Name": {"Ref": "AWS::StackName"}`, `"Policy": {}`, "Resources.Api.Properties.Policy"},
		{"a policy that allows", named, policyOf(denying, "Deny", "Allow"),
			"Policy.Statement[0].Effect: the local gateway knows only Deny"},
		{"a policy of some paths", named, policyOf(denying, ":/*", ":/*/POST/*"),
			"Policy.Statement[0].Resource: the local gateway knows only execute-api:/*"},
		{"a policy with another condition", named, policyOf(denying, "PrincipalAccount", "PrincipalOrgID"),
			"Condition.StringNotEquals.aws:PrincipalOrgID: not known"},
		{"a policy with a signed and an open route", named, policyOf(denying, "", ""),
			"only if all routes have authorization AWS_IAM"},
		{"keys by the authorizer", `{"Ref": "AWS::NoValue"}`, `"AUTHORIZER"`, "ApiKeySourceType: "},
		{"a private API", `"Name": {"Ref": "AWS::StackName"}`, `"EndpointConfiguration": {"Types": ["PRIVATE"]}`,
			"EndpointConfiguration.Types"},
		{"a validator", `"HttpMethod": "GET",`, `"HttpMethod": "GET", "RequestValidatorId": "x",`,
			"Resources.Get.Properties.RequestValidatorId: not known"},
		{"a usage plan", `"HttpMethod": "GET",`, `"HttpMethod": "GET", "ApiKeyRequired": true,`,
			"Resources.Get.Properties.ApiKeyRequired: "},
		{"another authorization", `"AuthorizationType": "CUSTOM"`, `"AuthorizationType": "COGNITO_USER_POOLS"`,
			`AuthorizationType: "COGNITO_USER_POOLS"`},
		{"no authorizer", `"AuthorizerId": {"Ref": "Auth"},`, ``, "AuthorizerId: missing"},
		{"an authorizer that is none", `"AuthorizerId": {"Ref": "Auth"},`, `"AuthorizerId": {"Ref": "A"},`,
			`Resources.Get: authorizer: "A" is none of authorizers`},
		{"a function of the language", `{"Ref": "Deployment"}`, `{"Fn::ImportValue": "x"}`,
			`DeploymentId: "Fn::ImportValue" is not known to the local gateway`},
		{"what is not there", `{"Ref": "Deployment"}`, `{"Ref": "Nothing"}`,
			`DeploymentId: Ref: the template has no resource and no parameter "Nothing"`},
		{"an attribute", `{"Fn::GetAtt": ["A", "ResourceId"]}`, `{"Fn::GetAtt": ["A", "Name"]}`,
			`ResourceId: Fn::GetAtt: "Name" of "A"`},
		{"a parameter without a value", `"gatewayresponse.header.X": "'1'"`,
			`"gatewayresponse.header.X": {"Ref": "Size"}`,
			"is a \"AWS::SSM::Parameter::Value<String>\", and the local gateway only knows String and Number"},
		{"a parameter without a default", `"Default": "shop"`, `"MinLength": 1`,
			"has no default, and the local gateway cannot be given a value"},
		{"a deployment with a stage", `"DependsOn": ["Get", "Denied"], "Properties": {`,
			`"DependsOn": ["Get", "Denied"], "Properties": {"StageName": "prod", `,
			"Resources.Deployment.Properties.StageName: not known"},
		{"a resource without a value", `"gatewayresponse.header.X": "'1'"`,
			`"gatewayresponse.header.X": {"Ref": "May"}`,
			"whose Ref the local gateway does not know"},
		{"itself", `"FunctionName": {"Ref": "Function"}`, `"FunctionName": {"Ref": "Live"}`,
			"AuthorizerUri: the value refers to itself"},
		{"a Sub that is open", `${Live}/inv`, `${Live/inv`, "is not closed"},
		{"a cached result", `"AuthorizerResultTtlInSeconds": 0`, `"AuthorizerResultTtlInSeconds": 300`,
			"Resources.Auth.Properties.AuthorizerResultTtlInSeconds: 300: answers"},
		{"the default of five minutes", `"AuthorizerResultTtlInSeconds": 0, `, ``,
			"Resources.Auth.Properties.AuthorizerResultTtlInSeconds: missing"},
		{"a token authorizer", `"Type": "REQUEST"`, `"Type": "TOKEN"`,
			`Resources.Auth.Properties: type: "TOKEN": the local gateway knows REQUEST`},
		{"an identity source", `"Type": "REQUEST"`, `"Type": "REQUEST", "IdentitySource": "method.request.header.A"`,
			"Resources.Auth.Properties: identitySource: the local gateway knows none"},
		{"a number", `"AuthorizerResultTtlInSeconds": 0`, `"AuthorizerResultTtlInSeconds": "0.5"`,
			"want a whole number"},
		{"a part of a property", `"IntegrationHttpMethod": "ANY"`, `"IntegrationHttpMethod": "ANY", "TlsConfig": {}`,
			"Resources.Get.Properties.Integration.TlsConfig: not known"},
		{"a VPC link", `"IntegrationHttpMethod": "ANY"`,
			`"IntegrationHttpMethod": "ANY", "ConnectionType": "VPC_LINK"`, "Integration.ConnectionType: "},
		{"an integration", `"Type": "HTTP_PROXY"`, `"Type": "AWS"`, `Integration.Type: "AWS": the local gateway knows`},
		{"a mapping of what is not declared", `"IntegrationHttpMethod": "ANY"`,
			`"IntegrationHttpMethod": "ANY", "RequestParameters": {"integration.request.header.X": ` +
				`"method.request.header.Y"}`, "the method does not declare method.request.header.Y"},
		{"a mapping", `"IntegrationHttpMethod": "ANY"`,
			`"IntegrationHttpMethod": "ANY", "RequestParameters": {"header.X": "'1'"}`,
			"Resources.Get: integration.requestParameters: "},
		{"a MOCK with a pattern", `"Type": "HTTP_PROXY", "IntegrationHttpMethod": "ANY"`,
			`"Type": "MOCK", "RequestTemplates": {"application/json": "{\"statusCode\": 200}"}, ` +
				`"IntegrationResponses": [{"StatusCode": "200", "SelectionPattern": "2.."}]`,
			"IntegrationResponses[0].SelectionPattern: not known"},
		{"a MOCK with a program", `"Type": "HTTP_PROXY", "IntegrationHttpMethod": "ANY"`,
			`"Type": "MOCK", "RequestTemplates": {"application/json": "#set($a = 1)"}, "IntegrationResponses": ` +
				`[{"StatusCode": "200"}]`, "Integration.RequestTemplates: application/json: the local gateway only " +
				"knows"},
		{"no permission", `"AWS::Lambda::Permission"`, `"AWS::Lambda::Url"`,
			`Resources.Auth.Properties.AuthorizerUri: no AWS::Lambda::Permission allows API Gateway to invoke ` +
				`"Function" ` +
				`for this authorizer`},
		{"a permission for another", `/authorizers/${Auth}`, `/authorizers/other`, "no AWS::Lambda::Permission"},
		{"a permission for routes", `${Api}/authorizers/${Auth}`, `${Api}/*/GET/a`, "no AWS::Lambda::Permission"},
		{"a permission for what is not known", `"SourceArn": {"Fn::Sub": "arn`,
			`"SourceArn": {"Fn::ImportValue": "arn`, "no AWS::Lambda::Permission"},
		{"no function", `functions/${Live}/invocations`, `functions/${Live}`, "AuthorizerUri: "},
		{"a response twice", `"Deployment": {`,
			`"Again": {"Type": "AWS::ApiGateway::GatewayResponse", "Properties": {"RestApiId": {"Ref": "Api"}, ` +
				`"ResponseType": "ACCESS_DENIED"}}, "Deployment": {`,
			"Resources.Again.Properties.ResponseType: the API has two gateway responses of type ACCESS_DENIED"},
		{"a response that does not exist", `"ResponseType": "ACCESS_DENIED"`, `"ResponseType": "DENIED"`,
			"Resources.Denied.Properties: not known"},
		{"a response that is not deployed", `["Get", "Denied"]`, `["Get"]`,
			"Resources.Denied: the deployment Deployment does not depend on this resource"},
		{"a method that is not deployed", `["Get", "Denied"]`, `"Denied"`,
			"Resources.Get: the deployment Deployment does not depend on this resource"},
		{"no stage", `"AWS::ApiGateway::Stage"`, `"AWS::ApiGateway::Model"`, "Resources.Api: the API has no stage"},
		{"a cache", `"TracingEnabled": true`, `"CacheClusterEnabled": true`, "CacheClusterEnabled: "},
		{"no list of objects", `"TracingEnabled": true`, `"MethodSettings": {"HttpMethod": "*"}`,
			"Resources.Stage.Properties.MethodSettings: want a list, got"},
		{"no object", `{"gatewayresponse.header.X": "'1'"}`, `["v"]`,
			"Resources.Denied.Properties.ResponseParameters: want an object, got"},
		{"stage variables", `"TracingEnabled": true`, `"Variables": {"v": "1"}`,
			"Resources.Stage.Properties.Variables: not known to the local gateway"},
		{"no part", `"Name": {"Ref": "AWS::StackName"}`, `"EndpointConfiguration": ["REGIONAL"]`,
			"Resources.Api.Properties.EndpointConfiguration: want an object, got"},
		{"no list", `"Name": {"Ref": "AWS::StackName"}`, `"EndpointConfiguration": {"Types": {"a": "REGIONAL"}}`,
			"EndpointConfiguration.Types: want a list, got"},
		{"a setting of methods", `"TracingEnabled": true`,
			`"MethodSettings": [{"HttpMethod": "*", "CacheTtlInSeconds": 5}]`,
			"Resources.Stage.Properties.MethodSettings[0].CacheTtlInSeconds: not known"},
		{"a path in a circle", `{"Fn::GetAtt": "Api.RootResourceId"}`, `{"Ref": "A"}`,
			"is not a resource of the API, nor its root"},
		{"a method of an API that is not known", `"Properties": {"RestApiId": {"Ref": "Api"}, "ResourceId"`,
			`"Properties": {"RestApiId": {"Fn::ImportValue": "shop-api"}, "ResourceId"`,
			`Resources.Get.Properties.RestApiId: "Fn::ImportValue" is not known to the local gateway`},
		{"a gateway response without an API", `"RestApiId": {"Ref": "Api"}, "ResponseType"`, `"ResponseType"`,
			"Resources.Denied.Properties.RestApiId: missing"},
		{"no API", `"AWS::ApiGateway::RestApi"`, `"AWS::ApiGateway::Account"`,
			"Resources: the template has no API, neither"},
	} {
		if strings.Count(good, c.old) == 0 {
			t.Errorf("%s: the template has no %s", c.name, c.old)
			continue
		}
		refused(t, c.name, strings.Replace(good, c.old, c.broken, 1), template.Options{}, c.want)
	}
	if _, err := template.Parse("t.json", []byte(good), template.Options{}); err != nil {
		t.Errorf("the template that these are variants of is refused: %v", err)
	}

	all := string(readSynthesized(t))
	http, socket := template.Options{API: api(t, []byte(all), "Http")},
		template.Options{API: api(t, []byte(all), "Socket")}
	for _, c := range []struct {
		name, old, broken, want string
		o                       template.Options
	}{
		{"a JWT authorizer", `"AuthorizerType": "REQUEST"`, `"AuthorizerType": "JWT"`,
			`AuthorizerType: "JWT": the local gateway only knows REQUEST`, http},
		{"a queue behind a route", `"IntegrationType": "HTTP_PROXY"`,
			`"IntegrationSubtype": "SQS-SendMessage", "IntegrationType": "AWS_PROXY"`, "IntegrationSubtype: not known",
			http},
		{"signatures on an HTTP API", `"AuthorizationType": "CUSTOM"`, `"AuthorizationType": "AWS_IAM"`,
			`AuthorizationType: "AWS_IAM": the local gateway knows CUSTOM and NONE, and AWS_IAM for a REST API`, http},
		{"scopes", `"RouteKey": "GET /product/{id}"`, `"AuthorizationScopes": ["a"], "RouteKey": "GET /product/{id}"`,
			"AuthorizationScopes: not known", http},
		{"a target", `"integrations/"`, `"integration/"`, "Target: want integrations/", http},
		{"no payload format", `"PayloadFormatVersion": "2.0"`, `"Description": "x"`,
			`payloadFormatVersion: want "1.0" or "2.0"`, http},
		{"CORS for everybody's credentials", `"CorsConfiguration": {`,
			`"CorsConfiguration": { "AllowCredentials": true, "ExposeHeaders": [], "AllowOrigins": ["*"] }, "Tags": {`,
			"CorsConfiguration: allowCredentials: it cannot be combined with the origin *", http},
		{"a stage that nobody deploys", `"AutoDeploy": true`, `"AutoDeploy": false`, "AutoDeploy is off", http},
		{"another protocol", `"ProtocolType": "WEBSOCKET"`, `"ProtocolType": "GRPC"`,
			"ProtocolType: want HTTP or WEBSOCKET", socket},
		{"an endpoint that is off", `"ProtocolType": "WEBSOCKET"`,
			`"DisableExecuteApiEndpoint": true, "ProtocolType": "WEBSOCKET"`, "DisableExecuteApiEndpoint: ", socket},
	} {
		if strings.Count(all, c.old) == 0 {
			t.Errorf("%s: the template has no %s", c.name, c.old)
			continue
		}
		refused(t, c.name, strings.ReplaceAll(all, c.old, c.broken), c.o, c.want)
	}
	refused(t, "an API that is not there", all, template.Options{API: "Api"},
		`the template has no API "Api"; its APIs are `)
	refused(t, "a stage that is not there", good, template.Options{Stage: "test"},
		`the API has no stage "test"; its stages are prod-us-east-1`)
	refused(t, "too much", good+strings.Repeat(" ", 1<<20), template.Options{}, "want at most 1048576")
	aliases := `"L0": {"Type": "AWS::Lambda::Alias", "Properties": {"Name": "live", "FunctionName": "f"}},`
	for i := range 6 {
		aliases += fmt.Sprintf(`"L%d": {"Type": "AWS::Lambda::Alias", "Properties": {"Name": "live", `+
			`"FunctionName": {"Fn::Sub": "%s"}}},`, i+1, strings.Repeat(fmt.Sprintf("${L%d}", i), 20))
	}
	refused(t, "too many steps", strings.Replace(strings.Replace(good, `"Resources": {`, `"Resources": {`+aliases, 1),
		`${Live}/inv`, `${L6}/inv`, 1), template.Options{}, "needs more than 100000 steps")
	refused(t, "too deep", strings.Repeat(`{"a":`, 100), template.Options{},
		"more than 64 values are inside each other")
}

func refused(t *testing.T, name, text string, o template.Options, want string) {
	t.Helper()
	_, err := template.Parse("t.json", []byte(text), o)
	var e *stage.Error
	if !errors.As(err, &e) || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v; want %q", name, err, want)
	}
}

// somebody is a known signer. An API with AWS_IAM is not served if no signers are known.
var somebody = map[string]stage.Credential{"AKIAANN": {Secret: "secret", Account: "123456789012", Caller: "AIDAANN",
	UserARN: "arn:aws:iam::123456789012:user/ann"}}

type unusedFunction struct{}

func (unusedFunction) Invoke(context.Context, []byte) ([]byte, error) {
	return nil, errors.New("not asked")
}

// FuzzParse checks that any text gives either an API that can be served, or problems that each name the file, and that
// reading ends.
func FuzzParse(f *testing.F) {
	f.Add(`{"Resources":{"H":{"Type":"AWS::ApiGatewayV2::Api","Properties":{"ProtocolType":"HTTP"}},`+
		`"R":{"Type":"AWS::ApiGatewayV2::Route","Properties":{"ApiId":{"Ref":"H"},"RouteKey":"GET /{a}",`+
		`"Target":{"Fn::Join":["/",["integrations",{"Ref":"I"}]]}}},"I":{"Type":"AWS::ApiGatewayV2::Integration",`+
		`"Properties":{"ApiId":{"Ref":"H"},"IntegrationType":"HTTP_PROXY","IntegrationMethod":"ANY",`+
		`"IntegrationUri":"https://a.example/{a}",`+
		`"ResponseParameters":{"200":{"ResponseParameters":[{"Destination":"overwrite:header.x",`+
		`"Source":"$context.requestId"}]}}}},`+
		`"S":{"Type":"AWS::ApiGatewayV2::Stage","Properties":{"ApiId":{"Ref":"H"},"StageName":"$default",`+
		`"AutoDeploy":true}}}}`, "")
	f.Add(strings.Replace(small, "${!x}", "", 1), "Api")
	f.Add(small, "")
	f.Add(`{"Resources":{"A":{"Type":"AWS::ApiGatewayV2::Api","Properties":{"ProtocolType":"HTTP",`+
		`"CorsConfiguration":{"MaxAge":{"Ref":"A"}}}}}}`, "A")
	f.Add(`{"Resources":{"A":{"Type":"AWS::ApiGateway::RestApi"},"B":{"Type":"AWS::ApiGateway::Method",`+
		`"Properties":{"RestApiId":{"Fn::Sub":["${A}",{"A":{"Ref":"A"}}]}}}}}`, "")
	f.Fuzz(func(t *testing.T, text, api string) {
		d, err := template.Parse("t.json", []byte(text),
			template.Options{API: api, Targets: map[string]string{"https://shop.example.com": "http://127.0.0.1:9"}})
		if err != nil {
			var e *stage.Error
			if !errors.As(err, &e) || len(e.Problems) == 0 || e.Problems[0].File != "t.json" ||
				e.Problems[0].Message == "" {
				t.Fatalf("%v is not a list of problems", err)
			}
			return
		}
		authorizers, integrations := d.Functions()
		functions := make(map[string]stage.Function)
		for _, name := range slices.Concat(authorizers, integrations) {
			functions[name] = unusedFunction{}
		}
		if _, err := stage.New(stage.Config{Description: d, Functions: functions, Credentials: somebody}); err != nil {
			t.Fatalf("New refuses what Parse accepted: %v\n%s", err, text)
		}
	})
}
