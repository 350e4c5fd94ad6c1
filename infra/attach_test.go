package infra_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsapigateway"
	apis "github.com/aws/aws-cdk-go/awscdk/v2/awsapigatewayv2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsapigatewayv2authorizers"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsapigatewayv2integrations"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssqs"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra"
)

const (
	authorizerARN = "arn:aws:lambda:eu-west-1:123456789012:function:sluice-eu-1-authorizer"
	shopURL       = "https://shop.example.com"
)

// apiStack is a stack for APIs. The functions are in other stacks.
type apiStack struct {
	app                awscdk.App
	stack              awscdk.Stack
	authorizer, orders awslambda.IFunction
}

func newAPIStack(outdir string) *apiStack {
	app := awscdk.NewApp(&awscdk.AppProps{AnalyticsReporting: jsii.Bool(false), Outdir: &outdir})
	s := &apiStack{app: app, stack: awscdk.NewStack(app, jsii.String("Shop"), &awscdk.StackProps{
		Env:                &awscdk.Environment{Account: jsii.String("123456789012"), Region: jsii.String("eu-west-1")},
		AnalyticsReporting: jsii.Bool(false),
		Synthesizer: awscdk.NewDefaultStackSynthesizer(&awscdk.DefaultStackSynthesizerProps{
			GenerateBootstrapVersionRule: jsii.Bool(false)}),
	})}
	s.authorizer = awslambda.Function_FromFunctionArn(s.stack, jsii.String("Sluice"), jsii.String(authorizerARN))
	s.orders = awslambda.Function_FromFunctionAttributes(s.stack, jsii.String("Orders"), &awslambda.FunctionAttributes{
		FunctionArn:     jsii.String("arn:aws:lambda:eu-west-1:123456789012:function:orders"),
		SameEnvironment: jsii.Bool(true)})
	return s
}

func (s *apiStack) newREST() awsapigateway.RestApi {
	api := awsapigateway.NewRestApi(s.stack, jsii.String("Rest"),
		&awsapigateway.RestApiProps{CloudWatchRole: jsii.Bool(false),
			DefaultCorsPreflightOptions: &awsapigateway.CorsOptions{
				AllowOrigins: jsii.Strings("https://app.example.com")}})
	product := api.Root().AddResource(jsii.String("product"), nil).AddResource(jsii.String("{id}"), nil)
	product.AddMethod(jsii.String("GET"), awsapigateway.NewHttpIntegration(jsii.String(shopURL+"/v1/product/{id}"),
		&awsapigateway.HttpIntegrationProps{
			Options: &awsapigateway.IntegrationOptions{RequestParameters: &map[string]*string{
				"integration.request.path.id": jsii.String("method.request.path.id")}},
		}), &awsapigateway.MethodOptions{RequestParameters: &map[string]*bool{"method.request.path.id": jsii.Bool(
		true)}})
	api.Root().AddResource(jsii.String("orders"), nil).AddMethod(jsii.String("POST"),
		awsapigateway.NewLambdaIntegration(s.orders, nil), nil)
	api.Root().AddResource(jsii.String("healthz"), nil).AddMethod(jsii.String("GET"),
		awsapigateway.NewHttpIntegration(jsii.String(shopURL+"/healthz"), nil), nil)
	return api
}

func (s *apiStack) http() apis.HttpApi {
	api := apis.NewHttpApi(s.stack, jsii.String("Http"), &apis.HttpApiProps{CorsPreflight: &apis.CorsPreflightOptions{
		AllowOrigins: jsii.Strings("https://app.example.com"), AllowHeaders: jsii.Strings("x-api-key"),
		AllowMethods: &[]apis.CorsHttpMethod{apis.CorsHttpMethod_GET}}})
	route := func(path string, method apis.HttpMethod, integration apis.HttpRouteIntegration) {
		api.AddRoutes(&apis.AddRoutesOptions{Path: &path, Methods: &[]apis.HttpMethod{method},
			Integration: integration})
	}
	route("/product/{id}", apis.HttpMethod_GET,
		awsapigatewayv2integrations.NewHttpUrlIntegration(jsii.String("Product"),
			jsii.String(shopURL+"/v1/product/{id}"), nil))
	route("/orders", apis.HttpMethod_POST, awsapigatewayv2integrations.NewHttpLambdaIntegration(jsii.String("Orders"),
		s.orders, nil))
	route("/healthz", apis.HttpMethod_GET, awsapigatewayv2integrations.NewHttpUrlIntegration(jsii.String("Health"),
		jsii.String(shopURL+"/healthz"), nil))
	return api
}

