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

// The issuer and the audience of the tokens that [Claims] makes, and the address of the issuer's keys.
const (
	Issuer   = "https://login.example.com/"
	Audience = "https://api.example.com"
	JWKSURL  = "https://login.example.com/.well-known/jwks.json"
)

// Signer is a key pair with the id and algorithm that its issuer publishes. It signs without the library that Sluice
// verifies with, so that a mistake of that library cannot hide itself.
type Signer struct {
	KeyID, Algorithm string
	Private          crypto.Signer
}

// New returns a signer with the key. The algorithm need not fit the key.
func New(kid, algorithm string, key crypto.Signer) *Signer { return &Signer{kid, algorithm, key} }

// NewEC returns a signer with a new key on the curve.
func NewEC(kid string, curve elliptic.Curve) *Signer {
	alg := map[int]string{256: "ES256", 384: "ES384", 521: "ES512"}[curve.Params().BitSize]
	return New(kid, alg, must(ecdsa.GenerateKey(curve, rand.Reader)))
}

// RSAKey returns an RSA key of 2048 bits, always the same one. It is made at the first call, because that takes long.
var RSAKey = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 2048)) })

// NewRSA returns a signer with [RSAKey] and the algorithm RS256.
func NewRSA(kid string) *Signer { return New(kid, "RS256", RSAKey()) }

// must panics if err is not nil: where keys are made, there is no test that could fail.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// JWK returns the public key in the form in which the issuer publishes it.
func (s *Signer) JWK() jose.JSONWebKey {
	return jose.JSONWebKey{Key: s.Private.Public(), KeyID: s.KeyID, Algorithm: s.Algorithm, Use: "sig"}
}

// Signature returns the signature of the input by the signer's algorithm.
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

// Raw returns a token with exactly this header and payload.
func (s *Signer) Raw(header, payload string) string {
	input := Encode(header) + "." + Encode(payload)
	return input + "." + Encode(string(s.Signature(input)))
}

// Sign returns a token with the claims and the usual header, some of whose members may be changed: see [Change].
func (s *Signer) Sign(claims map[string]any, header ...map[string]any) string {
	h := map[string]any{"alg": s.Algorithm, "kid": s.KeyID, "typ": "JWT"}
	for _, more := range header {
		Change(h, more)
	}
	return s.Raw(string(must(json.Marshal(h))), string(must(json.Marshal(claims))))
}

// Unsigned returns a token with "alg": "none" and no signature.
func Unsigned(kid string, claims map[string]any) string {
	header := string(must(json.Marshal(map[string]any{"alg": "none", "kid": kid, "typ": "JWT"})))
	return Encode(header) + "." + Encode(string(must(json.Marshal(claims)))) + "."
}

// HS256 returns a token that is signed with a shared secret. An attacker would use the public key of an issuer as the
// secret, since everybody knows that key.
func HS256(kid string, secret []byte, claims map[string]any) string {
	header := string(must(json.Marshal(map[string]any{"alg": "HS256", "kid": kid, "typ": "JWT"})))
	input := Encode(header) + "." + Encode(string(must(json.Marshal(claims))))
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(input))
	return input + "." + Encode(string(m.Sum(nil)))
}

// PublicPEM returns the signer's public key in PEM, as people copy it into a verifier's configuration.
func (s *Signer) PublicPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY",
		Bytes: must(x509.MarshalPKIXPublicKey(s.Private.Public()))})
}

// Encode encodes a text in base64url without padding.
func Encode(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// Absent is the value with which [Change] removes a member.
type Absent struct{}

// Change sets members of m to the values in by.
func Change(m, by map[string]any) {
	for k, v := range by {
		if v == (any)(Absent{}) {
			delete(m, k)
		} else {
			m[k] = v
		}
	}
}

// Claims returns the claims of a token that is valid at now: of [Issuer], for user-1 of acme, for an hour. Members are
// then changed as by says.
func Claims(now time.Time, by map[string]any) map[string]any {
	m := map[string]any{"iss": Issuer, "aud": Audience, "tenant_id": "acme", "sub": "user-1", "jti": "id-1",
		"exp": now.Add(time.Hour).Unix(), "nbf": now.Unix(), "iat": now.Unix()}
	Change(m, by)
	return m
}

// With returns a map of names and values, which are given in turn.
func With(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	return m
}

// Reply is the answer of an issuer.
type Reply struct {
	Status         int
	Body, Location string
}

// Responder returns the reply to a request. Its error breaks the connection.
type Responder func(*http.Request) (Reply, error)

// Answer returns a Responder that always gives the same reply.
func Answer(status int, body string) Responder {
	return func(*http.Request) (Reply, error) { return Reply{Status: status, Body: body}, nil }
}

// Hang is a Responder that never replies: it fails when the client gives up.
func Hang(r *http.Request) (Reply, error) {
	<-r.Context().Done()
	return Reply{}, r.Context().Err()
}

// Document returns the key set that an issuer with these keys publishes.
func Document(keys ...*Signer) string {
	set := jose.JSONWebKeySet{}
	for _, k := range keys {
		set.Keys = append(set.Keys, k.JWK())
	}
	return string(must(json.Marshal(set)))
}

// Authority is an issuer that answers requests for its keys. It can be the transport of a client, without a network, or
// the handler of a server. Its replies can be changed while it runs. It is safe for concurrent use.
type Authority struct {
	mu      sync.Mutex
	respond Responder
	asked   []Request
}

// Request is a request that an Authority got.
type Request struct {
	URL string
	At  time.Time
}

// NewAuthority returns an Authority whose replies are those of respond.
func NewAuthority(respond Responder) *Authority { return &Authority{respond: respond} }

// Publishing returns an Authority that publishes the keys.
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
	_, _ = io.WriteString(w, out.Body) // the client may be gone
}

// Set changes the replies.
func (a *Authority) Set(respond Responder) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.respond = respond
}

// Requests returns the requests so far, in the order in which they arrived.
func (a *Authority) Requests() []Request {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.asked)
}

// Fetches returns the number of requests so far.
func (a *Authority) Fetches() int { return len(a.Requests()) }
