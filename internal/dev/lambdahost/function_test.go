//go:build unix

package lambdahost_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambda/messages"
	"github.com/aws/aws-lambda-go/lambdacontext"
	"go.uber.org/goleak"

	"github.com/sluicelimits/sluice/internal/dev/lambdahost"
)

// functionVar, if set, makes the test binary a Lambda function. Its value says what the init of the function does.
const functionVar = "SLUICE_TEST_FUNCTION"

// What the init of a function does.
const (
	ordinary     = "ordinary"
	hangs        = "hangs"
	exits        = "exits"
	fails        = "fails" // reports an error, and exits
	failsOnFile  = "fails while the file is there"
	wantsTerm    = "wants SIGTERM"
	ignoresTerm  = "wants SIGTERM and ignores it"
	listensOnly  = "handles SIGTERM without registering"
	leavesDaemon = "leaves a process behind that holds its output"
	speaksItself = "speaks the Runtime API itself"
)

const fileVar = "SLUICE_TEST_FILE"

func TestMain(m *testing.M) {
	if mode := os.Getenv(functionVar); mode != "" {
		function(mode)
		os.Exit(0)
	}
	if os.Getenv(hostVar) != "" {
		hostUntilKilled()
	}
	goleak.VerifyTestMain(m)
}

func function(mode string) {
	var options []lambda.Option
	switch mode {
	case hangs:
		select {}
	case exits:
		fmt.Fprintln(os.Stdout, "about to exit")
		os.Exit(3)
	case fails:
		failInit()
	case failsOnFile:
		if _, err := os.Stat(os.Getenv(fileVar)); err == nil {
			os.Exit(1)
		}
	case wantsTerm:
		options = append(options, lambda.WithEnableSIGTERM(func() {
			fmt.Fprintln(os.Stdout, "told to end")
			os.Exit(0)
		}))
	case ignoresTerm:
		options = append(options, lambda.WithEnableSIGTERM(func() { fmt.Fprintln(os.Stdout, "told to end") }))
	case listensOnly:
		told := make(chan os.Signal, 1)
		signal.Notify(told, syscall.SIGTERM)
		go func() {
			<-told
			fmt.Fprintln(os.Stdout, "told to end")
		}()
	case leavesDaemon:
		sleep := exec.Command("sleep", "1000")
		sleep.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		sleep.Stdout = os.Stdout
		if err := sleep.Start(); err != nil {
			panic(err)
		}
		fmt.Fprintln(os.Stdout, "daemon", sleep.Process.Pid)
	case speaksItself:
		runRuntime()
	}
	lambda.StartWithOptions(handler{}, options...)
}

// order says what a call wants the function to do.
type order struct {
	Do    string
	URL   string // for "hold": the URL to request before the answer
	Text  string // for "echo" and "print"
	Bytes int    // for "answer": the size of the answer
}

// reply is the answer to "echo" and "hold".
type reply struct {
	Text       string
	PID        int
	RequestID  string
	ARN        string
	Trace      string
	DeadlineMS int64
	Dir        string
	Env        []string
	Payload    int // bytes
}

type handler struct{}

var underWay atomic.Int32

// Invoke is the function's handler. It takes and returns bytes, so that tests can use any payload.
func (handler) Invoke(ctx context.Context, payload []byte) ([]byte, error) {
	if underWay.Add(1) > 1 {
		return nil, errors.New("two calls at once in one environment")
	}
	defer underWay.Add(-1)
	var o order
	if err := json.Unmarshal(payload, &o); err != nil {
		return nil, err
	}
	switch o.Do {
	case "hold":
		res, err := http.Get(o.URL)
		if err != nil {
			return nil, err
		}
		res.Body.Close()
	case "print":
		fmt.Fprintln(os.Stdout, o.Text)
		fmt.Fprintln(os.Stderr, o.Text)
	case "print and exit":
		fmt.Fprint(os.Stdout, o.Text)
		os.Exit(4)
	case "exit well":
		os.Exit(0)
	case "fail":
		return nil, errors.New(o.Text)
	case "fail with type":
		return nil, messages.InvokeResponse_Error{Type: "Mine", Message: o.Text}
	case "panic":
		panic(o.Text)
	case "hang":
		select {}
	case "answer":
		return bytes.Repeat([]byte("a"), o.Bytes), nil
	}
	r := reply{Text: o.Text, PID: os.Getpid(), Env: os.Environ(), Payload: len(payload)}
	if lc, ok := lambdacontext.FromContext(ctx); ok {
		r.RequestID, r.ARN = lc.AwsRequestID, lc.InvokedFunctionArn
	}
	r.Trace = os.Getenv("_X_AMZN_TRACE_ID")
	if d, ok := ctx.Deadline(); ok {
		r.DeadlineMS = d.UnixMilli()
	}
	r.Dir, _ = os.Getwd()
	return json.Marshal(r)
}

