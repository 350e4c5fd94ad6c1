package delivery_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/streams/delivery"
)

// documented is an event as AWS documents it.
const documented = `{"Records":[{"messageId":"059f36b4-87a3-44ab-83d2-661975830a7d",
"receiptHandle":"AQEBwJnKyrHigUMZj6rYigCgxlaS3SLy0a",
"body":"{\"type\":\"canary\"}","attributes":{"ApproximateReceiveCount":"1","SentTimestamp":"1545082649183",
"SenderId":"AIDAIENQZJOLO23YVJ4VO",
"ApproximateFirstReceiveTimestamp":"1545082649185"},
"messageAttributes":{"type":{
"stringValue":"canary","dataType":"String"}},
"md5OfBody":"e4e68fb7bd0e697a0ae8f1bb342846b3","eventSource":"aws:sqs",
"eventSourceARN":"arn:aws:sqs:us-east-2:123456789012:my-queue",
"awsRegion":"us-east-2"},
{"messageId":"2e1424d4-f796-459a-8184-9c92662be6da","body":"two","eventSource":"aws:sqs"}]}`

// Guarantees that the documented event is read, and that the answer names failed messages by their ids, or none.
func TestParse(t *testing.T) {
	got, err := delivery.ParseMessages([]byte(documented))
	if err != nil || len(got) != 2 || got[0].ID != "059f36b4-87a3-44ab-83d2-661975830a7d" ||
		string(got[0].Body) != `{"type":"canary"}` || string(got[1].Body) != "two" {
		t.Fatalf("%+v, %v", got, err)
	}
	if m := got[0]; m.Receipt != "AQEBwJnKyrHigUMZj6rYigCgxlaS3SLy0a" || m.Receives != 1 {
		t.Errorf("the receipt is %q, of receive %d", m.Receipt, m.Receives)
	}
	if m := got[1]; m.Receipt != "" || m.Receives != 0 {
		t.Errorf("of a message without attributes, the receipt is %q, of receive %d", m.Receipt, m.Receives)
	}
	for _, tt := range []struct {
		failed []string
		want   string
	}{
		{nil, `{"batchItemFailures":[]}`},
		{[]string{"a", "b"}, `{"batchItemFailures":[{"itemIdentifier":"a"},{"itemIdentifier":"b"}]}`},
	} {
		if got, err := delivery.Answer(tt.failed); err != nil || string(got) != tt.want {
			t.Errorf("Answer(%q) = %s, %v; want %s", tt.failed, got, err, tt.want)
		}
	}
}

// Guarantees that an invalid event is an error that says where, and that no message of it is returned.
func TestParseRefuses(t *testing.T) {
	many := `{"Records":[` + strings.Repeat(`{},`, delivery.MaxMessages) + `{}]}`
	for _, tt := range []struct{ event, want string }{
		{"", "JSON"},
		{"{}", "no Records"},
		{`{"Records":5}`, "Records"},
		{many, "10001 messages"},
		{`{"Records":[{"messageId":"a","body":"","eventSource":"aws:sns"}]}`, "message 0 comes from"},
		{`{"Records":[{"messageId":"","body":"","eventSource":"aws:sqs"}]}`, "message 0 has an id of 0"},
		{`{"Records":[{"messageId":"` + strings.Repeat("a", 101) + `","body":"","eventSource":"aws:sqs"}]}`,
			"101 bytes"},
		{`{"Records":[{"messageId":"a","eventSource":"aws:sqs"}]}`, "no body"},
		{`{"Records":[{"messageId":"a","body":"","eventSource":"aws:sqs"},{"messageId":"a","body":"",` +
			`"eventSource":"aws:sqs"}]}`, "message 1 has the id of another"},
	} {
		if got, err := delivery.ParseMessages([]byte(tt.event)); !errors.Is(err, delivery.ErrMalformed) ||
			!strings.Contains(fmt.Sprint(err), tt.want) {
			t.Errorf("ParseMessages(%.80s) = %v, %v; want an error with %q", tt.event, got, err, tt.want)
		}
	}
}

// FuzzParse guarantees that each message that is read can be named to SQS, and occurs once.
func FuzzParse(f *testing.F) {
	f.Add([]byte(documented))
	f.Add([]byte(`{"Records":[{"messageId":"a","body":"\ud800","eventSource":"aws:sqs"}]}`))
	f.Fuzz(func(t *testing.T, event []byte) {
		messages, err := delivery.ParseMessages(event)
		if err != nil {
			return
		}
		var ids []string
		for _, m := range messages {
			if m.ID == "" {
				t.Fatal("a message without an id")
			}
			ids = append(ids, m.ID)
		}
		out, err := delivery.Answer(ids)
		if err != nil || !json.Valid(out) {
			t.Fatalf("%s, %v", out, err)
		}
	})
}
