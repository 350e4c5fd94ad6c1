// Package awspacer makes clients of the AWS SDK v2 wait for their turn: each attempt of each call, retries too, takes
// units of a [pacer.Pacer] before it is sent.
package awspacer

import (
	"context"
	"errors"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"

	"github.com/sluicelimits/sluice/pacer"
)

var _ aws.RetryerV2 = (*Retryer)(nil)

// Retryer is a retryer of the SDK whose attempts wait for a pacer. Base decides whether an attempt is repeated, and
// when. Put it into the Retryer field of a client's options, or into config.WithRetryer.
//
// An attempt is signed and sent after it got its permit, which takes well below a millisecond. The SDK has no place at
// which the time of the permit could be looked at once more, so Guard.MaxDelay of the pacer must allow for this time,
// too.
//
// The pacer obeys the headers of replies ([pacer.Pacer.Observe]) as far as the SDK shows them: those of attempts that
// failed. With the environment variable AWS_NEW_RETRIES_2026=true the SDK shows only the first attempt of each call.
type Retryer struct {
	Base  aws.Retryer // required; retry.NewStandard() is the SDK's usual one
	Pacer *pacer.Pacer

	// Key returns the key of an attempt. If nil, all attempts have the key "". GetOperationName of the SDK's package
	// aws/middleware tells the operation of ctx.
	Key func(ctx context.Context) string

	// Cost returns the cost of an attempt, in units. If nil, each costs 1.
	Cost func(ctx context.Context) int64
}

// IsErrorRetryable asks Base.
func (r *Retryer) IsErrorRetryable(err error) bool { return r.Base.IsErrorRetryable(err) }

// MaxAttempts asks Base.
func (r *Retryer) MaxAttempts() int { return r.Base.MaxAttempts() }

// RetryDelay asks Base.
func (r *Retryer) RetryDelay(attempt int, err error) (time.Duration, error) {
	return r.Base.RetryDelay(attempt, err)
}

// GetRetryToken asks Base.
func (r *Retryer) GetRetryToken(ctx context.Context, err error) (func(error) error, error) {
	return r.Base.GetRetryToken(ctx, err)
}

// GetInitialToken asks Base. The SDK calls GetAttemptToken in its place.
func (r *Retryer) GetInitialToken() func(error) error { return r.Base.GetInitialToken() }

// GetAttemptToken waits for the token of Base and for the units of an attempt. Its errors are those of Base and of
// [pacer.Pacer.Acquire]; the call then fails, and nothing is sent.
func (r *Retryer) GetAttemptToken(ctx context.Context) (func(error) error, error) {
	release, err := r.baseToken(ctx)
	if err != nil {
		return nil, err
	}
	key, cost := "", int64(1)
	if r.Key != nil {
		key = r.Key(ctx)
	}
	if r.Cost != nil {
		cost = r.Cost(ctx)
	}
	var permit pacer.Permit
	for !permit.InTime() {
		permit.Release() // the goroutine was suspended until it was too late to send the attempt
		if permit, err = r.Pacer.Acquire(ctx, key, cost); err != nil {
			_ = release(err)
			return nil, err
		}
	}
	return func(err error) error {
		r.observe(err, permit)
		return release(err)
	}, nil
}

// baseToken does what the SDK does with a retryer that may be of the first version.
func (r *Retryer) baseToken(ctx context.Context) (func(error) error, error) {
	if v2, ok := r.Base.(aws.RetryerV2); ok {
		return v2.GetAttemptToken(ctx)
	}
	return r.Base.GetInitialToken(), nil
}

// observe shows the reply of an attempt that failed to the pacer. The SDK does not show that of one that succeeded.
func (r *Retryer) observe(err error, permit pacer.Permit) {
	var response *awshttp.ResponseError
	if errors.As(err, &response) && response.Response != nil {
		r.Pacer.Observe(pacer.Reply{Header: response.Response.Header, Permit: permit, Received: time.Now()})
	}
}
