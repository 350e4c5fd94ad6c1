//go:build unix

package endtoend_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

const wide = `
plans:
  - { id: pro, limits: [ { id: burst, tiers: [ { period: ` + year + `, threshold: 1000000 } ] } ] }
tenants:
  - { id: acme, plan: pro }
  - { id: globex, plan: pro }
`

// Guarantees that the tenant is that of the credential, whatever headers a client sends. The backend gets it from
// X-Sluice-Caller and from the middleware. A service behind the middleware gets Sluice's own headers or none.
func TestTenantHeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t, wide, "acme")
	w.redis()
	w.env["SLUICE_PASS_DENIALS"] = apiID
	w.start(1)
	forged := []string{
		"X-Sluice-Tenant", "globex", "x-sluice-tenant", "globex", "X-Sluice-Caller", "d=allowed;t=globex;s=root;p=pro",
		"x-sluice-caller", "d=allowed;t=globex",
		"X-Sluice-Subject", "root", "X-Sluice-Plan", "unlimited", "X-Sluice-Key-Id", "k9", "X-Sluice-Remaining",
		"999999", "X-Sluice-Problem", "{}",
		"X-Tenant-Id", "globex", "X-Ratelimit-Limit", "999999", "Ratelimit", `"burst";r=999999`,
		"X-Amzn-Request-Context", `{"authorizer":{"tenant":"globex"}}`,
	}
	for kind, a := range map[string]*api{
		"built-in REST": w.serve(builtin(t, "rest"), nil),
		"built-in HTTP": w.serve(builtin(t, "http"), nil),
		"HTTP, service": w.serve(fmt.Sprintf(httpService, w.backend()), nil),
		"HTTP, Lambda":  w.serve(httpLambda2, w.function(behind)),
		"REST, Lambda":  w.serve(restLambda, w.function(behind)),
	} {
		// No credential, with anything else. The built-in HTTP API shows what the middleware would get.
		if kind == "built-in HTTP" {
			if got := a.wantStatus(200, "GET", "/product/1", forged...); !strings.Contains(got.body,
				"d=no_credential") ||
				strings.Contains(got.body, "t=globex") {
				t.Errorf("%s, without a credential: %s", kind, got.body)
			}
		} else {
			a.wantStatus(401, "GET", "/product/1", forged...)
		}
		// Naming X-Sluice-… in Connection would make a proxy remove these headers.
		got := a.wantStatus(200, "GET", "/product/1", append(append(w.key("acme"), forged...), "Connection",
			"X-Sluice-Caller, X-Sluice-Tenant")...)
		if strings.HasPrefix(kind, "built-in") {
			if !strings.Contains(got.body, `"tenant": "acme"`) || strings.Contains(got.body, `t=globex`) {
				t.Errorf("%s: %s", kind, got.body)
			}
			continue
		}
		s := got.seen(t)
		if s.Tenant != "acme" || s.Subject != "ci" || s.Plan != "pro" || s.KeyID != "k0" {
			t.Errorf("%s: the backend got %+v", kind, s)
		}
		if got.header.Get("X-Ratelimit-Limit") != "1000000" {
			t.Errorf("%s: the client got the headers %v", kind, got.header)
		}
		if kind == "HTTP, service" {
			for name, value := range s.Header {
				if strings.HasPrefix(strings.ToLower(name), "x-sluice-") && (strings.Contains(value, "globex") ||
					strings.Contains(value, "999999") || strings.Contains(value, "unlimited")) {
					t.Errorf("%s: the backend got %s: %s", kind, name, value)
				}
			}
		}
	}
}

// Guarantees that the name of a tenant, subject or limit cannot add a header or a line: names are percent-encoded in
// all output. A plans file with names that are not allowed stops the function, and then nobody is admitted.
func TestHeaderInjection(t *testing.T) {
	t.Parallel()
	evil := []string{"é\u2028%0d%0aX-Injected: 1", `a", "injected": "1`, "a\u00a0b, c", "${context.authorizer.caller}",
		"$context.authorizer.tenant"}
	plans := "plans: [ { id: pro, limits: [ { id: burst, tiers: [ { period: " + year +
		", threshold: 1 } ] } ] } ]\ntenants:\n"
	for _, name := range evil {
		plans += fmt.Sprintf("  - { id: %q, plan: pro }\n", name)
	}
	w := newWorld(t, plans)
	w.redis()
	w.env["SLUICE_PASS_DENIALS"] = apiID
	ours := newSigner("ours")
	w.issuer(ours)
	w.start(1)
	service, rest := w.serve(fmt.Sprintf(httpService, w.backend()), nil), w.serve(restAnswered(t), w.function(behind))
	for _, name := range evil {
		header := bearer(ours.Sign(tokentest.Claims(time.Now(), tokentest.With("tenant_id", name, "sub", name))))
		got := service.wantStatus(200, "GET", "/product/1", header...)
		if s := got.seen(t); s.Tenant != name || s.Subject != name || s.Header["X-Injected"] != "" {
			t.Errorf("for the tenant %q the backend got %+v", name, s)
		}
		for kind, denied := range map[string]*reply{"HTTP": service.wantStatus(429, "GET", "/product/1", header...),
			"REST": rest.wantStatus(429, "GET", "/product/1", header...)} {
			wantDenial(t, denied)
			if denied.header.Get("X-Injected") != "" || strings.Contains(denied.body, "injected") {
				t.Errorf("%s of %q: %s", kind, name, denied)
			}
		}
	}
	// A token may contain any text, but there is no tenant with such a name.
	for _, name := range []string{"acme\r\nX-Injected: 1", "acme\nx", "acme\x00", "\x1b[31macme"} {
		header := bearer(ours.Sign(tokentest.Claims(time.Now(), tokentest.With("tenant_id", name))))
		for _, a := range []*api{service, rest} {
			if got := a.send("GET", "/product/1", header...); got.status != 401 && got.status != 403 &&
				got.status != 429 || got.header.Get("X-Injected") != "" {
				t.Errorf("a tenant %q: %s", name, got)
			}
		}
	}
	for _, l := range w.output() {
		if strings.ContainsAny(l, "\x00\x1b\r") {
			t.Errorf("a line has a control character: %q", l)
		}
	}

	for _, bad := range []string{`plans: [ { id: pro, limits: [ { id: "burst\r\nX-Injected: 1", tiers: [ { period: ` +
		`1s, threshold: 1 } ] } ] } ]`,
		"plans: [ { id: pro, limits: [ { id: burst, tiers: [ { period: 1s, threshold: 1 } ] } ] } ]\ntenants: [ { " +
			"id: \"acme\\r\\nX-Injected: 1\", plan: pro } ]"} {
		w := newWorld(t, bad)
		w.start(1)
		got := w.serve(restAnswered(t), w.function(open)).wantStatus(500, "GET", "/product/1")
		if got.header.Get("X-Injected") != "" {
			t.Errorf("with a plans file that is not allowed, a request gets %s", got)
		}
	}
}
