package template

import (
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/sluicelimits/sluice/internal/dev/gateway/stage"
)

// readREST reads a REST API.
func (r *reader) readREST(d *stage.Description) {
	d.Kind, d.Responses = stage.REST, make(map[string]stage.GatewayResponse)
	p := r.properties(r.api)
	p.only("ApiKeySourceType", "the local gateway has no usage plans; want HEADER", "HEADER")
	if p.flag("DisableExecuteApiEndpoint") {
		p.problem("DisableExecuteApiEndpoint", "the local gateway serves this endpoint, and cannot disable it")
	}
	if e := p.part("EndpointConfiguration"); e != nil {
		for _, t := range e.texts("Types") {
			if t != "EDGE" && t != "REGIONAL" {
				e.problem("Types", "%s: the local gateway serves EDGE and REGIONAL", shown(t))
			}
		}
		e.end("IpAddressType")
	}
	d.ResourcePolicy = r.resourcePolicy(p)
	p.end("Name", "Description", "Tags", "FailOnWarnings")

	authorizers := r.of(restType("Authorizer"), "RestApiId")
	for _, res := range authorizers {
		r.restAuthorizer(d, res)
	}
	methods, responses := r.of(restType("Method"), "RestApiId"), r.of(restType("GatewayResponse"), "RestApiId")
	for _, res := range methods {
		r.method(d, res)
	}
	for _, res := range responses {
		r.gatewayResponse(d, res)
	}
	for _, res := range r.of(restType("Resource"), "RestApiId") {
		p := r.properties(res)
		p.text("RestApiId")
		p.text("ParentId")
		p.text("PathPart")
		p.end()
	}
	if deployment := r.restStage(d); deployment != nil {
		r.deployed(deployment, methods, responses)
	}
}

// restStage reads the stage and returns the deployment that it serves.
func (r *reader) restStage(d *stage.Description) (deployment *resource) {
	stages := make(map[string]*resource)
	for _, res := range r.of(restType("Deployment"), "RestApiId") {
		p := r.properties(res)
		p.text("RestApiId")
		p.end("Description")
	}
	for _, res := range r.of(restType("Stage"), "RestApiId") {
		name := r.quiet(orNull(res.properties().field("StageName")))
		stages[name] = res
	}
	res := r.pick(stages)
	if res == nil {
		return nil
	}
	r.places["stage"] = at{res.node, res.path() + ".Properties.StageName"}
	p := r.properties(res)
	d.Stage = p.text("StageName")
	p.text("RestApiId")
	if p.flag("CacheClusterEnabled") {
		p.problem("CacheClusterEnabled", "the local gateway has no cache")
	}
	for _, s := range p.parts("MethodSettings") {
		if s.flag("CachingEnabled") {
			s.problem("CachingEnabled", "the local gateway has no cache")
		}
		s.end("HttpMethod", "ResourcePath", "LoggingLevel", "DataTraceEnabled", "MetricsEnabled",
			"ThrottlingBurstLimit", "ThrottlingRateLimit")
	}
	id := p.text("DeploymentId")
	p.end("AccessLogSetting", "Description", "DocumentationVersion", "Tags", "TracingEnabled")
	deployment = r.resources[id]
	if deployment == nil || !deployment.hasType(restType("Deployment")) {
		p.problem("DeploymentId", "the template has no AWS::ApiGateway::Deployment %s", shown(id))
		return nil
	}
	return deployment
}

func orNull(n *node) *node {
	if n == nil {
		return new(node)
	}
	return n
}

func (r *reader) restAuthorizer(d *stage.Description, res *resource) {
	r.places["authorizers."+res.id] = at{res.node, res.path() + ".Properties"}
	p := r.properties(res)
	p.text("RestApiId")
	a := stage.Authorizer{Type: p.text("Type"), TTLSeconds: p.integer("AuthorizerResultTtlInSeconds"),
		Function: r.authorizerFunction(p, res)}
	r.places["authorizers."+res.id+".resultTtlInSeconds"] = at{p.n.field("AuthorizerResultTtlInSeconds"),
		p.path + ".AuthorizerResultTtlInSeconds"}
	if s := p.text("IdentitySource"); s != "" {
		a.IdentitySource = []string{s}
	}
	p.end("AuthType", "Name")
	d.Authorizers[res.id] = a
}

