package middleware_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/middleware"
)

// Parts of a plans file.
const (
	onlyAddresses = "ipLimits: [ { id: per-address, algorithm: token_bucket, rate: 1, period: 1h, burst: 100 } ]\n"
	onePlan       = "plans: [ { id: p, limits: [ { id: burst, algorithm: token_bucket, rate: 1, period: 1h, burst: " +
		"100 } ] } ]\n"
	oneTenant = "tenants: [ { id: acme, plan: p } ]\n"
	anonymous = "anonymousPlan: p\n"
)

// theHosts are credentials of the host application, which a limiter without issuers and keys does not know.
var theHosts = map[string][]string{
	"nothing":               nil,
	"an opaque bearer":      {"Authorization", "Bearer the-hosts-own-token"},
	"a JWT":                 {"Authorization", "Bearer eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJ1MSJ9.c2lnbmF0dXJl"},
	"basic":                 {"Authorization", "Basic eDp5"},
	"a scheme without text": {"Authorization", "Bearer"},
	"a key of the host":     {"X-Api-Key", "the-hosts-own-key"},
	"what looks like ours":  {"X-Api-Key", "slk_x"},
	"two keys":              {"X-Api-Key", "a", "X-Api-Key", "b"},
	"a bearer and a key":    {"Authorization", "Bearer a", "X-Api-Key", "b"},
}

// Guarantees that a limiter without issuers and keys does not judge credentials: they reach the handler as they were
// sent. With an issuer or a key, a bad credential is refused, and never anonymous.
func TestWhoIsIdentified(t *testing.T) {
	key := "keys: [ { id: k, tenant: acme, pepper: dev, hash: " +
		identity.HashKey(identity.DevPepper(), identity.ExampleKey("acme")) + " } ]\n"
	revoked := strings.Replace(key, "id: k,", "id: k, revoked: true,", 1)
	issuers := []sluice.Issuer{{Issuer: "https://id.example", Audiences: []string{"api"},
		JWKSURL: "https://id.example/keys", AllTenants: true}}
	const passes, refused = sluice.Allowed, sluice.NoCredential
	for _, c := range []struct {
		name, plans string
		issuers     []sluice.Issuer
		without     sluice.Reason // of a call without a credential
		with        sluice.Reason // of a call with a credential of the host
	}{
		{"addresses only", onlyAddresses, nil, passes, passes},
		{"routes only", `routes: [ { pathPattern: "/product/*" } ]`, nil, passes, passes},
		{"an anonymousPlan", onlyAddresses + onePlan + anonymous, nil, passes, passes},
		{"an anonymousPlan and tenants", onePlan + oneTenant + anonymous, nil, passes, passes},
		{"plans that nobody can be found to have", onlyAddresses + onePlan, nil, refused, refused},
		{"tenants that nobody can be found to be", onlyAddresses + onePlan + oneTenant, nil, refused, refused},

		{"a key", onePlan + oneTenant + key, nil, refused, sluice.BadCredential},
		{"a key and an anonymousPlan", onePlan + oneTenant + key + anonymous, nil, passes, sluice.BadCredential},
		{"a revoked key and an anonymousPlan", onePlan + oneTenant + revoked + anonymous, nil, passes,
			sluice.BadCredential},
		{"an issuer", onePlan + oneTenant, issuers, refused, sluice.BadCredential},
		{"an issuer and addresses only", onlyAddresses, issuers, refused, sluice.BadCredential},
		{"an issuer and an anonymousPlan", onePlan + anonymous, issuers, passes, sluice.BadCredential},
		{"an issuer and a key", onePlan + oneTenant + key, issuers, refused, sluice.BadCredential},
	} {
		t.Run(c.name, func(t *testing.T) {
			limiter, err := sluice.New(sluice.Config{PlansData: []byte(c.plans), Issuers: c.issuers,
				Log:     slog.New(slog.DiscardHandler),
				Peppers: map[string][]byte{"dev": identity.DevPepper()}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = limiter.Close(t.Context()) })
			for what, header := range theHosts {
				want := c.with
				if header == nil {
					want = c.without
				}
				var got sluice.Reason
				var why error
				var seen http.Header
				var who middleware.Caller
				h := middleware.Limit(limiter,
					middleware.WithObserver(func(_ *http.Request, d *sluice.Decision) { got, why = d.Reason, d.Err }))(
					http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
						seen = r.Header
						who, _ = middleware.FromContext(r.Context())
					}))
				w := httptest.NewRecorder()
				r := request(t, "GET", "/product/1", header...)
				r.RemoteAddr = "192.0.2.1:4711"
				h.ServeHTTP(w, r)
				if got != want || (w.Code == http.StatusOK) != (want == passes) || (seen != nil) != (want == passes) {
					t.Errorf("%s: %d, %s, want %s", what, w.Code, got, want)
					continue
				}
				if said := c.with == refused || want == sluice.BadCredential; (why != nil) != said {
					t.Errorf("%s: the decision's error is %v", what, why)
				}
				if want != passes {
					continue
				}
				for i := 0; i < len(header); i += 2 {
					if values := seen[header[i]]; len(values) == 0 || values[0] != r.Header[header[i]][0] {
						t.Errorf("%s: the handler sees %s %q", what, header[i], values)
					}
				}
				if !who.Anonymous || who.Tenant != "" {
					t.Errorf("%s: the handler gets the caller %+v", what, who)
				}
			}
		})
	}
}

// Guarantees that addresses are limited whatever credential is sent.
func TestOnlyAddressesAreLimited(t *testing.T) {
	limiter, err := sluice.New(sluice.Config{PlansData: []byte(strings.Replace(onlyAddresses, "100", "2", 1)),
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = limiter.Close(t.Context()) })
	h := middleware.Limit(limiter)(ok)
	for i, want := range []int{200, 200, 429, 429} {
		r := request(t, "GET", "/", "Authorization", "Bearer the-hosts-own-token-"+string(rune('a'+i)))
		r.RemoteAddr = "192.0.2.1:4711"
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("call %d: %d, want %d: %s", i, w.Code, want, w.Body)
		}
	}
}
