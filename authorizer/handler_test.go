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
	"github.com/sluicelimits/sluice/internal/answer"
	"github.com/sluicelimits/sluice/internal/apigw"
	"github.com/sluicelimits/sluice/internal/identity"
	"github.com/sluicelimits/sluice/internal/identity/token"
	"github.com/sluicelimits/sluice/internal/identity/token/tokentest"
)

const handlerPlans = plans + `
  - { id: people, plan: people }
  - { id: a, plan: small }
  - { id: a/b, plan: small }
`

// allPlans has one limit of each kind that a credential can choose a counter of.
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

func passing(c *setting) { c.handler.Encoder.PassDenials = []string{api(apigw.HTTP1)} }

// outcome is one thing that can become of a call, on every shape that it can become of.
type outcome struct {
	name     string
	plans    string
	set      func(*setting)
	prepare  func(*world)
	call     call
	want     string
	not      []apigw.Shape
	status   float64 // of the context, where there is one
	context  map[string]any
	problem  string // part of the problem's body
	leftFree bool   // the tenant is not in the context
}

var errNotLoaded = fmt.Errorf("tenant documents: %w", authorizer.ErrNotLoaded)

func outcomes() []outcome {
	limitedBy := map[string]any{"binding": "burst", "retryAfter": "1", "rateLimitLimit": "5", "rateLimitRemaining": "0", "rateLimit": `"burst";r=0;t=1`,
		"rateLimitPolicy": `"burst";q=5;w=5`, "tenant": "acme", "subject": "ci", "plan": "small", "keyId": "k-acme", "problemType": answer.Limited.Type()}
	spend := func(w *world) {
		for _, s := range shapes[:1] {
			for range 5 {
				w.want(s, by("acme"), "allowed")
			}
		}
	}
	good := signer.Sign(tokentest.Claims(noon, nil))
	return []outcome{
		{name: "a key", call: by("acme"), want: "allowed", status: 200, context: map[string]any{"tenant": "acme", "subject": "ci", "keyId": "k-acme", "rateLimitRemaining": "4", "binding": "burst"}},
		{name: "a key as a bearer token", call: bearing(identity.ExampleKey("acme")), want: "allowed"},
		{name: "over the limit", prepare: spend, call: by("acme"), want: "limited", status: 429, context: limitedBy, problem: `"binding-policy":"burst"`},
		{name: "more than ever fits", call: by("globex", "X-Query-Cost", "50"), want: "never_fits", status: 429, not: []apigw.Shape{apigw.RESTToken}, problem: "cost-above-limit"},
		{name: "a cost that fits", call: by("globex", "x-query-cost", "7"), want: "allowed", not: []apigw.Shape{apigw.RESTToken}, context: map[string]any{"rateLimitRemaining": "3"}},
		{name: "a doubled cost counts as none", call: by("globex", "X-Query-Cost", "7", "X-Query-Cost", "8"), want: "allowed", not: []apigw.Shape{apigw.RESTToken}, context: map[string]any{"rateLimitRemaining": "9"}},
		{name: "no credential", call: with(), want: "unauthorized"},
		{name: "an unknown key", call: with("X-Api-Key", identity.NewKey()), want: "unauthorized"},
		{name: "a malformed key", call: with("X-Api-Key", "slk_x"), want: "unauthorized"},
		{name: "an expired key", call: by("expired"), want: "unauthorized"},
		{name: "a revoked key", call: by("revoked"), want: "unauthorized"},
		{name: "another scheme", call: with("Authorization", "Basic YTpi"), want: "unauthorized"},
		{name: "bad, with an anonymous plan", plans: "anonymousPlan: small", call: with("X-Api-Key", identity.NewKey()), want: "unauthorized"},
		{name: "an anonymous plan", plans: "anonymousPlan: small", call: with(), want: "allowed", not: []apigw.Shape{apigw.RESTToken}, context: map[string]any{"anonymous": true, "plan": "small"}, leftFree: true},
		{name: "suspended", call: by("initech"), want: "suspended_tenant", status: 403, problem: "tenant-suspended"},
		{name: "no plan", call: by("planless"), want: "no_plan", status: 403, problem: "no-plan"},
		{name: "an unknown tenant", call: by("nobody"), want: "unknown_tenant", status: 403, problem: "unknown-tenant"},
		{name: "no such route", plans: "routes: [ { methods: [GET], pathPattern: /elsewhere } ]", call: by("acme"), want: "no_route", status: 404},
		{name: "over the address's limit", plans: addressLimit, not: []apigw.Shape{apigw.RESTToken}, prepare: func(w *world) {
			w.want(apigw.HTTP2, with(), "unauthorized")
			w.want(apigw.RESTRequest, with("X-Api-Key", "slk_x"), "unauthorized")
		}, call: by("acme"), want: "ip_limited", status: 429, context: map[string]any{"binding": "ip:per-address", "retryAfter": "3600"}, leftFree: true},
		{name: "an address's limit on a shape without addresses", plans: addressLimit, not: without(apigw.RESTToken), call: by("acme"), want: "internal", status: 500, leftFree: true},
		{name: "the store is away", prepare: (*world).away, call: by("acme"), want: "allowed", context: map[string]any{"storeFailed": true, "rateLimitRemaining": "4"}},
		{name: "the store is away, closed", prepare: (*world).away, call: by("strict"), want: "unavailable", status: 429, context: map[string]any{"storeFailed": true, "retryAfter": "1"}},
		{name: "keys are not loaded", prepare: func(w *world) { w.broken.key = errNotLoaded }, call: by("acme"), want: "unidentified", status: 429, context: map[string]any{"retryAfter": "1"}, leftFree: true},
		{name: "the tenant is not loaded", prepare: func(w *world) { w.broken.tenant = errNotLoaded }, call: by("acme"), want: "unidentified", status: 429, leftFree: true},
		{name: "the anonymous plan is not loaded", prepare: func(w *world) { w.broken.anonymous = errNotLoaded }, call: with(), want: "unidentified", status: 429, leftFree: true, not: []apigw.Shape{apigw.RESTToken}},
		{name: "a stale configuration", prepare: func(w *world) { w.broken.stale = true }, call: by("acme"), want: "allowed", context: map[string]any{"configStale": true}},

		{name: "a token", call: bearing(good), want: "allowed", status: 200, context: map[string]any{"tenant": "acme", "subject": "user-1"}},
		{name: "the issuer answers 500", prepare: func(w *world) { w.authority.Set(tokentest.Answer(http.StatusInternalServerError, "")) }, call: bearing(good), want: "unidentified", status: 429, leftFree: true},
		{name: "the issuer publishes nothing", prepare: func(w *world) { w.authority.Set(tokentest.Answer(http.StatusOK, `{"keys":[]}`)) }, call: bearing(good), want: "unidentified", leftFree: true},
		{name: "a token where none is accepted", set: func(c *setting) { c.tokens.Issuers = nil }, call: bearing(good), want: "unauthorized"},
		{name: "a token of alg none", call: bearing(tokentest.Unsigned("k1", tokentest.Claims(noon, nil))), want: "unauthorized"},
		{name: "a token by the public key", call: bearing(tokentest.HS256("rsa", tokentest.NewRSA("rsa").PublicPEM(), tokentest.Claims(noon, nil))), want: "unauthorized"},
		{name: "a forged token", call: bearing(thief.Sign(tokentest.Claims(noon, nil))), want: "unauthorized"},
		{name: "an expired token", call: bearing(signer.Sign(tokentest.Claims(noon.Add(-2*time.Hour), nil))), want: "unauthorized"},
		{name: "a token of the future", call: bearing(signer.Sign(tokentest.Claims(noon.Add(2*time.Hour), nil))), want: "unauthorized"},
		{name: "a token of another issuer", call: bearing(signer.Sign(tokentest.Claims(noon, tokentest.With("iss", "https://evil.example/")))), want: "unauthorized"},
		{name: "a token for another audience", call: bearing(signer.Sign(tokentest.Claims(noon, tokentest.With("aud", "elsewhere")))), want: "unauthorized"},
		{name: "a token with a path for a kid", call: bearing(signer.Sign(tokentest.Claims(noon, nil), tokentest.With("kid", "../../etc/passwd"))), want: "unauthorized"},
		{name: "a token without a tenant", call: bearing(signer.Sign(tokentest.Claims(noon, tokentest.With("tenant_id", tokentest.Absent{})))), want: "unauthorized"},
		{name: "a token of 100 KB", call: bearing(good + strings.Repeat("a", 100<<10)), want: "unauthorized"},
		{name: "a token for a suspended tenant", call: bearing(signer.Sign(tokentest.Claims(noon, tokentest.With("tenant_id", "initech")))), want: "suspended_tenant", status: 403},
		{name: "a token for an unknown tenant", call: bearing(signer.Sign(tokentest.Claims(noon, tokentest.With("tenant_id", "else")))), want: "unknown_tenant", status: 403},

		{name: "token and key agree", call: bearing(good, "X-Api-Key", identity.ExampleKey("acme")), want: "allowed", not: []apigw.Shape{apigw.RESTToken}, context: map[string]any{"tenant": "acme", "subject": "user-1", "keyId": "k-acme"}},
		{name: "token and key disagree", call: bearing(good, "X-Api-Key", identity.ExampleKey("globex")), want: "unauthorized", not: []apigw.Shape{apigw.RESTToken}},
		{name: "a good token and a bad key", call: bearing(good, "X-Api-Key", identity.NewKey()), want: "unauthorized", not: []apigw.Shape{apigw.RESTToken}},
		{name: "a bad token and a good key", call: bearing(thief.Sign(tokentest.Claims(noon, nil)), "X-Api-Key", identity.ExampleKey("acme")), want: "unauthorized", not: []apigw.Shape{apigw.RESTToken}},
		{name: "two keys", call: by("acme", "X-Api-Key", identity.ExampleKey("acme")), want: "unauthorized", not: []apigw.Shape{apigw.RESTToken}},
		{name: "two different keys in two places", call: bearing(identity.ExampleKey("acme"), "X-Api-Key", identity.ExampleKey("globex")), want: "unauthorized", not: []apigw.Shape{apigw.RESTToken}},
		{name: "two bearer keys", call: with("Authorization", "Bearer "+identity.ExampleKey("acme"), "Authorization", "Bearer "+identity.ExampleKey("acme")), want: "unauthorized", not: []apigw.Shape{apigw.RESTToken}},
		{name: "two bearer tokens", call: with("Authorization", "Bearer "+good, "Authorization", "Bearer "+good), want: "unauthorized", not: []apigw.Shape{apigw.RESTToken}},
		{name: "a bearer token and a bare one", call: with("Authorization", "Bearer "+good, "Authorization", good), want: "unauthorized", not: []apigw.Shape{apigw.RESTToken}},
		{name: "a tenant in a header", call: by("acme", "X-Tenant-Id", "globex", "Tenant", "globex", "X-Sluice-Tenant", "globex"), want: "allowed", context: map[string]any{"tenant": "acme"}},
		{name: "a tenant in a header and nothing else", call: with("X-Tenant-Id", "acme"), want: "unauthorized"},
	}
}

