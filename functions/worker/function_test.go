//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	lambdaevents "github.com/aws/aws-lambda-go/events"

	"github.com/sluicelimits/sluice/internal/testkit/functiontest"
	"github.com/sluicelimits/sluice/internal/testkit/sqstest"
	"github.com/sluicelimits/sluice/pacer/sqsworker"
)

// lambdas is Lambda's Invoke API, with one function.
type lambdas struct {
	mu      sync.Mutex
	bodies  map[string]int // how often the function got each
	seconds map[int64]int
	paths   map[string]bool
}

func (l *lambdas) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var event lambdaevents.SQSEvent
	text, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(text, &event)
	}
	if err != nil || len(event.Records) != 1 {
		http.Error(w, fmt.Sprintf("%d records, %v", len(event.Records), err), http.StatusBadRequest)
		return
	}
	m := &event.Records[0]
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bodies[m.Body]++
	l.seconds[time.Now().Unix()]++
	l.paths[r.URL.Path] = true
	switch m.Body {
	case "fails":
		w.Header().Set("X-Amz-Function-Error", "Unhandled")
		fmt.Fprint(w, `{"errorMessage":"it makes no sense"}`)
	case "reported":
		fmt.Fprintf(w, `{"batchItemFailures":[{"itemIdentifier":%q}]}`, m.MessageId)
	case "unavailable":
		http.Error(w, "{}", http.StatusInternalServerError)
	default:
		fmt.Fprint(w, "null")
	}
}

// Guarantees that the deployed binary handles the messages of a queue at the limit, each with one call of the target;
// that it deletes those that the target handled, and only those; and that it ends before its time is over.
func TestFunction(t *testing.T) {
	q := sqstest.Start(t)
	target := &lambdas{bodies: map[string]int{}, seconds: map[int64]int{}, paths: map[string]bool{}}
	api := httptest.NewServer(target)
	defer api.Close()
	f := functiontest.Start(t, "http://127.0.0.1:9", map[string]string{
		"AWS_ENDPOINT_URL_SQS": q.Endpoint, "AWS_ENDPOINT_URL_LAMBDA": api.URL,
		"SLUICE_QUEUE": q.URL, "SLUICE_TARGET": "sender", "SLUICE_LIMIT": "20/s",
		"SLUICE_VISIBILITY": "48s", // of the 60 s of a call here, that leaves some seconds for messages
	})
	for i := range 50 {
		q.Send(fmt.Sprint("job ", i))
	}
	q.Send("fails", "reported", "unavailable")
	var counts sqsworker.Counts
	if err := json.Unmarshal([]byte(f.Call(`{}`)), &counts); err != nil ||
		counts != (sqsworker.Counts{Received: 53, Deleted: 50, Failed: 3}) {
		t.Errorf("%+v, %v", counts, err)
	}
	for _, m := range q.Messages() {
		if handled := strings.HasPrefix(m.Body, "job "); m.Received != 1 || m.Deleted != handled ||
			target.bodies[m.Body] != 1 {
			t.Errorf("%+v; the target got it %d times", m, target.bodies[m.Body])
		}
	}
	if !target.paths["/2015-03-31/functions/sender/invocations"] || len(target.paths) != 1 {
		t.Errorf("calls of %v", target.paths)
	}
	// Calls take time, so those of a second's end may arrive in the next one.
	if n := len(target.seconds); n < 3 {
		t.Errorf("53 messages at 20 per second arrived within %d seconds: %v", n, target.seconds)
	}

	q.Refuse("AccessDenied")
	q.Send("more")
	if out, err := f.Try(`{}`); err == nil || !strings.Contains(err.Error(), "SQS answered no call") {
		t.Errorf("with a queue that refuses: %s, %v", out, err)
	}
}

// Guarantees that invalid settings stop the function, with an error that names them.
func TestBadEnvironment(t *testing.T) {
	const queue = "https://sqs.eu-west-1.amazonaws.com/123456789012/jobs"
	for limit, want := range map[string]string{"fast": "is not a limit such as", "0/s": "0 units",
		"10/h": "longer than 1m"} {
		told := functiontest.Start(t, "http://127.0.0.1:9",
			map[string]string{"SLUICE_QUEUE": queue, "SLUICE_TARGET": "sender", "SLUICE_LIMIT": limit}).Refusal()
		if !strings.Contains(told, want) {
			t.Errorf("told %s, want %q", told, want)
		}
	}
}
