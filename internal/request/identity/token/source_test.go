package token_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/sluicelimits/sluice/internal/request/identity/token"
	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

// broken lists the ways in which an issuer fails to answer with keys, each with a part of the reported cause.
var broken = map[string]struct {
	respond responder
	cause   string
}{
	"500":          {answer(http.StatusInternalServerError, document(good)), "status 500"},
	"404":          {answer(http.StatusNotFound, document(good)), "status 404"},
	"204":          {answer(http.StatusNoContent, ""), "status 204"},
	"redirect":     {redirect, "status 302"},
	"nothing":      {answer(http.StatusOK, ""), "not a JWK set"},
	"not JSON":     {answer(http.StatusOK, "<html>down for maintenance</html>"), "not a JWK set"},
	"cut off":      {answer(http.StatusOK, document(good)[:40]), "not a JWK set"},
	"null":         {answer(http.StatusOK, "null"), "no key"},
	"no set":       {answer(http.StatusOK, "{}"), "no key"},
	"empty set":    {answer(http.StatusOK, `{"keys":[]}`), "no key"},
	"keys is text": {answer(http.StatusOK, `{"keys":"none"}`), "not a JWK set"},
	"keys twice":   {answer(http.StatusOK, `{"keys":[],"keys":[]}`), "not a JWK set"},
	"only rubbish": {answer(http.StatusOK, `{"keys":[1,null,{},[],"x"]}`), "no key"},
	"too many keys": {answer(http.StatusOK, keysOf(strings.Split(strings.Repeat("{} ", 256)+"{}", " ")...)),
		"too many keys"},
	"huge": {answer(http.StatusOK,
		strings.Replace(document(good), "{", `{"x":"`+strings.Repeat("x", 256<<10)+`",`, 1)), "larger than"},
	"refused": {func(*http.Request) (reply, error) { return reply{}, errors.New("connection refused") },
		"connection refused"},
	"never answered": {hang, "longer than"},
}

func redirect(*http.Request) (reply, error) {
	return reply{Status: http.StatusFound, Location: "https://evil.example/jwks"}, nil
}

// Guarantees that missing keys are reported as another error than a bad token, within the allowed wait, and that the
// error does not repeat the issuer's answer.
func TestKeysUnavailable(t *testing.T) {
	for name, b := range broken {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAuthority(b.respond)
				v := newVerifier(t, config(a))
				text := good.Sign(claims(time.Now(), nil))
				began := time.Now()
				err := verify(v, text, began)
				if !errors.Is(err, token.ErrKeysUnavailable) || errors.Is(err, token.ErrBadToken) ||
					!strings.Contains(err.Error(), b.cause) ||
					!strings.Contains(err.Error(), issuerName) {
					t.Errorf("Verify = %v; want ErrKeysUnavailable, the issuer and %q", err, b.cause)
				}
				wantSilent(t, err, text)
				if took := time.Since(began); took > token.DefaultWait {
					t.Errorf("Verify took %v, want at most %v", took, token.DefaultWait)
				}
				for _, r := range a.Requests() {
					if r.URL != jwksURL {
						t.Errorf("keys were requested from %s, want the issuer's own URL", r.URL)
					}
				}
			})
		})
	}
}

