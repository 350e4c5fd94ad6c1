package apigateway_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/request/apigw"
	"github.com/sluicelimits/sluice/internal/testkit/apigateway"
)

// shapes are the requests that lead to the golden events of package apigw. Those events are as AWS documents them.
var shapes = []struct {
	name, api      string
	shape          apigw.Shape
	method, path   string // as the client sends it
	body           string
	header         []string
	differ         []string // fields that depend on the client or on AWS, or are new with each request
	peer, protocol string
}{
	{name: "rest_request", shape: apigw.RESTRequest, api: `{kind: REST, api: a1b2c3d4e5, stage: prod,
	  region: eu-west-1, account: "210987654321",
		authorizers: {a: {function: authorizer, resultTtlInSeconds: 0}},
		routes: [{route: "PUT /v1/organizations/{orgId}/product/{id}", authorizer: a, integration: {type: ECHO}}]}`,
		method: "PUT", path: "/prod/v1/organizations/o1/product/42?dryRun=false&tag=sale&tag=new",
		header: []string{"Accept", "application/json", "Accept-Encoding", "gzip, deflate, br", "Content-Type",
			"application/json", "User-Agent", "catalogue-sync/7.1",
			"X-Api-Key", "slk_example.s3cr3t", "X-Query-Cost", "2", "X-Query-Cost", "3", "Host",
			"a1b2c3d4e5.execute-api.eu-west-1.amazonaws.com"},
		differ: []string{"headers.cloudfront-", "headers.via", "content-length", "clientCert",
			"requestContext.resourceId", "requestContext.deploymentId", "stageVariables"}},
	{name: "http_1", shape: apigw.HTTP1, api: `{kind: HTTP, api: h7g6f5e4d3, stage: test, region: eu-west-1,
	  account: "210987654321",
		authorizers: {a: {function: authorizer, payloadFormatVersion: "1.0", resultTtlInSeconds: 0}},
		routes: [{route: "GET /product/{id}", authorizer: a, integration: {type: ECHO}}]}`,
		method: "GET", path: "/test/product/42?fields=name", header: []string{"Accept", "application/json",
			"Authorization", "Bearer slk_example.s3cr3t",
			"User-Agent", "curl/8.14.1", "Content-Length", "0", "Host",
			"h7g6f5e4d3.execute-api.eu-west-1.amazonaws.com"},
		differ: []string{"stageVariables", "content-length", "identitySource", "authorizationToken"}},
	{name: "http_2", shape: apigw.HTTP2, api: `{kind: HTTP, api: h7g6f5e4d3, region: eu-west-1,
	  account: "210987654321",
		authorizers: {a: {function: authorizer, payloadFormatVersion: "2.0", enableSimpleResponses: true,
		  resultTtlInSeconds: 0}},
		routes: [{route: "POST /search", authorizer: a, integration: {type: ECHO}}]}`,
		method: "POST", path: "/search?tag=sale&tag=new", body: `{"q":"shoes and hats"`[:18],
		header: []string{"Accept", "application/json", "Authorization", "Bearer slk_example.s3cr3t", "Content-Type",
			"application/json",
			"Cookie", "session=s3cr3t; theme=dark", "Traceparent",
			"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
			"User-Agent", "Mozilla/5.0 (X11; Linux x86_64)", "Host", "h7g6f5e4d3.execute-api.eu-west-1.amazonaws.com"},
		differ: []string{"pathParameters", "content-length", "stageVariables"}},
	{name: "websocket", shape: apigw.WebSocket, api: `{kind: WebSocket, api: w9v8u7t6s5, stage: live,
	  region: eu-west-1, account: "210987654321",
		authorizers: {a: {function: authorizer, resultTtlInSeconds: 0}}, routes: [{route: $connect, authorizer: a,
		  integration: {type: MOCK}}]}`,
		method: "GET", path: "/live?room=lobby", header: append([]string{"X-Api-Key", "slk_example.s3cr3t",
			"User-Agent", "chat/2.4",
			"Host", "w9v8u7t6s5.execute-api.eu-west-1.amazonaws.com", "Sec-Websocket-Extensions",
			"permessage-deflate"}, handshake...),
		differ: []string{"sec-websocket-key"}},
}

// volatile are the fields that are new with each request, or that belong to the connection that a test makes.
var volatile = []string{"requestid", "extendedrequestid", "requesttime", "time", "connectionid", "connectedat",
	"x-amzn-trace-id",
	"x-forwarded-for", "sourceip", "accept-encoding", "connection", "upgrade", "user-agent"}

