//go:build unix

package lambdahost_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sluicelimits/sluice/internal/dev/lambdahost"
)

// lines collects what functions wrote to their output.
type lines struct {
	mu  sync.Mutex
	all []lambdahost.Line
}

func (l *lines) add(line lambdahost.Line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, line)
}

func (l *lines) texts() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var texts []string
	for _, line := range l.all {
		texts = append(texts, line.Text)
	}
	return texts
}

func (l *lines) removeAll() []lambdahost.Line {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.all
	l.all = nil
	return all
}

func (l *lines) hasLine(text string) func() bool {
	return func() bool { return slices.Contains(l.texts(), text) }
}

// start starts a host whose function is this test binary, and closes it when the test ends. Its time limits are long; a
// test that waits for one of them sets it.
func start(t *testing.T, mode string, set func(*lambdahost.Config)) *lambdahost.Host {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := lambdahost.Config{
		Binary: program, Name: "tested",
		Env: map[string]string{
			functionVar: mode, "GORACE": "atexit_sleep_ms=0", // an exit must not take a second
			"GOCOVERDIR": t.TempDir(), // without it, programs built for go test -cover write a warning
		},
		InitTimeout: time.Minute, Timeout: time.Minute, Output: func(lambdahost.Line) {},
		Log: slog.New(slog.DiscardHandler),
	}
	if set != nil {
		set(&c)
	}
	h, err := lambdahost.Start(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(context.Background()); err != nil {
			t.Errorf("Close = %v", err)
		}
		if s := h.Stats(); len(s.Environments) > 0 {
			t.Errorf("after Close there are %+v", s.Environments)
		}
	})
	return h
}

func invoke(h *lambdahost.Host, o order) (reply, error) {
	payload, err := json.Marshal(o)
	if err != nil {
		return reply{}, err
	}
	text, err := h.Invoke(context.Background(), payload)
	if err != nil {
		return reply{}, err
	}
	var r reply
	err = json.Unmarshal(text, &r)
	return r, err
}

// served returns the answer of a call that must succeed.
func served(t *testing.T, h *lambdahost.Host, o order) reply {
	t.Helper()
	r, err := invoke(h, o)
	if err != nil {
		t.Fatalf("Invoke(%+v) = %v", o, err)
	}
	return r
}

// failed fails the test unless err is an error of a function with this kind, type and message.
func failed(t *testing.T, err error, kind lambdahost.Kind, typ, message string) {
	t.Helper()
	var e *lambdahost.Error
	if !errors.As(err, &e) || e.Kind != kind || e.Type != typ || !strings.Contains(e.Message, message) {
		t.Fatalf("error = %+v, want kind %q, type %s and %q in the message", err, kind, typ, message)
	}
	if text := err.Error(); !strings.Contains(text, kind.String()+": "+typ+": ") {
		t.Errorf("Error() = %q, want kind %q and type %s in it", text, kind, typ)
	}
	if !uuid.MatchString(e.RequestID) {
		t.Errorf("request id of the error = %q", e.RequestID)
	}
}

// failure returns the *lambdahost.Error of a call that must fail in the function.
func failure(t *testing.T, err error) *lambdahost.Error {
	t.Helper()
	var e *lambdahost.Error
	if !errors.As(err, &e) {
		t.Fatalf("error = %v, want a *lambdahost.Error", err)
	}
	return e
}

// eventually waits until cond holds, for a minute at most.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	late := time.After(time.Minute)
	for !cond() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("after a minute it is still not true that %s", what)
		}
	}
}

func hasIdle(h *lambdahost.Host, n int) func() bool {
	return func() bool {
		all := h.Stats().Environments
		return len(all) == n && !slices.ContainsFunc(all, func(e lambdahost.Environment) bool { return !e.Idle })
	}
}

// gate is a server that functions with the order "hold" call and wait for.
type gate struct {
	*httptest.Server
	arrived chan struct{} // receives once for each function that waits
	open    chan struct{} // each value sent lets one function continue
}

func newGate(t *testing.T) *gate {
	g := &gate{arrived: make(chan struct{}), open: make(chan struct{})}
	ended := make(chan struct{})
	g.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case g.arrived <- struct{}{}:
		case <-ended:
			return
		}
		select {
		case <-g.open:
		case <-r.Context().Done():
		case <-ended:
		}
	}))
	t.Cleanup(func() {
		close(ended)
		g.Close()
	})
	return g
}

// result is the outcome of a call in the background.
type result struct {
	reply
	err error
}

// startBlockedCall begins a call in the background and returns when the function is serving it.
func (g *gate) startBlockedCall(h *lambdahost.Host) <-chan result {
	ended := startCall(h, order{Do: "hold", URL: g.URL})
	<-g.arrived
	return ended
}

func startCall(h *lambdahost.Host, o order) <-chan result {
	ended := make(chan result, 1)
	go func() {
		r, err := invoke(h, o)
		ended <- result{r, err}
	}()
	return ended
}

var (
	uuid  = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	trace = regexp.MustCompile(`^Root=1-[0-9a-f]{8}-[0-9a-f]{24};Parent=[0-9a-f]{16};Sampled=0$`)
)

