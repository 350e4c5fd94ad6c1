// Package table defines the config table of a cell, a table of documents with a change log, and how it is written.
// Package config reads the table for requests, and package dynamotable stores it in DynamoDB.
//
// # The table
//
// A table holds documents (plans, tenants, API keys, the settings, and others), a change log, and a head. A [Document]
// has a version, which is counted where the document is edited. The log counts the table's states: entry n names every
// document that the n-th change replaced, with its version; the head is the number of the last entry. The documents,
// the entry, and the step of the head from n to n+1 are written in one transaction, so a table is always in exactly one
// state. A document stores the number of the entry that it was written with ([Document.Seq]).
//
// An API key is stored twice: under its id, for management, and under its hash ([KindKeyHash]), which is all that is
// known of the key of a request. [Apply] makes the second document; its version is the number of its entry.
//
// A deleted document is kept as a tombstone, so that a message from before the deletion is still recognised as old.
// Log entries are dropped some time after they were written ([Head.Retention]).
//
// # Repairs
//
// [Apply] only ever raises a document's version, and readers rely on that. It cannot correct a document that the
// control tables do not have, or have in a lower version or with another content: such a document was forged, or the
// control tables were restored to an earlier time. [Repair] replaces or removes it, in a step that also gives the
// table another [Head.Incarnation]. Readers treat a repair like the restore of a whole table: they drop their copy and
// read what they need again, whatever its versions.
//
// A row that is corrected without this package leaves no trace in the head or the log. Readers find such changes
// because they read documents again when these are old.
//
// Whoever writes to a table without this package can also make rows that are not documents ([BadRow]). [DeleteRows]
// deletes them, also in steps with another incarnation.
package table

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluicelimits/sluice/events"
)

// Kind is the kind of a document.
type Kind = events.Kind

// KindKeyHash is the kind of an API key stored under its hash: the id is 64 hex digits in lower case. Such a document
// is never given to Apply.
const KindKeyHash Kind = "keyhash"

// Documents about the cells' shares of limits: the [shares.State] of all cells, and, for each tenant that not every
// cell serves, its placement, under [shares.PlacementKey].
const (
	KindShares    = events.KindShares
	SharesID      = "shares"
	KindPlacement = events.KindPlacement
)

// The kind and the id of the canary, which is not in a plans file.
const (
	KindCanary = events.KindCanary
	CanaryID   = "canary"
)

// Bounds of documents.
const (
	MaxIDBytes   = 512
	MaxBodyBytes = 4 << 20
	maxKindBytes = 16
	hashHexBytes = 64
)

var (
	// ErrEmpty says that nothing was ever written to the table.
	ErrEmpty = errors.New("the cell configuration is empty: nothing was ever written to it")

	// ErrConflict says that a [Step] does not follow the table's present head.
	ErrConflict = errors.New("the head moved")

	// ErrInvalid says that a document is refused. Errors that wrap it name the document and the reason.
	ErrInvalid = errors.New("invalid document")
)

// Ref names a document.
type Ref struct {
	Kind Kind
	ID   string // 1 to MaxIDBytes of UTF-8
}

// Document is one document of the table.
type Document struct {
	Ref
	Version int64  // from 1, rising with each edit; 0: there has never been such a document
	Seq     int64  // number of the log entry that the document was written with
	Deleted bool   // a tombstone
	Body    []byte // JSON; nil for a tombstone
}

// Change is a document that a log entry names.
type Change struct {
	Ref
	Version int64
	Deleted bool
}

// Entry is one entry of the change log.
type Entry struct {
	Seq     int64 // from 1
	At      time.Time
	Changes []Change
}

// Head is the state of a table.
type Head struct {
	Incarnation string        // changes if the table is replaced or repaired; see [Repair]
	Seq         int64         // number of the last log entry
	Retention   time.Duration // how long a log entry is kept; 0: for ever
}

