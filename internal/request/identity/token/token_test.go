package token_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/request/identity/token"
)

func TestVerifyAcceptsEachAlgorithm(t *testing.T) {
	keys := everyKind()
	v := newVerifier(t, config(publishing(keys...), all))
	for _, k := range keys {
		got, err := v.Verify(t.Context(), k.Sign(claims(noon, nil)), noon)
		if err != nil || got.Tenant != "acme" || got.Subject != "user-1" || got.Issuer != issuerName ||
			got.ID != "id-1" ||
			!got.Expires.Equal(noon.Add(time.Hour)) {
			t.Errorf("%s: Verify = %+v, %v", k.Algorithm, got, err)
		}
	}
}

func TestVerifyAcceptsVariants(t *testing.T) {
	v := newVerifier(t, config(publishing(good)))
	for name, text := range map[string]string{
		"several audiences": good.Sign(claims(noon, with("aud", []string{"other", audience}))),
		"no id, no nbf, no iat": good.Sign(claims(noon,
			with("jti", absent{}, "nbf", absent{}, "iat", absent{}))),
		"access token":          good.Sign(claims(noon, nil), with("typ", "application/at+JWT")),
		"no type":               good.Sign(claims(noon, nil), with("typ", absent{})),
		"no kid, and one key":   good.Sign(claims(noon, nil), with("kid", absent{})),
		"fractions of seconds":  good.Sign(claims(noon, with("exp", 1e10+0.5, "nbf", 1e9+0.5))),
		"nbf within the leeway": good.Sign(claims(noon, with("nbf", noon.Add(30*time.Second).Unix()))),
		"exp within the leeway": good.Sign(claims(noon, with("exp", noon.Add(-29*time.Second).Unix()))),
		"names that match only in case": good.Sign(claims(noon,
			with("EXP", 1, "Iss", "x", "AUD", "y", "Tenant_ID", "umbrella"))),
		"names of other keys": good.Sign(claims(noon, nil),
			with("jku", "https://evil.example/jwks", "x5u", "https://evil.example/x", "jwk", attacker.JWK())),
	} {
		got, err := v.Verify(t.Context(), text, noon)
		if err != nil || got.Tenant != "acme" {
			t.Errorf("%s: Verify = %+v, %v; want acme", name, got, err)
		}
	}
}

