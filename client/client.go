// Package client asks a rate limit service (`sluice serve` with --plans or --config-table) over gRPC whether calls may
// pass. A program that should decide by itself, without a service, uses package sluice instead.
//
// Requests and replies have the types of package limitsv1, which protoc generates from limits.proto. A denial is a
// decision, never an error. An error is a gRPC status: InvalidArgument for a call that cannot be decided, Unavailable
// or DeadlineExceeded if the service did not answer. The program then chooses whether calls pass.
package client

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/sluicelimits/sluice/client/limitsv1"
)

// Client asks one service. It is safe for concurrent use. Make it with [New].
type Client struct {
	limits limitsv1.LimitsClient
	conn   *grpc.ClientConn
}

// New makes a client of the service at target, such as "limits.internal:8081". It connects with the first call. The
// options must say how the connection is secured: grpc.WithTransportCredentials.
//
// If the target has several instances, all calls go to one of them as long as it answers, because only the instance
// that has charged can refund. A balancer in the options, such as round_robin, makes refunds find nothing.
func New(target string, options ...grpc.DialOption) (*Client, error) {
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return &Client{limits: limitsv1.NewLimitsClient(conn), conn: conn}, nil
}

// Close ends the connection. Calls under way fail.
func (c *Client) Close() error { return c.conn.Close() }

// Check charges all limits that apply to a call, or none.
func (c *Client) Check(ctx context.Context, call *limitsv1.Call) (*limitsv1.Decision, error) {
	out, err := c.limits.Check(ctx, &limitsv1.CheckRequest{Call: call})
	return out.GetDecision(), err
}

// CheckEach checks 1 to 1,000 calls, each by itself, in their order. There is a decision for each of them.
func (c *Client) CheckEach(ctx context.Context, calls ...*limitsv1.Call) ([]*limitsv1.Decision, error) {
	out, err := c.limits.CheckBatch(ctx, &limitsv1.CheckBatchRequest{Calls: calls})
	return out.GetDecisions(), err
}

// CheckAll charges 1 to 1,000 calls, or none of them: at the first denial, what the calls before it were charged is
// given back. The last decision is then that denial, and decisions of calls after it are missing.
func (c *Client) CheckAll(ctx context.Context, calls ...*limitsv1.Call) ([]*limitsv1.Decision, error) {
	out, err := c.limits.CheckBatch(ctx, &limitsv1.CheckBatchRequest{Calls: calls, AllOrNothing: true})
	return out.GetDecisions(), err
}

// Peek returns what Check would return, and charges nothing.
func (c *Client) Peek(ctx context.Context, call *limitsv1.Call) (*limitsv1.Decision, error) {
	out, err := c.limits.Peek(ctx, &limitsv1.PeekRequest{Call: call})
	return out.GetDecision(), err
}

// Refund gives back what a decision with this receipt has charged: at most the given units of each limit, or all of
// them if units is 0. Each receipt is refunded once, within five minutes, by the instance that has charged. The error
// has the code NotFound if that instance does not have the receipt. To try again is safe.
func (c *Client) Refund(ctx context.Context, receipt string, units int64) (*limitsv1.RefundResponse, error) {
	return c.limits.Refund(ctx, &limitsv1.RefundRequest{Receipt: receipt, Units: units})
}
