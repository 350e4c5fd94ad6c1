package infra

import (
	"fmt"
	"slices"
	"strings"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	apis "github.com/aws/aws-cdk-go/awscdk/v2/awsapigatewayv2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"
)

// AttachHTTPProps are the parameters of [AttachHTTP].
type AttachHTTPProps struct {
	API        apis.IHttpApi       // required; made in this stack, or imported into it
	Authorizer awslambda.IFunction // required; the Authorizer of a Cell, or that function imported by its ARN

	// Except lists the keys of routes that stay as they are, such as "GET /healthz". Anybody may call such a route,
	// unless it has an authorizer of its own. If such a route leads to HTTP_PROXY, it needs an integration of its own:
	// there the header x-sluice-caller is overwritten, so that no client can forge a decision.
	Except []string

	// NoMapping leaves out the x-sluice-… headers in requests to services behind HTTP_PROXY. The middleware in these
	// services reads the decision from them.
	NoMapping bool

	// PassDenials passes denied requests on to the backend, where the middleware answers 429. An HTTP API cannot do
	// that by itself: it answers a denial with 403. A backend without the middleware would serve the denied requests,
	// so follow the order of steps in docs/attach.md. If the function is made in this stack, the API's id is added to
	// its SLUICE_PASS_DENIALS. Otherwise add the id to the cell's passDenials in the deployment file; this construct
	// cannot see whether it is there. Refused if a route leads to a backend that cannot have the middleware: an AWS
	// service, or HTTP_PROXY with NoMapping.
	PassDenials bool
}

// AttachHTTP puts Sluice in front of an HTTP API:
//
//   - an authorizer of type REQUEST on every route, with payload format 2.0, simple responses and no identity source;
//     its results are not cached
//   - headers with the decision, in requests to services behind HTTP_PROXY
//   - Sluice's headers among those that the API's CORS setting exposes, if it has such a setting
//
// The error says what is wrong with the props. The template is refused, with one line for each problem, if a route
// already has an authorizer, if Except names a route that does not exist, or if the API has no route.
func AttachHTTP(scope constructs.Construct, id string, props *AttachHTTPProps) (a *Attachment, err error) {
	defer recoverError(id, &err)
	if err := checkRequired(props.API, props.Authorizer); err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	if l1, ok := props.API.Node().DefaultChild().(apis.CfnApi); ok && (l1.Body() != nil || l1.BodyS3Location() != nil) {
		return nil, fmt.Errorf("%s: %w", id, errDocument)
	}
	own, c, err := attach(scope, id, props.API, props.Authorizer, props.API.ApiId(), props.Except)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	authorizer := apis.NewCfnAuthorizer(own, jsii.String("Authorizer"), &apis.CfnAuthorizerProps{
		ApiId: props.API.ApiId(), Name: jsii.String("sluice"), AuthorizerType: jsii.String("REQUEST"),
		AuthorizerUri:                  invocationURI(c.stack, props.Authorizer),
		AuthorizerPayloadFormatVersion: jsii.String("2.0"), EnableSimpleResponses: jsii.Bool(true),
		AuthorizerResultTtlInSeconds: jsii.Number(0), // a decision is about one request. Assumption: cache-off.
	})
	a = allowInvocation(own, props.Authorizer, props.API.ApiId(), authorizer.Ref())
	if props.PassDenials {
		passDenials(c.stack, props.Authorizer, props.API.ApiId())
	}
	made := props.API.Node().DefaultChild() != nil
	if !made {
		outputAuthorizerID(own, authorizer.Ref(), "To put on the routes of the HTTP API")
	}
	c.visitAll = func(all []constructs.IConstruct) {
		h := &httpAPI{cover: c, props: props, authorizer: authorizer, users: make(map[string][]integrationUser)}
		for _, node := range all {
			h.route(node)
		}
		for _, node := range all { // after all routes: an integration depends on the routes that use it
			h.visit(node)
		}
		if made && c.covered == 0 {
			c.problem("no route of the HTTP API is behind Sluice")
		}
	}
	return a, nil
}

// integrationUser is a route that uses an integration.
type integrationUser struct {
	key     string
	covered bool // the route has the authorizer
}

// httpAPI collects what is known of one HTTP API while CDK makes the template of its stack.
type httpAPI struct {
	*cover

	props           *AttachHTTPProps
	authorizer      apis.CfnAuthorizer
	users           map[string][]integrationUser // by the route's target as JSON
	preflightRoutes []string                     // keys of routes with the authorizer that also take OPTIONS
}

func (h *httpAPI) route(node constructs.IConstruct) {
	r, ok := node.(apis.CfnRoute)
	if !ok || !h.isOfAPI(r.ApiId()) {
		return
	}
	key := h.plainText(r.RouteKey())
	covered := h.authorize(key, h.plainText(r.AuthorizationType()), r.AuthorizerId(), h.authorizer.Ref())
	if covered {
		r.SetAuthorizationType(jsii.String("CUSTOM"))
		r.SetAuthorizerId(h.authorizer.Ref())
		if key == "$default" || strings.HasPrefix(key, "ANY ") {
			h.preflightRoutes = append(h.preflightRoutes, key)
		}
	}
	target := asJSON(h.resolved(r.Target()))
	h.users[target] = append(h.users[target], integrationUser{key, covered})
}