// flatten adds the leaves of a JSON value to a map, by their path.
func flatten(path string, v any, into map[string]any) {
	switch v := v.(type) {
	case map[string]any:
		for name, inner := range v {
			flatten(path+"."+name, inner, into)
		}
	default:
		into[strings.TrimPrefix(path, ".")] = v
	}
}

func leafValues(t *testing.T, v any) map[string]any {
	t.Helper()
	out := make(map[string]any)
	flatten("", v, out)
	return out
}

// Guarantees that the events have exactly the documented fields and values. The local gateway does not share the
// encoder of package apigw, so a misreading of the documentation on one side shows as a difference.
func TestEventsAreTheDocumentedOnes(t *testing.T) {
	for _, c := range shapes {
		f := &answers{err: lambdaFailure{}}
		base, _ := serve(t, describe(t, c.api), f, nil, nil)
		send(t, c.method, base+c.path, c.body, c.header...)
		got := leafValues(t, f.onlyEvent(t))
		data, err := os.ReadFile(filepath.Join("..", "..", "request", "apigw", "testdata", c.name+".event.json"))
		if err != nil {
			t.Fatal(err)
		}
		var golden map[string]any
		if err := json.Unmarshal(data, &golden); err != nil {
			t.Fatal(err)
		}
		want := leafValues(t, golden)
		ignored := func(path string) bool {
			for _, d := range c.differ {
				if strings.Contains(strings.ToLower(path), strings.ToLower(d)) {
					return true
				}
			}
			name := strings.ToLower(path[strings.LastIndex(path, ".")+1:])
			return slices.ContainsFunc(volatile, func(v string) bool { return name == v || name == v+"epoch" })
		}
		// the names of a REST API's headers are as the client wrote them
		spelled := func(m map[string]any) map[string]any {
			out := make(map[string]any, len(m))
			for path, v := range m {
				if strings.HasPrefix(strings.ToLower(path), "headers.") ||
					strings.HasPrefix(path, "multiValueHeaders.") {
					if c.name == "http_1" || c.name == "http_2" {
						if name := path[strings.Index(path, ".")+1:]; name != strings.ToLower(name) {
							t.Errorf("%s: %s is not in lower case", c.name, path)
						}
					}
					path = strings.ToLower(path)
				}
				out[path] = v
			}
			return out
		}
		got, want = spelled(got), spelled(want)
		for path, v := range want {
			if g, ok := got[path]; !ignored(path) && (!ok || !reflect.DeepEqual(g, v)) {
				t.Errorf("%s: field %s is %v (present: %t), documented as %v", c.name, path, g, ok, v)
			}
		}
		for path, v := range got {
			_, ok := want[path]
			newer := v == nil && strings.HasPrefix(path, "requestContext.identity.") ||
				strings.HasPrefix(path, "requestContext.")
			if !ok && !newer && !ignored(path) {
				t.Errorf("%s: field %s, with value %v, is not documented", c.name, path, v)
			}
		}
	}
}

type lambdaFailure struct{}

func (lambdaFailure) Error() string { return "not answered" }

// Guarantees that the authorizer's decoder reads each event correctly, from the client's path and address to the
// headers.
func TestEventsAreReadable(t *testing.T) {
	for _, c := range shapes {
		f := &answers{err: lambdaFailure{}}
		base, _ := serve(t, describe(t, c.api), f, nil, nil)
		send(t, c.method, base+c.path, c.body, c.header...)
		f.onlyEvent(t)
		e, err := apigw.Parse(f.events[0])
		if err != nil {
			t.Errorf("%s: decode the event: %v", c.name, err)
			continue
		}
		path, _, _ := strings.Cut(c.path, "?")
		for _, prefix := range []string{"/prod", "/test", "/live"} {
			path = strings.TrimPrefix(path, prefix)
		}
		if c.name == "websocket" {
			path = "/$connect"
		}
		if e.Shape != c.shape || e.Path != path || e.Method != c.method || e.HasContext && e.Peer != "127.0.0.1" {
			t.Errorf("%s: read as %s %s %s of %q, want %s %s", c.name, e.Shape, e.Method, e.Path, e.Peer, c.method,
				path)
		}
		if e.HasContext && (e.RequestID == "" || e.Trace == "") {
			t.Errorf("%s: request id %q, trace id %q", c.name, e.RequestID, e.Trace)
		}
	}
}