// Guarantees that an issuer that fails after it has answered only delays changes: valid tokens stay valid until they
// expire, whether they are remembered or not, and no request waits longer than half a second.
func TestLastKnownGood(t *testing.T) {
	for name, b := range broken {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := publishing(good)
				v := newVerifier(t, config(a))
				long := with("exp", time.Now().Add(1000*time.Hour).Unix())
				text := good.Sign(claims(time.Now(), long))
				if err := verify(v, text, time.Now()); err != nil {
					t.Fatal(err)
				}
				a.Set(b.respond)
				for range 20 {
					pass(time.Hour)
					fresh := good.Sign(claims(time.Now(), with("exp", time.Now().Add(time.Minute).Unix())))
					for _, text := range []string{text, fresh} {
						began := time.Now()
						if err := verify(v, text, began); err != nil {
							t.Fatalf("Verify = %v, want the last keys to do", err)
						}
						if took := time.Since(began); took > 500*time.Millisecond {
							t.Fatalf("Verify took %v although there are keys, want at most 500ms", took)
						}
					}
				}
				if s := v.Stats(); s.Failures == 0 || s.KeysFrom.After(time.Now().Add(-19*time.Hour)) {
					t.Errorf("Stats = %+v, want failures and the age of the keys", s)
				}
				a.Set(answer(http.StatusOK, document(good, newEC("k2", elliptic.P256()))))
				pass(time.Hour)
				if err := verify(v, text, time.Now()); err != nil {
					t.Errorf("Verify = %v after the issuer is back", err)
				}
				synctest.Wait()
				if s := v.Stats(); s.KeysFrom.Before(time.Now().Add(-time.Minute)) {
					t.Errorf("Stats = %+v, want new keys", s)
				}
			})
		})
	}
}

// Guarantees that a flood of tokens with unknown keys causes one request to the issuer per cooldown, whether it answers
// or not, and takes no memory; and that valid tokens are accepted meanwhile.
func TestFloodOfUnknownKeys(t *testing.T) {
	for name, respond := range map[string]responder{
		"issuer up": answer(http.StatusOK, document(good)), "issuer down": answer(http.StatusBadGateway, ""),
		"issuer hangs": hang,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := publishing(good)
				v := newVerifier(t, config(a))
				known := good.Sign(claims(time.Now(), nil))
				if err := verify(v, known, time.Now()); err != nil {
					t.Fatal(err)
				}
				a.Set(respond)
				const minutes = 2
				var flood sync.WaitGroup
				for worker := range 8 {
					flood.Go(func() {
						for i := range minutes * 60 {
							began := time.Now()
							text := attacker.Sign(claims(began, nil), with("kid", fmt.Sprint(worker, "-", i)))
							if err := verify(v, text, began); !errors.Is(err, token.ErrUnknownKey) &&
								!errors.Is(err, token.ErrKeysUnavailable) {
								t.Errorf("Verify = %v, want ErrUnknownKey or ErrKeysUnavailable", err)
							}
							if took := time.Since(began); took > token.DefaultWait {
								t.Errorf("a request with an unknown key waited %v, want at most DefaultWait", took)
							}
							began = time.Now()
							if err := verify(v, known, began); err != nil || time.Since(began) > 0 {
								t.Errorf("a valid token: %v after %v, want it accepted without a wait", err,
									time.Since(began))
							}
							pass(time.Second)
						}
					})
				}
				flood.Wait()
				asked := a.Requests()
				for n := 1; n < len(asked); n++ {
					if gap := asked[n].At.Sub(asked[n-1].At); gap < token.DefaultCooldown {
						t.Errorf("fetch %d came after %v, want at least the cooldown", n+1, gap)
					}
				}
				if n := a.Fetches(); n < 2 {
					t.Errorf("%d fetches, want that unknown keys cause some", n)
				}
				if n := v.Stats().Remembered; n != 1 {
					t.Errorf("%d tokens remembered, want 1", n)
				}
			})
		})
	}
}

// Guarantees that a token with an unknown key is not refused as bad while nobody can know whether the key exists, and
// that a known key with an algorithm that is not its own causes no request to the issuer.
func TestUnknownKeyAndTheIssuerAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := publishing(good)
		v := newVerifier(t, config(a))
		check := func(text string, want error, fetches int) {
			t.Helper()
			if err := verify(v, text, time.Now()); !errors.Is(err, want) || a.Fetches() != fetches {
				t.Errorf("Verify = %v after %d fetches, want %v after %d", err, a.Fetches(), want, fetches)
			}
		}
		next := newEC("k2", elliptic.P256()).Sign(claims(time.Now(), nil))
		check(next, token.ErrUnknownKey, 1)
		pass(token.DefaultCooldown)
		check(keyed("k1", "RS256", rsaKey()).Sign(claims(time.Now(), nil)), token.ErrUnknownKey, 1)
		a.Set(answer(http.StatusInternalServerError, ""))
		check(next, token.ErrKeysUnavailable, 2)
		check(next, token.ErrKeysUnavailable, 2)
		a.Set(answer(http.StatusOK, document(good)))
		pass(token.DefaultCooldown)
		check(next, token.ErrUnknownKey, 3)
	})
}

