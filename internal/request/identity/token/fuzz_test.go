package token_test

import (
	"errors"
	"fmt"
	"math"
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

// BenchmarkSeen measures the verification of tokens that were verified before. There are many of them, as long as usual
// access tokens.
func BenchmarkSeen(b *testing.B) {
	v := newVerifier(b, config(publishing(good)))
	tokens := make([]string, 1000)
	for i := range tokens {
		tokens[i] = good.Sign(claims(noon, with("jti", fmt.Sprint(i), "scope", strings.Repeat("read write ", 30))))
		if err := verify(v, tokens[i], noon); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if got, err := v.Verify(b.Context(), tokens[i%len(tokens)], noon); err != nil || got.Tenant != "acme" {
			b.Fatal(got, err)
		}
	}
	if n := v.Stats().Remembered; n != len(tokens) {
		b.Fatalf("%d tokens remembered, want %d", n, len(tokens))
	}
}

// BenchmarkFirstSight measures the verification of tokens that are not remembered: two tokens alternate, and the memory
// has room for one.
func BenchmarkFirstSight(b *testing.B) {
	for _, key := range []*signer{keyed("k1", "RS256", rsaKey()), good} {
		b.Run(key.Algorithm, func(b *testing.B) {
			v := newVerifier(b, config(publishing(key), func(c *token.Config) { c.MaxRemembered = 1 }))
			var tokens [2]string
			for i := range tokens {
				tokens[i] = key.Sign(claims(noon,
					with("jti", fmt.Sprint(i), "scope", strings.Repeat("read write ", 30))))
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if got, err := v.Verify(b.Context(), tokens[i%2], noon); err != nil || got.Tenant != "acme" {
					b.Fatal(got, err)
				}
			}
		})
	}
}

// BenchmarkRefused measures the cost of two forged tokens: one that is refused before it is decoded, and one whose
// signature has to be checked.
func BenchmarkRefused(b *testing.B) {
	v := newVerifier(b, config(publishing(good)))
	if err := verify(v, good.Sign(claims(noon, nil)), noon); err != nil {
		b.Fatal(err)
	}
	for name, c := range map[string]struct {
		text string
		want error
	}{
		"large":   {strings.Repeat("a", 1<<20), token.ErrTooLarge},
		"expired": {good.Sign(claims(noon, with("exp", math.MaxInt32-1e9))), token.ErrExpired},
		"forged":  {attacker.Sign(claims(noon, nil)), token.ErrSignature},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := verify(v, c.text, noon); !errors.Is(err, c.want) {
					b.Fatal(err)
				}
			}
		})
	}
}
