package dynamo_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	lambdaevents "github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
)

const arn = "arn:aws:dynamodb:eu-west-1:123456789012:table/live-tenants/stream/2026-11-21T12:00:00.000"

func decoder(tb testing.TB) *dynamo.Decoder {
	tb.Helper()
	d := dynamo.NewDecoder(map[control.Table]string{control.Tenants: "live-tenants", control.Plans: "live-plans"})
	return d
}

// history returns n versions of an item, the last of which is a tombstone.
func history(tb testing.TB, n int) []control.Item {
	tb.Helper()
	var items []control.Item
	var last *control.Item
	for v := range n {
		c, err := control.Change{
			Table: control.Tenants, Key: "acmé/1", Expect: int64(v), Body: fmt.Appendf(nil, `{"n":"<%d>\u2028"}`, v),
			Actor: "jo", Reason: "r", Now: noon,
		}.Check()
		if err != nil {
			tb.Fatal(err)
		}
		if v == n-1 && n > 1 {
			c.Delete, c.Body = true, nil
		}
		i, _, err := control.Next(last, c)
		if err != nil {
			tb.Fatal(err)
		}
		items, last = append(items, i), &i
	}
	return items
}

type object = map[string]any

func imageOf(i *control.Item) object {
	out := make(object)
	for name, v := range dynamo.RowOf(i) {
		switch v := v.(type) {
		case *types.AttributeValueMemberS:
			out[name] = object{"S": v.Value}
		case *types.AttributeValueMemberN:
			out[name] = object{"N": v.Value}
		case *types.AttributeValueMemberBOOL:
			out[name] = object{"BOOL": v.Value}
		}
	}
	return out
}

// record returns the record that Lambda delivers for the change, with every field.
func record(before, after *control.Item) object {
	name, change := "INSERT", object{
		"ApproximateCreationDateTime": 1795262400, "Keys": object{"id": object{"S": after.Key}},
		"NewImage":       imageOf(after),
		"SequenceNumber": strconv.Itoa(int(after.Version)) + "00000000000000000001", "SizeBytes": 500,
		"StreamViewType": "NEW_AND_OLD_IMAGES",
	}
	if before != nil {
		name, change["OldImage"] = "MODIFY", imageOf(before)
	}
	return object{
		"eventID": "f07f8ca4b0b26cb9c4e5e77e69f274ee", "eventName": name, "eventVersion": "1.1",
		"eventSource": "aws:dynamodb",
		"awsRegion":   "eu-west-1", "dynamodb": change, "eventSourceARN": arn,
	}
}