// Guarantees that all callers that wait share one fetch, and wait at most for Config.Wait or until their context ends.
// Callers that come after the fetch get its keys.
func TestOneFetchAndABoundedWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Bool
		a := newAuthority(func(r *http.Request) (reply, error) {
			pass(3 * time.Second)
			open.Store(true)
			return answer(http.StatusOK, document(good))(r)
		})
		v := newVerifier(t, config(a))
		text := good.Sign(claims(time.Now(), nil))
		began := time.Now()
		var waiting sync.WaitGroup
		for i := range 100 {
			waiting.Go(func() {
				ctx, cancel, want := t.Context(), context.CancelFunc(func() {}), token.DefaultWait
				if i%2 == 0 {
					want = 100 * time.Millisecond
					ctx, cancel = context.WithTimeout(ctx, want)
				}
				defer cancel()
				_, err := v.Verify(ctx, text, began)
				if !errors.Is(err, token.ErrKeysUnavailable) || time.Since(began) != want {
					t.Errorf("Verify = %v after %v, want ErrKeysUnavailable after %v", err, time.Since(began), want)
				}
				if i%2 == 0 && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Verify = %v, want that it wraps the context's error", err)
				}
			})
		}
		waiting.Wait()
		if err := verify(v, text, time.Now()); err != nil || !open.Load() {
			t.Errorf("Verify = %v, want to be served by the fetch under way", err)
		}
		if n := a.Fetches(); n != 1 {
			t.Errorf("%d fetches for 101 requests, want 1", n)
		}
	})
}

// Guarantees that a rotation of keys fails no valid token: the old key is accepted until the set is replaced, a new key
// is found within the cooldown, and tokens of a withdrawn key, even remembered ones, are refused after at most 1.2
// refresh intervals.
func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := newEC("k2", elliptic.P256())
		a := publishing(good)
		v := newVerifier(t, config(a))
		sign := func(s *signer) string {
			return s.Sign(claims(time.Now(), with("exp", time.Now().Add(24*time.Hour).Unix())))
		}
		old := sign(good)
		check := func(when, text string, want error) {
			t.Helper()
			if err := verify(v, text, time.Now()); !errors.Is(err, want) {
				t.Errorf("%s: Verify = %v, want %v", when, err, want)
			}
		}
		check("at first", old, nil)

		a.Set(answer(http.StatusOK, document(good, next)))
		rotated := sign(next)
		check("a new key, at once", rotated, token.ErrUnknownKey)
		pass(token.DefaultCooldown)
		check("a new key, a cooldown later", rotated, nil)
		check("the old key", sign(good), nil)

		a.Set(answer(http.StatusOK, document(next)))
		check("withdrawn, not yet noticed", old, nil)
		check("withdrawn, not yet noticed, first sight", sign(good), nil)
		pass(token.DefaultRefresh * 6 / 5)
		check("what makes it be noticed", rotated, nil)
		synctest.Wait()
		check("withdrawn, remembered", old, token.ErrUnknownKey)
		check("withdrawn, first sight", sign(good), token.ErrUnknownKey)
		check("the new key", rotated, nil)

		usurper := newEC("k2", elliptic.P256())
		a.Set(answer(http.StatusOK, document(usurper)))
		pass(token.DefaultRefresh * 6 / 5)
		// the rotation is noticed in the background of this call
		if err := verify(v, rotated, time.Now()); err != nil && !errors.Is(err, token.ErrSignature) {
			t.Errorf("Verify of the token that shows the rotation = %v, want no error or ErrSignature", err)
		}
		synctest.Wait()
		check("another key under the name", rotated, token.ErrSignature)
		check("the key that has the name", sign(usurper), nil)
	})
}

