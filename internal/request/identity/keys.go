package identity

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

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

// Check says whether a key that was found is valid at now. The error is ErrRevokedKey or ErrExpiredKey.
func (k *Key) Check(now time.Time) error {
	switch {
	case k.Revoked:
		return ErrRevokedKey
	case !k.ExpiresAt.IsZero() && !now.Before(k.ExpiresAt):
		return ErrExpiredKey
	}
	return nil
}

// Keys finds a stored key by the presented one. It is immutable and safe for concurrent use.
type Keys struct {
	peppers Peppers
	byHash  map[[sha256.Size]byte]*stored
}

type stored struct {
	Key
	hash [sha256.Size]byte
}

// NewKeys prepares the keys for look-ups. Only peppers that a key uses are kept, at most MaxPeppers. The error joins
// all that is wrong: a pepper that is not known or too short, a hash that is not one, two keys with one hash or one id.
func NewKeys(keys []Key, peppers map[string][]byte) (*Keys, error) {
	k := &Keys{byHash: make(map[[sha256.Size]byte]*stored, len(keys))}
	var errs []error
	ids := make(map[string]bool, len(keys))
	for i := range keys {
		if err := k.add(keys[i], peppers, ids); err != nil {
			errs = append(errs, fmt.Errorf("keys[%d] (%q): %w", i, keys[i].ID, err))
		}
	}
	if len(k.peppers.list) > MaxPeppers {
		errs = append(errs, fmt.Errorf("keys use %d peppers, want at most %d", len(k.peppers.list), MaxPeppers))
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
	if err := k.usePepper(key.Pepper, peppers); err != nil {
		return err
	}
	k.byHash[s.hash] = s
	return nil
}

// usePepper prepares a pepper at its first use.
func (k *Keys) usePepper(id string, peppers map[string][]byte) error {
	if k.peppers.find(id) != nil {
		return nil
	}
	secret, ok := peppers[id]
	if !ok {
		return fmt.Errorf("pepper %q is not known here", id)
	}
	p, err := newPepper(id, secret)
	if err != nil {
		return err
	}
	k.peppers.list = append(k.peppers.list, p)
	return nil
}

// Len returns how many keys are stored, revoked and expired ones included.
func (k *Keys) Len() int { return len(k.byHash) }

// Verify finds the presented key, which must be valid at now. The error is ErrMalformedKey, ErrUnknownKey,
// ErrExpiredKey or ErrRevokedKey. A key that cannot be one costs no hash; any other costs one hash for each pepper,
// found or not, so the time says nothing about what is stored.
func (k *Keys) Verify(presented string, now time.Time) (*Key, error) {
	var memory [MaxPeppers]KeyHash
	hashes, err := k.peppers.AppendHashes(memory[:0], presented)
	if err != nil {
		return nil, err
	}
	var found *stored
	for i := range hashes {
		h := &hashes[i]
		// The map compares hashes under a secret pepper, which a caller can neither choose nor learn from the time it
		// takes.
		if s := k.byHash[h.Hash]; s != nil && s.Pepper == h.Pepper &&
			subtle.ConstantTimeCompare(s.hash[:], h.Hash[:]) == 1 {
			found = s
		}
	}
	if found == nil {
		return nil, ErrUnknownKey
	}
	if err := found.Check(now); err != nil {
		return nil, err
	}
	return &found.Key, nil
}
