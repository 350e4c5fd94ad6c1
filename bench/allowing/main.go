// Command allowing is the authorizer with a limiter that admits everything. The authorizer's calls are compared with
// its calls. It reads the same settings and files, and has the same handler, events, JWTs, answers and metrics.
package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/aws/aws-lambda-go/lambda"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/request/identity/token"
	"github.com/sluicelimits/sluice/internal/telemetry"
)

func main() {
	slog.SetDefault(slog.New(telemetry.NewHandler(os.Stdout, slog.LevelInfo)))
	handler, err := start()
	if err != nil {
		slog.Error("the function does not start", "error", err)
		os.Exit(1)
	}
	lambda.StartWithOptions(handler, lambda.WithEnableSIGTERM(func() { os.Exit(0) }))
}

func start() (*authorizer.Handler, error) {
	bundle := os.DirFS(os.Getenv("LAMBDA_TASK_ROOT"))
	var issuers token.Issuers
	s, err := environ.Parse(os.Environ(), bundle, &issuers)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(os.Getenv("LAMBDA_TASK_ROOT") + "/" + s.ConfigFile) //nolint:gosec // its folder
	if err != nil {
		return nil, err
	}
	config, err := plan.Parse(plan.Source{Name: s.ConfigFile, Data: data})
	if err != nil {
		return nil, err
	}
	tokens, err := token.New(token.Config{Issuers: issuers, Claims: s.Claims})
	if err != nil {
		return nil, err
	}
	keys, err := identity.NewKeys(nil, nil)
	if err != nil {
		return nil, err
	}
	recorder, err := telemetry.New(telemetry.Config{
		Writer: os.Stdout, Namespace: s.MetricsNamespace, Cell: s.Cell, Function: os.Getenv("AWS_LAMBDA_FUNCTION_NAME"),
	})
	if err != nil {
		return nil, err
	}
	snapshot := &authorizer.Snapshot{Config: config, Keys: keys}
	decides, err := authorizer.New(authorizer.Config{
		Source: authorizer.Current(func() *authorizer.Snapshot { return snapshot }), Tokens: tokens,
		Store: admitting{}, Measure: true,
	})
	if err != nil {
		return nil, err
	}
	return authorizer.NewHandler(authorizer.HandlerConfig{Authorizer: decides, Recorder: recorder, Cell: s.Cell})
}

// admitting is a store that keeps no counters. It treats every counter as new, so it admits every request. Its answers
// have the same fields as those of a real store. The authorizer calls no other method.
type admitting struct{ limit.Store }

// Decide implements [limit.Store].
func (admitting) Decide(_ context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	e, err := d.Begin(req, now.UnixMicro())
	if err != nil {
		return err
	}
	for i := range d.Results {
		e.Evaluate(i, &limit.State{}, false)
	}
	if e.Settle() {
		for i := range d.Results {
			e.Charge(i, &limit.State{})
		}
	}
	return nil
}
