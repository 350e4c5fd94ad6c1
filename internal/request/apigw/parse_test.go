package apigw_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/textproto"
	"reflect"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/plan/route"
	"github.com/sluicelimits/sluice/internal/request/apigw"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// change parses a golden event, lets f change it, and returns the new text.
func change(t testing.TB, s apigw.Shape, f func(event, context map[string]any)) []byte {
	t.Helper()
	var event map[string]any
	if err := json.Unmarshal(readEvent(t, s), &event); err != nil {
		t.Fatal(err)
	}
	context, _ := event["requestContext"].(map[string]any)
	f(event, context)
	out, err := json.Marshal(event)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func setField(field string, value any) func(event, context map[string]any) {
	return func(event, context map[string]any) {
		at := event
		names := strings.Split(field, ".")
		for _, n := range names[:len(names)-1] {
			if n == "requestContext" {
				at = context
				continue
			}
			inner, ok := at[n].(map[string]any)
			if !ok {
				inner = map[string]any{}
				at[n] = inner
			}
			at = inner
		}
		if value == nil {
			delete(at, names[len(names)-1])
		} else {
			at[names[len(names)-1]] = value
		}
	}
}

const secret = "s3cr3t"

// Guarantees that an event of none of the five shapes is refused with the name of the wrong field, and that the error
// contains no value of the event, because it is logged.
func TestRefusals(t *testing.T) {
	edit := func(s apigw.Shape, field string, value any) string {
		return string(change(t, s, setField(field, value)))
	}
	for _, c := range []struct{ name, event, want string }{
		{"nothing", "", "not valid JSON"},
		{"half", `{"type":"TOKEN","authorizationToken":"` + secret, "not valid JSON"},
		{"two", `{"type":"TOKEN"} {}`, "not valid JSON"},
		{"a list", `["` + secret + `"]`, "not a JSON object"},
		{"a string", `"` + secret + `"`, "not a JSON object"},
		{"an empty object", `{}`, "type, methodArn and routeArn are missing"},
		{"too large", `{"type":"` + strings.Repeat(secret, apigw.MaxEventBytes/6) + `"}`, "bytes, at most 524288"},
		{"too deep", strings.Repeat("[", 100_000), "nested more than 32 deep"},
		{"too deep, whole", strings.Repeat(`{"a":[`, 2000) + strings.Repeat("]}", 2000), "nested more than 32 deep"},
		{"another type", edit(apigw.RESTRequest, "type", secret), "type is neither TOKEN nor REQUEST"},
		{"type of another kind", edit(apigw.RESTRequest, "type", 7), "type is not a string"},
		{"twice", `{"type":"TOKEN","methodArn":"` + secret + `","methodArn":"` + secret + `"}`,
			"methodArn stands there twice"},
		{"the context twice", `{"type":"REQUEST","requestContext":{},"requestContext":{}}`,
			"requestContext stands there twice"},
		{"the event of an integration", edit(apigw.RESTRequest, "type", nil),
			"type is missing: it looks like the event of an integration"},
		{"the event of a function URL", `{"version":"2.0","rawPath":"/","requestContext":{}}`,
			"it looks like the event of an integration or a function URL"},
		{"an ARN alone", `{"methodArn":"` + secret + `"}`, "type is missing"},
		{"the event of a queue", `{"Records":[{"body":"` + secret + `"}]}`, "are missing"},

		{"TOKEN with a context", edit(apigw.RESTToken, "requestContext", map[string]any{"stage": secret}),
			"type is TOKEN, but there is requestContext"},
		{"TOKEN with headers", edit(apigw.RESTToken, "headers", map[string]any{"A": secret}),
			"type is TOKEN, but there is headers"},
		{"TOKEN with a version", edit(apigw.RESTToken, "version", secret), "type is TOKEN, but there is version"},
		{"TOKEN without a token", edit(apigw.RESTToken, "authorizationToken", nil), "authorizationToken is missing"},
		{"TOKEN with a list of tokens", edit(apigw.RESTToken, "authorizationToken", []string{secret}),
			"authorizationToken is not a string"},
		{"TOKEN without an ARN", edit(apigw.RESTToken, "methodArn", nil), "methodArn is missing"},
		{"no ARN", edit(apigw.RESTToken, "methodArn", secret), "methodArn is not the ARN of a method or route"},
		{"an ARN of something else", edit(apigw.RESTToken, "methodArn", "arn:aws:s3:::"+secret+"/a/b/c"),
			"methodArn is not the ARN"},
		{"an ARN without a method", edit(apigw.RESTToken, "methodArn", "arn:aws:execute-api:eu-west-1:1:api/prod/"),
			"methodArn is not the ARN"},
		{"an ARN without a stage", edit(apigw.RESTToken, "methodArn", "arn:aws:execute-api:eu-west-1:1:api"),
			"methodArn is not the ARN"},

		{"REST without a context", edit(apigw.RESTRequest, "requestContext", nil), "requestContext is missing"},
		{"REST with a context of text", edit(apigw.RESTRequest, "requestContext", secret),
			"requestContext is not an object"},
		{"REST with a route ARN", edit(apigw.RESTRequest, "routeArn", secret),
			"as of a REST API, but there is routeArn"},
		{"REST with a raw path", edit(apigw.RESTRequest, "rawPath", secret), "but there is rawPath"},
		{"REST with 2.0's context", edit(apigw.RESTRequest, "requestContext.http", map[string]any{}),
			"but there is requestContext.http"},
		{"REST without a method", edit(apigw.RESTRequest, "httpMethod", ""), "httpMethod is missing"},
		{"REST without a path", edit(apigw.RESTRequest, "path", nil), "path is missing"},
		{"REST without an address", edit(apigw.RESTRequest, "requestContext.identity.sourceIp", nil),
			"requestContext.identity.sourceIp is missing"},
		{"REST with an address of another kind", edit(apigw.RESTRequest, "requestContext.identity.sourceIp", 7),
			"requestContext.identity.sourceIp is not a string"},
		{"REST with an identity of text", edit(apigw.RESTRequest, "requestContext.identity", secret),
			"requestContext.identity is not an object"},
		{"headers of text", edit(apigw.RESTRequest, "multiValueHeaders", secret), "multiValueHeaders is not an object"},
		{"a header of a number", edit(apigw.RESTRequest, "multiValueHeaders", map[string]any{secret: 7}),
			"multiValueHeaders holds a value of the wrong type"},
		{"a header of lists", edit(apigw.RESTRequest, "multiValueHeaders",
			map[string]any{secret: []any{[]any{secret}}}),
			"multiValueHeaders holds a value that is not a list of strings"},

		{"an unknown version", edit(apigw.HTTP1, "version", "3.0"), "version is neither 1.0 nor 2.0"},
		{"1.0 with a route ARN", edit(apigw.HTTP1, "routeArn", secret), "version is 1.0, but there is routeArn"},
		{"1.0 with a header of lists", edit(apigw.HTTP1, "headers", map[string]any{"A": []string{secret}}),
			"headers holds a value of the wrong type"},
		{"2.0 with a method ARN", edit(apigw.HTTP2, "methodArn", secret), "version is 2.0, but there is methodArn"},
		{"2.0 with a method outside", edit(apigw.HTTP2, "httpMethod", secret),
			"version is 2.0, but there is httpMethod"},
		{"2.0 without a route ARN", edit(apigw.HTTP2, "routeArn", nil), "routeArn is missing"},
		{"2.0 without a path", edit(apigw.HTTP2, "rawPath", nil), "rawPath is missing"},
		{"2.0 without a method", edit(apigw.HTTP2, "requestContext.http.method", nil),
			"requestContext.http.method is missing"},
		{"2.0 without an address", edit(apigw.HTTP2, "requestContext.http.sourceIp", nil),
			"requestContext.http.sourceIp is missing"},
		{"2.0 with cookies of text", edit(apigw.HTTP2, "cookies", secret), "cookies is not a list of strings"},
		{"2.0 with cookies of numbers", edit(apigw.HTTP2, "cookies", []any{7}), "cookies is not a list of strings"},

		{"a message on a WebSocket", edit(apigw.WebSocket, "requestContext.eventType", "MESSAGE"), "not of $connect"},
		{"another route of a WebSocket", edit(apigw.WebSocket, "requestContext.routeKey", secret), "not of $connect"},
		{"a WebSocket with a method", edit(apigw.WebSocket, "httpMethod", secret),
			"eventType is CONNECT, but there is httpMethod"},
		{"a WebSocket with a method's ARN", edit(apigw.WebSocket, "methodArn",
			"arn:aws:execute-api:eu-west-1:1:api/prod/GET/a"), "methodArn is not the ARN"},
		{"a WebSocket without an address", edit(apigw.WebSocket, "requestContext.identity", nil),
			"requestContext.identity.sourceIp is missing"},
	} {
		e, err := apigw.Parse([]byte(c.event))
		if e != nil || !errors.Is(err, apigw.ErrEvent) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v; want an error with %q", c.name, e, err, c.want)
			continue
		}
		if strings.Contains(err.Error(), secret) || len(err.Error()) > 200 {
			t.Errorf("%s: the error contains values of the event, or is too long: %v", c.name, err)
		}
	}
}

