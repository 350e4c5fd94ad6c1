package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
	"unicode/utf8"
)

// Decode reads an event. Each field that the version has must be there exactly once, with its type and within its
// bounds. Other fields are ignored. An unknown type or version gives a [Raw]. The error wraps ErrMalformed and names
// the field, or wraps ErrTooLarge. The event does not share memory with data.
func Decode(data []byte) (Event, error) {
	if len(data) > MaxAuditBytes {
		return nil, fmt.Errorf("%w: %d bytes, want at most %d", ErrTooLarge, len(data), MaxAuditBytes)
	}
	r := reader{}
	if err := r.open(data); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	typ, version := Type(r.text("type")), r.integer("version")
	if r.err == nil {
		r.err = fieldError("type", checkType(typ))
	}
	if r.err == nil {
		r.err = fieldError("version", checkVersion(version))
	}
	if r.err == nil {
		r.err = checkSize(typ, len(data))
	}
	if r.err != nil {
		return nil, r.err
	}
	e := r.event(typ, version)
	if e == nil {
		return &Raw{Head: r.header(typ, version), Data: bytes.Clone(data)}, nil
	}
	id := r.text("id")
	if r.err != nil {
		return nil, r.err
	}
	if err := e.check(); err != nil {
		return nil, err
	}
	if e.Header().ID != id {
		return nil, fieldError("id", errors.New("is not the id that follows from the event's other fields"))
	}
	return e, nil
}

// checkType bounds the length and the characters of unknown types, because they are counted and logged.
func checkType(t Type) error {
	if t == "" || len(t) > MaxTypeBytes {
		return fmt.Errorf("%d bytes, want 1..%d", len(t), MaxTypeBytes)
	}
	for _, c := range []byte(t) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return errors.New("want a-z 0-9 . _ -")
		}
	}
	return nil
}

// reader reads the fields of a JSON object by name, and keeps the first error.
type reader struct {
	fields map[string]json.RawMessage
	err    error
}

// open splits the object into its fields.
func (r *reader) open(data []byte) error {
	if !utf8.Valid(data) {
		return errors.New("not valid UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.New("want a JSON object")
	}
	r.fields = make(map[string]json.RawMessage)
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		if err != nil || !ok {
			return errors.New("not valid JSON")
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return fmt.Errorf("%.64q: not valid JSON", name)
		}
		if _, twice := r.fields[name]; twice {
			return fmt.Errorf("%.64q: occurs twice", name)
		}
		r.fields[name] = value
	}
	if _, err := d.Token(); err != nil {
		return errors.New("not valid JSON")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("data follows the event")
	}
	return nil
}

// event reads the fields of a type and version. It returns nil if they are not known.
func (r *reader) event(t Type, version int64) Event {
	if version != Version {
		return nil
	}
	if t.table() != "" {
		return &Changed{
			Type: t, Key: r.text("key"), ItemVersion: r.integer("item_version"), Time: r.time("time"),
			Deleted: r.boolean("deleted"), Hash: r.text("hash"), Body: r.document("body"),
		}
	}
	switch t {
	case AuditRecorded:
		return &AuditRecord{
			Table: Table(r.text("table")), Key: r.text("key"), ItemVersion: r.integer("item_version"),
			Time:  r.time("time"),
			Actor: r.text("actor"), Reason: r.text("reason"), Deleted: r.boolean("deleted"),
			Before: r.archived("before"), After: r.archived("after"), PrevHash: r.text("prev_hash"),
			Hash: r.text("hash"),
		}
	default: // not known
		return nil
	}
}

// header returns what can be read of the header of an unknown event.
func (r *reader) header(t Type, version int64) Header {
	h := Header{Type: t, Version: int(version)}
	if id := r.text("id"); r.err == nil {
		h.ID = id
	}
	r.err = nil
	if at := r.time("time"); r.err == nil {
		h.Time = at
	}
	return h
}

func (r *reader) take(name string) json.RawMessage {
	v, ok := r.fields[name]
	if !ok {
		r.fail(name, errors.New("missing"))
	}
	return v
}

func (r *reader) fail(name string, err error) {
	if r.err == nil && err != nil {
		r.err = fieldError(name, err)
	}
}

func (r *reader) text(name string) string {
	v := r.take(name)
	if v == nil {
		return ""
	}
	s, err := ReadString(v)
	r.fail(name, err)
	return s
}

func (r *reader) integer(name string) int64 {
	v := r.take(name)
	if v == nil {
		return 0
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil {
		r.fail(name, errors.New("not a 64-bit integer"))
	}
	return n
}

func (r *reader) boolean(name string) bool {
	v := r.take(name)
	if s := string(v); v != nil && s != "true" && s != "false" {
		r.fail(name, errors.New("want true or false"))
	}
	return string(v) == "true"
}

func (r *reader) time(name string) time.Time {
	s := r.text(name)
	if s == "" {
		r.fail(name, errors.New("empty"))
		return time.Time{}
	}
	t, err := time.Parse(TimeLayout, s)
	if err != nil || t.Format(TimeLayout) != s { // time.Parse also accepts a comma as the decimal point
		r.fail(name, fmt.Errorf("want a time like %s", TimeLayout))
		return time.Time{}
	}
	return t
}

// archived returns nil for null. It requires the canonical form, since a record in an archive may have been rewritten
// by anybody, and records are compared byte by byte.
func (r *reader) archived(name string) json.RawMessage {
	v := r.document(name)
	if v != nil {
		r.fail(name, CheckCanonical(v))
	}
	return v
}

// document returns nil for null, and any other document as it is.
func (r *reader) document(name string) json.RawMessage {
	v := r.take(name)
	if string(v) == "null" {
		return nil
	}
	return v
}