// Guarantees that keys that are young enough are replaced in the background of requests, and that a request waits for
// the replacement of older ones: an environment that was frozen for a day must not trust keys that were withdrawn
// meanwhile.
func TestOldKeysAreReplacedInFront(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slowly := func(keys ...*signer) responder {
			return func(r *http.Request) (reply, error) {
				pass(200 * time.Millisecond)
				return answer(http.StatusOK, document(keys...))(r)
			}
		}
		next := newEC("k2", elliptic.P256())
		a := publishing(good)
		v := newVerifier(t, config(a))
		old := good.Sign(claims(time.Now(), with("exp", time.Now().Add(100*time.Hour).Unix())))
		step := func(after time.Duration, want error, wait time.Duration) {
			t.Helper()
			pass(after)
			began := time.Now()
			if err := verify(v, old, began); !errors.Is(err, want) || time.Since(began) != wait {
				t.Errorf("Verify = %v after %v, want %v after %v", err, time.Since(began), want, wait)
			}
		}
		step(0, nil, 0)
		a.Set(slowly(good))
		step(token.DefaultRefresh*6/5, nil, 0)
		step(time.Second, nil, 0)
		if n := a.Fetches(); n != 2 {
			t.Errorf("%d fetches, want one in the background", n)
		}
		a.Set(slowly(next))
		var beside sync.WaitGroup
		beside.Go(func() {
			pass(24*time.Hour + 100*time.Millisecond)
			step(0, nil, 0) // only the caller that begins the fetch waits for it
		})
		step(24*time.Hour, token.ErrUnknownKey, 200*time.Millisecond)
		beside.Wait()
		if n := a.Fetches(); n != 3 {
			t.Errorf("%d fetches, want one in front", n)
		}
	})
}

func TestWarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := publishing(good)
		v := newVerifier(t, config(a))
		v.Warm(time.Now())
		synctest.Wait()
		v.Warm(time.Now())
		synctest.Wait()
		if n := a.Fetches(); n != 1 {
			t.Errorf("%d fetches, want 1", n)
		}
		if err := verify(v, good.Sign(claims(time.Now(), nil)), time.Now()); err != nil || a.Fetches() != 1 {
			t.Errorf("Verify = %v after %d fetches, want that Warm's did", err, a.Fetches())
		}
		pass(token.DefaultCooldown)
		v.Warm(time.Now())
		synctest.Wait()
		if n := a.Fetches(); n != 1 {
			t.Errorf("%d fetches, want none for keys that are there", n)
		}
	})
}