// Guarantees that a function gets the environment variables and the context that Lambda sets, and none of the host's
// own variables.
func TestFunctionSeesWhatLambdaTells(t *testing.T) {
	t.Setenv("SLUICE_TEST_SECRET", "of the parent")
	h := start(t, ordinary, func(c *lambdahost.Config) {
		c.MemoryMB, c.Env["AWS_REGION"], c.Env["STAGE"] = 512, "eu-central-1", "dev"
	})
	before := time.Now()
	r := served(t, h, order{Do: "echo", Text: "hello"})
	if r.Text != "hello" || !uuid.MatchString(r.RequestID) || !trace.MatchString(r.Trace) ||
		r.ARN != "arn:aws:lambda:eu-central-1:000000000000:function:tested" {
		t.Errorf("the function sees %+v", r)
	}
	if least := before.Add(time.Minute).UnixMilli(); r.DeadlineMS < least ||
		r.DeadlineMS > time.Now().Add(time.Minute).UnixMilli() {
		t.Errorf("deadline %d, want a minute after the call, from %d", r.DeadlineMS, least)
	}
	for _, want := range []string{
		"AWS_LAMBDA_FUNCTION_NAME=tested", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE=512", "AWS_REGION=eu-central-1",
		"AWS_LAMBDA_FUNCTION_VERSION=$LATEST", "LAMBDA_TASK_ROOT=" + r.Dir, "STAGE=dev",
		"AWS_LAMBDA_LOG_STREAM_NAME=[$LATEST]1",
	} {
		if !slices.Contains(r.Env, want) {
			t.Errorf("the function's environment lacks %s: %q", want, r.Env)
		}
	}
	if slices.Contains(r.Env, "SLUICE_TEST_SECRET=of the parent") {
		t.Error("the function sees the environment of the host")
	}
	s := h.Stats()
	if len(s.Environments) != 1 || s.Environments[0].PID != r.PID || s.Environments[0].Init <= 0 ||
		s.Environments[0].Calls != 1 {
		t.Errorf("Stats = %+v, want one environment, with a duration of its init and process id %d", s, r.PID)
	}
}

// Guarantees that the trace id that a caller passes on reaches the function.
func TestCallerGivesTraceID(t *testing.T) {
	h := start(t, ordinary, nil)
	const id = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
	text, err := h.Invoke(lambdahost.WithTraceID(context.Background(), id), []byte(`{}`))
	var r reply
	if err := errors.Join(err, json.Unmarshal(text, &r)); err != nil || r.Trace != id {
		t.Errorf("trace id = %q, %v; want %q", r.Trace, err, id)
	}
}

// Guarantees that one environment serves one call at a time, that more are started up to the bound, and that a call
// above it is refused if there is no queue.
func TestEnvironmentsAreStartedUpToTheBound(t *testing.T) {
	h, g := start(t, ordinary, func(c *lambdahost.Config) { c.Environments = 2 }), newGate(t)
	a, b := g.startBlockedCall(h), g.startBlockedCall(h)
	if r, err := invoke(h, order{}); !errors.Is(err, lambdahost.ErrThrottled) {
		t.Errorf("a third call = %+v, %v; want ErrThrottled", r, err)
	}
	g.open <- struct{}{}
	g.open <- struct{}{}
	x, y := <-a, <-b
	if x.err != nil || y.err != nil || x.PID == y.PID {
		t.Errorf("two calls at once = %v in process %d and %v in %d, want two processes", x.err, x.PID, y.err, y.PID)
	}
}

// Guarantees that the environment that served last is used first, as on Lambda. The others stay idle, and Lambda would
// end them: their leases have to survive that.
func TestLastUsedEnvironmentIsFirst(t *testing.T) {
	h := start(t, ordinary, func(c *lambdahost.Config) { c.Environments = 2 })
	first, second := newGate(t), newGate(t)
	a, b := first.startBlockedCall(h), second.startBlockedCall(h)
	for _, last := range []struct {
		early, late *gate
		a, b        <-chan result
	}{{first, second, a, b}, {nil, nil, nil, nil}} {
		if last.early == nil { // the other call was served last
			a, b = first.startBlockedCall(h), second.startBlockedCall(h)
			last.early, last.late, last.a, last.b = second, first, b, a
		}
		last.early.open <- struct{}{}
		early := <-last.a
		eventually(t, "the first is idle", func() bool {
			return slices.ContainsFunc(h.Stats().Environments, func(e lambdahost.Environment) bool { return e.Idle })
		})
		last.late.open <- struct{}{}
		late := <-last.b
		eventually(t, "both are idle", hasIdle(h, 2))
		for range 3 {
			if r := served(t, h, order{}); r.PID != late.PID || r.PID == early.PID {
				t.Errorf("served by %d, want %d, the last used", r.PID, late.PID)
			}
			eventually(t, "both are idle", hasIdle(h, 2))
		}
	}
}

