package infra

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/aws/aws-cdk-go/awscdk/v2/awsapigateway"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/internal/request/answer"
)

// AttachRESTProps are the parameters of [AttachREST].
type AttachRESTProps struct {
	API        awsapigateway.IRestApi // required; made in this stack, or imported into it
	Authorizer awslambda.IFunction    // required; the Authorizer of a Cell, or that function imported by its ARN

	// Except lists methods that stay as they are, such as "GET /healthz". Anybody may call such a method, unless it has
	// an authorizer of its own. OPTIONS methods with a MOCK integration, which answer preflights, stay as they are
	// without being named.
	Except []string

	// AllowOrigin is the value of Access-Control-Allow-Origin in the answers that API Gateway gives by itself: one
	// origin, or "*". If empty, these answers have no such header.
	AllowOrigin string

	// NoMapping leaves out the X-Sluice-… headers in requests to services behind HTTP_PROXY. The middleware in these
	// services reads the decision from them.
	NoMapping bool

	// NoDefaultResponses leaves the gateway responses DEFAULT_4XX and DEFAULT_5XX as they are.
	NoDefaultResponses bool
}

// AttachREST puts Sluice in front of a REST API:
//
//   - an authorizer of type REQUEST on every method, without identity source; its results are not cached
//   - gateway responses, so that a denied request is answered 429 with all headers and a problem body, and a request
//     without a valid credential 401
//   - headers with the decision, in requests to services behind HTTP_PROXY
//
// The error says what is wrong with the props. The routes of an API that is made from an OpenAPI document (SpecRestApi)
// cannot be seen here, so such an API is refused. The template is refused, with one line for each problem, if a method
// already has an authorizer, if Except names a method that does not exist, if the stack has a gateway response that
// Sluice makes, too, or if the API has no method.
func AttachREST(scope constructs.Construct, id string, props *AttachRESTProps) (a *Attachment, err error) {
	defer recoverError(id, &err)
	if err := checkRequired(props.API, props.Authorizer); err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	if l1, ok := props.API.Node().DefaultChild().(awsapigateway.CfnRestApi); ok &&
		(l1.Body() != nil || l1.BodyS3Location() != nil) {
		return nil, fmt.Errorf("%s: %w", id, errDocument)
	}
	if err := props.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	own, c, err := attach(scope, id, props.API, props.Authorizer, props.API.RestApiId(), props.Except)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	authorizer := awsapigateway.NewCfnAuthorizer(own, jsii.String("Authorizer"), &awsapigateway.CfnAuthorizerProps{
		RestApiId: props.API.RestApiId(), Name: jsii.String("sluice"), Type: jsii.String("REQUEST"),
		AuthorizerUri: invocationURI(c.stack, props.Authorizer),
		// A decision is about one request. The default would be five minutes. Assumption: cache-off.
		AuthorizerResultTtlInSeconds: jsii.Number(0),
	})
	a = allowInvocation(own, props.Authorizer, props.API.RestApiId(), authorizer.Ref())
	responses := props.responses(own)
	made := props.API.Node().DefaultChild() != nil
	if d := props.API.LatestDeployment(); d != nil { // a changed setting needs a new deployment of the API
		d.AddToLogicalId(map[string]any{"sluice": []any{props.Except, props.NoMapping, props.AllowOrigin,
			props.NoDefaultResponses}})
	}
	if !made {
		outputAuthorizerID(own, authorizer.Ref(), "The authorizer to put on the methods of the REST API. Deploy the "+
			"API afterwards.")
	}
	c.visitAll = func(all []constructs.IConstruct) {
		for _, node := range all {
			props.visit(c, node, authorizer, responses)
		}
		if made && c.covered == 0 {
			c.problem("no method of the REST API is behind Sluice")
		}
	}
	return a, nil
}

// visit handles one construct of the stack. responses has the paths of Sluice's gateway responses, by type.
func (props *AttachRESTProps) visit(
	c *cover, node constructs.IConstruct, authorizer awsapigateway.CfnAuthorizer, responses map[string]string,
) {
	switch n := node.(type) {
	case awsapigateway.CfnMethod:
		if c.isOfAPI(n.RestApiId()) {
			props.method(c, n, authorizer.Ref())
		}
	case awsapigateway.CfnGatewayResponse:
		kind := c.plainText(n.ResponseType())
		if mine := responses[kind]; c.isOfAPI(n.RestApiId()) && mine != "" && mine != *n.Node().Path() {
			c.problem("the stack has a gateway response %s at %s, which Sluice makes, too: remove it, or "+
				"(DEFAULT_4XX and "+"DEFAULT_5XX only) set NoDefaultResponses", kind, *n.Node().Path())
		}
	case awsapigateway.CfnAuthorizer:
		if c.isOfAPI(n.RestApiId()) && *n.Node().Addr() != *authorizer.Node().Addr() {
			c.refuseOtherAuthorizer(*n.Node().Path(), n.AuthorizerUri())
		}
	}
}

var errDocument = errors.New("the API's routes are in an OpenAPI document, where constructs cannot put an " +
	"authorizer on them")

