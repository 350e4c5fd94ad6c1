package middleware_test

//lint:file-ignore SA1008 names are spelled as on the wire

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/apigw"
	"github.com/sluicelimits/sluice/middleware"
)

// mapping is the parameter mapping that the docs give for an integration: the header, and the name in the authorizer's
// context.
var mapping = map[string]string{
	"x-sluice-caller": apigw.ContextCaller, "x-sluice-limit": apigw.ContextLimit,
	"x-sluice-remaining": apigw.ContextRemaining,
	"x-sluice-reset":     apigw.ContextReset, "x-sluice-ratelimit": apigw.ContextRateLimit,
	"x-sluice-ratelimit-policy": apigw.ContextPolicy,
	"x-sluice-retry-after":      apigw.ContextRetryAfter, "x-sluice-problem": apigw.ContextProblem,
}

// contextOf returns the context that the authorizer answers an HTTP API that passes denials on.
func contextOf(t testing.TB, a *apigw.Answer) gjson.Result {
	t.Helper()
	b, err := (&apigw.Encoder{PassDenials: []string{"api"}}).Append(nil, &apigw.Event{Shape: apigw.HTTP2, API: "api"},
		a)
	if err != nil {
		t.Fatal(err)
	}
	return gjson.GetBytes(b, "context")
}

// mapped returns a request after the gateway's parameter mapping: if a value is missing, the client's own header stays.
func mapped(t testing.TB, a *apigw.Answer, client ...string) *http.Request {
	t.Helper()
	r := request(t, "GET", "/product/1", client...)
	context := contextOf(t, a)
	for header, name := range mapping {
		if v := context.Get(name); v.Exists() {
			r.Header[textproto.CanonicalMIMEHeaderKey(header)] = []string{v.String()}
		}
	}
	return r
}

func adaptRequest(t testing.TB, a *apigw.Answer, rest bool) *http.Request {
	t.Helper()
	authorizer := contextOf(t, a).Raw
	if !rest {
		authorizer = `{"lambda":` + authorizer + `}`
	}
	return request(t, "GET", "/product/1", "X-Amzn-Request-Context", `{"accountId":"1","authorizer":`+authorizer+
		`,"stage":"prod"}`)
}

var (
	allowed = apigw.Answer{Kind: answer.Allowed, Tenant: "a;t=b\r\né", Subject: "ci", Plan: "pro", KeyID: "k1",
		StoreFailed: true,
		Header: answer.Header{Limit: "5", Remaining: "4", Reset: "1", RateLimit: `"burst";r=4;t=1`,
			Policy: `"burst";q=5;w=5`}}
	denied = apigw.Answer{Kind: answer.Limited, Tenant: "acme", Plan: "pro", Instance: "urn:uuid:1",
		Header: answer.Header{Limit: "5", Remaining: "0", Reset: "5", RateLimit: `"burst";r=0;t=1`,
			Policy: `"burst";q=5;w=5`, RetryAfter: "1"},
		Problem: []byte(`{"type":"t","status":429,"retry-after-ms":681}`)}
)

// Guarantees that a handler behind the gateway gets the caller, and the client the headers, from each source.
func TestBehindAllowed(t *testing.T) {
	for _, c := range []struct {
		name   string
		source middleware.Source
		r      *http.Request
	}{
		{"mapped headers", middleware.MappedHeaders,
			mapped(t, &allowed, "X-Sluice-Tenant", "evil", "X-Sluice-Anonymous", "true")},
		{"adapter, HTTP API", middleware.LambdaWebAdapter, adaptRequest(t, &allowed, false)},
		{"adapter, REST API", middleware.LambdaWebAdapter, adaptRequest(t, &allowed, true)},
	} {
		t.Run(c.name, func(t *testing.T) {
			called := false
			w := httptest.NewRecorder()
			middleware.Behind(c.source)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				called = true
				want := middleware.Caller{Tenant: "a;t=b\r\né", Subject: "ci", Plan: "pro", KeyID: "k1",
					StoreFailed: true}
				if who, found := middleware.FromContext(r.Context()); !found || who != want {
					t.Errorf("caller %+v, %v", who, found)
				}
				if r.Header.Get("X-Sluice-Tenant") != "a%3Bt%3Db%0D%0A%C3%A9" ||
					r.Header.Get("X-Sluice-Anonymous") != "" || r.Header.Get("X-Sluice-Caller") != "" {
					t.Errorf("the handler sees %v", r.Header)
				}
				w.WriteHeader(http.StatusCreated)
			})).ServeHTTP(w, c.r)
			h := w.Result().Header
			if !called || w.Code != http.StatusCreated || h.Get("X-RateLimit-Remaining") != "4" ||
				h.Get("RateLimit") != `"burst";r=4;t=1` || h["Retry-After"] != nil {
				t.Errorf("called %v, %d %v", called, w.Code, h)
			}
		})
	}
}