// Guarantees that the stage and the base path are removed from a path, and nothing else. If they remained, limits of an
// endpoint would not be found; if more were removed, one path could be taken for another.
func TestPath(t *testing.T) {
	for _, c := range []struct {
		name            string
		shape           apigw.Shape
		sent, stage, at string // at: what the ARN says after the API's id; "" leaves the ARN as sent says
		want            string
	}{
		{"REST", apigw.RESTRequest, "/product/1", "prod", "prod/GET/product/1", "/product/1"},
		{"REST, root", apigw.RESTRequest, "/", "prod", "prod/GET/", "/"},
		{"REST, base path", apigw.RESTRequest, "/shop/product/1", "prod", "prod/GET/product/1", "/product/1"},
		{"REST, base path of two segments, trailing slash", apigw.RESTRequest, "/shop/v1/product/1/", "prod",
			"prod/GET/product/1", "/product/1/"},
		{"REST, base path alone", apigw.RESTRequest, "/shop", "prod", "prod/GET/", "/"},
		{"REST, escapes stay as sent", apigw.RESTRequest, "/shop/product/a%2Fb%20c", "prod", "prod/GET/product/a/b c",
			"/product/a%2Fb%20c"},
		{"REST, escapes in both", apigw.RESTRequest, "/shop/product/a%2fb", "prod", "prod/GET/product/a%2Fb",
			"/product/a%2fb"},
		{"REST, a path that is all one name", apigw.RESTRequest, "/a/a/a", "prod", "prod/GET/a/a", "/a/a"},
		{"REST, doubled slashes", apigw.RESTRequest, "/shop//product///1", "prod", "prod/GET/product/1",
			"//product///1"},
		{"REST, a name that ends alike is no base path", apigw.RESTRequest, "/xproduct/1", "prod", "prod/GET/product/1",
			"/product/1"},
		{"REST, what cannot be brought together is the ARN's", apigw.RESTRequest, "/shop/a+b", "prod", "prod/GET/a b",
			"/a b"},
		{"REST, a colon", apigw.RESTRequest, "/at/12:30:00", "prod", "prod/GET/at/12:30:00", "/at/12:30:00"},
		{"1.0, stage", apigw.HTTP1, "/test/product/1", "test", "test/GET/product/1", "/product/1"},
		{"1.0, custom domain without the stage", apigw.HTTP1, "/product/1", "test", "test/GET/product/1", "/product/1"},
		{"1.0, a resource named as the stage", apigw.HTTP1, "/test/product/1", "test", "test/GET/test/product/1",
			"/test/product/1"},
		{"1.0, an ARN of another method does not count", apigw.HTTP1, "/test/product/1", "test", "test/$default/",
			"/product/1"},
		{"1.0, the stage alone", apigw.HTTP1, "/test", "test", "test/GET/", "/"},
		{"2.0", apigw.HTTP2, "/product/1", "$default", "$default/POST/product/1", "/product/1"},
		{"2.0, stage", apigw.HTTP2, "/test/product/1", "test", "test/POST/product/1", "/product/1"},
		{"2.0, stage, decoded in the ARN", apigw.HTTP2, "/test/product/%C3%A9", "test", "test/POST/product/é",
			"/product/%C3%A9"},
		{"2.0, mapping of a custom domain", apigw.HTTP2, "/orders/v2/product/1", "$default", "$default/POST/product/1",
			"/product/1"},
		{"2.0, what cannot be brought together keeps all but the stage", apigw.HTTP2, "/test/a", "test", "test/POST/b",
			"/a"},
		{"2.0, a name that begins with the stage's", apigw.HTTP2, "/tests/a", "test", "test/POST/b", "/tests/a"},
		{"2.0, no leading slash", apigw.HTTP2, "product", "$default", "$default/GET/x", "/product"},
		{"TOKEN", apigw.RESTToken, "", "", "prod/GET/product/a:1/%2e", "/product/a:1/%2e"},
		{"TOKEN, root", apigw.RESTToken, "", "", "prod/GET/", "/"},
		{"TOKEN, root without a slash", apigw.RESTToken, "", "", "prod/GET", "/"},
	} {
		arn := "arn:aws:execute-api:eu-west-1:1:api/" + c.at
		e, err := apigw.Parse(change(t, c.shape, func(event, context map[string]any) {
			field, path := "methodArn", "path"
			if c.shape == apigw.HTTP2 {
				field, path = "routeArn", "rawPath"
			}
			event[field] = arn
			if c.shape != apigw.RESTToken {
				event[path], context["stage"] = c.sent, c.stage
			}
			if c.shape == apigw.RESTRequest || c.shape == apigw.HTTP1 {
				event["httpMethod"] = "GET"
			}
		}))
		if err != nil || e.Path != c.want || e.ARN != arn {
			t.Errorf("%s: %+v, %v; want the path %q", c.name, e, err, c.want)
		}
	}
}

