package apigateway_test

//lint:file-ignore SA1008 names are spelled as on the wire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluicelimits/sluice/internal/testkit/apigateway"
	"github.com/sluicelimits/sluice/internal/testkit/lambdahost"
	"github.com/sluicelimits/sluice/internal/testkit/logtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// answers is a function that always gives the same answer and records the events.
type answers struct {
	out string
	err error

	mu     sync.Mutex
	events [][]byte
}

func (a *answers) Invoke(_ context.Context, event []byte) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events = append(a.events, bytes.Clone(event))
	return []byte(a.out), a.err
}

// onlyEvent returns the event of the only call to the function.
func (a *answers) onlyEvent(t *testing.T) map[string]any {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.events) != 1 {
		t.Fatalf("the function was called %d times, want 1 call", len(a.events))
	}
	var out map[string]any
	if err := json.Unmarshal(a.events[0], &out); err != nil {
		t.Fatalf("decode the event: %v in %s", err, a.events[0])
	}
	return out
}

func describe(t testing.TB, text string) *apigateway.Description {
	t.Helper()
	d, err := apigateway.Parse("api.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// serve starts a real server for the API. authorizer and backend are its functions of these names.
func serve(
	t testing.TB, d *apigateway.Description, authorizer, backend apigateway.Function,
) (base string, log *logtest.Buffer) {
	t.Helper()
	log = new(logtest.Buffer)
	s, err := apigateway.New(apigateway.Config{Description: d, Log: slog.New(slog.NewTextHandler(log, nil)),
		Functions: map[string]apigateway.Function{"authorizer": authorizer, "backend": backend}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return server.URL, log
}

type reply struct {
	status int
	header http.Header
	body   string
}

// send makes a request. The header arguments are name, value, name, value and so on.
func send(t testing.TB, method, target, body string, header ...string) reply {
	t.Helper()
	req, err := http.NewRequest(method, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
			continue
		}
		req.Header[header[i]] = append(req.Header[header[i]], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	return reply{resp.StatusCode, resp.Header, string(text)}
}

// policy returns an authorizer's answer with a policy. context is JSON.
func policy(effect, resource, context string) string {
	return fmt.Sprintf(`{"principalId":"acme/ci","policyDocument":{"Version":"2012-10-17",`+
		`"Statement":[{"Action":"execute-api:Invoke","Effect":%q,"Resource":%q}]},"context":%s}`,
		effect, resource, context)
}

const all = "arn:aws:execute-api:*"

// apis holds one API of each kind, all with the same authorizer function; paths holds the path to request of each.
var apis = map[string]string{
	"REST": `{kind: REST, authorizers: {a: {function: authorizer, resultTtlInSeconds: 0}},
		routes: [{route: "ANY /{proxy+}", authorizer: a, integration: {type: ECHO}}]}`,
	"HTTP 1.0": `{kind: HTTP, authorizers: {a: {function: authorizer, payloadFormatVersion: "1.0",
	  resultTtlInSeconds: 0}},
		routes: [{route: $default, authorizer: a, integration: {type: ECHO}}]}`,
	"HTTP 2.0 with policies": `{kind: HTTP, authorizers: {a: {function: authorizer, payloadFormatVersion: "2.0",
	  resultTtlInSeconds: 0}},
		routes: [{route: $default, authorizer: a, integration: {type: ECHO}}]}`,
	"HTTP 2.0": `{kind: HTTP, authorizers: {a: {function: authorizer, payloadFormatVersion: "2.0",
	  enableSimpleResponses: true, resultTtlInSeconds: 0}},
		routes: [{route: $default, authorizer: a, integration: {type: ECHO}}]}`,
	"WebSocket": `{kind: WebSocket, authorizers: {a: {function: authorizer, resultTtlInSeconds: 0}},
		routes: [{route: $connect, authorizer: a, integration: {type: MOCK}}]}`,
}

var handshake = []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-Websocket-Version", "13",
	"Sec-Websocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="}

// call sends one request to the API of the given name.
func call(t testing.TB, api, base string) reply {
	switch api {
	case "REST":
		return send(t, "GET", base+"/dev/product/1", "")
	case "WebSocket":
		return send(t, "GET", base+"/dev", "", handshake...)
	}
	return send(t, "GET", base+"/product/1", "")
}

// Guarantees that every answer of an authorizer has the effect that API Gateway documents, on every kind of API. If an
// answer were mistaken for an Allow, tests would not notice a deployment that lets everybody in.
func TestAuthorizersAnswers(t *testing.T) {
	const (
		pass      = 200
		forbidden = 403
		failed    = 500
	)
	reported := func(kind lambdahost.Kind, text string) error {
		return &lambdahost.Error{Kind: kind, Type: "errorString", Message: text}
	}
	type given struct {
		out string
		err error
	}
	deny, permit := policy("Deny", all, "{}"), policy("Allow", all, "{}")
	for _, c := range []struct {
		name   string
		answer given
		want   int    // the status if the answer is a policy
		simple int    // the status if it is a simple response
		text   string // the body of the REST API
	}{
		{"allow", given{out: permit}, pass, failed, ""},
		{"deny", given{out: deny}, forbidden, failed,
			`{"Message":"User is not authorized to access this resource with an explicit deny"}`},
		{"nothing said", given{out: policy("Allow", "arn:aws:execute-api:*:*:other/*", "{}")}, forbidden, failed,
			`{"Message":"User is not authorized to access this resource"}`},
		{"isAuthorized", given{out: `{"isAuthorized":true,"context":{"a":1}}`}, failed, pass, ""},
		{"not isAuthorized", given{out: `{"isAuthorized":false}`}, failed, forbidden, ""},
		{"isAuthorized as text", given{out: `{"isAuthorized":"true"}`}, failed, failed, ""},
		{"Unauthorized of a process", given{err: reported(lambdahost.Reported, "Unauthorized")}, 401, 401,
			`{"message":"Unauthorized"}`},
		{"Unauthorized in this process", given{err: errors.New("Unauthorized")}, 401, 401, ""},
		{"unauthorized in small letters", given{err: errors.New("unauthorized")}, failed, failed, `{"message":null}`},
		{"a process that ended with that text", given{err: reported(lambdahost.Ended, "Unauthorized")}, failed,
			failed, ""},
		{"another error", given{err: reported(lambdahost.Reported, "Unauthorized.")}, failed, failed, ""},
		{"no JSON", given{out: "allow"}, failed, failed, `{"message":null}`},
		{"null", given{out: "null"}, failed, failed, ""},
		{"nothing", given{}, failed, failed, ""},
		{"no principal", given{out: strings.Replace(permit, "principalId", "principal", 1)}, failed, failed, ""},
		{"empty principal", given{out: strings.Replace(permit, "acme/ci", "", 1)}, failed, failed, ""},
		{"no policy", given{out: `{"principalId":"acme"}`}, failed, failed, ""},
		{"no statement", given{out: `{"principalId":"acme","policyDocument":{"Version":"2012-10-17"}}`}, failed,
			failed, ""},
		{"empty list of statements", given{out: `{"principalId":"acme","policyDocument":{"Version":"2012-10-17",` +
			`"Statement":[]}}`}, forbidden, failed, ""},
		{"effect in small letters", given{out: strings.Replace(permit, `"Allow"`, `"allow"`, 1)}, failed, failed, ""},
		{"a version of none", given{out: strings.Replace(permit, "2012-10-17", "2012-10-18", 1)}, failed, failed, ""},
		{"an object in the context", given{out: policy("Allow", all, `{"a":{}}`)}, failed, failed, ""},
		{"a list in the context", given{out: policy("Allow", all, `{"a":[1]}`)}, failed, failed, ""},
		{"null in the context", given{out: policy("Allow", all, `{"a":null}`)}, failed, failed, ""},
		{"scalars in the context", given{out: policy("Allow", all, `{"a":"x","b":1.5,"c":true}`)}, pass, failed, ""},
	} {
		for api, text := range apis {
			answer := answers{out: c.answer.out, err: c.answer.err}
			base, log := serve(t, describe(t, text), &answer, nil)
			got, want := call(t, api, base), c.want
			if api == "HTTP 2.0" {
				want = c.simple
			}
			if api == "WebSocket" && want == pass {
				want = 101
			}
			if got.status != want {
				t.Errorf("%s, %s: %d %s, want %d\n%s", c.name, api, got.status, got.body, want, log)
			}
			if text := map[int]string{401: `{"message":"Unauthorized"}`, 403: `{"message":"Forbidden"}`,
				500: `{"message":"Internal Server Error"}`}[want]; text != "" && api != "REST" && got.body != text {
				t.Errorf("%s, %s: body %s, want %s", c.name, api, got.body, text)
			}
			if api == "REST" && c.text != "" && got.body != c.text {
				t.Errorf("%s: body %s, want %s", c.name, got.body, c.text)
			}
			if logged := strings.Contains(log.String(), "the authorizer failed"); logged != (want == failed) {
				t.Errorf("%s, %s: a failure is in the log: %t\n%s", c.name, api, logged, log)
			}
		}
	}
}

const mapped = `
kind: REST
authorizers: { a: { function: authorizer, resultTtlInSeconds: 0 } }
routes: [ { route: "ANY /{proxy+}", authorizer: a, integration: { type: ECHO } } ]
gatewayResponses:
  ACCESS_DENIED:
    statusCode: "429"
    responseParameters:
      gatewayresponse.header.Retry-After: context.authorizer.retryAfter
      gatewayresponse.header.X-Number: context.authorizer.number
      gatewayresponse.header.X-Flag: context.authorizer.flag
      gatewayresponse.header.X-Absent: context.authorizer.absent
      gatewayresponse.header.X-Who: context.authorizer.principalId
      gatewayresponse.header.X-Literal: "'a, b'"
      gatewayresponse.header.X-Path: method.request.path.proxy
      gatewayresponse.header.RateLimit: context.authorizer.rateLimit
    responseTemplates:
      application/json: '{"who":"$context.authorizer.principalId","n":$context.authorizer.number,` +
	`"none":"$context.authorizer.absent","raw":$context.authorizer.raw,` +
	`"type":"$context.error.responseType","cost":"5$","m":$context.error.messageString}'
  DEFAULT_4XX:
    responseParameters: { gatewayresponse.header.X-Default: "'4'" }
    responseTemplates: { application/json: '{"m":$context.error.messageString}' }
  DEFAULT_5XX: { statusCode: "503" }
`

// Guarantees that a Deny becomes the configured gateway response, whose status, headers and body come from the
// authorizer's context, in the type that API Gateway gives each value.
func TestGatewayResponse(t *testing.T) {
	f := &answers{out: policy("Deny", all, `{"retryAfter":"2","number":429,"flag":false,`+
		`"raw":"{\"a\":\"$context.authorizer.number\"}","rateLimit":"\"burst\";r=0;t=2"}`)}
	base, _ := serve(t, describe(t, mapped), f, nil)
	got := send(t, "GET", base+"/dev/a/b", "")
	if got.status != 429 {
		t.Fatalf("status %d, want 429: %s", got.status, got.body)
	}
	for name, want := range map[string]string{"Retry-After": "2", "X-Number": "429", "X-Flag": "false",
		"X-Who": "acme/ci", "X-Literal": "a, b",
		"X-Path": "a/b", "Ratelimit": `"burst";r=0;t=2`,
		"Content-Type": "application/json", "X-Amzn-Errortype": "AccessDeniedException"} {
		if v := got.header.Values(name); len(v) != 1 || v[0] != want {
			t.Errorf("header %s: %q, want %q", name, v, want)
		}
	}
	if v, ok := got.header["X-Absent"]; ok {
		t.Errorf("X-Absent is %q; want no header, since the context lacks its value", v)
	}
	const body = `{"who":"acme/ci","n":429,"none":"","raw":{"a":"$context.authorizer.number"},` +
		`"type":"ACCESS_DENIED","cost":"5$","m":"User is not authorized to access this resource with an explicit deny"}`
	if got.body != body {
		t.Errorf("body\n%s, want\n%s", got.body, body)
	}
	if got := send(t, "GET", base+"/dev", ""); got.status != 403 || got.header.Get("X-Default") != "4" ||
		got.body != `{"m":"Missing Authentication Token"}` {
		t.Errorf("a type without a response of its own: %d %v %s, want DEFAULT_4XX with its own status", got.status,
			got.header, got.body)
	}
	f.mu.Lock()
	f.out = "x"
	f.mu.Unlock()
	if got := send(t, "GET", base+"/dev/a", ""); got.status != 503 || got.body != `{"message":null}` {
		t.Errorf("DEFAULT_5XX: %d %s, want its status and the usual body", got.status, got.body)
	}
}

// Guarantees that a request is matched to the route that API Gateway would choose.
func TestRoutes(t *testing.T) {
	for kind, c := range map[string]struct {
		routes string
		want   map[string]string // request → expected resource, or expected status
	}{
		"REST": {`[/, "/product", "/product/{id}", "/product/new", "/product/{id}/price", "/files/{path+}", "/{any}` +
			`/new"]`, map[string]string{
			"GET /dev/": "/", "GET /dev": "/", "GET /dev/product": "/product", "GET /dev/product/1": "/product/{id}",
			"GET /dev/product/new":     "/product/new",
			"GET /dev/product/a%2Fb":   "/product/{id}",
			"GET /dev/product/1/price": "/product/{id}/price",
			"GET /dev/files/a/b":       "/files/{path+}", "GET /dev/x/new": "/{any}/new", "GET /dev/files": "403",
			"GET /dev/nothing":    "403",
			"DELETE /dev/product": "403", "GET /other": "403", "GET /devil": "403", "GET /": "403",
		}},
		"HTTP": {`["/product/{id}", "/product/new", "/files/{path+}", $default]`, map[string]string{
			"GET /product/1": "/product/{id}", "GET /product/new": "/product/new", "GET /files/a/b": "/files/{path+}",
			"GET /files": "$default",
			"GET /":      "$default", "DELETE /product/1": "$default", "GET /product/%31%3Fx": "/product/{id}",
		}},
	} {
		var text strings.Builder
		fmt.Fprintf(&text, "kind: %s\nroutes:\n", kind)
		var paths []string
		if err := json.Unmarshal([]byte(strings.NewReplacer("[/,", `["/",`, "$default",
			`"$default"`).Replace(c.routes)), &paths); err != nil {
			t.Fatal(err)
		}
		for _, p := range paths {
			key, payload := "GET "+p, ""
			if p == "$default" {
				key = p
			}
			if kind == "HTTP" {
				payload = `, payloadFormatVersion: "1.0"`
			}
			fmt.Fprintf(&text, "  - { route: %q, integration: { type: AWS_PROXY, function: backend%s } }\n", key,
				payload)
		}
		for request, want := range c.want {
			f := &answers{out: `{"statusCode":200}`}
			base, _ := serve(t, describe(t, text.String()), nil, f)
			method, path, _ := strings.Cut(request, " ")
			got := send(t, method, base+path, "")
			if want == "403" || want == "404" {
				if fmt.Sprint(got.status) != want || len(f.events) != 0 {
					t.Errorf("%s %s: %d after %d calls, want %s", kind, request, got.status, len(f.events), want)
				}
				continue
			}
			if resource := f.onlyEvent(t)["resource"]; resource != want {
				t.Errorf("%s %s: %v, want %s", kind, request, resource, want)
			}
		}
	}
}

// Guarantees that an authorizer's answer on a WebSocket API may have at most 8 KiB, as documented: a larger one is
// refused.
func TestSizeOfAnswers(t *testing.T) {
	sized := func(n int) string {
		out := policy("Allow", all, `{"a":"%"}`)
		return strings.Replace(out, "%", strings.Repeat("x", n-len(out)+1), 1)
	}
	for size, want := range map[int]int{8 << 10: 101, 8<<10 + 1: 500} {
		base, log := serve(t, describe(t, apis["WebSocket"]), &answers{out: sized(size)}, nil)
		if got := call(t, "WebSocket", base); got.status != want {
			t.Errorf("an answer of %d bytes: %d, want %d\n%s", size, got.status, want, log)
		}
	}
}
