package function

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	snstypes "github.com/aws/aws-sdk-go-v2/service/sns/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/aws/awsenv"
	"github.com/sluicelimits/sluice/streams/delivery"
)

// Region returns the region of an ARN, or "" for a name.
func Region(nameOrARN string) string { return awsenv.Region(nameOrARN) }

// SNS returns a client of SNS in the region. If the region is "", it is the function's own.
func SNS(e *awsenv.Env, region string) *sns.Client {
	return sns.NewFromConfig(e.Config(region), func(o *sns.Options) {
		o.BaseEndpoint = e.Endpoint("SNS")
		o.EndpointOptions.UseFIPSEndpoint, o.EndpointOptions.UseDualStackEndpoint = e.FIPS(), e.DualStack()
	})
}

// SQS returns a client of SQS in the function's region.
func SQS(e *awsenv.Env) *sqs.Client {
	return sqs.NewFromConfig(e.Config(""), func(o *sqs.Options) {
		o.BaseEndpoint = e.Endpoint("SQS")
		o.EndpointOptions.UseFIPSEndpoint, o.EndpointOptions.UseDualStackEndpoint = e.FIPS(), e.DualStack()
	})
}

// batchClient is the part of *sns.Client that Topic uses.
type batchClient interface {
	PublishBatch(context.Context, *sns.PublishBatchInput, ...func(*sns.Options)) (*sns.PublishBatchOutput, error)
}

// Topic is a standard topic of SNS. It is safe for concurrent use. Make it with NewTopic.
type Topic struct {
	client batchClient
	arn    string
}

// NewTopic makes a topic with an *sns.Client. The client may retry: an event that is published twice is applied once.
func NewTopic(client batchClient, arn string) *Topic { return &Topic{client, arn} }

// Publish implements publisher.Topic with one PublishBatch call. If SNS refuses the call as a whole, it does not say
// which message is at fault. Publish then sends each message by itself, so that the others do not fail because of one
// message.
func (t *Topic) Publish(ctx context.Context, messages []events.Message) []error {
	errs, whole := t.publish(ctx, messages)
	var api smithy.APIError
	if len(messages) == 1 || !errors.As(whole, &api) || !refusals[api.ErrorCode()] {
		return errs
	}
	for i := range messages {
		one, _ := t.publish(ctx, messages[i:i+1])
		errs[i] = errors.Join(one...)
	}
	return errs
}

// publish makes one call. If the call fails as a whole, whole is its error, and errs has this error for each message.
// The error does not wrap events.ErrRefused, because the fault may be the topic's.
func (t *Topic) publish(ctx context.Context, messages []events.Message) (errs []error, whole error) {
	in := &sns.PublishBatchInput{TopicArn: &t.arn,
		PublishBatchRequestEntries: make([]snstypes.PublishBatchRequestEntry, len(messages))}
	for i, m := range messages {
		attributes := make(map[string]snstypes.MessageAttributeValue, len(m.Attributes))
		for name, value := range m.Attributes {
			attributes[name] = snstypes.MessageAttributeValue{DataType: aws.String("String"),
				StringValue: aws.String(value)}
		}
		in.PublishBatchRequestEntries[i] = snstypes.PublishBatchRequestEntry{
			Id: aws.String(strconv.Itoa(i)), Message: aws.String(string(m.Body)), MessageAttributes: attributes,
		}
	}
	out, err := t.client.PublishBatch(ctx, in)
	if err != nil {
		return all(len(messages), err), err
	}
	if len(out.Failed) == 0 && len(out.Successful) == len(messages) {
		return nil, nil
	}
	errs = all(len(messages), errors.New("the answer of SNS does not mention the message"))
	for _, s := range out.Successful {
		if i, ok := place(s.Id, errs); ok {
			errs[i] = nil
		}
	}
	for _, f := range out.Failed {
		if i, ok := place(f.Id, errs); ok {
			errs[i] = failure(&f)
		}
	}
	return errs, nil
}

