package stage_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/dev/gateway/stage"
)

// Guarantees that each built-in API can be read and is of the kind that its name says.
func TestBuiltin(t *testing.T) {
	for name, kind := range map[string]stage.Kind{"rest": stage.REST, "http": stage.HTTP,
		"websocket": stage.WebSocket} {
		if d := builtin(t, name); d.Kind != kind {
			t.Errorf("the built-in API %s has kind %s", name, d.Kind)
		}
	}
	if len(stage.Builtin()) != 3 {
		t.Errorf("the built-in APIs are %q", stage.Builtin())
	}
	if _, ok := stage.ReadBuiltin("../description"); ok {
		t.Error("the path of a file was accepted as the name of a built-in API")
	}
}

const good = `kind: REST
authorizers:
  a: { function: f, resultTtlInSeconds: 0 }
routes:
  - { route: "GET /a", authorizer: a, integration: { type: ECHO } }
`

// Guarantees that every setting which the local gateway does not support is refused, with its place in the file. If a
// setting were ignored, tests could pass against the local gateway although the deployed API behaves differently.
func TestProblems(t *testing.T) {
	if _, err := stage.Parse("good.yaml", []byte(good)); err != nil {
		t.Fatal(err)
	}
	integration := func(kind, route, text string) string {
		return "kind: " + kind + "\nroutes:\n  - route: " + route + "\n    integration: " + text + "\n"
	}
	for _, c := range []struct{ name, text, want string }{
		{"nothing", "", "f.yaml:1:1: the file is empty: it needs kind"},
		{"no YAML", "a: [", "f.yaml:1:1: not valid YAML: "},
		{"a list", "[]", "f.yaml:1:1: want a description (a mapping), got a list"},
		{"two documents", good + "---\n" + good, "f.yaml:7:1: a second YAML document begins here: one file holds " +
			"one document"},
		{"no kind", "routes: []", `kind: want REST, HTTP or WebSocket, got ""`},
		{"an unknown key", good + "cors: {}\n", `f.yaml:6:1: unknown key "cors" in a description; known: kind,`},
		{"an unknown key inside", strings.Replace(good, "type: ECHO", "type: ECHO, cacheTtl: 5", 1),
			`routes[0].integration: unknown key "cacheTtl" in an integration; known: type,`},
		{"a key twice", good + "kind: HTTP\n", `f.yaml:6:1: key "kind" is there twice, first at line 1`},
		{"a merge key", "<<: {}\n" + good, "f.yaml:1:1: merge keys (<<) are not supported"},
		{"a number for a text", strings.Replace(good, "function: f", "function: 7", 1),
			`f.yaml:3:18: authorizers.a.function: want a string, got the integer 7: write it in quotes, "7"`},
		{"a text for a number", strings.Replace(good, "Seconds: 0", "Seconds: none", 1),
			`authorizers.a.resultTtlInSeconds: want an integer, got the string "none"`},
		{"nothing for a text", strings.Replace(good, "function: f", "function: ", 1),
			`authorizers.a.function: want a string, got nothing`},
		{"a TTL", strings.Replace(good, "Seconds: 0", "Seconds: 300", 1),
			"f.yaml:3:41: authorizers.a.resultTtlInSeconds: 300: answers of this authorizer are about one request " +
				"and must not be cached; want 0"},
		{"no TTL", strings.Replace(good, ", resultTtlInSeconds: 0", "", 1),
			"f.yaml:3:6: authorizers.a.resultTtlInSeconds: missing"},
		{"an authorizer that is none", strings.Replace(good, "authorizer: a", "authorizer: b", 1),
			`f.yaml:5:36: routes[0].authorizer: "b" is none of authorizers`},
		{"a type of authorizer", strings.Replace(good, "function: f", "function: f, type: JWT", 1),
			`authorizers.a.type: "JWT": the local gateway knows REQUEST`},
		{"TOKEN", strings.Replace(good, "function: f", "function: f, type: TOKEN", 1),
			`authorizers.a.type: "TOKEN": the local gateway knows REQUEST`},
		{"an identity source", strings.Replace(good, "function: f",
			"function: f, identitySource: [method.request.header.Authorization]", 1),
			"authorizers.a.identitySource: the local gateway knows none"},
		{"no payload on HTTP", strings.Replace(good, "REST", "HTTP", 1),
			`authorizers.a.payloadFormatVersion: want "1.0" or "2.0"`},
		{"a payload on REST", strings.Replace(good, "function: f", `function: f, payloadFormatVersion: "1.0"`, 1),
			"payload formats and simple responses are of HTTP APIs only"},
		{"simple responses of 1.0", strings.Replace(strings.Replace(good, "REST", "HTTP", 1), "function: f",
			`function: f, enableSimpleResponses: true, payloadFormatVersion: "1.0"`,
			1), "simple responses need payload 2.0"},
		{"a long time", strings.Replace(good, "function: f", "function: f, timeoutInMillis: 30000", 1),
			"timeoutInMillis: 30000 is outside 0..29000"},
		{"no routes", "kind: REST", "routes: missing"},
		{"a route twice", integration("REST", `"GET /{a}"`, "{ type: ECHO }") +
			"  - { route: \"GET /{b}\", integration: { type: ECHO } }\n", "matches the same requests as routes[0]"},
		{"no path", integration("REST", "GET", "{ type: ECHO }"), `routes[0].route: "GET" is not "METHOD /path"`},
		{"a method", integration("REST", `"FETCH /a"`, "{ type: ECHO }"), "the method is none of ANY"},
		{"a greedy parameter in the middle", integration("REST", `"GET /{a+}/b"`, "{ type: ECHO }"),
			"{a+} must be the last segment"},
		{"half a parameter", integration("REST", `"GET /{a"`, "{ type: ECHO }"), "is not {name} or {name+}"},
		{"a wildcard", integration("REST", `"GET /*"`, "{ type: ECHO }"), "is not a segment"},
		{"a parameter twice", integration("REST", `"GET /{a}/{a}"`, "{ type: ECHO }"), "{a} is there twice"},
		{"$default on REST", integration("REST", `$default`, "{ type: ECHO }"), `is not "METHOD /path"`},
		{"another route of a WebSocket", integration("WebSocket", `sendMessage`, "{ type: MOCK }"),
			"only $connect is served"},
		{"messages", integration("WebSocket", `$connect`, "{ type: ECHO }"), "no messages passed"},
		{"an integration", integration("REST", `"GET /a"`, "{ type: HTTP }"),
			`routes[0].integration.type: "HTTP" is not known`},
		{"MOCK on HTTP", integration("HTTP", `"GET /a"`, "{ type: MOCK }"), "an HTTP API has no MOCK"},
		{"no URL", integration("REST", `"GET /a"`, "{ type: HTTP_PROXY }"), "integration.url: "},
		{"a password", integration("REST", `"GET /a"`, `{ type: HTTP_PROXY, url: "http://u:p@h/" }`), "password"},
		{"a URL with a parameter that is not mapped", integration("REST", `"GET /{a}"`,
			`{ type: HTTP_PROXY, url: "http://h/{a}" }`), "map integration.request.path.a"},
		{"a URL with a parameter that the route lacks", integration("HTTP", `"GET /a"`,
			`{ type: HTTP_PROXY, url: "http://h/{a}" }`), "url has {a}, and the route does not"},
		{"no function", integration("REST", `"GET /a"`, "{ type: AWS_PROXY }"), "integration.function: missing"},
		{"a backend's payload", integration("HTTP", `"GET /a"`, "{ type: AWS_PROXY, function: f }"),
			`integration.payloadFormatVersion: want "1.0" or "2.0"`},
		{"a mapping", integration("REST", `"GET /a"`, `{ type: ECHO, requestParameters: { header.X: "'a'" } }`),
			"it knows integration.request.header.NAME and"},
		{"a value", integration("REST", `"GET /a"`,
			`{ type: ECHO, requestParameters: { integration.request.header.X: method.request.body } }`),
			`does not know "method.request.body"`},
		{"a value from a header", integration("REST", `"GET /a"`,
			`{ type: ECHO, requestParameters: { integration.request.header.X: method.request.header.Y } }`),
			`does not know "method.request.header.Y"`},
		{"a stage variable", integration("REST", `"GET /a"`,
			`{ type: ECHO, requestParameters: { integration.request.header.X: stageVariables.v } }`),
			`does not know "stageVariables.v"`},
		{"stage variables", good + "stageVariables: { v: x }\n", "stageVariables"},
		{"a custom domain", good + "domain: { name: a.example }\n", "domain"},
		{"a context variable", integration("REST", `"GET /a"`,
			`{ type: ECHO, requestParameters: { integration.request.header.X: context.identity.cognitoIdentityId } `+
				`}`), "does not know the context variable"},
		{"an HTTP API's form on REST", integration("REST", `"GET /a"`,
			`{ type: ECHO, requestParameters: { integration.request.header.X: $context.requestId } }`),
			"does not know"},
		{"a header that frames", integration("REST", `"GET /a"`,
			`{ type: ECHO, requestParameters: { integration.request.header.Transfer-Encoding: "'a'" } }`), "belongs " +
			"to the connection"},
		{"a header's name", integration("REST", `"GET /a"`,
			`{ type: ECHO, requestParameters: { "integration.request.header.X Y": "'a'" } }`), "not the name of a " +
			"header"},
		{"a literal that ends a line", integration("REST", `"GET /a"`,
			`{ type: ECHO, requestParameters: { integration.request.header.X: "'a\nb'" } }`), "is not a value " +
			"between quotes"},
		{"a reserved header", integration("HTTP", `"GET /a"`,
			`{ type: ECHO, requestParameters: { "overwrite:header.authorization": x } }`), "reserved"},
		{"a query mapping", integration("HTTP", `"GET /a"`,
			`{ type: ECHO, requestParameters: { "append:querystring.q": x } }`), "it knows overwrite:header.NAME"},
		{"a header that is added to", integration("HTTP", `"GET /a"`,
			`{ type: ECHO, requestParameters: { "append:header.q": x } }`), `does not know "append:header.q"`},
		{"a path of the backend", integration("HTTP", `"GET /a"`,
			`{ type: ECHO, requestParameters: { "overwrite:path": /b } }`), `does not know "overwrite:path"`},
		{"a status of the answer", integration("HTTP", `"GET /a"`,
			`{ type: ECHO, responseParameters: { "404": { "overwrite:statuscode": "410" } } }`),
			`does not know "overwrite:statuscode"`},
		{"a request body", integration("HTTP", `"GET /a"`,
			`{ type: ECHO, requestParameters: { "overwrite:header.q": $request.body.a } }`),
			`does not know "$request.body.a"`},
		{"a text with a variable in it", integration("HTTP", `"GET /a"`,
			`{ type: ECHO, requestParameters: { "overwrite:header.q": "a-${context.requestId}" } }`),
			`does not know "a-${context.requestId}"`},
		{"a response mapping of a proxy", integration("REST", `"GET /a"`,
			`{ type: ECHO, responseParameters: { "200": { method.response.header.X: "'a'" } } }`), "the answer " +
			"of a proxy is passed on unchanged"},
		{"a status", integration("HTTP", `"GET /a"`,
			`{ type: ECHO, responseParameters: { default: { "overwrite:header.x": a } } }`), `"default" is not a ` +
			`status`},
		{"gateway responses of an HTTP API", strings.Replace(integration("HTTP", `"GET /a"`, "{ type: ECHO }"),
			"routes", "gatewayResponses: { DEFAULT_4XX: {} }\nroutes", 1), "gatewayResponses: a HTTP API has none"},
		{"a type of gateway response", good + "gatewayResponses: { QUOTA_EXCEEDED: {} }\n",
			"gatewayResponses.QUOTA_EXCEEDED: not known, or for what is not served here"},
		{"its status", good + "gatewayResponses: { ACCESS_DENIED: { statusCode: \"42\" } }\n",
			`gatewayResponses.ACCESS_DENIED.statusCode: "42" is not a status`},
		{"its header", good + "gatewayResponses: { ACCESS_DENIED: { responseParameters: { header.X: \"'a'\" } } }\n",
			"is not gatewayresponse.header.NAME"},
		{"VTL", good + "gatewayResponses: { ACCESS_DENIED: { responseTemplates: { application/json: \"#set($a = " +
			"1)\" } } }\n", "templates of gateway responses are not VTL"},
		{"$input", good + "gatewayResponses: { ACCESS_DENIED: { responseTemplates: { application/json: " +
			"\"$input.path('$')\" } } }\n", "not VTL"},
		{"an unknown variable", good + "gatewayResponses: { ACCESS_DENIED: { responseTemplates: { application/json: " +
			"$context.authorizor.x } } }\n", "does not know the context variable"},
		{"a content type", good + "gatewayResponses: { ACCESS_DENIED: { responseTemplates: { json: x } } }\n",
			`"json" is not a content type`},
		{"a stage", good + "stage: a/b\n", `f.yaml:6:8: stage: "a/b" is not the name of a stage`},
		{"an account", good + "account: \"1\"\n", "account: "},
	} {
		_, err := stage.Parse("f.yaml", []byte(c.text))
		var e *stage.Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.name, err, c.want)
			continue
		}
		for _, p := range e.Problems {
			if p.File != "f.yaml" || p.Path != "" && p.Line == 0 {
				t.Errorf("%s: the problem %+v has no line number", c.name, p)
			}
		}
	}
}

