package apigateway

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// object is a JSON object. Its keys are written in order, so that two events of the same request are the same bytes.
type object map[string]any

func (o object) bytes() []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(o); err != nil { // not reached: strings, numbers and lists of them always marshal
		panic(fmt.Sprintf("event: %v", err))
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// authorizerEvent returns the event with which an authorizer's function is called.
func (c *call) authorizerEvent(a *authorizer) object {
	switch {
	case c.s.d.Kind == HTTP && a.Payload == "2.0":
		o := c.http2()
		o["type"], o["routeArn"], o["identitySource"] = "REQUEST", c.arn(), nil
		return o
	case c.s.d.Kind == HTTP:
		o := c.http1()
		delete(o, "multiValueHeaders")
		delete(o, "multiValueQueryStringParameters")
		o["type"], o["methodArn"] = "REQUEST", c.arn()
		o["identitySource"], o["authorizationToken"] = nil, nil
		return o
	case c.s.d.Kind == WebSocket:
		return object{"type": "REQUEST", "methodArn": c.arn(), "headers": last(c.header), "multiValueHeaders": c.header,
			"queryStringParameters": c.lastQuery(), "multiValueQueryStringParameters": c.multiQuery(),
			"stageVariables": object{}, "requestContext": c.socketContext()}
	}
	o := c.restEvent()
	o["type"], o["methodArn"] = "REQUEST", c.arn()
	// These are {} if they are empty.
	o["queryStringParameters"], o["multiValueQueryStringParameters"] = c.lastQuery(), c.multiQuery()
	o["pathParameters"], o["stageVariables"] = present(c.parameters), object{}
	return o
}

// restEvent returns the members that all events of a REST API have.
func (c *call) restEvent() object {
	return object{
		"resource": c.resource(), "path": c.path, "httpMethod": c.r.Method,
		"headers": last(c.header), "multiValueHeaders": c.header,
		"queryStringParameters": orNull(c.lastQuery()), "multiValueQueryStringParameters": orNull(c.multiQuery()),
		"pathParameters": orNull(c.parameters), "stageVariables": nil,
		"requestContext": c.restContext(),
	}
}

func (c *call) restContext() object {
	agent, _ := c.requestHeader("User-Agent")
	o := object{
		"accountId": c.s.d.Account, "apiId": c.s.d.API, "stage": c.s.d.Stage, "domainName": c.domainName(),
		"domainPrefix":      c.domainPrefix(),
		"extendedRequestId": c.extendedID, "requestId": c.id, "httpMethod": c.r.Method, "path": c.fullPath,
		"protocol":    c.r.Proto,
		"requestTime": c.requestTime(), "requestTimeEpoch": c.now.UnixMilli(), "resourceId": c.route.id,
		"resourcePath": c.resource(),
		"identity": object{"sourceIp": c.peer, "userAgent": agent,
			"cognitoAuthenticationProvider": nil, "cognitoAuthenticationType": nil, "cognitoIdentityId": nil,
			"cognitoIdentityPoolId": nil, "principalOrgId": nil, "apiKey": c.apiKey(), "apiKeyId": nil,
			"accountId": orAbsent(c.userAccount()), "caller": orAbsent(c.accessKey), "userArn": orAbsent(c.userARN)},
	}
	if c.s.d.Kind == HTTP {
		o["resourceId"] = c.route.Key
	}
	return o
}

// userAccount returns the account in the ARN of the user who signed the request.
func (c *call) userAccount() string {
	if parts := strings.Split(c.userARN, ":"); len(parts) > 4 {
		return parts[4]
	}
	return ""
}

func (c *call) apiKey() any {
	if v, ok := c.requestHeader("X-Api-Key"); ok && c.s.d.Kind == REST {
		return v
	}
	return nil
}

func (c *call) socketContext() object {
	agent, _ := c.requestHeader("User-Agent")
	return object{
		"routeKey": connectRoute, "eventType": "CONNECT", "messageDirection": "IN", "stage": c.s.d.Stage,
		"apiId":      c.s.d.API,
		"domainName": c.domainName(), "extendedRequestId": c.extendedID, "requestId": c.id, "connectionId": c.id,
		"connectedAt": c.now.UnixMilli(), "requestTime": c.requestTime(), "requestTimeEpoch": c.now.UnixMilli(),
		"identity": object{"sourceIp": c.peer, "userAgent": agent},
	}
}

// http1 returns the event of an HTTP API with payload 1.0. It is like that of a REST API, with names of headers in
// lower case.
func (c *call) http1() object {
	o := c.restEvent()
	multi, joined := make(map[string][]string), make(map[string]string)
	for name, lines := range c.header {
		multi[strings.ToLower(name)], joined[strings.ToLower(name)] = lines, strings.Join(lines, ",")
	}
	o["version"], o["headers"], o["multiValueHeaders"] = "1.0", joined, multi
	o["path"] = c.fullPath // contains the stage
	return o
}

// http2 returns the event of an HTTP API with payload 2.0.
func (c *call) http2() object {
	agent, _ := c.requestHeader("User-Agent")
	headers, joined := make(map[string]string), make(map[string]string)
	for name, lines := range c.header {
		headers[strings.ToLower(name)] = strings.Join(lines, ",")
	}
	for _, p := range c.query {
		if v, ok := joined[p.name]; ok {
			p.value = v + "," + p.value
		}
		joined[p.name] = p.value
	}
	path := c.rawPath()
	o := object{
		"version": "2.0", "routeKey": c.routeKey(), "rawPath": path, "rawQueryString": c.r.URL.RawQuery,
		"headers": headers,
		"requestContext": object{
			"accountId": c.s.d.Account, "apiId": c.s.d.API, "domainName": c.domainName(),
			"domainPrefix": c.domainPrefix(),
			"http": object{"method": c.r.Method, "path": path, "protocol": c.r.Proto, "sourceIp": c.peer,
				"userAgent": agent},
			"requestId": c.id, "routeKey": c.routeKey(), "stage": c.s.d.Stage, "time": c.requestTime(),
			"timeEpoch": c.now.UnixMilli(),
		},
	}
	if lines := c.header["Cookie"]; len(lines) > 0 {
		delete(headers, "cookie")
		var cookies []string
		for one := range strings.SplitSeq(strings.Join(lines, ";"), ";") {
			if one = strings.TrimSpace(one); one != "" {
				cookies = append(cookies, one)
			}
		}
		o["cookies"] = cookies
	}
	for name, values := range map[string]map[string]string{"queryStringParameters": joined,
		"pathParameters": c.parameters} {
		if len(values) > 0 {
			o[name] = values
		}
	}
	return o
}

// rawPath returns the path with the stage, unless the stage is $default.
func (c *call) rawPath() string {
	if c.s.d.Stage == defaultStage {
		return c.path
	}
	return "/" + c.s.d.Stage + c.path
}

// proxyEvent returns the event with which the Lambda function behind a route is called.
func (c *call) proxyEvent(payload string, body []byte) object {
	var o object
	switch {
	case c.s.d.Kind == HTTP && payload == "2.0":
		o = c.http2()
		if c.granted.context != nil {
			o["requestContext"].(object)["authorizer"] = object{"lambda": c.granted.values()}
		}
	case c.s.d.Kind == HTTP:
		o = c.http1()
		if c.granted.context != nil {
			o["requestContext"].(object)["authorizer"] = c.granted.withPrincipal(c.granted.values())
		}
		o["body"] = nil
	default:
		o = c.restEvent()
		if c.granted.context != nil {
			texts := make(object, len(c.granted.context)+2)
			for name, v := range c.granted.context {
				texts[name] = v.text
			}
			texts["integrationLatency"] = c.granted.took.Milliseconds()
			o["requestContext"].(object)["authorizer"] = c.granted.withPrincipal(texts)
		}
		o["body"] = nil
	}
	o["isBase64Encoded"] = false
	if len(body) > 0 {
		o["body"], o["isBase64Encoded"] = string(body), false
		if !textual(c, body) {
			o["body"], o["isBase64Encoded"] = base64.StdEncoding.EncodeToString(body), true
		}
	}
	return o
}

// textual reports whether a body is put into an event as text; otherwise it is encoded in base64. An HTTP API decides
// by the content type. A REST API without binary media types treats every body as text. A body that is not UTF-8 cannot
// be text in JSON.
func textual(c *call, body []byte) bool {
	if !utf8.Valid(body) {
		return false
	}
	kind, _ := c.requestHeader("Content-Type")
	kind, _, _ = strings.Cut(strings.ToLower(kind), ";")
	kind = strings.TrimSpace(kind)
	return c.s.d.Kind != HTTP || kind == "" || strings.HasPrefix(kind, "text/") ||
		slices.ContainsFunc([]string{"json", "xml", "javascript", "x-www-form-urlencoded"},
			func(s string) bool { return strings.HasSuffix(kind, s) })
}

// last returns the last line of each header, as events of a REST API have it in headers.
func last(h map[string][]string) map[string]string {
	out := make(map[string]string, len(h))
	for name, lines := range h {
		if len(lines) > 0 {
			out[name] = lines[len(lines)-1]
		}
	}
	return out
}

func (c *call) multiQuery() map[string][]string {
	out := make(map[string][]string)
	for _, p := range c.query {
		out[p.name] = append(out[p.name], p.value)
	}
	return out
}

func (c *call) lastQuery() map[string]string { return last(c.multiQuery()) }

// orNull returns the map, or nil if it is empty: events of integrations have null then.
func orNull[V any](m map[string]V) any {
	if len(m) == 0 {
		return nil
	}
	return m
}

// orAbsent returns the text, or nil if it is empty.
func orAbsent(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// present returns the map, or an empty map if it is nil: events of authorizers have {} then.
func present(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return maps.Clone(m)
}
