// Package audit archives every version of every item of the control tables, checks whether the archive still holds
// what was put there, and shows its content.
//
// The archive has one object for each version of an item, under control.ObjectName. It holds the record of the change
// (events.AuditRecord, as events.Encode writes it): who made it, when and why, the body before and after, and the link
// of the hash chain. Objects are never overwritten; if an object cannot be read, the record is put as the next version
// of its name. Records that cannot be archived in this way are kept below [RejectedPrefix], with the reason.
//
// The archive contains no secrets: API keys appear as keyed hashes with the id of their pepper. It contains the names
// of tenants, their limits and the identities of operators, for as long as objects are kept, even if items are deleted
// from the tables.
//
// [Verify] finds out what was altered, removed, replaced or hidden afterwards; [Show] lists the changes.
//
// # Times of objects
//
// S3 records when each version was put, and no writer can set that time. [Verify] compares it with the time of the
// change, so that a history that is written anew much later is found even if every hash is computed again. An object
// that the archiver put is late by as long as the archiver was unavailable, which is at most the day for which a stream
// keeps a change. The times of files are not compared, since whoever may write the folder may set them.
//
// # Anchors
//
// The hash chain has no key: whoever can write the tables and the archive can compute all of it again. Therefore a
// separate function, which can write neither tables nor records, reads the newest version of every item (its head)
// once a day and puts an anchor beside the records: the hashes of the lists of heads, and the hash of the previous
// anchor, signed with a key that only this function may use ([WriteAnchor]). The hash of a head covers all earlier
// versions of its item. [Verify] compares the heads with the archive and the anchors with each other, and checks their
// signatures with public keys that the caller gives.
//
// Decisions and their limitations:
//
//   - An anchor lists every head, not only a Merkle root: a root cannot tell which item was rewritten, and Verify would
//     have to guess which versions were the heads. Of two consecutive anchors, only the heads that differ are compared
//     with the archive, each once.
//   - Heads are read from the tables, so that an attacker who controls the archiver cannot choose what is signed.
//   - Anchors do not reveal what is rewritten between a change and the next anchor, which is at most a day.
//   - An anchor cannot name later anchors. If the newest anchors are removed, Verify finds that after a day. If all
//     anchors are removed and made anew, it finds that only if the caller knows the hash of an earlier anchor
//     (VerifyConfig.Known): write one down outside of the account.
//   - Archives of earlier releases have no anchors: this is a notice, not a finding.
//   - Whoever may put anchors can take the name of an anchor beforehand. The anchor is the first version of its name
//     that was put on its day or later and is a valid anchor of that day. WriteAnchor and Verify use the same code to
//     pass over other versions: such an object is a finding, and prevents nothing.
package audit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/sluicelimits/sluice/internal/control"
)

// RejectedPrefix begins the names of rejected records: rejected/<SHA-256 in hex of the record as it arrived>.json.
const RejectedPrefix = "rejected/"

// MaxBytes is the largest size of an object. The largest are rejected records in base64: Lambda delivers at most 6 MB.
const MaxBytes = 10 << 20

// Errors of archives. Errors that wrap them name the object.
var (
	ErrUnequal  = errors.New("there is another object of this name")
	ErrNotFound = errors.New("no such object")
	ErrTooLarge = errors.New("object too large")
	ErrDenied   = errors.New("access denied")

	// ErrUnreadable says that the archive has the object and answers, but can never return its content to this reader.
	// An archive that does not answer, throttles, or denies this reader other objects too returns another error.
	ErrUnreadable = errors.New("the object cannot be read")
)

// Archive stores objects by name. Every version that a name has had can be listed and read for as long as the archive
// keeps it. Implementations are safe for concurrent use by several processes, and pass audittest.Run.
type Archive interface {
	// Put stores an object of at most MaxBytes under a name that has none, completely or not at all; it is durable
	// when Put returns. If an equal object exists, Put does nothing and made is false. If a different object exists,
	// Put does nothing and the error wraps ErrUnequal, or ErrUnreadable if the objects cannot be compared. After any
	// other error the object may have been stored: repeat the Put.
	Put(ctx context.Context, name string, data []byte) (made bool, err error)

	// Cover stores an object as the newest version of its name, even if the name has versions, which are kept. It is
	// for a name that was taken by something that does not belong there. The error wraps errors.ErrUnsupported if the
	// archive keeps only one version of each name. After any other error, repeat the Cover: a second equal version
	// does no harm.
	Cover(ctx context.Context, name string, data []byte) error

	// Get reads a version that List has returned; without a Version, the newest one. The error wraps ErrNotFound if
	// the version no longer exists, ErrTooLarge, or ErrUnreadable.
	Get(ctx context.Context, e Entry) (Object, error)

	// List returns all versions, including delete markers, of all objects whose names begin with prefix and sort after
	// the name after (empty: from the first name on). They come in the byte order of their names; versions of one name
	// newest first. Objects that are put during the call may be left out. List ends after an error.
	List(ctx context.Context, prefix, after string) iter.Seq2[Entry, error]

	// Lock returns the lock that the archive gives to an object that is put without one, as Put does. The error wraps
	// ErrDenied if the caller may not read it.
	Lock(ctx context.Context) (Lock, error)
}