// Guarantees that keys that are weak, secret, or meant for another use verify nothing, and do not make the other keys
// of their set unusable; and that the error, or the log, names the key and the reason, and nothing secret of the key.
func TestUnusableKeysAreLeftOut(t *testing.T) {
	weak := must(rsa.GenerateKey(rand.Reader, 1024))
	public := func(s *signer) string { return jwkWith(s) }
	rsaSigner := keyed("k1", "RS256", rsaKey())
	one := &rsa.PublicKey{N: rsaKey().N, E: 1}
	even := &rsa.PublicKey{N: rsaKey().N, E: 65536}
	long := &rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), 16000, 1), E: 65537}
	raw := func(key any) string {
		return string(must(jose.JSONWebKey{Key: key, KeyID: "k1", Algorithm: "RS256", Use: "sig"}.MarshalJSON()))
	}
	for name, c := range map[string]struct {
		by     *signer
		jwk    string
		reason string
	}{
		"RSA of 1024 bits":         {keyed("k1", "RS256", weak), public(keyed("k1", "RS256", weak)), "too weak"},
		"RSA of 16000 bits":        {rsaSigner, raw(long), "modulus too large"},
		"RSA with exponent 1":      {rsaSigner, raw(one), "bad e value"},
		"RSA with an even one":     {rsaSigner, raw(even), "too weak"},
		"for encryption":           {good, jwkWith(good, "use", "enc"), `its "use" is "enc"`},
		"for another use":          {good, jwkWith(good, "use", "tls"), `its "use" is "tls"`},
		"only for signing":         {good, jwkWith(good, "key_ops", []string{"sign"}), `"key_ops" lack "verify"`},
		"for no operation":         {good, jwkWith(good, "key_ops", []string{}), `"key_ops" lack "verify"`},
		"of another algorithm":     {rsaSigner, jwkWith(rsaSigner, "alg", "RSA-OAEP"), `its "alg" is "RSA-OAEP"`},
		"of one that is not taken": {rsaSigner, jwkWith(rsaSigner, "alg", "RS512"), `its "alg" is "RS512"`},
		"a private one": {good,
			string(must(jose.JSONWebKey{Key: good.Private, KeyID: "k1", Algorithm: "ES256",
				Use: "sig"}.MarshalJSON())), "a private key"},
		"a private one, in part":  {rsaSigner, jwkWith(rsaSigner, "dq", "AQAB"), `it has "dq"`},
		"a name that is a number": {good, jwkWith(good, "kid", 1), `"kid"`},
		"operations in a text":    {good, jwkWith(good, "key_ops", "verify"), `"key_ops"`},
		"a secret":                {good, `{"kty":"oct","kid":"k1","k":"AAAA","alg":"HS256"}`, `its "kty" is "oct"`},
		"not on its curve": {good, jwkWith(good, "x", encode(strings.Repeat("\x01", 32))),
			"not on declared curve"},
		"a curve nobody knows": {good, jwkWith(good, "crv", "P-111"), "unsupported elliptic curve"},
		"a kind nobody knows":  {good, jwkWith(good, "kty", "XYZ"), `its "kty" is "XYZ"`},
		"a name too long":      {good, jwkWith(good, "kid", strings.Repeat("k", 300)), "longer than 256 bytes"},
		"a member twice":       {good, strings.Replace(jwkWith(good), "{", `{"kid":"k1",`, 1), "a member twice"},
	} {
		t.Run(name, func(t *testing.T) {
			other := newEC("other", elliptic.P256())
			alone := newVerifier(t, config(newAuthority(answer(http.StatusOK, keysOf(c.jwk)))))
			err := verify(alone, c.by.Sign(claims(noon, nil)), noon)
			if !errors.Is(err, token.ErrKeysUnavailable) || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("alone: Verify = %v, want ErrKeysUnavailable and %s", err, c.reason)
			}
			var lines bytes.Buffer
			beside := newVerifier(t, config(newAuthority(answer(http.StatusOK, keysOf(c.jwk, public(other)))),
				func(c *token.Config) { c.Log = slog.New(slog.NewJSONHandler(&lines, nil)) }))
			if err := verify(beside, c.by.Sign(claims(noon, nil)), noon); !errors.Is(err, token.ErrUnknownKey) {
				t.Errorf("with an unusable key in the set: Verify = %v, want ErrUnknownKey", err)
			}
			if err := verify(beside, other.Sign(claims(noon, nil)), noon); err != nil {
				t.Errorf("the other: Verify = %v, want nil", err)
			}
			beside.Close() // waits for the line of the log
			if said := strings.ReplaceAll(lines.String(), `\"`, `"`); strings.Count(said, "key 1 of 2") != 1 ||
				!strings.Contains(said, c.reason) {
				t.Errorf("the log says %q, want key 1 of 2 and %s, once", said, c.reason)
			}
			private, keyErr := good.Private.(*ecdsa.PrivateKey).Bytes()
			if keyErr != nil {
				t.Fatal(keyErr)
			}
			if strings.Contains(err.Error()+lines.String(), encode(string(private))[:20]) {
				t.Errorf("the error or the log repeats a secret: %v\n%s", err, lines.String())
			}
		})
	}
}

