package kmskey_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/kms/types"

	"github.com/sluicelimits/sluice/internal/control/audit/kmskey"
)

// inKMS imitates KMS with one key.
type inKMS struct {
	*ecdsa.PrivateKey
	away error
}

const arn = "arn:aws:kms:eu-west-1:123456789012:key/1"

func (k inKMS) Sign(_ context.Context, in *kms.SignInput, _ ...func(*kms.Options)) (*kms.SignOutput, error) {
	if k.away != nil {
		return nil, k.away
	}
	if *in.KeyId != arn || in.MessageType != types.MessageTypeDigest ||
		in.SigningAlgorithm != types.SigningAlgorithmSpecEcdsaSha256 {
		return nil, errors.New("another call")
	}
	signature, err := ecdsa.SignASN1(rand.Reader, k.PrivateKey, in.Message)
	return &kms.SignOutput{Signature: signature}, err
}

func (k inKMS) GetPublicKey(_ context.Context, in *kms.GetPublicKeyInput,
	_ ...func(*kms.Options)) (*kms.GetPublicKeyOutput, error) {
	if k.away != nil || *in.KeyId != arn {
		return nil, errors.Join(errors.New("refused"), k.away)
	}
	der, err := x509.MarshalPKIXPublicKey(&k.PublicKey)
	return &kms.GetPublicKeyOutput{PublicKey: der}, err
}

func newKey(t *testing.T, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Guarantees that the public key that KMS returns verifies its signatures, and that its errors are returned.
func TestSigner(t *testing.T) {
	k := inKMS{PrivateKey: newKey(t, elliptic.P256())}
	digest := sha256.Sum256([]byte("anchor"))
	signature, err := kmskey.NewSigner(k, arn).Sign(t.Context(), digest)
	if err != nil {
		t.Fatal(err)
	}
	public, err := kmskey.Public(t.Context(), k, arn)
	if err != nil || !ecdsa.VerifyASN1(public, digest[:], signature) {
		t.Errorf("got a signature that does not verify, error %v", err)
	}
	k.away = errors.New("throttled")
	if signature, err := kmskey.NewSigner(k, arn).Sign(t.Context(), digest); !errors.Is(err, k.away) ||
		signature != nil {
		t.Errorf("KMS does not answer: got the signature %x, error %v; want none, and the error of KMS", signature, err)
	}
	if public, err := kmskey.Public(t.Context(), k, arn); !errors.Is(err, k.away) || public != nil {
		t.Errorf("KMS does not answer: got the key %v, error %v; want none, and the error of KMS", public, err)
	}
	if _, err := kmskey.Public(t.Context(), inKMS{PrivateKey: newKey(t, elliptic.P384())}, arn); err == nil {
		t.Error("a key on another curve: got no error, want one")
	}
}

// Guarantees that a public key is read in PEM and in base64, and that everything else is refused.
func TestParse(t *testing.T) {
	der := func(key any) []byte {
		t.Helper()
		out, err := x509.MarshalPKIXPublicKey(key)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	armour := func(kind string, data []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}) }
	key := newKey(t, elliptic.P256())
	good := der(&key.PublicKey)
	for name, text := range map[string][]byte{
		"PEM": armour("PUBLIC KEY", good), "base64": []byte(base64.StdEncoding.EncodeToString(good) + "\n"),
	} {
		if public, err := kmskey.Parse(text); err != nil || !public.Equal(&key.PublicKey) {
			t.Errorf("%s: got the key %v, error %v; want the one that was written", name, public, err)
		}
	}
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"nothing": nil, "a text": []byte("key"), "another curve": armour("PUBLIC KEY", der(&newKey(t,
			elliptic.P384()).PublicKey)),
		"RSA": armour("PUBLIC KEY", der(&other.PublicKey)), "a certificate": armour("CERTIFICATE", good),
		"two": append(armour("PUBLIC KEY", good), armour("PUBLIC KEY", good)...), "base64 of nothing": []byte("AAAA"),
	} {
		if public, err := kmskey.Parse(text); err == nil {
			t.Errorf("%s: got the key %v, want an error", name, public)
		}
	}
}
