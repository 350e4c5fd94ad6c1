package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// hashChars is the length of a SHA-256 hash in hex.
const hashChars = 64

// fieldError adds the name of a field to an error about its value. It returns nil if the error is nil.
func fieldError(field string, err error) error {
	if err == nil || errors.Is(err, ErrTooLarge) || errors.Is(err, ErrMalformed) {
		return err
	}
	return fmt.Errorf("%w: %s: %w", ErrMalformed, field, err)
}

// first returns the first of the errors that is not nil.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (e *Changed) check() error {
	table := e.Type.table()
	if table == "" {
		return fieldError("type", fmt.Errorf("%.64q is not the type of a changed document", e.Type))
	}
	if err := fieldError("key", CheckKey(table, e.Key)); err != nil {
		return err
	}
	if t, ok := ChangedType(table, e.Key); !ok || t != e.Type {
		return fieldError("key", fmt.Errorf("an event of type %s cannot have the key %q", e.Type, e.Key))
	}
	return first(
		fieldError("item_version", checkVersion(e.ItemVersion)),
		fieldError("time", checkTime(e.Time)),
		fieldError("hash", checkHash(e.Hash)),
		checkBody("body", e.Body, e.Deleted),
	)
}

func (e *AuditRecord) check() error {
	err := first(
		fieldError("table", CheckTable(e.Table)),
		fieldError("key", CheckKey(e.Table, e.Key)),
		fieldError("item_version", checkVersion(e.ItemVersion)),
		fieldError("time", checkTime(e.Time)),
		fieldError("actor", CheckText(e.Actor)),
		fieldError("reason", CheckText(e.Reason)),
		checkBody("before", e.Before, e.Before == nil),
		checkBody("after", e.After, e.Deleted),
		fieldError("hash", checkHash(e.Hash)),
	)
	switch {
	case err != nil:
		return err
	case e.ItemVersion > 1:
		return fieldError("prev_hash", checkHash(e.PrevHash))
	case e.PrevHash != "" || e.Before != nil || e.Deleted:
		return fmt.Errorf("%w: version 1 has a previous version, or is deleted", ErrMalformed)
	}
	return nil
}

// check returns an error unless the data is an event with the same header, of a type or version that this package does
// not know.
func (e *Raw) check() error {
	again, err := Decode(e.Data)
	if err != nil {
		return err
	}
	if r, ok := again.(*Raw); !ok || r.Head != e.Head {
		return fmt.Errorf("%w: a raw event of type %.64q, version %d, whose data has another header or a known type",
			ErrMalformed,
			e.Head.Type, e.Head.Version)
	}
	return nil
}

func checkVersion(v int64) error {
	if v < 1 || v > MaxVersion {
		return fmt.Errorf("%d, want 1..%d", v, int64(MaxVersion))
	}
	return nil
}

func checkTime(t time.Time) error {
	if y := t.UTC().Year(); y < 1970 || y > 9999 {
		return fmt.Errorf("the year %d, want 1970..9999", y)
	}
	return nil
}

func checkHash(s string) error {
	if len(s) != hashChars {
		return fmt.Errorf("%d characters, want %d hex digits", len(s), hashChars)
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return fmt.Errorf("want %d hex digits in lower case", hashChars)
		}
	}
	return nil
}

// checkBody requires that a body is exactly one JSON object. It does not require the canonical form: the item's hash
// shows whether a body is as it was written. But the hash would prove nothing about text that is not one object,
// because such text could contain the fields that follow the body in the hashed text.
func checkBody(field string, body json.RawMessage, none bool) error {
	switch {
	case none && body != nil:
		return fieldError(field, errors.New("a deleted document has no body"))
	case !none && body == nil:
		return fieldError(field, errors.New("missing"))
	case len(body) > MaxBodyBytes:
		return fmt.Errorf("%w: %s has %d bytes, want at most %d", ErrTooLarge, field, len(body), MaxBodyBytes)
	case !none && (len(body) == 0 || body[0] != '{' || !utf8.Valid(body) || !json.Valid(body)):
		return fieldError(field, errors.New("not a JSON object in UTF-8"))
	}
	return nil
}