// Guarantees each answer of the table of design §10, on each shape of event on which it can come about: who is let through,
// who is not, and what the gateway's responses are made of.
func TestHandlerAnswers(t *testing.T) {
	for _, c := range outcomes() {
		t.Run(c.name, func(t *testing.T) {
			for _, s := range without(c.not...) {
				c.check(t, s)
			}
		})
	}
}

func (c *outcome) check(t *testing.T, s apigw.Shape) {
	t.Helper()
	var settings []func(*setting)
	if c.set != nil {
		settings = append(settings, c.set)
	}
	w := newWorld(t, allPlans+c.plans, settings...)
	if c.prepare != nil {
		c.prepare(w)
	}
	r := w.want(s, c.call, c.want)
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
	if c.leftFree && (r.context["tenant"] != nil || r.context["subject"] != nil || r.context["keyId"] != nil) {
		t.Errorf("%s: the context names somebody who was not identified: %s", s, r.text)
	}
	body, _ := r.context["problem"].(string)
	if r.allow != (body == "") || !strings.Contains(body, c.problem) || !r.allow && !json.Valid([]byte(body)) {
		t.Errorf("%s: problem %s, want one with %q", s, body, c.problem)
	}
	if s != apigw.HTTP2 && !strings.Contains(r.resource, ":"+api(s)+"/") {
		t.Errorf("%s: the policy is about %q", s, r.resource)
	}
}

