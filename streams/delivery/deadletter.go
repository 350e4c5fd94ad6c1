// Package delivery is what the functions that read streams and queues have in common: the events with which Lambda
// brings them records of a DynamoDB stream and messages of a queue, the answer that says which of them must be
// delivered again, and dead letters. A record or message that cannot be processed becomes a dead letter, so that an
// operator can examine it and later ones do not wait for it.
package delivery

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"
)

// MaxDeadLetterBytes is the largest size of an encoded dead letter. A message of SQS holds at most 256 KB.
const MaxDeadLetterBytes = 250 << 10

// MaxReasonBytes is the largest length of an encoded reason. A longer reason is cut.
const MaxReasonBytes = 2 << 10

// DeadLetter is a dead letter: a record or message as it arrived, and why it could not be processed.
type DeadLetter struct {
	By     string    // the function that could not process it
	Cell   string    // the cell of the function; "" for the control plane
	ID     string    // sequence number of a record, or id of a message; "" if it has none
	Table  string    // control table of the record, if known
	Key    string    // key of the item, if known
	Reason string    // why it could not be processed
	At     time.Time // when it became a dead letter
	Data   []byte    // the record or message
}

// Keeper stores dead letters. It may receive the same dead letter several times, because records and messages may be
// delivered several times.
type Keeper interface {
	// Keep returns nil when the dead letter is stored durably. If it returns an error, the record or message is
	// delivered again.
	Keep(ctx context.Context, i DeadLetter) error
}

// form is the encoded form of a DeadLetter.
type form struct {
	Version int       `json:"kept"` // version of this form: 1
	By      string    `json:"by"`
	Cell    string    `json:"cell,omitempty"`
	ID      string    `json:"id,omitempty"`
	Table   string    `json:"table,omitempty"`
	Key     string    `json:"key,omitempty"`
	Reason  string    `json:"reason"`
	At      time.Time `json:"at"`
	Bytes   int       `json:"bytes"`             // of the data
	SHA256  string    `json:"sha256"`            // of the data, hex
	Data    []byte    `json:"data,omitempty"`    // the data, compressed with gzip
	Omitted bool      `json:"omitted,omitempty"` // the data is too large and was left out
}

// Encode returns the dead letter as JSON of at most MaxDeadLetterBytes, with the data compressed by gzip. Data that
// does not fit is left out; the result then has only its size and SHA-256. The data of a record can still be read from
// the control table.
func (i *DeadLetter) Encode() ([]byte, error) {
	sum := sha256.Sum256(i.Data)
	f := form{
		Version: 1, By: i.By, Cell: i.Cell, ID: cut(i.ID, 256), Table: cut(i.Table, 256), Key: cut(i.Key, 512),
		Reason: cut(i.Reason, MaxReasonBytes),
		At:     i.At.UTC(), Bytes: len(i.Data), SHA256: hex.EncodeToString(sum[:]),
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(i.Data); err != nil {
		return nil, fmt.Errorf("encode dead letter %s: %w", i.ID, err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("encode dead letter %s: %w", i.ID, err)
	}
	f.Data = packed.Bytes()
	out, err := json.Marshal(&f)
	if err == nil && len(out) > MaxDeadLetterBytes {
		f.Data, f.Omitted = nil, true
		out, err = json.Marshal(&f)
	}
	if err != nil {
		return nil, fmt.Errorf("encode dead letter %s: %w", i.ID, err)
	}
	return out, nil
}

// cut returns the first bytes of s, at most most of them, as valid UTF-8.
func cut(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// DecodeDeadLetter is the inverse of Encode. omitted says that the data was left out.
func DecodeDeadLetter(data []byte) (i DeadLetter, omitted bool, err error) {
	var f form
	if err := json.Unmarshal(data, &f); err != nil {
		return DeadLetter{}, false, fmt.Errorf("dead letter: %w", err)
	}
	if f.Version != 1 {
		return DeadLetter{}, false, fmt.Errorf("dead letter: its form has version %d, want 1", f.Version)
	}
	i = DeadLetter{By: f.By, Cell: f.Cell, ID: f.ID, Table: f.Table, Key: f.Key, Reason: f.Reason, At: f.At}
	if f.Omitted {
		return i, true, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(f.Data))
	if err != nil {
		return DeadLetter{}, false, fmt.Errorf("dead letter: %w", err)
	}
	var out bytes.Buffer
	if _, err := out.ReadFrom(io.LimitReader(r, int64(f.Bytes)+1)); err != nil {
		return DeadLetter{}, false, fmt.Errorf("dead letter: %w", err)
	}
	if sum := sha256.Sum256(out.Bytes()); hex.EncodeToString(sum[:]) != f.SHA256 {
		return DeadLetter{}, false, fmt.Errorf("dead letter: the data does not match its SHA-256")
	}
	i.Data = out.Bytes()
	return i, false, nil
}

// LogKeeper writes one log line for each dead letter and drops its data. It is for a process whose control tables hold
// the whole history, so that the data can be read there.
type LogKeeper struct{ Log *slog.Logger }

// Keep implements [Keeper].
func (l LogKeeper) Keep(ctx context.Context, i DeadLetter) error {
	l.Log.ErrorContext(ctx, "a change cannot be processed", "by", i.By, "cell", i.Cell, "id", i.ID,
		"table", i.Table, "item", fmt.Sprintf("%q", i.Key),
		"reason", cut(i.Reason, MaxReasonBytes), "bytes", len(i.Data))
	return nil
}
