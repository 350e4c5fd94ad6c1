// Package cellconfig is the configuration of one cell as a table of documents with a change log: what is in it, how it
// is written, and a [Reader] that keeps a copy of what requests need.
//
// # The table
//
// A table holds documents (plans, tenants, API keys, the settings; other kinds are kept and not read here), a change
// log, and a head. A [Document] has a version of its own, counted where it is edited. The log counts the table's
// states: entry n names every document, with its version, that the n-th change replaced; the head is the number of the
// last entry. Documents, entry and the step of the head from n to n+1 are one transaction, so a table is in state n or
// in state n+1 and nothing between. A document knows the entry that it came with ([Document.Seq]).
//
// An API key is there twice: under its id, for those who manage it, and under its hash ([KindKeyHash]), since that is
// all that a request shows. The second is made by [Apply]; its version is the number of its entry.
//
// A deleted document stays as a tombstone, so that a message from before the deletion is still known to be old. Entries
// of the log are dropped some time after they were written ([Head.Retention]).
//
// # Repairs
//
// [Apply] only ever raises a document's version, and readers rely on it. A document that the control tables do not
// have, or of which they have a lower version or another content, cannot be set right in this way: it was forged, or
// the control tables were restored to an earlier time. [Repair] writes over it, or removes it, in a step that also
// gives the table another [Head.Incarnation]. So a repair is to readers what the restore of a whole table is: they
// drop their copy and read again what they need, with whatever versions are there. No reader has to know of repairs,
// and nothing that is stored has another form: readers as old as the first release follow them, too.
//
// A row that is put right past this package leaves no trace in the head or the log. Readers find it by the age of what
// they have: see below.
//
// Whoever writes to a table past this package can also make rows that are no documents ([BadRow]). [DeleteRows] deletes
// them in the same way.
//
// # Reading
//
// A [Reader] loads documents when a request needs them, and learns from the log which of them it must read again. It
// holds:
//
//   - The head is read before any document, and documents are read consistently. So what is read is at least as new as the
//     head, and what changes later is in the log.
//   - A document that is ahead of the head that is known here is not used before the log has been read up to it. So all that
//     the copy holds is of one state of the table: a tenant is never resolved against a plan of another state.
//   - After an entry, a document that it names is read again, and one that is older than the entry says is not accepted.
//   - A document is used for at most [MaxAge] without another look at the table, and so is the knowledge that there is none.
//     One in use is read again when it is 10 to 14 minutes old, beside requests; one that gets older is read again in front of
//     the request that needs it. If the table does not have what the copy has, and the log did not say so, somebody has
//     written past this package: the whole copy is dropped, and what the table has is loaded, with whatever versions are
//     there. An honest change is never taken for that: reads are consistent, and the log is read up to the document's
//     entry first. If the table cannot be read, what is here goes on being used.
//   - A log that names what the table does not have, or that cannot be read, is believed for at most MaxAge, too.
//   - A gap in the log, a copy older than half the log's retention, a head that went backwards, or another table in its place:
//     the whole copy is dropped.
//   - The log is polled at most once per second: beside the decision while the copy is at most 2 s old, in front of it when
//     the copy is older, by the wall clock or the monotonic one, whichever went further; a process that was frozen has a
//     monotonic clock that stood still. One poll serves all requests.
//   - Where the table does not answer, what is here goes on being used, and is stale after 30 s. What is not here gives
//     [authorizer.ErrNotLoaded]. No read is waited for longer than [Config.Timeout], or at the beginning
//     [Config.FirstTimeout], and a table that keeps failing is not asked for a while.
//   - A cell that is one of several grants nothing before it has heard its shares, and goes on with those that it heard last where
//     they are not there any more. See [Config.Cell] and [Config.Alone].
//   - A document that does not compile never replaces one that did. Where there is none, only what needs it is not loaded.
//   - Shares or a placement that cannot be read are not absent ones. A tombstone of either says that the cell does not know
//     them: shares that were heard before stay in force, and nothing is decided about the tenant of the placement.
//
// A request keeps the settings that it began with. Its key and its tenant are looked up in the newest state that is
// known when they are asked for, so a change in between may be seen by the second and not by the first.
package cellconfig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluicelimits/sluice/internal/plan"
)