func marshal(tb testing.TB, v any) []byte {
	tb.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

// Guarantees that each change is decoded from Lambda's event as it was written to the table, in order, with its
// sequence number.
func TestDecode(t *testing.T) {
	items := history(t, 3)
	got, err := decoder(t).Decode(marshal(t, object{"Records": []object{
		record(nil, &items[0]), record(&items[0], &items[1]), record(&items[1], &items[2]),
	}}))
	if err != nil || len(got) != 3 {
		t.Fatalf("Decode = %+v, %v; want three records", got, err)
	}
	for n, d := range got {
		sequence := strconv.Itoa(n+1) + "00000000000000000001"
		want := &control.Record{Sequence: sequence, New: items[n]}
		if n > 0 {
			want.Old = &items[n-1]
		}
		if d.Err != nil || d.Sequence != sequence || !reflect.DeepEqual(d.Record, want) {
			t.Errorf("record %d is %+v, %v; want %+v", n, d.Record, d.Err, want)
		}
	}
}

// Guarantees that records are decoded in the form that AWS documents, with all fields, and as Lambda's own Go library
// writes them.
func TestDocumentedEvent(t *testing.T) {
	data, err := os.ReadFile("testdata/lambda.event.json")
	if err != nil {
		t.Fatal(err)
	}
	var event lambdaevents.DynamoDBEvent
	if err := json.Unmarshal(data, &event); err != nil {
		t.Fatal(err)
	}
	for _, data := range [][]byte{data, marshal(t, event)} {
		documented(t, data)
	}
}

func documented(t *testing.T, data []byte) {
	t.Helper()
	got, err := decoder(t).Decode(data)
	if err != nil || len(got) != 3 {
		t.Fatalf("Decode = %+v, %v; want three records", got, err)
	}
	if r := got[0].Record; r == nil || r.New.Key != "acme" || r.New.Version != 1 ||
		string(r.New.Body) != `{"id":"acme","plan":"pro"}` {
		t.Errorf("the first record: got %+v, error %v; want version 1 of acme", r, got[0].Err)
	}
	if r := got[1].Record; r == nil || r.Old == nil || !r.New.Deleted || r.New.Version != 2 {
		t.Errorf("the second record: got %+v, error %v; want a deletion, version 2", r, got[1].Err)
	}
	var e *control.RecordError
	if !errors.As(got[2].Err, &e) || e.Sequence != "111100000000000000000003" ||
		!strings.Contains(e.Error(), "removed") {
		t.Errorf("the third record: got %+v, error %v; want an error that says that the item was removed",
			got[2].Record, got[2].Err)
	}
}

// at returns the object below these names, for editing.
func at(o object, names ...string) object {
	for _, n := range names {
		o = o[n].(object)
	}
	return o
}

// Guarantees that a bad record in the middle of a batch is an error that identifies it as far as possible and keeps
// the record, and that the other records are decoded.
func TestPoison(t *testing.T) {
	items := history(t, 3)
	forged := items[1]
	forged.Body = json.RawMessage(`{"n":1000}`)
	tests := []struct {
		name                 string
		edit                 func(o object)
		want                 string // part of the error
		noTable, noKey, noSq bool
	}{
		{name: "removed", edit: func(o object) { o["eventName"] = "REMOVE"; delete(at(o, "dynamodb"), "NewImage") },
			want: "was removed"},
		{name: "another name", edit: func(o object) { o["eventName"] = "UPSERT" }, want: "UPSERT"},
		{name: "no name", edit: func(o object) { delete(o, "eventName") }, want: "want INSERT or MODIFY"},
		{name: "another source", edit: func(o object) { o["eventSource"] = "aws:kinesis" }, want: "aws:kinesis"},
		{name: "another table", edit: func(o object) {
			o["eventSourceARN"] = strings.Replace(arn, "live-", "test-",
				1)
		}, want: "test-tenants", noTable: true},
		{name: "a table's ARN", edit: func(o object) {
			o["eventSourceARN"] = "arn:aws:dynamodb:eu-west-1:123456789012:table/live-tenants"
		}, want: "which this function does not read", noTable: true},
		{name: "an ARN of another service", edit: func(o object) {
			o["eventSourceARN"] = strings.Replace(arn,
				"dynamodb", "s3", 1)
		}, want: "which this function does not read", noTable: true},
		{name: "no ARN", edit: func(o object) { delete(o, "eventSourceARN") },
			want: "which this function does not read", noTable: true},
		{name: "no sequence", edit: func(o object) { delete(at(o, "dynamodb"), "SequenceNumber") },
			want: "sequence number", noSq: true},
		{name: "a sequence of another type", edit: func(o object) { at(o, "dynamodb")["SequenceNumber"] = 17 },
			want: "sequence number", noSq: true},
		{name: "a long sequence", edit: func(o object) {
			at(o, "dynamodb")["SequenceNumber"] = strings.Repeat("1",
				129)
		}, want: "sequence number", noSq: true},
		{name: "keys only", edit: func(o object) { delete(at(o, "dynamodb"), "NewImage") }, want: "no new image"},
		{name: "a null image", edit: func(o object) { at(o, "dynamodb")["NewImage"] = nil }, want: "no new image"},
		{name: "new images only", edit: func(o object) { delete(at(o, "dynamodb"), "OldImage") },
			want: "old image is false"},
		{name: "an insert over something", edit: func(o object) { o["eventName"] = "INSERT" },
			want: "old image is true"},
		{name: "another key", edit: func(o object) { at(o, "dynamodb", "Keys")["id"] = object{"S": "other"} },
			want: "acmé/1", noKey: true},
		{name: "no key", edit: func(o object) { delete(at(o, "dynamodb"), "Keys") }, want: "its key differs",
			noKey: true},
		{name: "a key of bytes", edit: func(o object) { at(o, "dynamodb", "Keys")["id"] = object{"B": "AAEC"} },
			want: "its key differs", noKey: true},
		{name: "no attribute", edit: func(o object) { delete(at(o, "dynamodb", "NewImage"), "actor") },
			want: "actor is missing"},
		{name: "an attribute of another type",
			edit: func(o object) { at(o, "dynamodb", "NewImage")["version"] = object{"S": "2"} },
			want: "version is not of type N"},
		{name: "an attribute of two types", edit: func(o object) {
			at(o, "dynamodb",
				"NewImage")["body"] = object{"S": "{}", "N": "1"}
		}, want: "2 types"},
		{name: "an attribute of no type", edit: func(o object) { at(o, "dynamodb", "NewImage")["body"] = object{} },
			want: "0 types"},
		{name: "a null attribute", edit: func(o object) { at(o, "dynamodb", "NewImage")["body"] = nil },
			want: "NewImage"},
		{name: "an attribute of null", edit: func(o object) {
			at(o, "dynamodb",
				"NewImage")["body"] = object{"S": nil}
		}, want: "null"},
		{name: "a text that is a number", edit: func(o object) {
			at(o, "dynamodb",
				"NewImage")["body"] = object{"S": 1}
		}, want: "NewImage"},
		{name: "an image that is a list", edit: func(o object) { at(o, "dynamodb")["NewImage"] = []int{1} },
			want: "NewImage"},
		{name: "an unreadable old image", edit: func(o object) { at(o, "dynamodb")["OldImage"] = []int{1} },
			want: "OldImage"},
		{name: "an old image without a hash", edit: func(o object) { delete(at(o, "dynamodb", "OldImage"), "hash") },
			want: "old image"},
		{name: "another layout", edit: func(o object) { at(o, "dynamodb", "NewImage")["layout"] = object{"N": "2"} },
			want: "layout"},
		{name: "altered", edit: func(o object) { at(o, "dynamodb")["NewImage"] = imageOf(&forged) }, want: "altered"},
		{name: "a version left out", edit: func(o object) { at(o, "dynamodb")["NewImage"] = imageOf(&items[2]) },
			want: "not linked"},
		{name: "no change", edit: func(o object) { delete(o, "dynamodb") }, want: "sequence number", noKey: true,
			noSq: true},
		{name: "a change that is a text", edit: func(o object) { o["dynamodb"] = "x" }, want: "cannot be read",
			noTable: true, noKey: true, noSq: true},
	}
	d := decoder(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			poison := record(&items[0], &items[1])
			tt.edit(poison)
			got, err := d.Decode(marshal(t, object{"Records": []object{record(nil, &items[0]), poison,
				record(&items[1], &items[2])}}))
			if err != nil || len(got) != 3 || got[0].Err != nil || got[2].Err != nil {
				t.Fatalf("Decode = %+v, %v; want three records, the second unreadable", got, err)
			}
			var e *control.RecordError
			if !errors.As(got[1].Err, &e) || !errors.Is(e, control.ErrBadItem) || got[1].Record != nil ||
				!strings.Contains(e.Error(), tt.want) {
				t.Fatalf("the poison record is %+v, %v; want an error with %q", got[1].Record, got[1].Err, tt.want)
			}
			if (e.Table == "") != tt.noTable || (e.Key != "acmé/1") != tt.noKey || (e.Sequence == "") != tt.noSq ||
				e.Sequence != got[1].Sequence {
				t.Errorf("got the error about table %q, key %q and sequence %q; want what can be read of them",
					e.Table, e.Key, e.Sequence)
			}
			if want := marshal(t, poison); !bytes.Equal(got[1].Raw, want) {
				t.Errorf("kept is\n%s\nwant\n%s", got[1].Raw, want)
			}
		})
	}
	for _, raw := range []string{`null`, `1`, `"x"`, `[]`, `{}`} {
		if got, err := d.Decode([]byte(`{"Records":[` + raw + `]}`)); err != nil || len(got) != 1 ||
			got[0].Err == nil || string(got[0].Raw) != raw {
			t.Errorf("a record %s: got %+v, error %v; want one unreadable record with its bytes", raw, got, err)
		}
	}
}

