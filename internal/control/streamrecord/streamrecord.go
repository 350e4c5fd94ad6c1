// Package streamrecord reads what the streams of the control tables bring to a Lambda function.
//
// Lambda calls with a batch of records, in order for each key. Each becomes a [control.Delivery]: a change, or an error
// that names the table, the key and the sequence number as far as they can be read, so that one bad record stops
// nothing behind it and is not lost. A record is bad unless it tells of a new version that follows the one before and
// has the hash that it says: what was written past this program, by hand or by another one, reaches no cell.
package streamrecord

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/row"
)

const (
	maxSequenceBytes = 128
	maxNameBytes     = 128 // of a table, as it is shown in an error
)

// Decoder reads records. It is immutable and safe for concurrent use.
type Decoder struct{ tables map[string]control.Table }

// New makes a decoder of the streams of the named tables, those that the function reads: table → its name in DynamoDB.
func New(names map[control.Table]string) (*Decoder, error) {
	d := &Decoder{tables: make(map[string]control.Table, len(names))}
	for t, name := range names {
		if name == "" || d.tables[name] != "" {
			return nil, fmt.Errorf("stream records: the table %s has the name %q, which is none or that of another", t,
				name)
		}
		d.tables[name] = t
	}
	if len(d.tables) == 0 {
		return nil, errors.New("stream records: no table is named")
	}
	return d, nil
}

// Decode reads the event that Lambda calls with. The error is for what is no list of records at all; a bad record is a
// Delivery with an error.
func (d *Decoder) Decode(event []byte) ([]control.Delivery, error) {
	var batch struct{ Records []json.RawMessage }
	if err := json.Unmarshal(event, &batch); err != nil {
		return nil, fmt.Errorf("stream records: %w: %w", control.ErrBadItem, err)
	}
	if batch.Records == nil {
		return nil, fmt.Errorf("stream records: %w: an event without Records", control.ErrBadItem)
	}
	deliveries := make([]control.Delivery, len(batch.Records))
	for i, raw := range batch.Records {
		deliveries[i] = d.Record(raw)
	}
	return deliveries, nil
}

// record is one of Lambda's. Its parts are read one by one, so that what is wrong with one does not hide the others.
type record struct {
	EventName      json.RawMessage `json:"eventName"`
	EventSource    json.RawMessage `json:"eventSource"`
	EventSourceARN json.RawMessage `json:"eventSourceARN"`
	DynamoDB       struct {
		SequenceNumber, Keys, NewImage, OldImage json.RawMessage
	} `json:"dynamodb"`
}

// text is a JSON string; empty where there is none.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// attribute reads {"S": "text"} and the like: an object with one member, whose name is the type.
type attribute struct{ row.Value }

// UnmarshalJSON implements json.Unmarshaler.
func (a *attribute) UnmarshalJSON(data []byte) error {
	var member map[string]json.RawMessage
	if err := json.Unmarshal(data, &member); err != nil {
		return err
	}
	if len(member) != 1 {
		return fmt.Errorf("an attribute has %d types, want one", len(member))
	}
	for kind, value := range member {
		switch a.Kind = row.Kind(kind); a.Kind {
		case row.S, row.N:
			return notNull(value, &a.Text)
		case row.Bool:
			return notNull(value, &a.Bool)
		default: // no attribute of ours has another
			a.Kind = row.Other
		}
	}
	return nil
}

func notNull(value json.RawMessage, into any) error {
	if string(value) == "null" {
		return errors.New("an attribute is null")
	}
	return json.Unmarshal(value, into)
}

// rows returns an image's attributes; nil where there is no image.
func rows(name string, raw json.RawMessage) (row.Row, error) {
	var image map[string]attribute
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &image); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", control.ErrBadItem, name, err)
		}
	}
	if image == nil {
		return nil, nil //nolint:nilnil // no image is an answer, and its callers look
	}
	r := make(row.Row, len(image))
	for name, a := range image {
		r[name] = a.Value
	}
	return r, nil
}

// Record reads one record. What it returns does not share memory with raw, but for Raw.
func (d *Decoder) Record(raw []byte) control.Delivery {
	got := &control.RecordError{}
	change, err := d.read(raw, got)
	if err != nil {
		got.Err = err
		return control.Delivery{Sequence: got.Sequence, Err: got, Raw: raw}
	}
	return control.Delivery{Sequence: got.Sequence, Record: change}
}

// read fills in got as far as it gets.
func (d *Decoder) read(raw []byte, got *control.RecordError) (*control.Record, error) {
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, fmt.Errorf("%w: %w", control.ErrBadItem, err)
	}
	if s := text(r.DynamoDB.SequenceNumber); len(s) <= maxSequenceBytes {
		got.Sequence = s
	}
	name := tableName(text(r.EventSourceARN))
	got.Table = d.tables[name]
	keys, err := rows("Keys", r.DynamoDB.Keys)
	if k := keys[row.ID]; k.Kind == row.S {
		got.Key = k.Text
	}
	switch source := text(r.EventSource); {
	case err != nil:
		return nil, err
	case source != "aws:dynamodb":
		return refuse("it comes from %.40q, want aws:dynamodb", source)
	case got.Table == "":
		return refuse("it comes from the table %.*q, which is not one of ours", maxNameBytes, name)
	case got.Sequence == "":
		return refuse("it has no sequence number of 1..%d bytes", maxSequenceBytes)
	}
	return change(&r, got)
}

func refuse(format string, args ...any) (*control.Record, error) {
	return nil, fmt.Errorf("%w: %s", control.ErrBadItem, fmt.Sprintf(format, args...))
}

// change reads the images.
func change(r *record, got *control.RecordError) (*control.Record, error) {
	after, err := rows("NewImage", r.DynamoDB.NewImage)
	if err != nil {
		return nil, err
	}
	before, err := rows("OldImage", r.DynamoDB.OldImage)
	if err != nil {
		return nil, err
	}
	switch name := text(r.EventName); {
	case name == "REMOVE":
		return refuse("the item was removed, which this program never does: a delete is a tombstone that stays")
	case name != "INSERT" && name != "MODIFY":
		return refuse("its name is %.40q, want INSERT or MODIFY", name)
	case after == nil:
		return refuse("it has no new image: the stream must carry new and old images")
	case (before != nil) != (name == "MODIFY"):
		return refuse("%s, and an old image: %t", name, before != nil)
	}
	item, err := after.Item(got.Table)
	if err != nil {
		return nil, err
	}
	if item.Key != got.Key {
		return refuse("its key is not that of its new image, %.140q", item.Key)
	}
	c := &control.Record{Sequence: got.Sequence, New: item}
	if before != nil {
		old, err := before.Item(got.Table)
		if err != nil {
			return nil, fmt.Errorf("old image: %w", err)
		}
		c.Old = &old
	}
	return c, c.Check()
}

// tableName is the table of a stream's ARN, arn:partition:dynamodb:region:account:table/NAME/stream/LABEL; empty for
// another.
func tableName(arn string) string {
	parts := strings.SplitN(arn, ":", 6)
	if len(parts) != 6 || parts[0] != "arn" || parts[2] != "dynamodb" {
		return ""
	}
	path := strings.Split(parts[5], "/")
	if len(path) != 4 || path[0] != "table" || path[2] != "stream" {
		return ""
	}
	return path[1]
}
