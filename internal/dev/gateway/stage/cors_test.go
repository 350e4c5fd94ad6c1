package stage_test

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/dev/gateway/stage"
)

const cors = `
kind: HTTP
corsConfiguration: { allowOrigins: ["https://app.example.com", "http://*"], allowMethods: [GET, PUT],
  allowHeaders: [x-api-key], exposeHeaders: [Retry-After, RateLimit], allowCredentials: true, maxAge: 60 }
authorizers: { a: { function: authorizer, payloadFormatVersion: "2.0", enableSimpleResponses: true,
  resultTtlInSeconds: 0 } }
routes:
  - { route: "GET /shop", authorizer: a, integration: { type: AWS_PROXY, function: backend,
    payloadFormatVersion: "2.0" } }
  - { route: "ANY /any", authorizer: a, integration: { type: ECHO } }
  - { route: "OPTIONS /open", integration: { type: AWS_PROXY, function: backend, payloadFormatVersion: "2.0" } }
`

// Guarantees that CORS of an HTTP API is as documented. Preflights are answered without a backend, and without the
// authorizer unless a route with an authorizer accepts OPTIONS. Answers of backends get the configured headers instead
// of their own. Other origins get no such headers.
func TestCORS(t *testing.T) {
	authorizer, backend := &answers{out: `{"isAuthorized":true}`},
		&answers{out: `{"statusCode":200,"headers":{"access-control-allow-origin":"*","Access-Control-Max-Age":"9",` +
			`"X-Own":"1"}}`}
	base, _ := serve(t, describe(t, cors), authorizer, backend, nil)
	preflight := func(origin string) []string {
		return []string{"Origin", origin, "Access-Control-Request-Method", "GET"}
	}
	is := func(r reply, status int, want map[string]string) {
		t.Helper()
		if r.status != status {
			t.Errorf("status %d, body %s; want status %d", r.status, r.body, status)
		}
		for name := range r.header {
			if strings.HasPrefix(name, "Access-Control-") && want[name] == "" {
				t.Errorf("%s: %q, want none", name, r.header[name])
			}
		}
		for name, value := range want {
			if r.header.Get(name) != value || len(r.header[name]) != 1 {
				t.Errorf("%s: %q, want %q", name, r.header[name], value)
			}
		}
	}
	shared := map[string]string{"Access-Control-Allow-Origin": "https://app.example.com",
		"Access-Control-Expose-Headers": "Retry-After,RateLimit", "Access-Control-Allow-Credentials": "true"}
	asked := map[string]string{"Access-Control-Allow-Methods": "GET,PUT", "Access-Control-Allow-Headers": "x-api-key",
		"Access-Control-Max-Age": "60"}
	for name, value := range shared {
		asked[name] = value
	}
	for _, path := range []string{"/shop", "/nowhere", "/open"} {
		is(send(t, "OPTIONS", base+path, "", preflight("https://app.example.com")...), 204, asked)
	}
	is(send(t, "OPTIONS", base+"/shop", "", preflight("https://evil.example")...), 204, nil)
	if authorizer.calls() != 0 || backend.calls() != 0 {
		t.Errorf("preflights called the authorizer %d times and the backend %d times", authorizer.calls(),
			backend.calls())
	}
	is(send(t, "OPTIONS", base+"/any", "", preflight("https://app.example.com")...), 204, asked)
	if authorizer.calls() != 1 {
		t.Errorf("a preflight of a route that accepts OPTIONS called its authorizer %d times", authorizer.calls())
	}
	is(send(t, "GET", base+"/shop", "", "Origin", "https://app.example.com"), 200, shared)
	is(send(t, "GET", base+"/any", "", "Origin", "http://localhost:3000"), 200,
		map[string]string{"Access-Control-Allow-Origin": "http://localhost:3000",
			"Access-Control-Expose-Headers": "Retry-After,RateLimit", "Access-Control-Allow-Credentials": "true"})
	is(send(t, "GET", base+"/shop", ""), 200, nil)
	is(send(t, "GET", base+"/shop", "", "Origin", "https://evil.example"), 200, nil)
	// not a preflight: it names no method
	is(send(t, "OPTIONS", base+"/shop", "", "Origin", "https://app.example.com"), 404, nil)

	authorizer.out = `{"isAuthorized":false}`
	is(send(t, "OPTIONS", base+"/any", "", preflight("https://app.example.com")...), 403, nil)
}

