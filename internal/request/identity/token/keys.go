package token

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"
)

const (
	maxSetBytes = 256 << 10
	maxKeys     = 256
	maxReported = 8    // keys that are not used or odd, in one line of the log
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
	byName map[name][]*key                  // several if keys share a name, in the order of the set
	kids   map[string]bool                  // of all usable keys
	only   map[jose.SignatureAlgorithm]*key // for tokens without "kid"; nil if more than one key fits
	odd    string                           // which keys are not used, which members are ignored, and why
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
	set := &keySet{keys: make(map[fingerprint]*key), byName: make(map[name][]*key), kids: make(map[string]bool),
		only: make(map[jose.SignatureAlgorithm]*key)}
	var odd []string
	for n, raw := range document.Keys {
		k, ignored, err := parseKey(raw)
		if err == nil {
			err = set.add(k, accepted, old)
		}
		at := fmt.Sprintf("key %d of %d (kid %.40q)", n+1, len(document.Keys), k.KeyID)
		switch {
		case err != nil:
			odd = append(odd, fmt.Sprintf("%s is not used: %.200s", at, err))
		case ignored != nil:
			odd = append(odd, fmt.Sprintf("%s is used without its other members: %.200s", at, ignored))
		}
	}
	if rest := len(odd) - maxReported; rest > 0 {
		odd = append(odd[:maxReported], fmt.Sprintf("and %d more", rest))
	}
	set.odd = strings.Join(odd, "; ")
	switch {
	case len(set.keys) == 0 && set.odd != "":
		return nil, fmt.Errorf("%w: %s", errNoKeys, set.odd)
	case len(set.keys) == 0:
		return nil, errNoKeys
	}
	return set, nil
}

// members are those that make a public key, by its "kty". All other members of a JWK are optional: a certificate
// ("x5c"), for example, repeats the key, and issuers publish some that Go refuses to parse.
var members = map[string][]string{"RSA": {"n", "e"}, "EC": {"crv", "x", "y"}, "OKP": {"crv", "x"}}

// parseKey reads a public key. If the library refuses the JWK as a whole, parseKey leaves out all members that a key
// does not need, and ignored is what the library said.
func parseKey(raw json.RawMessage) (k jose.JSONWebKey, ignored, err error) {
	var document map[string]*json.RawMessage
	if err := json.Unmarshal(raw, &document); err != nil || document == nil {
		return k, nil, errors.New("it is not an object, or has a member twice")
	}
	var head struct {
		Type       string   `json:"kty"`
		KeyID      string   `json:"kid"`
		Use        string   `json:"use"`
		Algorithm  string   `json:"alg"`
		Operations []string `json:"key_ops"`
	}
	if json.Unmarshal(raw, &head) != nil {
		return k, nil, errors.New(`one of "kty", "kid", "use" and "alg" is not a text, or "key_ops" no list of texts`)
	}
	k.KeyID = head.KeyID
	needed := members[head.Type]
	switch {
	case needed == nil:
		return k, nil, fmt.Errorf(`its "kty" is %.20q: want RSA, EC or OKP`, head.Type)
	case len(head.KeyID) > maxTextBytes:
		return k, nil, fmt.Errorf(`its "kid" is longer than %d bytes`, maxTextBytes)
	case head.Use != "" && head.Use != "sig":
		return k, nil, fmt.Errorf(`its "use" is %.20q: want "sig"`, head.Use)
	case head.Operations != nil && !slices.Contains(head.Operations, "verify"):
		return k, nil, errors.New(`its "key_ops" lack "verify"`)
	}
	for _, secret := range []string{"d", "p", "q", "dp", "dq", "qi"} {
		if document[secret] != nil {
			return k, nil, fmt.Errorf("it is a private key (it has %q), which the issuer should not publish", secret)
		}
	}
	if ignored = json.Unmarshal(raw, &k); ignored == nil {
		return k, nil, nil
	}
	needed = append([]string{"kty", "kid", "use", "alg"}, needed...)
	maps.DeleteFunc(document, func(m string, _ *json.RawMessage) bool { return !slices.Contains(needed, m) })
	if raw, err = json.Marshal(document); err == nil {
		err = json.Unmarshal(raw, &k)
	}
	return k, ignored, err
}

// add adds a key to the set, unless the key is already in it.
func (s *keySet) add(k jose.JSONWebKey, accepted []jose.SignatureAlgorithm, old *keySet) error {
	can := fits(k.Key)
	usable := slices.DeleteFunc(slices.Clone(accepted), func(a jose.SignatureAlgorithm) bool {
		return (k.Algorithm != "" && k.Algorithm != string(a)) || !slices.Contains(can, a)
	})
	if len(can) == 0 {
		return fmt.Errorf("it is too weak, or of a kind that is not supported (RSA has at least %d bits)",
			minRSABits)
	}
	if len(usable) == 0 {
		return fmt.Errorf(`its "alg" is %.20q, and it can be used with %v: the issuer's accepted algorithms are %v`,
			k.Algorithm, can, accepted)
	}
	sum, err := k.Thumbprint(crypto.SHA256)
	if err != nil {
		return err
	}
	id := fingerprint{kid: k.KeyID, algorithm: k.Algorithm, thumbprint: [sha256.Size]byte(sum)}
	if s.keys[id] != nil {
		return nil
	}
	entry := &key{public: k.Key}
	if old != nil && old.keys[id] != nil {
		entry = old.keys[id]
	}
	s.keys[id] = entry
	s.kids[k.KeyID] = true
	for _, a := range usable {
		n := name{k.KeyID, a}
		s.byName[n] = append(s.byName[n], entry)
		if _, another := s.only[a]; another {
			s.only[a] = nil
		} else {
			s.only[a] = entry
		}
	}
	return nil
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

// find returns the keys that a token names by its "kid", usually one. If the token has no "kid", find returns the only
// key that fits.
func (s *keySet) find(kid string, a jose.SignatureAlgorithm) []*key {
	if kid != "" {
		return s.byName[name{kid, a}]
	}
	if k := s.only[a]; k != nil {
		return []*key{k}
	}
	return nil
}

// retire marks the keys that next does not have.
func (s *keySet) retire(next *keySet) {
	for id, k := range s.keys {
		if next.keys[id] == nil {
			k.gone.Store(true)
		}
	}
}
