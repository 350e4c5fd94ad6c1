// Package audit is the archive of every version of every item of the control tables, what tells whether it still holds
// what was put there, and what shows it.
//
// The archive has one object for each version of an item, control.ObjectName, which holds the record of the change
// (events.AuditRecord, as events.Encode writes it): who, when and why, the body before and after, and the link of the
// hash chain. Objects are never overwritten; over one that nobody can read, the record is put as the next version. A
// record that could not be kept so lies below [RejectedPrefix], with the reason.
//
// What it holds of secrets: none. API keys are in it as keyed hashes with the id of their pepper. Tenants' names, their
// limits and the identities of operators are in it, for as long as objects are kept, whatever is deleted from the
// tables.
//
// [Verify] finds out what was altered, removed, replaced or hidden since; [Show] reads it for people.
//
// # When an object was put
//
// S3 says of each version when it was put, and no writer can set that time. [Verify] compares it with the time of the
// change, so a history that somebody writes anew long after is found, even where every hash is computed again. An
// honest object is late by as long as the archiver was away, and at most by the day for which a stream holds a
// change. Times of files are not compared: whoever may write the folder may set them.
//
// # Anchors
//
// The hash chain has no key: who can write the tables and the archive can compute all of it again. So once a day a
// function of its own, which can write neither a table nor a record, reads the newest version of every item (its
// head) and puts an anchor beside the records: the hashes of the lists of heads, and the hash of the anchor before,
// signed with a key that it alone may use ([WriteAnchor]). A head's hash stands for all versions of its item before.
// [Verify] compares the heads with the archive, the anchors with each other, and their signatures with public keys
// that the caller gives.
//
// Decisions, and what they leave open:
//
//   - An anchor lists every head, and not a Merkle root alone: a root cannot say which item was rewritten, and Verify
//     would have to guess which versions were the heads. Of two anchors that follow each other only the heads that
//     differ are compared with the archive, each once.
//   - Heads are read from the tables, so an archiver that was taken over cannot choose what is signed.
//   - What is rewritten between a change and the next anchor, a day at most, is not found by anchors.
//   - An anchor cannot name those after it. That the newest are missing shows when a day has passed; that all were
//     removed and begun anew shows only to who knows the hash of an earlier one (VerifyConfig.Known), which is worth
//     writing down outside of the account.
//   - Trails of before have no anchors: that is a notice, not a finding.
//   - Whoever may put anchors can take the name of one beforehand. Of a name's versions the anchor is the first that was
//     put on its day or later and is an anchor of that day. WriteAnchor and Verify pass over the others by the same code:
//     so such an object is a finding, and stops nothing.
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

// RejectedPrefix is what the names of rejected records begin with: rejected/<hex of SHA-256 over the record as it
// came>.json.
const RejectedPrefix = "rejected/"

// MaxBytes is the most that an object may have. A rejected record in base64 is the largest: Lambda brings at most 6 MB.
const MaxBytes = 10 << 20

// Errors of archives. What wraps them names the object.
var (
	ErrUnequal  = errors.New("there is another object of this name")
	ErrNotFound = errors.New("no such object")
	ErrTooLarge = errors.New("object too large")
	ErrDenied   = errors.New("access denied")

	// ErrUnreadable is wrapped if the archive has the object and answers, and will not give its content to this reader
	// however often it is asked: the fault is the object's. An archive that is away, throttles, or denies this reader
	// other objects as well is another error.
	ErrUnreadable = errors.New("the object cannot be read")
)

