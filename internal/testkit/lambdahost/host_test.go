//go:build unix

package lambdahost_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"
	"go.uber.org/goleak"

	"github.com/sluicelimits/sluice/internal/testkit/lambdahost"
)

// functionVar, if set, makes the test binary a Lambda function. Its value says what the init of the function does.
const functionVar = "SLUICE_TEST_FUNCTION"

func TestMain(m *testing.M) {
	switch os.Getenv(functionVar) {
	case "":
		goleak.VerifyTestMain(m)
	case "hangs":
		select {}
	case "exits":
		os.Exit(3)
	case "fails":
		text := strings.NewReader(`{"errorType":"Sluice.Configuration","errorMessage":"no table"}`)
		res, err := http.Post("http://"+os.Getenv("AWS_LAMBDA_RUNTIME_API")+"/2018-06-01/runtime/init/error", "", text)
		if err == nil {
			_ = res.Body.Close()
		}
		os.Exit(1)
	case "wants SIGTERM":
		lambda.StartWithOptions(function, lambda.WithEnableSIGTERM(func() {
			fmt.Println("told to end")
			os.Exit(0)
		}))
	default:
		lambda.Start(function)
	}
}

// order says what a call wants the function to do.
type order struct {
	Do, URL string
}

// reply is the answer of the function.
type reply struct {
	PID             int
	API, ARN, Trace string
	Env             []string
}

func function(ctx context.Context, o order) (*reply, error) {
	switch o.Do {
	case "error":
		return nil, errors.New("Unauthorized") //nolint:staticcheck // the text that API Gateway expects
	case "exit":
		os.Exit(4)
	case "hang":
		select {}
	case "print":
		fmt.Println("first\r\nsecond")
	case "hold":
		res, err := http.Get(o.URL)
		if err != nil {
			return nil, err
		}
		_ = res.Body.Close()
	}
	c, _ := lambdacontext.FromContext(ctx)
	return &reply{os.Getpid(), os.Getenv("AWS_LAMBDA_RUNTIME_API"), c.InvokedFunctionArn,
		os.Getenv("_X_AMZN_TRACE_ID"), os.Environ()}, nil
}

// host is a host whose function is this test binary, and the lines that the function has written.
type host struct {
	*lambdahost.Host
	t *testing.T

	mu    sync.Mutex
	lines []string
}

// start starts a host. Its time limits are long; a test that waits for one of them sets it.
func start(t *testing.T, mode string, set func(*lambdahost.Config)) *host {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t}
	c := lambdahost.Config{Binary: program, Name: "tested", InitTimeout: time.Minute, Timeout: time.Minute,
		Env: map[string]string{functionVar: mode, "GORACE": "atexit_sleep_ms=0", "GOCOVERDIR": t.TempDir()},
		Log: slog.New(slog.DiscardHandler), Output: func(l lambdahost.Line) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.lines = append(h.lines, l.Text)
		}}
	if set != nil {
		set(&c)
	}
	if h.Host, err = lambdahost.Start(context.Background(), c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.end)
	return h
}

// end closes the host, which must leave no process.
func (h *host) end() {
	h.t.Helper()
	if err := h.Close(context.Background()); err != nil {
		h.t.Error(err)
	}
	if s := h.Stats(); len(s.Environments) > 0 {
		h.t.Errorf("after Close there are %+v", s.Environments)
	}
}

func (h *host) wrote(text string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Contains(h.lines, text)
}

func (h *host) call(o order) (r reply, err error) {
	payload, err := json.Marshal(o)
	if err != nil {
		return r, err
	}
	text, err := h.Invoke(context.Background(), payload)
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(text, &r)
}

// served returns the answer of a call that must succeed.
func (h *host) served(o order) reply {
	h.t.Helper()
	r, err := h.call(o)
	if err != nil {
		h.t.Fatalf("%+v: %v", o, err)
	}
	return r
}

// Guarantees that a function gets what Lambda tells it, and none of the variables of the host.
func TestFunctionSeesWhatLambdaTells(t *testing.T) {
	t.Setenv("SLUICE_NOT_FOR_FUNCTIONS", "1")
	r := start(t, "ordinary", func(c *lambdahost.Config) { c.MemoryMB = 256 }).served(order{})
	for _, want := range []string{"AWS_LAMBDA_FUNCTION_NAME=tested", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE=256",
		"AWS_REGION=us-east-1", functionVar + "=ordinary"} {
		if !slices.Contains(r.Env, want) {
			t.Errorf("the function's environment lacks %s", want)
		}
	}
	if slices.Contains(r.Env, "SLUICE_NOT_FOR_FUNCTIONS=1") || !strings.HasSuffix(r.ARN, ":function:tested") ||
		!strings.HasPrefix(r.Trace, "Root=1-") {
		t.Errorf("the function sees %+v", r)
	}
}