// Guarantees that where the operator has our middleware in the backend a denial goes through to it, marked, a missing credential
// included, and that nobody else's does.
func TestHandlerPassesDenials(t *testing.T) {
	for _, s := range shapes {
		w := newWorld(t, allPlans+addressLimit[:0], passing)
		r := w.send(s, by("initech"))
		pass := s == apigw.HTTP1 || s == apigw.HTTP2
		if r.allow != pass || r.decision != "suspended_tenant" || r.context["httpStatus"] != 403.0 {
			t.Errorf("%s: allow %v, %s; want it to pass: %v", s, r.allow, r.text, pass)
		}
		if none := w.send(s, with()); none.allow != pass || pass != (none.decision == "no_credential") {
			t.Errorf("%s, no credential: allow %v, %s; want it to pass: %v", s, none.allow, none.decision, pass)
		}
	}
}

// Guarantees which counter a token, a key, or both have in limits per subject, key and claim.
func TestHandlerCountsByIdentity(t *testing.T) {
	person := func(sub, region string) string {
		by := tokentest.With("tenant_id", "people", "sub", sub)
		if region != "" {
			by["region"] = region
		}
		return signer.Sign(tokentest.Claims(noon, by))
	}
	key := []string{"X-Api-Key", identity.ExampleKey("people")}
	for _, s := range without(apigw.RESTToken) {
		w := newWorld(t, allPlans)
		ask := func(c call, decision, binding string) {
			t.Helper()
			if r := w.want(s, c, decision); r.context["binding"] != binding {
				t.Errorf("%s: bound by %v, want %s: %s", s, r.context["binding"], binding, r.text)
			}
		}
		ask(bearing(person("ann", "eu")), "allowed", "each")
		ask(bearing(person("ann", "eu"), key...), "allowed", "each")
		ask(bearing(person("ann", "eu"), key...), "limited", "each") // two for each person, by whatever
		ask(bearing(person("bob", "eu"), key...), "allowed", "regional")
		ask(bearing(person("bob", "us"), key...), "allowed", "each")
		ask(bearing(person("cid", "us"), key...), "limited", "machine") // three for each key
		ask(bearing(person("cid", "eu")), "allowed", "regional")        // the fourth of the region
		ask(bearing(person("dan", "eu")), "limited", "regional")
		ask(bearing(person("dan", "")), "allowed", "machine") // of no region, and the third without a key: they share a counter
	}
}

// Guarantees that two tenants do not meet in a counter because a separator of ours stands in a name: ("a/b") and ("a", "b").
func TestHandlerKeepsTenantsApart(t *testing.T) {
	names := [][2]string{{"a", "b/ci"}, {"a/b", "ci"}, {"a:b", "c"}, {"a", "b:c"}, {"a|b", "c"}, {"a%2Fb", "ci"}, {"A", "b/ci"}, {"a,", "b"}}
	text := "plans: [ { id: p, limits: [ { id: l, per: subject, algorithm: fixed_window, threshold: 1, period: 1h } ] } ]\ntenants:\n"
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
			c := bearing(signer.Sign(tokentest.Claims(noon, tokentest.With("tenant_id", n[0], "sub", n[1]))))
			r := w.want(s, c, "allowed")
			principals[fmt.Sprint(r.context["tenant"], "/", r.context["subject"])] = true
			if s != apigw.HTTP2 && r.principal != fmt.Sprint(r.context["tenant"], "/", r.context["subject"]) {
				t.Errorf("principal %q of %q", r.principal, n)
			}
			w.want(s, c, "limited")
		}
		if len(principals) != len(names) {
			t.Errorf("%s: %d names of %d callers: %v", s, len(principals), len(names), principals)
		}
	}
}