// Guarantees that each forged token, and each token for another audience, is refused for its own reason, with an error
// that contains nothing of the token; and that all but the last group of them are refused without a request for keys.
func TestVerifyRefuses(t *testing.T) {
	type m = map[string]any
	base := claims(noon, nil)
	payload := string(must(json.Marshal(base)))
	signed := func(pairs ...any) string { return good.Sign(clone(base, pairs...)) }
	headed := func(pairs ...any) string { return good.Sign(base, with(pairs...)) }
	parts := strings.Split(good.Sign(base), ".")
	none := func(alg string) string { return encode(`{"alg":"`+alg+`","kid":"k1"}`) + "." + encode(payload) + "." }
	deep := strings.Repeat("[", 2500) + strings.Repeat("]", 2500)
	p384 := everyKind()[1]

	cases := []struct {
		name, text string
		want       error
		keyless    bool // refused without keys
	}{
		{"empty", "", token.ErrMalformed, true},
		{"two dots", "..", token.ErrAlgorithm, true},
		{"an API key", "slk_0123", token.ErrMalformed, true},
		{"four dots, as an encrypted token has", "a.b.c.d.e", token.ErrMalformed, true},
		{"dots only", strings.Repeat(".", 8000), token.ErrMalformed, true},
		{"a line end within", parts[0] + "." + parts[1] + "\n." + parts[2], token.ErrMalformed, true},
		{"padding", parts[0] + "." + parts[1] + "." + parts[2] + "=", token.ErrMalformed, true},
		{"a JSON serialisation", `{"payload":"` + parts[1] + `","protected":"` + parts[0] + `","signature":"` +
			parts[2] + `"}`, token.ErrMalformed, true},
		{"header is not JSON", encode("alg") + "." + parts[1] + "." + parts[2], token.ErrMalformed, true},
		{"payload is not JSON", good.Raw(`{"alg":"ES256","kid":"k1"}`, "acme"), token.ErrMalformed, true},
		{"payload is null", good.Raw(`{"alg":"ES256","kid":"k1"}`, "null"), token.ErrMalformed, true},
		{"payload is a list", good.Raw(`{"alg":"ES256","kid":"k1"}`, "["+payload+"]"), token.ErrMalformed, true},
		{"payload and more", good.Raw(`{"alg":"ES256","kid":"k1"}`, payload+payload), token.ErrMalformed, true},
		{"payload nested deeply", good.Raw(`{"alg":"ES256","kid":"k1"}`, `{"x":`+deep), token.ErrMalformed, true},
		{"payload is not UTF-8", good.Raw(`{"alg":"ES256","kid":"k1"}`,
			strings.Replace(payload, "acme", "ac\xffme", 1)), token.ErrMalformed, true},

		{"alg none", none("none"), token.ErrAlgorithm, true},
		{"alg None", none("None"), token.ErrAlgorithm, true},
		{"alg NONE", none("NONE"), token.ErrAlgorithm, true},
		{"alg empty", none(""), token.ErrAlgorithm, true},
		{"alg missing", headed("alg", absent{}), token.ErrAlgorithm, true},
		{"alg outside the list", keyed("k1", "RS512", rsaKey()).Sign(base), token.ErrAlgorithm, true},
		{"alg in other letters", headed("alg", "es256"), token.ErrAlgorithm, true},
		{"alg is a list", headed("alg", []string{"ES256"}), token.ErrAlgorithm, true},
		{"alg twice", good.Raw(`{"alg":"none","alg":"ES256","kid":"k1"}`, payload), token.ErrMalformed, true},
		{"alg of a key of another kind", keyed("k1", "RS256", rsaKey()).Sign(base), token.ErrUnknownKey, false},
		{"alg ES256, key P-384", keyed("p384", "ES256", p384.Private).Sign(base), token.ErrUnknownKey, false},

		{"critical extension", headed("crit", []string{"exp"}, "exp", 1), token.ErrMalformed, true},
		{"payload that is not encoded", headed("b64", false, "crit", []string{"b64"}), token.ErrMalformed, true},
		{"payload that is not encoded, not critical", headed("b64", false), token.ErrMalformed, true},
		{"logout token", headed("typ", "logout+jwt"), token.ErrMalformed, true},
		{"type is not text", headed("typ", 1), token.ErrMalformed, true},
		{"huge kid", headed("kid", strings.Repeat("k", 4000)), token.ErrMalformed, true},
		{"kid is a number", headed("kid", 1), token.ErrMalformed, true},

		{"expired", signed("exp", noon.Add(-30*time.Second).Unix()), token.ErrExpired, true},
		{"expired long ago", signed("exp", 0), token.ErrExpired, true},
		{"not yet valid", signed("nbf", noon.Add(31*time.Second).Unix()), token.ErrNotYetValid, true},
		{"no exp", signed("exp", absent{}), token.ErrNoExpiry, true},
		{"exp is null", signed("exp", nil), token.ErrMalformed, true},
		{"exp is text", signed("exp", "9999999999"), token.ErrMalformed, true},
		{"exp is negative", signed("exp", -1), token.ErrMalformed, true},
		{"exp overflows", good.Raw(`{"alg":"ES256","kid":"k1"}`,
			strings.Replace(payload, `"exp":`, `"exp":1e999,"x":`, 1)), token.ErrMalformed, true},
		{"exp after the year 9999", signed("exp", 1e15), token.ErrMalformed, true},
		{"exp is true", signed("exp", true), token.ErrMalformed, true},
		{"nbf is text", signed("nbf", "0"), token.ErrMalformed, true},
		{"nbf is null", signed("nbf", nil), token.ErrMalformed, true},

		{"no issuer", signed("iss", absent{}), token.ErrIssuer, true},
		{"wrong issuer", signed("iss", "https://evil.example/"), token.ErrIssuer, true},
		{"issuer without the slash", signed("iss", strings.TrimSuffix(issuerName, "/")), token.ErrIssuer, true},
		{"issuer is a list", signed("iss", []string{issuerName}), token.ErrIssuer, true},
		{"issuer twice", good.Raw(`{"alg":"ES256","kid":"k1"}`, strings.Replace(payload, "{", `{"iss":"x",`, 1)),
			token.ErrMalformed, true},

		{"no audience", signed("aud", absent{}), token.ErrAudience, true},
		{"wrong audience", signed("aud", "https://other.example"), token.ErrAudience, true},
		{"wrong audiences", signed("aud", []string{"a", "b"}), token.ErrAudience, true},
		{"no audiences", signed("aud", []string{}), token.ErrAudience, true},
		{"audiences not all text", signed("aud", []any{audience, 1}), token.ErrAudience, true},
		{"audience is an object", signed("aud", m{audience: true}), token.ErrAudience, true},

		{"no tenant", signed("tenant_id", absent{}), token.ErrTenant, true},
		{"tenant is empty", signed("tenant_id", ""), token.ErrTenant, true},
		{"tenant is a number", signed("tenant_id", 7), token.ErrTenant, true},
		{"tenant is null", signed("tenant_id", nil), token.ErrTenant, true},
		{"tenant is a list", signed("tenant_id", []string{"acme"}), token.ErrTenant, true},
		{"tenant is an object", signed("tenant_id", m{"id": "acme"}), token.ErrTenant, true},
		{"oversized tenant", signed("tenant_id", strings.Repeat("a", 129)), token.ErrTenant, true},
		{"tenant with a line end", signed("tenant_id", "acme\r\nX-Evil: 1"), token.ErrTenant, true},
		{"tenant with a zero byte", signed("tenant_id", "acme\x00"), token.ErrTenant, true},
		{"tenant with half a character", good.Raw(`{"alg":"ES256","kid":"k1"}`,
			strings.Replace(payload, "acme", `acme\ud800`, 1)), token.ErrTenant, true},
		{"tenant twice", good.Raw(`{"alg":"ES256","kid":"k1"}`,
			strings.Replace(payload, "{", `{"tenant_id":"umbrella",`, 1)), token.ErrMalformed, true},
		{"tenant twice, once escaped", good.Raw(`{"alg":"ES256","kid":"k1"}`,
			strings.Replace(payload, "{", `{"tenant\u005fid":"umbrella",`, 1)), token.ErrMalformed, true},
		{"tenant of another issuer", signed("tenant_id", "umbrella"), token.ErrNotBound, true},
		{"tenant in other letters", signed("tenant_id", "Acme"), token.ErrNotBound, true},
		{"tenant with a space", signed("tenant_id", "acme "), token.ErrNotBound, true},
		{"no subject", signed("sub", absent{}), token.ErrSubject, true},
		{"subject is a number", signed("sub", 1), token.ErrSubject, true},
		{"oversized subject", signed("sub", strings.Repeat("s", 257)), token.ErrSubject, true},
		{"id is a number", signed("jti", 1), token.ErrMalformed, true},

		{"another's key under a known name", attacker.Sign(base), token.ErrSignature, false},
		{"the key is in the header", attacker.Sign(base, with("jwk", attacker.JWK())), token.ErrSignature, false},
		{"the key is in the header, no kid", attacker.Sign(base, with("jwk", attacker.JWK(), "kid", absent{})),
			token.ErrSignature, false},
		{"the key is behind jku", attacker.Sign(base, with("jku", "https://evil.example/jwks")), token.ErrSignature,
			false},
		{"the key is behind x5u", attacker.Sign(base, with("x5u", "https://evil.example/cert")), token.ErrSignature,
			false},
		{"no signature", parts[0] + "." + parts[1] + ".", token.ErrSignature, false},
		{"signature of zeros", parts[0] + "." + parts[1] + "." + encode(string(make([]byte, 64))), token.ErrSignature,
			false},
		{"another payload", parts[0] + "." + encode(strings.Replace(payload, "user-1", "user-2", 1)) + "." + parts[2],
			token.ErrSignature, false},
		{"unknown kid", headed("kid", "k9"), token.ErrUnknownKey, false},
		{"kid in other letters", headed("kid", "K1"), token.ErrUnknownKey, false},
		{"kid is a path", headed("kid", "../../../../dev/null"), token.ErrUnknownKey, false},
		{"kid is a file", headed("kid", "file:///etc/passwd"), token.ErrUnknownKey, false},
		{"kid is a URL", headed("kid", "https://evil.example/jwks"), token.ErrUnknownKey, false},
		{"kid is a query", headed("kid", "k1' OR '1'='1"), token.ErrUnknownKey, false},
		{"kid ends in a zero byte", headed("kid", "k1\x00"), token.ErrUnknownKey, false},
	}
	published := publishing(good, p384)
	warm := newVerifier(t, config(published))
	if err := verify(warm, good.Sign(base), noon); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := warm.Verify(t.Context(), c.text, noon)
			if !errors.Is(err, c.want) || !errors.Is(err, token.ErrBadToken) ||
				errors.Is(err, token.ErrKeysUnavailable) {
				t.Errorf("Verify = %v, want %v", err, c.want)
			}
			if got.Tenant != "" || got.Subject != "" {
				t.Errorf("Verify = %+v beside the error, want nothing", got)
			}
			wantSilent(t, err, c.text)
			away := newAuthority(answer(http.StatusInternalServerError, ""))
			err = verify(newVerifier(t, config(away)), c.text, noon)
			switch {
			case c.keyless && (!errors.Is(err, c.want) || away.Fetches() != 0):
				t.Errorf("with the keys away, Verify = %v after %d fetches; want %v after none", err, away.Fetches(),
					c.want)
			case !c.keyless && (!errors.Is(err, token.ErrKeysUnavailable) || errors.Is(err, token.ErrBadToken)):
				t.Errorf("with the keys away, Verify = %v; want ErrKeysUnavailable", err)
			}
			wantSilent(t, err, c.text)
		})
	}
	for _, r := range published.Requests() {
		if r.URL != jwksURL {
			t.Errorf("a token caused a request to %s, want only the issuer's URL", r.URL)
		}
	}
	if n := published.Fetches(); n != 1 {
		t.Errorf("%d fetches within one cooldown, want 1", n)
	}
	if s := warm.Stats(); s.Remembered != 1 {
		t.Errorf("%d tokens remembered, want only the good one", s.Remembered)
	}
}

