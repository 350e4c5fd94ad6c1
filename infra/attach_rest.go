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

// AttachRESTProps say which REST API, and how.
type AttachRESTProps struct {
	API        awsapigateway.IRestApi // required: made in this stack, or imported into it
	Authorizer awslambda.IFunction    // required: the Authorizer of a Cell, or that function by ARN

	// Except are methods that are left as they are, as "GET /healthz" each: anybody may call them, unless they have an
	// authorizer of their own. Methods OPTIONS with a MOCK, which answer preflights, need not be named.
	Except []string

	// AllowOrigin is in Access-Control-Allow-Origin of the gateway's own answers: one origin, or "*". Default: no such
	// header.
	AllowOrigin string

	// NoMapping leaves the requests to services behind HTTP_PROXY without the X-Sluice-… headers, which the middleware
	// in them reads.
	NoMapping bool

	// OwnDefaults leaves the gateway responses DEFAULT_4XX and DEFAULT_5XX to you.
	OwnDefaults bool
}

// AttachREST puts Sluice in front of a REST API: a REQUEST authorizer without identity source whose results are not
// cached, on every method; gateway responses, so that what it denies is a 429 with all headers and a problem body, and
// what has no good credential a 401; and the mapping of its decision to services behind HTTP_PROXY.
//
// The error says what of the props is wrong. Refused when the template is made, by one line each: a method that has an
// authorizer already, an exception that there is no such method for, a gateway response of your own for a case that is
// Sluice's, an API without methods. What an OpenAPI document has (SpecRestApi) cannot be seen, and is refused as a
// whole.
func AttachREST(scope constructs.Construct, id string, props *AttachRESTProps) (a *Attachment, err error) {
	defer recovered(id, &err)
	if err := given(props.API, props.Authorizer); err != nil {
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
		AuthorizerUri: invoke(c.stack, props.Authorizer),
		// An answer is about one call; the default is five minutes. Assumption: cache-off.
		AuthorizerResultTtlInSeconds: jsii.Number(0),
	})
	a = permit(own, props.Authorizer, props.API.RestApiId(), authorizer.Ref())
	responses := props.responses(own)
	made := props.API.Node().DefaultChild() != nil
	if d := props.API.LatestDeployment(); d != nil { // another setting is another deployment
		d.AddToLogicalId(map[string]any{"sluice": []any{props.Except, props.NoMapping, props.AllowOrigin,
			props.OwnDefaults}})
	}
	if !made {
		byHand(own, authorizer.Ref(), "To put on the methods of the REST API, which is then to be deployed")
	}
	c.what = func(all []constructs.IConstruct) {
		for _, node := range all {
			props.look(c, node, authorizer, responses)
		}
		if made && c.covered == 0 {
			c.problem("the REST API has no method that is behind Sluice")
		}
	}
	return a, nil
}

// look does what is to be done about one construct of the stack. responses are the paths of ours, by type.
func (props *AttachRESTProps) look(
	c *cover, node constructs.IConstruct, authorizer awsapigateway.CfnAuthorizer, responses map[string]string,
) {
	switch n := node.(type) {
	case awsapigateway.CfnMethod:
		if c.of(n.RestApiId()) {
			props.method(c, n, authorizer.Ref())
		}
	case awsapigateway.CfnGatewayResponse:
		kind := c.text(n.ResponseType())
		if mine := responses[kind]; c.of(n.RestApiId()) && mine != "" && mine != *n.Node().Path() {
			c.problem("the API has a gateway response %s of its own at %s: it must go, or (DEFAULT_4XX and _5XX) "+
				"stay by OwnDefaults", kind, *n.Node().Path())
		}
	case awsapigateway.CfnAuthorizer:
		if c.of(n.RestApiId()) && *n.Node().Addr() != *authorizer.Node().Addr() {
			c.invokedBy(*n.Node().Path(), n.AuthorizerUri())
		}
	}
}

var errDocument = errors.New("the API's routes are in an OpenAPI document, where no construct can put an authorizer " +
	"on them")

func (props *AttachRESTProps) check() error {
	if strings.ContainsAny(props.AllowOrigin, "', \t\r\n") {
		return errors.New(`AllowOrigin is neither one origin nor "*"`)
	}
	return nil
}

// method puts the authorizer on a method, and maps what it decided.
func (props *AttachRESTProps) method(c *cover, m awsapigateway.CfnMethod, authorizer *string) {
	integration, _ := c.resolved(m.Integration()).(map[string]any)
	kind, _ := integration["type"].(string)
	verb, kept := c.text(m.HttpMethod()), c.text(m.AuthorizationType())
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
	for _, header := range sorted() {
		value := "context.authorizer." + mapped[header]
		if !covered { // what a client sends under that name must not pass for a decision
			value = "'" + nobody + "'"
		}
		if covered || header == callerHeader {
			m.AddPropertyOverride(jsii.String("Integration.RequestParameters."+escaped("integration.request.header."+header)), &value)
		}
	}
}

// responses makes the gateway responses: for each case of the authorizer's, and for what is left. It returns their
// paths by type.
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
	if !props.OwnDefaults {
		add(awsapigateway.ResponseType_DEFAULT_4XX(), "", "", nil)
		add(awsapigateway.ResponseType_DEFAULT_5XX(), "", "", nil)
	}
	return paths
}

// deniedBody is the body of a denied call: API Gateway's message, and after it the members of the authorizer's problem.
// If a resource policy denies the call, the authorizer was not asked, and the message alone is still JSON.
const deniedBody = `{"message":$context.error.messageString$context.authorizer.problemMembers}`

// problemBody is the body of an answer that the authorizer cannot write: it has none, or failed.
func problemBody(kind answer.Kind, title string) string {
	return fmt.Sprintf(`{"type":%q,"title":%q,"status":%d}`, kind.Type(), title, kind.Status())
}
