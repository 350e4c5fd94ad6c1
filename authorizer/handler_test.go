package authorizer_test

import (
	"context"
	"crypto/elliptic"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/apigw"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/request/identity/token"
	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

const handlerPlans = plans + `
  - { id: people, plan: people }
  - { id: a, plan: small }
  - { id: a/b, plan: small }
`

// allPlans adds a plan with one limit per subject, one per key, and one per claim.
var allPlans = strings.Replace(handlerPlans, "tenants:", `  - id: people
    limits:
      - { id: each, per: subject, algorithm: fixed_window, threshold: 2, period: 1h }
      - { id: machine, per: api_key, algorithm: fixed_window, threshold: 3, period: 1h }
      - { id: regional, per: "claim:region", algorithm: fixed_window, threshold: 4, period: 1h }
tenants:`, 1)

const addressLimit = `
ipLimits:
  - { id: per-address, algorithm: fixed_window, threshold: 2, period: 1h }
`

func passDenials(c *setup) { c.handler.Encoder.PassDenials = []string{apiID(apigw.HTTP1)} }

// outcome is a call and the answer that it must have, for each shape of event on which that answer can come about.
type outcome struct {
	name        string
	plans       string
	set         func(*setup)
	prepare     func(*world)
	call        call
	want        string
	notOn       []apigw.Shape // shapes of events by which the outcome cannot come about
	status      float64       // httpStatus in the context; 0 is not checked
	context     map[string]any
	problem     string // part of the problem's body
	namesNobody bool   // the tenant is not in the context
}

var errNotLoaded = fmt.Errorf("tenant documents: %w", authorizer.ErrNotLoaded)

func outcomes() []outcome {
	limitedBy := map[string]any{"binding": "burst", "retryAfter": "1", "rateLimitLimit": "5", "rateLimitRemaining": "0",
		"rateLimit":       `"burst";r=0;t=1`,
		"rateLimitPolicy": `"burst";q=5;w=5`, "tenant": "acme", "subject": "ci", "plan": "small", "keyId": "k-acme",
		"problemType": answer.Limited.Type()}
	spend := func(w *world) {
		for _, s := range shapes[:1] {
			for range 5 {
				w.expect(s, withKey("acme"), "allowed")
			}
		}
	}
	good := signer.Sign(tokentest.Claims(noon, nil))
	return []outcome{
		{name: "a key", call: withKey("acme"), want: "allowed", status: 200, context: map[string]any{"tenant": "acme",
			"subject": "ci", "keyId": "k-acme", "rateLimitRemaining": "4", "binding": "burst"}},
		{name: "a key as a bearer token", call: withBearer(identity.ExampleKey("acme")), want: "allowed"},
		{name: "over the limit", prepare: spend, call: withKey("acme"), want: "limited", status: 429,
			context: limitedBy, problem: `"binding-policy":"burst"`},
		{name: "more than ever fits", call: withKey("globex", "X-Query-Cost", "50"), want: "never_fits", status: 429,
			notOn: []apigw.Shape{apigw.RESTToken}, problem: "cost-above-limit"},
		{name: "a cost that fits", call: withKey("globex", "x-query-cost", "7"), want: "allowed",
			notOn: []apigw.Shape{apigw.RESTToken}, context: map[string]any{"rateLimitRemaining": "3"}},
		{name: "a doubled cost counts as none", call: withKey("globex", "X-Query-Cost", "7", "X-Query-Cost", "8"),
			want: "allowed", notOn: []apigw.Shape{apigw.RESTToken}, context: map[string]any{"rateLimitRemaining": "9"}},
		{name: "no credential", call: withHeader(), want: "unauthorized"},
		{name: "an unknown key", call: withHeader("X-Api-Key", identity.NewKey()), want: "unauthorized"},
		{name: "a malformed key", call: withHeader("X-Api-Key", "slk_x"), want: "unauthorized"},
		{name: "an expired key", call: withKey("expired"), want: "unauthorized"},
		{name: "a revoked key", call: withKey("revoked"), want: "unauthorized"},
		{name: "another scheme", call: withHeader("Authorization", "Basic YTpi"), want: "unauthorized"},
		{name: "bad, with an anonymous plan", plans: "anonymousPlan: small",
			call: withHeader("X-Api-Key", identity.NewKey()), want: "unauthorized"},
		{name: "an anonymous plan", plans: "anonymousPlan: small", call: withHeader(), want: "allowed",
			notOn: []apigw.Shape{apigw.RESTToken}, context: map[string]any{"anonymous": true, "plan": "small"},
			namesNobody: true},
		{name: "suspended", call: withKey("initech"), want: "suspended_tenant", status: 403,
			problem: "tenant-suspended"},
		{name: "no plan", call: withKey("planless"), want: "no_plan", status: 403, problem: "no-plan"},
		{name: "an unknown tenant", call: withKey("nobody"), want: "unknown_tenant", status: 403,
			problem: "unknown-tenant"},
		{name: "no such route", plans: "routes: [ { methods: [GET], pathPattern: /elsewhere } ]", call: withKey("acme"),
			want: "no_route", status: 404},
		{name: "over the address's limit", plans: addressLimit, notOn: []apigw.Shape{apigw.RESTToken},
			prepare: func(w *world) {
				w.expect(apigw.HTTP2, withHeader(), "unauthorized")
				w.expect(apigw.RESTRequest, withHeader("X-Api-Key", "slk_x"), "unauthorized")
			}, call: withKey("acme"), want: "ip_limited", status: 429,
			context: map[string]any{"binding": "ip:per-address", "retryAfter": "3600"}, namesNobody: true},
		{name: "an address's limit on a shape without addresses", plans: addressLimit,
			notOn: shapesExcept(apigw.RESTToken), call: withKey("acme"), want: "internal", status: 500,
			namesNobody: true},
		{name: "the store is away", prepare: (*world).takeStoreAway, call: withKey("acme"), want: "allowed",
			context: map[string]any{"storeFailed": true, "rateLimitRemaining": "4"}},
		{name: "the store is away, closed", prepare: (*world).takeStoreAway, call: withKey("strict"),
			want: "unavailable", status: 429, context: map[string]any{"storeFailed": true, "retryAfter": "1"}},
		{name: "keys are not loaded", prepare: func(w *world) { w.configuration.keyErr = errNotLoaded },
			call: withKey("acme"), want: "unidentified", status: 429, context: map[string]any{"retryAfter": "1"},
			namesNobody: true},
		{name: "the tenant is not loaded", prepare: func(w *world) { w.configuration.tenantErr = errNotLoaded },
			call: withKey("acme"), want: "unidentified", status: 429, namesNobody: true},
		{name: "the anonymous plan is not loaded",
			prepare: func(w *world) { w.configuration.anonymousErr = errNotLoaded }, call: withHeader(),
			want: "unidentified", status: 429, namesNobody: true, notOn: []apigw.Shape{apigw.RESTToken}},
		{name: "a stale configuration", prepare: func(w *world) { w.configuration.stale = true }, call: withKey("acme"),
			want: "allowed", context: map[string]any{"configStale": true}},

		{name: "a token", call: withBearer(good), want: "allowed", status: 200,
			context: map[string]any{"tenant": "acme", "subject": "user-1"}},
		{name: "the issuer answers 500",
			prepare: func(w *world) { w.authority.Set(tokentest.Answer(http.StatusInternalServerError, "")) },
			call:    withBearer(good), want: "unidentified", status: 429, namesNobody: true},
		{name: "the issuer publishes nothing",
			prepare: func(w *world) { w.authority.Set(tokentest.Answer(http.StatusOK, `{"keys":[]}`)) },
			call:    withBearer(good), want: "unidentified", namesNobody: true},
		{name: "a token where none is accepted", set: func(c *setup) { c.tokens.Issuers = nil }, call: withBearer(good),
			want: "unauthorized"},
		{name: "a token of alg none", call: withBearer(tokentest.Unsigned("k1", tokentest.Claims(noon, nil))),
			want: "unauthorized"},
		{name: "a token by the public key",
			call: withBearer(tokentest.HS256("rsa", tokentest.NewRSA("rsa").PublicPEM(), tokentest.Claims(noon, nil))),
			want: "unauthorized"},
		{name: "a forged token", call: withBearer(thief.Sign(tokentest.Claims(noon, nil))), want: "unauthorized"},
		{name: "an expired token", call: withBearer(signer.Sign(tokentest.Claims(noon.Add(-2*time.Hour), nil))),
			want: "unauthorized"},
		{name: "a token of the future", call: withBearer(signer.Sign(tokentest.Claims(noon.Add(2*time.Hour), nil))),
			want: "unauthorized"},
		{name: "a token of another issuer",
			call: withBearer(signer.Sign(tokentest.Claims(noon, tokentest.With("iss", "https://evil.example/")))),
			want: "unauthorized"},
		{name: "a token for another audience",
			call: withBearer(signer.Sign(tokentest.Claims(noon, tokentest.With("aud", "elsewhere")))),
			want: "unauthorized"},
		{name: "a token with a path for a kid",
			call: withBearer(signer.Sign(tokentest.Claims(noon, nil), tokentest.With("kid", "../../etc/passwd"))),
			want: "unauthorized"},
		{name: "a token without a tenant",
			call: withBearer(signer.Sign(tokentest.Claims(noon, tokentest.With("tenant_id", tokentest.Absent{})))),
			want: "unauthorized"},
		{name: "a token of 100 KB", call: withBearer(good + strings.Repeat("a", 100<<10)), want: "unauthorized"},
		{name: "a token for a suspended tenant",
			call: withBearer(signer.Sign(tokentest.Claims(noon, tokentest.With("tenant_id", "initech")))),
			want: "suspended_tenant", status: 403},
		{name: "a token for an unknown tenant",
			call: withBearer(signer.Sign(tokentest.Claims(noon, tokentest.With("tenant_id", "else")))),
			want: "unknown_tenant", status: 403},

		{name: "token and key agree", call: withBearer(good, "X-Api-Key", identity.ExampleKey("acme")), want: "allowed",
			notOn:   []apigw.Shape{apigw.RESTToken},
			context: map[string]any{"tenant": "acme", "subject": "user-1", "keyId": "k-acme"}},
		{name: "token and key disagree", call: withBearer(good, "X-Api-Key", identity.ExampleKey("globex")),
			want: "unauthorized", notOn: []apigw.Shape{apigw.RESTToken}},
		{name: "a good token and a bad key", call: withBearer(good, "X-Api-Key", identity.NewKey()),
			want: "unauthorized", notOn: []apigw.Shape{apigw.RESTToken}},
		{name: "a bad token and a good key", call: withBearer(thief.Sign(tokentest.Claims(noon, nil)), "X-Api-Key",
			identity.ExampleKey("acme")), want: "unauthorized", notOn: []apigw.Shape{apigw.RESTToken}},
		{name: "two keys", call: withKey("acme", "X-Api-Key", identity.ExampleKey("acme")), want: "unauthorized",
			notOn: []apigw.Shape{apigw.RESTToken}},
		{name: "two different keys in two places", call: withBearer(identity.ExampleKey("acme"), "X-Api-Key",
			identity.ExampleKey("globex")), want: "unauthorized", notOn: []apigw.Shape{apigw.RESTToken}},
		{name: "two bearer keys", call: withHeader("Authorization", "Bearer "+identity.ExampleKey("acme"),
			"Authorization", "Bearer "+identity.ExampleKey("acme")), want: "unauthorized",
			notOn: []apigw.Shape{apigw.RESTToken}},
		{name: "two bearer tokens", call: withHeader("Authorization", "Bearer "+good, "Authorization", "Bearer "+good),
			want: "unauthorized", notOn: []apigw.Shape{apigw.RESTToken}},
		{name: "a bearer token and a bare one", call: withHeader("Authorization", "Bearer "+good, "Authorization",
			good), want: "unauthorized", notOn: []apigw.Shape{apigw.RESTToken}},
		{name: "a tenant in a header", call: withKey("acme", "X-Tenant-Id", "globex", "Tenant", "globex",
			"X-Sluice-Tenant", "globex"), want: "allowed", context: map[string]any{"tenant": "acme"}},
		{name: "a tenant in a header and nothing else", call: withHeader("X-Tenant-Id", "acme"), want: "unauthorized"},
	}
}

// Guarantees each outcome, on each shape of event on which it can come about: who passes, who is denied, and what the
// answer's context says.
func TestHandlerAnswers(t *testing.T) {
	for _, c := range outcomes() {
		t.Run(c.name, func(t *testing.T) {
			for _, s := range shapesExcept(c.notOn...) {
				c.check(t, s)
			}
		})
	}
}

func (c *outcome) check(t *testing.T, s apigw.Shape) {
	t.Helper()
	var settings []func(*setup)
	if c.set != nil {
		settings = append(settings, c.set)
	}
	w := newWorld(t, allPlans+c.plans, settings...)
	if c.prepare != nil {
		c.prepare(w)
	}
	r := w.expect(s, c.call, c.want)
	if r.decision == "unauthorized" {
		return
	}
	if c.status != 0 && r.context["httpStatus"] != c.status {
		t.Errorf("%s: httpStatus %v, want %v", s, r.context["httpStatus"], c.status)
	}
	for name, want := range c.context {
		if r.context[name] != want {
			t.Errorf("%s: %s is %v, want %v in %s", s, name, r.context[name], want, r.text)
		}
	}
	if c.namesNobody && (r.context["tenant"] != nil || r.context["subject"] != nil || r.context["keyId"] != nil) {
		t.Errorf("%s: the context names somebody who was not identified: %s", s, r.text)
	}
	body, _ := r.context["problem"].(string)
	if r.allow != (body == "") || !strings.Contains(body, c.problem) || !r.allow && !json.Valid([]byte(body)) {
		t.Errorf("%s: problem %s, want one with %q", s, body, c.problem)
	}
	if s != apigw.HTTP2 && !strings.Contains(r.resource, ":"+apiID(s)+"/") {
		t.Errorf("%s: the policy is about %q", s, r.resource)
	}
}

// Guarantees that a denial of an API in PassDenials is answered "allow" and names the denial in its context, also if
// the call has no credential, and that a denial of any other API is not.
func TestHandlerPassesDenials(t *testing.T) {
	for _, s := range shapes {
		w := newWorld(t, allPlans+addressLimit[:0], passDenials)
		r := w.send(s, withKey("initech"))
		pass := s == apigw.HTTP1 || s == apigw.HTTP2
		if r.allow != pass || r.decision != "suspended_tenant" || r.context["httpStatus"] != 403.0 {
			t.Errorf("%s: allow %v, %s; want it to pass: %v", s, r.allow, r.text, pass)
		}
		if none := w.send(s, withHeader()); none.allow != pass || pass != (none.decision == "no_credential") {
			t.Errorf("%s, no credential: allow %v, %s; want it to pass: %v", s, none.allow, none.decision, pass)
		}
	}
}

// Guarantees which counter of limits per subject, per key and per claim is charged for a token, a key, or both.
func TestHandlerCountsByIdentity(t *testing.T) {
	person := func(sub, region string) string {
		by := tokentest.With("tenant_id", "people", "sub", sub)
		if region != "" {
			by["region"] = region
		}
		return signer.Sign(tokentest.Claims(noon, by))
	}
	key := []string{"X-Api-Key", identity.ExampleKey("people")}
	for _, s := range shapesExcept(apigw.RESTToken) {
		w := newWorld(t, allPlans)
		ask := func(c call, decision, binding string) {
			t.Helper()
			if r := w.expect(s, c, decision); r.context["binding"] != binding {
				t.Errorf("%s: bound by %v, want %s: %s", s, r.context["binding"], binding, r.text)
			}
		}
		ask(withBearer(person("ann", "eu")), "allowed", "each")
		ask(withBearer(person("ann", "eu"), key...), "allowed", "each")
		ask(withBearer(person("ann", "eu"), key...), "limited", "each") // two for each person, however identified
		ask(withBearer(person("bob", "eu"), key...), "allowed", "regional")
		ask(withBearer(person("bob", "us"), key...), "allowed", "each")
		ask(withBearer(person("cid", "us"), key...), "limited", "machine") // three for each key
		ask(withBearer(person("cid", "eu")), "allowed", "regional")        // the fourth of the region
		ask(withBearer(person("dan", "eu")), "limited", "regional")
		// no region; and the third call without a key: these share a counter
		ask(withBearer(person("dan", "")), "allowed", "machine")
	}
}

// Guarantees that no two callers share a counter or a principal because a name contains a separator: subject "b/ci" of
// tenant "a" and subject "ci" of tenant "a/b" are two.
func TestHandlerKeepsTenantsApart(t *testing.T) {
	names := [][2]string{{"a", "b/ci"}, {"a/b", "ci"}, {"a:b", "c"}, {"a", "b:c"}, {"a|b", "c"}, {"a%2Fb", "ci"},
		{"A", "b/ci"}, {"a,", "b"}}
	text := "plans: [ { id: p, limits: [ { id: l, per: subject, algorithm: fixed_window, threshold: 1, period: 1h } " +
		"] } ]\ntenants:\n"
	seen := map[string]bool{}
	for _, n := range names {
		if quoted, _ := json.Marshal(n[0]); !seen[n[0]] {
			text += fmt.Sprintf("  - { id: %s, plan: p }\n", quoted)
			seen[n[0]] = true
		}
	}
	for _, s := range shapes {
		w := newWorld(t, text)
		principals := map[string]bool{}
		for _, n := range names {
			c := withBearer(signer.Sign(tokentest.Claims(noon, tokentest.With("tenant_id", n[0], "sub", n[1]))))
			r := w.expect(s, c, "allowed")
			principals[fmt.Sprint(r.context["tenant"], "/", r.context["subject"])] = true
			if s != apigw.HTTP2 && r.principal != fmt.Sprint(r.context["tenant"], "/", r.context["subject"]) {
				t.Errorf("principal %q of %q", r.principal, n)
			}
			w.expect(s, c, "limited")
		}
		if len(principals) != len(names) {
			t.Errorf("%s: %d names of %d callers: %v", s, len(principals), len(names), principals)
		}
	}
}

// Guarantees that a name which an issuer chose is encoded as printable ASCII, in the answer and in the log, so it
// cannot end a line, add a header, or end a JSON string. Names with control characters are refused.
func TestHandlerEncodesNames(t *testing.T) {
	nasty := []string{"evil X-Admin: 1", `a","isAuthorized":true,"b":"`, "é\u2028", "<script>", "${jndi:x}",
		strings.Repeat("ü", 64)}
	text := "plans: [ { id: p, limits: [ { id: l, algorithm: fixed_window, threshold: 1, period: 1h } ] } ]\ntenants:\n"
	for _, n := range nasty {
		quoted, _ := json.Marshal(n)
		text += fmt.Sprintf("  - { id: %s, plan: p }\n", quoted)
	}
	for _, s := range shapes {
		w := newWorld(t, text)
		for _, n := range nasty {
			c := withBearer(signer.Sign(tokentest.Claims(noon, tokentest.With("tenant_id", n, "sub", n))))
			for _, want := range []string{"allowed", "limited"} {
				r := w.expect(s, c, want)
				if r.context["tenant"] != apigw.EncodeName(n) || r.context["subject"] != apigw.EncodeName(n) {
					t.Errorf("%s: %q is %v", s, n, r.context["tenant"])
				}
				for name, v := range r.context {
					if text, ok := v.(string); ok &&
						strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' }) {
						t.Errorf("%s: %s holds %q", s, name, text)
					}
				}
			}
		}
		for _, breaks := range []string{"acme\r\nX-Admin: 1", "acme\x00", "acme\u0085"} {
			for _, claim := range []string{"tenant_id", "sub"} {
				by := tokentest.With("tenant_id", nasty[1], "sub", "x")
				by[claim] = breaks
				w.expect(s, withBearer(signer.Sign(tokentest.Claims(noon, by))), "unauthorized")
			}
		}
		if lines := w.records("denied"); len(lines) != len(nasty) || lines[0]["tenant"] != "evil%20X-Admin%3A%201" ||
			lines[0]["level"] != "DEBUG" {
			t.Errorf("%s: %d lines, the first %v", s, len(lines), lines)
		}
	}
}

