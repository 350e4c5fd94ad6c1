package awsenv

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"time"
)

// Refuse reports why the function does not start, in the log and to Lambda, and ends the process.
func Refuse(err error) {
	slog.Error("the function does not start", "error", err)
	report := map[string]string{"errorType": "Sluice.Configuration", "errorMessage": err.Error()}
	body, _ := json.Marshal(report) //nolint:errchkjson // texts always have a JSON form
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	url := "http://" + os.Getenv("AWS_LAMBDA_RUNTIME_API") + "/2018-06-01/runtime/init/error"
	req, failed := http.NewRequestWithContext( //nolint:gosec // Lambda names the host
		ctx, http.MethodPost, url, bytes.NewReader(body))
	if failed == nil {
		direct := http.Client{Transport: &http.Transport{}} // not through a proxy that the environment names
		if res, failed := direct.Do(req); failed == nil {   //nolint:gosec // the same
			_ = res.Body.Close()
		}
	}
	cancel()
	os.Exit(1)
}