// wantSilent checks that an error contains no part of a token.
func wantSilent(t testing.TB, err error, text string) {
	t.Helper()
	if err == nil {
		return
	}
	said := err.Error()
	for part := range strings.SplitSeq(text, ".") {
		decoded, _ := base64.RawURLEncoding.DecodeString(part)
		if (len(part) > 8 && strings.Contains(said, part)) ||
			(len(decoded) > 8 && strings.Contains(said, string(decoded))) {
			t.Errorf("the error contains a part of the token: %q", said)
		}
	}
	for _, secret := range []string{"umbrella", "user-1", "evil", "etc/passwd"} {
		if strings.Contains(said, secret) {
			t.Errorf("the error contains %q of the token: %q", secret, said)
		}
	}
}

// Guarantees that a public key is never used as an HMAC secret, in whatever form an attacker sends it, even if all
// algorithms are allowed.
func TestVerifyRefusesHMACWithThePublicKey(t *testing.T) {
	key := keyed("k1", "RS256", rsaKey())
	der := must(x509.MarshalPKIXPublicKey(key.Private.Public()))
	public := must(json.Marshal(key.JWK()))
	secrets := map[string][]byte{
		"PKIX": der, "PKCS1": x509.MarshalPKCS1PublicKey(&rsaKey().PublicKey), "JWK": public,
		"modulus": rsaKey().N.Bytes(), "nothing": nil,
		"PEM": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}),
	}
	v := newVerifier(t, config(publishing(key), all))
	if err := verify(v, key.Sign(claims(noon, nil)), noon); err != nil {
		t.Fatal(err)
	}
	for form, secret := range secrets {
		input := encode(`{"alg":"HS256","kid":"k1"}`) + "." + encode(string(must(json.Marshal(claims(noon, nil)))))
		m := hmac.New(sha256.New, secret)
		m.Write([]byte(input))
		if err := verify(v, input+"."+encode(string(m.Sum(nil))), noon); !errors.Is(err, token.ErrAlgorithm) {
			t.Errorf("HS256 with the %s as secret: Verify = %v, want ErrAlgorithm", form, err)
		}
	}
	for _, a := range []string{"HS256", "HS384", "HS512", "none", "", "ML-DSA-44", "RSA-OAEP"} {
		c := config(publishing(key))
		c.Issuers[0].Algorithms = []string{"RS256", a}
		if _, err := token.New(c); err == nil || !strings.Contains(err.Error(), "algorithm") {
			t.Errorf("New with algorithm %q = %v, want an error", a, err)
		}
	}
}

