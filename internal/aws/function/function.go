// Package function starts the Lambda functions of the control plane: what is the same in all of their mains.
//
// A function that cannot start says why in its log and to Lambda, which tells those who call it. Starting waits for no network.
package function

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"time"
	_ "time/tzdata" // Lambda has no zone files; what reads plans has this by package plan, and no function is to do without

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/sluicelimits/sluice/internal/aws/awsenv"
	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/telemetry"
)

// Handler handles one call.
type Handler func(ctx context.Context, payload []byte) ([]byte, error)

// Process is the environment that a function runs in.
type Process struct {
	*awsenv.Env
	Log    *slog.Logger
	common environ.Common
	meters []*telemetry.Meter
}

// newProcess begins a process with the settings that all functions have.
func newProcess(c environ.Common) (*Process, error) {
	log := slog.New(telemetry.NewHandler(os.Stdout, c.LogLevel))
	slog.SetDefault(log)
	e, err := awsenv.New(os.Getenv)
	if err != nil {
		return nil, err
	}
	return &Process{Env: e, Log: log, common: c}, nil
}

// Meter makes a meter of the function, for a cell or "" for none; it is written after each call.
func (p *Process) Meter(cell string) (*telemetry.Meter, error) {
	m, err := telemetry.NewMeter(telemetry.Config{
		Writer: os.Stdout, Namespace: p.common.MetricsNamespace, Cell: cell, Function: os.Getenv("AWS_LAMBDA_FUNCTION_NAME"),
	})
	if err == nil {
		p.meters = append(p.meters, m)
	}
	return m, err
}

// Scheduled handles the events of a schedule, which hold nothing that run needs. It answers with what run returns, as JSON.
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
func Main[S interface{ Shared() environ.Common }](parse func(variables []string) (S, error), start func(*Process, S) (Handler, error)) {
	slog.SetDefault(slog.New(telemetry.NewHandler(os.Stdout, slog.LevelInfo)))
	p, handle, err := prepare(parse, start)
	if err != nil {
		Refuse(err)
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

// invoked is lambda.Handler.
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
		i.process.Log.ErrorContext(ctx, "the call failed", "error", err)
	}
	for _, m := range i.process.meters {
		if err := m.Flush(time.Now()); err != nil {
			i.process.Log.WarnContext(ctx, "metrics are lost", "error", err)
		}
	}
	return out, err
}

// Refuse says why the function does not start, in the log and to Lambda, and ends the process.
func Refuse(err error) {
	slog.Error("the function does not start", "error", err)
	body, _ := json.Marshal(map[string]string{"errorType": "Sluice.Configuration", "errorMessage": err.Error()}) //nolint:errchkjson // two texts
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	url := "http://" + os.Getenv("AWS_LAMBDA_RUNTIME_API") + "/2018-06-01/runtime/init/error"
	req, failed := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body)) //nolint:gosec // Lambda names the host
	if failed == nil {
		direct := http.Client{Transport: &http.Transport{}} // whatever proxy the environment names
		if res, failed := direct.Do(req); failed == nil {   //nolint:gosec // the same
			_ = res.Body.Close()
		}
	}
	cancel()
	os.Exit(1)
}
