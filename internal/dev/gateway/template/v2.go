package template

import (
	"strings"

	"github.com/sluicelimits/sluice/internal/dev/gateway/stage"
)

// readV2 reads an HTTP or WebSocket API.
func (r *reader) readV2(d *stage.Description) {
	p := r.properties(r.api)
	ignored := []string{"Name", "Description", "Tags", "Version", "IpAddressType", "DisableSchemaValidation"}
	switch kind := p.text("ProtocolType"); kind {
	case "HTTP":
		d.Kind = stage.HTTP
		p.only("RouteSelectionExpression", "not known for an HTTP API", "$request.method $request.path",
			"${request.method} ${request.path}")
		d.CORS = r.cors(p.part("CorsConfiguration"))
		r.places["corsConfiguration"] = at{p.n.field("CorsConfiguration"), p.path + ".CorsConfiguration"}
	case "WEBSOCKET":
		d.Kind = stage.WebSocket
		ignored = append(ignored, "RouteSelectionExpression")
	default:
		p.problem("ProtocolType", "want HTTP or WEBSOCKET, got %s", shown(kind))
		return
	}
	if p.flag("DisableExecuteApiEndpoint") {
		p.problem("DisableExecuteApiEndpoint", "the local gateway serves this endpoint, and cannot disable it")
	}
	p.end(ignored...)

	for _, res := range r.of(v2Type("Authorizer"), "ApiId") {
		r.v2Authorizer(d, res)
	}
	integrations := make(map[string]stage.Integration)
	for _, res := range r.of(v2Type("Integration"), "ApiId") {
		if d.Kind == stage.HTTP {
			integrations[res.id] = r.v2Integration(res)
		}
	}
	var routes []*resource
	for _, res := range r.of(v2Type("Route"), "ApiId") {
		if d.Kind == stage.WebSocket && r.quiet(orNull(res.properties().field("RouteKey"))) != "$connect" {
			continue // the local gateway passes no messages
		}
		r.v2Route(d, res, integrations)
		routes = append(routes, res)
	}
	if deployment := r.v2Stage(d); deployment != nil {
		r.deployed(deployment, routes)
	}
}

func (r *reader) cors(p *properties) *stage.CORS {
	if p == nil {
		return nil
	}
	c := &stage.CORS{AllowOrigins: p.texts("AllowOrigins"), AllowMethods: p.texts("AllowMethods"),
		AllowHeaders: p.texts("AllowHeaders"), ExposeHeaders: p.texts("ExposeHeaders"),
		AllowCredentials: p.flag("AllowCredentials"), MaxAgeSeconds: p.integer("MaxAge")}
	p.end()
	return c
}

func (r *reader) v2Authorizer(d *stage.Description, res *resource) {
	r.places["authorizers."+res.id] = at{res.node, res.path() + ".Properties"}
	p := r.properties(res)
	p.text("ApiId")
	a := stage.Authorizer{Type: p.text("AuthorizerType"), Payload: p.text("AuthorizerPayloadFormatVersion"),
		Simple: p.flag("EnableSimpleResponses"), TTLSeconds: p.integer("AuthorizerResultTtlInSeconds"),
		IdentitySource: p.texts("IdentitySource")}
	if a.Type != "REQUEST" {
		p.problem("AuthorizerType", "%s: the local gateway only knows REQUEST", shown(a.Type))
		return
	}
	a.Function = r.authorizerFunction(p, res)
	r.places["authorizers."+res.id+".resultTtlInSeconds"] = at{p.n.field("AuthorizerResultTtlInSeconds"),
		p.path + ".AuthorizerResultTtlInSeconds"}
	if d.Kind == stage.WebSocket && a.TTLSeconds == nil {
		a.TTLSeconds = new(int) // API Gateway does not cache authorizers' answers of a WebSocket API
	}
	p.end("Name")
	d.Authorizers[res.id] = a
}