// Guarantees that a token of a megabyte is refused by its length, before anything is hashed or allocated.
func TestVerifyRefusesLargeTokensUnread(t *testing.T) {
	v := newVerifier(t, config(publishing(good)))
	large := good.Sign(claims(noon, with("x", strings.Repeat("a", 1<<20))))
	allocs := testing.AllocsPerRun(100, func() {
		if err := verify(v, large, noon); !errors.Is(err, token.ErrTooLarge) {
			t.Errorf("Verify = %v, want ErrTooLarge", err)
		}
	})
	if allocs > 0 {
		t.Errorf("refusing %d bytes allocates %v times, want 0", len(large), allocs)
	}
	just := func(n int) string { // a good token of exactly n bytes
		for pad := 0; ; pad++ {
			text := good.Sign(claims(noon, with("x", strings.Repeat("a", pad))))
			if len(text) >= n {
				return text
			}
		}
	}
	small := newVerifier(t, config(publishing(good), func(c *token.Config) { c.MaxTokenBytes = len(just(500)) }))
	if err := verify(small, just(500), noon); err != nil {
		t.Errorf("Verify at MaxTokenBytes = %v, want nil", err)
	}
}

// Guarantees that issuers share neither keys, nor audiences, nor tenants, nor algorithms.
func TestIssuersAreApart(t *testing.T) {
	const otherName, otherURL = "https://other.example/", "https://other.example/jwks"
	other := everyKind()[1] // P-384
	other.KeyID = "k1"
	a := newAuthority(func(r *http.Request) (reply, error) {
		if r.URL.String() == otherURL {
			return answer(http.StatusOK, document(other))(r)
		}
		return answer(http.StatusOK, document(good))(r)
	})
	v := newVerifier(t, config(a, func(c *token.Config) {
		c.Issuers = append(c.Issuers, token.Issuer{Issuer: otherName, Audiences: []string{"app"},
			AudienceClaim: "client_id", JWKSURL: otherURL,
			Algorithms: []string{"ES384"}, TenantClaim: "custom:tenant", SubjectClaim: "username", AllTenants: true})
	}))
	theirs := with("iss", otherName, "client_id", "app", "custom:tenant", "umbrella", "username", "bo", "exp",
		noon.Add(time.Hour).Unix())
	if got, err := v.Verify(t.Context(), other.Sign(theirs), noon); err != nil || got.Tenant != "umbrella" ||
		got.Subject != "bo" || got.Issuer != otherName {
		t.Errorf("Verify = %+v, %v; want umbrella, bo", got, err)
	}
	if err := verify(v, good.Sign(claims(noon, nil)), noon); err != nil {
		t.Errorf("Verify = %v, want nil", err)
	}
	for name, c := range map[string]struct {
		text string
		want error
	}{
		"signed by the other":       {other.Sign(claims(noon, nil)), token.ErrAlgorithm},
		"for the other, by the one": {good.Sign(theirs), token.ErrAlgorithm},
		"audience of the other":     {good.Sign(claims(noon, with("aud", "app"))), token.ErrAudience},
		"tenant of the other":       {good.Sign(claims(noon, with("tenant_id", "umbrella"))), token.ErrNotBound},
		"tenant in the other's name": {other.Sign(clone(theirs, "custom:tenant", absent{}, "tenant_id", "acme")),
			token.ErrTenant},
	} {
		if err := verify(v, c.text, noon); !errors.Is(err, c.want) {
			t.Errorf("%s: Verify = %v, want %v", name, err, c.want)
		}
	}
}