// Guarantees that what an issuer puts into names comes out as one header value of plain ASCII, in the answer and in the log: no
// name ends a line, adds a header, or opens a JSON string.
func TestHandlerEncodesNames(t *testing.T) {
	nasty := []string{"evil X-Admin: 1", `a","isAuthorized":true,"b":"`, "é\u2028", "<script>", "${jndi:x}", strings.Repeat("ü", 64)}
	text := "plans: [ { id: p, limits: [ { id: l, algorithm: fixed_window, threshold: 1, period: 1h } ] } ]\ntenants:\n"
	for _, n := range nasty {
		quoted, _ := json.Marshal(n)
		text += fmt.Sprintf("  - { id: %s, plan: p }\n", quoted)
	}
	for _, s := range shapes {
		w := newWorld(t, text, func(c *setting) { c.handler.LogDenials = true })
		for _, n := range nasty {
			c := bearing(signer.Sign(tokentest.Claims(noon, tokentest.With("tenant_id", n, "sub", n))))
			for _, want := range []string{"allowed", "limited"} {
				r := w.want(s, c, want)
				if r.context["tenant"] != apigw.EncodeName(n) || r.context["subject"] != apigw.EncodeName(n) {
					t.Errorf("%s: %q is %v", s, n, r.context["tenant"])
				}
				for name, v := range r.context {
					if text, ok := v.(string); ok && strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' }) {
						t.Errorf("%s: %s holds %q", s, name, text)
					}
				}
			}
		}
		for _, breaks := range []string{"acme\r\nX-Admin: 1", "acme\x00", "acme\u0085"} {
			for _, claim := range []string{"tenant_id", "sub"} {
				by := tokentest.With("tenant_id", nasty[1], "sub", "x")
				by[claim] = breaks
				w.want(s, bearing(signer.Sign(tokentest.Claims(noon, by))), "unauthorized")
			}
		}
		if lines := w.records("denied"); len(lines) != len(nasty) || lines[0]["tenant"] != "evil%20X-Admin%3A%201" || lines[0]["level"] != "INFO" {
			t.Errorf("%s: %d lines, the first %v", s, len(lines), lines)
		}
	}
}

// Guarantees that no spelling of a path gets around the limit of an endpoint, as each gateway hands it on: HTTP APIs with the
// stage or a base path in front, and with a path in the ARN that is decoded where the sent one is not.
func TestHandlerPathAliases(t *testing.T) {
	const text = `
plans:
  - id: p
    limits:
      - { id: put, match: { methods: [PUT], pathPattern: "/v1/organizations/{orgId}/product/*" }, algorithm: fixed_window, threshold: 3, period: 1h }
tenants: [ { id: acme, plan: p } ]
`
	const plain = "/v1/organizations/o1/product/42"
	for _, c := range []call{
		{path: plain + "/"}, {path: "//v1/organizations/o1/product/42"}, {path: "/v1//organizations///o1/product/42"}, {path: "/v1/./organizations/o1/product/42"},
		{path: "/v1/x/../organizations/o1/product/42"}, {path: "/v1/%2e/organizations/o1/product/42"}, {path: "/v1/x/%2E%2e/organizations/o1/product/42"},
		{path: "/v1/organ%69zations/o1/pr%6Fduct/42"}, {path: "/v1/organizations/o1/%70roduct/42", arn: plain}, {path: "/v1/organizations;v=1/o1/product;x/42"},
		{path: "/v1/organizations/o1%2Fproduct%2F42"}, {path: "/v1/organizations/o1%2Fproduct/42", arn: plain}, {path: "/v1%2forganizations/o1/product/42"}, {path: "/v1/organizations/o1/product/42%3Fx"},
		{path: `/v1\organizations\o1\product\42`}, {path: "/v1/organizations/o1/product/%2534%2532"}, {path: plain, base: "/shop"}, {path: plain + "/", base: "/shop/v2", arn: plain},
		{path: plain, stage: "$default"}, {path: "/v1/organizations/o1/product/é", arn: "/v1/organizations/o1/product/é"}, {path: "/v1/organizations/o1/product/%C3%A9", arn: "/v1/organizations/o1/product/é"},
		{path: "/v1/organizations/o1/product/42", method: "put"},
	} {
		for _, s := range without(apigw.WebSocket) {
			if s == apigw.RESTToken && c.method != "" {
				continue // it has the method of the ARN, which is the gateway's own spelling
			}
			w := newWorld(t, text)
			honest := by("acme")
			honest.method, honest.path = "PUT", plain
			alias := c
			alias.header = honest.header
			if alias.method == "" {
				alias.method = "PUT"
			}
			w.want(s, honest, "allowed")
			w.want(s, alias, "allowed")
			w.want(s, alias, "allowed")
			w.want(s, alias, "limited")
			w.want(s, honest, "limited")
		}
	}
	// What is another path to every server stays another one: paths are case-sensitive, and a segment more is a segment more.
	for _, other := range []string{"/V1/Organizations/o1/Product/42", plain + "/x", "/shop" + plain} {
		for _, s := range without(apigw.WebSocket) {
			w := newWorld(t, text)
			c := by("acme")
			c.method, c.path = "PUT", other
			if r := w.want(s, c, "allowed"); r.context["binding"] != nil {
				t.Errorf("%s, %s: bound by %v", s, other, r.context["binding"])
			}
		}
	}
}