func (s *apiStack) socket() apis.WebSocketApi {
	api := apis.NewWebSocketApi(s.stack, jsii.String("Socket"),
		&apis.WebSocketApiProps{ConnectRouteOptions: &apis.WebSocketRouteOptions{
			Integration: awsapigatewayv2integrations.NewWebSocketLambdaIntegration(jsii.String("Connect"), s.orders,
				nil)}})
	api.AddRoute(jsii.String("say"), &apis.WebSocketRouteOptions{
		Integration: awsapigatewayv2integrations.NewWebSocketLambdaIntegration(jsii.String("Say"), s.orders, nil)})
	apis.NewWebSocketStage(s.stack, jsii.String("SocketStage"), &apis.WebSocketStageProps{WebSocketApi: api,
		StageName: jsii.String("prod"), AutoDeploy: jsii.Bool(true)})
	return api
}

// synth returns the template of the stack.
func (s *apiStack) synth() (template map[string]any, err error) {
	if err := infra.Synth(s.app); err != nil {
		return nil, err
	}
	template, _ = s.app.Synth(nil).GetStackByName(s.stack.StackName()).Template().(map[string]any)
	return template, nil
}

// attachedText returns the template of an API of each kind, all attached.
var attachedText = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp(templates, "")
	if err != nil {
		return nil, err
	}
	s := newAPIStack(dir)
	healthz := []string{"GET /healthz"}
	for _, err := range []error{
		errorOf(infra.AttachREST(s.stack, "SluiceRest", &infra.AttachRESTProps{API: s.newREST(),
			Authorizer: s.authorizer, Except: healthz, AllowOrigin: "https://app.example.com"})),
		errorOf(infra.AttachHTTP(s.stack, "SluiceHttp", &infra.AttachHTTPProps{API: s.http(), Authorizer: s.authorizer,
			Except: healthz, PassDenials: true})),
		errorOf(infra.AttachWebSocket(s.stack, "SluiceSocket", &infra.AttachWebSocketProps{API: s.socket(),
			Authorizer: s.authorizer})),
	} {
		if err != nil {
			return nil, err
		}
	}
	template, err := s.synth()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err = e.Encode(template)
	return bytes.TrimSpace(b.Bytes()), err
})

func errorOf(_ *infra.Attachment, err error) error { return err }

// Guarantees that every change of an attachment shows as a change of a golden file. The local gateway is tested with
// the same file.
func TestAttachTemplate(t *testing.T) {
	text, err := attachedText()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "attach.template.json", text)
}

type part = map[string]any

// each calls f with each resource of a type, in the order of their ids.
func each(template part, kind string, do func(id string, properties part)) {
	all, _ := template["Resources"].(part)
	for _, id := range slices.Sorted(maps.Keys(all)) {
		if r, _ := all[id].(part); r["Type"] == kind {
			p, _ := r["Properties"].(part)
			do(id, p)
		}
	}
}

func parsed(t *testing.T, text string) (template part) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &template); err != nil {
		t.Fatalf("%v in %.200s", err, text)
	}
	return template
}