// Kind is that of a document. The kinds of package plan are read here.
type Kind = plan.Kind

// KindKeyHash is an API key under its hash, 64 hex digits in lower case, as id. It is never applied by itself.
const KindKeyHash Kind = "keyhash"

// Documents about the cells' shares of limits: what [shares.State] is to all of them, and the placement of each tenant
// that not every cell serves, under [shares.PlacementKey].
const (
	KindShares    Kind = "shares"
	SharesID           = "shares"
	KindPlacement Kind = "placement"
)

// Bounds of documents.
const (
	MaxIDBytes   = 512
	MaxBodyBytes = 4 << 20
	maxKindBytes = 16
	hashHexBytes = 64
)

var (
	// ErrEmpty is a table that nothing was ever written to.
	ErrEmpty = errors.New("the cell configuration is empty: nothing was ever written to it")

	// ErrConflict is a [Step] that is not from the head that the table is at.
	ErrConflict = errors.New("the head moved")

	// ErrInvalid is a document that is refused. What wraps it names the document and says why.
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
	Version int64  // from 1, rising with each edit; 0 where there is none and never was
	Seq     int64  // number of the log entry that it came with
	Deleted bool   // a tombstone
	Body    []byte // JSON; of a tombstone, nil
}

// Change is what a log entry says of a document.
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
	Incarnation string        // of the table: another one is another table, or a repaired one; see [Repair]
	Seq         int64         // number of the last log entry
	Retention   time.Duration // how long a log entry stays; 0 is for ever
}

// Table is what a [Reader] needs. It is safe for concurrent use. Every read is consistent: it sees what was written
// before it began.
type Table interface {
	// Head is the table's state. The error wraps ErrEmpty where nothing was ever written.
	Head(ctx context.Context) (Head, error)

	// Log is the entries after..upTo, the first left out, in order. What is not there any more is missing.
	Log(ctx context.Context, after, upTo int64) ([]Entry, error)

	// Get is the documents, in the order asked for. One that never was has Version 0. The error wraps a *BadRow if a
	// row in the place of one of them cannot be read.
	Get(ctx context.Context, refs ...Ref) ([]Document, error)
}

// Lister lists documents: for reconciling and for operators.
type Lister interface {
	// List is all documents of a kind, tombstones included, in no order. What is written meanwhile may be in it or
	// not. A row that is no document is an error that wraps a *BadRow, and the list goes on. It ends after any other
	// error.
	List(ctx context.Context, kind Kind) iter.Seq2[Document, error]
}

// Store is a table that can be written. Use [Apply].
type Store interface {
	Table
	Lister

	// Commit writes the step's documents and log entry and moves the head, all or nothing, where the head is still at
	// Entry.Seq-1 of the incarnation; else the error wraps ErrConflict and nothing is written. The incarnation may be
	// "" where the table is empty; it is then made. A step with Repair makes another one, and a document of version 0
	// in it is removed. Rows are deleted by their own keys, whatever is in them.
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

// Check says what is wrong with a document that is to be applied; the error wraps ErrInvalid and names it.
func (d *Document) Check() error {
	why := d.wrong()
	if why == "" && !d.Deleted {
		why = d.wrongBody()
	}
	if why != "" {
		return fmt.Errorf("%w %s: %s", ErrInvalid, d.name(), why)
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
	case d.Kind != plan.KindKey:
		return ""
	}
	if id, hash := keyOf(d.Body); id != d.ID || len(hash) != hashHexBytes ||
		strings.Trim(hash, "0123456789abcdef") != "" {
		return "a key needs its id and a hash of 64 hex digits in lower case"
	}
	return ""
}

func (r Ref) name() string {
	if r.Kind == KindKeyHash {
		return string(r.Kind) // what is stored of a key is nobody's to read
	}
	return plan.Document{Kind: r.Kind, ID: r.ID}.Name()
}

// keyOf is the id and the hash in the body of a key; both "" where it is none.
func keyOf(body []byte) (id, hash string) {
	var key struct{ ID, Hash string }
	if json.Unmarshal(body, &key) != nil {
		return "", ""
	}
	return key.ID, key.Hash
}