// Guarantees, for each kind of denial that the gateway passes on, that it is answered with its own status, headers and
// body, and does not reach the handler.
func TestBehindDenied(t *testing.T) {
	for _, k := range answer.Kinds() {
		if k == answer.Allowed || k == answer.NoCredential || k == answer.BadCredential {
			continue // the gateway itself answers a 401
		}
		a := denied
		a.Kind, a.Problem = k, (&answer.Problem{Kind: k, Instance: a.Instance}).Append(nil)
		for source, r := range map[middleware.Source]*http.Request{middleware.MappedHeaders: mapped(t, &a),
			middleware.LambdaWebAdapter: adaptRequest(t, &a, false)} {
			w := refused(t, source, r)
			if w.Code != k.Status() || w.Body.String() != string(a.Problem)+"\n" ||
				w.Header().Get("Retry-After") != "1" || w.Header().Get("X-RateLimit-Remaining") != "0" {
				t.Errorf("%s from %d: %d %v %s", k, source, w.Code, w.Header(), w.Body)
			}
		}
	}
}

// refused serves a request that must not reach the handler.
func refused(t *testing.T, source middleware.Source, r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	middleware.Behind(source)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("from %d the handler was reached with %v", source, r.Header)
	})).ServeHTTP(w, r)
	return w
}

// Guarantees that a request whose decision is missing, repeated, damaged or unknown gets a 403 and does not reach the
// handler.
func TestBehindWithoutDecision(t *testing.T) {
	good := "d=allowed;t=acme"
	for _, c := range []struct {
		name   string
		source middleware.Source
		header []string
	}{
		{"nothing", middleware.MappedHeaders, nil},
		{"who calls, as for handlers", middleware.MappedHeaders, []string{"X-Sluice-Tenant", "acme"}},
		{"doubled", middleware.MappedHeaders, []string{"X-Sluice-Caller", good, "X-Sluice-Caller", good}},
		{"joined", middleware.MappedHeaders, []string{"X-Sluice-Caller", good + ", " + good}},
		{"joined behind", middleware.MappedHeaders, []string{"X-Sluice-Caller", good + ",d=limited"}},
		{"another spelling", middleware.MappedHeaders, []string{"X_sluice_caller", good}},
		{"empty", middleware.MappedHeaders, []string{"X-Sluice-Caller", ""}},
		{"nobody", middleware.MappedHeaders, []string{"X-Sluice-Caller", "d=allowed"}},
		{"unknown decision", middleware.MappedHeaders, []string{"X-Sluice-Caller", "d=maybe;t=acme"}},
		{"an unresolved variable", middleware.MappedHeaders, []string{"X-Sluice-Caller", "$context.authorizer.caller"}},
		{"the other source's", middleware.MappedHeaders,
			[]string{"X-Amzn-Request-Context", `{"authorizer":{"decision":"allowed","tenant":"acme"}}`}},
		{"the other source's", middleware.LambdaWebAdapter, []string{"X-Sluice-Caller", good}},
		{"doubled", middleware.LambdaWebAdapter, []string{"X-Amzn-Request-Context",
			`{"authorizer":{"decision":"allowed","tenant":"acme"}}`, "X-Amzn-Request-Context", "{}"}},
		{"no authorizer", middleware.LambdaWebAdapter,
			[]string{"X-Amzn-Request-Context", `{"decision":"allowed","tenant":"acme"}`}},
		{"null", middleware.LambdaWebAdapter, []string{"X-Amzn-Request-Context", `{"authorizer":null}`}},
		{"two authorizers", middleware.LambdaWebAdapter,
			[]string{"X-Amzn-Request-Context", `{"authorizer":{"decision":"allowed","tenant":"a"},"authorizer":{}}`}},
		{"a JWT authorizer's", middleware.LambdaWebAdapter, []string{"X-Amzn-Request-Context",
			`{"authorizer":{"jwt":{"claims":{"decision":"allowed","tenant":"a"}}}}`}},
		{"garbage", middleware.LambdaWebAdapter,
			[]string{"X-Amzn-Request-Context", `{"authorizer":{"decision":"allowed"`}},
		{"deep", middleware.LambdaWebAdapter, []string{"X-Amzn-Request-Context", strings.Repeat("[", 5000)}},
		{"no source", 0, []string{"X-Sluice-Caller", good}},
		{"an unknown source", 9, []string{"X-Sluice-Caller", good}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := refused(t, c.source, request(t, "GET", "/", c.header...))
			var p struct{ Type, Instance string }
			if err := json.Unmarshal(w.Body.Bytes(), &p); w.Code != http.StatusForbidden || err != nil ||
				!strings.HasSuffix(p.Type, "#no-decision") || p.Instance == "" ||
				w.Header().Get("Content-Type") != answer.ContentType {
				t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
			}
		})
	}
}

