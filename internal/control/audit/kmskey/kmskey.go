// Package kmskey uses a key of AWS KMS for the audit trail's anchors: an asymmetric key on the curve P-256, whose
// private half never leaves KMS. The anchor function signs with it. A verifier reads the public half from KMS or from
// a file.
//
// Right to sign: kms:Sign. Right to read the public half: kms:GetPublicKey.
package kmskey

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/kms/types"

	"github.com/sluicelimits/sluice/internal/control/audit"
)

var _ audit.Signer = (*Signer)(nil)

// client is the part of *kms.Client that signs.
type client interface {
	Sign(context.Context, *kms.SignInput, ...func(*kms.Options)) (*kms.SignOutput, error)
}

// publisher is the part of *kms.Client that returns the public key, for operators.
type publisher interface {
	GetPublicKey(context.Context, *kms.GetPublicKeyInput, ...func(*kms.Options)) (*kms.GetPublicKeyOutput, error)
}

// Signer signs with a key of KMS. It is safe for concurrent use.
type Signer struct {
	client client
	key    string
}

// NewSigner makes a signer with the key that has this ARN, id or alias. It makes no calls.
func NewSigner(c client, key string) *Signer { return &Signer{c, key} }

// Sign implements [audit.Signer].
func (s *Signer) Sign(ctx context.Context, digest [sha256.Size]byte) ([]byte, error) {
	out, err := s.client.Sign(ctx, &kms.SignInput{
		KeyId: &s.key, Message: digest[:], MessageType: types.MessageTypeDigest,
		SigningAlgorithm: types.SigningAlgorithmSpecEcdsaSha256,
	})
	if err != nil {
		return nil, fmt.Errorf("sign with the key %s: %w", s.key, err)
	}
	return out.Signature, nil
}

// Public reads the public half of the key with this ARN, id or alias from KMS.
func Public(ctx context.Context, c publisher, key string) (*ecdsa.PublicKey, error) {
	out, err := c.GetPublicKey(ctx, &kms.GetPublicKeyInput{KeyId: &key})
	if err != nil {
		return nil, fmt.Errorf("read the public key of %s: %w", key, err)
	}
	public, err := parse(out.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("the public key of %s: %w", key, err)
	}
	return public, nil
}

// Parse reads a public key in PEM, or in base64 as `aws kms get-public-key --output text --query PublicKey` prints it.
func Parse(text []byte) (*ecdsa.PublicKey, error) {
	if block, rest := pem.Decode(text); block != nil {
		if block.Type != "PUBLIC KEY" || len(bytes.TrimSpace(rest)) > 0 {
			return nil, fmt.Errorf("the file holds %q, want one PUBLIC KEY and nothing else", block.Type)
		}
		return parse(block.Bytes)
	}
	der, err := base64.StdEncoding.DecodeString(string(bytes.TrimSpace(text)))
	if err != nil {
		return nil, errors.New("want a public key in PEM or base64")
	}
	return parse(der)
}

func parse(der []byte) (*ecdsa.PublicKey, error) {
	key, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, fmt.Errorf("not a public key: %w", err)
	}
	public, ok := key.(*ecdsa.PublicKey)
	if !ok || public.Curve != elliptic.P256() {
		return nil, errors.New("not an ECDSA key on the curve P-256 (in KMS: ECC_NIST_P256)")
	}
	return public, nil
}
