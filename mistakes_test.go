package sluice_test

import (
	"bytes"
	"crypto/elliptic"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

// logged returns a limiter and what it logs.
func logged(t *testing.T, plans string) (*sluice.Limiter, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	l := open(t, plans, func(c *sluice.Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	return l, &log
}

// Guarantees that a plan id of the program that does not exist is named in the decision's error and once in the log,
// and that a program which takes plan ids from its clients cannot fill the log.
func TestUnknownPlanIsNamed(t *testing.T) {
	l, log := logged(t, hourly)
	ask := func(plan string) sluice.Decision {
		return l.Decide(t.Context(), sluice.Identity{Tenant: "globex", Plan: plan}, sluice.Request{})
	}
	for range 3 {
		if d := ask("nope"); d.Reason != sluice.NoPlan || d.Err == nil || !strings.Contains(d.Err.Error(), `"nope"`) {
			t.Fatalf("%s, error %v; want no_plan, and an error that names the plan", d.Reason, d.Err)
		}
	}
	if n := strings.Count(log.String(), "nope"); n != 1 || !strings.Contains(log.String(), "level=WARN") {
		t.Errorf("the log names the plan %d times, want one warning:\n%s", n, log)
	}
	log.Reset()
	for i := range 1000 {
		ask(fmt.Sprint(strings.Repeat("x", 1000), i))
		ask(fmt.Sprint("plan-", i))
	}
	if lines := strings.Count(log.String(), "\n"); lines == 0 || lines > 100 || log.Len() > 100*1000 {
		t.Errorf("2000 unknown plans write %d lines, %d bytes; want at most 100 lines of at most 1000 bytes", lines,
			log.Len())
	}
}

// Guarantees that the log says once why all callers are denied because nobody can be identified. A program that uses
// the middleware does not see Decision.Err.
func TestNobodyCanCallIsLogged(t *testing.T) {
	l, log := logged(t, hourly)
	for range 3 {
		if d := l.Authorize(t.Context(), sluice.Request{Peer: "192.0.2.1:1"}); d.Reason != sluice.NoCredential {
			t.Fatalf("%s, want no_credential", d.Reason)
		}
	}
	if n := strings.Count(log.String(), "nobody can call"); n != 1 || !strings.Contains(log.String(), "level=WARN") {
		t.Errorf("the log says %d times that nobody can call, want one warning:\n%s", n, log)
	}
}

// Guarantees that a refused credential has a cause, in the decision and in the log, which names the check that failed,
// holds nothing of the credential, and is logged once a second however many requests it fails.
func TestRefusedCredentialsHaveACause(t *testing.T) {
	var log bytes.Buffer
	now := noon
	issuer := httptest.NewServer(tokentest.Publishing(key, keyOfRSA))
	t.Cleanup(issuer.Close)
	stored := "keys: [ { id: gone, tenant: acme, pepper: dev, hash: " +
		identity.HashKey(identity.DevPepper(), identity.ExampleKey("gone")) + ", revoked: true } ]\n"
	l := open(t, hourly+stored, func(c *sluice.Config) {
		c.Log, c.Now = slog.New(slog.NewJSONHandler(&log, nil)), func() time.Time { return now }
		c.Peppers = map[string][]byte{"dev": identity.DevPepper()}
		c.Issuers = []sluice.Issuer{{Issuer: tokentest.Issuer, Audiences: []string{tokentest.Audience},
			JWKSURL: issuer.URL, Tenants: []string{"acme"}, Algorithms: []string{"ES256", "RS256"}}}
	})
	good := key.Sign(tokentest.Claims(noon, nil))
	for name, c := range map[string]struct{ credential, cause string }{
		"expired":       {sign("exp", noon.Add(-time.Hour).Unix()), "expired"},
		"too early":     {sign("nbf", noon.Add(time.Hour).Unix()), "not yet valid"},
		"never expires": {sign("exp", tokentest.Absent{}), "never expires"},
		"audience":      {sign("aud", "https://other.example"), `claim "aud" names none of`},
		"no slash": {sign("iss", strings.TrimSuffix(tokentest.Issuer, "/")),
			`differs from "https://login.example.com/"`},
		"issuer":       {sign("iss", "https://elsewhere.example"), "issuer is not accepted"},
		"no tenant":    {sign("tenant_id", tokentest.Absent{}), `no usable tenant in the claim "tenant_id"`},
		"other tenant": {sign("tenant_id", "umbrella"), "may not speak for the tenant"},
		"no subject":   {sign("sub", ""), `no usable subject in the claim "sub"`},
		"unknown key":  {tokentest.NewEC("other", elliptic.P256()).Sign(tokentest.Claims(noon, nil)), "unknown key"},
		"wrong key":    {tokentest.NewEC("k1", elliptic.P256()).Sign(tokentest.Claims(noon, nil)), "wrong signature"},
		"no kid":       {tokentest.NewEC("", elliptic.P384()).Sign(tokentest.Claims(noon, nil)), "algorithm"},
		"other kind": {tokentest.New("rsa", "ES256", key.Private).Sign(tokentest.Claims(noon, nil)),
			"the key that it names is not for ES256"},
		"unsigned":    {tokentest.Unsigned("k1", tokentest.Claims(noon, nil)), "algorithm"},
		"cut off":     {good[:len(good)-10] + "~", "malformed"},
		"key":         {identity.ExampleKey("nobody"), "unknown API key"},
		"revoked key": {identity.ExampleKey("gone"), "revoked API key"},
		"key cut off": {identity.ExampleKey("gone")[:20], "malformed"},
		"blank":       {"x y", "not visible ASCII"},
	} {
		t.Run(name, func(t *testing.T) {
			log.Reset()
			now = now.Add(2 * time.Second)
			for range 10 {
				d := l.Authorize(t.Context(),
					sluice.Request{Header: http.Header{"Authorization": {"Bearer " + c.credential}}})
				if d.Reason != sluice.BadCredential || d.Err == nil || !strings.Contains(d.Err.Error(), c.cause) {
					t.Fatalf("%s, %v, want %s", d.Reason, d.Err, c.cause)
				}
				for _, part := range append(strings.Split(c.credential, "."), "umbrella", "elsewhere", "user-1") {
					if strings.Contains(d.Err.Error()+log.String(), part) && len(part) > 3 {
						t.Errorf("the error or the log repeats %q of the credential: %v, %s", part, d.Err, log.String())
					}
				}
			}
			said := strings.ReplaceAll(log.String(), `\"`, `"`)
			if n := strings.Count(said, "\n"); n != 1 || !strings.Contains(said, c.cause) {
				t.Errorf("%d lines, want one, with %s: %s", n, c.cause, said)
			}
		})
	}
}

var (
	key      = tokentest.NewEC("k1", elliptic.P256())
	keyOfRSA = tokentest.NewRSA("rsa")
)

// sign returns a token that is good at noon, but for one claim.
func sign(claim string, value any) string {
	return key.Sign(tokentest.Claims(noon, tokentest.With(claim, value)))
}