// Guarantees that a path that was made to be slow to compare costs little time, because every client can send such a
// path.
func TestPathOfManySegments(t *testing.T) {
	sent := strings.Repeat("/%2f", 2500)
	e, err := apigw.Parse(change(t, apigw.HTTP2, func(event, _ map[string]any) {
		event["rawPath"], event["routeArn"] = sent, "arn:aws:execute-api:eu-west-1:1:api/$default/POST/"+
			strings.Repeat("/a", 700)
	}))
	if err != nil || e.Path != sent {
		t.Errorf("%v, want the path as sent", err)
	}
}

func TestHeaders(t *testing.T) {
	for _, c := range []struct {
		name  string
		shape apigw.Shape
		edit  func(event, context map[string]any)
		want  map[string][]string
	}{
		{"no headers at all, as the console tests", apigw.RESTRequest, func(e, _ map[string]any) {
			e["headers"], e["multiValueHeaders"] = nil, nil
		}, map[string][]string{}},
		{"without lists of lines, the last lines", apigw.RESTRequest, func(e, _ map[string]any) {
			e["headers"], e["multiValueHeaders"] = map[string]any{"x-a": "1"}, map[string]any{}
		}, map[string][]string{"X-A": {"1"}}},
		{"lists of lines win", apigw.RESTRequest, func(e, _ map[string]any) {
			e["headers"], e["multiValueHeaders"] = map[string]any{"X-A": "2", "X-B": "3"},
				map[string]any{"X-A": []string{"1", "2"}}
		}, map[string][]string{"X-A": {"1", "2"}}},
		{"a name in two spellings is one", apigw.RESTRequest, func(e, _ map[string]any) {
			e["multiValueHeaders"] = map[string]any{"X-API-KEY": []string{"a"}, "x-api-key": []string{"b", ""},
				"x_api_key": []string{"c"}, "X-Zz": []string{"z"}}
		}, map[string][]string{"X-Api-Key": {"a", "b", ""}, "X_api_key": {"c"}, "X-Zz": {"z"}}},
		{"no lines, no header", apigw.RESTRequest, func(e, _ map[string]any) {
			e["multiValueHeaders"] = map[string]any{"X-A": []string{}, "X-B": []string{"b"}}
		}, map[string][]string{"X-B": {"b"}}},
		{"escapes", apigw.HTTP2, func(e, _ map[string]any) {
			e["headers"], e["cookies"] = map[string]any{"x-a": "q\"\\ \u2028é😀"}, nil
		}, map[string][]string{"X-A": {"q\"\\ \u2028é😀"}}},
		{"cookies are a header, too", apigw.HTTP2, func(e, _ map[string]any) {
			e["headers"], e["cookies"] = map[string]any{}, []string{"a=1", "b=2"}
		}, map[string][]string{"Cookie": {"a=1; b=2"}}},
		{"a cookie header stays", apigw.HTTP2, func(e, _ map[string]any) {
			e["headers"], e["cookies"] = map[string]any{"cookie": "a=1;b=2"}, []string{"a=1", "b=2"}
		}, map[string][]string{"Cookie": {"a=1;b=2"}}},
		{"a token with its scheme", apigw.RESTToken, setField("authorizationToken", "Basic x"),
			map[string][]string{"Authorization": {"Basic x"}}},
		{"a token without a scheme", apigw.RESTToken, setField("authorizationToken", " slk_1 "),
			map[string][]string{"Authorization": {"Bearer slk_1"}}},
		{"an empty token", apigw.RESTToken, setField("authorizationToken", ""),
			map[string][]string{"Authorization": {""}}},
	} {
		e, err := apigw.Parse(change(t, c.shape, c.edit))
		if err != nil || !reflect.DeepEqual(e.Header, c.want) {
			t.Errorf("%s: %+v, %v; want %v", c.name, e, err, c.want)
		}
	}
}