func TestClaimsThatAreKept(t *testing.T) {
	v := newVerifier(t, config(publishing(good), func(c *token.Config) {
		c.Claims = []string{"region", "level", "beta", "list", "nothing", "long", "evil", "missing"}
	}))
	got, err := v.Verify(t.Context(),
		good.Sign(claims(noon, with("region", "eu-\u00e9", "level", 7, "beta", true, "list", []int{1},
			"nothing", nil, "long", strings.Repeat("x", 257), "evil", "a\r\nb", "other", "x"))), noon)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"region": "eu-\u00e9", "level": "7", "beta": "true"} {
		if value, ok := got.Claim(name); !ok || value != want {
			t.Errorf("Claim(%q) = %q, %v; want %q", name, value, ok, want)
		}
	}
	for _, name := range []string{"list", "nothing", "long", "evil", "missing", "other", "sub"} {
		if value, ok := got.Claim(name); ok {
			t.Errorf("Claim(%q) = %q, want absent", name, value)
		}
	}
}

// Guarantees that a token which was verified before gives the same result again, costs at most a copy of the token, and
// is accepted only while it is valid.
func TestRememberedUntilItExpires(t *testing.T) {
	v := newVerifier(t, config(publishing(good), func(c *token.Config) { c.Claims = []string{"region"} }))
	text := good.Sign(claims(noon, with("region", "eu")))
	first, err := v.Verify(t.Context(), text, noon)
	if err != nil {
		t.Fatal(err)
	}
	allocs := testing.AllocsPerRun(100, func() {
		second, err := v.Verify(context.Background(), text, noon)
		if region, _ := second.Claim("region"); err != nil || second.Tenant != first.Tenant ||
			second.Subject != first.Subject || region != "eu" {
			t.Errorf("second sight = %+v, %v; want %+v", second, err, first)
		}
	})
	if allocs > 1 {
		t.Errorf("a second sight allocates %v times, want at most 1", allocs)
	}
	end := noon.Add(time.Hour + token.DefaultLeeway)
	for _, c := range []struct {
		at   time.Time
		want error
	}{{end.Add(-time.Nanosecond), nil}, {noon.Add(-time.Minute), token.ErrNotYetValid}, {noon, nil},
		{end, token.ErrExpired}, {end.Add(time.Hour), token.ErrExpired}} {
		if err := verify(v, text, c.at); !errors.Is(err, c.want) {
			t.Errorf("Verify at %v = %v, want %v", c.at, err, c.want)
		}
	}
	if n := v.Stats().Remembered; n != 0 {
		t.Errorf("%d tokens remembered after they expired, want 0", n)
	}
}