// Guarantees that up to Config.Queue calls wait for a free environment, that a further one is refused, and that a
// caller who stops waiting is not served.
func TestQueueLetsCallsWait(t *testing.T) {
	h, g := start(t, ordinary, func(c *lambdahost.Config) { c.Queue = 1 }), newGate(t)
	held := g.startBlockedCall(h)

	ctx, leave := context.WithCancel(context.Background())
	left := make(chan error)
	go func() {
		_, err := h.Invoke(ctx, []byte(`{}`))
		left <- err
	}()
	eventually(t, "it waits", func() bool { return h.Stats().Waiting == 1 })
	if r, err := invoke(h, order{}); !errors.Is(err, lambdahost.ErrThrottled) {
		t.Errorf("a call above the queue's size = %+v, %v; want ErrThrottled", r, err)
	}
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("a call that stops waiting = %v, want context.Canceled", err)
	}

	waits := startCall(h, order{Text: "waited"})
	eventually(t, "another waits", func() bool { return h.Stats().Waiting == 1 })
	g.open <- struct{}{}
	if r := <-held; r.err != nil {
		t.Error(r.err)
	}
	if r := <-waits; r.err != nil || r.Text != "waited" {
		t.Errorf("a call that waited got %+v", r)
	}
	if s := h.Stats(); s.Started != 1 || s.Environments[0].Calls != 2 {
		t.Errorf("Stats = %+v, want one environment that was given two calls: the call that stopped waiting is not "+
			"served", s)
	}
}

// Guarantees that concurrent callers all get the answer to their own call. The function panics if two calls reach one
// environment at the same time.
func TestManyCallersAtOnce(t *testing.T) {
	const callers, each, environments = 20, 10, 4
	h := start(t, ordinary, func(c *lambdahost.Config) { c.Environments, c.Queue = environments, callers })
	var all sync.WaitGroup
	for n := range callers {
		all.Go(func() {
			for k := range each {
				text := fmt.Sprint(n, k)
				if r, err := invoke(h, order{Text: text}); err != nil || r.Text != text {
					t.Errorf("call %s = %q, %v", text, r.Text, err)
				}
			}
		})
	}
	all.Wait()
	s := h.Stats()
	calls := 0
	for _, e := range s.Environments {
		calls += e.Calls
	}
	if calls != callers*each || s.Started > environments || s.Exits > 0 {
		t.Errorf("Stats = %+v, want %d calls in at most %d environments", s, callers*each, environments)
	}
}

// Guarantees that sequential calls are not refused and start no second environment, although an environment asks for
// its next call only some time after its answer.
func TestNextCallWaitsForThePollAfterAnAnswer(t *testing.T) {
	for _, environments := range []int{1, 2} {
		h := start(t, ordinary, func(c *lambdahost.Config) { c.Environments = environments })
		for range 200 {
			served(t, h, order{})
		}
		if s := h.Stats(); s.Started != 1 {
			t.Errorf("Stats = %+v, want one environment", s)
		}
	}
}

// Guarantees that a call whose environment is killed fails, and that the next call gets a new environment.
func TestKilledInMidCall(t *testing.T) {
	h, g := start(t, ordinary, func(c *lambdahost.Config) { c.Environments = 2 }), newGate(t)
	held := g.startBlockedCall(h)
	pid := h.Stats().Environments[0].PID
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	failed(t, (<-held).err, lambdahost.Exited, lambdahost.TypeExit, "Runtime exited with error: signal: killed")
	if r := served(t, h, order{}); r.PID == pid {
		t.Errorf("the call was served by process %d, which had been killed", r.PID)
	}
	if s := h.Stats(); s.Started != 2 || s.Exits != 1 || s.InitErrors != 0 {
		t.Errorf("Stats = %+v, want two started, one of which ended by itself", s)
	}
}

// Guarantees that an environment that was killed while idle gets no further call.
func TestKilledWhileIdle(t *testing.T) {
	h := start(t, ordinary, nil)
	pid := served(t, h, order{}).PID
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its end is noticed", func() bool { return len(h.Stats().Environments) == 0 })
	if r := served(t, h, order{}); r.PID == pid {
		t.Errorf("the call was served by process %d, which had been killed", r.PID)
	}
}

// Guarantees that a call whose function exits fails, and that what the function wrote before has arrived by then.
func TestEndsInMidCall(t *testing.T) {
	out := new(lines)
	h := start(t, ordinary, func(c *lambdahost.Config) { c.Output = out.add })
	_, err := invoke(h, order{Do: "exit well"})
	failed(t, err, lambdahost.Exited, lambdahost.TypeExit, "without providing a reason")
	_, err = invoke(h, order{Do: "print and exit", Text: "last words"})
	failed(t, err, lambdahost.Exited, lambdahost.TypeExit, "exit status 4")
	e := failure(t, err)
	want := lambdahost.Line{Environment: 2, RequestID: e.RequestID, Text: "last words"}
	if got := out.removeAll(); !slices.Contains(got, want) { // it must have arrived before Invoke returned
		t.Errorf("output = %+v, want %+v", got, want)
	}
}