// failure returns why SNS did not accept one message. The error wraps events.ErrRefused if SNS will never accept the
// message.
func failure(f *snstypes.BatchResultErrorEntry) error {
	code := aws.ToString(f.Code)
	err := fmt.Errorf("publish: %s: %s", code, aws.ToString(f.Message))
	if f.SenderFault && refusals[code] {
		return fmt.Errorf("%w: %w", events.ErrRefused, err)
	}
	return err
}

// refusals are the codes of errors that are due to the message itself, so that publishing it again does not help. SNS
// also reports a sender fault for errors that may pass: a missing KMS key, a role without permission, a rate that is
// too high.
var refusals = map[string]bool{
	"InvalidParameter": true, "InvalidParameterValue": true, "ParameterValueInvalid": true, "ValidationException": true,
	"ValidationError":     true,
	"BatchRequestTooLong": true, // of a batch alone
}

// all returns the error for each of n messages.
func all(n int, err error) []error {
	err = fmt.Errorf("publish to the topic: %w", err)
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// place returns the index of the message with an id of the batch, and false if there is none.
func place(id *string, of []error) (int, bool) {
	i, err := strconv.Atoi(aws.ToString(id))
	return i, err == nil && i >= 0 && i < len(of)
}

// sendClient is the part of *sqs.Client that Queue uses.
type sendClient interface {
	SendMessage(context.Context, *sqs.SendMessageInput, ...func(*sqs.Options)) (*sqs.SendMessageOutput, error)
}

// Queue is the SQS queue of dead letters. It is safe for concurrent use. Make it with NewQueue.
type Queue struct {
	client sendClient
	url    string
}

// NewQueue makes a queue with an *sqs.Client.
func NewQueue(client sendClient, url string) *Queue { return &Queue{client, url} }

// Keep implements [delivery.Keeper].
func (q *Queue) Keep(ctx context.Context, i delivery.DeadLetter) error {
	body, err := i.Encode()
	if err != nil {
		return err
	}
	if _, err := q.client.SendMessage(ctx,
		&sqs.SendMessageInput{QueueUrl: &q.url, MessageBody: aws.String(string(body))}); err != nil {
		return fmt.Errorf("send a dead letter to the queue: %w", err)
	}
	return nil
}

// delayClient is the part of *sqs.Client that Delayer uses.
type delayClient interface {
	ChangeMessageVisibilityBatch(
		context.Context, *sqs.ChangeMessageVisibilityBatchInput, ...func(*sqs.Options),
	) (*sqs.ChangeMessageVisibilityBatchOutput, error)
}

// Delayer is an SQS queue from which messages were received. It is safe for concurrent use. Make it with NewDelayer.
type Delayer struct {
	client delayClient
	url    string
}

// NewDelayer makes a delayer with an *sqs.Client and the URL of the queue.
func NewDelayer(client delayClient, url string) *Delayer { return &Delayer{client, url} }

// delaysAtOnce is how many messages one ChangeMessageVisibilityBatch may name.
const delaysAtOnce = 10

// Delay sets when messages become visible again. The error says for how many of them it failed, and why for one of
// them.
func (d *Delayer) Delay(ctx context.Context, delays []delivery.Delay) error {
	failed, cause := 0, error(nil)
	for batch := range slices.Chunk(delays, delaysAtOnce) {
		in := &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &d.url,
			Entries: make([]sqstypes.ChangeMessageVisibilityBatchRequestEntry, len(batch))}
		for i := range batch {
			in.Entries[i] = sqstypes.ChangeMessageVisibilityBatchRequestEntry{Id: aws.String(strconv.Itoa(i)),
				ReceiptHandle: &batch[i].Receipt, VisibilityTimeout: int32(batch[i].After / time.Second)}
		}
		switch out, err := d.client.ChangeMessageVisibilityBatch(ctx, in); {
		case err != nil:
			failed, cause = failed+len(batch), err
		case len(out.Failed) > 0:
			failed += len(out.Failed)
			cause = fmt.Errorf("%s: %s", aws.ToString(out.Failed[0].Code), aws.ToString(out.Failed[0].Message))
		}
	}
	if failed > 0 {
		return fmt.Errorf("change the visibility of %d of %d messages: %w", failed, len(delays), cause)
	}
	return nil
}