// Guarantees that no other spelling of a path escapes the limit of an endpoint, in the form in which each kind of API
// sends paths. HTTP APIs put the stage or a base path in front, and the path in their ARN is decoded.
func TestHandlerPathAliases(t *testing.T) {
	const text = `
plans:
  - id: p
    limits:
      - { id: put, match: { methods: [PUT], pathPattern: "/v1/organizations/{orgId}/product/*" },
          algorithm: fixed_window, threshold: 3, period: 1h }
tenants: [ { id: acme, plan: p } ]
`
	const plain = "/v1/organizations/o1/product/42"
	for _, c := range []call{
		{path: plain + "/"}, {path: "//v1/organizations/o1/product/42"}, {path: "/v1//organizations///o1/product/42"},
		{path: "/v1/./organizations/o1/product/42"},
		{path: "/v1/x/../organizations/o1/product/42"}, {path: "/v1/%2e/organizations/o1/product/42"},
		{path: "/v1/x/%2E%2e/organizations/o1/product/42"},
		{path: "/v1/organ%69zations/o1/pr%6Fduct/42"}, {path: "/v1/organizations/o1/%70roduct/42", arn: plain},
		{path: "/v1/organizations;v=1/o1/product;x/42"},
		{path: "/v1/organizations/o1%2Fproduct%2F42"}, {path: "/v1/organizations/o1%2Fproduct/42", arn: plain},
		{path: "/v1%2forganizations/o1/product/42"}, {path: "/v1/organizations/o1/product/42%3Fx"},
		{path: `/v1\organizations\o1\product\42`}, {path: "/v1/organizations/o1/product/%2534%2532"},
		{path: plain, base: "/shop"}, {path: plain + "/", base: "/shop/v2", arn: plain},
		{path: plain, stage: "$default"},
		{path: "/v1/organizations/o1/product/é", arn: "/v1/organizations/o1/product/é"},
		{path: "/v1/organizations/o1/product/%C3%A9", arn: "/v1/organizations/o1/product/é"},
		{path: "/v1/organizations/o1/product/42", method: "put"},
	} {
		for _, s := range shapesExcept(apigw.WebSocket) {
			if s == apigw.RESTToken && c.method != "" {
				continue // a TOKEN event has only the method in the ARN, which the gateway spells
			}
			w := newWorld(t, text)
			honest := withKey("acme")
			honest.method, honest.path = "PUT", plain
			alias := c
			alias.header = honest.header
			if alias.method == "" {
				alias.method = "PUT"
			}
			w.expect(s, honest, "allowed")
			w.expect(s, alias, "allowed")
			w.expect(s, alias, "allowed")
			w.expect(s, alias, "limited")
			w.expect(s, honest, "limited")
		}
	}
	// A path in other letters, or with one more segment, is another path.
	for _, other := range []string{"/V1/Organizations/o1/Product/42", plain + "/x", "/shop" + plain} {
		for _, s := range shapesExcept(apigw.WebSocket) {
			w := newWorld(t, text)
			c := withKey("acme")
			c.method, c.path = "PUT", other
			if r := w.expect(s, c, "allowed"); r.context["binding"] != nil {
				t.Errorf("%s, %s: bound by %v", s, other, r.context["binding"])
			}
		}
	}
}

