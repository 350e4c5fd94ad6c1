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

// AttachHTTPProps say which HTTP API, and how.
type AttachHTTPProps struct {
	API        apis.IHttpApi       // required: made in this stack, or imported into it
	Authorizer awslambda.IFunction // required: the Authorizer of a Cell, or that function by ARN

	// Except are keys of routes that are left as they are, as "GET /healthz" each: anybody may call them, unless they
	// have an authorizer of their own. One to HTTP_PROXY has an integration of its own, in which no client passes for
	// one with a decision.
	Except []string

	// NoMapping leaves the requests to services behind HTTP_PROXY without the x-sluice-… headers, which the middleware
	// in them reads.
	NoMapping bool

	// PassDenials lets denials through to the middleware in the backend, which gives the true 429s: the one way on an
	// HTTP API, whose own answer to a denial is a 403. It is an open door to a backend without the middleware: see
	// docs/attach.md for the order of steps. Where the function is made in this stack its SLUICE_PASS_DENIALS gets the
	// API's id; else, and for a Cell of another stack, the id belongs into the cell's passDenials in the deployment
	// file, which is not seen from here. Refused with a route whose backend cannot have the middleware: one to an AWS
	// service, or to HTTP_PROXY with NoMapping.
	PassDenials bool
}

// AttachHTTP puts Sluice in front of an HTTP API: a REQUEST authorizer with payload 2.0 and simple responses, without
// identity source, whose results are not cached, on every route; the mapping of its decision to services behind
// HTTP_PROXY; and its headers among those that the API's CORS exposes, where it has a setting of CORS.
//
// The error says what of the props is wrong. Refused when the template is made, by one line each: a route that has an
// authorizer already, an exception that there is no such route for, an API without routes.
func AttachHTTP(scope constructs.Construct, id string, props *AttachHTTPProps) (a *Attachment, err error) {
	defer recovered(id, &err)
	if err := given(props.API, props.Authorizer); err != nil {
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
		AuthorizerUri:                  invoke(c.stack, props.Authorizer),
		AuthorizerPayloadFormatVersion: jsii.String("2.0"), EnableSimpleResponses: jsii.Bool(true),
		AuthorizerResultTtlInSeconds: jsii.Number(0), // an answer is about one call. Assumption: cache-off.
	})
	a = permit(own, props.Authorizer, props.API.ApiId(), authorizer.Ref())
	if props.PassDenials {
		passDenials(c.stack, props.Authorizer, props.API.ApiId())
	}
	made := props.API.Node().DefaultChild() != nil
	if !made {
		byHand(own, authorizer.Ref(), "To put on the routes of the HTTP API")
	}
	c.what = func(all []constructs.IConstruct) {
		h := &httpAPI{cover: c, props: props, authorizer: authorizer, users: make(map[string][]use)}
		for _, node := range all {
			h.route(node)
		}
		for _, node := range all { // which routes an integration is of is known now
			h.look(node)
		}
		if made && c.covered == 0 {
			c.problem("the HTTP API has no route that is behind Sluice")
		}
	}
	return a, nil
}

// use is a route of an integration.
type use struct {
	key     string
	covered bool
}

// httpAPI is one HTTP API while its stack is made into a template.
type httpAPI struct {
	*cover

	props      *AttachHTTPProps
	authorizer apis.CfnAuthorizer
	users      map[string][]use // by the target, resolved, as JSON
	open       []string         // routes that take OPTIONS and are behind the authorizer
}

func (h *httpAPI) route(node constructs.IConstruct) {
	r, ok := node.(apis.CfnRoute)
	if !ok || !h.of(r.ApiId()) {
		return
	}
	key := h.text(r.RouteKey())
	covered := h.authorize(key, h.text(r.AuthorizationType()), r.AuthorizerId(), h.authorizer.Ref())
	if covered {
		r.SetAuthorizationType(jsii.String("CUSTOM"))
		r.SetAuthorizerId(h.authorizer.Ref())
		if key == "$default" || strings.HasPrefix(key, "ANY ") {
			h.open = append(h.open, key)
		}
	}
	target := asJSON(h.resolved(r.Target()))
	h.users[target] = append(h.users[target], use{key, covered})
}