// Guarantees that what a client writes into X-Forwarded-For neither makes it another address nor frees it of one, at each number
// of proxies of the operator's, on each shape that knows addresses; and that one IPv4 address is one however it is written.
func TestHandlerForgedForwardedFor(t *testing.T) {
	own := []string{"203.0.113.77", "10.0.0.1", "10.0.0.2"} // client, then the operator's proxies as they saw each other
	forged := []string{"", "1.2.3.4", "::ffff:198.51.100.9", "garbage", ",,,", "1.2.3.4, 5.6.7.8, 9.9.9.9, 7.7.7.7", "[::1]:80", strings.Repeat("9", 300), "\"_hidden\"", "127.0.0.1"}
	for hops := range 3 {
		for _, s := range without(apigw.RESTToken) {
			w := newWorld(t, allPlans+addressLimit, func(c *setting) { c.authorizer.TrustedHops = hops })
			for i, f := range forged {
				list := strings.Join(own[:hops], ", ")
				if f != "" {
					list = strings.TrimSuffix(f+", "+list, ", ")
				}
				c := with()
				if list != "" {
					c = with("X-Forwarded-For", list)
				}
				if i%2 == 1 && hops == 0 {
					c.peer = "::ffff:198.51.100.9" // the same address in other words
				}
				want := "unauthorized"
				if i >= 2 {
					want = "ip_limited"
				}
				w.want(s, c, want)
			}
			if hops > 0 {
				own := append([]string{"203.0.113.78"}, own[1:hops]...)
				w.want(s, with("X-Forwarded-For", "203.0.113.77, "+strings.Join(own, ", ")), "unauthorized") // another client
			}
		}
	}
}

// Guarantees that trusted hops are the operator's own proxies, in an event as API Gateway makes it: with its peer's address as the last
// entry. Were that one taken for a proxy of the operator, one proxy would put all clients into its own counter.
func TestHandlerLeavesOutTheGateway(t *testing.T) {
	const gateways = "198.51.100.9" // the peer of the events, which the gateway appends
	for hops, through := range map[int]string{1: "%s, " + gateways, 2: "%s, 10.0.0.1, " + gateways} {
		for _, s := range without(apigw.RESTToken) {
			w := newWorld(t, allPlans+addressLimit, func(c *setting) { c.authorizer.TrustedHops = hops })
			for i, client := range []string{"203.0.113.77", "1.2.3.4, 203.0.113.77", "5.6.7.8, 203.0.113.77", "203.0.113.78", "203.0.113.79"} {
				want := "unauthorized"
				if i == 2 {
					want = "ip_limited"
				}
				c := with("X-Forwarded-For", fmt.Sprintf(through, client))
				c.peer = gateways
				w.want(s, c, want)
			}
		}
	}
}

// Guarantees that IPv6 clients, who can pick any address of their /64, are counted by it.
func TestHandlerCountsIPv6ByNetwork(t *testing.T) {
	for _, s := range without(apigw.RESTToken) {
		w := newWorld(t, allPlans+addressLimit)
		for i, peer := range []string{"2001:db8:1:2::99", "2001:db8:1:2:ffff::1", "2001:db8:1:2::1", "2001:db8:1:3::1"} {
			want := "unauthorized"
			if i == 2 {
				want = "ip_limited"
			}
			w.want(s, call{peer: peer}, want)
		}
	}
}

