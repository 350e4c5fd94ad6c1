package control

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sluicelimits/sluice/events"
)

// Check returns the change with its body in canonical form and its time in microseconds. The error wraps ErrInvalid or
// ErrTooLarge and names the field.
func (c Change) Check() (Change, error) {
	invalid := func(field string, err error) (Change, error) {
		return Change{}, fmt.Errorf("%s/%.140q: %w: %s: %w", c.Table, c.Key, ErrInvalid, field, err)
	}
	if err := events.CheckKey(c.Table, c.Key); err != nil {
		return invalid("key", err)
	}
	if err := CheckExpect(c.Expect); err != nil {
		return invalid("expected version", err)
	}
	if err := events.CheckText(c.Actor); err != nil {
		return invalid("actor", err)
	}
	if err := events.CheckText(c.Reason); err != nil {
		return invalid("reason", err)
	}
	c.Now = c.Now.UTC().Truncate(time.Microsecond)
	if y := c.Now.Year(); y < 1970 || y > 9999 {
		return invalid("time", fmt.Errorf("the year %d, want 1970..9999", y))
	}
	if c.Delete {
		switch {
		case len(c.Body) > 0:
			return invalid("body", errors.New("a deletion has no body"))
		case c.Table == Keys:
			return invalid("delete", errors.New("revoke the key instead: cells find a key by the hash in its body"))
		}
		c.Body = nil
		return c, nil
	}
	if len(c.Body) > maxInputBytes {
		return Change{}, fmt.Errorf("%s/%q: %w: %d bytes, want at most %d", c.Table, c.Key, ErrTooLarge, len(c.Body),
			MaxBodyBytes)
	}
	body, err := events.Canonical(c.Body)
	if err != nil {
		return invalid("body", err)
	}
	if len(body) > MaxBodyBytes {
		return Change{}, fmt.Errorf("%s/%q: %w: %d bytes, want at most %d", c.Table, c.Key, ErrTooLarge, len(body),
			MaxBodyBytes)
	}
	c.Body = body
	if c.Table == Keys {
		if _, err := identify(body); err != nil {
			return invalid("body", err)
		}
	}
	return c, nil
}

// CheckExpect returns an error unless the version is 0 or one that another version can follow.
func CheckExpect(version int64) error {
	switch {
	case version < 0:
		return fmt.Errorf("%d is not a version, want 0..%d", version, int64(events.MaxVersion)-1)
	case version >= events.MaxVersion:
		return fmt.Errorf("%d: no version can follow it, and no number of changes leads to it, so the item was "+
			"forged: restore the previous row, as the runbook on forged cell documents says", version)
	}
	return nil
}

// Next returns the version that a checked change makes of current, which is nil if there is no item. Every
// implementation of [Tables] writes this version. done says that current is this version already, from an earlier try
// of the same change. The error is a *ConflictError, or wraps ErrInvalid or ErrNotFound.
//
// Next does not check the content of current. If somebody has altered it, the next version replaces it, and the
// archive keeps both.
func Next(current *Item, c Change) (next Item, done bool, err error) {
	next = Item{
		Table: c.Table, Key: c.Key, Version: c.Expect + 1, Actor: c.Actor, Reason: c.Reason, ChangedAt: c.Now,
		Deleted: c.Delete, Body: c.Body,
	}
	have := int64(0)
	if current != nil {
		have = current.Version
	}
	if current != nil && have == next.Version {
		next.PrevHash = current.PrevHash
		if next.Hash = next.ComputeHash(); next.Hash == current.Hash && next.Equal(current) {
			return *current, true, nil
		}
	}
	switch {
	case have != c.Expect:
		return Item{}, false, &ConflictError{c.Table, c.Key, c.Expect, have}
	case c.Delete && (current == nil || current.Deleted):
		return Item{}, false, fmt.Errorf("delete %s/%q: %w", c.Table, c.Key, ErrNotFound)
	case current != nil && c.Table == Keys:
		if err := sameKey(current.Body, c.Body); err != nil {
			return Item{}, false, fmt.Errorf("%s/%q: %w: body: %w", c.Table, c.Key, ErrInvalid, err)
		}
	}
	if current != nil {
		next.PrevHash = current.Hash
	}
	next.Hash = next.ComputeHash()
	return next, false, nil
}

// identity holds the members of an API key by which a cell finds it.
type identity struct {
	Hash   string `json:"hash"`
	Pepper string `json:"pepper"`
}

// identify reads the identity from the body of a key. The error contains nothing of the body.
func identify(body []byte) (identity, error) {
	// encoding/json would accept "HASH" for hash, so each member is read by its exact name.
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return identity{}, errors.New("not an object")
	}
	hash, err := events.ReadString(fields["hash"])
	if raw, bad := hex.DecodeString(hash); err != nil || bad != nil || len(raw) != 32 ||
		!bytes.Equal([]byte(hash), bytes.ToLower([]byte(hash))) {
		return identity{}, errors.New("hash: want 64 hex digits in lower case")
	}
	pepper, err := events.ReadString(fields["pepper"])
	if err != nil || pepper == "" {
		return identity{}, errors.New("pepper: want the id of a pepper")
	}
	return identity{hash, pepper}, nil
}

// sameKey returns an error if a change of a key's body changes its identity.
func sameKey(old, body []byte) error {
	before, err := identify(old)
	if err != nil {
		return nil //nolint:nilerr // somebody altered the stored key, and the next version repairs it
	}
	after, err := identify(body)
	if err == nil && after != before {
		err = errors.New("hash and pepper of a key cannot change: create another key, and revoke this one")
	}
	return err
}
