package identity

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// Reasons for which a well-formed key is refused.
var (
	ErrUnknownKey = errors.New("unknown API key")
	ErrExpiredKey = errors.New("expired API key")
	ErrRevokedKey = errors.New("revoked API key")
)

// Key is the stored form of an API key. It never holds the key itself.
type Key struct {
	ID, Tenant, Subject string
	Hash                string    // hex of HMAC-SHA256(pepper, key)
	Pepper              string    // id of the pepper
	ExpiresAt           time.Time // refused from this time on; zero if it never expires
	Revoked             bool
}

// Check returns ErrRevokedKey or ErrExpiredKey if the key is not valid at now.
func (k *Key) Check(now time.Time) error {
	switch {
	case k.Revoked:
		return ErrRevokedKey
	case !k.ExpiresAt.IsZero() && !now.Before(k.ExpiresAt):
		return ErrExpiredKey
	}
	return nil
}

// Keys finds the stored form of a presented key. It is immutable and safe for concurrent use.
type Keys struct {
	peppers Peppers
	byHash  map[[sha256.Size]byte]*stored
}

type stored struct {
	Key
	hash [sha256.Size]byte
}

// NewKeys prepares the keys for look-ups. It keeps only peppers that a key uses, at most MaxPeppers. The error joins
// all problems: an unknown or too short pepper, a malformed hash, two keys with the same hash or id.
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
		return errors.New("another key has this id")
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

// usePepper prepares a pepper when the first key uses it.
func (k *Keys) usePepper(id string, peppers map[string][]byte) error {
	if k.peppers.find(id) != nil {
		return nil
	}
	secret, ok := peppers[id]
	if !ok {
		return fmt.Errorf("pepper %q is unknown", id)
	}
	p, err := newPepper(id, secret)
	if err != nil {
		return err
	}
	k.peppers.list = append(k.peppers.list, p)
	return nil
}

// Len returns how many keys are stored, including revoked and expired keys.
func (k *Keys) Len() int { return len(k.byHash) }

// Verify finds the presented key, which must be valid at now. The error is ErrMalformedKey, ErrUnknownKey,
// ErrExpiredKey or ErrRevokedKey. A text that cannot be a key costs no hash. Any other text costs one hash for each
// pepper, whether the key is found or not, so the time reveals nothing about the stored keys.
func (k *Keys) Verify(presented string, now time.Time) (*Key, error) {
	var memory [MaxPeppers]KeyHash
	hashes, err := k.peppers.AppendHashes(memory[:0], presented)
	if err != nil {
		return nil, err
	}
	var found *stored
	for i := range hashes {
		h := &hashes[i]
		// The look-up compares hashes that depend on a secret pepper. A caller cannot choose them, nor learn them from
		// the time that the look-up takes.
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