func (r *reader) v2Route(d *stage.Description, res *resource, integrations map[string]stage.Integration) {
	p := r.properties(res)
	p.text("ApiId")
	route := stage.Route{Key: p.text("RouteKey"), Integration: stage.Integration{Type: stage.Mock}}
	route.Authorizer, route.Authorization = r.authorized(p)
	id, ok := strings.CutPrefix(p.text("Target"), "integrations/")
	target := r.resources[id]
	switch {
	case !ok || target == nil || !target.hasType(v2Type("Integration")):
		p.problem("Target", "want integrations/ and an integration of this template, got %s", shown(p.text("Target")))
	case d.Kind == stage.HTTP:
		if route.Integration, ok = integrations[id]; !ok {
			p.problem("Target", "the integration %s belongs to another API", shown(id))
		}
	}
	if d.Kind == stage.WebSocket {
		p.end("OperationName", "RouteResponseSelectionExpression")
	} else {
		p.end("OperationName")
	}
	r.route(d, res, route)
}

func (r *reader) v2Integration(res *resource) (g stage.Integration) {
	p := r.properties(res)
	p.text("ApiId")
	p.only("ConnectionType", "the local gateway knows INTERNET", "INTERNET")
	uri, method, payload := p.text("IntegrationUri"), p.text("IntegrationMethod"), p.text("PayloadFormatVersion")
	g.RequestParameters = p.table("RequestParameters")
	if i := p.integer("TimeoutInMillis"); i != nil {
		g.TimeoutMillis = *i
	}
	switch kind := p.text("IntegrationType"); kind {
	case stage.AWSProxy:
		g.Type, g.Payload = stage.AWSProxy, payload
		var err error
		if g.Function, err = lambda(uri); err != nil {
			p.problem("IntegrationUri", "%v", err)
		}
		if method != "" && method != "POST" {
			p.problem("IntegrationMethod", "%s: functions are invoked by POST", shown(method))
		}
	case stage.HTTPProxy:
		r.proxy(&g, uri, method)
		if payload != "" && payload != "1.0" {
			p.problem("PayloadFormatVersion", "%s: %s has payload format version 1.0", shown(payload),
				stage.HTTPProxy)
		}
	default:
		p.problem("IntegrationType", "%s: the local gateway knows %s and %s", shown(kind), stage.AWSProxy,
			stage.HTTPProxy)
	}
	if byStatus := p.part("ResponseParameters"); byStatus != nil {
		g.ResponseParameters = r.responseParameters(byStatus)
	}
	p.end("Description")
	return g
}

func (r *reader) responseParameters(byStatus *properties) map[string]map[string]string {
	all := make(map[string]map[string]string)
	for _, status := range byStatus.n.names {
		one := byStatus.part(status)
		if one == nil {
			continue
		}
		all[status] = make(map[string]string)
		for _, m := range one.parts("ResponseParameters") {
			all[status][m.text("Destination")] = m.text("Source")
			m.end()
		}
		one.end()
	}
	return all
}

// v2Stage reads the stage and returns the deployment that it serves; nil if changes are deployed automatically.
func (r *reader) v2Stage(d *stage.Description) (deployment *resource) {
	stages := make(map[string]*resource)
	for _, res := range r.of(v2Type("Deployment"), "ApiId") {
		p := r.properties(res)
		p.text("ApiId")
		p.end("Description")
	}
	for _, res := range r.of(v2Type("Stage"), "ApiId") {
		stages[r.quiet(orNull(res.properties().field("StageName")))] = res
	}
	res := r.pick(stages)
	if res == nil {
		return nil
	}
	r.places["stage"] = at{res.node, res.path() + ".Properties.StageName"}
	p := r.properties(res)
	p.text("ApiId")
	d.Stage = p.text("StageName")
	automatic, id := p.flag("AutoDeploy"), p.text("DeploymentId")
	if s := p.part("DefaultRouteSettings"); s != nil {
		s.end("DataTraceEnabled", "DetailedMetricsEnabled", "LoggingLevel")
	}
	p.end("AccessLogSettings", "Description", "Tags")
	if automatic {
		return nil
	}
	if deployment = r.resources[id]; deployment == nil || !deployment.hasType(v2Type("Deployment")) {
		p.problem("DeploymentId", "the template has no AWS::ApiGatewayV2::Deployment %s, and AutoDeploy is off",
			shown(id))
		return nil
	}
	return deployment
}
