package lambdaproxy_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sluicelimits/sluice/caller"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/apigw"
	"github.com/sluicelimits/sluice/middleware/lambdaproxy"
)

var (
	allowed = apigw.Answer{Kind: answer.Allowed, Tenant: "a/é", Subject: "ci", Plan: "pro", KeyID: "k1",
		Header: answer.Header{Limit: "5", Remaining: "4", Reset: "1", RateLimit: `"burst";r=4;t=1`,
			Policy: `"burst";q=5;w=5`}}
	denied = apigw.Answer{Kind: answer.Limited, Tenant: "acme", Instance: "urn:uuid:1",
		Header: answer.Header{Limit: "5", Remaining: "0", Reset: "5", RateLimit: `"burst";r=0;t=1`,
			Policy: `"burst";q=5;w=5`, RetryAfter: "1"},
		Problem: []byte(`{"type":"t","title":"<é>","status":429}`)}
)

// shapes are the events of a Lambda behind each kind of API, with %s for the authorizer's context.
var shapes = map[string]string{
	"REST": `{"resource":"/p/{id}","path":"/p/1","httpMethod":"GET","headers":{},"multiValueHeaders":{},` +
		`"requestContext":{"apiId":"a","authorizer":%s},"body":null,"isBase64Encoded":false}`,
	"HTTP, format 1.0": `{"version":"1.0","resource":"/p","path":"/p/1","httpMethod":"GET",` +
		`"requestContext":{"authorizer":%s},"body":"e30="}`,
	"HTTP, format 2.0": `{"version":"2.0","routeKey":"GET /p","rawPath":"/p/1",` +
		`"requestContext":{"authorizer":{"lambda":%s},"http":{"method":"GET"}}}`,
	"WebSocket": `{"requestContext":{"routeKey":"$connect","eventType":"CONNECT","authorizer":%s}}`,
}

// event returns the event that API Gateway sends after this answer of the authorizer.
func event(t testing.TB, shape string, a *apigw.Answer) []byte {
	t.Helper()
	b, err := (&apigw.Encoder{PassDenials: []string{"api"}}).Append(nil, &apigw.Event{Shape: apigw.HTTP2, API: "api"},
		a)
	if err != nil {
		t.Fatal(err)
	}
	return []byte(strings.Replace(shapes[shape], "%s", gjson.GetBytes(b, "context").Raw, 1))
}

// handler answers with a text, and records its calls.
type handler struct {
	answer  string
	err     error
	calls   int
	payload string
	who     caller.Caller
}

func (h *handler) Invoke(ctx context.Context, payload []byte) ([]byte, error) {
	h.calls++
	h.payload = string(payload)
	h.who, _ = caller.FromContext(ctx)
	return []byte(h.answer), h.err
}

type response struct {
	StatusCode        int
	Headers           map[string]string
	MultiValueHeaders map[string][]string
	Body              string
	IsBase64Encoded   bool
}

func invoke(t testing.TB, h *handler, payload []byte) (response, string) {
	t.Helper()
	b, err := lambdaproxy.Wrap(h).Invoke(context.Background(), payload)
	if err != nil {
		t.Fatal(err)
	}
	var r response
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return r, string(b)
}

// Guarantees that an allowed call reaches the handler with the unchanged event and the caller, and that the client gets
// the headers.
func TestAllowed(t *testing.T) {
	for shape := range shapes {
		h := &handler{answer: `{"statusCode":201,"body":"ok","headers":{"X-Own":"1"}}`}
		payload := event(t, shape, &allowed)
		r, text := invoke(t, h, payload)
		if h.calls != 1 || h.payload != string(payload) ||
			h.who != (caller.Caller{Tenant: "a/é", Subject: "ci", Plan: "pro", KeyID: "k1"}) {
			t.Errorf("%s: the handler got %+v", shape, h)
		}
		want := map[string]string{"X-Own": "1", "X-RateLimit-Limit": "5", "X-RateLimit-Remaining": "4",
			"X-RateLimit-Reset": "1",
			"RateLimit":         `"burst";r=4;t=1`, "RateLimit-Policy": `"burst";q=5;w=5`,
			"Access-Control-Expose-Headers": answer.ExposeHeaders}
		if r.StatusCode != 201 || r.Body != "ok" || !reflect.DeepEqual(r.Headers, want) {
			t.Errorf("%s: %s", shape, text)
		}
	}
}

// Guarantees that a denial that is passed on is answered with its own status and body, and does not reach the handler.
func TestDenied(t *testing.T) {
	for shape := range shapes {
		for _, k := range answer.Kinds() {
			if k == answer.Allowed || k == answer.NoCredential || k == answer.BadCredential {
				continue // the gateway itself answers a 401
			}
			a, h := denied, &handler{}
			a.Kind = k
			r, text := invoke(t, h, event(t, shape, &a))
			if h.calls != 0 || r.StatusCode != k.Status() || r.Headers["Content-Type"] != answer.ContentType ||
				r.Headers["Retry-After"] != "1" ||
				r.Headers["Cache-Control"] != "no-store" || r.IsBase64Encoded ||
				r.Body != `{"type":"t","title":"<%C3%A9>","status":429}`+"\n" {
				t.Errorf("%s, %s: called %d times, %s", shape, k, h.calls, text)
			}
		}
	}
}

