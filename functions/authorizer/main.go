// Command authorizer is the Lambda in front of every call of an API: API Gateway asks it whether a request may pass.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/sluicelimits/sluice/internal/cell"
	"github.com/sluicelimits/sluice/internal/environ"
	"github.com/sluicelimits/sluice/internal/telemetry"
)

// ending is what Lambda leaves a function for its end, with something to spare: after 500 ms it is killed.
const ending = 400 * time.Millisecond

func main() {
	f, err := start()
	if err != nil {
		refuse(err)
	}
	// SIGTERM takes an extension, which is registered first: some 0.7 ms of a cold start, for leases that come back at its end.
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
	return cell.New(cell.Config{Settings: s, Env: os.Getenv, Bundle: bundle, Output: os.Stdout, Log: log, InvocationID: invocation})
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

// refuse says why the function does not start, in the log and to Lambda, which tells those who call it.
func refuse(err error) {
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
