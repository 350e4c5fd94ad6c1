// Package function starts the Lambda functions of the control plane. It holds what their main functions share, and
// calls SNS and SQS for them: it publishes events, keeps dead letters, and tells a queue when messages that failed are
// to be delivered again.
//
// A function that cannot start writes the reason to its log and reports it to Lambda, which tells its callers. Starting
// does not wait for the network.
package function

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"time"
	// Lambda has no zone files. Functions that read plans link this package through package plan, and the other
	// functions must have it, too.
	_ "time/tzdata"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/sluicelimits/sluice/internal/aws/awsenv"
	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/telemetry"
)

// Handler handles one invocation.
type Handler func(ctx context.Context, payload []byte) ([]byte, error)

// Process is what all functions have: the environment that they run in.
type Process struct {
	*awsenv.Env
	Log    *slog.Logger
	common environ.Common
	meters []*telemetry.Meter
}

// newProcess makes a process from the settings that all functions have.
func newProcess(c environ.Common) (*Process, error) {
	log := slog.New(telemetry.NewHandler(os.Stdout, c.LogLevel))
	slog.SetDefault(log)
	e, err := awsenv.New(os.Getenv)
	if err != nil {
		return nil, err
	}
	return &Process{Env: e, Log: log, common: c}, nil
}

// Meter makes a meter of the function, for a cell, or for none if cell is "". The process flushes it after each
// invocation.
func (p *Process) Meter(cell string) (*telemetry.Meter, error) {
	m, err := telemetry.NewMeter(telemetry.Config{
		Writer: os.Stdout, Namespace: p.common.MetricsNamespace, Cell: cell,
		Function: os.Getenv("AWS_LAMBDA_FUNCTION_NAME"),
	})
	if err == nil {
		p.meters = append(p.meters, m)
	}
	return m, err
}

// Scheduled handles the events of a schedule, whose content does not matter. It answers with what run returns, as JSON.
func Scheduled[R any](run func(context.Context) (R, error)) Handler {
	return func(ctx context.Context, _ []byte) ([]byte, error) {
		result, err := run(ctx)
		if err != nil {
			return nil, err
		}
		return json.Marshal(result)
	}
}

// Main runs the function that start makes of its settings, which parse reads from the environment. It does not return.
func Main[S interface{ Shared() environ.Common }](
	parse func(variables []string) (S, error), start func(*Process, S) (Handler, error),
) {
	slog.SetDefault(slog.New(telemetry.NewHandler(os.Stdout, slog.LevelInfo)))
	p, handle, err := prepare(parse, start)
	if err != nil {
		awsenv.Refuse(err)
	}
	lambda.Start(&invoked{p, handle})
}

func prepare[S interface{ Shared() environ.Common }](
	parse func([]string) (S, error), start func(*Process, S) (Handler, error),
) (*Process, Handler, error) {
	s, err := parse(os.Environ())
	if err != nil {
		return nil, nil, err
	}
	p, err := newProcess(s.Shared())
	if err != nil {
		return nil, nil, err
	}
	handle, err := start(p, s)
	return p, handle, err
}

// invoked implements lambda.Handler.
type invoked struct {
	process *Process
	handle  Handler
}

// Invoke implements lambda.Handler.
func (i *invoked) Invoke(ctx context.Context, payload []byte) ([]byte, error) {
	if c, ok := lambdacontext.FromContext(ctx); ok {
		ctx = telemetry.WithOrigin(ctx, telemetry.Origin{RequestID: c.AwsRequestID})
	}
	out, err := i.handle(ctx, payload)
	if err != nil {
		i.process.Log.ErrorContext(ctx, "the invocation failed", "error", err)
	}
	for _, m := range i.process.meters {
		if err := m.Flush(time.Now()); err != nil {
			i.process.Log.WarnContext(ctx, "metrics are lost", "error", err)
		}
	}
	return out, err
}