// Guarantees that what is not an authorizer's event is refused with an error that names the field and holds nothing of the event,
// that it is logged, at most once in a second, and counted.
func TestHandlerRefusesOtherEvents(t *testing.T) {
	w := newWorld(t, allPlans)
	for _, event := range []string{"", "null", "[]", `{"Records":[{"body":"s3cr3t"}]}`, `{"type":"TOKEN","authorizationToken":"s3cr3t"`, `{"version":"2.0","rawPath":"/s3cr3t","requestContext":{}}`,
		`{"type":"REQUEST","requestContext":{},"methodArn":"s3cr3t"}`, strings.Repeat("[", 1<<20), string(bearing("s3cr3t"+strings.Repeat("a", 1<<20)).event(t, apigw.RESTToken))} {
		out, err := w.Invoke(context.Background(), []byte(event))
		if out != nil || !errors.Is(err, apigw.ErrEvent) || strings.Contains(err.Error(), "s3cr3t") || err.Error() == "Unauthorized" {
			t.Errorf("%.40s: %s, %v", event, out, err)
		}
	}
	w.pass(time.Second)
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

// Guarantees that a panic of ours ends one request and not the environment, lets nobody through, and that what it was about is
// told in the log by place and not by value.
func TestHandlerCatchesPanics(t *testing.T) {
	var index []int
	for _, p := range []any{"s3cr3t", errors.New("s3cr3t of 203.0.113.7"), 7, fault(func() { _ = index[len(index)+3] })} {
		w := newWorld(t, allPlans, passing)
		w.broken.panics = p
		for _, s := range shapes {
			out, err := w.Invoke(context.Background(), by("acme").event(t, s))
			if out != nil || err == nil || err.Error() == "Unauthorized" || secretIn(err.Error()) != "" || !strings.Contains(err.Error(), "urn:uuid:") {
				t.Errorf("%s: %s, %v", s, out, err)
			}
		}
		w.broken.panics = nil
		w.want(apigw.HTTP2, by("acme"), "allowed")
		lines := w.records("a request made the authorizer panic")
		if len(lines) != len(shapes) || !strings.Contains(fmt.Sprint(lines[0]["stack"]), "Routed:") {
			t.Errorf("%d lines: %v", len(lines), lines)
		}
		if n, _ := w.metrics(); n["panics"] != 5 || n["decisions"] != 1 {
			t.Errorf("%v panics, %v decisions", n["panics"], n["decisions"])
		}
	}
}

// fault is what f panics with.
func fault(f func()) (p any) {
	defer func() { p = recover() }()
	f()
	return nil
}

// Guarantees what is counted: each decision by its outcome, which limit denied, once for each shadow that would have, cold starts
// once, a stale configuration, how full the fullest counter of a plan is.
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
		w.want(apigw.RESTRequest, by("acme"), "allowed")
	}
	w.broken.stale = true
	w.want(apigw.HTTP2, by("acme"), "limited")
	w.want(apigw.HTTP1, with(), "unauthorized")
	w.want(apigw.HTTP1, with(), "unauthorized")
	w.want(apigw.HTTP1, by("acme"), "ip_limited")
	n, limits := w.metrics()
	for name, want := range map[string]float64{"decisions": 7, "decisions_allowed": 3, "decisions_limited": 1, "decisions_ip_limited": 1, "decisions_no_credential": 2,
		"enforce_denied": 2, "shadow_denied": 2, "cold_starts": 1, "config_stale": 1, "over_admission_ratio": 1} {
		if n[name] != want {
			t.Errorf("%s = %v, want %v", name, n[name], want)
		}
	}
	if limits["hour"]["denied"] != 1 || limits["ip:per-address"]["denied"] != 1 || limits["strict"]["shadow_denied"] != 2 || len(limits) != 3 {
		t.Errorf("limits: %v", limits)
	}
	if !strings.Contains(w.lines.String(), `"limiter_latency":{"Values":[`) {
		t.Errorf("no latency of the limiter in %s", w.lines)
	}
}

// Guarantees what a log tells of a request: its ids, its route, why, and the gateway's or Lambda's trace; and that denials are
// lines for those who ask for them, and a flood without credentials one in a second.
func TestHandlerLogs(t *testing.T) {
	w := newWorld(t, allPlans, func(c *setting) {
		c.level = slog.LevelInfo
		c.handler.InvocationID = func(ctx context.Context) string { return ctx.Value(invocation{}).(string) }
	})
	ctx := context.WithValue(context.Background(), invocation{}, "lambda-7")
	//lint:ignore SA1029 the key is aws-lambda-go's
	ctx = context.WithValue(ctx, "x-amzn-trace-id", "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1")
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for range 10 {
		out, err := w.Invoke(ctx, with("Traceparent", parent).event(t, apigw.HTTP2))
		if err != nil || !strings.Contains(string(out), `{"isAuthorized":false,`) {
			t.Fatalf("%s, %v", out, err)
		}
		if _, err = w.Invoke(ctx, by("expired").event(t, apigw.RESTToken)); err == nil {
			t.Fatal("an expired key is accepted")
		}
		if _, err = w.Invoke(ctx, by("initech").event(t, apigw.HTTP2)); err != nil {
			t.Fatal(err)
		}
	}
	lines := w.records("not identified")
	if len(lines) != 2 || len(w.records("denied")) != 0 {
		t.Fatalf("%d lines, and of denials %d: %s", len(lines), len(w.records("denied")), w.log)
	}
	for name, want := range map[string]any{"level": "INFO", "cell": "eu-1", "outcome": "no_credential", "reason": "no_credential", "request_id": "UaB3eExampleDubA=", "route": "POST /search",
		"shape": "http_2", "stage": "prod", "api": api(apigw.HTTP2), "xray_trace_id": "1-69206f10-5f84a1c21bd2f3b94c0e7a66", "trace_id": "69206f105f84a1c21bd2f3b94c0e7a66",
		"traceparent_id": "0af7651916cd43dd8448eb211c80319c", "lambda_request_id": "lambda-7"} {
		if lines[0][name] != want {
			t.Errorf("%s = %v, want %v", name, lines[0][name], want)
		}
	}
	if lines[1]["reason"] != "key_expired" || lines[1]["xray_trace_id"] != "1-5759e988-bd862e3fe1be46a994272793" { // a TOKEN event has no trace
		t.Errorf("the second line: %v", lines[1])
	}
	if _, err := w.Invoke(ctx, []byte("{}")); err == nil || len(w.records("the event is not answered")) != 1 {
		t.Errorf("an empty event: %v, %s", err, w.log)
	}
	if got := w.records("the event is not answered")[0]; got["xray_trace_id"] != "1-5759e988-bd862e3fe1be46a994272793" || got["lambda_request_id"] != "lambda-7" {
		t.Errorf("an empty event: %v", got)
	}
	t.Setenv("_X_AMZN_TRACE_ID", "Root=1-00000001-bd862e3fe1be46a994272793")
	w.pass(time.Second)
	if _, err := w.Invoke(context.WithValue(context.Background(), invocation{}, ""), with().event(t, apigw.RESTToken)); err == nil {
		t.Error("no credential is one")
	}
	lines = w.records("not identified")
	if n := len(lines); n != 4 && n != 3 || lines[n-1]["xray_trace_id"] != "1-00000001-bd862e3fe1be46a994272793" {
		t.Errorf("%d lines, the last %v", n, lines[n-1])
	}
}

