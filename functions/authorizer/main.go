// Command authorizer is the Lambda authorizer of an API: API Gateway asks it about each request.
package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/sluicelimits/sluice/internal/aws/awsenv"
	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/cell"
	"github.com/sluicelimits/sluice/internal/request/identity/token"
	"github.com/sluicelimits/sluice/internal/telemetry"
)

// ending is how long the function tries to give leased units back when it ends. Lambda kills it 500 ms after SIGTERM;
// the rest of that time is for its last metrics.
const ending = 400 * time.Millisecond

func main() {
	f, err := start()
	if err != nil {
		awsenv.Refuse(err)
	}
	// Lambda sends SIGTERM only if an extension is registered, which takes about 0.7 ms of a cold start. It lets the
	// function give leased units back.
	lambda.StartWithOptions(f, lambda.WithEnableSIGTERM(func() { end(f) }))
}

// start reads the settings and makes the function.
func start() (*cell.Function, error) {
	slog.SetDefault(slog.New(telemetry.NewHandler(os.Stdout, slog.LevelInfo)))
	bundle := os.DirFS(os.Getenv("LAMBDA_TASK_ROOT"))
	var issuers token.Issuers
	s, err := environ.Parse(os.Environ(), bundle, &issuers)
	if err != nil {
		return nil, err
	}
	log := slog.New(telemetry.NewHandler(os.Stdout, s.LogLevel))
	slog.SetDefault(log)
	return cell.New(cell.Config{Settings: s, Issuers: issuers, Env: os.Getenv, Bundle: bundle, Output: os.Stdout,
		Log: log, InvocationID: invocation})
}

// invocation returns the id of the invocation in Lambda's own log lines.
func invocation(ctx context.Context) string {
	if c, ok := lambdacontext.FromContext(ctx); ok {
		return c.AwsRequestID
	}
	return ""
}

// end handles SIGTERM: it gives leased units back to the stores.
func end(f *cell.Function) {
	ctx, cancel := context.WithTimeout(context.Background(), ending)
	err := f.Close(ctx)
	cancel()
	if err != nil {
		slog.Warn("the function ends", "error", err)
	}
	os.Exit(0)
}
