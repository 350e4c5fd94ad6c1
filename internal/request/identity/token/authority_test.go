package token_test

import (
	"context"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicelimits/sluice/internal/request/identity/token"
	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

var (
	rsaKey   = tokentest.RSAKey
	good     = newEC("k1", elliptic.P256()) // the key that authorities publish unless a test chooses another
	attacker = newEC("k1", elliptic.P256()) // another key with the same name
)

const (
	issuerName = tokentest.Issuer
	audience   = tokentest.Audience
	jwksURL    = tokentest.JWKSURL
)

// Shorter names for what these tests use often.
type (
	signer    = tokentest.Signer
	absent    = tokentest.Absent
	reply     = tokentest.Reply
	responder = tokentest.Responder
	authority = tokentest.Authority
)

var (
	with         = tokentest.With
	change       = tokentest.Change
	claims       = tokentest.Claims
	encode       = tokentest.Encode
	keyed        = tokentest.New
	newEC        = tokentest.NewEC
	answer       = tokentest.Answer
	hang         = tokentest.Hang
	document     = tokentest.Document
	newAuthority = tokentest.NewAuthority
	publishing   = tokentest.Publishing
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// pass lets virtual time pass. It must be called in a synctest bubble.
func pass(d time.Duration) { <-time.After(d) }

// config returns the configuration for one issuer, whose keys come from a.
func config(a *authority, by ...func(*token.Config)) token.Config {
	c := token.Config{
		Issuers: []token.Issuer{{Issuer: issuerName, Audiences: []string{audience}, JWKSURL: jwksURL,
			Tenants: []string{"acme"}}},
		Client: &http.Client{Transport: a},
		Log:    slog.New(slog.DiscardHandler),
	}
	for _, f := range by {
		f(&c)
	}
	return c
}

func newVerifier(t testing.TB, c token.Config) *token.Verifier {
	t.Helper()
	v, err := token.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	return v
}

func verify(v *token.Verifier, text string, now time.Time) error {
	_, err := v.Verify(context.Background(), text, now)
	return err
}

// all lists every algorithm, for issuers that accept all of them.
func all(c *token.Config) {
	c.Issuers[0].Algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512",
		"EdDSA"}
}

func everyKind() []*signer {
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err)
	}
	out := []*signer{newEC("p256", elliptic.P256()), newEC("p384", elliptic.P384()), newEC("p521", elliptic.P521()),
		keyed("ed", "EdDSA", ed)}
	for _, alg := range []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"} {
		out = append(out, keyed("rsa-"+alg, alg, rsaKey()))
	}
	return out
}

func clone(m map[string]any, pairs ...any) map[string]any {
	out := maps.Clone(m)
	change(out, with(pairs...))
	return out
}

func jwkWith(s *signer, pairs ...any) string {
	var m map[string]any
	if err := json.Unmarshal(must(json.Marshal(s.JWK())), &m); err != nil {
		panic(err)
	}
	change(m, with(pairs...))
	return string(must(json.Marshal(m)))
}

func keysOf(jwks ...string) string {
	out := ""
	for i, k := range jwks {
		if i > 0 {
			out += ","
		}
		out += k
	}
	return fmt.Sprintf(`{"keys":[%s]}`, out)
}