// Guarantees that CORS settings which API Gateway refuses are refused.
func TestCORSProblems(t *testing.T) {
	describe(t, cors)
	for _, c := range []struct{ old, broken, want string }{
		{"kind: HTTP", "kind: REST", "corsConfiguration: only an HTTP API has one"},
		{`"http://*"`, `"*"`, "corsConfiguration.allowCredentials: it cannot be combined with the origin *"},
		{"maxAge: 60", "maxAge: 86401", "corsConfiguration.maxAge: 86401 is outside -1..86400"},
		{"[GET, PUT]", `["GET, PUT"]`, `corsConfiguration.allowMethods: "GET, PUT" is not one value`},
	} {
		_, err := stage.Parse("f.yaml", []byte(strings.Replace(cors, c.old, c.broken, 1)))
		var e *stage.Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.broken, err, c.want)
		}
	}
}

// Guarantees three settings of integrations: a MOCK answers with its status and the headers that are mapped to it;
// httpMethod sets the method of the request to a backend; an ECHO with a URL shows the request for that URL, and does
// not call its host.
func TestIntegrationSettings(t *testing.T) {
	up := newUpstream(t)
	text := `
kind: REST
routes:
  - route: OPTIONS /a
    integration: { type: MOCK, statusCode: "204",
      responseParameters: { "204": { method.response.header.Access-Control-Allow-Origin: "'*'" },
        "200": { method.response.header.X: "'1'" } } }
  - { route: ANY /b, integration: { type: HTTP_PROXY, url: "` + up.URL + `/there", httpMethod: GET } }
  - { route: "ANY /c/{id}", integration: { type: ECHO, url: "https://shop.example.com/v1/{id}", httpMethod: POST,
    requestParameters: { integration.request.path.id: method.request.path.id } } }
`
	base, _ := serve(t, describe(t, text), nil, nil, nil)
	if r := send(t, "OPTIONS", base+"/dev/a", ""); r.status != 204 ||
		r.header.Get("Access-Control-Allow-Origin") != "*" || r.header.Get("X") != "" || r.body != "" {
		t.Errorf("the MOCK answers %+v", r)
	}
	if s := send(t, "PUT", base+"/dev/b?q=1", "body").seen(t); s.Method != "GET" || s.URI != "/there?q=1" ||
		s.Body != "body" {
		t.Errorf("the backend got %+v", s)
	}
	if r := send(t, "GET", base+"/dev/c/7?q=1", ""); r.status != 200 ||
		!strings.Contains(r.body, `"method": "POST"`) || !strings.Contains(r.body, `"path": "/v1/7"`) ||
		!strings.Contains(r.body, `"query": "q=1"`) {
		t.Errorf("the answer is %+v", r)
	}
	base, _ = serve(t, describe(t, text), nil, nil, func(c *stage.Config) {
		c.Upstream,
			_ = url.Parse(up.URL + "/base/")
	})
	if s := send(t, "GET", base+"/dev/c/7?q=1", "").seen(t); s.Method != "POST" || s.URI != "/base/v1/7?q=1" ||
		s.Host == "shop.example.com" {
		t.Errorf("the echo shows %+v", s)
	}
	for _, c := range []struct{ old, broken, want string }{
		{`statusCode: "204"`, `statusCode: "20"`, `statusCode: "20" is not a status`},
		{"httpMethod: GET", "httpMethod: ANY", `httpMethod: "ANY" is none of GET`},
		{"type: ECHO, url: \"https", "type: ECHO, url: \"ftp", "integration.url: "},
		{"{ type: MOCK,", "{ type: MOCK, httpMethod: GET,", "httpMethod: only HTTP_PROXY and ECHO have one"},
		{"httpMethod: GET", `statusCode: "200"`, "statusCode: only MOCK has one"},
		{"{ type: MOCK,", "{ type: MOCK, url: \"http://a\",", "url: only HTTP_PROXY and ECHO have one"},
	} {
		if _, err := stage.Parse("f.yaml", []byte(strings.Replace(text, c.old, c.broken, 1))); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.broken, err, c.want)
		}
	}
}