// Guarantees in which form paths reach an authorizer: as sent or decoded, with or without the stage.
// Limits tell paths apart by these values.
func TestPathsInEvents(t *testing.T) {
	const (
		rest = `{kind: REST, %s authorizers: {a: {function: authorizer, resultTtlInSeconds: 0}}, routes: [{route: ` +
			`"ANY /{proxy+}", authorizer: a, integration: {type: ECHO}}]}`
		http1 = `{kind: HTTP, %s authorizers: {a: {function: authorizer, payloadFormatVersion: "1.0", ` +
			`resultTtlInSeconds: 0}}, routes: [{route: $default, authorizer: a, integration: {type: ECHO}}]}`
		http2 = `{kind: HTTP, %s authorizers: {a: {function: authorizer, payloadFormatVersion: "2.0", ` +
			`resultTtlInSeconds: 0}}, routes: [{route: $default, authorizer: a, integration: {type: ECHO}}]}`
	)
	for _, c := range []struct {
		api, settings, sent string
		field, path         string // the field of the event that is tested
		context, arn        string
		read                string // the path that the authorizer reads
	}{
		{rest, "", "/dev/a%2Fb/c%20d", "path", "/a%2Fb/c%20d", "/dev/a%2Fb/c%20d", "/a%2Fb/c%20d", "/a%2Fb/c%20d"},
		{rest, "", "/dev/a//b/", "path", "/a//b/", "/dev/a//b/", "/a//b/", "/a//b/"},
		{http1, "", "/a%2Fb", "path", "/a/b", "/a/b", "/a/b", "/a/b"},
		{http2, "", "/a%2520b", "rawPath", "/a%20b", "/a%20b", "/a%20b", "/a%20b"},
		{http2, "", "/a%3Fb=c", "rawPath", "/a", "/a", "/a", "/a"},
		{http2, "stage: live,", "/live/a", "rawPath", "/live/a", "/live/a", "/a", "/a"},
	} {
		f := &answers{err: lambdaFailure{}}
		base, _ := serve(t, describe(t, strings.Replace(c.api, "%s", c.settings, 1)), f, nil, nil)
		send(t, "GET", base+c.sent, "")
		event := f.onlyEvent(t)
		context := event["requestContext"].(map[string]any)
		arn, _ := event["methodArn"].(string)
		inner := context["path"]
		if c.field == "rawPath" {
			arn, inner = event["routeArn"].(string), context["http"].(map[string]any)["path"]
		}
		_, tail, _ := strings.Cut(arn, "/GET")
		if event[c.field] != c.path || inner != c.context || tail != c.arn {
			t.Errorf("%s (%s): field %s is %v, the context's path %v, the ARN's path %s; want %s, %s, %s", c.sent,
				c.settings, c.field,
				event[c.field], inner, tail, c.path, c.context, c.arn)
		}
		if e, err := apigw.Parse(f.events[0]); err != nil || e.Path != c.read {
			t.Errorf("%s (%s): the authorizer reads %+v, %v; want the path %s", c.sent, c.settings, e, err, c.read)
		}
	}
}

// Guarantees that the address and the trace id that the gateway adds come last, whatever the client sent in these
// headers.
func TestForgedHeaders(t *testing.T) {
	for name, want := range map[string]string{"rest": "203.0.113.1, 10.0.0.1, 127.0.0.1",
		"http": "203.0.113.1,10.0.0.1,127.0.0.1"} {
		f := &answers{err: lambdaFailure{}}
		d := builtin(t, name)
		base, _ := serve(t, d, f, nil, nil)
		separator := strings.Replace(strings.TrimSuffix(want, "127.0.0.1"), "203.0.113.1", "", 1)[:1]
		sent := "203.0.113.1" + separator + " 10.0.0.1"
		if name == "http" {
			sent = "203.0.113.1,10.0.0.1"
		}
		send(t, "GET", base+d.Prefix()+"/a", "", "X-Forwarded-For", sent, "X-Forwarded-Proto", "gopher",
			"X-Amzn-Trace-Id", "Root=1-67891233-abcdef012345678912345678;Sampled=1")
		event := leafValues(t, f.onlyEvent(t))
		get := func(header string) string {
			if v, ok := event["headers."+header].(string); ok {
				return v
			}
			v, _ := event["headers."+strings.ToLower(header)].(string)
			return v
		}
		if v := get("X-Forwarded-For"); v != want {
			t.Errorf("%s: X-Forwarded-For %q, want %q", name, v, want)
		}
		if get("X-Forwarded-Proto") != "https" {
			t.Errorf("%s: X-Forwarded-Proto %q", name, get("X-Forwarded-Proto"))
		}
		if v := get("X-Amzn-Trace-Id"); !strings.HasPrefix(v, "Self=1-") ||
			!strings.HasSuffix(v, ";Root=1-67891233-abcdef012345678912345678;Sampled=1") {
			t.Errorf("%s: X-Amzn-Trace-Id %q", name, v)
		}
	}
}