// Guarantees the text and the document of an error that a function returns, that the text of a long one is cut, and
// that the environment goes on.
func TestFunctionError(t *testing.T) {
	h := start(t, ordinary, nil)
	pid := served(t, h, order{}).PID
	_, err := invoke(h, order{Do: "fail", Text: "no store"})
	failed(t, err, lambdahost.Reported, "errorString", "no store")
	e := failure(t, err)
	if text := err.Error(); !strings.Contains(text, "function error: errorString: no store") ||
		!strings.Contains(text, e.RequestID) {
		t.Errorf("Error() = %q", text)
	}
	if !json.Valid(e.Document) {
		t.Errorf("Document = %q", e.Document)
	}
	_, err = invoke(h, order{Do: "fail", Text: strings.Repeat("ä", 10<<10)})
	if text := err.Error(); len(text) > 2<<10 || !utf8.ValidString(text) || len(failure(t, err).Message) != 20<<10 {
		t.Errorf("Error() of a long message has %d bytes: %q", len(text), text)
	}
	_, err = invoke(h, order{Do: "fail with type", Text: "a word"})
	failed(t, err, lambdahost.Reported, "Mine", "a word")
	if r := served(t, h, order{}); r.PID != pid {
		t.Errorf("after an error the next call was served by process %d, want the same one, %d", r.PID, pid)
	}
}

// Guarantees that a panic is reported as the error of the call, and that its process gets no further call.
func TestPanicIsReportedAndTheProcessReplaced(t *testing.T) {
	h := start(t, ordinary, nil)
	pid := served(t, h, order{}).PID
	_, err := invoke(h, order{Do: "panic", Text: "oh"})
	failed(t, err, lambdahost.Reported, "string", "oh")
	if r := served(t, h, order{}); r.PID == pid {
		t.Errorf("the call was served by process %d, which should have ended after its panic", pid)
	}
}

// Guarantees that an environment whose call exceeds the timeout is killed.
func TestTimeoutKillsTheEnvironment(t *testing.T) {
	h := start(t, ordinary, func(c *lambdahost.Config) { c.Timeout = 50 * time.Millisecond })
	for range 2 {
		_, err := invoke(h, order{Do: "hang"})
		failed(t, err, lambdahost.TimedOut, lambdahost.TypeTimeout, "Task timed out after 0.05 seconds")
	}
	if s := h.Stats(); s.Started != 2 || s.Timeouts != 2 || s.Exits != 0 || len(s.Environments) != 0 {
		t.Errorf("Stats = %+v, want two environments that were killed", s)
	}
}

// Guarantees that an environment whose process was stopped from outside is killed after the timeout.
func TestStoppedInMidCall(t *testing.T) {
	h, g := start(t, ordinary, func(c *lambdahost.Config) { c.Timeout = 500 * time.Millisecond }), newGate(t)
	for {
		held := startCall(h, order{Do: "hold", URL: g.URL})
		select {
		case <-g.arrived:
		case r := <-held: // the call timed out before the process was stopped
			failed(t, r.err, lambdahost.TimedOut, lambdahost.TypeTimeout, "timed out")
			continue
		}
		if all := h.Stats().Environments; len(all) == 1 && all[0].PID != 0 {
			_ = syscall.Kill(all[0].PID, syscall.SIGSTOP) // fails if the call has timed out meanwhile
		}
		failed(t, (<-held).err, lambdahost.TimedOut, lambdahost.TypeTimeout, "timed out")
		return
	}
}

// Guarantees that a call whose caller leaves keeps its environment busy until the function has answered, as on Lambda.
func TestCallerLeavesAndTheFunctionGoesOn(t *testing.T) {
	h, g := start(t, ordinary, nil), newGate(t)
	ctx, leave := context.WithCancel(context.Background())
	left := make(chan error)
	payload, _ := json.Marshal(order{Do: "hold", URL: g.URL})
	go func() {
		_, err := h.Invoke(ctx, payload)
		left <- err
	}()
	<-g.arrived
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("Invoke whose context ended = %v, want context.Canceled", err)
	}
	if _, err := invoke(h, order{}); !errors.Is(err, lambdahost.ErrThrottled) {
		t.Errorf("Invoke while the function is still busy = %v, want ErrThrottled", err)
	}
	g.open <- struct{}{}
	eventually(t, "the function has ended the call", hasIdle(h, 1))
	served(t, h, order{})
	if s := h.Stats(); s.Started != 1 || s.Environments[0].Calls != 2 {
		t.Errorf("Stats = %+v, want one environment and two calls", s)
	}
	if _, err := h.Invoke(ctx, payload); !errors.Is(err, context.Canceled) {
		t.Errorf("Invoke with an ended context = %v, want context.Canceled", err)
	}
	if s := h.Stats(); s.Environments[0].Calls != 2 {
		t.Error("a call with an ended context was served")
	}
}