// Guarantees that all problems of a file are reported at once, in the order of the file.
func TestProblemsTogether(t *testing.T) {
	_, err := stage.Parse("f.yaml", []byte("kind: REST\nstage: a/b\naccount: \"1\"\nroutes:\n  - { route: x, "+
		"integration: { type: y } }\n"))
	var e *stage.Error
	if !errors.As(err, &e) || len(e.Problems) != 4 {
		t.Fatalf("%v, want 4 problems", err)
	}
	for i, line := range []int{2, 3, 5, 5} {
		if e.Problems[i].Line != line {
			t.Errorf("problem %d: %s, want line %d", i+1, e.Problems[i], line)
		}
	}
}

// Guarantees that YAML aliases cannot make a few lines expand to billions of values.
func TestAliasesAreBounded(t *testing.T) {
	text := "kind: REST\nroutes:\n  - &a { route: x, integration: { type: ECHO, requestParameters: { "
	for i := range 200 {
		text += "k" + strings.Repeat("x", i) + ": v, "
	}
	text += "} } }\n" + strings.Repeat("  - *a\n", 2000)
	_, err := stage.Parse("f.yaml", []byte(text))
	if err == nil || !strings.Contains(err.Error(), "aliases expand to more than") {
		t.Errorf("aliases of aliases give %.200v, want an error that names the bound", err)
	}
}