// Guarantees that an event without a readable decision gets a 403 and does not reach the handler.
func TestWithoutDecision(t *testing.T) {
	for _, payload := range []string{
		"", "null", "[]", `"x"`, "{}", "{", `{"requestContext":null}`, `{"requestContext":{}}`,
		`{"requestContext":{"authorizer":{}}}`,
		`{"requestContext":{"authorizer":null}}`, `{"requestContext":{"authorizer":"allowed"}}`,
		`{"requestContext":{"authorizer":{"decision":"yes","tenant":"a"}}}`,
		`{"requestContext":{"decision":"allowed","tenant":"a"}}`, `{"authorizer":{"decision":"allowed","tenant":"a"}}`,
		`{"requestContext":{"authorizer":{"decision":"allowed","tenant":"a"}},"requestContext":{}}`,
		`{"requestContext":{"authorizer":{"jwt":{"claims":{"decision":"allowed","tenant":"a"}}}}}`,
		`{"headers":{"x-sluice-caller":"d=allowed;t=a"},"requestContext":{"authorizer":{"iam":{}}}}`,
		`{"version":2,"requestContext":{"authorizer":{"decision":"allowed","tenant":"a"}}}`,
		`{"Records":[{"eventSource":"aws:sqs","body":"{}"}]}`, strings.Repeat("[", 100_000),
	} {
		h := &handler{}
		r, text := invoke(t, h, []byte(payload))
		if h.calls != 0 || r.StatusCode != 403 || !strings.Contains(r.Body, "#no-decision") {
			t.Errorf("%.80s: called %d times, %s", payload, h.calls, text)
		}
	}
}

const ours = `"X-RateLimit-Limit":"5","X-RateLimit-Remaining":"4","X-RateLimit-Reset":"1",` +
	`"RateLimit":"\"burst\";r=4;t=1","RateLimit-Policy":"\"burst\";q=5;w=5"`