// Guarantees the errors of an init that fails, and that it is not tried again at once.
func TestInit(t *testing.T) {
	script := filepath.Join(t.TempDir(), "bootstrap")
	if err := os.WriteFile(script, []byte("not a program"), 0o700); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		mode, typ, message string
		set                func(*lambdahost.Config)
	}{
		{hangs, lambdahost.TypeTimeout, "Init timed out after 0.05 seconds",
			func(c *lambdahost.Config) { c.InitTimeout = 50 * time.Millisecond }},
		{exits, lambdahost.TypeExit, "exit status 3", nil},
		{fails, "Mine", "no plans", nil},
		{"no program", lambdahost.TypeEntrypoint, "exec format error",
			func(c *lambdahost.Config) { c.Binary = script }},
	}
	for _, tt := range tests {
		t.Run(tt.mode, func(t *testing.T) {
			out := new(lines)
			h := start(t, tt.mode, func(c *lambdahost.Config) {
				c.InitBackoff, c.MaxInitBackoff, c.Output = time.Hour, time.Hour, out.add
				if tt.set != nil {
					tt.set(c)
				}
			})
			_, err := invoke(h, order{})
			failed(t, err, lambdahost.InitFailed, tt.typ, tt.message)
			_, again := invoke(h, order{})
			failed(t, again, lambdahost.InitFailed, tt.typ, tt.message)
			if failure(t, err).RequestID == failure(t, again).RequestID {
				t.Error("both errors have the same request id")
			}
			if s := h.Stats(); s.Started != 1 || s.InitErrors != 1 {
				t.Errorf("Stats = %+v, want one environment: a failing init is not tried again at once", s)
			}
			if tt.mode == fails && !slices.Equal(out.texts(), []string{"400", "413", "202", "403", "403", "403"}) {
				t.Errorf("the runtime API answered %q, want the whole init error accepted, and nothing after it",
					out.texts())
			}
			if all := out.removeAll(); tt.mode == exits &&
				!slices.Equal(all, []lambdahost.Line{{Environment: 1, Text: "about to exit"}}) {
				t.Errorf("output of the init = %+v, want one line without a request", all)
			}
		})
	}
}

// Guarantees that a failed init is reported to every call that waits, not only to the one for which the environment was
// started.
func TestFailedInitTellsAllWhoWait(t *testing.T) {
	h := start(t, hangs, func(c *lambdahost.Config) {
		c.Queue, c.InitTimeout, c.InitBackoff, c.MaxInitBackoff = 2, 50*time.Millisecond, time.Hour, time.Hour
	})
	for _, ended := range []<-chan result{startCall(h, order{}), startCall(h, order{}), startCall(h, order{})} {
		failed(t, (<-ended).err, lambdahost.InitFailed, lambdahost.TypeTimeout, "Init timed out")
	}
}

// Guarantees that while inits fail, environments that work go on, and that no call waits for an environment that may
// not be started.
func TestFailedInitBesideABusyEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "broken")
	h, g := start(t, failsOnFile, func(c *lambdahost.Config) {
		c.Env[fileVar], c.Environments, c.InitBackoff, c.MaxInitBackoff = file, 2, time.Hour, time.Hour
	}), newGate(t)
	held := g.startBlockedCall(h)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := invoke(h, order{})
	failed(t, err, lambdahost.InitFailed, lambdahost.TypeExit, "exit status 1")
	if _, err := invoke(h, order{}); !errors.Is(err, lambdahost.ErrThrottled) {
		t.Errorf("a call while the only environment is busy and none may be started = %v, want ErrThrottled", err)
	}
	g.open <- struct{}{}
	r := <-held
	if again := served(t, h, order{}); r.err != nil || again.PID != r.PID {
		t.Errorf("the call of the busy environment = %+v; the next call was served by process %d", r, again.PID)
	}
}

// Guarantees that an init that failed is tried again after the pause.
func TestInitIsTriedAgainAfterThePause(t *testing.T) {
	file := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h := start(t, failsOnFile, func(c *lambdahost.Config) { c.Env[fileVar], c.InitBackoff = file, time.Nanosecond })
	for range 2 {
		_, err := invoke(h, order{})
		failed(t, err, lambdahost.InitFailed, lambdahost.TypeExit, "exit status 1")
	}
	if s := h.Stats(); s.InitErrors != 2 {
		t.Errorf("Stats = %+v, want two inits that failed", s)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the function is up", func() bool {
		_, err := invoke(h, order{})
		return err == nil
	})
}

// Guarantees the bounds on the size of requests and responses, from both sides.
func TestSizes(t *testing.T) {
	h := start(t, ordinary, nil)
	text := func(bytes int) []byte {
		const frame = `{"Text":""}`
		return []byte(`{"Text":"` + strings.Repeat("a", bytes-len(frame)) + `"}`)
	}
	if _, err := h.Invoke(context.Background(), text(lambdahost.MaxRequestBytes+1)); !errors.Is(err,
		lambdahost.ErrTooLarge) {
		t.Errorf("a request that is one byte too large gives %v, want ErrTooLarge", err)
	}
	if s := h.Stats(); s.Started != 0 {
		t.Error("an environment was started for a request that is too large")
	}
	// The function echoes the largest request, so its answer is too large. The size of that answer in the error shows
	// that the function got the whole request.
	_, err := h.Invoke(context.Background(), text(lambdahost.MaxRequestBytes))
	failed(t, err, lambdahost.ResponseSize, lambdahost.TypeResponseSize, "6291556 bytes")

	order := func(bytes int) []byte { return fmt.Appendf(nil, `{"Do":"answer","Bytes":%d}`, bytes) }
	if got, err := h.Invoke(context.Background(), order(lambdahost.MaxResponseBytes)); err != nil ||
		len(got) != lambdahost.MaxResponseBytes {
		t.Errorf("the largest response = %d bytes, %v", len(got), err)
	}
	_, err = h.Invoke(context.Background(), order(lambdahost.MaxResponseBytes+1))
	failed(t, err, lambdahost.ResponseSize, lambdahost.TypeResponseSize, "exceeded")
	if got, err := h.Invoke(context.Background(), order(0)); err != nil || len(got) != 0 {
		t.Errorf("an empty response = %q, %v", got, err)
	}
}

