// Package functiontest runs the real binary of a function for tests, with stand-ins for SNS and SQS.
package functiontest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/testkit/built"
	"github.com/sluicelimits/sluice/internal/testkit/lambdahost"
)

// patient is how long a start or a call may take, even on a busy machine.
const patient = 60 * time.Second

// Function is a running function.
type Function struct {
	*Role // nil if there is no DynamoDB

	t    testing.TB
	host *lambdahost.Host

	mu    sync.Mutex
	lines []string
}

// Start builds the function in the folder of the test, and starts it with these variables in addition to Lambda's. The
// function looks for AWS services at the endpoint, where no server needs to listen. If env has
// AWS_ENDPOINT_URL_DYNAMODB, the function calls that DynamoDB through its [Role].
func Start(t testing.TB, endpoint string, env map[string]string) *Function {
	t.Helper()
	bootstrap := filepath.Join(t.TempDir(), "bootstrap")
	if err := built.Function(bootstrap, "."); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{
		"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "not-to-be-seen-key",
		"AWS_SESSION_TOKEN": "not-to-be-seen-token",
		"AWS_ENDPOINT_URL":  endpoint,
	}
	for name, value := range env {
		all[name] = value
	}
	f := &Function{t: t}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if to := env["AWS_ENDPOINT_URL_DYNAMODB"]; to != "" {
		f.Role = NewRole(t, filepath.Base(dir), env, to)
		all["AWS_ENDPOINT_URL_DYNAMODB"] = f.Role.URL
	}
	f.host, err = lambdahost.Start(context.Background(), lambdahost.Config{
		Binary: bootstrap, Env: all, Name: "sluice-test", MemoryMB: 256, InitTimeout: patient, Timeout: patient,
		Output: func(l lambdahost.Line) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.lines = append(f.lines, l.Text)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		defer cancel()
		_ = f.host.Close(ctx)
	})
	return f
}

// Call calls the function and returns its answer. An error fails the test.
func (f *Function) Call(payload string) string {
	f.t.Helper()
	out, err := f.host.Invoke(context.Background(), []byte(payload))
	if err != nil {
		f.t.Fatalf("%v\n%s", err, strings.Join(f.Lines(), "\n"))
	}
	return string(out)
}

// Try calls the function and returns its answer or error.
func (f *Function) Try(payload string) (string, error) {
	out, err := f.host.Invoke(context.Background(), []byte(payload))
	return string(out), err
}

// Refusal returns the error with which the function refuses to start. If the function starts, the test fails.
func (f *Function) Refusal() string {
	f.t.Helper()
	out, err := f.host.Invoke(context.Background(), []byte(`{}`))
	var e *lambdahost.Error
	if !errors.As(err, &e) || e.Kind != lambdahost.InitFailed || e.Type != "Sluice.Configuration" {
		f.t.Fatalf("%s, %v, want a failed init", out, err)
	}
	return e.Message
}

// Lines returns the lines that the function has written so far.
func (f *Function) Lines() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.lines)
}

// Metric returns the sum of a metric over all lines. It waits for the first line that has the metric, since lines can
// come after the answer.
func (f *Function) Metric(name string) float64 {
	f.t.Helper()
	deadline := time.After(patient)
	for {
		sum, found := 0.0, false
		for _, l := range f.Lines() {
			var m map[string]any
			if json.Unmarshal([]byte(l), &m) != nil {
				f.t.Fatalf("a line is not JSON: %s", l)
			}
			if n, ok := m[name].(float64); ok {
				sum, found = sum+n, true
			}
		}
		if found {
			return sum
		}
		select {
		case <-deadline:
			f.t.Fatalf("no metric %s\n%s", name, strings.Join(f.Lines(), "\n"))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// AWS is a stand-in for SNS and SQS, with the calls that functions make.
type AWS struct {
	URL string

	mu        sync.Mutex
	published []string
	kept      []string
	delayed   []Delayed
	throttle  int // how many further calls of SNS are throttled
}

// Delayed is a received message whose visibility timeout was changed.
type Delayed struct {
	Queue   string // URL
	Receipt string
	Seconds int
}

// StartAWS starts a stand-in on a port of the loopback address. It ends with the test.
func StartAWS(t testing.TB) *AWS {
	a := &AWS{}
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	a.URL = s.URL
	return a
}

// Throttle makes SNS throttle its next n calls.
func (a *AWS) Throttle(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.throttle = n
}

// Published returns the messages that SNS has accepted.
func (a *AWS) Published() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.published)
}

// Kept returns the messages that SQS has accepted: dead letters.
func (a *AWS) Kept() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.kept)
}

// Delayed returns the messages whose visibility timeout was changed.
func (a *AWS) Delayed() []Delayed {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.delayed)
}

// ServeHTTP implements [http.Handler]: SNS in AWS's query protocol, SQS in its JSON protocol.
func (a *AWS) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if action, ok := strings.CutPrefix(r.Header.Get("X-Amz-Target"), "AmazonSQS."); ok {
		a.serveSQS(w, r, action)
		return
	}
	if r.FormValue("Action") != "PublishBatch" {
		http.Error(w, "no such action", http.StatusNotImplemented)
		return
	}
	w.Header().Set("Content-Type", "text/xml")
	if a.throttle > 0 {
		a.throttle--
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `<ErrorResponse><Error><Type>Sender</Type><Code>Throttled</Code><Message>slow `+
			`down</Message></Error></ErrorResponse>`)
		return
	}
	var members strings.Builder
	for i := 1; ; i++ {
		prefix := fmt.Sprintf("PublishBatchRequestEntries.member.%d.", i)
		if !r.Form.Has(prefix + "Id") {
			break
		}
		a.published = append(a.published, r.FormValue(prefix+"Message"))
		fmt.Fprintf(&members, "<member><Id>%s</Id><MessageId>m</MessageId></member>", r.FormValue(prefix+"Id"))
	}
	fmt.Fprintf(w,
		`<PublishBatchResponse><PublishBatchResult><Successful>%s</Successful><Failed/></PublishBatchResult>`+
			`</PublishBatchResponse>`, members.String())
}

func (a *AWS) serveSQS(w http.ResponseWriter, r *http.Request, action string) {
	var in struct {
		MessageBody string
		QueueURL    string `json:"QueueUrl"`
		Entries     []struct {
			ReceiptHandle     string
			VisibilityTimeout int
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	switch action {
	case "SendMessage":
		a.kept = append(a.kept, in.MessageBody)
		fmt.Fprint(w, `{"MessageId":"m"}`)
	case "ChangeMessageVisibilityBatch":
		for _, e := range in.Entries {
			a.delayed = append(a.delayed, Delayed{in.QueueURL, e.ReceiptHandle, e.VisibilityTimeout})
		}
		fmt.Fprint(w, `{"Successful":[],"Failed":[]}`)
	default:
		http.Error(w, "no such action", http.StatusNotImplemented)
	}
}