func (props *AttachRESTProps) check() error {
	if strings.ContainsAny(props.AllowOrigin, "', \t\r\n") {
		return errors.New(`AllowOrigin is neither one origin nor "*"`)
	}
	return nil
}

// method puts the authorizer on a method, and adds the headers with the decision to its integration.
func (props *AttachRESTProps) method(c *cover, m awsapigateway.CfnMethod, authorizer *string) {
	integration, _ := c.resolved(m.Integration()).(map[string]any)
	kind, _ := integration["type"].(string)
	verb, kept := c.plainText(m.HttpMethod()), c.plainText(m.AuthorizationType())
	if verb == "OPTIONS" && kind == "MOCK" && (kept == "" || kept == "NONE") {
		return
	}
	name := "the method " + *m.Node().Path()
	if l2, ok := m.Node().Scope().(awsapigateway.Method); ok {
		name = verb + " " + *l2.Resource().Path()
	}
	covered := c.authorize(name, kept, m.AuthorizerId(), authorizer)
	if covered {
		m.SetAuthorizationType(jsii.String("CUSTOM"))
		m.SetAuthorizerId(authorizer)
	}
	if props.NoMapping || kind != "HTTP_PROXY" {
		return
	}
	for _, header := range headerNames() {
		value := "context.authorizer." + contextMembers[header]
		if !covered { // overwrite what a client sends, so that it cannot forge a decision
			value = "'" + noDecision + "'"
		}
		if covered || header == callerHeader {
			m.AddPropertyOverride(jsii.String("Integration.RequestParameters."+escapeKey("integration.request.header."+
				header)), &value)
		}
	}
}

// responses makes the gateway responses: one for each outcome of the authorizer, and the two defaults. It returns their
// construct paths by type.
func (props *AttachRESTProps) responses(own constructs.Construct) map[string]string {
	paths := make(map[string]string)
	common := map[string]string{
		"Cache-Control": "'no-store'", "X-Content-Type-Options": "'nosniff'",
		"Access-Control-Expose-Headers": "'" + answer.ExposeHeaders + "'",
	}
	if props.AllowOrigin != "" {
		common["Access-Control-Allow-Origin"] = "'" + props.AllowOrigin + "'"
	}
	add := func(kind awsapigateway.ResponseType, status, body string, headers map[string]string) {
		all := maps.Clone(common)
		maps.Copy(all, headers)
		p := &awsapigateway.GatewayResponseProps{RestApi: props.API, Type: kind, ResponseHeaders: pointers(all)}
		if status != "" {
			all["Content-Type"] = "'application/problem+json'"
			p.StatusCode, p.ResponseHeaders = &status, pointers(all)
			p.Templates = &map[string]*string{"application/json": &body}
		}
		name := *kind.ResponseType()
		r := awsapigateway.NewGatewayResponse(own, jsii.String("Response-"+name), p)
		paths[name] = *r.Node().DefaultChild().Node().Path()
	}
	// Assumption: denial-headers. Assumption: denial-body. Assumption: absent-values: a denial without a wait has no
	// retryAfter. Assumption: foreign-denials.
	add(awsapigateway.ResponseType_ACCESS_DENIED(), "429", deniedBody, map[string]string{
		"Retry-After":           "context.authorizer.retryAfter",
		"X-RateLimit-Limit":     "context.authorizer.rateLimitLimit",
		"X-RateLimit-Remaining": "context.authorizer.rateLimitRemaining",
		"X-RateLimit-Reset":     "context.authorizer.rateLimitReset",
		"RateLimit":             "context.authorizer.rateLimit",
		"RateLimit-Policy":      "context.authorizer.rateLimitPolicy",
	})
	add(awsapigateway.ResponseType_UNAUTHORIZED(), "401", problemBody(answer.BadCredential, "No valid credential"),
		map[string]string{"WWW-Authenticate": `'Bearer realm="sluice"'`})
	for _, kind := range []awsapigateway.ResponseType{awsapigateway.ResponseType_AUTHORIZER_FAILURE(),
		awsapigateway.ResponseType_AUTHORIZER_CONFIGURATION_ERROR()} {
		add(kind, "500", problemBody(answer.Internal, "Internal error"), nil)
	}
	if !props.NoDefaultResponses {
		add(awsapigateway.ResponseType_DEFAULT_4XX(), "", "", nil)
		add(awsapigateway.ResponseType_DEFAULT_5XX(), "", "", nil)
	}
	return paths
}

// deniedBody is the body template of a denied request: API Gateway's message, followed by the members of the
// authorizer's problem document. If a resource policy denies the request, the authorizer was not called, and the
// message alone is still valid JSON.
const deniedBody = `{"message":$context.error.messageString$context.authorizer.problemMembers}`

// problemBody returns the body of an answer about which the authorizer cannot say anything, because the request has no
// valid credential or the authorizer failed.
func problemBody(kind answer.Kind, title string) string {
	return fmt.Sprintf(`{"type":%q,"title":%q,"status":%d}`, kind.Type(), title, kind.Status())
}
