package apigateway_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/request/apigw"
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
		f := &answers{err: errors.New("not answered")}
		base, _ := serve(t, describe(t, c.api), f, nil)
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

// Guarantees that the authorizer's decoder reads each event correctly, from the client's path and address to the
// headers.
func TestEventsAreReadable(t *testing.T) {
	for _, c := range shapes {
		f := &answers{err: errors.New("not answered")}
		base, _ := serve(t, describe(t, c.api), f, nil)
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
		f := &answers{err: errors.New("not answered")}
		base, _ := serve(t, describe(t, strings.Replace(c.api, "%s", c.settings, 1)), f, nil)
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