// Archive keeps objects by name. Whatever happens to a name later, the versions that it had can be listed and read as
// long as the archive has them. Implementations are safe for concurrent use by several processes, and pass
// audittest.Run.
type Archive interface {
	// Put keeps an object of at most MaxBytes under a name that has none, whole or not at all: it is durable when Put
	// returns. Where there is an equal one nothing happens, and made is false. Where there is an unequal one nothing
	// happens either, and the error wraps ErrUnequal, or ErrUnreadable if nobody can tell whether it is equal. After
	// any other error the object may be there: repeat the Put.
	Put(ctx context.Context, name string, data []byte) (made bool, err error)

	// Cover keeps an object as the newest version of its name, whatever is there, which stays as an older version. It
	// is for a name that was taken by what should not be there. The error wraps errors.ErrUnsupported if the archive
	// keeps one version of each name. After any other error repeat the Cover: another equal version does no harm.
	Cover(ctx context.Context, name string, data []byte) error

	// Get reads the version of an object that List has told of; without a Version the newest one. The error wraps
	// ErrNotFound where it is gone, ErrTooLarge, and ErrUnreadable.
	Get(ctx context.Context, e Entry) (Object, error)

	// List goes through all versions of all objects whose names begin with prefix and come after another name (empty:
	// from the first on), delete markers included, in the order of the names' bytes; of one name, the newest version
	// first. What is put meanwhile may or may not come. After an error it ends.
	List(ctx context.Context, prefix, after string) iter.Seq2[Entry, error]

	// Lock returns how the archive locks an object that is put without a lock of its own, as Put puts it. The error
	// wraps ErrDenied if the caller may not ask.
	Lock(ctx context.Context) (Lock, error)
}

// Lock is the retention that an archive gives to each new object.
type Lock struct {
	Enabled bool          // objects can be locked, so that one that is not is suspect
	Mode    string        // GOVERNANCE or COMPLIANCE; empty: new objects are not locked
	Period  time.Duration // from the put on; 0 if Mode is empty
}

// Entry is a version of an object, or a mark that hides those before it.
type Entry struct {
	Name         string
	Version      string // names it among those of the name; empty where there is only one
	DeleteMarker bool   // it has no content, and reads without a version say that there is no object
	SizeBytes    int64
	PutAt        time.Time // by the archive's clock, in seconds
}

// Object is the content of one version.
type Object struct {
	Data        []byte
	Locked      bool      // a retention is or was set: until LockedUntil nobody removes it
	LockedUntil time.Time // zero where not Locked
	LockMode    string    // GOVERNANCE, which some may bypass, or COMPLIANCE; empty where not Locked
}

// Reasons of rejected records.
const (
	Unreadable = "unreadable" // it is no change that this program made
	Unequal    = "unequal"    // its name has an object that is not equal
)

// Rejected is a record that has no object of its own: kept, for people to look at.
type Rejected struct {
	Layout   int           `json:"layout"` // 1
	Reason   string        `json:"reason"`
	Table    control.Table `json:"table,omitempty"` // as far as they are known
	Key      string        `json:"key,omitempty"`
	Version  int64         `json:"item_version,omitempty"`
	Sequence string        `json:"sequence,omitempty"`
	Error    string        `json:"error"`
	Raw      []byte        `json:"raw"` // the record as it came; JSON has it in base64, whatever it is
}

// Name is the same for each copy of the record.
func (r *Rejected) Name() string {
	sum := sha256.Sum256(r.Raw)
	return RejectedPrefix + hex.EncodeToString(sum[:]) + ".json"
}

// Reject keeps a rejected record. If it is there already, whatever was known of it then, that is success. What else has
// its name is covered.
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
	if err != nil && !errors.Is(err, errors.ErrUnsupported) { // a folder's file stays what somebody made of it
		return fmt.Errorf("reject a record: %w", err)
	}
	return nil
}

// keeps reports whether the newest version of a rejected record's name has the record.
func keeps(ctx context.Context, a Archive, r *Rejected) (bool, error) {
	o, err := a.Get(ctx, Entry{Name: r.Name()})
	if errors.Is(err, ErrTooLarge) || errors.Is(err, ErrUnreadable) {
		return false, nil
	}
	var there Rejected
	return err == nil && json.Unmarshal(o.Data, &there) == nil && bytes.Equal(there.Raw, r.Raw), err
}

// CheckPut returns an error unless a Put may be called so.
func CheckPut(name string, data []byte) error {
	if name == "" || len(name) > maxNameBytes {
		return fmt.Errorf("an object's name has %d bytes, want 1..%d", len(name), maxNameBytes)
	}
	if len(data) > MaxBytes {
		return fmt.Errorf("put %s: %w: %d bytes, want at most %d", name, ErrTooLarge, len(data), MaxBytes)
	}
	return nil
}

const maxNameBytes = 1024 // what S3 takes
