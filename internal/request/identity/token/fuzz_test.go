package token_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/request/identity/token"
)

// FuzzVerify guarantees that only tokens that the issuer has signed are accepted: an accepted text has the claims of
// the valid token, and the error about a refused one contains nothing of it.
func FuzzVerify(f *testing.F) {
	v := newVerifier(f, config(publishing(good), func(c *token.Config) { c.Cooldown = c.Refresh }))
	text := good.Sign(claims(noon, nil))
	parts := strings.Split(text, ".")
	for _, seed := range []string{
		"", "..", text, text + "=", parts[0] + "." + parts[1] + ".", encode(`{"alg":"none"}`) + "." + parts[1] + ".",
		attacker.Sign(claims(noon, nil)), attacker.Sign(claims(noon, nil), with("jwk", attacker.JWK())),
		encode(`{"alg":"ES256","alg":"none","crit":["b64"],"b64":false,"kid":"k1","x5c":["AA"]}`) + "." + parts[1] +
			"." + parts[2],
		parts[0] + "." + encode(`{"iss":"`+issuerName+`","exp":1e400}`) + "." + parts[2],
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		for range 2 { // the second time, what was accepted is remembered
			got, err := v.Verify(t.Context(), in, noon)
			switch {
			case err == nil && (got.Tenant != "acme" || got.Subject != "user-1" || got.ID != "id-1" ||
				!strings.Contains(in, parts[1])):
				t.Fatalf("Verify(%q) = %+v, want an error: the issuer has not signed this", in, got)
			case err != nil && !errors.Is(err, token.ErrBadToken):
				t.Fatalf("Verify(%q) = %v, want ErrBadToken", in, err)
			}
		}
	})
}

// FuzzPayload guarantees that, whatever an issuer signs, Verify returns an error, or a tenant that the issuer may name
// and texts that can be logged.
func FuzzPayload(f *testing.F) {
	v := newVerifier(f, config(publishing(good), func(c *token.Config) { c.Claims = []string{"x"} }))
	plain := `{"iss":"` + issuerName + `","aud":"` + audience + `","tenant_id":"acme","sub":"u","exp":9999999999,"x":1}`
	for _, seed := range []string{plain, strings.Replace(plain, "acme", `\u0061cme`, 1),
		strings.Replace(plain, `"u"`, `"\r\n"`, 1),
		strings.Replace(plain, "{", `{"exp":1,`, 1), strings.Replace(plain, `"x":1`, `"x":[[[]]],"nbf":1e-400`, 1),
		"null", "[]"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		got, err := v.Verify(t.Context(), good.Raw(`{"alg":"ES256","kid":"k1"}`, payload), noon)
		if err != nil {
			if !errors.Is(err, token.ErrBadToken) {
				t.Fatalf("Verify(%q) = %v, want ErrBadToken", payload, err)
			}
			return
		}
		kept, _ := got.Claim("x")
		if got.Tenant != "acme" || got.Subject == "" || !got.Expires.After(noon.Add(-token.DefaultLeeway)) ||
			strings.ContainsAny(got.Subject+got.ID+kept, "\r\n\x00\x7f") ||
			len(got.Subject)+len(got.ID)+len(kept) > 3*256 {
			t.Fatalf("Verify(%q) = %+v", payload, got)
		}
	})
}

// FuzzKeySet guarantees that no answer of an issuer ends the process, and that a token is accepted only if the answer
// contains its key.
func FuzzKeySet(f *testing.F) {
	text := good.Sign(claims(noon, nil))
	x := jwkWith(good, "kty", absent{}, "crv", absent{}, "y", absent{}, "kid", absent{}, "alg", absent{}, "use",
		absent{})
	x = strings.Trim(x, `{}`) // "x":"…"
	for _, seed := range []string{document(good), document(everyKind()...), `{"keys":[]}`, "null",
		keysOf(jwkWith(good, "x5c", []string{"AA=="}), `{"kty":"RSA","n":"AQ","e":"AQAB"}`),
		keysOf(jwkWith(good, "x5u", ":", "x5t", "AA"), `{"kty":"AKP","alg":"ML-DSA-44","pub":"AA"}`)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		v := newVerifier(t, config(newAuthority(answer(http.StatusOK, body)), all))
		err := verify(v, text, noon)
		switch {
		case err == nil && !strings.Contains(body, x[len(`"x":"`):len(x)-1]) && !strings.Contains(body, `\`):
			t.Fatalf("the token passes with keys %q", body)
		case err != nil && !errors.Is(err, token.ErrBadToken) && !errors.Is(err, token.ErrKeysUnavailable):
			t.Fatalf("Verify = %v", err)
		}
	})
}