// authorizerFunction returns the name of an authorizer's function. It reports a problem if the API may not invoke it.
func (r *reader) authorizerFunction(p *properties, res *resource) string {
	uri := p.text("AuthorizerUri")
	if uri == "" {
		p.problem("AuthorizerUri", "missing")
		return ""
	}
	name, err := lambda(uri)
	if err != nil {
		p.problem("AuthorizerUri", "%v", err)
		return ""
	}
	credentials := "AuthorizerCredentials"
	if res.hasType(v2Type("Authorizer")) {
		credentials = "AuthorizerCredentialsArn"
	}
	p.seen = append(p.seen, credentials)
	if p.n.field(credentials).absent() && !r.mayInvoke(name,
		"arn:aws:execute-api:"+r.o.Region+":"+r.o.Account+":"+r.api.id+"/authorizers/"+res.id) {
		p.problem("AuthorizerUri", "no AWS::Lambda::Permission allows API Gateway to invoke %s for this authorizer: "+
			"every call would be answered with 500", shown(name))
	}
	return name
}

// mayInvoke reports whether a permission of the template allows API Gateway to invoke the function for the source.
func (r *reader) mayInvoke(function, source string) bool {
	for _, res := range r.order {
		if !res.hasType("AWS::Lambda::Permission") {
			continue
		}
		value := func(name string) string { return r.quiet(orNull(res.properties().field(name))) }
		permitted := value("FunctionName")
		if name, err := lambda(permitted); err == nil {
			permitted = name
		}
		if permitted == function && value("Principal") == "apigateway.amazonaws.com" &&
			slices.Contains([]string{"lambda:InvokeFunction", "lambda:*"}, value("Action")) &&
			(res.properties().field("SourceArn").absent() || stage.LikeARN(value("SourceArn"), source)) {
			return true
		}
	}
	return false
}

func (r *reader) method(d *stage.Description, res *resource) {
	p := r.properties(res)
	p.text("RestApiId")
	path := r.resourcePath(p, p.text("ResourceId"))
	route := stage.Route{Key: p.text("HttpMethod") + " " + path}
	route.Authorizer, route.Authorization = r.authorized(p)
	declared := p.table("RequestParameters")
	statuses := make(map[string][]string) // status of a method response → headers that it declares
	for _, m := range p.parts("MethodResponses") {
		status := m.text("StatusCode")
		statuses[status] = []string{}
		for name := range m.table("ResponseParameters") {
			statuses[status] = append(statuses[status], name)
		}
		m.end("ResponseModels")
	}
	if g := p.part("Integration"); g == nil {
		p.problem("Integration", "missing")
	} else {
		route.Integration = r.restIntegration(g, statuses)
		for key, source := range route.Integration.RequestParameters {
			if _, ok := declared[source]; strings.HasPrefix(source, "method.request.") && !ok {
				g.problem("RequestParameters", "%s: the method does not declare %s in its RequestParameters", key,
					source)
			}
		}
	}
	p.end("OperationName", "RequestModels")
	r.route(d, res, route)
}

// authorized returns what protects a method or route: the id of an authorizer, or AWS_IAM. If both are "", everybody
// may call it.
func (r *reader) authorized(p *properties) (authorizer, authorization string) {
	if p.flag("ApiKeyRequired") {
		p.problem("ApiKeyRequired", "the local gateway has no usage plans")
	}
	id := p.text("AuthorizerId")
	switch kind := p.text("AuthorizationType"); {
	case kind == "CUSTOM" && id == "":
		p.problem("AuthorizerId", "missing, though AuthorizationType is CUSTOM")
	case kind == "CUSTOM":
		return id, ""
	case kind == stage.AWSIAM && r.api.hasType(restType("RestApi")):
		return "", stage.AWSIAM
	case kind != "NONE" && kind != "":
		p.problem("AuthorizationType", "%s: the local gateway knows CUSTOM and NONE, and %s for a REST API",
			shown(kind), stage.AWSIAM)
	}
	return "", ""
}

// resourcePath returns the path of a resource, which it puts together from the resource and its parents.
func (r *reader) resourcePath(p *properties, id string) string {
	var parts []string
	for id != r.api.id+"/" {
		res := r.resources[id]
		if res == nil || !res.hasType(restType("Resource")) || len(parts) > maxDepth {
			p.problem("ResourceId", "%s is not a resource of the API, nor its root", shown(id))
			return "/"
		}
		parts = append(parts, r.quiet(orNull(res.properties().field("PathPart"))))
		id = r.quiet(orNull(res.properties().field("ParentId")))
	}
	slices.Reverse(parts)
	return "/" + strings.Join(parts, "/")
}