// Guarantees that a client cannot change the address by which it is counted, whatever it writes into X-Forwarded-For,
// with any number of the operator's proxies, and that an IPv4 address in IPv6 form is the same address.
func TestHandlerForgedForwardedFor(t *testing.T) {
	// client, then the operator's proxies as they saw each other
	own := []string{"203.0.113.77", "10.0.0.1", "10.0.0.2"}
	forged := []string{"", "1.2.3.4", "::ffff:198.51.100.9", "garbage", ",,,", "1.2.3.4, 5.6.7.8, 9.9.9.9, 7.7.7.7",
		"[::1]:80", strings.Repeat("9", 300), "\"_hidden\"", "127.0.0.1"}
	for hops := range 3 {
		for _, s := range shapesExcept(apigw.RESTToken) {
			w := newWorld(t, allPlans+addressLimit, func(c *setup) { c.authorizer.TrustedHops = hops })
			for i, f := range forged {
				list := strings.Join(own[:hops], ", ")
				if f != "" {
					list = strings.TrimSuffix(f+", "+list, ", ")
				}
				c := withHeader()
				if list != "" {
					c = withHeader("X-Forwarded-For", list)
				}
				if i%2 == 1 && hops == 0 {
					c.peer = "::ffff:198.51.100.9" // the same address in IPv6 form
				}
				want := "unauthorized"
				if i >= 2 {
					want = "ip_limited"
				}
				w.expect(s, c, want)
			}
			if hops > 0 {
				own := append([]string{"203.0.113.78"}, own[1:hops]...)
				// another client
				w.expect(s, withHeader("X-Forwarded-For", "203.0.113.77, "+strings.Join(own, ", ")), "unauthorized")
			}
		}
	}
}