// script lets the function make the steps in one call. It returns the answer of that call and the statuses that the
// steps got.
func script(t *testing.T, h *lambdahost.Host, steps ...step) (answer []byte, statuses []int, callErr error) {
	t.Helper()
	text, err := json.Marshal(steps)
	if err != nil {
		t.Fatal(err)
	}
	answer, callErr = h.Invoke(context.Background(), text)
	report, err := h.Invoke(context.Background(), []byte(`[]`))
	if err == nil {
		err = json.Unmarshal(report, &statuses)
	}
	if err != nil {
		t.Fatalf("report of %s = %q, %v", text, report, err)
	}
	return answer, statuses, callErr
}

// Guarantees that a broken runtime cannot answer the call of another caller, and cannot stop the host.
func TestRuntimeAPIRefusesWhatIsOutOfPlace(t *testing.T) {
	h := start(t, speaksItself, nil)
	const api = "/2018-06-01/runtime"
	good := step{Path: api + "/invocation/{id}/response", Body: `"good"`}
	tests := []struct {
		name string
		step step
		want int
	}{
		{"response of an unknown id", step{Path: api + "/invocation/8476a536-e9f4-11e8-9739-2dfe598c3fcd/response",
			Body: `"bad"`}, 400},
		{"error of an unknown id", step{Path: api + "/invocation/x/error", Body: `{}`}, 400},
		{"response of the call before", step{Path: api + "/invocation/{previous}/response", Body: `"bad"`}, 400},
		{"poll in mid-call", step{Method: "GET", Path: api + "/invocation/next"}, 403},
		{"init error after the init", step{Path: api + "/init/error", Body: `{}`}, 403},
		{"extension after the init", step{Path: "/2020-01-01/extension/register", Body: `{"events":[]}`}, 403},
		{"extension that wants events", step{Path: "/2020-01-01/extension/register", Body: `{"events":["INVOKE"]}`},
			403},
		{"extension that says nothing", step{Path: "/2020-01-01/extension/register", Body: `what`}, 403},
		{"wrong method", step{Method: "PUT", Path: api + "/invocation/{id}/response"}, 405},
		{"wrong version", step{Path: "/2017-01-01/runtime/invocation/{id}/response"}, 404},
		{"no path", step{Path: "/"}, 404},
		{"half a response", step{Path: api + "/invocation/{id}/response", Body: `"bad"`, Truncated: true}, 400},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			answer, statuses, err := script(t, h, tt.step, good)
			if string(answer) != `"good"` || err != nil || !slices.Equal(statuses, []int{tt.want, 202}) {
				t.Errorf("call = %q, %v; statuses %v, want the good answer, after a %d", answer, err, statuses, tt.want)
			}
		})
	}
	t.Run("second response", func(t *testing.T) {
		second := step{Path: good.Path, Body: `"second"`}
		late := step{Path: api + "/invocation/{id}/error", Body: `{"errorType":"Late"}`}
		answer, statuses, err := script(t, h, good, second, late)
		if string(answer) != `"good"` || err != nil || !slices.Equal(statuses, []int{202, 403, 403}) {
			t.Errorf("call = %q, %v; statuses %v, want the first answer, and 403 for what follows", answer, err,
				statuses)
		}
	})
	if s := h.Stats(); s.Started != 1 {
		t.Errorf("Stats = %+v, want a single environment", s)
	}
}

// Guarantees that a caller gets its answer at once, and that an environment that does not ask for its next call within
// the timeout is killed.
func TestEnvironmentThatDoesNotPollAgainIsKilled(t *testing.T) {
	h := start(t, speaksItself, func(c *lambdahost.Config) { c.Timeout = time.Second })
	text, err := json.Marshal([]step{{Path: responsePath("{id}"), Body: `"good"`}, {Hang: true}})
	if err != nil {
		t.Fatal(err)
	}
	for {
		answer, err := h.Invoke(context.Background(), text)
		if err == nil && string(answer) == `"good"` {
			break
		}
		failed(t, err, lambdahost.TimedOut, lambdahost.TypeTimeout, "timed out") // the call itself may have timed out
	}
	eventually(t, "it is killed", func() bool { return len(h.Stats().Environments) == 0 })
	if s := h.Stats(); s.Timeouts != s.Started || s.Exits != 0 {
		t.Errorf("Stats = %+v, want all environments killed by the timeout", s)
	}
}

