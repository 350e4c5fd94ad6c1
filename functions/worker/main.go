// Command worker is the Lambda function that has the messages of an SQS queue handled no faster than a provider allows:
// it invokes another function, the target, with one message at a time. The limit holds by the provider's count if
// SLUICE_CLOCK_ERROR and SLUICE_MAX_DELAY bound the difference of the clocks and the time until a request arrives.
// Without them it holds by the clock of AWS, at the time when the target is called.
//
// A schedule calls it each minute, and a call goes on for almost 15 minutes. Its reserved concurrency is 1, so that
// there is one pacer. The queue must not be an event source of Lambda: such a mapping receives messages before anybody
// asks whether they may be sent, and handing them back raises their receive counts.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/lambda"

	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/function"
	"github.com/sluicelimits/sluice/pacer"
	"github.com/sluicelimits/sluice/pacer/sqsworker"
)

func main() { function.Main(environ.Read[environ.Worker], start) }

// maxPeriod is the longest period of the limit. A new environment waits for the next window before it receives
// anything, because it does not know what an earlier environment spent in the present one.
const maxPeriod = time.Minute

// endMargin is how long before its timeout a call returns, so that Lambda does not end the environment.
const endMargin = 5 * time.Second

func start(process *function.Process, s *environ.Worker) (function.Handler, error) {
	limit, err := pacer.ParseLimit(s.Limit)
	if err != nil {
		return nil, fmt.Errorf("SLUICE_LIMIT: %w", err)
	}
	if limit.Period > maxPeriod {
		return nil, fmt.Errorf("SLUICE_LIMIT: the period of %s is longer than %s", limit, maxPeriod)
	}
	config := pacer.Config{Limit: limit, Guard: pacer.Guard{ClockError: s.ClockError, MaxDelay: s.MaxDelay}}
	if s.Spread {
		config.Smoothing = pacer.Spread
	}
	p, err := pacer.New(config)
	if err != nil {
		return nil, fmt.Errorf("SLUICE_LIMIT, SLUICE_CLOCK_ERROR and SLUICE_MAX_DELAY: %w", err)
	}
	nextWindow := time.Now().Add(limit.Period - time.Duration(time.Now().UnixNano())%limit.Period)
	t := &target{name: s.Target, client: lambda.NewFromConfig(process.Config(""), func(o *lambda.Options) {
		o.BaseEndpoint = process.Endpoint("LAMBDA")
		o.EndpointOptions.UseFIPSEndpoint, o.EndpointOptions.UseDualStackEndpoint = process.FIPS(), process.DualStack()
		o.RetryMaxAttempts = 1 // a call that seems to have failed may have reached the provider
	})}
	return function.Scheduled(func(ctx context.Context) (sqsworker.Counts, error) {
		if deadline, ok := ctx.Deadline(); ok {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, deadline.Add(-s.Visibility-endMargin))
			defer cancel()
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(nextWindow)):
		}
		counts, err := sqsworker.Run(ctx, sqsworker.Config{
			Client: function.SQS(process.Env), Queue: s.Queue, Pacer: p, Handle: t.handle, Parallel: s.Parallel,
			Visibility: s.Visibility, Log: process.Log,
		})
		if err == nil && counts.BadCalls > 0 && counts.Received == 0 {
			err = errors.New("SQS answered no call: the log says why")
		}
		return counts, err
	}), nil
}