type invocation struct{}

// Guarantees that what an operator has to mend is a warning that says why, once in a second however many calls suffer from it; and
// what a denial's line tells where denials are wanted in the log.
func TestHandlerWarns(t *testing.T) {
	w := newWorld(t, allPlans, func(c *setting) { c.level, c.handler.LogDenials = slog.LevelInfo, true })
	w.broken.key, w.broken.stale = errNotLoaded, true
	for range 2 {
		for range 5 {
			w.want(apigw.HTTP2, by("acme"), "unidentified")
		}
		w.pass(time.Second)
	}
	for message, level := range map[string]string{"could not be decided": "WARN", "decided on a configuration that is older than it may be": "WARN"} {
		lines := w.records(message)
		if len(lines) != 2 || lines[0]["level"] != level || lines[1]["more"] != 4.0 {
			t.Errorf("%s: %v; want two lines, the second with 4 more", message, lines)
		}
	}
	if line := w.records("could not be decided")[0]; !strings.Contains(fmt.Sprint(line["error"]), "tenant documents") || line["outcome"] != "unidentified" {
		t.Errorf("why is not told: %v", line)
	}
	w.broken.key = nil
	for range 5 {
		w.want(apigw.RESTRequest, by("acme"), "allowed")
	}
	w.want(apigw.RESTRequest, by("acme"), "limited")
	lines := w.records("denied")
	if len(lines) != 1 || lines[0]["limit"] != "burst" || lines[0]["tenant"] != "acme" || lines[0]["key_id"] != "k-acme" || lines[0]["plan"] != "small" ||
		lines[0]["route"] != "/v1/organizations/{orgId}/product/{id}" || len(fmt.Sprint(lines[0]["source"])) != 32 {
		t.Errorf("a denial: %v", lines)
	}
}

// Guarantees that a hook of the operator's that panics, even while a panic is logged, ends a request and no more.
func TestHandlerSurvivesItsHooks(t *testing.T) {
	w := newWorld(t, allPlans, func(c *setting) { c.handler.InvocationID = func(context.Context) string { panic("s3cr3t") } })
	for range 3 {
		if out, err := w.Invoke(context.Background(), by("initech").event(t, apigw.HTTP2)); out != nil || err == nil {
			t.Errorf("Invoke = %s, %v", out, err)
		}
	}
	w.want(apigw.HTTP2, by("acme"), "allowed")
}

// Guarantees that a thing which is due gets done beside a decision and before its answer, not at each, never twice at once; that one
// which hangs delays the answer by BesideWait and no more and keeps nobody else from being done; that its panic is its own.
func TestHandlerBeside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var beats, hung, running atomic.Int64
		w := newWorld(t, allPlans, func(c *setting) {
			c.authorizer.Now, c.tokens.Issuers = time.Now, nil
			c.handler.Deadline = 10 * time.Second
			c.handler.Beside = []func(context.Context, time.Time){
				func(ctx context.Context, _ time.Time) {
					if running.Add(1) > 1 {
						t.Error("it runs twice")
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
					beats.Add(1)
				},
				func(context.Context, time.Time) { panic("s3cr3t") },
			}
		})
		ask := func(most time.Duration, wantBeats int64) {
			t.Helper()
			began := time.Now()
			w.send(apigw.HTTP2, by("acme"))
			if took := time.Since(began); took > most || beats.Load() != wantBeats {
				t.Errorf("after %v: %d beats; want %d after at most %v", took, beats.Load(), wantBeats, most)
			}
		}
		ask(authorizer.BesideWait, 1)
		ask(0, 1) // not yet due again
		<-time.After(authorizer.BesideEvery)
		ask(authorizer.BesideWait, 2)
		if hung.Load() != 1 {
			t.Errorf("what hangs was begun %d times, want once", hung.Load())
		}
		<-time.After(10 * time.Second) // it is given up
		ask(authorizer.BesideWait, 3)
		if hung.Load() != 2 || len(w.records("a request made the authorizer panic")) != 3 {
			t.Errorf("what hangs was begun %d times, want again: %s", hung.Load(), w.log)
		}
		<-time.After(11 * time.Second)
		synctest.Wait()
	})
}

// Guarantees that an issuer can change its key: tokens of the new one pass after the cooldown at most, and those of the one that it
// took back stop, remembered or not.
func TestHandlerFollowsKeyRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, allPlans, func(c *setting) { c.authorizer.Now = time.Now })
		next := tokentest.NewEC("k2", elliptic.P256())
		text := func(s *tokentest.Signer) call {
			return bearing(s.Sign(tokentest.Claims(time.Now(), tokentest.With("exp", time.Now().Add(24*time.Hour).Unix(), "tenant_id", "globex"))))
		}
		old := text(signer)
		w.want(apigw.HTTP2, old, "allowed")
		w.authority.Set(tokentest.Answer(http.StatusOK, tokentest.Document(next)))
		w.want(apigw.HTTP2, text(next), "unauthorized") // within the cooldown nobody is asked
		<-time.After(token.DefaultCooldown)
		w.want(apigw.HTTP2, text(next), "allowed")
		w.want(apigw.HTTP2, old, "unauthorized")
	})
}