// Guarantees that an error document of any form becomes an error with a type and a message.
func TestReportedErrorsWithoutForm(t *testing.T) {
	h := start(t, speaksItself, nil)
	const path = "/2018-06-01/runtime/invocation/{id}/error"
	document := base64.StdEncoding.EncodeToString([]byte(`{"errorMessage":"broke off"}`))
	tests := []struct {
		name         string
		step         step
		typ, message string
	}{
		{"no JSON", step{Path: path, Body: "what"}, lambdahost.TypeUnknown, "not a JSON document"},
		{"nothing", step{Path: path}, lambdahost.TypeUnknown, "not a JSON document"},
		{"another document", step{Path: path, Body: `{"errorType":7}`}, lambdahost.TypeUnknown, "not a JSON document"},
		{"type in the header", step{Path: path, Body: `{"errorMessage":"m"}`,
			Header: map[string]string{"Lambda-Runtime-Function-Error-Type": "Of.Header"}}, "Of.Header", "m"},
		{"a response that broke off", step{Path: responsePath("{id}"), Body: `"half`, Trailer: map[string]string{
			"Lambda-Runtime-Function-Error-Type": "Read",
			"Lambda-Runtime-Function-Error-Body": document}}, "Read", "broke off"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, statuses, err := script(t, h, tt.step)
			failed(t, err, lambdahost.Reported, tt.typ, tt.message)
			if !slices.Equal(statuses, []int{202}) {
				t.Errorf("status %v, want 202", statuses)
			}
		})
	}
}

// Guarantees that output is passed on line by line, with the environment and the request that it belongs to.
func TestOutputComesByLineWithItsRequest(t *testing.T) {
	out := new(lines)
	h := start(t, ordinary, func(c *lambdahost.Config) { c.Output = out.add })
	long := strings.Repeat("x", 300<<10)
	for _, text := range []string{"one\r\ntwo", "", long} {
		r := served(t, h, order{Do: "print", Text: text})
		want := []string{"one", "two", "one", "two"} // stdout, then stderr
		switch text {
		case "":
			want = []string{"", ""}
		case long:
			want = []string{long[:256<<10], long[256<<10:], long[:256<<10], long[256<<10:]}
		}
		eventually(t, "the output is there", func() bool { return len(out.texts()) == len(want) })
		if got := out.texts(); !slices.Equal(got, want) {
			t.Errorf("the lines of the output have lengths %d, want %d", lengths(got), lengths(want))
		}
		for _, l := range out.removeAll() {
			if l.RequestID != r.RequestID || l.Environment != 1 {
				t.Errorf("line of %+v, want environment 1 and request %s", l, r.RequestID)
			}
		}
	}
}

func lengths(texts []string) []int {
	var n []int
	for _, t := range texts {
		n = append(n, len(t))
	}
	return n
}

// Guarantees that the output of functions is logged if Config.Output is not set.
func TestOutputIsLogged(t *testing.T) {
	logged, write := io.Pipe()
	defer logged.Close()
	h := start(t, exits, func(c *lambdahost.Config) {
		c.Output, c.Log = nil,
			slog.New(slog.NewJSONHandler(write, nil))
	})
	called := startCall(h, order{})
	var record struct {
		Msg, Line   string
		Environment int
	}
	if err := json.NewDecoder(logged).Decode(&record); err != nil || record.Line != "about to exit" ||
		record.Environment != 1 {
		t.Errorf("log record = %+v, %v", record, err)
	}
	logged.Close() // lines that come later are lost
	<-called
}

// Guarantees that Close lets calls that are under way end, and refuses those that wait.
func TestCloseLetsCallsEnd(t *testing.T) {
	h, g := start(t, ordinary, func(c *lambdahost.Config) { c.Queue = 1 }), newGate(t)
	held, waits := g.startBlockedCall(h), startCall(h, order{})
	eventually(t, "a call waits", func() bool { return h.Stats().Waiting == 1 })
	closed := make(chan error)
	go func() { closed <- h.Close(context.Background()) }()
	if r := <-waits; !errors.Is(r.err, lambdahost.ErrClosed) {
		t.Errorf("a call that waited at Close = %v, want ErrClosed", r.err)
	}
	if _, err := invoke(h, order{}); !errors.Is(err, lambdahost.ErrClosed) {
		t.Errorf("a call after Close = %v, want ErrClosed", err)
	}
	g.open <- struct{}{}
	if r := <-held; r.err != nil {
		t.Errorf("a call under way at Close = %v", r.err)
	}
	if err := <-closed; err != nil {
		t.Errorf("Close = %v", err)
	}
}

// Guarantees that Close kills the processes when its own context ends.
func TestCloseThatCannotWait(t *testing.T) {
	h, g := start(t, ordinary, nil), newGate(t)
	held := g.startBlockedCall(h)
	pid := h.Stats().Environments[0].PID
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := h.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Close with an ended context = %v, want context.Canceled", err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("after Close the process still runs: %v", err)
	}
	if r := <-held; !errors.Is(r.err, lambdahost.ErrClosed) {
		t.Errorf("the call = %v, want ErrClosed", r.err)
	}
}

