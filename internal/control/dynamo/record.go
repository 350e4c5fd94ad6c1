package dynamo

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/control"
)

const (
	maxSequenceBytes = 128
	maxNameBytes     = 128 // of a table's name in an error
)

// Decoder reads the records that the streams of the control tables send to a Lambda function. It is immutable and safe
// for concurrent use.
//
// Lambda calls the function with a batch of records, in order for each key. Each record becomes a [control.Delivery]:
// a change, or an error that names the table, the key and the sequence number as far as they can be read. One bad
// record therefore neither stops the following ones nor is lost. A record is bad unless it has a new version that
// follows the previous one and whose hash is correct: what somebody writes to the tables without Sluice reaches no
// cell.
type Decoder struct{ tables map[string]control.Table }

// NewDecoder makes a decoder of the streams of the tables that the function reads. names maps each table to its name in
// DynamoDB.
func NewDecoder(names map[control.Table]string) *Decoder {
	d := &Decoder{tables: make(map[string]control.Table, len(names))}
	for t, name := range names {
		d.tables[name] = t
	}
	return d
}

// Decode reads the event with which Lambda calls. The error says that the event is not a list of records; a bad record
// is a Delivery with an error.
func (d *Decoder) Decode(event []byte) ([]control.Delivery, error) {
	var batch struct{ Records []json.RawMessage }
	if err := json.Unmarshal(event, &batch); err != nil {
		return nil, fmt.Errorf("stream records: %w: %w", control.ErrBadItem, err)
	}
	if batch.Records == nil {
		return nil, fmt.Errorf("stream records: %w: the event has no Records", control.ErrBadItem)
	}
	deliveries := make([]control.Delivery, len(batch.Records))
	for i, raw := range batch.Records {
		deliveries[i] = d.Record(raw)
	}
	return deliveries, nil
}

// record is a record of the event. Its parts are decoded one by one, so that an error in one part does not hide the
// others.
type record struct {
	EventName      json.RawMessage `json:"eventName"`
	EventSource    json.RawMessage `json:"eventSource"`
	EventSourceARN json.RawMessage `json:"eventSourceARN"`
	DynamoDB       struct {
		SequenceNumber, Keys, NewImage, OldImage json.RawMessage
	} `json:"dynamodb"`
}

// stringIn returns a JSON string; empty if raw is not one.
func stringIn(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// attribute decodes an object with one member, whose name is the type, as in {"S": "text"}.
type attribute struct{ types.AttributeValue }

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
		switch kind {
		case "S":
			v := &types.AttributeValueMemberS{}
			a.AttributeValue = v
			return notNull(value, &v.Value)
		case "N":
			v := &types.AttributeValueMemberN{}
			a.AttributeValue = v
			return notNull(value, &v.Value)
		case "BOOL":
			v := &types.AttributeValueMemberBOOL{}
			a.AttributeValue = v
			return notNull(value, &v.Value)
		default: // the attributes of items have no other type
			a.AttributeValue = &types.UnknownUnionMember{Tag: kind}
		}
	}
	return nil
}

// notNull decodes a value. null is an error, since json.Unmarshal would leave into unchanged.
func notNull(value json.RawMessage, into any) error {
	if string(value) == "null" {
		return errors.New("an attribute is null")
	}
	return json.Unmarshal(value, into)
}

// rows returns the attributes of an image; nil if there is no image.
func rows(name string, raw json.RawMessage) (Row, error) {
	var image map[string]attribute
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &image); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", control.ErrBadItem, name, err)
		}
	}
	if image == nil {
		return nil, nil //nolint:nilnil // callers check for nil
	}
	r := make(Row, len(image))
	for name, a := range image {
		r[name] = a.AttributeValue
	}
	return r, nil
}

// Record decodes one record. Except for Raw, the result shares no memory with raw.
func (d *Decoder) Record(raw []byte) control.Delivery {
	got := &control.RecordError{}
	change, err := d.read(raw, got)
	if err != nil {
		got.Err = err
		return control.Delivery{Sequence: got.Sequence, Err: got, Raw: raw}
	}
	return control.Delivery{Sequence: got.Sequence, Record: change}
}

// read decodes a record. It sets the fields of got as far as they can be read.
func (d *Decoder) read(raw []byte, got *control.RecordError) (*control.Record, error) {
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, fmt.Errorf("%w: %w", control.ErrBadItem, err)
	}
	if s := stringIn(r.DynamoDB.SequenceNumber); len(s) <= maxSequenceBytes {
		got.Sequence = s
	}
	name := tableName(stringIn(r.EventSourceARN))
	got.Table = d.tables[name]
	keys, err := rows("Keys", r.DynamoDB.Keys)
	if k, ok := keys[ID].(*types.AttributeValueMemberS); ok {
		got.Key = k.Value
	}
	switch source := stringIn(r.EventSource); {
	case err != nil:
		return nil, err
	case source != "aws:dynamodb":
		return refuse("its source is %.40q, want aws:dynamodb", source)
	case got.Table == "":
		return refuse("its table is %.*q, which this function does not read", maxNameBytes, name)
	case got.Sequence == "":
		return refuse("it has no sequence number of 1..%d bytes", maxSequenceBytes)
	}
	return change(&r, got)
}

func refuse(format string, args ...any) (*control.Record, error) {
	return nil, fmt.Errorf("%w: %s", control.ErrBadItem, fmt.Sprintf(format, args...))
}

// change decodes the images.
func change(r *record, got *control.RecordError) (*control.Record, error) {
	after, err := rows("NewImage", r.DynamoDB.NewImage)
	if err != nil {
		return nil, err
	}
	before, err := rows("OldImage", r.DynamoDB.OldImage)
	if err != nil {
		return nil, err
	}
	switch name := stringIn(r.EventName); {
	case name == "REMOVE":
		return refuse("the item was removed, which Sluice never does: it deletes an item by a tombstone")
	case name != "INSERT" && name != "MODIFY":
		return refuse("its name is %.40q, want INSERT or MODIFY", name)
	case after == nil:
		return refuse("it has no new image: the stream must carry new and old images")
	case (before != nil) != (name == "MODIFY"):
		return refuse("its name is %s, but the presence of an old image is %t", name, before != nil)
	}
	item, err := ItemOf(got.Table, after)
	if err != nil {
		return nil, err
	}
	if item.Key != got.Key {
		return refuse("its key differs from that of its new image, %.140q", item.Key)
	}
	c := &control.Record{Sequence: got.Sequence, New: item}
	if before != nil {
		old, err := ItemOf(got.Table, before)
		if err != nil {
			return nil, fmt.Errorf("old image: %w", err)
		}
		c.Old = &old
	}
	return c, c.Check()
}

// tableName returns the table in the ARN of a stream, arn:partition:dynamodb:region:account:table/NAME/stream/LABEL;
// empty for any other ARN.
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