// Guarantees that TrustedHops counts the operator's own proxies only. API Gateway appends the address of its peer to
// X-Forwarded-For. If that entry counted as a hop, all clients behind one proxy would share a counter.
func TestHandlerLeavesOutTheGateway(t *testing.T) {
	const gateways = "198.51.100.9" // the peer of the events, which the gateway appends
	for hops, through := range map[int]string{1: "%s, " + gateways, 2: "%s, 10.0.0.1, " + gateways} {
		for _, s := range shapesExcept(apigw.RESTToken) {
			w := newWorld(t, allPlans+addressLimit, func(c *setup) { c.authorizer.TrustedHops = hops })
			for i, client := range []string{"203.0.113.77", "1.2.3.4, 203.0.113.77", "5.6.7.8, 203.0.113.77",
				"203.0.113.78", "203.0.113.79"} {
				want := "unauthorized"
				if i == 2 {
					want = "ip_limited"
				}
				c := withHeader("X-Forwarded-For", fmt.Sprintf(through, client))
				c.peer = gateways
				w.expect(s, c, want)
			}
		}
	}
}

// Guarantees that an event which is not an authorizer's is refused, counted, and logged at most once a second, and that
// the error holds nothing of the event.
func TestHandlerRefusesOtherEvents(t *testing.T) {
	w := newWorld(t, allPlans)
	for _, event := range []string{"", "null", "[]", `{"Records":[{"body":"s3cr3t"}]}`,
		`{"type":"TOKEN","authorizationToken":"s3cr3t"`, `{"version":"2.0","rawPath":"/s3cr3t","requestContext":{}}`,
		`{"type":"REQUEST","requestContext":{},"methodArn":"s3cr3t"}`, strings.Repeat("[", 1<<20),
		string(withBearer("s3cr3t"+strings.Repeat("a", 1<<20)).event(t, apigw.RESTToken))} {
		out, err := w.Invoke(context.Background(), []byte(event))
		if out != nil || !errors.Is(err, apigw.ErrEvent) || strings.Contains(err.Error(), "s3cr3t") ||
			err.Error() == "Unauthorized" {
			t.Errorf("%.40s: %s, %v", event, out, err)
		}
	}
	w.advance(time.Second)
	if _, err := w.Invoke(context.Background(), []byte("{}")); err == nil {
		t.Error("an empty event is answered")
	}
	lines := w.records("the event is not answered")
	if len(lines) != 2 || lines[0]["level"] != "ERROR" || lines[1]["more"] != 8.0 {
		t.Errorf("%d lines, want 2, the second with 8 more: %v", len(lines), lines)
	}
	if n, _ := w.metrics(); n["events_refused"] != 10 || n["decisions"] != 0 {
		t.Errorf("%v events refused, %v decisions; want 10 and 0", n["events_refused"], n["decisions"])
	}
}

