// Package events defines the events that Sluice's functions send to each other and to subscribers: types, versions and
// JSON.
//
// An event is a JSON object that begins with its type, version, id and time. Each change of a document is one event,
// however many tenants it concerns. A version only ever gains fields, so a reader ignores fields that it does not know.
// To remove a field or change its type makes the next version. A type or version that a reader does not know is a [Raw]
// event: the reader counts and keeps it, and returns no error.
//
// Delivery is at least once and in any order. The id names a version of a document and is the same in each delivery. A
// reader that keeps documents applies an event if and only if its item version is newer than the version that it has.
//
// Subscribe queues to the topic with raw message delivery. Without it SNS wraps the event in another JSON text, in
// which each quotation mark takes two bytes, and a large event no longer fits.
package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Type says what an event is about. Type and version together determine its fields.
type Type string

// AuditRecorded is the type of an [AuditRecord], the one event that is not about a change of a document.
const AuditRecorded Type = "audit.record"

// Version is the version of every type in this package.
const Version = 1

// Bounds of an encoded event. A message of SNS or SQS holds at most 256 KB (262,144 bytes), attributes included.
const (
	MaxBodyBytes  = 200 << 10 // of a document
	MaxBytes      = 220 << 10 // of an event that is published
	MaxAuditBytes = 440 << 10 // of an audit record: two documents. It is an object in S3 and never a message
	MaxTypeBytes  = 64
	MaxTextChars  = 512       // of an actor and of a reason, in characters
	MaxVersion    = 1<<53 - 1 // of an item; the largest integer that every double can hold exactly
)

// Errors of [Encode], [Decode] and [Batches]. Errors that wrap ErrMalformed name the field.
var (
	ErrMalformed = errors.New("malformed event")
	ErrTooLarge  = errors.New("event too large")
)

// TimeLayout is RFC 3339 in UTC with microseconds. All times have the same length: 2026-11-21T18:00:00.000000Z.
const TimeLayout = "2006-01-02T15:04:05.000000Z"

// Header holds the fields with which every event begins.
type Header struct {
	Type    Type
	Version int       // 1 or more
	ID      string    // names what the event reports; the same in each delivery
	Time    time.Time // when the change happened, not when it was published; UTC, in microseconds
}

// Event is a [Changed], an [AuditRecord] or a [Raw].
type Event interface {
	// Header returns the event's header.
	Header() Header

	// check returns an error about the first field that is out of its bounds.
	check() error

	// fields writes the fields after the header.
	fields(*writer)
}

// Changed reports a new version of a document of the control tables. It holds the whole document.
type Changed struct {
	Type        Type      // one of the types whose comment says Changed
	Key         string    // the document's id; for documents that exist once, SettingsKey, CanaryKey or SharesKey
	ItemVersion int64     // of the document, 1..MaxVersion, without gaps
	Time        time.Time // when it was written, by the writer's clock. It may go back: only versions order changes
	Deleted     bool      // the document was deleted
	Hash        string    // of the item, hex; see package control
	// Body is the document as in the control table: a JSON object of at most MaxBodyBytes. It is nil if and only if
	// Deleted is true. The control plane writes it in canonical form (see [Canonical]). But a transport of events
	// may encode JSON again, as some event source mappings do, with other spaces and escapes.
	Body json.RawMessage
}

// Header implements [Event].
func (e *Changed) Header() Header {
	return Header{e.Type, Version, itemID(e.Type.table(), e.Key, e.ItemVersion), instant(e.Time)}
}

// AuditRecord is the archived form of a version of an item of any control table: who wrote it, when and why, the body
// before and after, and its link in the hash chain.
type AuditRecord struct {
	Table         Table
	Key           string
	ItemVersion   int64
	Time          time.Time // when it was written, by the writer's clock
	Actor, Reason string    // 1..MaxTextChars characters, no control characters
	Deleted       bool
	Before        json.RawMessage // the body of the previous version; nil if there was none, or it was deleted
	After         json.RawMessage // the body; nil if and only if Deleted is true
	PrevHash      string          // of the previous version; empty if and only if ItemVersion is 1
	Hash          string          // over all fields except Before; see package control
}

// Header implements [Event].
func (e *AuditRecord) Header() Header {
	return Header{AuditRecorded, Version, itemID(e.Table, e.Key, e.ItemVersion), instant(e.Time)}
}

// Raw is a whole event of a type or version that this package does not know.
type Raw struct {
	Head Header          // id and time are zero if they are not of the form that this package knows
	Data json.RawMessage // the event: a JSON object
}

// Header implements [Event].
func (e *Raw) Header() Header { return e.Head }

// itemID never returns the same id for two versions: a table's name holds no slash, and the version follows the last
// one.
func itemID(t Table, key string, version int64) string {
	return fmt.Sprintf("%s/%s/%d", t, key, version)
}

// instant returns t in the precision of events.
func instant(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }
