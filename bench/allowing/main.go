// Command allowing is the authorizer with a limiter that admits everything. The authorizer's calls are compared with
// its calls. It reads the same settings and files, and has the same handler, events, JWTs, answers and metrics.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/request/identity/token"
	"github.com/sluicelimits/sluice/internal/telemetry"
)

func main() {
	slog.SetDefault(slog.New(telemetry.NewHandler(os.Stdout, slog.LevelInfo)))
	handler, recorder, err := start()
	if err != nil {
		slog.Error("the function does not start", "error", err)
		os.Exit(1)
	}
	lambda.StartWithOptions(handler, lambda.WithEnableSIGTERM(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_ = recorder.Flush(ctx)
		cancel()
		os.Exit(0)
	}))
}

func start() (*authorizer.Handler, *telemetry.Recorder, error) {
	bundle := os.DirFS(os.Getenv("LAMBDA_TASK_ROOT"))
	s, err := environ.Parse(os.Environ(), bundle)
	if err != nil {
		return nil, nil, err
	}
	data, err := os.ReadFile(os.Getenv("LAMBDA_TASK_ROOT") + "/" + s.ConfigFile) //nolint:gosec // its folder
	if err != nil {
		return nil, nil, err
	}
	config, err := plan.Parse(plan.Source{Name: s.ConfigFile, Data: data})
	if err != nil {
		return nil, nil, err
	}
	tokens, err := token.New(token.Config{Issuers: s.Issuers, Claims: s.Claims})
	if err != nil {
		return nil, nil, fmt.Errorf("issuers: %w", err)
	}
	tokens.Warm(time.Now())
	keys, err := identity.NewKeys(nil, nil)
	if err != nil {
		return nil, nil, err
	}
	recorder, err := telemetry.New(telemetry.Config{
		Writer: os.Stdout, Namespace: s.MetricsNamespace, Cell: s.Cell, Function: os.Getenv("AWS_LAMBDA_FUNCTION_NAME"),
	})
	if err != nil {
		return nil, nil, err
	}
	snapshot := &authorizer.Snapshot{Config: config, Keys: keys}
	decides, err := authorizer.New(authorizer.Config{
		Source: authorizer.Current(func() *authorizer.Snapshot { return snapshot }), Tokens: tokens,
		Store: admitting{}, Measure: true,
	})
	if err != nil {
		return nil, nil, err
	}
	handler, err := authorizer.NewHandler(authorizer.HandlerConfig{
		Authorizer: decides, Recorder: recorder, Cell: s.Cell, InvocationID: invocation,
	})
	return handler, recorder, err
}

func invocation(ctx context.Context) string {
	if c, ok := lambdacontext.FromContext(ctx); ok {
		return c.AwsRequestID
	}
	return ""
}