func TestRememberedAreBounded(t *testing.T) {
	v := newVerifier(t, config(publishing(good), func(c *token.Config) { c.MaxRemembered = 10 }))
	for i := range 100 {
		if err := verify(v, good.Sign(claims(noon, with("jti", fmt.Sprint("id-", i)))), noon); err != nil {
			t.Fatal(err)
		}
	}
	if n := v.Stats().Remembered; n != 10 {
		t.Errorf("%d tokens remembered, want 10", n)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []struct {
		name, want string
		change     func(*token.Config)
	}{
		{"no issuers", "no issuers", func(c *token.Config) { c.Issuers = nil }},
		{"no name", "its name is missing", func(c *token.Config) { c.Issuers[0].Issuer = "" }},
		{"same name", `issuer 1 ("` + issuerName + `"): another issuer has the same`,
			func(c *token.Config) { c.Issuers = append(c.Issuers, c.Issuers[0]) }},
		{"no audience", "Audiences", func(c *token.Config) { c.Issuers[0].Audiences = nil }},
		{"empty audience", "Audiences", func(c *token.Config) { c.Issuers[0].Audiences = []string{"a", ""} }},
		{"no tenants", "either Tenants or AllTenants", func(c *token.Config) { c.Issuers[0].Tenants = nil }},
		{"all tenants and some", "either Tenants or AllTenants",
			func(c *token.Config) { c.Issuers[0].AllTenants = true }},
		{"empty tenant", "bytes of text", func(c *token.Config) { c.Issuers[0].Tenants = []string{""} }},
		{"no URL", "JWKSURL", func(c *token.Config) { c.Issuers[0].JWKSURL = "" }},
		{"http", "JWKSURL is not an https URL",
			func(c *token.Config) { c.Issuers[0].JWKSURL = "http://login.example.com/jwks" }},
		{"http to what looks local", "JWKSURL is not an https URL",
			func(c *token.Config) { c.Issuers[0].JWKSURL = "http://localhost.evil.example/jwks" }},
		{"file", "JWKSURL is not an https URL", func(c *token.Config) { c.Issuers[0].JWKSURL = "file:///etc/jwks" }},
		{"no host", "JWKSURL is not an https URL", func(c *token.Config) { c.Issuers[0].JWKSURL = "https:///jwks" }},
		{"user in the URL", "JWKSURL has a user",
			func(c *token.Config) { c.Issuers[0].JWKSURL = "https://me:secret@login.example.com/jwks" }},
		{"not a URL", "JWKSURL is not a URL", func(c *token.Config) { c.Issuers[0].JWKSURL = "https://[::1" }},
		{"leeway", "Leeway 1h0m0s is outside 0..5m0s", func(c *token.Config) { c.Leeway = time.Hour }},
		{"negative leeway", "Leeway", func(c *token.Config) { c.Leeway = -1 }},
		{"token bytes", "MaxTokenBytes 65537 is outside", func(c *token.Config) { c.MaxTokenBytes = 64<<10 + 1 }},
		{"remembered", "MaxRemembered -1 is outside", func(c *token.Config) { c.MaxRemembered = -1 }},
		{"wait", "Wait 1m0s is outside", func(c *token.Config) { c.Wait = time.Minute }},
		{"refresh", "Refresh 48h0m0s is outside", func(c *token.Config) { c.Refresh = 48 * time.Hour }},
		{"cooldown longer than refresh", "Cooldown 2m0s is outside 0..1m0s",
			func(c *token.Config) { c.Refresh, c.Cooldown = time.Minute, 2*time.Minute }},
		{"claims", "17 Claims", func(c *token.Config) { c.Claims = make([]string, 17) }},
	} {
		conf := config(publishing(good))
		c.change(&conf)
		_, err := token.New(conf)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: New = %v, want an error with %q", c.name, err, c.want)
		}
	}
	for _, u := range []string{"http://localhost:8080/jwks", "http://127.0.0.1:1/jwks", "http://[::1]:1/jwks"} {
		conf := config(publishing(good))
		conf.Issuers[0].JWKSURL = u
		if _, err := token.New(conf); err != nil {
			t.Errorf("New with %s = %v, want nil", u, err)
		}
	}
}

