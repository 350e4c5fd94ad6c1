// Package awsio is what the functions of the control plane say to SNS and SQS.
package awsio

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	snstypes "github.com/aws/aws-sdk-go-v2/service/sns/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go"

	"github.com/sluicelimits/sluice/internal/aws/awsenv"
	"github.com/sluicelimits/sluice/streams/kept"
	"github.com/sluicelimits/sluice/streams/publisher"
)

var (
	_ publisher.Topic = (*Topic)(nil)
	_ kept.Keeper     = (*Queue)(nil)
)

// Region is that of an ARN; "" for a name.
func Region(nameOrARN string) string { return awsenv.Region(nameOrARN) }

// SNS is a client of SNS in the region; "" is the function's own.
func SNS(e *awsenv.Env, region string) *sns.Client {
	return sns.NewFromConfig(e.Config(region), func(o *sns.Options) {
		o.BaseEndpoint = e.Endpoint("SNS")
		o.EndpointOptions.UseFIPSEndpoint, o.EndpointOptions.UseDualStackEndpoint = e.FIPS(), e.DualStack()
	})
}

// SQS is a client of SQS in the function's region.
func SQS(e *awsenv.Env) *sqs.Client {
	return sqs.NewFromConfig(e.Config(""), func(o *sqs.Options) {
		o.BaseEndpoint = e.Endpoint("SQS")
		o.EndpointOptions.UseFIPSEndpoint, o.EndpointOptions.UseDualStackEndpoint = e.FIPS(), e.DualStack()
	})
}

// batchClient is the part of *sns.Client that is used.
type batchClient interface {
	PublishBatch(context.Context, *sns.PublishBatchInput, ...func(*sns.Options)) (*sns.PublishBatchOutput, error)
}

// Topic is a standard topic of SNS. It is safe for concurrent use. Make it with NewTopic.
type Topic struct {
	client batchClient
	arn    string
}

// NewTopic makes a topic over an *sns.Client, whose retries are harmless: what is published twice is applied once.
func NewTopic(client batchClient, arn string) *Topic { return &Topic{client, arn} }

// Publish implements [publisher.Topic] with one PublishBatch. Where SNS refuses that as a whole, which does not say
// whose fault it is, each message is published by itself, so that one holds up no other.
func (t *Topic) Publish(ctx context.Context, messages []publisher.Message) []error {
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

// publish is one call. whole is its error where it failed as a whole: it is then that of each message, and no message
// is refused for ever by it, since it may as well be the topic's.
func (t *Topic) publish(ctx context.Context, messages []publisher.Message) (errs []error, whole error) {
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
	errs = all(len(messages), errors.New("the answer does not name it"))
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

// failure is why one message was not taken. The sender's fault stays one, however often it is published.
func failure(f *snstypes.BatchResultErrorEntry) error {
	code := aws.ToString(f.Code)
	err := fmt.Errorf("publish: %s: %s", code, aws.ToString(f.Message))
	if f.SenderFault && refusals[code] {
		return fmt.Errorf("%w: %w", publisher.ErrRefused, err)
	}
	return err
}

// refusals are the errors of a message. Others that SNS calls the sender's fault go by: a key that is not there, a role
// that may not, or a rate that is too high.
var refusals = map[string]bool{
	"InvalidParameter": true, "InvalidParameterValue": true, "ParameterValueInvalid": true, "ValidationException": true,
	"ValidationError":     true,
	"BatchRequestTooLong": true, // of a batch alone
}

// all is an error for each of n messages.
func all(n int, err error) []error {
	err = fmt.Errorf("publish to the topic: %w", err)
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

func place(id *string, of []error) (int, bool) {
	i, err := strconv.Atoi(aws.ToString(id))
	return i, err == nil && i >= 0 && i < len(of)
}

// sendClient is the part of *sqs.Client that is used.
type sendClient interface {
	SendMessage(context.Context, *sqs.SendMessageInput, ...func(*sqs.Options)) (*sqs.SendMessageOutput, error)
}

// Queue is the SQS queue in which is kept what cannot be used. It is safe for concurrent use. Make it with NewQueue.
type Queue struct {
	client sendClient
	url    string
}

// NewQueue makes a queue over an *sqs.Client.
func NewQueue(client sendClient, url string) *Queue { return &Queue{client, url} }

// Keep implements [kept.Keeper].
func (q *Queue) Keep(ctx context.Context, i kept.Item) error {
	body, err := i.Encode()
	if err != nil {
		return err
	}
	if _, err := q.client.SendMessage(ctx,
		&sqs.SendMessageInput{QueueUrl: &q.url, MessageBody: aws.String(string(body))}); err != nil {
		return fmt.Errorf("send what is kept to the queue: %w", err)
	}
	return nil
}