func asText(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// forbiddenParts returns everything in a template that an attached API must not have.
func forbiddenParts(template part) (all []string) {
	say := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	sources := make(map[string]string) // by authorizer: the APIs that may invoke the function
	each(template, "AWS::Lambda::Permission", func(id string, p part) {
		if !strings.Contains(asText(p["FunctionName"]), "authorizer") {
			return
		}
		source := asText(p["SourceArn"])
		if strings.Contains(source, "*") || p["Action"] != "lambda:InvokeFunction" ||
			p["Principal"] != "apigateway.amazonaws.com" {
			say("%s permits %s", id, asText(p))
		}
		sources[id] = source
	})
	authorizer := func(id, api string, p part) {
		for name, at := range sources {
			if strings.HasSuffix(at, asText(p[api])+`,"/authorizers/",{"Ref":"`+id+`"}]]}`) {
				delete(sources, name)
				return
			}
		}
		say("%s: nothing lets it invoke the function", id)
	}
	each(template, "AWS::ApiGateway::Authorizer", func(id string, p part) {
		authorizer(id, "RestApiId", p)
		if p["AuthorizerResultTtlInSeconds"] != 0.0 || p["Type"] != "REQUEST" || p["IdentitySource"] != nil {
			say("%s: %s", id, asText(p))
		}
	})
	socket := ""
	each(template, "AWS::ApiGatewayV2::Api", func(id string, p part) {
		if p["ProtocolType"] == "WEBSOCKET" {
			socket = id
		}
	})
	each(template, "AWS::ApiGatewayV2::Authorizer", func(id string, p part) {
		authorizer(id, "ApiId", p)
		http := !strings.Contains(asText(p["ApiId"]), `"`+socket+`"`)
		if p["AuthorizerType"] != "REQUEST" || p["IdentitySource"] != nil || http &&
			(p["AuthorizerResultTtlInSeconds"] != 0.0 || p["AuthorizerPayloadFormatVersion"] != "2.0" ||
				p["EnableSimpleResponses"] != true) {
			say("%s: %s", id, asText(p))
		}
	})
	for id := range sources {
		say("%s lets something else than an authorizer invoke the function", id)
	}
	wrongResponses(template, say)
	wrongRoutes(template, socket, say)
	return all
}

func wrongResponses(template part, say func(string, ...any)) {
	limits := map[string]string{"Retry-After": "retryAfter", "X-RateLimit-Limit": "rateLimitLimit",
		"X-RateLimit-Remaining": "rateLimitRemaining",
		"X-RateLimit-Reset":     "rateLimitReset", "RateLimit": "rateLimit", "RateLimit-Policy": "rateLimitPolicy"}
	want := map[string]any{"ACCESS_DENIED": "429", "UNAUTHORIZED": "401", "AUTHORIZER_FAILURE": "500",
		"AUTHORIZER_CONFIGURATION_ERROR": "500", "DEFAULT_4XX": nil, "DEFAULT_5XX": nil}
	each(template, "AWS::ApiGateway::GatewayResponse", func(id string, p part) {
		kind, _ := p["ResponseType"].(string)
		status, known := want[kind]
		if !known || p["StatusCode"] != status {
			say("%s: %s", id, asText(p))
		}
		delete(want, kind)
		headers, _ := p["ResponseParameters"].(part)
		exposed := asText(headers["gatewayresponse.header.Access-Control-Expose-Headers"])
		for name, member := range limits {
			if !strings.Contains(exposed, name) {
				say("%s does not expose %s", id, name)
			}
			if kind == "ACCESS_DENIED" && headers["gatewayresponse.header."+name] != "context.authorizer."+member {
				say("%s has %v as %s", id, headers["gatewayresponse.header."+name], name)
			}
		}
		if headers["gatewayresponse.header.Access-Control-Allow-Origin"] != "'https://app.example.com'" {
			say("%s has another origin", id)
		}
		if templates, _ := p["ResponseTemplates"].(part); kind == "ACCESS_DENIED" &&
			templates["application/json"] != `{"message":$context.error.messageString`+
				`$context.authorizer.problemMembers}` {
			say("%s has the body %s", id, asText(templates))
		}
	})
	if len(want) > 0 {
		say("no gateway responses for %v", want)
	}
}

// wrongRoutes returns the routes that are not behind an authorizer, or whose backend does not get the caller's
// identity.
func wrongRoutes(template part, socket string, say func(string, ...any)) {
	mapping := func(id string, p part, key, prefix string) {
		for header, member := range map[string]string{"caller": "caller", "limit": "rateLimitLimit",
			"remaining": "rateLimitRemaining", "reset": "rateLimitReset",
			"ratelimit": "rateLimit", "ratelimit-policy": "rateLimitPolicy", "retry-after": "retryAfter",
			"problem": "problem"} {
			if p[key+"x-sluice-"+header] != prefix+member {
				say("%s maps %v to x-sluice-%s", id, p[key+"x-sluice-"+header], header)
			}
		}
	}
	each(template, "AWS::ApiGateway::Method", func(id string, p part) {
		g, _ := p["Integration"].(part)
		parameters, _ := g["RequestParameters"].(part)
		switch {
		case g["Type"] == "MOCK" && p["HttpMethod"] == "OPTIONS":
		case strings.Contains(id, "healthz"):
			if parameters["integration.request.header.x-sluice-caller"] != "'none'" {
				say("%s lets a client say who calls", id)
			}
		case p["AuthorizationType"] != "CUSTOM" || p["AuthorizerId"] == nil:
			say("%s is open to everybody", id)
		case g["Type"] == "HTTP_PROXY":
			mapping(id, parameters, "integration.request.header.", "context.authorizer.")
		}
	})
	each(template, "AWS::ApiGatewayV2::Route", func(id string, p part) {
		open := p["RouteKey"] == "GET /healthz" || strings.Contains(asText(p["ApiId"]), `"`+socket+`"`) &&
			p["RouteKey"] != "$connect"
		if !open && (p["AuthorizationType"] != "CUSTOM" || p["AuthorizerId"] == nil) {
			say("%s is open to everybody", id)
		}
	})
	each(template, "AWS::ApiGatewayV2::Integration", func(id string, p part) {
		parameters, _ := p["RequestParameters"].(part)
		switch {
		case p["IntegrationType"] != "HTTP_PROXY":
		case p["IntegrationUri"] == shopURL+"/healthz":
			if parameters["overwrite:header.x-sluice-caller"] != "none" {
				say("%s lets a client say who calls", id)
			}
		default:
			mapping(id, parameters, "overwrite:header.", "$context.authorizer.")
		}
	})
	each(template, "AWS::ApiGatewayV2::Api", func(id string, p part) {
		cors, _ := p["CorsConfiguration"].(part)
		if id != socket && !strings.Contains(asText(cors["ExposeHeaders"]), `"Retry-After"`) {
			say("%s does not expose Retry-After", id)
		}
	})
}

// Guarantees for every attached API: nothing is cached; exactly its authorizer may invoke the function; every case has
// a gateway response with all headers, which browsers may read; each route that is not excepted is behind the
// authorizer; and no client can set the identity that a backend gets. Each of these checks is shown to work: a template
// with one of them broken is found.
func TestAttachHolds(t *testing.T) {
	raw, err := attachedText()
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	if found := forbiddenParts(parsed(t, text)); len(found) > 0 {
		t.Errorf("%s", strings.Join(found, "\n"))
	}
	for _, c := range []struct{ name, old, broken string }{
		{"a cached result", `"AuthorizerResultTtlInSeconds":0`, `"AuthorizerResultTtlInSeconds":300`},
		{"a token authorizer", `"Type":"REQUEST"`, `"Type":"TOKEN"`},
		{"payload 1.0", `"AuthorizerPayloadFormatVersion":"2.0"`, `"AuthorizerPayloadFormatVersion":"1.0"`},
		{"a policy as answer", `"EnableSimpleResponses":true`, `"EnableSimpleResponses":false`},
		{"any authorizer", `"/authorizers/"`, `"/authorizers/*"`},
		{"any source", `"/authorizers/"`, `"/"`},
		{"any principal", `"FunctionName":"` + authorizerARN + `","Principal":"apigateway.amazonaws.com"`,
			`"FunctionName":"` + authorizerARN + `","Principal":"*"`},
		{"another status", `"StatusCode":"429"`, `"StatusCode":"403"`},
		{"a case without response", `"ResponseType":"AUTHORIZER_FAILURE"`, `"ResponseType":"AUTHORIZER_FAILURES"`},
		{"a header that is not mapped", `"gatewayresponse.header.Retry-After":"context.authorizer.retryAfter",`, ``},
		{"one that is mapped wrongly", `"gatewayresponse.header.X-RateLimit-Reset":"context.authorizer.rateLimitReset"`,
			`"gatewayresponse.header.X-RateLimit-Reset":"context.authorizer.rateLimitLimit"`},
		{"one that is not exposed", `, Retry-After,`, `,`},
		{"another origin", `"gatewayresponse.header.Access-Control-Allow-Origin":"'https://app.example.com'"`,
			`"gatewayresponse.header.Access-Control-Allow-Origin":"'*'"`},
		{"another body", `$context.authorizer.problemMembers}"},"ResponseType"`, `}"},"ResponseType"`},
		{"an open method or route", `"AuthorizationType":"CUSTOM"`, `"AuthorizationType":"NONE"`},
		{"a mapping to a service", `"overwrite:header.x-sluice-problem":"$context.authorizer.problem",`, ``},
		{"one on a REST API", `"integration.request.header.x-sluice-caller":"context.authorizer.caller"`,
			`"integration.request.header.x-sluice-caller":"method.request.header.x-sluice-caller"`},
		{"a client that says who calls", `"overwrite:header.x-sluice-caller":"none"`, `"overwrite:header.x":"none"`},
		{"CORS of an HTTP API", `"Retry-After","X-RateLimit-Limit"`, `"X-RateLimit-Limit"`},
	} {
		if n := strings.Count(text, c.old); n == 0 {
			t.Errorf("%s: the template has no %s", c.name, c.old)
			continue
		}
		for i := range strings.Count(text, c.old) { // each place by itself
			parts := strings.SplitN(text, c.old, i+2)
			broken := strings.Join(parts[:i+1], c.old) + c.broken + parts[i+1]
			if len(forbiddenParts(parsed(t, broken))) == 0 {
				t.Errorf("the check does not find %s at place %d", c.name, i+1)
			}
		}
	}
}

// Guarantees that an API which an attachment cannot cover is refused when the template is made, by one line that says
// what and where, and that the same stack without the problem is accepted.
func TestAttachRefuses(t *testing.T) {
	type rest = infra.AttachRESTProps
	type http = infra.AttachHTTPProps
	attachREST := func(s *apiStack, api awsapigateway.IRestApi, p rest) error {
		p.API, p.Authorizer = api, s.authorizer
		return errorOf(infra.AttachREST(s.stack, "Attachment", &p))
	}
	attachHTTP := func(s *apiStack, api apis.IHttpApi, p http) error {
		p.API, p.Authorizer = api, s.authorizer
		return errorOf(infra.AttachHTTP(s.stack, "Attachment", &p))
	}
	get := func(api apis.HttpApi, path string, integration apis.HttpRouteIntegration,
		authorizer apis.IHttpRouteAuthorizer) {
		api.AddRoutes(&apis.AddRoutesOptions{Path: &path, Methods: &[]apis.HttpMethod{apis.HttpMethod_GET},
			Integration: integration, Authorizer: authorizer})
	}
	url := func(id string) apis.HttpRouteIntegration {
		return awsapigatewayv2integrations.NewHttpUrlIntegration(&id, jsii.String(shopURL), nil)
	}
	for _, c := range []struct {
		name, want string // "": accepted
		more       int    // lines in addition to one
		make       func(s *apiStack) error
	}{
		{"a REST API", "", 0, func(s *apiStack) error { return attachREST(s, s.newREST(), rest{}) }},
		{"a method with an authorizer", "GET /mine already has an authorizer (AWS_IAM)", 0, func(s *apiStack) error {
			api := s.newREST()
			err := attachREST(s, api, rest{})
			api.Root().AddResource(jsii.String("mine"), nil).AddMethod(jsii.String("GET"), nil,
				&awsapigateway.MethodOptions{AuthorizationType: awsapigateway.AuthorizationType_IAM})
			return err
		}},
		{"one that is excepted", "", 0, func(s *apiStack) error {
			api := s.newREST()
			api.Root().AddResource(jsii.String("mine"), nil).AddMethod(jsii.String("GET"), nil,
				&awsapigateway.MethodOptions{AuthorizationType: awsapigateway.AuthorizationType_IAM})
			return attachREST(s, api, rest{Except: []string{"GET /mine"}})
		}},
		{"an exception for nothing", "Except names GET /nothing, but the API has no such route", 0,
			func(s *apiStack) error { return attachREST(s, s.newREST(), rest{Except: []string{"GET /nothing"}}) }},
		{"an API twice", "already has an authorizer (CUSTOM)", 20, func(s *apiStack) error {
			api := s.newREST()
			if err := attachREST(s, api, rest{NoDefaultResponses: true}); err != nil {
				return err
			}
			return errorOf(infra.AttachREST(s.stack, "Again", &rest{API: api, Authorizer: s.authorizer,
				NoDefaultResponses: true}))
		}},
		{"a TOKEN authorizer of ours", "An authorizer of type TOKEN sees neither the client's address nor the route",
			0, func(s *apiStack) error {
				api := s.newREST()
				awsapigateway.NewCfnAuthorizer(s.stack, jsii.String("Token"),
					&awsapigateway.CfnAuthorizerProps{RestApiId: api.RestApiId(), Name: jsii.String("t"),
						Type:           jsii.String("TOKEN"),
						IdentitySource: jsii.String("method.request.header.Authorization"),
						AuthorizerUri: jsii.String("arn:aws:apigateway:eu-west-1:lambda:path/2015-03-31/functions/" +
							authorizerARN + "/invocations")})
				return attachREST(s, api, rest{})
			}},
		{"a gateway response", "the stack has a gateway response DEFAULT_4XX at Shop/Rest/Own/Resource", 0,
			func(s *apiStack) error {
				api := s.newREST()
				api.AddGatewayResponse(jsii.String("Own"),
					&awsapigateway.GatewayResponseOptions{Type: awsapigateway.ResponseType_DEFAULT_4XX()})
				return attachREST(s, api, rest{})
			}},
		{"one that may be", "", 0, func(s *apiStack) error {
			api := s.newREST()
			api.AddGatewayResponse(jsii.String("Own"),
				&awsapigateway.GatewayResponseOptions{Type: awsapigateway.ResponseType_DEFAULT_4XX()})
			return attachREST(s, api, rest{NoDefaultResponses: true})
		}},
		{"a document", "Attachment: the API's routes are in an OpenAPI document", 0, func(s *apiStack) error {
			return attachREST(s, awsapigateway.NewSpecRestApi(s.stack, jsii.String("Spec"),
				&awsapigateway.SpecRestApiProps{
					ApiDefinition: awsapigateway.ApiDefinition_FromInline(map[string]any{"openapi": "3.0.2"})}), rest{})
		}},
		{"two origins", "Attachment: AllowOrigin is neither", 0, func(s *apiStack) error {
			return attachREST(s, s.newREST(), rest{AllowOrigin: "https://a.example, https://b.example"})
		}},
		{"no API", "Attachment: property API is missing", 0,
			func(s *apiStack) error { return attachREST(s, nil, rest{}) }},
		{"no function", "Attachment: property Authorizer is missing", 0, func(s *apiStack) error {
			return errorOf(infra.AttachWebSocket(s.stack, "Attachment", &infra.AttachWebSocketProps{API: s.socket()}))
		}},
		{"another stack", "the API is in the stack Shop, and the attachment in the stack Other", 0,
			func(s *apiStack) error {
				other := awscdk.NewStack(s.app, jsii.String("Other"), nil)
				return errorOf(infra.AttachREST(other, "Attachment", &rest{API: s.newREST(), Authorizer: s.authorizer}))
			}},
		{"an API by its id", "", 0, func(s *apiStack) error {
			return attachREST(s, awsapigateway.RestApi_FromRestApiId(s.stack, jsii.String("There"),
				jsii.String("abcde12345")), rest{})
		}},

		{"an HTTP API", "", 0, func(s *apiStack) error { return attachHTTP(s, s.http(), http{PassDenials: true}) }},
		{"a route with an authorizer", "GET /mine already has an authorizer (AWS_IAM)", 0, func(s *apiStack) error {
			api := s.http()
			get(api, "/mine", url("Mine"), awsapigatewayv2authorizers.NewHttpIamAuthorizer())
			return attachHTTP(s, api, http{})
		}},
		{"an HTTP API without routes", "no route of the HTTP API is behind Sluice", 0, func(s *apiStack) error {
			return attachHTTP(s, apis.NewHttpApi(s.stack, jsii.String("Http"), nil), http{})
		}},
		{"an integration of both", "GET /open is in Except, but shares its integration", 0, func(s *apiStack) error {
			api, one := s.http(), url("One")
			get(api, "/open", one, nil)
			get(api, "/closed", one, nil)
			return attachHTTP(s, api, http{Except: []string{"GET /open"}})
		}},
		{"denials to a service that is not told", "PassDenials: the backend of GET /product/{id} cannot have the " +
			"middleware", 1, func(s *apiStack) error {
			return attachHTTP(s, s.http(),
				http{PassDenials: true, NoMapping: true})
		}},
		{"a service that is not told", "", 0, func(s *apiStack) error {
			return attachHTTP(s, s.http(),
				http{NoMapping: true})
		}},
		{"denials to a queue", "PassDenials: the backend of POST /queue cannot have the middleware", 0,
			func(s *apiStack) error {
				api := s.http()
				api.AddRoutes(&apis.AddRoutesOptions{Path: jsii.String("/queue"),
					Methods: &[]apis.HttpMethod{apis.HttpMethod_POST},
					Integration: awsapigatewayv2integrations.NewHttpSqsIntegration(jsii.String("Q"),
						&awsapigatewayv2integrations.HttpSqsIntegrationProps{Queue: awssqs.NewQueue(s.stack,
							jsii.String("Queue"), nil)})})
				return attachHTTP(s, api, http{PassDenials: true})
			}},

		{"a WebSocket API without $connect", "the WebSocket API has no route $connect", 0, func(s *apiStack) error {
			return errorOf(infra.AttachWebSocket(s.stack, "Attachment",
				&infra.AttachWebSocketProps{API: apis.NewWebSocketApi(s.stack, jsii.String("Socket"), nil),
					Authorizer: s.authorizer}))
		}},
	} {
		s := newAPIStack(t.TempDir())
		err := c.make(s)
		if err == nil {
			_, err = s.synth()
		}
		switch {
		case c.want == "" && err != nil, c.want != "" && err == nil:
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		case err != nil && (!strings.Contains(err.Error(), c.want) || strings.Count(err.Error(), "\n") > c.more):
			t.Errorf("%s: %q, want one line with %q", c.name, err, c.want)
		}
	}
}

// Guarantees that denials are passed on only for the APIs that ask for it, in addition to those that the function had
// before, also if the function is in the same stack.
func TestAttachPassDenials(t *testing.T) {
	s := newAPIStack(*outdir(t))
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "bootstrap"), []byte("stub"), 0o600); err != nil {
		t.Fatal(err)
	}
	function := awslambda.NewFunction(s.stack, jsii.String("Authorizer"),
		&awslambda.FunctionProps{Runtime: awslambda.Runtime_PROVIDED_AL2023(), Handler: jsii.String("bootstrap"),
			Code:        awslambda.Code_FromAsset(&dir, nil),
			Environment: &map[string]*string{"SLUICE_PASS_DENIALS": jsii.String("a1b2c3")}})
	for i, pass := range []bool{true, false, true} {
		id := fmt.Sprintf("Api%d", i)
		api := apis.NewHttpApi(s.stack, &id,
			&apis.HttpApiProps{DefaultIntegration: awsapigatewayv2integrations.NewHttpUrlIntegration(jsii.String("U"),
				jsii.String(shopURL), nil)})
		if err := errorOf(infra.AttachHTTP(s.stack, "Attachment"+id, &infra.AttachHTTPProps{API: api,
			Authorizer: function, PassDenials: pass})); err != nil {
			t.Fatal(err)
		}
	}
	template, err := s.synth()
	if err != nil {
		t.Fatal(err)
	}
	each(template, "AWS::Lambda::Function", func(_ string, p part) {
		got := asText(get(p, "Environment", "Variables", "SLUICE_PASS_DENIALS"))
		if !strings.Contains(got, `"a1b2c3"`) || !strings.Contains(got, `"Ref":"Api0`) ||
			strings.Contains(got, `"Ref":"Api1`) || !strings.Contains(got, `"Ref":"Api2`) {
			t.Errorf("SLUICE_PASS_DENIALS is %s", got)
		}
	})
}

// Guarantees that the Go code in docs/attach.md is copied from the examples, which compile.
func TestAttachPage(t *testing.T) {
	page, err := os.ReadFile("../docs/attach.md")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("attach_example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	flat := func(code string) string {
		lines := strings.Split(strings.TrimSpace(code), "\n")
		for i := range lines {
			lines[i] = strings.TrimSpace(lines[i])
		}
		return strings.Join(lines, "\n")
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 2 {
		t.Errorf("docs/attach.md has %d blocks of Go, want 2", len(blocks))
	}
	for _, b := range blocks {
		if !strings.Contains(flat(string(code)), flat(b[1])) {
			t.Errorf("this code of docs/attach.md is in no example:\n%s", b[1])
		}
	}
}