// Guarantees that the credential of an event is found, and that a repeated or empty credential is a bad one, and not a
// missing one.
func TestCredentialIsFound(t *testing.T) {
	for _, s := range shapes {
		if found, err := identity.FindCredentials(parseEvent(t, s).Header); found.Key+found.Bearer != "slk_example."+
			secret || err != nil {
			t.Errorf("%s: %+v, %v", s, found, err)
		}
	}
	for _, c := range []struct {
		shape apigw.Shape
		edit  func(event, context map[string]any)
	}{
		{apigw.RESTToken, setField("authorizationToken", "")},
		{apigw.RESTRequest, setField("multiValueHeaders",
			map[string]any{"x-api-key": []string{"a"}, "X-Api-Key": []string{"b"}})},
	} {
		e, err := apigw.Parse(change(t, c.shape, c.edit))
		if err != nil {
			t.Fatal(err)
		}
		if found, err := identity.FindCredentials(e.Header); err == nil {
			t.Errorf("%v: %+v; want a bad one", e.Header, found)
		}
	}
}

// Guarantees that a plan can name the route on which WebSockets connect.
func TestSocketPathIsAPattern(t *testing.T) {
	path := parseEvent(t, apigw.WebSocket).Path
	if _, err := route.ParsePattern(path); err != nil {
		t.Errorf("pattern %q: %v", path, err)
	}
}

