package localstack_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	lambdatypes "github.com/aws/aws-sdk-go-v2/service/lambda/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sluicelimits/sluice/localstack/stand"
)

// targetProgram is a function that posts each event to a URL, and fails if the answer is not 200.
const targetProgram = `#!%s
import os, urllib.error, urllib.request
api = "http://" + os.environ["AWS_LAMBDA_RUNTIME_API"] + "/2018-06-01/runtime/invocation/"
while True:
    with urllib.request.urlopen(api + "next") as call:
        number, event = call.headers["Lambda-Runtime-Aws-Request-Id"], call.read()
    try:
        urllib.request.urlopen(os.environ["TOLD"], event)
        urllib.request.urlopen(api + number + "/response", b"null")
    except urllib.error.HTTPError:
        urllib.request.urlopen(api + number + "/error", b'{"errorType":"Poison","errorMessage":"it makes no sense"}')
`

// handling is a message that the target got.
type handling struct {
	body    string
	receive int // SQS's count of its receives
	second  int64
}

// toldTarget answers the target, and notes what it got.
type toldTarget struct {
	mu  sync.Mutex
	all []handling
}

func (l *toldTarget) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var event struct {
		Records []struct {
			Body       string            `json:"body"`
			Attributes map[string]string `json:"attributes"`
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&event); err != nil || len(event.Records) != 1 {
		http.Error(w, "one record is wanted", http.StatusBadRequest)
		return
	}
	one := event.Records[0]
	receive, _ := strconv.Atoi(one.Attributes["ApproximateReceiveCount"])
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, handling{one.Body, receive, time.Now().Unix()})
	if one.Body == "poison" {
		http.Error(w, "poison", http.StatusUnprocessableEntity)
	}
}

// Guarantees that the deployed zip of a worker has the messages of LocalStack's SQS handled by another function through
// LocalStack's Lambda: healthy ones once each, at their first receive, though most of them wait for longer than the
// visibility timeout; and that a message that always fails becomes a dead letter by the queue's redrive policy. It
// needs no deployment, and a LocalStack whose functions reach this machine.
func TestWorker(t *testing.T) {
	s, err := stand.Open(t.Context(), options(t))
	if err != nil {
		t.Fatal(err)
	}
	const region, messages, perSecond, receives = "eu-west-1", 100, 5, 2
	queues, functions := sqs.NewFromConfig(s.AWS(region)), lambda.NewFromConfig(s.AWS(region))
	dead, deadARN := newQueue(t, queues, unique("dead"), nil)
	jobs, _ := newQueue(t, queues, unique("jobs"), map[string]string{"RedrivePolicy": fmt.Sprintf(
		`{"deadLetterTargetArn":%q,"maxReceiveCount":%d}`, deadARN, receives)})
	told := &toldTarget{}
	here := httptest.NewServer(told)
	defer here.Close()
	target, worker := unique("target"), unique("worker")
	newLambda(t, functions, target, targetZip(t), map[string]string{"TOLD": here.URL})
	newLambda(t, functions, worker, workerZip(t), map[string]string{"SLUICE_QUEUE": jobs, "SLUICE_TARGET": target,
		"SLUICE_LIMIT": fmt.Sprint(perSecond, "/s"), "SLUICE_VISIBILITY": "10s"})
	send := func(bodies ...string) {
		var entries []sqstypes.SendMessageBatchRequestEntry
		for i := range bodies {
			entries = append(entries, sqstypes.SendMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)),
				MessageBody: &bodies[i]})
		}
		if out, err := queues.SendMessageBatch(t.Context(), &sqs.SendMessageBatchInput{QueueUrl: &jobs,
			Entries: entries}); err != nil || len(out.Failed) > 0 {
			t.Fatal(err, out)
		}
	}
	send("poison")
	for i := 0; i < messages; i += 10 {
		var ten []string
		for j := range 10 {
			ten = append(ten, fmt.Sprint("job ", i+j))
		}
		send(ten...)
	}
	// The schedule's call, which does not wait for its end: it lasts for 45 s.
	if _, err := functions.Invoke(t.Context(), &lambda.InvokeInput{FunctionName: &worker,
		InvocationType: lambdatypes.InvocationTypeEvent, Payload: []byte(`{}`)}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func(ctx context.Context) error {
		told.mu.Lock()
		n := len(told.all)
		told.mu.Unlock()
		if n < messages+receives {
			return fmt.Errorf("the target got %d messages, want %d", n, messages+receives)
		}
		out, err := queues.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &dead, VisibilityTimeout: 1})
		if err == nil && (len(out.Messages) != 1 || *out.Messages[0].Body != "poison") {
			err = errors.New("the message that always fails is not in the dead-letter queue yet")
		}
		return err
	})
	told.mu.Lock()
	defer told.mu.Unlock()
	times, first, last := map[string]int{}, told.all[0].second, int64(0)
	for _, a := range told.all {
		times[a.body]++
		last = max(last, a.second)
		if a.body != "poison" && a.receive != 1 {
			t.Errorf("%s was handled at its receive %d, want 1", a.body, a.receive)
		}
	}
	for i := range messages {
		if n := times[fmt.Sprint("job ", i)]; n != 1 {
			t.Errorf("job %d was handled %d times", i, n)
		}
	}
	if n := times["poison"]; n != receives {
		t.Errorf("the message that fails was tried %d times, want %d", n, receives)
	}
	// The target's start is not the worker's doing, so single seconds are not compared.
	if least := int64(messages/perSecond - 3); last-first < least {
		t.Errorf("%d messages at %d per second took %d s", messages, perSecond, last-first)
	}
	t.Logf("%d messages in %d s", len(told.all), last-first)
}