// Guarantees what a key set may leave out. A key without "alg" and "use" is used with each algorithm of its kind that
// the issuer is allowed. A key without "kid" is used for tokens without one, if there is only one such key. Keys that
// share a name are tried one after the other.
func TestNamesInASet(t *testing.T) {
	bare := keyed("k1", "RS256", rsaKey())
	v := newVerifier(t,
		config(newAuthority(answer(http.StatusOK,
			keysOf(jwkWith(bare, "alg", absent{}, "use", absent{}, "key_ops", []string{"verify"})))), all))
	for _, alg := range []string{"RS256", "PS512"} {
		if err := verify(v, keyed("k1", alg, rsaKey()).Sign(claims(noon, nil)), noon); err != nil {
			t.Errorf("%s: Verify = %v, want nil", alg, err)
		}
	}
	nameless := newVerifier(t,
		config(newAuthority(answer(http.StatusOK, keysOf(jwkWith(good, "kid", absent{}), jwkWith(bare))))))
	if err := verify(nameless, good.Sign(claims(noon, nil), with("kid", absent{})), noon); err != nil {
		t.Errorf("without names: Verify = %v, want nil", err)
	}
	two := newVerifier(t, config(publishing(good, newEC("k2", elliptic.P256()))))
	if err := verify(two, good.Sign(claims(noon, nil), with("kid", absent{})), noon); !errors.Is(err,
		token.ErrUnknownKey) {
		t.Errorf("without a name, of two: Verify = %v, want ErrUnknownKey", err)
	}
	same := newVerifier(t, config(publishing(good, attacker)))
	if err := verify(same, good.Sign(claims(noon, nil)), noon); err != nil {
		t.Errorf("the first of one name: Verify = %v, want nil", err)
	}
	if err := verify(same, attacker.Sign(claims(noon, nil)), noon); err != nil {
		t.Errorf("the second of one name: Verify = %v, want nil", err)
	}
	if err := verify(same, newEC("k1", elliptic.P256()).Sign(claims(noon, nil)), noon); !errors.Is(err,
		token.ErrSignature) {
		t.Errorf("a third key, under the name of two: Verify = %v, want ErrSignature", err)
	}
	rsaNamesake, ecNamesake := keyed("k", "RS256", rsaKey()), newEC("k", elliptic.P256())
	across := newVerifier(t, config(publishing(rsaNamesake, ecNamesake)))
	for _, k := range []*signer{rsaNamesake, ecNamesake} {
		if err := verify(across, k.Sign(claims(noon, nil)), noon); err != nil {
			t.Errorf("one name for two algorithms, %s: Verify = %v, want nil", k.Algorithm, err)
		}
		if err := verify(across, k.Sign(claims(noon, nil), with("kid", absent{})), noon); err != nil {
			t.Errorf("without a name, the only key for %s: Verify = %v, want nil", k.Algorithm, err)
		}
	}
}

