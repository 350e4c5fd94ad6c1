// Command authorizer is the Lambda in front of every call of an API: API Gateway asks it whether a request may pass.
package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/aws/function"
	"github.com/sluicelimits/sluice/internal/cell"
	"github.com/sluicelimits/sluice/internal/telemetry"
)

// ending is what Lambda leaves a function for its end, with something to spare: after 500 ms it is killed.
const ending = 400 * time.Millisecond

func main() {
	f, err := start()
	if err != nil {
		function.Refuse(err)
	}
	// SIGTERM takes an extension, which is registered first: some 0.7 ms of a cold start, for leases that come back at
	// its end.
	lambda.StartWithOptions(f, lambda.WithEnableSIGTERM(func() { end(f) }))
}

// start reads the settings and makes the function of them.
func start() (*cell.Function, error) {
	slog.SetDefault(slog.New(telemetry.NewHandler(os.Stdout, slog.LevelInfo)))
	bundle := os.DirFS(os.Getenv("LAMBDA_TASK_ROOT"))
	s, err := environ.Parse(os.Environ(), bundle)
	if err != nil {
		return nil, err
	}
	log := slog.New(telemetry.NewHandler(os.Stdout, s.LogLevel))
	slog.SetDefault(log)
	return cell.New(cell.Config{Settings: s, Env: os.Getenv, Bundle: bundle, Output: os.Stdout, Log: log,
		InvocationID: invocation})
}

// invocation is the call's id in Lambda's own log lines.
func invocation(ctx context.Context) string {
	if c, ok := lambdacontext.FromContext(ctx); ok {
		return c.AwsRequestID
	}
	return ""
}

// end is what SIGTERM asks for. What the stores were charged ahead goes back to them.
func end(f *cell.Function) {
	ctx, cancel := context.WithTimeout(context.Background(), ending)
	err := f.Close(ctx)
	cancel()
	if err != nil {
		slog.Warn("the function ends", "error", err)
	}
	os.Exit(0)
}
