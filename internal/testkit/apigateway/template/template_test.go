package template_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/testkit/apigateway"
	"github.com/sluicelimits/sluice/internal/testkit/apigateway/template"
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
	_, list, _ := strings.Cut(err.Error(), "want one of the APIs ")
	list, _, _ = strings.Cut(list, ", got")
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
	read := func(prefix string) *apigateway.Description {
		d, err := template.Parse("t.json", data, template.Options{API: api(t, data, prefix), Targets: map[string]string{
			"https://shop.example.com": "http://127.0.0.1:9000/shop"}})
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
	route := func(d *apigateway.Description, key string) apigateway.Route {
		t.Helper()
		at := slices.IndexFunc(d.Routes, func(r apigateway.Route) bool { return r.Key == key })
		if at < 0 {
			t.Fatalf("no route %s in %+v", key, d.Routes)
		}
		return d.Routes[at]
	}

	rest := read("Rest")
	if rest.Kind != apigateway.REST || rest.Stage != "prod" || len(rest.Routes) != 8 {
		t.Errorf("%s %s with %d routes", rest.Kind, rest.Stage, len(rest.Routes))
	}
	product := route(rest, "GET /product/{id}")
	const service = "http://127.0.0.1:9000/shop"
	if g := product.Integration; g.Type != apigateway.HTTPProxy || g.URL != service+"/v1/product/{id}" ||
		g.Method != "GET" || product.Authorizer == "" ||
		g.RequestParameters["integration.request.path.id"] != "method.request.path.id" ||
		g.RequestParameters["integration.request.header.x-sluice-caller"] != "context.authorizer.caller" {
		t.Errorf("the REST API's route of a product is %+v", product)
	}
	if o := route(rest, "POST /orders"); o.Integration.Type != apigateway.AWSProxy ||
		o.Integration.Function != "orders" || o.Authorizer == "" {
		t.Errorf("%+v", o)
	}
	if h := route(rest, "GET /healthz"); h.Authorizer != "" || h.Integration.URL != service+"/healthz" {
		t.Errorf("the REST API's route of /healthz is %+v", h)
	}
	if o := route(rest, "OPTIONS /orders"); o.Integration.Type != apigateway.Mock ||
		o.Integration.StatusCode != "204" || o.Authorizer != "" ||
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
	if p := route(http, "GET /product/{id}"); http.Kind != apigateway.HTTP || http.Stage != "$default" ||
		len(http.Routes) != 3 || p.Authorizer == "" ||
		p.Integration.RequestParameters["overwrite:header.x-sluice-problem"] != "$context.authorizer.problem" ||
		p.Integration.Payload != "" {
		t.Errorf("the HTTP API is %+v", http)
	}
	if o := route(http, "POST /orders"); o.Integration.Payload != "2.0" || o.Integration.Function != "orders" {
		t.Errorf("%+v", o)
	}

	socket := read("Socket")
	if c := route(socket, "$connect"); socket.Kind != apigateway.WebSocket || socket.Stage != "prod" ||
		len(socket.Routes) != 1 || c.Authorizer == "" {
		t.Errorf("the WebSocket API is %+v", socket)
	}
}

// small is a template with a REST API that uses the functions of CloudFormation.
const small = `{"Resources": {
  "Api": {"Type": "AWS::ApiGateway::RestApi"},
  "A": {"Type": "AWS::ApiGateway::Resource", "Properties": {"RestApiId": {"Ref": "Api"},
    "ParentId": {"Fn::GetAtt": ["Api", "RootResourceId"]}, "PathPart": "a"}},
  "Get": {"Type": "AWS::ApiGateway::Method",
   "Properties": {"RestApiId": {"Ref": "Api"}, "ResourceId": {"Ref": "A"}, "HttpMethod": "GET",
   "AuthorizationType": "CUSTOM", "AuthorizerId": {"Ref": "Auth"},
   "Integration": {"Type": "HTTP_PROXY", "IntegrationHttpMethod": "ANY",
     "Uri": {"Fn::Sub": "https://${AWS::Region}.example.com/a"}}}},
  "Auth": {"Type": "AWS::ApiGateway::Authorizer", "Properties": {"RestApiId": {"Ref": "Api"}, "Type": "REQUEST",
    "AuthorizerResultTtlInSeconds": 0, "AuthorizerUri":
  {"Fn::Sub":
   "arn:${AWS::Partition}:apigateway:${AWS::Region}:lambda:path/2015-03-31/functions/${Function.Arn}/invocations"}}},
  "Function": {"Type": "AWS::Lambda::Function", "Properties": {}},
  "Stage": {"Type": "AWS::ApiGateway::Stage", "Properties": {"RestApiId": {"Ref": "Api"},
    "StageName": {"Fn::Join": ["-", ["prod", {"Ref": "AWS::Region"}]]}}}
}}`

// Guarantees that the functions in a template are evaluated as CloudFormation documents them, and that an unknown
// function is an error.
func TestLanguage(t *testing.T) {
	d, err := template.Parse("t.json", []byte(small), template.Options{Region: "eu-west-3"})
	if err != nil {
		t.Fatal(err)
	}
	if d.API != "Api" || d.Stage != "prod-eu-west-3" || d.Region != "eu-west-3" ||
		d.Authorizers["Auth"].Function != "Function" {
		t.Errorf("the REST API is %+v", d)
	}
	if r := d.Routes[0]; r.Key != "GET /a" || r.Authorizer != "Auth" || r.Integration.Type != apigateway.Echo ||
		r.Integration.URL != "https://eu-west-3.example.com/a" || r.Integration.Method != "" {
		t.Errorf("the REST API's route is %+v", r)
	}
	_, err = template.Parse("t.json", []byte(strings.Replace(small, "Fn::Join", "Fn::Select", 1)), template.Options{})
	if err == nil || !strings.Contains(err.Error(), "Fn::Select") {
		t.Errorf("a function that is not known: %v", err)
	}
}
