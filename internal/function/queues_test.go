package function_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	snstypes "github.com/aws/aws-sdk-go-v2/service/sns/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/function"
	"github.com/sluicelimits/sluice/streams/delivery"
)

// topic is a stand-in for the used part of SNS, which refuses what SNS refuses.
type topic struct {
	t      *testing.T
	taken  []snstypes.PublishBatchRequestEntry
	err    error
	calls  int
	bad    string                                                  // a message that is refused in every batch
	answer func(in *sns.PublishBatchInput) *sns.PublishBatchOutput // if nil, all messages are accepted
}

func (s *topic) PublishBatch(_ context.Context, in *sns.PublishBatchInput,
	_ ...func(*sns.Options)) (*sns.PublishBatchOutput, error) {
	s.calls++
	if s.err != nil {
		return nil, s.err
	}
	for _, e := range in.PublishBatchRequestEntries {
		if s.bad != "" && *e.Message == s.bad {
			return nil, &snstypes.InvalidParameterException{}
		}
	}
	bytes, ids := 0, map[string]bool{}
	for _, e := range in.PublishBatchRequestEntries {
		bytes += len(*e.Message)
		for name, v := range e.MessageAttributes {
			bytes += len(name) + len(*v.DataType) + len(*v.StringValue)
		}
		ids[*e.Id] = true
	}
	if n := len(in.PublishBatchRequestEntries); *in.TopicArn != "arn:t" || n == 0 || n > 10 || len(ids) != n ||
		bytes > 256<<10 {
		s.t.Errorf("SNS refuses a batch of %d messages, %d ids, %d bytes", n, len(ids), bytes)
	}
	if s.answer != nil {
		return s.answer(in), nil
	}
	s.taken = append(s.taken, in.PublishBatchRequestEntries...)
	out := &sns.PublishBatchOutput{}
	for _, e := range in.PublishBatchRequestEntries {
		out.Successful = append(out.Successful, snstypes.PublishBatchResultEntry{Id: e.Id})
	}
	return out, nil
}

func message(body string) events.Message {
	return events.Message{Body: []byte(body),
		Attributes: events.Attributes(events.Header{Type: events.PlanChanged, Version: 1})}
}

// Guarantees that messages are sent unchanged, with the attributes for the filters of subscribers, and that the largest
// batch fits.
func TestPublish(t *testing.T) {
	s := &topic{t: t}
	largest := strings.Repeat("x", events.MaxBytes)
	if errs := function.NewTopic(s, "arn:t").Publish(t.Context(),
		[]events.Message{message("one"), message(largest)}); errs != nil {
		t.Fatal(errs)
	}
	if len(s.taken) != 2 || *s.taken[0].Message != "one" ||
		*s.taken[0].MessageAttributes["type"].StringValue != "plan.changed" {
		t.Errorf("%d messages", len(s.taken))
	}
}

// Guarantees that the outcome of each message is known: accepted, refused for ever, or to be sent again, and that no
// message counts as accepted unless SNS says so.
func TestPublishInPart(t *testing.T) {
	for _, tt := range []struct {
		name   string
		failed []snstypes.BatchResultErrorEntry
		taken  []string
		want   string // for each of three messages: taken, refused, again
	}{
		{"one refused", []snstypes.BatchResultErrorEntry{{Id: aws.String("1"), Code: aws.String("InvalidParameter"),
			SenderFault: true}}, []string{"0", "2"}, "taken refused taken"},
		{"refused by a fault of SNS", []snstypes.BatchResultErrorEntry{{Id: aws.String("1"),
			Code: aws.String("InvalidParameter")}}, []string{"0", "2"}, "taken again taken"},
		{"one fails", []snstypes.BatchResultErrorEntry{{Id: aws.String("0"), Code: aws.String("InternalFailure")}},
			[]string{"1", "2"}, "again taken taken"},
		{"throttled is nobody's fault", []snstypes.BatchResultErrorEntry{{Id: aws.String("2"),
			Code: aws.String("Throttled"), SenderFault: true}}, []string{"0", "1"}, "taken taken again"},
		{"a key is missing", []snstypes.BatchResultErrorEntry{{Id: aws.String("2"), Code: aws.String("KMSDisabled"),
			SenderFault: true}}, []string{"0", "1"}, "taken taken again"},
		{"not named", nil, []string{"0", "2"}, "taken again taken"},
		{"named oddly", []snstypes.BatchResultErrorEntry{{Id: aws.String("9")}, {}}, []string{"x", "-1", "0"},
			"taken again again"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &topic{t: t, answer: func(*sns.PublishBatchInput) *sns.PublishBatchOutput {
				out := &sns.PublishBatchOutput{Failed: tt.failed}
				for _, id := range tt.taken {
					out.Successful = append(out.Successful, snstypes.PublishBatchResultEntry{Id: aws.String(id)})
				}
				return out
			}}
			errs := function.NewTopic(s, "arn:t").Publish(t.Context(),
				[]events.Message{message("a"), message("b"), message("c")})
			var got []string
			for _, err := range errs {
				switch {
				case err == nil:
					got = append(got, "taken")
				case errors.Is(err, events.ErrRefused):
					got = append(got, "refused")
				default:
					got = append(got, "again")
				}
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("got %v, want %s", errs, tt.want)
			}
		})
	}
}

// Guarantees that a call that fails as a whole refuses no message for ever, because the topic may be at fault, and that
// one message that SNS refuses in a batch does not stop the others.
func TestPublishFails(t *testing.T) {
	s := &topic{t: t, err: &snstypes.InvalidParameterException{Message: aws.String("m")}}
	topic := function.NewTopic(s, "arn:t")
	for n := 1; n <= 2; n++ {
		errs := topic.Publish(t.Context(), []events.Message{message("a"), message("b")}[:n])
		if len(errs) != n || errs[0] == nil || errors.Is(errs[0], events.ErrRefused) {
			t.Errorf("%d messages: %v", n, errs)
		}
	}
	s.err = &snstypes.ThrottledException{}
	// 1 and 3 before it
	if errs := topic.Publish(t.Context(), []events.Message{message("a"), message("b")}); len(errs) != 2 ||
		errs[1] == nil || s.calls != 5 {
		t.Errorf("throttled: %v, after %d calls", errs, s.calls)
	}
	s.err, s.bad = nil, "b"
	errs := topic.Publish(t.Context(), []events.Message{message("a"), message("b"), message("c")})
	if len(errs) != 3 || errs[0] != nil || errs[1] == nil || errs[2] != nil || len(s.taken) != 2 {
		t.Errorf("one of three: %v, %d taken", errs, len(s.taken))
	}
}

// queue is a stand-in for the used part of SQS.
type queue struct {
	bodies []string
	err    error
}

func (q *queue) SendMessage(_ context.Context, in *sqs.SendMessageInput,
	_ ...func(*sqs.Options)) (*sqs.SendMessageOutput, error) {
	if *in.QueueUrl != "https://q" || len(*in.MessageBody) > 256<<10 {
		return nil, fmt.Errorf("SQS refuses %d bytes for %s", len(*in.MessageBody), *in.QueueUrl)
	}
	if q.err == nil {
		q.bodies = append(q.bodies, *in.MessageBody)
	}
	return &sqs.SendMessageOutput{}, q.err
}

// Guarantees that dead letters can be read from the queue, and that a queue that fails is an error.
func TestKeep(t *testing.T) {
	q := &queue{}
	k := function.NewQueue(q, "https://q")
	i := delivery.DeadLetter{By: "applier", ID: "m1", Reason: "why", At: time.Unix(0, 0),
		Data: bytes.Repeat([]byte("x"), 1<<20)}
	if err := k.Keep(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	got, omitted, err := delivery.DecodeDeadLetter([]byte(q.bodies[0]))
	if err != nil || omitted || !bytes.Equal(got.Data, i.Data) || !json.Valid([]byte(q.bodies[0])) {
		t.Errorf("%v, omitted %t", err, omitted)
	}
	q.err = errors.New("away")
	if err := k.Keep(t.Context(), i); !errors.Is(err, q.err) {
		t.Errorf("%v, want %v", err, q.err)
	}
}

// Guarantees that the region of a table, topic or queue is that of its ARN.
func TestRegion(t *testing.T) {
	for in, want := range map[string]string{
		"arn:aws:dynamodb:eu-west-1:123456789012:table/config": "eu-west-1", "config": "", "": "", "arn:aws:s3": "",
		"arn:aws-cn:sns:cn-north-1:123456789012:topic": "cn-north-1",
	} {
		if got := function.Region(in); got != want {
			t.Errorf("Region(%q) = %q, want %q", in, got, want)
		}
	}
}

// received is a stand-in for the part of SQS that Delayer uses, which refuses what SQS refuses.
type received struct {
	t      *testing.T
	after  map[string]int32 // by receipt
	err    error            // of the calls that name "away"
	failed string           // a receipt that is refused
}

func (r *received) ChangeMessageVisibilityBatch(_ context.Context, in *sqs.ChangeMessageVisibilityBatchInput,
	_ ...func(*sqs.Options)) (*sqs.ChangeMessageVisibilityBatchOutput, error) {
	if n := len(in.Entries); *in.QueueUrl != "https://q" || n == 0 || n > 10 {
		r.t.Errorf("SQS refuses a batch of %d messages of %s", n, *in.QueueUrl)
	}
	out, ids := &sqs.ChangeMessageVisibilityBatchOutput{}, map[string]bool{}
	for _, e := range in.Entries {
		switch {
		case ids[*e.Id] || e.VisibilityTimeout < 0 || e.VisibilityTimeout > 43_200:
			r.t.Errorf("SQS refuses %+v", e)
		case *e.ReceiptHandle == "away":
			return nil, r.err
		case *e.ReceiptHandle == r.failed:
			out.Failed = append(out.Failed, sqstypes.BatchResultErrorEntry{Id: e.Id, SenderFault: true,
				Code: aws.String("ReceiptHandleIsInvalid"), Message: aws.String("expired")})
			continue
		}
		ids[*e.Id] = true
		r.after[*e.ReceiptHandle] = e.VisibilityTimeout
	}
	return out, nil
}

// Guarantees that each message becomes visible when it is to, also if there are more than SQS takes at once, if a batch
// fails, and if SQS refuses a single receipt; and that the error says for how many it failed.
func TestDelay(t *testing.T) {
	delays := make([]delivery.Delay, 25)
	for i := range delays {
		delays[i] = delivery.Delay{Receipt: fmt.Sprint("r", i), After: time.Duration(i) * time.Second}
	}
	r := &received{t: t, after: map[string]int32{}, err: errors.New("refused by the test")}
	if err := function.NewDelayer(r, "https://q").Delay(t.Context(), delays); err != nil || len(r.after) != 25 ||
		r.after["r24"] != 24 {
		t.Errorf("%v, %v", r.after, err)
	}
	r.after, r.failed, delays[3].Receipt = map[string]int32{}, "r12", "away"
	err := function.NewDelayer(r, "https://q").Delay(t.Context(), delays)
	if err == nil || !strings.Contains(err.Error(), "11 of 25 messages: ReceiptHandleIsInvalid: expired") {
		t.Errorf("the error is %v", err)
	}
	if r.after["r24"] != 24 || r.after["r11"] != 11 {
		t.Errorf("the messages after those that failed are visible after %v s", r.after)
	}
}