func failInit() {
	base := "http://" + os.Getenv("AWS_LAMBDA_RUNTIME_API")
	for _, s := range []step{
		{Path: "/2018-06-01/runtime/init/error", Body: `{"errorMessage":"half`, Truncated: true},
		{Path: "/2018-06-01/runtime/init/error", Body: strings.Repeat("a", 7<<20)},
		{Path: "/2018-06-01/runtime/init/error", Body: `{"errorType":"Mine","errorMessage":"no plans"}`},
		{Path: "/2018-06-01/runtime/init/error", Body: `{"errorType":"Other","errorMessage":"no more"}`},
		{Path: "/2018-06-01/runtime/invocation/next", Method: http.MethodGet},
		{Path: "/2020-01-01/extension/register", Body: `{"events":[]}`},
	} {
		fmt.Fprintln(os.Stdout, s.do(base))
	}
	os.Exit(1)
}

// step is a request to the runtime API that a function without aws-lambda-go makes while it serves a call. In the path,
// {id} is replaced with the id of the call, and {previous} with that of the call before.
type step struct {
	Method, Path string // default method: POST
	Header       map[string]string
	Trailer      map[string]string
	Body         string
	Truncated    bool // close the connection before the end of the body
	Hang         bool // send nothing more
}

// runRuntime is a Lambda runtime without aws-lambda-go. It serves a call by the steps in the call's payload. If the
// payload has no steps, it answers with the statuses that the steps of the call before got.
func runRuntime() {
	base := "http://" + os.Getenv("AWS_LAMBDA_RUNTIME_API")
	statuses, previous := []int{}, ""
	for {
		res, err := http.Get(base + "/2018-06-01/runtime/invocation/next")
		if err != nil {
			panic(err)
		}
		id := res.Header.Get("Lambda-Runtime-Aws-Request-Id")
		var steps []step
		if err := json.NewDecoder(res.Body).Decode(&steps); err != nil {
			panic(err)
		}
		res.Body.Close()
		if len(steps) == 0 {
			text, _ := json.Marshal(statuses)
			report := step{Path: responsePath(id), Body: string(text)}
			report.do(base)
			statuses = []int{}
		}
		for _, s := range steps {
			s.Path = strings.NewReplacer("{id}", id, "{previous}", previous).Replace(s.Path)
			statuses = append(statuses, s.do(base))
		}
		previous = id
	}
}

func responsePath(id string) string { return "/2018-06-01/runtime/invocation/" + id + "/response" }

func (s *step) do(base string) int {
	if s.Hang {
		select {}
	}
	if s.Truncated {
		c, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
		if err != nil {
			panic(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", s.Path, len(s.Body)+1, s.Body)
		_ = c.(*net.TCPConn).CloseWrite()
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return 0
		}
		res.Body.Close()
		return res.StatusCode
	}
	method := s.Method
	if method == "" {
		method = http.MethodPost
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, base+s.Path, io.NopCloser(strings.NewReader(s.Body)))
	if err != nil {
		panic(err)
	}
	for k, v := range s.Header {
		req.Header.Set(k, v)
	}
	req.Trailer = http.Header{}
	for k, v := range s.Trailer {
		req.Trailer.Set(k, v)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		panic(err)
	}
	res.Body.Close()
	return res.StatusCode
}

// hostVar, if set, makes the test binary a host that starts functions and runs until it is killed.
const hostVar = "SLUICE_TEST_HOST"

// hostUntilKilled prints the process ids of a frozen environment and of an environment whose init does not end, one per
// line.
func hostUntilKilled() {
	program, err := os.Executable()
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	for _, mode := range []string{ordinary, hangs} {
		h, err := lambdahost.Start(ctx, lambdahost.Config{
			Binary: program, Env: map[string]string{functionVar: mode}, InitTimeout: time.Hour, Timeout: time.Hour,
			Freeze: true,
			Output: func(lambdahost.Line) {}, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			panic(err)
		}
		if mode == hangs {
			go func() { _, _ = h.Invoke(ctx, []byte(`{}`)) }() // never ends
		} else if _, err := h.Invoke(ctx, []byte(`{}`)); err != nil {
			panic(err)
		}
		for {
			e := h.Stats().Environments
			if len(e) == 1 && e[0].PID != 0 && (mode == hangs || e[0].Frozen) {
				fmt.Fprintln(os.Stdout, e[0].PID)
				break
			}
			runtime.Gosched()
		}
	}
	select {}
}
