// Package tokentest makes what tests of JWTs need: keys, tokens good and bad, and issuers that publish their keys, or
// fail to.
package tokentest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Whose tokens [Claims] are, and for whom.
const (
	Issuer   = "https://login.example.com/"
	Audience = "https://api.example.com"
	JWKSURL  = "https://login.example.com/.well-known/jwks.json"
)

// Signer is a key pair with what its issuer publishes of it. It signs without the library that verifies.
type Signer struct {
	KeyID, Algorithm string
	Private          crypto.Signer
}

// New is a signer with the key, which the algorithm need not fit.
func New(kid, algorithm string, key crypto.Signer) *Signer { return &Signer{kid, algorithm, key} }

// NewEC makes a key on the curve.
func NewEC(kid string, curve elliptic.Curve) *Signer {
	alg := map[int]string{256: "ES256", 384: "ES384", 521: "ES512"}[curve.Params().BitSize]
	return New(kid, alg, must(ecdsa.GenerateKey(curve, rand.Reader)))
}

// RSAKey is one key of 2048 bits, made at its first use.
var RSAKey = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 2048)) })

// NewRSA is the signer with [RSAKey], by RS256.
func NewRSA(kid string) *Signer { return New(kid, "RS256", RSAKey()) }

// must ends the test binary: there is no test to fail where keys are made.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// JWK is what the issuer publishes.
func (s *Signer) JWK() jose.JSONWebKey {
	return jose.JSONWebKey{Key: s.Private.Public(), KeyID: s.KeyID, Algorithm: s.Algorithm, Use: "sig"}
}

// Signature is over input, for the algorithm.
func (s *Signer) Signature(input string) []byte {
	bits := crypto.SHA256
	switch s.Algorithm[2:] {
	case "384":
		bits = crypto.SHA384
	case "512":
		bits = crypto.SHA512
	}
	h := bits.New()
	h.Write([]byte(input))
	digest := h.Sum(nil)
	switch k := s.Private.(type) {
	case *rsa.PrivateKey:
		if s.Algorithm[:2] == "PS" {
			return must(rsa.SignPSS(rand.Reader, k, bits, digest,
				&rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash}))
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

// Raw signs exactly this header and payload.
func (s *Signer) Raw(header, payload string) string {
	input := Encode(header) + "." + Encode(payload)
	return input + "." + Encode(string(s.Signature(input)))
}

// Sign signs claims under the plain header, with members changed.
func (s *Signer) Sign(claims map[string]any, header ...map[string]any) string {
	h := map[string]any{"alg": s.Algorithm, "kid": s.KeyID, "typ": "JWT"}
	for _, more := range header {
		Change(h, more)
	}
	return s.Raw(string(must(json.Marshal(h))), string(must(json.Marshal(claims))))
}

// Unsigned is a token of "alg": "none", which nobody signed.
func Unsigned(kid string, claims map[string]any) string {
	header := string(must(json.Marshal(map[string]any{"alg": "none", "kid": kid, "typ": "JWT"})))
	return Encode(header) + "." + Encode(string(must(json.Marshal(claims)))) + "."
}

// HS256 is a token under a shared secret: with the public key of an issuer for one, which everybody has.
func HS256(kid string, secret []byte, claims map[string]any) string {
	header := string(must(json.Marshal(map[string]any{"alg": "HS256", "kid": kid, "typ": "JWT"})))
	input := Encode(header) + "." + Encode(string(must(json.Marshal(claims))))
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(input))
	return input + "." + Encode(string(m.Sum(nil)))
}

// PublicPEM is the signer's public key, as people copy it into a verifier's configuration.
func (s *Signer) PublicPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY",
		Bytes: must(x509.MarshalPKIXPublicKey(s.Private.Public()))})
}

// Encode is base64url without padding.
func Encode(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// Absent takes a member away, where it is the value in a [Change].
type Absent struct{}

// Change changes members of m.
func Change(m, by map[string]any) {
	for k, v := range by {
		if m[k] = v; v == (any)(Absent{}) {
			delete(m, k)
		}
	}
}

// Claims are those of a good token at now, of [Issuer] for acme's user-1 and an hour long, with members changed.
func Claims(now time.Time, by map[string]any) map[string]any {
	m := map[string]any{"iss": Issuer, "aud": Audience, "tenant_id": "acme", "sub": "user-1", "jti": "id-1",
		"exp": now.Add(time.Hour).Unix(), "nbf": now.Unix(), "iat": now.Unix()}
	Change(m, by)
	return m
}

// With is a map of names and values.
func With(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	return m
}

// Reply is what an issuer answers.
type Reply struct {
	Status         int
	Body, Location string
}

// Responder decides on a reply, or fails.
type Responder func(*http.Request) (Reply, error)

// Answer always answers so.
func Answer(status int, body string) Responder {
	return func(*http.Request) (Reply, error) { return Reply{Status: status, Body: body}, nil }
}

// Hang answers when the request is given up.
func Hang(r *http.Request) (Reply, error) {
	<-r.Context().Done()
	return Reply{}, r.Context().Err()
}

// Document is the key set that an issuer publishes.
func Document(keys ...*Signer) string {
	set := jose.JSONWebKeySet{}
	for _, k := range keys {
		set.Keys = append(set.Keys, k.JWK())
	}
	return string(must(json.Marshal(set)))
}

// Authority answers requests for keys: as the transport of a client, without a network, and as a server's handler. What
// it answers can be changed while it runs. It is safe for concurrent use.
type Authority struct {
	mu      sync.Mutex
	respond Responder
	asked   []Request
}

// Request is one that arrived.
type Request struct {
	URL string
	At  time.Time
}

// NewAuthority answers as respond does.
func NewAuthority(respond Responder) *Authority { return &Authority{respond: respond} }

// Publishing answers with the keys.
func Publishing(keys ...*Signer) *Authority {
	return NewAuthority(Answer(http.StatusOK, Document(keys...)))
}

func (a *Authority) reply(r *http.Request) (Reply, error) {
	a.mu.Lock()
	respond := a.respond
	a.asked = append(a.asked, Request{r.URL.String(), time.Now()})
	a.mu.Unlock()
	return respond(r)
}

// RoundTrip implements [http.RoundTripper].
func (a *Authority) RoundTrip(r *http.Request) (*http.Response, error) {
	out, err := a.reply(r)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: out.Status, Header: http.Header{"Location": {out.Location}},
		Body: io.NopCloser(strings.NewReader(out.Body)), Request: r}, nil
}

// ServeHTTP implements [http.Handler]. A responder's error cuts the connection.
func (a *Authority) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out, err := a.reply(r)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if out.Location != "" {
		w.Header().Set("Location", out.Location)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(out.Status)
	_, _ = io.WriteString(w, out.Body) // whoever asked may be gone
}

// Set changes what it answers.
func (a *Authority) Set(respond Responder) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.respond = respond
}

// Requests are those that arrived, in their order.
func (a *Authority) Requests() []Request {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.asked)
}

// Fetches is how many requests arrived.
func (a *Authority) Fetches() int { return len(a.Requests()) }
