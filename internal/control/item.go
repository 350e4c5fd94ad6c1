package control

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sluicelimits/sluice/events"
)

// layout is the version of the hashed object. Another layout gives another hash for the same item.
const layout = 1

// Item is a version of an item. Compare items with [Item.Equal]. Do not change Body. Its JSON is that of operators'
// calls.
type Item struct {
	Table   Table  `json:"table"`
	Key     string `json:"key"`
	Version int64  `json:"version"`           // 1..events.MaxVersion
	Deleted bool   `json:"deleted,omitempty"` // the version is a tombstone
	Actor   string `json:"actor"`
	Reason  string `json:"reason"`
	// ChangedAt is by the writer's clock, in UTC and microseconds. It may be earlier than that of the previous
	// version.
	ChangedAt time.Time       `json:"changed_at"`
	PrevHash  string          `json:"prev_hash,omitempty"` // hash of the previous version; empty iff Version is 1
	Hash      string          `json:"hash"`                // over all other fields; see the package comment
	Body      json.RawMessage `json:"body,omitempty"`      // canonical if Hash is right; nil iff Deleted
}

// Ref names the item.
func (i *Item) Ref() Ref { return Ref{i.Table, i.Key} }

// Equal reports whether two items are the same version with the same content. Hashes cover every other field.
func (i *Item) Equal(o *Item) bool {
	return i.Version == o.Version && i.Hash == o.Hash && i.ComputeHash() == o.ComputeHash()
}

// ComputeHash returns the hash of the item's other fields.
func (i *Item) ComputeHash() string {
	b := make([]byte, 0, len(i.Body)+512)
	text := func(name, s string) {
		b = append(b, name...)
		b = events.AppendString(b, s)
	}
	text(`{"actor":`, i.Actor)
	b = append(b, `,"body":`...)
	if i.Body == nil {
		b = append(b, "null"...)
	}
	b = append(b, i.Body...)
	text(`,"changed_at":`, i.ChangedAt.Format(TimeLayout))
	b = append(b, `,"deleted":`...)
	b = strconv.AppendBool(b, i.Deleted)
	text(`,"key":`, i.Key)
	b = append(b, `,"layout":`...)
	b = strconv.AppendInt(b, layout, 10)
	text(`,"prev_hash":`, i.PrevHash)
	text(`,"reason":`, i.Reason)
	text(`,"table":`, string(i.Table))
	b = append(b, `,"version":`...)
	b = strconv.AppendInt(b, i.Version, 10)
	b = append(b, '}')
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Check returns an error that wraps ErrBadItem and names the first field that is out of bounds. It does not check the
// hash.
func (i *Item) Check() error {
	if err := events.Check(i.record(nil)); err != nil { // an item has the bounds of its audit record
		return &BadItemError{i.Table, i.Key, err}
	}
	return i.checkTime()
}

func (i *Item) checkTime() error {
	if !i.ChangedAt.Equal(i.ChangedAt.Truncate(time.Microsecond)) || i.ChangedAt.Location() != time.UTC {
		return &BadItemError{i.Table, i.Key, errors.New("changed_at is not in UTC and microseconds")}
	}
	return nil
}

// Verify returns an error that wraps ErrBadItem unless every field is within its bounds and Hash is the hash of the
// other fields. A body with this hash is as [Change.Check] made it, so nothing derives its canonical form again.
func (i *Item) Verify() error {
	if err := i.Check(); err != nil {
		return err
	}
	if want := i.ComputeHash(); i.Hash != want {
		return &BadItemError{i.Table, i.Key, fmt.Errorf(
			"version %d has the stored hash %s, but its fields have %s: it was altered", i.Version, i.Hash, want)}
	}
	return nil
}

// record returns the audit record of the item. before is the body of the version that it replaced.
func (i *Item) record(before json.RawMessage) *events.AuditRecord {
	return &events.AuditRecord{
		Table: i.Table, Key: i.Key, ItemVersion: i.Version, Time: i.ChangedAt, Actor: i.Actor, Reason: i.Reason,
		Deleted: i.Deleted, Before: before, After: i.Body, PrevHash: i.PrevHash, Hash: i.Hash,
	}
}

// Encode returns the item as text, for stores that keep an item as a whole. The error is that of Check.
func (i *Item) Encode() ([]byte, error) {
	if err := i.checkTime(); err != nil {
		return nil, err
	}
	data, err := events.Encode(i.record(nil))
	if err != nil {
		return nil, &BadItemError{i.Table, i.Key, err}
	}
	return data, nil
}

// DecodeItem is the inverse of [Item.Encode]. The error wraps ErrBadItem. The hash is not checked.
func DecodeItem(data []byte) (Item, error) {
	e, err := events.Decode(data)
	r, ok := e.(*events.AuditRecord)
	if err == nil && !ok {
		err = fmt.Errorf("an event %s of version %d", e.Header().Type, e.Header().Version)
	}
	if err != nil {
		return Item{}, fmt.Errorf("%w: %w", ErrBadItem, err)
	}
	return FromAudit(r), nil
}

// FromAudit returns the version of the item that an audit record describes.
func FromAudit(r *events.AuditRecord) Item {
	return Item{
		Table: r.Table, Key: r.Key, Version: r.ItemVersion, Actor: r.Actor, Reason: r.Reason, ChangedAt: r.Time,
		Deleted: r.Deleted, Body: r.After, PrevHash: r.PrevHash, Hash: r.Hash,
	}
}
