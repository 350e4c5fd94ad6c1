package main

import (
	"crypto/elliptic"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

// Guarantees that dev checks JWTs of --issuers as docs/library.md says: a good one identifies the caller, with the
// claims of --claims, whether or not the plans have keys; a bad one is refused; and a 401 names only credentials that
// can be accepted.
func TestDevChecksTokens(t *testing.T) {
	signer, other := tokentest.NewEC("k1", elliptic.P256()), tokentest.NewEC("k1", elliptic.P256())
	keys := httptest.NewServer(tokentest.Publishing(signer))
	t.Cleanup(keys.Close)
	issuers := filepath.Join(t.TempDir(), "issuers.json")
	write(t, issuers, fmt.Sprintf(`[{"issuer":%q,"audiences":[%q],"jwksUrl":%q,"tenants":["acme"]}]`,
		tokentest.Issuer, tokentest.Audience, keys.URL))
	const limits = "plans: [ { id: free, limits: [ { id: region, per: \"claim:region\", " +
		"algorithm: fixed_window, tiers: [ { period: 1h, threshold: 2 } ] } ] } ]\n" +
		"tenants: [ { id: acme, plan: free }, { id: globex, plan: free } ]\n"
	now := time.Now()
	token := func(s *tokentest.Signer, pairs ...any) []string {
		return []string{"Authorization", "Bearer " + s.Sign(tokentest.Claims(now, tokentest.With(pairs...)))}
	}
	good := token(signer, "region", "eu")
	key := []string{"X-API-Key", "sk_dev_acme"}
	const none, asksToken = "", "Send a token of an issuer that this API accepts"
	for name, c := range map[string]struct {
		plans string
		sends []string
		want  int
		says  string
	}{
		"a token":                       {limits, good, 200, none},
		"a token of another key":        {limits, token(other), 401, "not valid"},
		"an expired token":              {limits, token(signer, "exp", now.Add(-time.Hour).Unix()), 401, "not valid"},
		"a tenant of others":            {limits, token(signer, "tenant_id", "globex"), 401, "not valid"},
		"no credential":                 {limits, nil, 401, asksToken},
		"no credential, only ipLimits":  {"ipLimits: []\n", nil, 401, asksToken},
		"no credential, anonymousPlan":  {limits + "anonymousPlan: free\n", nil, 200, none},
		"a bad token and anonymousPlan": {limits + "anonymousPlan: free\n", token(other), 401, "not valid"},
		"an API key that nobody has":    {limits, key, 401, "not valid"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "plans.yaml")
			write(t, file, c.plans)
			dev := startDev(t, "--plans", file, "--issuers", issuers, "--claims", "region")
			if status, body := getWith(t, dev.base, c.sends); status != c.want || !strings.Contains(body, c.says) ||
				status == 401 && strings.Contains(body, "API key as") {
				t.Errorf("status %d, want %d and %q: %s", status, c.want, c.says, body)
			}
			if !strings.Contains(dev.stdout.String(), `curl -i -H "Authorization: Bearer $TOKEN"`) {
				t.Errorf("dev does not print how to call with a token:\n%s", dev.stdout)
			}
			if name != "a token" {
				return
			}
			for i, call := range []struct {
				region string
				want   int
			}{{"eu", 200}, {"eu", 429}, {"us", 200}} {
				if status, body := getWith(t, dev.base, token(signer, "region", call.region)); status != call.want {
					t.Errorf("call %d, of %s: status %d, want %d: %s", i, call.region, status, call.want, body)
				}
			}
		})
	}
}

// With keys and issuers, a 401 names both.
func TestDevAsksForEitherCredential(t *testing.T) {
	issuers := filepath.Join(t.TempDir(), "issuers.json")
	write(t, issuers, `[{"issuer":"i","audiences":["a"],"jwksUrl":"http://127.0.0.1:1/","allTenants":true}]`)
	dev := startDev(t, "--issuers", issuers)
	status, body := getWith(t, dev.base, nil)
	if status != 401 || !strings.Contains(body, "X-API-Key: KEY") || !strings.Contains(body, "Bearer TOKEN") {
		t.Errorf("status %d: %s", status, body)
	}
}

// What is wrong with issuers ends the start, with the flag, the file and what to change.
func TestDevRefusesIssuers(t *testing.T) {
	for text, want := range map[string]string{
		"[]":               "has no issuer",
		"{":                "unexpected EOF",
		`[{"iss":"x"}]`:    `unknown member "iss"`,
		`[{"issuer":"i"}]`: "no Audiences",
	} {
		file := filepath.Join(t.TempDir(), "issuers.json")
		write(t, file, text)
		got := sluice(t, "", "dev", "--listen", "127.0.0.1:0", "--issuers", file)
		if got.code != 1 || !strings.Contains(got.stderr, "--issuers "+file) || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: exit %d, want %q: %s", text, got.code, want, got.stderr)
		}
	}
	for _, args := range [][]string{{"--claims", "region"}, {"--issuers", "x", "--claims", "a,,b"}} {
		if got := sluice(t, "", append([]string{"dev"}, args...)...); got.code != 2 ||
			!strings.Contains(got.stderr, "--claims") {
			t.Errorf("%q: exit %d: %s", args, got.code, got.stderr)
		}
	}
	missing := filepath.Join(t.TempDir(), "none.json")
	if got := sluice(t, "", "dev", "--issuers", missing); got.code != 1 || !strings.Contains(got.stderr, missing) {
		t.Errorf("a missing file: exit %d: %s", got.code, got.stderr)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// getWith sends a GET for a product with one header, or none, and returns the answer.
func getWith(t *testing.T, base string, header []string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, base+"/product/1", nil)
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		req.Header.Set(header[0], header[1])
	}
	status, _, body, err = send(req)
	if err != nil {
		t.Fatal(err)
	}
	return status, body
}
