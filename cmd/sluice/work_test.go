package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/testkit/logtest"
	"github.com/sluicelimits/sluice/internal/testkit/sqstest"
)

// working runs sluice pace --queue until done reports true, and then interrupts it as SIGTERM does.
func working(t *testing.T, q *sqstest.Queue, done func() bool, args ...string) (stdout, stderr string) {
	t.Helper()
	for name, value := range map[string]string{"AWS_ENDPOINT_URL_SQS": q.Endpoint, "AWS_REGION": "eu-west-1",
		"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true"} {
		t.Setenv(name, value)
	}
	var out, errs logtest.Buffer
	root := newRootCommand()
	root.SetArgs(append([]string{"pace", "--queue", q.URL}, args...))
	root.SetOut(&out)
	root.SetErr(&errs)
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(ctx) }()
	deadline := time.After(time.Minute)
	for !done() {
		select {
		case err := <-ended:
			t.Fatalf("the command ended: %v\n%s", err, errs.String())
		case <-deadline:
			t.Fatalf("the messages were not handled within a minute\n%s", errs.String())
		case <-time.After(10 * time.Millisecond):
		}
	}
	interrupt()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	return out.String(), errs.String()
}

// Guarantees that each message is the standard input of a command, with its id in a variable, and is deleted if the
// command succeeds. If the command fails, the message stays in the queue.
func TestWork(t *testing.T) {
	q := sqstest.Start(t)
	for i := range 20 {
		q.Send(fmt.Sprintf("job %d", i))
	}
	q.Send("bad")
	handled := func() bool {
		return !slices.ContainsFunc(q.Messages(), func(m sqstest.Message) bool {
			return m.Received == 0 || m.Body != "bad" && !m.Deleted
		})
	}
	const script = `body=$(cat); test "$body" != bad && echo "$body as $SLUICE_MESSAGE_ID, $SLUICE_RECEIVE_COUNT"`
	stdout, stderr := working(t, q, handled, "--limit", "1000/s", "--", "sh", "-c", script)
	for i := range 20 {
		if want := fmt.Sprintf("job %d as %d, 1\n", i, i); !strings.Contains(stdout, want) {
			t.Errorf("the output lacks %q: %s", want, stdout)
		}
	}
	for _, m := range q.Messages() {
		if m.Received != 1 || m.Deleted == (m.Body == "bad") {
			t.Errorf("the message of the failed command is %+v", m)
		}
	}
	if !strings.Contains(stderr, "exit status 1") || !strings.HasSuffix(stderr, "20 messages handled, 1 failed\n") {
		t.Errorf("errors: %s", stderr)
	}
}

// Guarantees that when sluice pace --queue is interrupted, the commands that run are finished, and their messages
// deleted.
func TestWorkDrains(t *testing.T) {
	q := sqstest.Start(t)
	q.Send("long")
	begun := func() bool { return q.Messages()[0].Received == 1 }
	stdout, stderr := working(t, q, begun, "--limit", "10/s", "--", "sh", "-c", "sleep 1; cat")
	if m := q.Messages()[0]; !m.Deleted || stdout != "long" {
		t.Errorf("after an interruption the messages are %+v; output %q, errors %q", m, stdout, stderr)
	}
}

// Guarantees that wrong flags are usage errors, and that the region is taken from the URL of a queue.
func TestWorkRefuses(t *testing.T) {
	const queue = "https://sqs.eu-west-1.amazonaws.com/1/jobs"
	for want, args := range map[string][]string{
		"is not the URL":         {"--queue", "jobs", "--limit", "1/s", "--", "true"},
		"the command is missing": {"--queue", queue, "--limit", "1/s"},
		"cannot be run":          {"--queue", queue, "--limit", "1/s", "--", "no-such-command"},
		"--limit is missing":     {"--queue", queue, "--", "true"},
		"is not a limit":         {"--queue", queue, "--limit", "fast", "--", "true"},
		"outside 1..10000":       {"--queue", queue, "--limit", "1/s", "--parallel", "0", "--", "true"},
		"whole seconds":          {"--queue", queue, "--limit", "1/s", "--visibility", "1s", "--", "true"},
		"--drain 0s":             {"--queue", queue, "--limit", "1/s", "--drain", "0s", "--", "true"},
		"need each other":        {"--queue", queue, "--limit", "1/s", "--name", "a", "--", "true"},
	} {
		if got := sluice(t, "", append([]string{"pace"}, args...)...); got.code != exitUsage ||
			!strings.Contains(got.stderr, want) {
			t.Errorf("%q: exit code %d, %q; want %d and %q", args, got.code, got.stderr, exitUsage, want)
		}
	}
	for url, want := range map[string]string{queue: "eu-west-1", "http://127.0.0.1:4566/1/jobs": "",
		"https://sqs.cn-north-1.amazonaws.com.cn/1/jobs": "cn-north-1"} {
		if got := queueRegion(url); got != want {
			t.Errorf("the region of %s is %q, want %q", url, got, want)
		}
	}
}