// Guarantees the exact bytes that each form of response becomes.
func TestResponses(t *testing.T) {
	const expose = `"Access-Control-Expose-Headers":"` + answer.ExposeHeaders + `"`
	binary := base64.StdEncoding.EncodeToString([]byte("\x00\xff"))
	for _, c := range []struct{ name, shape, answer, want string }{
		{"no headers", "REST", `{"statusCode":204}`, `{"statusCode":204,"headers":{` + ours + `,` + expose + `}}`},
		{"null headers", "REST", `{"statusCode":204,"headers":null,"multiValueHeaders":null}`,
			`{"statusCode":204,"headers":{` + ours + `,` + expose + `},"multiValueHeaders":null}`},
		{"binary, unknown members, spaces and numbers", "REST",
			` { "statusCode" : 2e2 , "x" : [1.0, {"a": "\u00e9"}] , "body":"` + binary +
				`", "isBase64Encoded":true , "headers":{} } `,
			`{"statusCode":2e2,"x":[1.0, {"a": "\u00e9"}],"body":"` + binary + `","isBase64Encoded":true,"headers":{` +
				ours + `,` + expose + `}}`},
		{"ours replaced under any spelling", "REST", `{"statusCode":200,"headers":{"x-ratelimit-limit":"9",` +
			`"RATELIMIT":"x","retry-after":"7","A":"b"},"multiValueHeaders":{"X-Ratelimit-Limit":["9"],` +
			`"Set-Cookie":["a=1","b=2"]}}`,
			`{"statusCode":200,"headers":{"retry-after":"7","A":"b",` + ours + `,` + expose +
				`},"multiValueHeaders":{"Set-Cookie":["a=1","b=2"]}}`},
		{"exposes more", "HTTP, format 1.0", `{"statusCode":200,"headers":{"access-control-expose-headers":"X-A"},` +
			`"multiValueHeaders":{"Access-Control-Expose-Headers":["X-B","X-C"]}}`,
			`{"statusCode":200,"headers":{` + ours + `,"Access-Control-Expose-Headers":"X-A, X-B, X-C, ` +
				answer.ExposeHeaders + `"},"multiValueHeaders":{}}`},
		{"cookies", "HTTP, format 2.0", `{"cookies":["a=1"],"statusCode":200,"body":"x"}`,
			`{"cookies":["a=1"],"statusCode":200,"body":"x","headers":{` + ours + `,` + expose + `}}`},
		{"a text for a body", "HTTP, format 2.0", `"h\u00e9 \"x\""`,
			`{"statusCode":200,"headers":{"content-type":"application/json",` + ours + `,` + expose +
				`},"isBase64Encoded":false,"body":"hé \"x\""}`},
		{"an object for a body", "HTTP, format 2.0", ` {"a": 1} `,
			`{"statusCode":200,"headers":{"content-type":"application/json",` + ours + `,` + expose +
				`},"isBase64Encoded":false,"body":"{\"a\": 1}"}`},
		{"a list for a body", "HTTP, format 2.0", `[1]`,
			`{"statusCode":200,"headers":{"content-type":"application/json",` + ours + `,` + expose +
				`},"isBase64Encoded":false,"body":"[1]"}`},
		{"a text of a REST API, an error there", "REST", `"hello"`, `"hello"`},
		{"no status of a REST API, an error there", "REST", `{"a":1}`, `{"a":1}`},
		{"null", "HTTP, format 2.0", `null`, `null`},
		{"no JSON", "HTTP, format 2.0", `{`, `{`},
		{"headers that are none", "REST", `{"statusCode":200,"headers":[]}`, `{"statusCode":200,"headers":[]}`},
		{"headers twice", "REST", `{"statusCode":200,"headers":{},"headers":{}}`,
			`{"statusCode":200,"headers":{},"headers":{}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := lambdaproxy.Wrap(&handler{answer: c.answer}).Invoke(t.Context(), event(t, c.shape, &allowed))
			if err != nil || string(got) != c.want {
				t.Errorf("%s\ngot  %s, %v\nwant %s", c.answer, got, err, c.want)
			}
		})
	}
}

// Guarantees that the error of the handler is the error of the Lambda function.
func TestError(t *testing.T) {
	errUnavailable := errors.New("the database is unavailable")
	got, err := lambdaproxy.Wrap(&handler{answer: "partly", err: errUnavailable}).Invoke(t.Context(),
		event(t, "REST", &allowed))
	if !errors.Is(err, errUnavailable) || string(got) != "partly" {
		t.Errorf("%q, %v", got, err)
	}
}

// Guarantees that only events with a readable decision to allow reach the handler, and that all others are answered.
func FuzzEvent(f *testing.F) {
	for shape := range shapes {
		f.Add(event(f, shape, &allowed))
		f.Add(event(f, shape, &denied))
	}
	f.Add([]byte(`{"requestContext":{"authorizer":{"decision":"allowed","anonymous":"true"}}}`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		h := &handler{answer: `{"statusCode":299}`}
		r, text := invoke(t, h, payload)
		switch {
		case h.calls == 0 && r.StatusCode < 400:
			t.Errorf("%q is answered with %s", payload, text)
		case h.calls > 0 && (h.who.Tenant == "") != h.who.Anonymous:
			t.Errorf("%q is allowed for %+v", payload, h.who)
		case h.calls > 0 && !strings.Contains(gjson.GetBytes(payload, "requestContext.authorizer").Raw, "allowed") &&
			!strings.Contains(string(payload), `\u`):
			t.Errorf("%q is allowed", payload)
		}
	})
}

// Guarantees that every answer of a handler stays valid JSON if it was, and keeps all members but the headers.
func FuzzResponse(f *testing.F) {
	for _, s := range []string{`{"statusCode":200,"headers":{"A":"b"},"multiValueHeaders":{"C":["d"]},"body":"x"}`,
		`"text"`, `{"a":1}`, `[]`, `{`, `{"statusCode":1,"headers":null}`,
		`{"statusCode":200,"headers":{"Access-Control-Expose-Headers":"X"}}`} {
		f.Add([]byte(s), true)
		f.Add([]byte(s), false)
	}
	rest, http2 := event(f, "REST", &allowed), event(f, "HTTP, format 2.0", &allowed)
	f.Fuzz(func(t *testing.T, answered []byte, second bool) {
		payload := rest
		if second {
			payload = http2
		}
		got, err := lambdaproxy.Wrap(&handler{answer: string(answered)}).Invoke(context.Background(), payload)
		if err != nil {
			t.Fatal(err)
		}
		if !gjson.ValidBytes(answered) {
			if string(got) != string(answered) {
				t.Errorf("%q became %q", answered, got)
			}
			return
		}
		if !gjson.ValidBytes(got) {
			t.Fatalf("%q became %q", answered, got)
		}
		before, after := gjson.ParseBytes(answered), gjson.ParseBytes(got)
		if !before.IsObject() || !before.Get("statusCode").Exists() {
			return
		}
		var kept []string
		after.ForEach(func(k, v gjson.Result) bool { kept = append(kept, k.Raw+v.Raw); return true })
		before.ForEach(func(k, v gjson.Result) bool {
			if k.Str == "headers" || k.Str == "multiValueHeaders" {
				return true
			}
			if len(kept) == 0 {
				t.Errorf("%q became %q", answered, got)
				return false
			}
			for len(kept) > 0 && kept[0] != k.Raw+v.Raw {
				kept = kept[1:]
			}
			if len(kept) == 0 {
				t.Errorf("%q became %q: %s is gone", answered, got, k.Raw)
			}
			return true
		})
	})
}