// Guarantees that the function behind a route gets the caller's identity as API Gateway passes it, and that package
// apigw can read it. The middleware has no other source for it.
func TestProxyEvents(t *testing.T) {
	const context = `{"decision":"limited","httpStatus":429,"tenant":"acme","retryAfter":"2"}`
	for _, c := range []struct {
		name, api, answer string
		status            any // the status in the context, in the type that this kind of API passes on
		principal         bool
	}{
		{"REST", `{kind: REST, authorizers: {a: {function: authorizer, resultTtlInSeconds: 0}}, routes: [{route: ` +
			`"ANY /{proxy+}", authorizer: a, integration: {type: AWS_PROXY, function: backend}}]}`,
			policy("Allow", all, context), "429", true},
		{"HTTP 1.0", `{kind: HTTP, stage: dev, authorizers: {a: {function: authorizer, payloadFormatVersion: "1.0",
		  resultTtlInSeconds: 0}},
			routes: [{route: $default, authorizer: a, integration: {type: AWS_PROXY, function: backend,
			  payloadFormatVersion: "1.0"}}]}`, policy("Allow", all, context), 429.0, true},
		{"HTTP 2.0", `{kind: HTTP, stage: dev, authorizers: {a: {function: authorizer, payloadFormatVersion: "2.0",
		  enableSimpleResponses: true, resultTtlInSeconds: 0}},
			routes: [{route: $default, authorizer: a, integration: {type: AWS_PROXY, function: backend,
			  payloadFormatVersion: "2.0"}}]}`, `{"isAuthorized":true,"context":` + context + `}`, 429.0, false},
	} {
		backend := &answers{out: `{"statusCode":200,"body":"ok"}`}
		base, log := serve(t, describe(t, c.api), &answers{out: c.answer}, backend, nil)
		if got := send(t, "POST", base+"/dev/a?x=1&x=2", `{"a":1}`, "Content-Type",
			"application/json"); got.status != 200 || got.body != "ok" {
			t.Fatalf("%s: status %d, body %s\n%s", c.name, got.status, got.body, log)
		}
		event := backend.onlyEvent(t)
		found := event["requestContext"].(map[string]any)["authorizer"].(map[string]any)
		raw, _ := json.Marshal(found)
		read, err := apigw.ReadContext(raw)
		if err != nil || read.Tenant != "acme" || read.Header.RetryAfter != "2" {
			t.Errorf("%s: package apigw reads %+v, %v from %s", c.name, read, err, raw)
		}
		if inner, ok := found["lambda"].(map[string]any); ok {
			found = inner
		}
		if found["httpStatus"] != c.status || (found["principalId"] == "acme/ci") != c.principal {
			t.Errorf("%s: the event's authorizer is %s", c.name, raw)
		}
		if event["body"] != `{"a":1}` || event["isBase64Encoded"] != false {
			t.Errorf("%s: body %v, base64 %v", c.name, event["body"], event["isBase64Encoded"])
		}
		if c.name == "REST" && !reflect.DeepEqual(event["multiValueQueryStringParameters"],
			map[string]any{"x": []any{"1", "2"}}) {
			t.Errorf("%s: multiValueQueryStringParameters are %v", c.name, event["multiValueQueryStringParameters"])
		}
		if c.name == "HTTP 2.0" && !reflect.DeepEqual(event["queryStringParameters"], map[string]any{"x": "1,2"}) {
			t.Errorf("%s: queryStringParameters are %v", c.name, event["queryStringParameters"])
		}
		if got := send(t, "POST", base+"/dev/a", "\xff\x00", "Content-Type",
			"application/octet-stream"); got.status != 200 {
			t.Errorf("%s: a binary body is answered with status %d", c.name, got.status)
		}
		var second map[string]any
		if err := json.Unmarshal(backend.events[1], &second); err != nil || second["body"] != "/wA=" ||
			second["isBase64Encoded"] != true {
			t.Errorf("%s: binary body %v, base64 %v, %v", c.name, second["body"], second["isBase64Encoded"], err)
		}
	}
}

