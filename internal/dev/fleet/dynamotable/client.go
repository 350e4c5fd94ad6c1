package dynamotable

import (
	"context"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// Client replaces the SDK's client of a DynamoDB store. It runs the options that the store adds to the SDK's client: by
// them the store reads the time of the service from the replies.
type Client struct {
	// Send makes a call to the table: it lets do carry out the call, or refuses the call, and returns when the caller
	// has the reply or gives up. It returns the time at which the service replied, or the zero Time without a reply.
	Send func(ctx context.Context, do func(*Table) (Cost, error)) (replied time.Time, err error)
}

// Throttled returns the error of a call that DynamoDB refuses because a partition is above its rate.
func Throttled() error {
	return &types.ThrottlingException{Message: aws.String("the partition is above its rate")}
}

// GetItem makes a call.
func (c Client) GetItem(
	ctx context.Context, in *dynamodb.GetItemInput, options ...func(*dynamodb.Options),
) (out *dynamodb.GetItemOutput, err error) {
	err = c.call(ctx, options, func(t *Table) (cost Cost, err error) {
		out, cost, err = t.Get(in)
		return cost, err
	})
	return out, err
}

// UpdateItem makes a call.
func (c Client) UpdateItem(
	ctx context.Context, in *dynamodb.UpdateItemInput, options ...func(*dynamodb.Options),
) (out *dynamodb.UpdateItemOutput, err error) {
	err = c.call(ctx, options, func(t *Table) (cost Cost, err error) {
		out, cost, err = t.Update(in)
		return cost, err
	})
	return out, err
}

// TransactWriteItems makes a call. The items of a decision have one partition key, and so one table.
func (c Client) TransactWriteItems(
	ctx context.Context, in *dynamodb.TransactWriteItemsInput, options ...func(*dynamodb.Options),
) (out *dynamodb.TransactWriteItemsOutput, err error) {
	err = c.call(ctx, options, func(t *Table) (cost Cost, err error) {
		out, cost, err = t.Transact(in)
		return cost, err
	})
	return out, err
}

// call sends a call through the middleware that the options add to the SDK's client.
func (c Client) call(
	ctx context.Context, options []func(*dynamodb.Options), do func(*Table) (Cost, error),
) error {
	var o dynamodb.Options
	for _, f := range options {
		f(&o)
	}
	stack := middleware.NewStack("simulated", smithyhttp.NewStackRequest)
	for _, f := range o.APIOptions {
		if err := f(stack); err != nil {
			return err
		}
	}
	var answer error // the error by which the service answered
	_, _, err := stack.Deserialize.HandleMiddleware(ctx, nil, middleware.HandlerFunc(
		func(ctx context.Context, _ any) (any, middleware.Metadata, error) {
			replied, err := c.Send(ctx, do)
			if replied.IsZero() {
				return nil, middleware.Metadata{}, err
			}
			answer = err
			date := replied.UTC().Format(http.TimeFormat)
			return &smithyhttp.Response{Response: &http.Response{Header: http.Header{"Date": {date}}}},
				middleware.Metadata{}, nil
		}))
	if err != nil {
		return err
	}
	return answer
}