// Guarantees that a panic ends one request and not the process, that the request does not pass, and that the log says
// where the panic was and not its value.
func TestHandlerCatchesPanics(t *testing.T) {
	var index []int
	for _, p := range []any{"s3cr3t", errors.New("s3cr3t of 203.0.113.7"), 7,
		panicValueOf(func() { _ = index[len(index)+3] })} {
		w := newWorld(t, allPlans, passDenials)
		w.configuration.panicValue = p
		for _, s := range shapes {
			out, err := w.Invoke(context.Background(), withKey("acme").event(t, s))
			if out != nil || err == nil || err.Error() == "Unauthorized" || secretIn(err.Error()) != "" ||
				!strings.Contains(err.Error(), "urn:uuid:") {
				t.Errorf("%s: %s, %v", s, out, err)
			}
		}
		w.configuration.panicValue = nil
		w.expect(apigw.HTTP2, withKey("acme"), "allowed")
		lines := w.records("a request made the authorizer panic")
		if len(lines) != len(shapes) || !strings.Contains(fmt.Sprint(lines[0]["stack"]), "Routed:") {
			t.Errorf("%d lines: %v", len(lines), lines)
		}
		if n, _ := w.metrics(); n["panics"] != 5 || n["decisions"] != 1 {
			t.Errorf("%v panics, %v decisions", n["panics"], n["decisions"])
		}
	}
}

// panicValueOf returns the value with which f panics.
func panicValueOf(f func()) (p any) {
	defer func() { p = recover() }()
	f()
	return nil
}

