//go:build unix

package endtoend_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/testkit/apigateway"
	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

var handshake = []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-Websocket-Version", "13",
	"Sec-Websocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="}

// The window lasts for a year, so that none ends during a test, except at the end of a year.
const year = "8784h"

const ten = `
plans:
  - { id: pro, limits: [ { id: burst, tiers: [ { period: ` + year + `, threshold: 10 } ] } ] }
tenants:
  - { id: acme, plan: pro }
  - { id: globex, plan: pro }
  - { id: initech, plan: pro, suspended: true }
`

// Descriptions of APIs. %s stands for the backend's URL.
const (
	restLambda = `kind: REST
authorizers: { sluice: { function: authorizer, resultTtlInSeconds: 0 } }
routes: [ { route: "ANY /{proxy+}", authorizer: sluice, integration: { type: AWS_PROXY, function: backend } } ]
`
	httpLambda1 = `{ kind: HTTP, api: ` + apiID + `, authorizers: { sluice: { function: authorizer,
	  payloadFormatVersion: "1.0", resultTtlInSeconds: 0 } },
		routes: [ { route: "ANY /{proxy+}", authorizer: sluice, integration: { type: AWS_PROXY, function: backend,
		  payloadFormatVersion: "1.0" } } ] }`
	httpLambda2 = `{ kind: HTTP, api: ` + apiID + `, authorizers: { sluice: { function: authorizer,
	  payloadFormatVersion: "2.0", enableSimpleResponses: true, resultTtlInSeconds: 0 } },
		routes: [ { route: "ANY /{proxy+}", authorizer: sluice, integration: { type: AWS_PROXY, function: backend,
		  payloadFormatVersion: "2.0" } } ] }`
	mapping = `"overwrite:header.x-sluice-caller": $context.authorizer.caller,
	  "overwrite:header.x-sluice-limit": $context.authorizer.rateLimitLimit,
		"overwrite:header.x-sluice-remaining": $context.authorizer.rateLimitRemaining,
		  "overwrite:header.x-sluice-reset": $context.authorizer.rateLimitReset,
		"overwrite:header.x-sluice-ratelimit": $context.authorizer.rateLimit,
		  "overwrite:header.x-sluice-ratelimit-policy": $context.authorizer.rateLimitPolicy,
		"overwrite:header.x-sluice-retry-after": $context.authorizer.retryAfter,
		  "overwrite:header.x-sluice-problem": $context.authorizer.problem`
	httpService = `{ kind: HTTP, api: ` + apiID + `, authorizers: { sluice: { function: authorizer,
	  payloadFormatVersion: "2.0", enableSimpleResponses: true, resultTtlInSeconds: 0 } },
		routes: [ { route: "ANY /{proxy+}", authorizer: sluice, integration: { type: HTTP_PROXY, url: "%s/{proxy}",
		  requestParameters: { ` + mapping + ` } } } ] }`
)

// builtin returns a built-in description, with the id of the test's API.
func builtin(t *testing.T, name string) string {
	t.Helper()
	text, ok := apigateway.ReadBuiltin(name)
	if !ok {
		t.Fatalf("there is no built-in API %s", name)
	}
	return string(text) + "\napi: " + apiID + "\n"
}

// restAnswered is restLambda with the gateway responses of the built-in API.
func restAnswered(t *testing.T) string {
	t.Helper()
	_, responses, _ := strings.Cut(builtin(t, "rest"), "\ngatewayResponses:")
	return restLambda + "gatewayResponses:" + responses
}