// Guarantees that no more environments run than are allowed, that other calls wait, and that an environment is used
// again.
func TestEnvironmentsAreStartedUpToTheBound(t *testing.T) {
	h := start(t, "ordinary", func(c *lambdahost.Config) { c.Environments, c.Freeze = 2, true })
	if first := h.served(order{}); h.served(order{}).PID != first.PID {
		t.Error("a second call got another environment though the first one was idle")
	}
	held, release := make(chan struct{}, 9), make(chan struct{})
	gate := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		held <- struct{}{}
		<-release
	}))
	defer gate.Close()
	pids := make(chan int, 9)
	for range 9 {
		go func() {
			r, err := h.call(order{Do: "hold", URL: gate.URL})
			if err != nil {
				t.Error(err)
			}
			pids <- r.PID
		}()
	}
	<-held
	<-held
	if n := len(h.Stats().Environments); n != 2 {
		t.Errorf("%d environments serve nine calls, want 2", n)
	}
	close(release)
	seen := map[int]bool{}
	for range 9 {
		seen[<-pids] = true
	}
	if len(seen) != 2 {
		t.Errorf("the calls were served by the processes %v, want two", seen)
	}
}

// Guarantees that a call which fails says how, and that the next call gets an environment that works.
func TestFailures(t *testing.T) {
	for _, c := range []struct {
		mode, do  string
		kind      lambdahost.Kind
		typ, says string
		works     bool // the next call succeeds
		set       func(*lambdahost.Config)
		lost      int
	}{
		{"ordinary", "error", lambdahost.Reported, "errorString", "Unauthorized", true, nil, 0},
		{"ordinary", "exit", lambdahost.Ended, "Runtime.ExitError", "exit status 4", true, nil, 1},
		{"ordinary", "hang", lambdahost.Ended, "Sandbox.Timedout", "timed out after 3s", true,
			func(c *lambdahost.Config) { c.Timeout = 3 * time.Second }, 1},
		{"exits", "", lambdahost.InitFailed, "Runtime.ExitError", "exit status 3", false, nil, 0},
		{"fails", "", lambdahost.InitFailed, "Sluice.Configuration", "no table", false, nil, 0},
		{"hangs", "", lambdahost.InitFailed, "Sandbox.Timedout", "Init timed out", false,
			func(c *lambdahost.Config) { c.InitTimeout = time.Millisecond }, 0},
		// the time is over before the process has begun
		{"hangs", "", lambdahost.InitFailed, "Sandbox.Timedout", "Init timed out", false,
			func(c *lambdahost.Config) { c.InitTimeout = time.Nanosecond }, 0},
	} {
		h := start(t, c.mode, c.set)
		_, err := h.call(order{Do: c.do})
		var e *lambdahost.Error
		if !errors.As(err, &e) || e.Kind != c.kind || e.Type != c.typ || !strings.Contains(e.Message, c.says) {
			t.Errorf("%s, %s: %+v, want kind %d, %s: %s", c.mode, c.do, err, c.kind, c.typ, c.says)
		}
		if c.works {
			h.served(order{})
		}
		if h.end(); h.Stats().Lost != c.lost {
			t.Errorf("%s, %s: %+v, want %d lost", c.mode, c.do, h.Stats(), c.lost)
		}
	}
}

// Guarantees that a host which is closed lets calls end, ends functions by SIGTERM if they asked for that, and takes no
// further call.
func TestClose(t *testing.T) {
	for _, freeze := range []bool{false, true} {
		for mode, told := range map[string]bool{"ordinary": false, "wants SIGTERM": true} {
			h := start(t, mode, func(c *lambdahost.Config) { c.Freeze, c.Grace = freeze, time.Minute })
			h.served(order{Do: "print"})
			h.end()
			if h.wrote("told to end") != told || !h.wrote("first") || !h.wrote("second") {
				t.Errorf("%s, frozen: %v: the function wrote %q", mode, freeze, h.lines)
			}
			if _, err := h.call(order{}); !errors.Is(err, lambdahost.ErrClosed) {
				t.Errorf("a call after Close: %v", err)
			}
		}
	}
	h := start(t, "ordinary", nil)
	held, ended := make(chan struct{}), make(chan error, 1)
	gate := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(held)
		<-r.Context().Done()
	}))
	defer gate.Close()
	go func() {
		_, err := h.call(order{Do: "hold", URL: gate.URL})
		ended <- err
	}()
	<-held
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := h.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close that cannot wait: %v", err)
	}
	if err := <-ended; err == nil {
		t.Error("a call of a process that was killed has no error")
	}
}