// Guarantees that the answers of a Lambda function reach the client as API Gateway documents, and that an invalid
// answer becomes the 5xx of this kind of API.
func TestProxyReplies(t *testing.T) {
	const (
		rest  = `{kind: REST, routes: [{route: "ANY /a", integration: {type: AWS_PROXY, function: backend}}]}`
		http1 = `{kind: HTTP, stage: dev, routes: [{route: "ANY /a", integration: {type: AWS_PROXY, function: ` +
			`backend, payloadFormatVersion: "1.0"}}]}`
		http2 = `{kind: HTTP, stage: dev, routes: [{route: "ANY /a", integration: {type: AWS_PROXY, function: ` +
			`backend, payloadFormatVersion: "2.0"}}]}`
	)
	for _, c := range []struct {
		name, api, out string
		status         int
		body           string
		header         http.Header
	}{
		{"all of it", rest, `{"statusCode":429,"headers":{"Retry-After":"2","X-N":3},` +
			`"multiValueHeaders":{"X-M":["a","b"]},"body":"no"}`, 429, "no",
			http.Header{"Retry-After": {"2"}, "X-N": {"3"}, "X-M": {"a", "b"}, "Content-Type": {"application/json"}}},
		{"both forms of a header", rest, `{"statusCode":200,"headers":{"x-m":"b"},"multiValueHeaders":{"X-M":["a",` +
			`"b"]}}`, 200, "", http.Header{"X-M": {"a", "b"}}},
		{"base64", rest, `{"statusCode":200,"isBase64Encoded":true,"body":"aGk="}`, 200, "hi", nil},
		{"a challenge is renamed on REST APIs", rest, `{"statusCode":401,"headers":{"WWW-Authenticate":"Bearer"}}`,
			401, "",
			http.Header{"X-Amzn-Remapped-Www-Authenticate": {"Bearer"}, "Www-Authenticate": nil}},
		{"and not on HTTP APIs", http2, `{"statusCode":401,"headers":{"WWW-Authenticate":"Bearer"}}`, 401, "",
			http.Header{"Www-Authenticate": {"Bearer"}}},
		{"cookies", http2, `{"statusCode":200,"cookies":["a=1","b=2"]}`, 200, "",
			http.Header{"Set-Cookie": {"a=1", "b=2"}}},
		{"no status in 2.0", http2, `{"hello":"there"}`, 200, `{"hello":"there"}`,
			http.Header{"Content-Type": {"application/json"}}},
		{"a text in 2.0", http2, `"hello"`, 200, `"hello"`, nil},
		{"no status in 1.0", http1, `{"hello":"there"}`, 500, `{"message":"Internal Server Error"}`, nil},
		{"no status", rest, `{"body":"x"}`, 502, `{"message":"Internal server error"}`, nil},
		{"no JSON", rest, `hello`, 502, "", nil},
		{"a status that is none", rest, `{"statusCode":99}`, 502, "", nil},
		{"a header that ends a line", rest, `{"statusCode":200,"headers":{"X-A":"a\r\nX-Evil: 1"}}`, 502, "",
			http.Header{"X-Evil": nil}},
		{"a header's name that is none", rest, `{"statusCode":200,"headers":{"X A":"a"}}`, 502, "", nil},
		{"a header of no text", rest, `{"statusCode":200,"headers":{"X-A":{}}}`, 502, "", nil},
		{"framing is the server's", rest, `{"statusCode":200,"headers":{"Content-Length":"99",` +
			`"Transfer-Encoding":"chunked"},"body":"four"}`, 200, "four", http.Header{"Content-Length": {"4"}}},
		{"no content", rest, `{"statusCode":204,"body":"x"}`, 204, "", nil},
	} {
		base, log := serve(t, describe(t, c.api), nil, &answers{out: c.out}, nil)
		got := send(t, "GET", base+"/dev/a", "")
		if got.status != c.status || c.body != "" && got.body != c.body {
			t.Errorf("%s: %d %q, want %d %q\n%s", c.name, got.status, got.body, c.status, c.body, log)
		}
		for name, want := range c.header {
			if !slices.Equal(got.header[name], want) {
				t.Errorf("%s: header %s is %q, want %q", c.name, name, got.header[name], want)
			}
		}
	}
	for api, want := range map[string]int{rest: 502, http1: 500, http2: 500} {
		base, _ := serve(t, describe(t, api), nil, &answers{err: lambdaFailure{}}, nil)
		if got := send(t, "GET", base+"/dev/a", ""); got.status != want {
			t.Errorf("a function that fails: %d, want %d", got.status, want)
		}
	}
}

var _ apigateway.Function = (*answers)(nil)