// visit handles a construct that is no route.
func (h *httpAPI) visit(node constructs.IConstruct) {
	switch n := node.(type) {
	case apis.CfnIntegration:
		if h.isOfAPI(n.ApiId()) {
			h.integration(n)
		}
	case apis.CfnApi:
		if h.isOfAPI(n.Ref()) {
			h.api(n)
		}
	case apis.CfnAuthorizer:
		if h.isOfAPI(n.ApiId()) && *n.Node().Addr() != *h.authorizer.Node().Addr() {
			h.refuseOtherAuthorizer(*n.Node().Path(), n.AuthorizerUri())
		}
	}
}

// integration makes an integration send the headers with the decision to its service, and overwrite those that a client
// sent.
func (h *httpAPI) integration(n apis.CfnIntegration) {
	var used []integrationUser
	for target, routes := range h.users {
		if strings.Contains(target, asJSON(h.resolved(n.Ref()))) {
			used = append(used, routes...)
		}
	}
	covered := slices.ContainsFunc(used, func(u integrationUser) bool { return u.covered })
	left := slices.IndexFunc(used, func(u integrationUser) bool { return !u.covered })
	kind, service := h.plainText(n.IntegrationType()), h.plainText(n.IntegrationSubtype())
	switch {
	case !covered && left < 0:
		return
	case h.props.PassDenials && covered && (service != "" || kind == "HTTP_PROXY" && h.props.NoMapping):
		h.problem("PassDenials: the backend of %s cannot have the middleware, and would serve denied requests",
			used[0].key)
	case kind != "HTTP_PROXY" || h.props.NoMapping:
	case covered && left >= 0:
		h.problem("%s is in Except, but shares its integration with routes that are behind Sluice: give it an "+
			"integration of its own", used[left].key)
	case !covered:
		n.AddPropertyOverride(jsii.String("RequestParameters."+escapeKey("overwrite:header."+callerHeader)),
			jsii.String(noDecision))
	default:
		for _, header := range headerNames() { // Assumption: absent-values.
			n.AddPropertyOverride(jsii.String("RequestParameters."+escapeKey("overwrite:header."+header)),
				jsii.String("$context.authorizer."+contextMembers[header]))
		}
	}
}

// api adds Sluice's headers to those that the API's CORS setting exposes.
func (h *httpAPI) api(n apis.CfnApi) {
	cors, ok := h.resolved(n.CorsConfiguration()).(map[string]any)
	if !ok {
		return
	}
	exposed, _ := cors["exposeHeaders"].([]any)
	for _, name := range ExposedHeaders() {
		if !slices.Contains(exposed, any(name)) {
			exposed = append(exposed, name)
		}
	}
	n.AddPropertyOverride(jsii.String("CorsConfiguration.ExposeHeaders"), exposed)
	for _, key := range h.preflightRoutes {
		awscdk.Annotations_Of(n).AddWarningV2(jsii.String("sluice:preflight:"+key), jsii.String(fmt.Sprintf(
			"%s takes OPTIONS, so preflight requests reach the authorizer, which refuses them: browsers send no "+
				"credential "+"with them. Make routes for the methods that you use, or add OPTIONS /{proxy+} to Except",
			key)))
	}
}

// passDenialsNote is the type of the construct metadata that a function has for each API whose denials pass.
const passDenialsNote = "sluice:passDenials"

// passDenials adds an API's id to SLUICE_PASS_DENIALS of a function that is made in this stack. The variables of any
// other function cannot be changed from here.
func passDenials(stack awscdk.Stack, function awslambda.IFunction, apiID *string) {
	f, ok := function.(awslambda.Function)
	if !ok || *awscdk.Stack_Of(f).Node().Addr() != *stack.Node().Addr() {
		return
	}
	// keep the ids that it already has
	if l1, ok := f.Node().DefaultChild().(awslambda.CfnFunction); ok && len(passDenialsAPIs(f)) == 0 {
		environment, _ := resolved(stack, l1.Environment()).(map[string]any)
		variables, _ := environment["variables"].(map[string]any)
		if before, ok := variables[passDenialsVariable].(string); ok {
			f.Node().AddMetadata(jsii.String(passDenialsNote), before, nil)
		}
	}
	if !slices.Contains(passDenialsAPIs(f), *apiID) {
		f.Node().AddMetadata(jsii.String(passDenialsNote), *apiID, nil)
	}
	f.AddEnvironment(jsii.String(passDenialsVariable), awscdk.Fn_Join(jsii.String(","),
		jsii.Strings(passDenialsAPIs(f)...)), nil)
}

const passDenialsVariable = "SLUICE_PASS_DENIALS"

// passDenialsAPIs returns the APIs whose denials pass at a function.
func passDenialsAPIs(f constructs.IConstruct) (all []string) {
	for _, m := range *f.Node().Metadata() {
		if id, ok := m.Data.(string); ok && *m.Type == passDenialsNote {
			all = append(all, id)
		}
	}
	return all
}