// Guarantees that the members that make a public key suffice: whatever else a JWK holds and Go cannot read is ignored,
// and the log says once which key it was and why.
func TestOddMembersAreIgnored(t *testing.T) {
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: noon.Add(time.Hour)}
	certificate := must(x509.CreateCertificate(rand.Reader, template, template, good.Private.Public(), good.Private))
	negative := bytes.Clone(certificate)
	negative[bytes.Index(negative, []byte{2, 1, 1, 0x30})+2] = 0x81 // INTEGER 1, before a SEQUENCE
	bare := must(x509.MarshalPKIXPublicKey(good.Private.Public()))
	std := base64.StdEncoding.EncodeToString
	kinds := append(everyKind()[:5], good) // one of each "kty", and the key of the certificates
	for name, odd := range map[string]map[string]any{
		"a certificate with a negative serial number": with("x5c", []string{std(negative)}),
		"a bare public key":                           with("x5c", []string{std(bare)}),
		"a certificate in PEM": with("x5c", []string{string(pem.EncodeToMemory(
			&pem.Block{Type: "CERTIFICATE", Bytes: certificate}))}),
		"a certificate in base64url":   with("x5c", []string{base64.RawURLEncoding.EncodeToString(certificate)}),
		"a certificate that is cut":    with("x5c", []string{std(certificate[:100])}),
		"a certificate outside a list": with("x5c", std(certificate)),
		"an empty certificate":         with("x5c", []string{""}),
		"a thumbprint with padding":    with("x5t", "qqqqqqqqqqqqqqqqqqqqqqqqqqo="),
		"a thumbprint of another size": with("x5t#S256", "AAAA"),
		"a thumbprint that is null":    with("x5t", 1),
		"an address that is none":      with("x5u", "http://[::1"),
		"a member of another kind":     with("pub", "not base64url!"),
	} {
		for _, k := range kinds {
			t.Run(name+", "+k.Algorithm, func(t *testing.T) {
				var lines bytes.Buffer
				body := keysOf(jwkWith(k, slices.Concat(pairs(odd), []any{"kid", "odd"})...))
				a := newAuthority(answer(http.StatusOK, body))
				v := newVerifier(t, config(a, all, func(c *token.Config) {
					c.Log = slog.New(slog.NewTextHandler(&lines, nil))
				}))
				signedBy := keyed("odd", k.Algorithm, k.Private)
				if err := verify(v, signedBy.Sign(claims(noon, nil)), noon); err != nil {
					t.Errorf("Verify = %v, want nil", err)
				}
				if err := verify(v, signedBy.Sign(claims(noon.Add(time.Hour), nil)), noon.Add(time.Hour)); err != nil {
					t.Errorf("an hour later: Verify = %v, want nil", err)
				}
				v.Close() // waits for the fetch, and for its line of the log
				if n := strings.Count(lines.String(), `kid \"odd\"`); a.Fetches() != 2 || n != 1 {
					t.Errorf("%d fetches, and the log names the key %d times, want 2 and 1:\n%s", a.Fetches(), n,
						lines.String())
				}
			})
		}
	}
}

// pairs returns the arguments with which [with] makes m.
func pairs(m map[string]any) (out []any) {
	for name, value := range m {
		out = append(out, name, value)
	}
	return out
}

// Guarantees, over a real connection and with the default client, that redirects are not followed, that a small
// compressed answer cannot become a large one, and that a key set that is served is used.
func TestOverHTTP(t *testing.T) {
	var elsewhere atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		elsewhere.Add(1)
		_, _ = w.Write([]byte(document(attacker)))
	}))
	defer other.Close()
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	if _, err := z.Write(make([]byte, 4<<20)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(w, r, other.URL, http.StatusPermanentRedirect)
		case "/bomb":
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb.Bytes())
		case "/secret":
			w.WriteHeader(http.StatusForbidden)
		default:
			_, _ = w.Write([]byte(document(good)))
		}
	}))
	defer issuer.Close()
	for path, c := range map[string]struct {
		by    *signer
		want  error
		cause string
	}{
		"/jwks":             {good, nil, ""},
		"/redirect":         {attacker, token.ErrKeysUnavailable, "status 308"},
		"/bomb":             {good, token.ErrKeysUnavailable, "larger than"},
		"/secret?code=abcd": {good, token.ErrKeysUnavailable, "status 403"},
	} {
		var lines bytes.Buffer
		v := newVerifier(t, config(nil, func(c *token.Config) {
			c.Client, c.Issuers[0].JWKSURL, c.Wait = nil, issuer.URL+path, 30*time.Second
			c.Log = slog.New(slog.NewTextHandler(&lines, nil))
		}))
		text := c.by.Sign(claims(noon, nil))
		err := verify(v, text, noon)
		if !errors.Is(err, c.want) || (err != nil && !strings.Contains(err.Error(), c.cause)) {
			t.Errorf("%s: Verify = %v, want %v, %q", path, err, c.want, c.cause)
		}
		v.Close() // Close waits for the log line
		if strings.Contains(lines.String(), "abcd") || (c.want != nil && !strings.Contains(lines.String(), c.cause)) {
			t.Errorf("%s: the log says %q, want the cause and no query", path, lines.String())
		}
		wantSilent(t, errors.New(lines.String()), text)
	}
	issuer.Close()
	v := newVerifier(t,
		config(nil, func(c *token.Config) { c.Client, c.Issuers[0].JWKSURL = nil, issuer.URL+"/jwks?code=abcd" }))
	if err := verify(v, good.Sign(claims(noon, nil)), noon); !errors.Is(err, token.ErrKeysUnavailable) ||
		strings.Contains(err.Error(), "abcd") {
		t.Errorf("no server at the URL: Verify = %v, want ErrKeysUnavailable, and no query of the URL in the error",
			err)
	}
	if n := elsewhere.Load(); n != 0 {
		t.Errorf("a redirect was followed %d times, want never", n)
	}
}