// Guarantees that a caller which changes its lists after New does not change what is accepted.
func TestNewCopiesItsConfig(t *testing.T) {
	conf := config(publishing(good), func(c *token.Config) { c.Claims = []string{"region"} })
	v := newVerifier(t, conf)
	i := &conf.Issuers[0]
	i.Audiences[0], i.Tenants[0], conf.Claims[0] = "app", "umbrella", "email"
	got, err := v.Verify(t.Context(), good.Sign(claims(noon, with("region", "eu", "email", "a@b"))), noon)
	if _, ok := got.Claim("email"); ok || err != nil {
		t.Errorf("Verify = %+v, %v; want no email", got, err)
	}
	for _, c := range []struct {
		by   map[string]any
		want error
	}{{nil, nil}, {with("aud", "app"), token.ErrAudience}, {with("tenant_id", "umbrella"), token.ErrNotBound}} {
		if err := verify(v, good.Sign(claims(noon, c.by)), noon); !errors.Is(err, c.want) {
			t.Errorf("Verify with %v = %v, want %v", c.by, err, c.want)
		}
	}
}

func TestNewJoinsErrors(t *testing.T) {
	conf := config(publishing(good))
	conf.Issuers[0].Audiences, conf.Wait = nil, -1
	if _, err := token.New(conf); err == nil || !strings.Contains(err.Error(), "Audiences") ||
		!strings.Contains(err.Error(), "Wait") {
		t.Errorf("New = %v, want both errors", err)
	}
}