// wantLimits fails t unless the answer has every header about limits.
func wantLimits(t *testing.T, r *reply) {
	t.Helper()
	number := func(name string) int {
		n, err := strconv.Atoi(r.header.Get(name))
		if err != nil || n < 0 || len(r.header.Values(name)) != 1 {
			t.Errorf("header %s is %q in %s", name, r.header.Values(name), r)
		}
		return n
	}
	if limit, remaining, reset := number("X-Ratelimit-Limit"), number("X-Ratelimit-Remaining"),
		number("X-Ratelimit-Reset"); remaining > limit || limit == 0 || reset < 0 {
		t.Errorf("limit %d, remaining %d, reset %d", limit, remaining, reset)
	}
	for _, name := range []string{"Ratelimit", "Ratelimit-Policy"} {
		if list, err := httpsfv.UnmarshalList(r.header.Values(name)); err != nil || len(list) == 0 {
			t.Errorf("header %s: %q is not a structured list: %v", name, r.header.Values(name), err)
		}
	}
	if r.header.Get("Access-Control-Expose-Headers") != answer.ExposeHeaders {
		t.Errorf("headers are not exposed to scripts: %s", r)
	}
	if retry := r.header.Values("Retry-After"); (len(retry) == 1) != (r.status == 429) {
		t.Errorf("Retry-After: %q with status %d", retry, r.status)
	}
}

// problem is the body of a denial.
type problem struct {
	Type, Title, Instance string
	Status                int
	Violated              []string `json:"violated-policies"`
	RetryAfterMs          int64    `json:"retry-after-ms"`
}

func (r *reply) problem(t *testing.T) (p problem) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.body), &p); err != nil || r.header.Get("Content-Type") != answer.ContentType {
		t.Errorf("the body is not a problem (%v): %s", err, r)
	}
	return p
}

// wantDenial fails t unless the answer is a 429 by the limit "burst", with every header and with the body from which
// clients take the time to wait.
func wantDenial(t *testing.T, r *reply) {
	t.Helper()
	wantLimits(t, r)
	p := r.problem(t)
	seconds, _ := strconv.ParseInt(r.header.Get("Retry-After"), 10, 64)
	wait := time.Duration(p.RetryAfterMs) * time.Millisecond
	if r.status != 429 || p.Status != 429 || len(p.Violated) != 1 || p.Violated[0] != "burst" || p.Instance == "" ||
		wait <= 0 ||
		time.Duration(seconds)*time.Second < wait || r.header.Get("X-Ratelimit-Remaining") != "0" {
		t.Errorf("a denial: %s", r)
	}
}

// Guarantees that a client of a REST API gets, through the deployed binary: 200 with headers; 429 with headers and a
// problem, through the gateway response; and 401. A suspended tenant is denied with a body that says so.
func TestREST(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ten, "acme", "globex", "initech")
	w.redis()
	w.start(3)
	for name, a := range map[string]*api{
		"acme":   w.serve(builtin(t, "rest"), nil),
		"globex": w.serve(restAnswered(t), w.function(behind)),
	} {
		for range 10 {
			got := a.wantStatus(200, "GET", "/product/1", w.key(name)...)
			if name == "globex" { // a backend with our wrapper
				wantLimits(t, got)
				if s := got.seen(t); s.Tenant != name || s.Subject != "ci" || s.Plan != "pro" || s.StoreFailed {
					t.Errorf("the backend saw %+v", s)
				}
			} else if !strings.Contains(got.body, `"tenant": "acme"`) ||
				!strings.Contains(got.body, `"X-Ratelimit-Remaining"`) {
				t.Errorf("the backend saw %s", got.body)
			}
		}
		wantDenial(t, a.wantStatus(429, "GET", "/product/1", w.key(name)...))
		for what, header := range map[string][]string{"no credential": nil, "a bad one": {"X-Api-Key", "slk_bad"}} {
			if got := a.wantStatus(401, "GET", "/product/1", header...); got.problem(t).Status != 401 ||
				got.header.Get("Www-Authenticate") == "" {
				t.Errorf("%s: %s", what, got)
			}
		}
		got := a.wantStatus(429, "GET", "/product/1", w.key("initech")...) // one status for each Deny of an API
		if p := got.problem(t); p.Status != 403 || !strings.HasSuffix(p.Type, "#tenant-suspended") ||
			got.header.Get("Retry-After") != "" {
			t.Errorf("suspended: %s", got)
		}
	}
	w.close()
	if n := w.metric("decisions"); n != 2*(10+1+2+1) {
		t.Errorf("%v decisions are counted", n)
	}
}