// Guarantees that verification, rotation, failures and expiry can happen concurrently without a race, and that no
// forged token is accepted meanwhile.
func TestConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := newEC("k2", elliptic.P256())
		a := publishing(good)
		v := newVerifier(t, config(a, func(c *token.Config) { c.MaxRemembered = 50 }))
		var tokens []string
		for i := range 100 {
			tokens = append(tokens,
				good.Sign(claims(time.Now(), with("jti", fmt.Sprint(i), "exp", time.Now().Add(10*time.Hour).Unix()))))
		}
		forged := attacker.Sign(claims(time.Now(), with("exp", time.Now().Add(10*time.Hour).Unix())))
		if err := verify(v, tokens[0], time.Now()); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for worker := range 8 {
			all.Go(func() {
				for i := range 60 {
					if err := verify(v, tokens[(worker*31+i)%len(tokens)], time.Now()); err != nil {
						t.Errorf("Verify = %v, want nil", err)
					}
					if err := verify(v, forged, time.Now()); !errors.Is(err, token.ErrSignature) {
						t.Errorf("Verify of a forged token = %v, want ErrSignature", err)
					}
					v.Stats()
					pass(time.Minute)
				}
			})
		}
		all.Go(func() {
			for i := range 30 {
				respond := answer(http.StatusOK, document(good, next))
				if i%2 == 0 {
					respond = answer(http.StatusInternalServerError, "")
				}
				a.Set(respond)
				pass(2 * time.Minute)
			}
		})
		all.Wait()
	})
}

// Guarantees that the keys of an issuer can come from a file: a new key in it is accepted as soon as a token names it,
// and a file that is away or too large is no reason to refuse a credential as bad.
func TestKeysOfAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "jwks.json")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	next := tokentest.NewEC("k2", elliptic.P256())
	c := config(nil, func(c *token.Config) {
		c.Issuers[0].JWKSURL, c.Issuers[0].JWKSFile = "", file
	})
	v := newVerifier(t, c)
	if err := verify(v, good.Sign(claims(noon, nil)), noon); !errors.Is(err, token.ErrKeysUnavailable) {
		t.Errorf("without the file: %v", err)
	}
	put(tokentest.Document(good))
	now := noon.Add(time.Minute)
	if err := verify(v, good.Sign(claims(noon, nil)), now); err != nil {
		t.Errorf("with the file: %v", err)
	}
	put(tokentest.Document(good, next))
	now = now.Add(2 * time.Minute)
	if err := verify(v, next.Sign(claims(noon, nil)), now); err != nil {
		t.Errorf("a key that is new in the file: %v", err)
	}
	put(tokentest.Document(good) + strings.Repeat(" ", 1<<20))
	if err := verify(newVerifier(t, c), good.Sign(claims(noon, nil)), now); !errors.Is(err, token.ErrKeysUnavailable) ||
		!strings.Contains(err.Error(), "larger than") {
		t.Errorf("a large file: %v", err)
	}
	c.Issuers[0].JWKSURL = "https://login.example.com/jwks"
	if _, err := token.New(c); err == nil || !strings.Contains(err.Error(), "either JWKSURL or JWKSFile") {
		t.Errorf("a file and a URL: %v", err)
	}
}
