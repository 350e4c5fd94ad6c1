package token

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"
)

const (
	maxSetBytes = 256 << 10
	maxKeys     = 256
	minRSABits  = 2048 // go-jose refuses more than 4096 bits, and exponents below 2
)

// key is a public key of an issuer.
type key struct {
	public any         // *rsa.PublicKey, *ecdsa.PublicKey or ed25519.PublicKey, never a secret
	gone   atomic.Bool // the issuer's set no longer has the key
}

// fingerprint identifies a key across sets.
type fingerprint struct {
	kid, algorithm string
	thumbprint     [sha256.Size]byte
}

// name is how a token names its key.
type name struct {
	kid       string
	algorithm jose.SignatureAlgorithm
}

// keySet holds an issuer's keys, as fetched. It is immutable, except for key.gone.
type keySet struct {
	keys   map[fingerprint]*key
	byName map[name]*key                    // if two keys have a name, the first of them
	kids   map[string]bool                  // of all usable keys
	only   map[jose.SignatureAlgorithm]*key // for tokens without "kid"; nil if more than one key fits
}

var errNoKeys = errors.New("it has no key that can be used")

// parseKeys reads a JWK set. It leaves out keys that cannot be used (too weak, for encryption, secret, of another kind
// or algorithm), as RFC 7517 says. A set without usable keys is an error, so that it never replaces a good set. Keys
// that old has are reused.
func parseKeys(b []byte, accepted []jose.SignatureAlgorithm, old *keySet) (*keySet, error) {
	var document struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(b, &document); err != nil {
		return nil, errors.New("it is not a JWK set") // the library's error may quote the set
	}
	if len(document.Keys) > maxKeys {
		return nil, errors.New("it has too many keys")
	}
	set := &keySet{keys: make(map[fingerprint]*key), byName: make(map[name]*key), kids: make(map[string]bool),
		only: make(map[jose.SignatureAlgorithm]*key)}
	for _, raw := range document.Keys {
		set.add(raw, accepted, old)
	}
	if len(set.keys) == 0 {
		return nil, errNoKeys
	}
	return set, nil
}

func (s *keySet) add(raw json.RawMessage, accepted []jose.SignatureAlgorithm, old *keySet) {
	var extra struct {
		Operations []string `json:"key_ops"`
	}
	var k jose.JSONWebKey
	if json.Unmarshal(raw, &extra) != nil || json.Unmarshal(raw, &k) != nil || len(k.KeyID) > maxTextBytes ||
		(k.Use != "" && k.Use != "sig") || (extra.Operations != nil && !slices.Contains(extra.Operations, "verify")) {
		return
	}
	usable := slices.DeleteFunc(slices.Clone(accepted), func(a jose.SignatureAlgorithm) bool {
		return (k.Algorithm != "" && k.Algorithm != string(a)) || !slices.Contains(fits(k.Key), a)
	})
	if len(usable) == 0 {
		return
	}
	sum, err := k.Thumbprint(crypto.SHA256)
	if err != nil {
		return
	}
	id := fingerprint{kid: k.KeyID, algorithm: k.Algorithm, thumbprint: [sha256.Size]byte(sum)}
	if s.keys[id] != nil {
		return
	}
	entry := &key{public: k.Key}
	if old != nil && old.keys[id] != nil {
		entry = old.keys[id]
	}
	s.keys[id] = entry
	s.kids[k.KeyID] = true
	for _, a := range usable {
		if n := (name{k.KeyID, a}); s.byName[n] == nil {
			s.byName[n] = entry
		}
		if _, another := s.only[a]; another {
			s.only[a] = nil
		} else {
			s.only[a] = entry
		}
	}
}

// fits returns the algorithms that a key can be used with. It returns none if the key is too weak, or not public.
func fits(public any) []jose.SignatureAlgorithm {
	switch k := public.(type) {
	case *rsa.PublicKey:
		if k.N.BitLen() >= minRSABits && k.E&1 == 1 {
			return asymmetric[:6]
		}
	case *ecdsa.PublicKey:
		switch k.Curve.Params().BitSize {
		case 256:
			return []jose.SignatureAlgorithm{jose.ES256}
		case 384:
			return []jose.SignatureAlgorithm{jose.ES384}
		case 521:
			return []jose.SignatureAlgorithm{jose.ES512}
		}
	case ed25519.PublicKey:
		return []jose.SignatureAlgorithm{jose.EdDSA}
	}
	return nil
}

// find returns the key of a token by its "kid". If the token has none, it returns the only key that fits.
func (s *keySet) find(kid string, a jose.SignatureAlgorithm) *key {
	if kid == "" {
		return s.only[a]
	}
	return s.byName[name{kid, a}]
}

// retire marks the keys that next does not have.
func (s *keySet) retire(next *keySet) {
	for id, k := range s.keys {
		if next.keys[id] == nil {
			k.gone.Store(true)
		}
	}
}