// Guarantees that attributes of others on an item, such as a replica's, prevent nothing.
func TestOtherAttributes(t *testing.T) {
	items := history(t, 1)
	r := record(nil, &items[0])
	for name, value := range map[string]object{
		"aws:rep:updatetime": {"N": "1.5"}, "set": {"SS": []string{"a"}}, "list": {"L": []object{{"NULL": true}}},
		"map": {"M": object{}}, "bytes": {"B": "AAE="},
	} {
		at(r, "dynamodb", "NewImage")[name] = value
	}
	if d := decoder(t).Record(marshal(t, r)); d.Err != nil || !reflect.DeepEqual(d.Record.New, items[0]) {
		t.Errorf("Record = %+v, error %v; want the item", d.Record, d.Err)
	}
}

// Guarantees that an event that is not from a stream is an error, and not an empty batch.
func TestNoRecords(t *testing.T) {
	for _, event := range []string{"", "null", "[]", "{}", `{"Records":null}`, `{"Records":{}}`, `{"records"`} {
		if got, err := decoder(t).Decode([]byte(event)); !errors.Is(err, control.ErrBadItem) {
			t.Errorf("Decode(%s) = %+v, %v; want ErrBadItem", event, got, err)
		}
	}
	if got, err := decoder(t).Decode([]byte(`{"Records":[]}`)); err != nil || len(got) != 0 {
		t.Errorf("no records: got %+v, error %v; want none", got, err)
	}
}

// FuzzRecord guarantees that any record gives either a valid change or a clear error with the record, and never a
// panic.
func FuzzRecord(f *testing.F) {
	items := history(f, 3)
	f.Add(marshal(f, record(nil, &items[0])))
	f.Add(marshal(f, record(&items[0], &items[1])))
	f.Add(marshal(f, record(&items[1], &items[2])))
	f.Add([]byte(`{"dynamodb":{"Keys":{"id":{"S":"\ud800"}}}}`))
	d := decoder(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		got := d.Record(raw)
		if got.Err == nil {
			if got.Record == nil || got.Sequence == "" || got.Record.Sequence != got.Sequence ||
				got.Record.Check() != nil {
				t.Fatalf("Record(%q) = %+v; want a valid record with its sequence", raw, got)
			}
			return
		}
		var e *control.RecordError
		if !errors.As(got.Err, &e) || !errors.Is(e, control.ErrBadItem) || got.Record != nil ||
			e.Sequence != got.Sequence || !bytes.Equal(got.Raw, raw) {
			t.Fatalf("Record(%q) = %+v; want ErrBadItem with the sequence and the bytes", raw, got)
		}
	})
}