// Guarantees the metrics: each decision by its outcome and by the limit that denied, each shadow limit that would have
// denied, one cold start, a stale configuration, and the fullest counter of a plan.
func TestHandlerCounts(t *testing.T) {
	const text = `
plans:
  - id: p
    limits:
      - { id: hour, algorithm: fixed_window, threshold: 3, period: 1h }
      - { id: strict, mode: shadow, tiers: [ { period: 1s, threshold: 1 }, { period: 1h, threshold: 1 } ] }
tenants: [ { id: acme, plan: p } ]
ipLimits: [ { id: per-address, algorithm: fixed_window, threshold: 6, period: 1h } ]
`
	w := newWorld(t, text)
	for range 3 {
		w.expect(apigw.RESTRequest, withKey("acme"), "allowed")
	}
	w.configuration.stale = true
	w.expect(apigw.HTTP2, withKey("acme"), "limited")
	w.expect(apigw.HTTP1, withHeader(), "unauthorized")
	w.expect(apigw.HTTP1, withHeader(), "unauthorized")
	w.expect(apigw.HTTP1, withKey("acme"), "ip_limited")
	n, limits := w.metrics()
	for name, want := range map[string]float64{"decisions": 7, "decisions_allowed": 3, "decisions_limited": 1,
		"decisions_ip_limited": 1, "decisions_no_credential": 2,
		"enforce_denied": 2, "shadow_denied": 2, "cold_starts": 1, "config_stale": 1, "over_admission_ratio": 1} {
		if n[name] != want {
			t.Errorf("%s = %v, want %v", name, n[name], want)
		}
	}
	if limits["hour"]["denied"] != 1 || limits["ip:per-address"]["denied"] != 1 ||
		limits["strict"]["shadow_denied"] != 2 || len(limits) != 3 {
		t.Errorf("limits: %v", limits)
	}
	if !strings.Contains(w.lines.String(), `"limiter_latency":{"Values":[`) {
		t.Errorf("no latency of the limiter in %s", w.lines)
	}
}

// Guarantees what a log line says about a request: its ids, its route, the reason, and the trace of the gateway or of
// Lambda. Denials are logged at Debug. Calls without a credential are logged once a second for each reason.
func TestHandlerLogs(t *testing.T) {
	w := newWorld(t, allPlans, func(c *setup) {
		c.level = slog.LevelInfo
		c.handler.InvocationID = func(ctx context.Context) string { return ctx.Value(invocation{}).(string) }
	})
	ctx := context.WithValue(context.Background(), invocation{}, "lambda-7")
	//lint:ignore SA1029 the key is aws-lambda-go's
	ctx = context.WithValue(ctx, "x-amzn-trace-id", "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1")
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for range 10 {
		out, err := w.Invoke(ctx, withHeader("Traceparent", parent).event(t, apigw.HTTP2))
		if err != nil || !strings.Contains(string(out), `{"isAuthorized":false,`) {
			t.Fatalf("%s, %v", out, err)
		}
		if _, err = w.Invoke(ctx, withKey("expired").event(t, apigw.RESTToken)); err == nil {
			t.Fatal("an expired key is accepted")
		}
		if _, err = w.Invoke(ctx, withKey("initech").event(t, apigw.HTTP2)); err != nil {
			t.Fatal(err)
		}
	}
	lines := w.records("not identified")
	if len(lines) != 2 || len(w.records("denied")) != 0 {
		t.Fatalf("%d lines, and of denials %d: %s", len(lines), len(w.records("denied")), w.log)
	}
	for name, want := range map[string]any{"level": "INFO", "cell": "eu-1", "outcome": "no_credential",
		"reason": "no_credential", "request_id": "UaB3eExampleDubA=", "route": "POST /search",
		"shape": "http_2", "stage": "prod", "api": apiID(apigw.HTTP2),
		"xray_trace_id": "1-69206f10-5f84a1c21bd2f3b94c0e7a66", "trace_id": "69206f105f84a1c21bd2f3b94c0e7a66",
		"traceparent_id": "0af7651916cd43dd8448eb211c80319c", "lambda_request_id": "lambda-7"} {
		if lines[0][name] != want {
			t.Errorf("%s = %v, want %v", name, lines[0][name], want)
		}
	}
	// a TOKEN event has no trace
	if lines[1]["reason"] != "key_expired" || lines[1]["xray_trace_id"] != "1-5759e988-bd862e3fe1be46a994272793" {
		t.Errorf("the second line: %v", lines[1])
	}
	if _, err := w.Invoke(ctx, []byte("{}")); err == nil || len(w.records("the event is not answered")) != 1 {
		t.Errorf("an empty event: %v, %s", err, w.log)
	}
	if got := w.records(
		"the event is not answered")[0]; got["xray_trace_id"] != "1-5759e988-bd862e3fe1be46a994272793" ||
		got["lambda_request_id"] != "lambda-7" {
		t.Errorf("an empty event: %v", got)
	}
	t.Setenv("_X_AMZN_TRACE_ID", "Root=1-00000001-bd862e3fe1be46a994272793")
	w.advance(time.Second)
	if _, err := w.Invoke(context.WithValue(context.Background(), invocation{}, ""),
		withHeader().event(t, apigw.RESTToken)); err == nil {
		t.Error("a call without a credential is accepted")
	}
	lines = w.records("not identified")
	if n := len(lines); n != 4 && n != 3 || lines[n-1]["xray_trace_id"] != "1-00000001-bd862e3fe1be46a994272793" {
		t.Errorf("%d lines, the last %v", n, lines[n-1])
	}
}

type invocation struct{}