// Guarantees that New names a function that is missing, before anything is served.
func TestMissingFunction(t *testing.T) {
	if _, err := stage.New(stage.Config{Description: describe(t, good)}); err == nil ||
		!strings.Contains(err.Error(), `no function "f", which authorizer a names`) {
		t.Errorf("New without the function f gives %v", err)
	}
	if _, err := stage.New(stage.Config{}); err == nil {
		t.Error("New without a description gives no error")
	}
}

// FuzzParse checks that any text gives either an API that can be served, or problems with their places, and that the
// parser returns.
func FuzzParse(f *testing.F) {
	for _, name := range stage.Builtin() {
		text, _ := stage.ReadBuiltin(name)
		f.Add(text)
	}
	f.Add([]byte(good))
	f.Add([]byte(mapped))
	f.Add([]byte(operators))
	f.Add([]byte("kind: &a REST\nroutes: [*a]"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte(`{"kind":"HTTP","routes":[{"route":"$default","integration":{"type":"ECHO",` +
		`"requestParameters":{"overwrite:header.x":"$context.path"}}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := stage.Parse("f.yaml", data)
		if err != nil {
			var e *stage.Error
			if !errors.As(err, &e) || len(e.Problems) == 0 {
				t.Fatalf("%v is not a list of problems", err)
			}
			return
		}
		authorizers, integrations := d.Functions()
		functions := make(map[string]stage.Function)
		for _, name := range append(authorizers, integrations...) {
			functions[name] = new(answers)
		}
		if _, err := stage.New(stage.Config{Description: d, Functions: functions,
			Credentials: map[string]stage.Credential{annKey: ann}}); err != nil {
			t.Fatalf("New refuses what Parse accepted: %v\n%s", err, data)
		}
	})
}
