// Package deadletter keeps records and messages that cannot be processed, for an operator to look at. They do not hold
// up later ones, and none is lost.
package deadletter

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

// MaxBytes is the largest size of an encoded letter. It is less than what a message of SQS may have, 256 KB.
const MaxBytes = 250 << 10

// MaxReasonBytes is the largest length of a reason.
const MaxReasonBytes = 2 << 10

// Item is a record or message as it arrived, and why it was not used.
type Item struct {
	By     string    // the function that kept it
	Cell   string    // "" for the control plane
	ID     string    // sequence number of a record, or id of a message; "" if it has none
	Table  string    // control table of the record, if known
	Key    string    // key of the item, if known
	Reason string    // why it cannot be used
	At     time.Time // when it was kept
	Data   []byte    // as it arrived
}

// Keeper keeps items. An item may be kept several times, because records and messages are delivered several times.
type Keeper interface {
	// Keep returns nil when the item is stored durably. If it returns an error, the record or message is delivered
	// again.
	Keep(ctx context.Context, i Item) error
}

// form is the encoded form of an item.
type form struct {
	Kept    int       `json:"kept"` // version of this form: 1
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

// Encode returns the item as JSON of at most MaxBytes, with data compressed by gzip. Data that does not fit is left
// out, and the item then holds only its size and SHA-256. For a record, the control table still has the item.
func (i *Item) Encode() ([]byte, error) {
	sum := sha256.Sum256(i.Data)
	f := form{
		Kept: 1, By: i.By, Cell: i.Cell, ID: cut(i.ID, 256), Table: cut(i.Table, 256), Key: cut(i.Key, 512),
		Reason: cut(i.Reason, MaxReasonBytes),
		At:     i.At.UTC(), Bytes: len(i.Data), SHA256: hex.EncodeToString(sum[:]),
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(i.Data); err != nil {
		return nil, fmt.Errorf("keep %s: %w", i.ID, err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("keep %s: %w", i.ID, err)
	}
	f.Data = packed.Bytes()
	out, err := json.Marshal(&f)
	if err == nil && len(out) > MaxBytes {
		f.Data, f.Omitted = nil, true
		out, err = json.Marshal(&f)
	}
	if err != nil {
		return nil, fmt.Errorf("keep %s: %w", i.ID, err)
	}
	return out, nil
}

// cut returns the beginning of text, of at most most bytes.
func cut(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// Decode is the inverse of Encode. omitted says that the data was left out.
func Decode(data []byte) (i Item, omitted bool, err error) {
	var f form
	if err := json.Unmarshal(data, &f); err != nil {
		return Item{}, false, fmt.Errorf("kept item: %w", err)
	}
	if f.Kept != 1 {
		return Item{}, false, fmt.Errorf("kept item: form %d, want 1", f.Kept)
	}
	i = Item{By: f.By, Cell: f.Cell, ID: f.ID, Table: f.Table, Key: f.Key, Reason: f.Reason, At: f.At}
	if f.Omitted {
		return i, true, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(f.Data))
	if err != nil {
		return Item{}, false, fmt.Errorf("kept item: %w", err)
	}
	var out bytes.Buffer
	if _, err := out.ReadFrom(io.LimitReader(r, int64(f.Bytes)+1)); err != nil {
		return Item{}, false, fmt.Errorf("kept item: %w", err)
	}
	if sum := sha256.Sum256(out.Bytes()); hex.EncodeToString(sum[:]) != f.SHA256 {
		return Item{}, false, fmt.Errorf("kept item: the data does not match its SHA-256")
	}
	i.Data = out.Bytes()
	return i, false, nil
}

// Log keeps items as log lines. It is for a process whose control tables have the whole history.
type Log struct{ Log *slog.Logger }

// Keep implements [Keeper].
func (l Log) Keep(ctx context.Context, i Item) error {
	l.Log.ErrorContext(ctx, "a change cannot be used", "by", i.By, "cell", i.Cell, "id", i.ID, "table", i.Table, "item",
		fmt.Sprintf("%q", i.Key),
		"reason", cut(i.Reason, MaxReasonBytes), "bytes", len(i.Data))
	return nil
}
