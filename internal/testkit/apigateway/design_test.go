package apigateway_test

import (
	"encoding/json"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/apigw"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/apigateway"
)

const plans = `
plans:
  - id: free
    limits: [ { id: burst, algorithm: token_bucket, rate: 1, period: 1s, burst: 2 } ]
tenants: [ { id: acme, plan: free }, { id: initech, plan: free, suspended: true } ]
keys:
`

// newAuthorizer returns the authorizer as it is deployed, except that its plans and counters are in memory.
func newAuthorizer(t *testing.T, c apigw.Encoder) apigateway.Function {
	t.Helper()
	text := plans
	var keys []identity.Key
	for i, tenant := range []string{"acme", "initech"} {
		id, hash := "k"+strconv.Itoa(i), identity.HashKey(identity.DevPepper(), identity.ExampleKey(tenant))
		text += "  - { id: " + id + ", tenant: " + tenant + ", subject: ci, hash: " + hash + ", pepper: dev }\n"
		keys = append(keys, identity.Key{ID: id, Tenant: tenant, Subject: "ci", Hash: hash,
			Pepper: identity.DevPepperID})
	}
	cfg, err := plan.Parse(configyaml.Source("plans.yaml", []byte(text)))
	if err != nil {
		t.Fatal(err)
	}
	found, err := identity.NewKeys(keys, map[string][]byte{identity.DevPepperID: identity.DevPepper()})
	if err != nil {
		t.Fatal(err)
	}
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	z, err := authorizer.New(authorizer.Config{Source: authorizer.Current(func() *authorizer.Snapshot {
		return &authorizer.Snapshot{Config: cfg, Keys: found}
	}), Store: store, Log: log, Now: func() time.Time { return noon }})
	if err != nil {
		t.Fatal(err)
	}
	h, err := authorizer.NewHandler(authorizer.HandlerConfig{Authorizer: z, Encoder: c, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func exampleKey(tenant string) string { return identity.ExampleKey(tenant) }

// Guarantees the answers that clients get, through the built-in APIs and the authorizer's own handler, from the request
// of a client to its answer.
func TestAnswersOfTheDesign(t *testing.T) {
	type outcome struct {
		status int
		body   string // text that the body must contain
	}
	for api, want := range map[string]struct{ allowed, limited, suspended, none, bad outcome }{
		"rest": {outcome{200, `"tenant": "acme"`}, outcome{429, `"status":429`}, outcome{429, `#tenant-suspended`},
			outcome{401, `"status":401`}, outcome{401, `"status":401`}},
		"http": {outcome{200, `"tenant": "acme"`}, outcome{403, `{"message":"Forbidden"}`},
			outcome{403, `{"message":"Forbidden"}`},
			outcome{403, `{"message":"Forbidden"}`}, outcome{403, `{"message":"Forbidden"}`}},
		"websocket": {outcome{101, ""}, outcome{403, `{"message":"Forbidden"}`},
			outcome{403, `{"message":"Forbidden"}`},
			outcome{401, `{"message":"Unauthorized"}`}, outcome{401, `{"message":"Unauthorized"}`}},
	} {
		d := builtin(t, api)
		base, log := serve(t, d, newAuthorizer(t, apigw.Encoder{}), nil, nil)
		ask := func(what string, want outcome, key string) reply {
			t.Helper()
			target, header := base+d.Prefix()+"/product/1", []string{}
			if api == "websocket" {
				target, header = base+d.Prefix(), append(header, handshake...)
			}
			if key != "" {
				header = append(header, "X-Api-Key", key)
			}
			got := send(t, "GET", target, "", header...)
			if got.status != want.status || !strings.Contains(got.body, want.body) {
				t.Errorf("%s, %s: %d %s, want %d with %s\n%s", api, what, got.status, got.body, want.status, want.body,
					log)
			}
			return got
		}
		ask("allowed", want.allowed, exampleKey("acme"))
		allowed := ask("allowed", want.allowed, exampleKey("acme"))
		limited := ask("limited", want.limited, exampleKey("acme"))
		suspended := ask("suspended", want.suspended, exampleKey("initech"))
		none := ask("no credential", want.none, "")
		ask("bad credential", want.bad, "slk_bad")
		switch api {
		case "http":
			if allowed.header.Get("X-Ratelimit-Remaining") != "0" ||
				allowed.header.Get("Ratelimit-Policy") != `"burst";q=2;w=2` {
				t.Errorf("an admitted request to %s has headers %v", api, allowed.header)
			}
		case "rest":
			limitedByREST(t, limited)
			for what, r := range map[string]reply{"suspended": suspended, "no credential": none} {
				if r.header.Get("Retry-After") != "" || r.header.Get("Content-Type") != answer.ContentType ||
					r.header.Get("Access-Control-Expose-Headers") != answer.ExposeHeaders {
					t.Errorf("%s: headers are %v", what, r.header)
				}
			}
			if none.header.Get("Www-Authenticate") != `Bearer realm="sluice"` {
				t.Errorf("the denial of a request without a credential has headers %v", none.header)
			}
		}
	}
}

// limitedByREST checks every header of a REST API's 429, and its body.
func limitedByREST(t *testing.T, r reply) {
	t.Helper()
	for name, want := range map[string]string{"Retry-After": "1", "X-Ratelimit-Limit": "2",
		"X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "2",
		"Content-Type": answer.ContentType, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
		"Access-Control-Expose-Headers": answer.ExposeHeaders} {
		if v := r.header.Values(name); len(v) != 1 || v[0] != want {
			t.Errorf("header %s: %q, want %q", name, v, want)
		}
	}
	for _, name := range []string{"Ratelimit", "Ratelimit-Policy"} {
		if list, err := httpsfv.UnmarshalList(r.header.Values(name)); err != nil || len(list) != 1 {
			t.Errorf("header %s: %q is not a structured list of one limit: %v", name, r.header.Values(name), err)
		}
	}
	var problem struct {
		Type, Title, Instance string
		Status                int
		Violated              []string `json:"violated-policies"`
		RetryAfterMs          int64    `json:"retry-after-ms"`
	}
	if err := json.Unmarshal([]byte(r.body), &problem); err != nil {
		t.Fatalf("decode the problem: %v in %s", err, r.body)
	}
	if problem.Status != 429 || problem.Type == "" || problem.Instance == "" || len(problem.Violated) != 1 ||
		problem.Violated[0] != "burst" || problem.RetryAfterMs != 1000 {
		t.Errorf("the problem is %+v", problem)
	}
}

// Guarantees that the setting which passes denials on to the backend does so for every denial, together with the
// decision. The middleware in the backend can then answer 401 as well as 429.
func TestPassedDenials(t *testing.T) {
	d := builtin(t, "http")
	d.Routes[0].Integration = apigateway.Integration{Type: apigateway.AWSProxy, Function: "backend", Payload: "2.0"}
	backend := &answers{out: `{"statusCode":429}`}
	base, _ := serve(t, d, newAuthorizer(t, apigw.Encoder{PassDenials: []string{"local"}}), backend, nil)
	for range 3 {
		send(t, "GET", base+"/product/1", "", "X-Api-Key", exampleKey("acme"))
	}
	send(t, "GET", base+"/product/1", "")
	send(t, "GET", base+"/product/1", "", "X-Api-Key", "slk_bad")
	if backend.calls() != 5 {
		t.Fatalf("the backend was called %d times, want 5", backend.calls())
	}
	for i, want := range []string{"allowed", "allowed", "limited", "no_credential", "bad_credential"} {
		var event struct {
			RequestContext struct {
				Authorizer struct{ Lambda struct{ Decision string } }
			}
		}
		if err := json.Unmarshal(backend.events[i], &event); err != nil ||
			event.RequestContext.Authorizer.Lambda.Decision != want {
			t.Errorf("request %d: the decision is %q, %v, want %s", i+1,
				event.RequestContext.Authorizer.Lambda.Decision, err, want)
		}
	}
}