// Guarantees that a trace id is logged only if it has the form of one.
func TestTrace(t *testing.T) {
	const whole = "Root=1-69206f10-0a1b2c3d4e5f60718293a4b5;Parent=53995c3f42cd8ad8;Sampled=1"
	for in, want := range map[string]string{
		whole:            whole,
		"Root=1\nforged": "", "Root=<b>": "", strings.Repeat("a", 257): "",
	} {
		e, err := apigw.Parse(change(t, apigw.RESTRequest,
			setField("multiValueHeaders", map[string]any{"X-Amzn-Trace-Id": []string{in}})))
		if err != nil || e.Trace != want {
			t.Errorf("%q: %q, %v; want %q", in, e.Trace, err, want)
		}
	}
}

// Guarantees that an event which is logged as a whole shows neither a credential nor an address.
func TestEventTellsNoSecret(t *testing.T) {
	for _, s := range shapes {
		e := parseEvent(t, s)
		var b strings.Builder
		log := slog.New(slog.NewJSONHandler(&b, nil))
		log.Info("event", "event", e, "again", slog.AnyValue(e))
		slog.New(slog.NewTextHandler(&b, nil)).Info("event", "event", e)
		fmt.Fprintf(&b, "%v %+v %s %q", e, e, e, e)
		for _, private := range []string{secret, "Bearer", "203.0.113", "198.51.100", "2001:db8"} {
			if strings.Contains(b.String(), private) {
				t.Errorf("%s: %q in %s", s, private, b.String())
			}
		}
		if !strings.Contains(b.String(), e.API) || !strings.Contains(b.String(), s.String()) {
			t.Errorf("%s: the text does not name the API and the shape of the event: %s", s, b.String())
		}
	}
}

func TestShapeNames(t *testing.T) {
	for s, want := range map[apigw.Shape]string{0: "none", apigw.WebSocket: "websocket", 200: "none"} {
		if s.String() != want {
			t.Errorf("Shape(%d) is %q, want %q", s, s, want)
		}
	}
}