// Guarantees that a decision ends when its deadline does, with the answer that there is without what was waited for.
func TestHandlerDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, allPlans, func(c *setting) {
			c.authorizer.Now = time.Now
			c.handler.Deadline, c.tokens.Wait = 300*time.Millisecond, 20*time.Second
		})
		w.authority.Set(tokentest.Hang)
		began := time.Now()
		w.want(apigw.HTTP2, bearing(signer.Sign(tokentest.Claims(began, nil))), "unidentified")
		if took := time.Since(began); took != 300*time.Millisecond {
			t.Errorf("it took %v, want 300ms", took)
		}
	})
}

// Guarantees that a context never outgrows what API Gateway takes, whatever a plan and names hold, that the outcome and who is
// limited survive, and that what is left out is said (the simple response has room for the lists of limits as long as they get).
func TestHandlerAnswerFits(t *testing.T) {
	name := strings.Repeat("ü", 64) // 128 bytes
	var text strings.Builder
	text.WriteString("plans:\n  - id: p\n    limits:\n")
	for i := range 2000 {
		pattern := "/**"
		if i >= 900 {
			pattern = fmt.Sprintf("/other/%d", i)
		}
		fmt.Fprintf(&text, "      - { id: %s-%04d, match: { pathPattern: %q }, algorithm: fixed_window, threshold: %d, period: 1h }\n", strings.Repeat("x", 59), i, pattern, 1+i%2)
	}
	fmt.Fprintf(&text, "tenants: [ { id: %q, plan: p } ]\n", name)
	for _, s := range without(apigw.WebSocket) {
		w := newWorld(t, text.String())
		c := bearing(signer.Sign(tokentest.Claims(noon, tokentest.With("tenant_id", name, "sub", name))))
		c.path = "/" + strings.Repeat("%20a", 500)
		for _, want := range []string{"allowed", "limited"} {
			r := w.want(s, c, want)
			if len(r.text) < 4000 || r.context["tenant"] != apigw.EncodeName(name) || s != apigw.HTTP2 && r.context["leftOut"] == nil || r.context["binding"] == nil || r.context["rateLimitLimit"] == nil {
				t.Errorf("%s: %d bytes: %s", s, len(r.text), r.text)
			}
			if want == "limited" && (r.context["retryAfter"] == nil || r.context["problemType"] == nil) {
				t.Errorf("%s: %s", s, r.text)
			}
		}
	}
}

// Guarantees that one handler serves many requests at once, as a Lambda with several per environment does: exactly as many pass as the
// plan says, each answer is about its own request, and every one is counted.
func TestHandlerConcurrency(t *testing.T) {
	const text = "plans: [ { id: p, limits: [ { id: l, algorithm: fixed_window, threshold: 500, period: 1h } ] } ]\ntenants: [ { id: acme, plan: p }, { id: globex, plan: p } ]\n"
	w := newWorld(t, text, func(c *setting) {
		c.level = slog.LevelError
		c.handler.Beside = []func(context.Context, time.Time){func(context.Context, time.Time) {}}
	})
	person := bearing(signer.Sign(tokentest.Claims(noon, tokentest.With("tenant_id", "globex"))))
	events := map[string][][]byte{}
	for _, s := range shapes {
		events["acme"] = append(events["acme"], by("acme").event(t, s))
		events["globex"] = append(events["globex"], person.event(t, s))
	}
	bad := with("X-Api-Key", "slk_x").event(t, apigw.RESTRequest)
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
				if _, err := w.Invoke(context.Background(), bad); err != apigw.ErrUnauthorized { //nolint:errorlint // unwrapped
					t.Errorf("a bad key: %v", err)
				}
				w.pass(time.Millisecond)
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

// Guarantees that a handler that could not work is not made, and that the error names the field.
func TestNewHandlerRefuses(t *testing.T) {
	w := newWorld(t, allPlans)
	z, err := authorizer.New(authorizer.Config{Source: &w.broken, Store: w.store})
	if err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]authorizer.HandlerConfig{
		"Authorizer is missing": {}, "does not Measure": {Authorizer: z, Recorder: w.recorder}, "Beside[0]": {Authorizer: z, Beside: make([]func(context.Context, time.Time), 1)},
		"Deadline 1ms": {Authorizer: z, Deadline: time.Millisecond}, "Deadline -1ns": {Authorizer: z, Deadline: -1},
	} {
		if _, err := authorizer.NewHandler(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want one with %q", err, want)
		}
	}
}

// Guarantees that a path with more readings than are followed is refused, by every kind of API that tells a path: it would
// be charged to every limit, and more than a store can decide at once are decided by onStoreFailure.
func TestPathsWithTooManyReadings(t *testing.T) {
	odd := "/%" + strings.Repeat("25", 70) + "41/../product/1"
	for _, s := range without(apigw.RESTToken) {
		if s == apigw.WebSocket { // its $connect has no path
			continue
		}
		w := newWorld(t, allPlans)
		c := by("acme")
		c.path = odd
		if r := w.send(s, c); r.allow || r.decision != "bad_request" {
			t.Errorf("%s: allow %v, %s: %s", s, r.allow, r.decision, r.text)
		}
	}
}