// Guarantees that a failure which an operator has to repair is logged as a warning with its cause, once a second
// however many calls it fails; and what the line of a denial says.
func TestHandlerWarns(t *testing.T) {
	w := newWorld(t, allPlans, func(c *setup) { c.level = slog.LevelInfo })
	w.configuration.keyErr, w.configuration.stale = errNotLoaded, true
	for range 2 {
		for range 5 {
			w.expect(apigw.HTTP2, withKey("acme"), "unidentified")
		}
		w.advance(time.Second)
	}
	for message, level := range map[string]string{"could not be decided": "WARN",
		"decided on a configuration that is older than it may be": "WARN"} {
		lines := w.records(message)
		if len(lines) != 2 || lines[0]["level"] != level || lines[1]["more"] != 4.0 {
			t.Errorf("%s: %v; want two lines, the second with 4 more", message, lines)
		}
	}
	if line := w.records("could not be decided")[0]; !strings.Contains(fmt.Sprint(line["error"]), "tenant documents") ||
		line["outcome"] != "unidentified" {
		t.Errorf("the cause is missing: %v", line)
	}
	w = newWorld(t, allPlans)
	for range 5 {
		w.expect(apigw.RESTRequest, withKey("acme"), "allowed")
	}
	w.expect(apigw.RESTRequest, withKey("acme"), "limited")
	lines := w.records("denied")
	if len(lines) != 1 || lines[0]["limit"] != "burst" || lines[0]["tenant"] != "acme" ||
		lines[0]["key_id"] != "k-acme" || lines[0]["plan"] != "small" ||
		lines[0]["route"] != "/v1/organizations/{orgId}/product/{id}" || len(fmt.Sprint(lines[0]["source"])) != 32 {
		t.Errorf("a denial: %v", lines)
	}
}

// Guarantees that a log line holds the first 256 bytes of a route at most. The operator chooses routes, and may choose
// long ones.
func TestHandlerLogsPartOfALongRoute(t *testing.T) {
	w := newWorld(t, allPlans)
	event := string(withKey("initech").event(t, apigw.HTTP2))
	long := "GET /" + strings.Repeat("x", 400)
	event = strings.ReplaceAll(event, `"POST /search"`, `"`+long+`"`)
	if _, err := w.Invoke(t.Context(), []byte(event)); err != nil {
		t.Fatal(err)
	}
	lines := w.records("denied")
	if len(lines) != 1 || lines[0]["route"] != long[:256] {
		t.Errorf("%d lines, the route is %v; want its first 256 bytes", len(lines), lines)
	}
}

// Guarantees that InvocationID may panic, even while a panic is logged: that ends one request and not the process.
func TestHandlerSurvivesItsHooks(t *testing.T) {
	w := newWorld(t, allPlans,
		func(c *setup) { c.handler.InvocationID = func(context.Context) string { panic("s3cr3t") } })
	for range 3 {
		if out, err := w.Invoke(context.Background(), withKey("initech").event(t, apigw.HTTP2)); out != nil ||
			err == nil {
			t.Errorf("Invoke = %s, %v", out, err)
		}
	}
	w.expect(apigw.HTTP2, withKey("acme"), "allowed")
}

// Guarantees that background tasks run before the answer, at most every BackgroundEvery, and each in one goroutine at a
// time. A task that hangs delays an answer by at most BackgroundWait and stops no other task. A panic of a task fails
// no request.
func TestHandlerBackgroundTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var finished, hung, running atomic.Int64 // runs of the second task; runs of the first, and those under way
		w := newWorld(t, allPlans, func(c *setup) {
			c.authorizer.Now, c.tokens.Issuers = time.Now, nil
			c.handler.Deadline = 10 * time.Second
			c.handler.BackgroundTasks = []func(context.Context, time.Time){
				func(ctx context.Context, _ time.Time) {
					if running.Add(1) > 1 {
						t.Error("the task runs twice at the same time")
					}
					hung.Add(1)
					<-ctx.Done()
					running.Add(-1)
				},
				func(_ context.Context, now time.Time) {
					if !now.Equal(time.Now()) {
						t.Errorf("now is %v", now)
					}
					<-time.After(3 * time.Millisecond)
					finished.Add(1)
				},
				func(context.Context, time.Time) { panic("s3cr3t") },
			}
		})
		ask := func(most time.Duration, wantFinished int64) {
			t.Helper()
			began := time.Now()
			w.send(apigw.HTTP2, withKey("acme"))
			if took := time.Since(began); took > most || finished.Load() != wantFinished {
				t.Errorf("after %v: %d runs; want %d after at most %v", took, finished.Load(), wantFinished, most)
			}
		}
		ask(authorizer.BackgroundWait, 1)
		ask(0, 1) // not yet due again
		<-time.After(authorizer.BackgroundEvery)
		ask(authorizer.BackgroundWait, 2)
		if hung.Load() != 1 {
			t.Errorf("the task that hangs was started %d times, want once", hung.Load())
		}
		<-time.After(10 * time.Second) // the deadline of the run that hangs
		ask(authorizer.BackgroundWait, 3)
		if hung.Load() != 2 || len(w.records("a request made the authorizer panic")) != 3 {
			t.Errorf("the task that hangs was started %d times, want again: %s", hung.Load(), w.log)
		}
		<-time.After(11 * time.Second)
		synctest.Wait()
	})
}

// Guarantees that an issuer can replace its key: tokens by the new key pass after the cooldown at most. Tokens by the
// old key no longer pass, even if they were verified and cached before.
func TestHandlerFollowsKeyRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, allPlans, func(c *setup) { c.authorizer.Now = time.Now })
		next := tokentest.NewEC("k2", elliptic.P256())
		text := func(s *tokentest.Signer) call {
			return withBearer(s.Sign(tokentest.Claims(time.Now(),
				tokentest.With("exp", time.Now().Add(24*time.Hour).Unix(), "tenant_id", "globex"))))
		}
		old := text(signer)
		w.expect(apigw.HTTP2, old, "allowed")
		w.authority.Set(tokentest.Answer(http.StatusOK, tokentest.Document(next)))
		w.expect(apigw.HTTP2, text(next), "unauthorized") // the issuer is not asked within the cooldown
		<-time.After(token.DefaultCooldown)
		w.expect(apigw.HTTP2, text(next), "allowed")
		w.expect(apigw.HTTP2, old, "unauthorized")
	})
}

// Guarantees that a decision ends at its deadline, with the answer for what could not be loaded.
func TestHandlerDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, allPlans, func(c *setup) {
			c.authorizer.Now = time.Now
			c.handler.Deadline, c.tokens.Wait = 300*time.Millisecond, 20*time.Second
		})
		w.authority.Set(tokentest.Hang)
		began := time.Now()
		w.expect(apigw.HTTP2, withBearer(signer.Sign(tokentest.Claims(began, nil))), "unidentified")
		if took := time.Since(began); took != 300*time.Millisecond {
			t.Errorf("it took %v, want 300ms", took)
		}
	})
}

