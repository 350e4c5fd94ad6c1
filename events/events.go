// Package events is what travels between Sluice's functions and to its subscribers: types, versions and their JSON.
//
// An event is a JSON object that begins with its type, version, id and time. There is one for each change of a document,
// whatever the number of tenants that it concerns. Fields are only ever added to a version, so a reader leaves alone those
// that it does not know; removing or retyping one makes the next version. A type or version that a reader does not know is a
// [Raw] event: it is counted and kept, and is no error.
//
// Delivery is at least once and in any order. The id names a version of a document, the same in each delivery; whoever keeps
// documents applies an event iff its item version is newer than what it has.
//
// Subscribe queues to the topic with raw message delivery. Without it SNS wraps the event in another JSON text, in which
// each quotation mark takes two bytes, and a large event no longer fits.
package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Type says what an event is about, and with the version which fields it has.
type Type string

// The types. All of them are at version 1.
const (
	PlanChanged     Type = "plan.changed"     // Changed: a plan
	SettingsChanged Type = "settings.changed" // Changed: ipLimits, ipv6Prefix, anonymousPlan and routes
	TenantChanged   Type = "tenant.changed"   // Changed: a tenant
	KeyChanged      Type = "key.changed"      // Changed: an API key, as its hash
	SharesChanged   Type = "shares.changed"   // Changed: the cells' shares of all tenants; or where one tenant is served, see PlacementPrefix
	Canary          Type = "canary"           // Changed: nothing but a mark whose way through the system is timed
	AuditRecorded   Type = "audit.record"     // AuditRecord
	TenantThrottled Type = "tenant.throttled" // Throttled
)

// Version is that of every type in this package.
const Version = 1

// Bounds of an encoded event. A message of SNS and of SQS may have 256 KB (262,144 bytes), attributes included.
const (
	MaxBodyBytes  = 200 << 10 // of a document
	MaxBytes      = 220 << 10 // of an event that is published
	MaxAuditBytes = 440 << 10 // of an audit record, which is an object in S3 and never a message: two documents
	MaxTypeBytes  = 64
	MaxTextChars  = 512       // of an actor and of a reason, in characters
	MaxVersion    = 1<<53 - 1 // of an item: what a double holds
	MaxUnits      = 1<<53 - 1 // of a limit
)

// Errors of [Encode], [Decode] and [Batches]. What wraps them names the field.
var (
	ErrMalformed = errors.New("malformed event")
	ErrTooLarge  = errors.New("event too large")
)

// timeLayout is RFC 3339 in UTC with microseconds, always of one length: 2026-11-21T18:00:00.000000Z.
const timeLayout = "2006-01-02T15:04:05.000000Z"

// Header is what every event begins with.
type Header struct {
	Type    Type
	Version int       // 1..
	ID      string    // names what the event tells, the same in each delivery
	Time    time.Time // when it happened, UTC, in microseconds: never when it was published
}

// Event is a [Changed], an [AuditRecord], a [Throttled] or a [Raw].
type Event interface {
	// Header is what the event begins with.
	Header() Header

	// check returns the first field that is out of bounds, as an error.
	check() error

	// fields writes what follows the header.
	fields(*writer)
}

// Changed tells the new version of a document of the control tables, whole.
type Changed struct {
	Type        Type            // one of those that say so
	Key         string          // the document's id; SettingsKey, CanaryKey or SharesKey where there is one only
	ItemVersion int64           // of the document, 1..MaxVersion, without gaps
	Time        time.Time       // when it was written, by the writer's clock, which may go back: versions decide
	Deleted     bool            // it is gone
	Hash        string          // of the item, hex; see package control
	Body        json.RawMessage // as in the control table: a canonical JSON object of at most MaxBodyBytes; nil iff Deleted
}

// Header implements [Event].
func (e *Changed) Header() Header {
	return Header{e.Type, Version, itemID(e.Type.table(), e.Key, e.ItemVersion), instant(e.Time)}
}

// AuditRecord is a version of an item of any control table as it is archived: who wrote it, when and why, what it was before,
// and its link of the hash chain.
type AuditRecord struct {
	Table         Table
	Key           string
	ItemVersion   int64
	Time          time.Time // when it was written, by the writer's clock
	Actor, Reason string    // 1..MaxTextChars characters, no control characters
	Deleted       bool
	Before        json.RawMessage // the body of the version before; nil where there was none, or it was deleted
	After         json.RawMessage // the body; nil iff Deleted
	PrevHash      string          // of the version before; empty iff ItemVersion is 1
	Hash          string          // over all fields but Before; see package control
}

// Header implements [Event].
func (e *AuditRecord) Header() Header {
	return Header{AuditRecorded, Version, itemID(e.Table, e.Key, e.ItemVersion), instant(e.Time)}
}

// Throttled tells that a tenant met a limit: one event for each cell, tenant, limit and window, at the first denial in it.
type Throttled struct {
	Time        time.Time // of the denial
	Cell        string
	Tenant      string
	Plan        string
	Limit       string    // id of the limit
	Threshold   int64     // units per window that the cell enforced, 1..MaxUnits
	WindowStart time.Time // of the limit's period, by the wall clock
	WindowEnd   time.Time // after WindowStart
}

// Header implements [Event].
func (e *Throttled) Header() Header {
	// Neither a cell nor a limit holds a slash, so no two of these ids meet, whatever the tenant is called.
	id := fmt.Sprintf("throttled/%s/%s/%d/%s", e.Cell, e.Limit, instant(e.WindowStart).UnixMicro(), e.Tenant)
	return Header{TenantThrottled, Version, id, instant(e.Time)}
}

// Raw is an event of a type or version that this package does not know, whole.
type Raw struct {
	Head Header          // id and time are left empty where they are not what this package knows them to be
	Data json.RawMessage // the event: a JSON object
}

// Header implements [Event].
func (e *Raw) Header() Header { return e.Head }

// itemID is injective: a table's name holds no slash, and the version is what follows the last one.
func itemID(t Table, key string, version int64) string {
	return fmt.Sprintf("%s/%s/%d", t, key, version)
}

// instant is t as an event can hold it.
func instant(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }
