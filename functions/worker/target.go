package main

import (
	"context"
	"encoding/json"
	"fmt"

	lambdaevents "github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// invoker is the part of *lambda.Client that the worker uses.
type invoker interface {
	Invoke(context.Context, *lambda.InvokeInput, ...func(*lambda.Options)) (*lambda.InvokeOutput, error)
}

// target is the function that handles messages.
type target struct {
	client invoker
	name   string // or its ARN
}

// handle invokes the target with the event that an event source mapping would send for one message. It returns an error
// if the target failed, or names the message in batchItemFailures.
func (t *target) handle(ctx context.Context, m *types.Message) error {
	attributes := make(map[string]lambdaevents.SQSMessageAttribute, len(m.MessageAttributes))
	for name, a := range m.MessageAttributes {
		attributes[name] = lambdaevents.SQSMessageAttribute{StringValue: a.StringValue, BinaryValue: a.BinaryValue,
			DataType: aws.ToString(a.DataType)}
	}
	payload, err := json.Marshal(lambdaevents.SQSEvent{Records: []lambdaevents.SQSMessage{{
		MessageId: aws.ToString(m.MessageId), ReceiptHandle: aws.ToString(m.ReceiptHandle), Body: aws.ToString(m.Body),
		Md5OfBody: aws.ToString(m.MD5OfBody), Attributes: m.Attributes, MessageAttributes: attributes,
		EventSource: "aws:sqs",
	}}})
	if err != nil {
		return err
	}
	out, err := t.client.Invoke(ctx, &lambda.InvokeInput{FunctionName: &t.name, Payload: payload})
	if err != nil {
		return fmt.Errorf("invoke %s: %w", t.name, err)
	}
	if out.FunctionError != nil {
		return fmt.Errorf("the function %s failed: %s: %.500s", t.name, *out.FunctionError, out.Payload)
	}
	var answer lambdaevents.SQSEventResponse
	if json.Unmarshal(out.Payload, &answer) == nil && len(answer.BatchItemFailures) > 0 {
		return fmt.Errorf("the function %s reports that it could not handle the message", t.name)
	}
	return nil
}