// Guarantees that an answer's context is never larger than API Gateway accepts, however many limits a plan has and
// however long names are. The outcome and the caller are always in it, and "leftOut" says what is not. The simple
// response of payload 2.0 has room for everything.
func TestHandlerAnswerFits(t *testing.T) {
	name := strings.Repeat("ü", 64) // 128 bytes
	var text strings.Builder
	text.WriteString("plans:\n  - id: p\n    limits:\n")
	for i := range 2000 {
		pattern := "/**"
		if i >= 900 {
			pattern = fmt.Sprintf("/other/%d", i)
		}
		fmt.Fprintf(&text, "      - { id: %s-%04d, match: { pathPattern: %q }, algorithm: fixed_window, threshold: "+
			"%d, period: 1h }\n", strings.Repeat("x", 59), i, pattern, 1+i%2)
	}
	fmt.Fprintf(&text, "tenants: [ { id: %q, plan: p } ]\n", name)
	for _, s := range shapesExcept(apigw.WebSocket) {
		w := newWorld(t, text.String())
		c := withBearer(signer.Sign(tokentest.Claims(noon, tokentest.With("tenant_id", name, "sub", name))))
		c.path = "/" + strings.Repeat("%20a", 500)
		for _, want := range []string{"allowed", "limited"} {
			r := w.expect(s, c, want)
			if len(r.text) < 4000 || r.context["tenant"] != apigw.EncodeName(name) || s != apigw.HTTP2 &&
				r.context["leftOut"] == nil || r.context["binding"] == nil || r.context["rateLimitLimit"] == nil {
				t.Errorf("%s: %d bytes: %s", s, len(r.text), r.text)
			}
			if want == "limited" && (r.context["retryAfter"] == nil || r.context["problemType"] == nil) {
				t.Errorf("%s: %s", s, r.text)
			}
		}
	}
}

// Guarantees that one handler serves many requests at once: exactly as many pass as the plan allows, each answer is
// about its own request, and every request is counted.
func TestHandlerConcurrency(t *testing.T) {
	const text = "plans: [ { id: p, limits: [ { id: l, algorithm: fixed_window, threshold: 500, period: 1h } ] } " +
		"]\ntenants: [ { id: acme, plan: p }, { id: globex, plan: p } ]\n"
	w := newWorld(t, text, func(c *setup) {
		c.level = slog.LevelError
		c.handler.BackgroundTasks = []func(context.Context, time.Time){func(context.Context, time.Time) {}}
	})
	person := withBearer(signer.Sign(tokentest.Claims(noon, tokentest.With("tenant_id", "globex"))))
	events := map[string][][]byte{}
	for _, s := range shapes {
		events["acme"] = append(events["acme"], withKey("acme").event(t, s))
		events["globex"] = append(events["globex"], person.event(t, s))
	}
	bad := withHeader("X-Api-Key", "slk_x").event(t, apigw.RESTRequest)
	var passed [2]atomic.Int64
	var group sync.WaitGroup
	for g := range 64 {
		group.Go(func() {
			for i := range 30 {
				which := (g + i) % 2
				tenant := []string{"acme", "globex"}[which]
				out, err := w.Invoke(context.Background(), events[tenant][(g+i/2)%len(shapes)])
				if err != nil || !strings.Contains(string(out), `"tenant":"`+tenant+`"`) {
					t.Errorf("%s: %s, %v", tenant, out, err)
				}
				if strings.Contains(string(out), `"decision":"allowed"`) {
					passed[which].Add(1)
				}
				_, err = w.Invoke(context.Background(), bad)
				if err != apigw.ErrUnauthorized { //nolint:errorlint // it must not be wrapped; see world.read
					t.Errorf("a bad key: %v", err)
				}
				w.advance(time.Millisecond)
			}
		})
	}
	group.Wait()
	n, limits := w.metrics()
	if passed[0].Load() != 500 || passed[1].Load() != 500 {
		t.Errorf("%d and %d passed, want exactly 500 each", passed[0].Load(), passed[1].Load())
	}
	if n["decisions"] != 64*30*2 || n["decisions_bad_credential"] != 64*30 || limits["l"]["denied"] != 64*30-1000 {
		t.Errorf("%v decisions, %v bad credentials, %v", n["decisions"], n["decisions_bad_credential"], limits)
	}
}

// Guarantees that NewHandler refuses a configuration that cannot work, with an error that names the field.
func TestNewHandlerRefuses(t *testing.T) {
	w := newWorld(t, allPlans)
	z, err := authorizer.New(authorizer.Config{Source: &w.configuration, Store: w.store})
	if err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]authorizer.HandlerConfig{
		"Authorizer is missing": {}, "does not Measure": {Authorizer: z, Recorder: w.recorder},
		"BackgroundTasks[0]": {Authorizer: z, BackgroundTasks: make([]func(context.Context, time.Time), 1)},
		"Deadline 1ms":       {Authorizer: z, Deadline: time.Millisecond},
		"Deadline -1ns":      {Authorizer: z, Deadline: -1},
	} {
		if _, err := authorizer.NewHandler(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want one with %q", err, want)
		}
	}
}

// Guarantees that a path with too many readings is refused, by every kind of API whose events have a path. It would be
// charged to every limit. If these are more than a store decides at once, onStoreFailure would let it pass.
func TestPathsWithTooManyReadings(t *testing.T) {
	odd := "/%" + strings.Repeat("25", 110) + "41/../product/1"
	for _, s := range shapesExcept(apigw.RESTToken) {
		if s == apigw.WebSocket { // $connect has no path
			continue
		}
		w := newWorld(t, allPlans)
		c := withKey("acme")
		c.path = odd
		if r := w.send(s, c); r.allow || r.decision != "bad_request" {
			t.Errorf("%s: allow %v, %s: %s", s, r.allow, r.decision, r.text)
		}
	}
}