// look does what is to be done about a construct that is no route.
func (h *httpAPI) look(node constructs.IConstruct) {
	switch n := node.(type) {
	case apis.CfnIntegration:
		if h.of(n.ApiId()) {
			h.integration(n)
		}
	case apis.CfnApi:
		if h.of(n.Ref()) {
			h.api(n)
		}
	case apis.CfnAuthorizer:
		if h.of(n.ApiId()) && *n.Node().Addr() != *h.authorizer.Node().Addr() {
			h.invokedBy(*n.Node().Path(), n.AuthorizerUri())
		}
	}
}

// integration maps what the authorizer decided to a service, and takes out what a client sent in its place.
func (h *httpAPI) integration(n apis.CfnIntegration) {
	var used []use
	for target, routes := range h.users {
		if strings.Contains(target, asJSON(h.resolved(n.Ref()))) {
			used = append(used, routes...)
		}
	}
	covered := slices.ContainsFunc(used, func(u use) bool { return u.covered })
	left := slices.IndexFunc(used, func(u use) bool { return !u.covered })
	kind, service := h.text(n.IntegrationType()), h.text(n.IntegrationSubtype())
	switch {
	case !covered && left < 0:
		return
	case h.props.PassDenials && covered && (service != "" || kind == "HTTP_PROXY" && h.props.NoMapping):
		h.problem("PassDenials: what is behind %s cannot have the middleware, and would serve who is denied",
			used[0].key)
	case kind != "HTTP_PROXY" || h.props.NoMapping:
	case covered && left >= 0:
		h.problem("%s is left alone and shares its integration with routes that are behind Sluice: give it one of "+
			"its own", used[left].key)
	case !covered:
		n.AddPropertyOverride(jsii.String("RequestParameters."+escaped("overwrite:header."+callerHeader)),
			jsii.String(nobody))
	default:
		for _, header := range sorted() { // Assumption: absent-values.
			n.AddPropertyOverride(jsii.String("RequestParameters."+escaped("overwrite:header."+header)),
				jsii.String("$context.authorizer."+mapped[header]))
		}
	}
}

// api adds our headers to those that the API's CORS exposes.
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
	for _, key := range h.open {
		awscdk.Annotations_Of(n).AddWarningV2(jsii.String("sluice:preflight:"+key), jsii.String(fmt.Sprintf(
			"%s takes OPTIONS, so preflights reach the authorizer and are refused: browsers send no credential with "+
				"them. Name methods, or add OPTIONS /{proxy+} to Except", key)))
	}
}

// passing is what is noted at a function for each API whose denials it passes.
const passing = "sluice:passDenials"

// passDenials opts an API in, at a function that is made in the stack: any other one cannot be changed from here.
func passDenials(stack awscdk.Stack, function awslambda.IFunction, apiID *string) {
	f, ok := function.(awslambda.Function)
	if !ok || *awscdk.Stack_Of(f).Node().Addr() != *stack.Node().Addr() {
		return
	}
	if l1, ok := f.Node().DefaultChild().(awslambda.CfnFunction); ok && len(notes(f)) == 0 { // what it had before
		environment, _ := resolved(stack, l1.Environment()).(map[string]any)
		variables, _ := environment["variables"].(map[string]any)
		if before, ok := variables[passDenialsVariable].(string); ok {
			f.Node().AddMetadata(jsii.String(passing), before, nil)
		}
	}
	if !slices.Contains(notes(f), *apiID) {
		f.Node().AddMetadata(jsii.String(passing), *apiID, nil)
	}
	f.AddEnvironment(jsii.String(passDenialsVariable), awscdk.Fn_Join(jsii.String(","), jsii.Strings(notes(f)...)), nil)
}

const passDenialsVariable = "SLUICE_PASS_DENIALS"

func notes(f constructs.IConstruct) (all []string) {
	for _, m := range *f.Node().Metadata() {
		if id, ok := m.Data.(string); ok && *m.Type == passing {
			all = append(all, id)
		}
	}
	return all
}