func newQueue(t *testing.T, c *sqs.Client, name string, attributes map[string]string) (url, arn string) {
	t.Helper()
	made, err := c.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: &name, Attributes: attributes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = c.DeleteQueue(context.Background(), &sqs.DeleteQueueInput{QueueUrl: made.QueueUrl})
	})
	got, err := c.GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{QueueUrl: made.QueueUrl,
		AttributeNames: []sqstypes.QueueAttributeName{sqstypes.QueueAttributeNameQueueArn}})
	if err != nil {
		t.Fatal(err)
	}
	return *made.QueueUrl, got.Attributes["QueueArn"]
}

func newLambda(t *testing.T, c *lambda.Client, name string, code []byte, variables map[string]string) {
	t.Helper()
	architecture := lambdatypes.ArchitectureX8664
	if runtime.GOARCH == "arm64" {
		architecture = lambdatypes.ArchitectureArm64
	}
	if _, err := c.CreateFunction(t.Context(), &lambda.CreateFunctionInput{
		FunctionName: &name, Runtime: lambdatypes.RuntimeProvidedal2023, Handler: aws.String("bootstrap"),
		Role: aws.String("arn:aws:iam::000000000000:role/any"), Code: &lambdatypes.FunctionCode{ZipFile: code},
		Architectures: []lambdatypes.Architecture{architecture}, Timeout: aws.Int32(60),
		Environment: &lambdatypes.Environment{Variables: variables},
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = c.DeleteFunction(context.Background(), &lambda.DeleteFunctionInput{FunctionName: &name})
	})
	waitFor(t, func(ctx context.Context) error {
		out, err := c.GetFunctionConfiguration(ctx, &lambda.GetFunctionConfigurationInput{FunctionName: &name})
		if err == nil && out.State != lambdatypes.StateActive {
			err = fmt.Errorf("%s is %s: %s", name, out.State, aws.ToString(out.StateReason))
		}
		return err
	})
}

// workerZip builds the worker as make lambdas does.
func workerZip(t *testing.T) []byte {
	t.Helper()
	folder := t.TempDir()
	build := exec.CommandContext(t.Context(), "../scripts/lambdas", "worker")
	build.Env = append(os.Environ(), "ARCH="+runtime.GOARCH, "SLUICE_LAMBDAS="+folder)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("scripts/lambdas: %v\n%s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(folder, "worker.zip"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func targetZip(t *testing.T) []byte {
	t.Helper()
	python, err := exec.CommandContext(t.Context(), "python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Fatalf("python3: %v", err)
	}
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	h := &zip.FileHeader{Name: "bootstrap"}
	h.SetMode(0o755)
	f, err := z.CreateHeader(h)
	if err == nil {
		_, err = fmt.Fprintf(f, targetProgram, strings.TrimSpace(string(python)))
	}
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