// Lock is the retention that an archive gives to each new object.
type Lock struct {
	Enabled bool          // objects can be locked, so an unlocked object is suspicious
	Mode    string        // GOVERNANCE or COMPLIANCE; empty: new objects are not locked
	Period  time.Duration // from the time of the put; 0 if Mode is empty
}

// Entry is a version of an object, or a delete marker that hides the earlier versions.
type Entry struct {
	Name         string
	Version      string // distinguishes the versions of a name; empty if there is only one
	DeleteMarker bool   // has no content; a read without a version reports that there is no object
	SizeBytes    int64
	PutAt        time.Time // by the archive's clock, in seconds
}

// Object is the content of one version.
type Object struct {
	Data        []byte
	Locked      bool      // the object has or had a retention: nobody can remove it before LockedUntil
	LockedUntil time.Time // zero unless Locked
	LockMode    string    // GOVERNANCE, which privileged users may bypass, or COMPLIANCE; empty unless Locked
}

// Reasons of rejected records.
const (
	Unreadable = "unreadable" // not a change that Sluice made
	Unequal    = "unequal"    // the object of its name differs
)

// Rejected is a record that has no object of its own. It is kept for people to examine.
type Rejected struct {
	Layout   int           `json:"layout"` // 1
	Reason   string        `json:"reason"`
	Table    control.Table `json:"table,omitempty"` // as far as they are known
	Key      string        `json:"key,omitempty"`
	Version  int64         `json:"item_version,omitempty"`
	Sequence string        `json:"sequence,omitempty"`
	Error    string        `json:"error"`
	Raw      []byte        `json:"raw"` // the record as it arrived; in base64 in JSON
}

// Name returns the object's name. It is the same for each copy of the record.
func (r *Rejected) Name() string {
	sum := sha256.Sum256(r.Raw)
	return RejectedPrefix + hex.EncodeToString(sum[:]) + ".json"
}

// Reject stores a rejected record. If the record is already stored, even with another reason, Reject does nothing. If
// its name has another content, the record is put as a newer version of the name.
func Reject(ctx context.Context, a Archive, r Rejected) error {
	r.Layout = 1
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("reject a record: %w", err)
	}
	_, err = a.Put(ctx, r.Name(), data)
	taken := errors.Is(err, ErrUnreadable)
	if errors.Is(err, ErrUnequal) {
		var kept bool
		kept, err = keeps(ctx, a, &r)
		taken = err == nil && !kept
	}
	if taken {
		err = a.Cover(ctx, r.Name(), data)
	}
	if err != nil && !errors.Is(err, errors.ErrUnsupported) { // in a folder, a file that somebody changed stays
		return fmt.Errorf("reject a record: %w", err)
	}
	return nil
}

// keeps reports whether the newest version of the rejected record's name holds the record.
func keeps(ctx context.Context, a Archive, r *Rejected) (bool, error) {
	o, err := a.Get(ctx, Entry{Name: r.Name()})
	if errors.Is(err, ErrTooLarge) || errors.Is(err, ErrUnreadable) {
		return false, nil
	}
	var there Rejected
	return err == nil && json.Unmarshal(o.Data, &there) == nil && bytes.Equal(there.Raw, r.Raw), err
}

// CheckPut returns an error unless Put accepts the arguments.
func CheckPut(name string, data []byte) error {
	if name == "" || len(name) > maxNameBytes {
		return fmt.Errorf("an object's name has %d bytes, want 1..%d", len(name), maxNameBytes)
	}
	if len(data) > MaxBytes {
		return fmt.Errorf("put %s: %w: %d bytes, want at most %d", name, ErrTooLarge, len(data), MaxBytes)
	}
	return nil
}

const maxNameBytes = 1024 // S3's limit