// Guarantees the same for an HTTP API that passes denials on to the middleware in the backend: the statuses 429 and 403
// reach the client, and Sluice's headers that a client sends itself do not reach the backend.
func TestHTTPThroughTheMiddleware(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ten, "acme", "globex", "initech")
	w.redis()
	w.env["SLUICE_PASS_DENIALS"] = apiID
	w.start(3)
	signer := newSigner("a")
	for tenant, a := range map[string]*api{
		"acme":   w.serve(fmt.Sprintf(httpService, w.backend()), nil),
		"globex": w.serve(httpLambda2, w.function(behind)),
	} {
		for range 10 {
			got := a.wantStatus(200, "GET", "/product/1", w.key(tenant)...)
			wantLimits(t, got)
			if s := got.seen(t); s.Tenant != tenant || s.Subject != "ci" || s.Plan != "pro" || s.KeyID == "" ||
				s.StoreFailed {
				t.Errorf("the backend saw %+v", s)
			}
		}
		wantDenial(t, a.wantStatus(429, "GET", "/product/1", w.key(tenant)...))
		suspended := a.wantStatus(403, "GET", "/product/1", w.key("initech")...)
		if p := suspended.problem(t); p.Status != 403 || !strings.HasSuffix(p.Type, "#tenant-suspended") {
			t.Errorf("suspended: %s", suspended)
		}
		a.wantStatus(401, "GET", "/product/1")
		a.wantStatus(401, "GET", "/product/1", "X-Api-Key", "slk_bad")
		// of an issuer that is not configured
		a.wantStatus(401, "GET", "/product/1", bearer(signer.Sign(tokentest.Claims(time.Now(), nil)))...)
	}
}

// Guarantees that without that setting a denial is a denial on every kind of API, with or without the middleware in the
// backend: the gateway answers 403 itself (a REST API without gateway responses, too), and the backend is not called.
func TestDenialsFailSafe(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ten, "acme", "initech")
	w.redis()
	w.env["SLUICE_PASS_DENIALS"] = "another"
	w.start(2)
	backend := w.function(open)
	apis := map[string]*api{"REST": w.serve(restLambda, backend), "HTTP 1.0": w.serve(httpLambda1, backend),
		"HTTP 2.0": w.serve(httpLambda2, backend)}
	for range 10 {
		apis["REST"].wantStatus(200, "GET", "/product/1", w.key("acme")...)
	}
	for name, a := range apis {
		for _, tenant := range []string{"acme", "initech"} {
			if got := a.wantStatus(403, "GET", "/product/1", w.key(tenant)...); strings.Contains(got.body, "problem") {
				t.Errorf("%s: %s", name, got)
			}
		}
		want := 401
		if name != "REST" { // an HTTP API documents no other answer
			want = 403
		}
		a.wantStatus(want, "GET", "/product/1")
		a.wantStatus(want, "GET", "/product/1", "X-Api-Key", "slk_bad")
	}
}

// Guarantees that a connection to a WebSocket API is authorized like a request: 101, 403 over the limit, 401.
func TestWebSocket(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ten, "acme", "initech")
	w.redis()
	w.start(2)
	a := w.serve(builtin(t, "websocket"), nil)
	for range 10 {
		a.wantStatus(101, "GET", "", append(w.key("acme"), handshake...)...)
	}
	a.wantStatus(403, "GET", "", append(w.key("acme"), handshake...)...)
	a.wantStatus(403, "GET", "", append(w.key("initech"), handshake...)...)
	a.wantStatus(401, "GET", "", handshake...)
}
