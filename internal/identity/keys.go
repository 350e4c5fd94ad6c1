package identity

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"slices"
	"sync"
	"time"
)

// MaxPeppers bounds the hashes that one presented key can cost.
const MaxPeppers = 8

// Why a key that is well formed is refused.
var (
	ErrUnknownKey = errors.New("unknown API key")
	ErrExpiredKey = errors.New("expired API key")
	ErrRevokedKey = errors.New("revoked API key")
)

// Key is an API key as stored: never the key itself.
type Key struct {
	ID, Tenant, Subject string
	Hash                string    // hex of HMAC-SHA256(pepper, key)
	Pepper              string    // id of the pepper
	ExpiresAt           time.Time // refused from here on; zero is never
	Revoked             bool
}

// Keys finds a stored key by the presented one. It is immutable and safe for concurrent use.
type Keys struct {
	peppers []*pepper
	byHash  map[[sha256.Size]byte]*stored
}

type stored struct {
	Key
	pepper *pepper
	hash   [sha256.Size]byte
}

// pepper keeps keyed hash states, since making one costs more than using it.
type pepper struct {
	id   string
	macs sync.Pool
}

type mac struct {
	hash.Hash
	in  [MaxKeyBytes]byte
	out [sha256.Size]byte
}

// NewKeys prepares the keys for look-ups. Only peppers that a key uses are kept, at most MaxPeppers. The error joins all
// that is wrong: a pepper that is not known or too short, a hash that is not one, two keys with one hash or one id.
func NewKeys(keys []Key, peppers map[string][]byte) (*Keys, error) {
	k := &Keys{byHash: make(map[[sha256.Size]byte]*stored, len(keys))}
	var errs []error
	ids := make(map[string]bool, len(keys))
	for i := range keys {
		if err := k.add(keys[i], peppers, ids); err != nil {
			errs = append(errs, fmt.Errorf("keys[%d] (%q): %w", i, keys[i].ID, err))
		}
	}
	if len(k.peppers) > MaxPeppers {
		errs = append(errs, fmt.Errorf("keys use %d peppers, want at most %d", len(k.peppers), MaxPeppers))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return k, nil
}

func (k *Keys) add(key Key, peppers map[string][]byte, ids map[string]bool) error {
	if key.ID != "" && ids[key.ID] {
		return errors.New("another key has the same id")
	}
	ids[key.ID] = true
	s := &stored{Key: key}
	raw, err := hex.DecodeString(key.Hash)
	if err != nil || len(raw) != len(s.hash) {
		return fmt.Errorf("hash is not %d hex digits", 2*len(s.hash))
	}
	copy(s.hash[:], raw)
	if k.byHash[s.hash] != nil {
		return fmt.Errorf("key %q has the same hash", k.byHash[s.hash].ID)
	}
	if s.pepper, err = k.pepper(key.Pepper, peppers); err != nil {
		return err
	}
	k.byHash[s.hash] = s
	return nil
}

func (k *Keys) pepper(id string, peppers map[string][]byte) (*pepper, error) {
	if i := slices.IndexFunc(k.peppers, func(p *pepper) bool { return p.id == id }); i >= 0 {
		return k.peppers[i], nil
	}
	secret, ok := peppers[id]
	if !ok {
		return nil, fmt.Errorf("pepper %q is not known here", id)
	}
	if len(secret) < MinPepperBytes {
		return nil, fmt.Errorf("pepper %q has %d bytes, want at least %d", id, len(secret), MinPepperBytes)
	}
	secret = slices.Clone(secret)
	p := &pepper{id: id}
	p.macs.New = func() any { return &mac{Hash: hmac.New(sha256.New, secret)} }
	k.peppers = append(k.peppers, p)
	return p, nil
}

// Verify finds the presented key, which must be valid at now. The error is ErrMalformedKey, ErrUnknownKey, ErrExpiredKey
// or ErrRevokedKey. A key that cannot be one costs no hash; any other costs one hash for each pepper, found or not, so
// the time says nothing about what is stored.
func (k *Keys) Verify(presented string, now time.Time) (*Key, error) {
	if err := CheckKey(presented); err != nil {
		return nil, err
	}
	var found *stored
	for _, p := range k.peppers {
		m := p.macs.Get().(*mac)
		m.Reset()
		m.Write(m.in[:copy(m.in[:], presented)])
		m.Sum(m.out[:0])
		clear(m.in[:len(presented)])
		// The map compares hashes under a secret pepper, which a caller can neither choose nor learn from the time it takes.
		if s := k.byHash[m.out]; s != nil && s.pepper == p && subtle.ConstantTimeCompare(s.hash[:], m.out[:]) == 1 {
			found = s
		}
		p.macs.Put(m)
	}
	switch {
	case found == nil:
		return nil, ErrUnknownKey
	case found.Revoked:
		return nil, ErrRevokedKey
	case !found.ExpiresAt.IsZero() && !now.Before(found.ExpiresAt):
		return nil, ErrExpiredKey
	}
	return &found.Key, nil
}