func (r *reader) restIntegration(p *properties, statuses map[string][]string) (g stage.Integration) {
	kind := p.text("Type")
	p.only("ConnectionType", "the local gateway knows INTERNET", "INTERNET")
	g.RequestParameters = p.table("RequestParameters")
	method, uri, responses := p.text("IntegrationHttpMethod"), p.text("Uri"), p.parts("IntegrationResponses")
	if i := p.integer("TimeoutInMillis"); i != nil {
		g.TimeoutMillis = *i
	}
	if len(responses) > 0 && kind != stage.Mock {
		p.problem("IntegrationResponses", "the answer of a proxy integration cannot be changed")
	}
	ignored := []string{"CacheKeyParameters", "CacheNamespace"}
	switch kind {
	case stage.Mock:
		g.Type = stage.Mock
		r.mock(p, &g, responses, statuses)
	case stage.AWSProxy:
		g.Type = stage.AWSProxy
		var err error
		if g.Function, err = lambda(uri); err != nil {
			p.problem("Uri", "%v", err)
		}
		if method != http.MethodPost {
			p.problem("IntegrationHttpMethod", "%s: functions are invoked by POST", shown(method))
		}
		ignored = append(ignored, "PassthroughBehavior")
	case stage.HTTPProxy:
		r.proxy(&g, uri, method)
		ignored = append(ignored, "PassthroughBehavior")
	default:
		p.problem("Type", "%s: the local gateway knows %s, %s and %s", shown(kind), stage.AWSProxy, stage.HTTPProxy,
			stage.Mock)
	}
	p.end(ignored...)
	return g
}

// proxy sets an integration with a URL: an HTTP_PROXY to the target for that URL, or an ECHO if there is no target.
func (r *reader) proxy(g *stage.Integration, uri, method string) {
	g.Type, g.URL = stage.Echo, uri
	if target, ok := r.target(uri); ok {
		g.Type, g.URL = stage.HTTPProxy, target
	}
	if method != "ANY" {
		g.Method = method
	}
}

// mockStatus matches a request template of a MOCK that selects a status: the only form that the local gateway reads.
var mockStatus = regexp.MustCompile(`^\s*\{\s*"?statusCode"?\s*:\s*"?([0-9]{3})"?\s*\}\s*$`)

// mock reads what a MOCK answers: its request template selects a status, and its only response applies to every status.
func (r *reader) mock(p *properties, g *stage.Integration, responses []*properties, statuses map[string][]string) {
	p.only("PassthroughBehavior", "the local gateway ignores what is sent to a MOCK", "WHEN_NO_MATCH",
		"WHEN_NO_TEMPLATES", "NEVER")
	templates := p.table("RequestTemplates")
	for name, t := range templates {
		if !mockStatus.MatchString(t) {
			p.problem("RequestTemplates", `%s: the local gateway only knows {"statusCode": N}, such as `+
				`{"statusCode": 200}`,
				name)
		}
	}
	if len(templates) == 0 || len(responses) != 1 {
		p.problem("IntegrationResponses", "want one response and at least one request template, got %d and %d",
			len(responses), len(templates))
		return
	}
	one := responses[0]
	g.StatusCode = one.text("StatusCode")
	parameters := one.table("ResponseParameters")
	declared, ok := statuses[g.StatusCode]
	if !ok {
		one.problem("StatusCode", "the method has no response with status %s", shown(g.StatusCode))
	}
	for name := range parameters {
		if !slices.Contains(declared, name) {
			one.problem("ResponseParameters", "the method response of %s does not declare %s", g.StatusCode, name)
		}
	}
	if len(parameters) > 0 {
		g.ResponseParameters = map[string]map[string]string{g.StatusCode: parameters}
	}
	one.end()
}

func (r *reader) gatewayResponse(d *stage.Description, res *resource) {
	p := r.properties(res)
	p.text("RestApiId")
	kind := p.text("ResponseType")
	if _, twice := d.Responses[kind]; twice {
		p.problem("ResponseType", "the API has two gateway responses of type %s", kind)
	}
	r.places["gatewayResponses."+kind] = at{res.node, res.path() + ".Properties"}
	d.Responses[kind] = stage.GatewayResponse{StatusCode: p.text("StatusCode"),
		Parameters: p.table("ResponseParameters"), Templates: p.table("ResponseTemplates")}
	p.end()
}