// Guarantees that Close during an init ends that init without counting it as failed.
func TestCloseDuringInit(t *testing.T) {
	for _, begun := range []bool{false, true} {
		h := start(t, hangs, nil)
		called := startCall(h, order{})
		eventually(t, "the init runs", func() bool {
			s := h.Stats()
			return s.Started == 1 && (!begun || s.Environments[0].PID != 0)
		})
		if err := h.Close(context.Background()); err != nil {
			t.Errorf("Close = %v", err)
		}
		if r := <-called; !errors.Is(r.err, lambdahost.ErrClosed) {
			t.Errorf("the call = %v, want ErrClosed", r.err)
		}
		if s := h.Stats(); s.InitErrors != 0 {
			t.Errorf("Stats = %+v, want no failed init, since Close ended it", s)
		}
	}
}

// Guarantees that the end of Start's context closes the host.
func TestContextOfStartEndsTheHost(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	h, err := lambdahost.Start(ctx, lambdahost.Config{Binary: program, Env: map[string]string{functionVar: ordinary},
		InitTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	served(t, h, order{})
	cancel()
	eventually(t, "it is closed", func() bool {
		_, err := invoke(h, order{})
		return errors.Is(err, lambdahost.ErrClosed)
	})
	if err := h.Close(context.Background()); err != nil {
		t.Errorf("Close = %v", err)
	}
}

// Guarantees that a function gets SIGTERM only if it asked for it, as on Lambda.
func TestSIGTERM(t *testing.T) {
	tests := []struct {
		mode string
		told bool
	}{{wantsTerm, true}, {ignoresTerm, true}, {listensOnly, false}}
	for _, freeze := range []bool{false, true} {
		for _, tt := range tests {
			t.Run(fmt.Sprint(tt.mode, ", freeze ", freeze), func(t *testing.T) {
				out := new(lines)
				h := start(t, tt.mode, func(c *lambdahost.Config) {
					c.Output, c.Freeze = out.add, freeze
					if tt.mode == ignoresTerm {
						c.Grace = 500 * time.Millisecond
					} else {
						c.Grace = time.Minute
					}
				})
				served(t, h, order{})
				eventually(t, "it is idle", hasIdle(h, 1))
				if err := h.Close(context.Background()); err != nil {
					t.Fatal(err)
				}
				if got := out.hasLine("told to end")(); got != tt.told {
					t.Errorf("the output is %q; want SIGTERM reported: %v", out.texts(), tt.told)
				}
			})
		}
	}
}

// Guarantees that Close does not wait for a process that an environment started and that keeps the output open.
func TestOutputHeldOpenByAnotherDoesNotHoldTheHost(t *testing.T) {
	out := new(lines)
	h := start(t, leavesDaemon, func(c *lambdahost.Config) { c.Output = out.add })
	served(t, h, order{})
	if err := h.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscanf(strings.Join(out.texts(), "\n"), "daemon %d", &pid); err != nil {
		t.Fatalf("output %q: %v", out.texts(), err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("the process that keeps the output open gives %v; it must be running, or this test shows nothing", err)
	}
}

// Guarantees that an error about Config names the wrong field.
func TestConfigErrorsNameTheField(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		want string
		c    lambdahost.Config
	}{
		{"Binary", lambdahost.Config{}},
		{"Binary", lambdahost.Config{Binary: filepath.Join(t.TempDir(), "bootstrap")}},
		{"Binary", lambdahost.Config{Binary: "host_test.go"}},
		{"Environments -1", lambdahost.Config{Binary: program, Environments: -1}},
		{"Queue -1", lambdahost.Config{Binary: program, Queue: -1}},
		{"InitTimeout", lambdahost.Config{Binary: program, InitTimeout: -1}},
		{"Timeout", lambdahost.Config{Binary: program, Timeout: -1}},
		{"Grace", lambdahost.Config{Binary: program, Grace: -1}},
		{"InitBackoff", lambdahost.Config{Binary: program, InitBackoff: -1}},
		{"MaxInitBackoff", lambdahost.Config{Binary: program, MaxInitBackoff: -1}},
		{"MemoryMB 127", lambdahost.Config{Binary: program, MemoryMB: 127}},
		{"MemoryMB 10241", lambdahost.Config{Binary: program, MemoryMB: 10241}},
		{"AWS_LAMBDA_RUNTIME_API", lambdahost.Config{Binary: program,
			Env: map[string]string{"AWS_LAMBDA_RUNTIME_API": "x"}}},
		{"_HANDLER", lambdahost.Config{Binary: program, Env: map[string]string{"_HANDLER": "x"}}},
		{`"A=B"`, lambdahost.Config{Binary: program, Env: map[string]string{"A=B": "x"}}},
		{`""`, lambdahost.Config{Binary: program, Env: map[string]string{"": "x"}}},
		{`"A"`, lambdahost.Config{Binary: program, Env: map[string]string{"A": "x\x00y"}}},
	}
	for _, tt := range tests {
		h, err := lambdahost.Start(context.Background(), tt.c)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Start(%+v) = %v, %v; want an error with %q", tt.c, h, err, tt.want)
		}
	}
}