// Guarantees that headers that the mapping leaves out, and that the client wrote, change only that client's own answer,
// and cannot add a header line to it.
func TestBehindForgedSides(t *testing.T) {
	plain := apigw.Answer{Kind: answer.Allowed, Tenant: "acme"}
	w := httptest.NewRecorder()
	middleware.Behind(middleware.MappedHeaders)(ok).ServeHTTP(w,
		mapped(t, &plain, "X-Sluice-Limit", "9\r\nSet-Cookie: a=b", "X-Sluice-Remaining", "\x00",
			"X-Sluice-Reset", strings.Repeat("9", 9000), "X-Sluice-Ratelimit", "a", "X-Sluice-Ratelimit", "b",
			"X-Sluice-Retry-After", "é"))
	for _, name := range answer.Names {
		if v := w.Header().Values(name); v != nil {
			t.Errorf("%s: %q", name, v)
		}
	}
	limited := apigw.Answer{Kind: answer.Limited, Tenant: "acme"}
	if w := refused(t, middleware.MappedHeaders, mapped(t, &limited, "X-Sluice-Problem", "<script>")); w.Code != 429 ||
		!json.Valid(w.Body.Bytes()) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// Guarantees that no request reaches the handler unless it has one X-Sluice-Caller, which says allowed, and for whom.
func FuzzBehind(f *testing.F) {
	f.Add("d=allowed;t=acme", `"burst";r=1`, `{"authorizer":{"decision":"allowed","tenant":"acme"}}`)
	f.Add("d=limited", "", `{"authorizer":{"lambda":{"decision":"allowed","anonymous":true}}}`)
	f.Fuzz(func(t *testing.T, caller, line, context string) {
		for source := range middleware.LambdaWebAdapter + 2 {
			reached := false
			w := httptest.NewRecorder()
			r := &http.Request{Method: "GET", Header: http.Header{"X-Sluice-Caller": {caller},
				"X-Sluice-Ratelimit": {line}, "X-Amzn-Request-Context": {context}}}
			middleware.Behind(source)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				reached = true
				if who, found := middleware.FromContext(r.Context()); !found || who.Tenant == "" == !who.Anonymous {
					t.Errorf("from %d, %q, %q: reached by %+v", source, caller, context, who)
				}
			})).ServeHTTP(w, r.WithContext(t.Context()))
			said := source == middleware.MappedHeaders && strings.Contains(caller, "d=allowed") ||
				source == middleware.LambdaWebAdapter && gjson.Valid(context)
			if reached && !said || !reached && w.Code < 400 {
				t.Errorf("from %d, %q, %q: reached %v, %d", source, caller, context, reached, w.Code)
			}
			for name, values := range w.Header() {
				for _, v := range values {
					if strings.ContainsAny(name+v, "\r\n\x00") {
						t.Errorf("from %d, %q, %q: %s: %q", source, caller, line, name, v)
					}
				}
			}
		}
	})
}
