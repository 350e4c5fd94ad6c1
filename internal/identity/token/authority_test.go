package token_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"go.uber.org/goleak"

	"github.com/sluicelimits/sluice/internal/identity/token"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	issuerName = "https://login.example.com/"
	audience   = "https://api.example.com"
	jwksURL    = "https://login.example.com/.well-known/jwks.json"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// signer is a key pair with what its issuer publishes of it. It signs without the library under test.
type signer struct {
	kid, alg string
	private  crypto.Signer
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func newEC(kid string, curve elliptic.Curve) *signer {
	alg := map[int]string{256: "ES256", 384: "ES384", 521: "ES512"}[curve.Params().BitSize]
	return &signer{kid, alg, must(ecdsa.GenerateKey(curve, rand.Reader))}
}

var (
	rsaKey   = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 2048)) })
	good     = newEC("k1", elliptic.P256()) // the key that authorities publish where a test says nothing else
	attacker = newEC("k1", elliptic.P256()) // the same name, another key
)

func (s *signer) jwk() jose.JSONWebKey {
	return jose.JSONWebKey{Key: s.private.Public(), KeyID: s.kid, Algorithm: s.alg, Use: "sig"}
}

// signature is over input, for the algorithm.
func (s *signer) signature(input string) []byte {
	bits := crypto.SHA256
	switch s.alg[2:] {
	case "384":
		bits = crypto.SHA384
	case "512":
		bits = crypto.SHA512
	}
	h := bits.New()
	h.Write([]byte(input))
	digest := h.Sum(nil)
	switch k := s.private.(type) {
	case *rsa.PrivateKey:
		if s.alg[:2] == "PS" {
			return must(rsa.SignPSS(rand.Reader, k, bits, digest, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash}))
		}
		return must(rsa.SignPKCS1v15(rand.Reader, k, bits, digest))
	case *ecdsa.PrivateKey:
		r, t, err := ecdsa.Sign(rand.Reader, k, digest)
		if err != nil {
			panic(err)
		}
		size := (k.Curve.Params().BitSize + 7) / 8
		out := make([]byte, 2*size)
		r.FillBytes(out[:size])
		t.FillBytes(out[size:])
		return out
	case ed25519.PrivateKey:
		return ed25519.Sign(k, []byte(input))
	}
	panic("no such key")
}

// raw signs exactly this header and payload.
func (s *signer) raw(header, payload string) string {
	input := encode(header) + "." + encode(payload)
	return input + "." + encode(string(s.signature(input)))
}

// sign signs claims under the plain header, with members changed.
func (s *signer) sign(claims map[string]any, header ...map[string]any) string {
	h := map[string]any{"alg": s.alg, "kid": s.kid, "typ": "JWT"}
	for _, more := range header {
		change(h, more)
	}
	return s.raw(string(must(json.Marshal(h))), string(must(json.Marshal(claims))))
}

func encode(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// absent takes a member away.
type absent struct{}

func change(m, by map[string]any) {
	for k, v := range by {
		if m[k] = v; v == (any)(absent{}) {
			delete(m, k)
		}
	}
}

// claims of a good token at now, with members changed.
func claims(now time.Time, by map[string]any) map[string]any {
	m := map[string]any{"iss": issuerName, "aud": audience, "tenant_id": "acme", "sub": "user-1", "jti": "id-1",
		"exp": now.Add(time.Hour).Unix(), "nbf": now.Unix(), "iat": now.Unix()}
	change(m, by)
	return m
}

func with(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	return m
}

// reply is what an issuer answers; responder decides on it, or fails.
type (
	reply struct {
		status         int
		body, location string
	}
	responder func(*http.Request) (reply, error)
)

func answer(status int, body string) responder {
	return func(*http.Request) (reply, error) { return reply{status: status, body: body}, nil }
}

// hang answers when the request is given up.
func hang(r *http.Request) (reply, error) {
	<-r.Context().Done()
	return reply{}, r.Context().Err()
}

// authority answers requests for keys without a network. What it answers can be changed while it runs.
type authority struct {
	mu      sync.Mutex
	respond responder
	asked   []request
}

// request is one that arrived.
type request struct {
	url string
	at  time.Time
}

func (a *authority) RoundTrip(r *http.Request) (*http.Response, error) {
	a.mu.Lock()
	respond := a.respond
	a.asked = append(a.asked, request{r.URL.String(), time.Now()})
	a.mu.Unlock()
	out, err := respond(r)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: out.status, Header: http.Header{"Location": {out.location}},
		Body: io.NopCloser(strings.NewReader(out.body)), Request: r}, nil
}

func (a *authority) set(respond responder) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.respond = respond
}

func (a *authority) requests() []request {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.asked)
}

func (a *authority) fetches() int { return len(a.requests()) }

// pass lets time go by, in a bubble of its own.
func pass(d time.Duration) { <-time.After(d) }

func document(keys ...*signer) string {
	set := jose.JSONWebKeySet{}
	for _, k := range keys {
		set.Keys = append(set.Keys, k.jwk())
	}
	return string(must(json.Marshal(set)))
}

func publishing(keys ...*signer) *authority {
	return &authority{respond: answer(http.StatusOK, document(keys...))}
}

// config is for one issuer, whose keys come from a.
func config(a *authority, by ...func(*token.Config)) token.Config {
	c := token.Config{
		Issuers: []token.Issuer{{Issuer: issuerName, Audiences: []string{audience}, JWKSURL: jwksURL, Tenants: []string{"acme"}}},
		Client:  &http.Client{Transport: a},
		Log:     slog.New(slog.DiscardHandler),
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

// all is every algorithm, for issuers that accept them.
func all(c *token.Config) {
	c.Issuers[0].Algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
}

func everyKind() []*signer {
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err)
	}
	out := []*signer{newEC("p256", elliptic.P256()), newEC("p384", elliptic.P384()), newEC("p521", elliptic.P521()), {"ed", "EdDSA", ed}}
	for _, alg := range []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"} {
		out = append(out, &signer{"rsa-" + alg, alg, rsaKey()})
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
	if err := json.Unmarshal(must(json.Marshal(s.jwk())), &m); err != nil {
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