// Table is the part of a table that a [Reader] uses. It is safe for concurrent use. Every read is consistent: it sees
// everything that was written before it began.
type Table interface {
	// Head returns the table's state. The error wraps ErrEmpty if nothing was ever written.
	Head(ctx context.Context) (Head, error)

	// Log returns the entries after+1..upTo in order. Entries that were dropped are missing.
	Log(ctx context.Context, after, upTo int64) ([]Entry, error)

	// Get returns the documents in the order of refs. A document that has never existed has Version 0. The error wraps
	// a *BadRow if the row of a document cannot be read.
	Get(ctx context.Context, refs ...Ref) ([]Document, error)
}

// Lister lists documents, for reconcile and for operators.
type Lister interface {
	// List returns all documents of a kind, including tombstones, in any order. Documents that are written during the
	// call may be left out. For a row that is not a document it yields an error that wraps a *BadRow, and goes on. It
	// ends after any other error.
	List(ctx context.Context, kind Kind) iter.Seq2[Document, error]
}

// Store is a table that can be written. Use [Apply] to write it.
type Store interface {
	Table
	Lister

	// Commit writes the step's documents and log entry and moves the head, in one transaction, if the head is still at
	// Entry.Seq-1 of the step's incarnation. Otherwise it writes nothing and the error wraps ErrConflict. If the table
	// is empty, the incarnation may be ""; Commit then makes one. A step with Repair gets another incarnation, and its
	// documents of version 0 are removed. Rows are deleted by their keys, whatever their content.
	Commit(ctx context.Context, step Step) error
}

// Step is one change of a table's state.
type Step struct {
	Incarnation string
	Entry       Entry
	Documents   []Document
	Rows        []BadRow // to delete; see [DeleteRows]
	Repair      bool     // gives the table another incarnation; see [Repair]
}

// Check returns an error if the document cannot be applied. It wraps ErrInvalid and names the document.
func (d *Document) Check() error {
	why := d.wrong()
	if why == "" && !d.Deleted {
		why = d.wrongBody()
	}
	if why != "" {
		return fmt.Errorf("%w %s: %s", ErrInvalid, d.Name(), why)
	}
	return nil
}

func (d *Document) wrong() string {
	switch {
	case d.Kind == "" || len(d.Kind) > maxKindBytes || strings.Trim(string(d.Kind), "abcdefghijklmnopqrstuvwxyz") != "":
		return fmt.Sprintf("the kind is not 1 to %d of a-z", maxKindBytes)
	case d.Kind == KindKeyHash:
		return "a key is applied under its id"
	case d.ID == "" || len(d.ID) > MaxIDBytes || !utf8.ValidString(d.ID):
		return fmt.Sprintf("the id is not 1 to %d bytes of UTF-8", MaxIDBytes)
	case d.Version < 1:
		return fmt.Sprintf("version %d is below 1", d.Version)
	case d.Deleted && len(d.Body) > 0:
		return "a tombstone has no body"
	}
	return ""
}

func (d *Document) wrongBody() string {
	switch {
	case len(d.Body) > MaxBodyBytes:
		return fmt.Sprintf("%d bytes, want at most %d", len(d.Body), MaxBodyBytes)
	case !json.Valid(d.Body):
		return "the body is not JSON"
	case d.Kind != events.KindKey:
		return ""
	}
	if id, hash := KeyOf(d.Body); id != d.ID || len(hash) != hashHexBytes ||
		strings.Trim(hash, "0123456789abcdef") != "" {
		return "a key needs its id and a hash of 64 hex digits in lower case"
	}
	return ""
}

// Name names the document in errors and logs.
func (r Ref) Name() string {
	if r.Kind == KindKeyHash {
		return string(r.Kind) // the hash of a key must not be shown
	}
	if r.Kind == events.KindSettings {
		return string(r.Kind) // there is only one
	}
	return fmt.Sprintf("%s %.60q", r.Kind, r.ID)
}

// KeyOf returns the id and the hash in the body of a key; both "" if the body is not a key's.
func KeyOf(body []byte) (id, hash string) {
	var key struct{ ID, Hash string }
	if json.Unmarshal(body, &key) != nil {
		return "", ""
	}
	return key.ID, key.Hash
}