// FuzzParse guarantees that any bytes are refused, or give an event about which a decision can be made; that only JSON
// is accepted; and that an error contains no value of the event.
func FuzzParse(f *testing.F) {
	for _, s := range shapes {
		f.Add(readEvent(f, s))
	}
	f.Add([]byte(`{"type":"TOKEN","authorizationToken":"s3cr3t","methodArn":"arn:aws:execute-api:r:1:a/s/GET/"}`))
	f.Add([]byte(`{"type":"REQUEST","requestContext":{"http":{"method":"s3cr3t"},"identity":{"sourceIp":1}}}`))
	f.Add([]byte(strings.Repeat("[", 2000)))
	f.Add([]byte("{\"type\":\"\\ud800\",\"\\u0074ype\":\"\xff\"}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		before := string(data)
		e, err := apigw.Parse(data)
		if string(data) != before {
			t.Fatal("Parse has changed the bytes of the event")
		}
		if err != nil {
			if e != nil || !errors.Is(err, apigw.ErrEvent) || strings.Contains(err.Error(), secret) ||
				len(err.Error()) > 200 {
				t.Fatalf("%+v, %v", e, err)
			}
			return
		}
		var root map[string]json.RawMessage
		if err := json.Unmarshal(data, &root); err != nil {
			t.Fatalf("an event that is no JSON was read: %v", err)
		}
		if e.Shape.String() == "none" || e.Method == "" || !strings.HasPrefix(e.Path, "/") || e.API == "" ||
			e.Stage == "" || e.Header == nil {
			t.Fatalf("%+v", e)
		}
		if e.HasContext != (e.Shape != apigw.RESTToken) || !e.HasContext && (e.Peer != "" || e.Route != "") {
			t.Fatalf("%+v", e)
		}
		for name, lines := range e.Header {
			if name != textproto.CanonicalMIMEHeaderKey(name) || len(lines) == 0 {
				t.Fatalf("header %q: %q", name, lines)
			}
		}
		n := apigw.Encoder{}
		a := limited()
		answered, err := n.Append(nil, e, &a)
		if err != nil {
			t.Fatal(err)
		}
		checkAnswer(t, answered, e, false)
	})
}

func BenchmarkParse(b *testing.B) {
	for _, s := range shapes {
		data := readEvent(b, s)
		var compact []byte
		var v any
		if err := json.Unmarshal(data, &v); err != nil {
			b.Fatal(err)
		}
		compact, _ = json.Marshal(v) // as the gateway sends it
		b.Run(fmt.Sprintf("%s/%d_bytes", s, len(compact)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if e, err := apigw.Parse(compact); err != nil || e.Shape != s {
					b.Fatal(e, err)
				}
			}
		})
	}
}

// BenchmarkBaseline reads the same events with encoding/json, into a struct with the needed fields. Parse is compared
// with it.
func BenchmarkBaseline(b *testing.B) {
	type event struct {
		Type, Version, MethodArn, Resource, Path, HTTPMethod string
		MultiValueHeaders                                    map[string][]string
		RequestContext                                       struct {
			APIID, Stage, RequestID string
			Identity                struct{ SourceIP string }
		}
	}
	data := readEvent(b, apigw.RESTRequest)
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		b.Fatal(err)
	}
	data, _ = json.Marshal(v)
	b.ReportAllocs()
	for b.Loop() {
		var e event
		if err := json.Unmarshal(data, &e); err != nil || len(e.MultiValueHeaders) < 10 ||
			e.RequestContext.Identity.SourceIP == "" {
			b.Fatal(e, err)
		}
	}
}

// Guarantees that a request id is the gateway's own one. On REST APIs a client may send a request id, with any text in
// it, which must not get into logs.
func TestRequestIDIsTheGateways(t *testing.T) {
	for id, want := range map[string]string{
		"5f0e7c1a-8f3b-4a0e-9d55-0b6f7f1e2d3c": "5f0e7c1a-8f3b-4a0e-9d55-0b6f7f1e2d3c",
		"UaB1cExampleDub=":                     "UaB1cExampleDub=",
		"203.0.113.77":                         "",
		"slk_" + secret:                        "",
		"5f0e7c1a-8f3b-4a0e-9d55-0b6f7f1e2d3G": "",
		"5f0e7c1a08f3b-4a0e-9d55-0b6f7f1e2d3c": "",
		"5f0e7c1a-8f3b-4a0e-9d55--b6f7f1e2d3c": "",
		"UaB1cExample.ub=":                     "",
		"UaB1cExampleDubQ":                     "",
	} {
		e, err := apigw.Parse(change(t, apigw.RESTRequest,
			func(_, context map[string]any) { context["requestId"] = id }))
		if err != nil || e.RequestID != want {
			t.Errorf("%q is %q, %v; want %q", id, e.RequestID, err, want)
		}
	}
}
