// Package lambdahost runs the deployed binary of a Lambda function as processes on this machine, over the Lambda
// Runtime API.
//
// Each process is an environment, with a Runtime API of its own on a loopback port, and serves one call at a time. As
// on Lambda:
//
//   - A call goes to the idle environment that was used last. A new environment is started only if none is idle or has
//     just answered. The call then takes the environment that is ready first.
//   - If all Environments are busy, further calls fail at once with [ErrThrottled], unless Queue lets them wait.
//   - If the function exits or exceeds the timeout during a call, the call fails with an [*Error]. The environment is
//     replaced when another call needs it. A caller that stops waiting does not stop the function.
//   - An environment gets none of this process's environment variables, and runs in the folder of its binary.
//   - Functions that register an extension get SIGTERM (lambda.WithEnableSIGTERM registers one). Others get SIGKILL.
//
// Unlike Lambda, the host reports a failed init at once instead of trying again within the call, and starts no
// environment for a while after it. There is no memory limit, there are no credentials and no response streaming, and
// extensions cannot wait for events.
package lambdahost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// The limits of Lambda's synchronous calls, bytes.
const (
	MaxRequestBytes  = 6 << 20
	MaxResponseBytes = 6<<20 + 100
)

// Config sets up a [Host]. Only Binary is required.
type Config struct {
	Binary string            // the executable: Lambda's bootstrap; a path without a slash is looked up in PATH
	Env    map[string]string // more environment variables of the function; those that only Lambda may set are refused

	Name     string // name of the function; default the binary's file name
	MemoryMB int    // reported to the function, but not enforced; 128..10240, default 128

	Environments int           // the most processes at a time, at least 1; default 1
	Queue        int           // calls that may wait while all environments are busy; 0 throttles them, as Lambda does
	InitTimeout  time.Duration // bounds the time from the start of a process to its first poll; default 10 s
	Timeout      time.Duration // bounds the time from a call to the answer, and to the next poll; default 3 s
	Grace        time.Duration // time from SIGTERM to SIGKILL; default 2 s

	// InitBackoff is how long no process is started after a failed init. It doubles with each further init that fails,
	// up to MaxInitBackoff. Calls that find no environment meanwhile fail with the error of that init. The defaults are
	// 100 ms and 10 s.
	InitBackoff, MaxInitBackoff time.Duration

	Freeze bool // an idle environment is stopped (SIGSTOP) until its next call; on Unix only

	// Output is called with each line that a function writes to stdout or stderr, in one goroutine for each
	// environment. If Output is slow, the function has to wait. By default, each line is logged to Log at level Info.
	Output func(Line)
	Log    *slog.Logger // default slog.Default()
}

// Line is one line that a function wrote.
type Line struct {
	Environment int    // see [Environment.ID]
	RequestID   string // id of the call that the environment got last when the line was read; "" during the init
	Text        string // the line without its line end; a line above 256 KiB is split into several
}

// Host starts, calls and ends the environments of one function. It is safe for concurrent use. Make it with [Start].
type Host struct {
	c         Config
	env       []string
	arn       string
	stopWatch func() bool // ends the waiting for the end of Start's ctx

	processes sync.WaitGroup // environment.run of each environment

	mu      sync.Mutex
	closing bool
	live    map[int]*environment // environments by ID whose run has not ended
	idle    []*environment       // the one that was used last is the last
	waiting []*invocation        // the one that has waited longest is the first
	failure *Error               // the error of the init that failed last
	stats   Stats                // only its counts
	pause   time.Duration        // the present backoff; 0 if the last init succeeded
	resume  time.Time            // no process is started before this time
}

// Start makes a host. An error names the field of the configuration that is not valid. No process runs before the first
// call. When ctx ends, all processes are killed; [Host.Close] lets calls end first.
func Start(ctx context.Context, c Config) (*Host, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	c.setDefaults()
	h := &Host{c: c, env: c.environ(), live: make(map[int]*environment)}
	h.arn = "arn:aws:lambda:" + c.region() + ":000000000000:function:" + c.Name
	h.stopWatch = context.AfterFunc(ctx, func() { _ = h.Close(ctx) })
	return h, nil
}

func (c *Config) check() error {
	binary, err := exec.LookPath(c.Binary)
	if err == nil {
		binary, err = filepath.Abs(binary)
	}
	if err != nil {
		return fmt.Errorf("lambdahost: Binary: %w", err)
	}
	c.Binary = binary
	for _, f := range []struct {
		name  string
		value int
	}{
		{"Environments", c.Environments},
		{"Queue", c.Queue},
		{"InitTimeout", int(c.InitTimeout)},
		{"Timeout", int(c.Timeout)},
		{"Grace", int(c.Grace)},
		{"InitBackoff", int(c.InitBackoff)},
		{"MaxInitBackoff", int(c.MaxInitBackoff)},
	} {
		if f.value < 0 {
			return fmt.Errorf("lambdahost: %s %d is below 0", f.name, f.value)
		}
	}
	if c.MemoryMB != 0 && (c.MemoryMB < 128 || c.MemoryMB > 10240) {
		return fmt.Errorf("lambdahost: MemoryMB %d is outside 128..10240", c.MemoryMB)
	}
	if c.Freeze && !canFreeze {
		return errors.New("lambdahost: Freeze: this operating system cannot stop and continue a process: unset it")
	}
	for name, value := range c.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return fmt.Errorf("lambdahost: Env: %q is not a valid environment variable", name)
		}
		if slices.Contains(reserved, name) || strings.HasPrefix(name, "AWS_LAMBDA_") {
			return fmt.Errorf("lambdahost: Env: only Lambda may set %s: remove it", name)
		}
	}
	return nil
}

func (c *Config) setDefaults() {
	if c.Name == "" {
		c.Name = filepath.Base(c.Binary)
	}
	c.MemoryMB = max(c.MemoryMB, 128)
	c.Environments = max(c.Environments, 1)
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.InitTimeout, 10 * time.Second},
		{&c.Timeout, 3 * time.Second},
		{&c.Grace, 2 * time.Second},
		{&c.InitBackoff, 100 * time.Millisecond},
		{&c.MaxInitBackoff, 10 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Output == nil {
		c.Output = func(l Line) {
			c.Log.Info("function output", "environment", l.Environment, "request", l.RequestID, "line", l.Text)
		}
	}
}

// invocation is one call, from Invoke to its answer. All fields after payload are guarded by the host's mu.
type invocation struct {
	id, trace string
	payload   []byte
	deadline  time.Time

	requeued bool // the call was put back into the queue, which happens at most once: see pollBroke
	ended    bool
	response []byte
	err      error
	done     chan struct{} // closed when the call has ended
}

// finish ends the call, which must not have ended before.
func (i *invocation) finish(response []byte, err error) {
	i.ended, i.response, i.err = true, response, err
	close(i.done)
}

type traceKey struct{}

// WithTraceID returns a context whose calls get the given X-Ray trace id, the value of X-Amzn-Trace-Id. A call without
// one gets a new trace id.
func WithTraceID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, traceKey{}, id)
}

// TraceID returns the trace id that [WithTraceID] gave the context, or "".
func TraceID(ctx context.Context) string {
	id, _ := ctx.Value(traceKey{}).(string)
	return id
}

// Invoke calls the function and returns its answer, whether that is JSON or not. An error wraps one of
//
//   - an [*Error]: the function reported an error, or could not end the call
//   - [ErrThrottled], [ErrTooLarge], [ErrClosed]: the function was not called, or with ErrClosed perhaps killed
//   - ctx's error: Invoke no longer waits; if the function has begun the call, it goes on with the call
func (h *Host) Invoke(ctx context.Context, payload []byte) ([]byte, error) {
	if len(payload) > MaxRequestBytes {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(payload), MaxRequestBytes)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("invoke %s: %w", h.c.Name, err)
	}
	i := &invocation{id: newRequestID(), payload: bytes.Clone(payload), done: make(chan struct{})}
	if i.trace = TraceID(ctx); i.trace == "" {
		i.trace = newTraceID(time.Now())
	}
	if err := h.enqueue(i); err != nil {
		return nil, err
	}
	select {
	case <-i.done:
		return i.response, i.err
	case <-ctx.Done():
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if i.ended {
		return i.response, i.err
	}
	h.waiting = remove(h.waiting, i)
	return nil, fmt.Errorf("invoke %s: %w", h.c.Name, ctx.Err())
}

// enqueue appends the call to the calls that wait for an environment. It returns an error if the call cannot be served.
func (h *Host) enqueue(i *invocation) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closing {
		return ErrClosed
	}
	backoff := time.Until(h.resume) > 0
	if backoff && len(h.live) == 0 {
		return h.failure.forCall(i)
	}
	// Queue bounds the calls that wait although no environment is or will soon be free. Each environment that is not
	// busy, or that may still be started, takes one more call.
	most := h.c.Queue - h.count(busy)
	if backoff {
		most += len(h.live)
	} else {
		most += h.c.Environments
	}
	if len(h.waiting) >= most {
		return fmt.Errorf("%w: %d of %d are busy, %d calls wait", ErrThrottled, h.count(busy), h.c.Environments,
			len(h.waiting))
	}
	h.waiting = append(h.waiting, i)
	h.assignCalls()
	return nil
}

// assignCalls gives waiting calls to idle environments, and starts environments for the other calls. It must be called,
// with mu held, after every change of the waiting calls or of the environments.
func (h *Host) assignCalls() {
	for len(h.waiting) > 0 && len(h.idle) > 0 {
		e := h.idle[len(h.idle)-1]
		i := h.waiting[0]
		h.idle, h.waiting = h.idle[:len(h.idle)-1], h.waiting[1:]
		e.startCall(i)
	}
	if h.closing {
		return
	}
	coming := h.count(starting) + h.count(answered)
	for len(h.waiting) > coming && len(h.live) < h.c.Environments && time.Until(h.resume) <= 0 {
		h.launch()
		coming++
	}
	if len(h.live) == 0 { // during the backoff, nothing would call assignCalls again for the calls that wait
		for _, i := range h.waiting {
			i.finish(nil, h.failure.forCall(i))
		}
		h.waiting = nil
	}
}

// count returns the number of environments in a state.
func (h *Host) count(s state) int {
	n := 0
	for _, e := range h.live {
		if e.state == s {
			n++
		}
	}
	return n
}

// launch starts an environment.
func (h *Host) launch() {
	h.stats.Started++
	e := &environment{h: h, id: h.stats.Started, ready: make(chan struct{})}
	h.live[e.id] = e
	h.processes.Go(e.run)
}

// initFailed begins or extends the backoff after an init that failed. The call that has waited longest gets the error,
// because the environment was started for it.
func (h *Host) initFailed(e *environment, err *Error) {
	h.stats.InitErrors++
	h.failure = err
	h.pause = min(max(2*h.pause, h.c.InitBackoff), h.c.MaxInitBackoff)
	h.resume = time.Now().Add(h.pause)
	h.c.Log.Error("init failed", "environment", e.id, "type", err.Type, "error", err.Message, "pause", h.pause)
	if len(h.waiting) > 0 {
		i := h.waiting[0]
		h.waiting = h.waiting[1:]
		i.finish(nil, err.forCall(i))
	}
}

// Close refuses further calls, lets the calls under way end, and then ends every environment. If ctx ends before that,
// the remaining environments are killed, their calls end with [ErrClosed], and Close returns ctx's error. When Close
// returns, no process and no goroutine of the host is left. Close may be called again.
func (h *Host) Close(ctx context.Context) error {
	h.stopWatch()
	h.mu.Lock()
	h.closing = true
	for _, i := range h.waiting {
		i.finish(nil, ErrClosed)
	}
	h.waiting = nil
	for _, e := range h.live {
		switch e.state {
		case idle:
			e.terminate()
		case starting, lost:
			e.kill(nil)
		case busy, answered, ending: // accept ends the first two at their next poll
		}
	}
	h.mu.Unlock()

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.processes.Wait()
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
	}
	h.mu.Lock()
	cut := len(h.live)
	for _, e := range h.live {
		e.kill(nil)
	}
	h.mu.Unlock()
	<-ended
	if cut == 0 {
		return nil
	}
	return fmt.Errorf("close %s: killed %d environments: %w", h.c.Name, cut, ctx.Err())
}

// Stats describes the environments of a host, and counts what happened since Start.
type Stats struct {
	Environments []Environment // those that have not ended, by ID
	Waiting      int           // calls that wait for an environment

	Started    int // environments that were started
	InitErrors int // environments whose init failed: they never polled
	Exits      int // environments that ended by themselves after their init
	Timeouts   int // environments that were killed because a call, or the next poll, took too long
}

// Environment is one process.
type Environment struct {
	ID     int           // 1 for the first environment of the host
	PID    int           // 0 before the process is started
	Init   time.Duration // from the execution of the binary to the first poll; 0 before that poll
	Calls  int           // calls that were given to it
	Idle   bool          // it polls for a call
	Frozen bool          // it is stopped: see Config.Freeze
}

// Stats returns the present state and counts.
func (h *Host) Stats() Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.stats
	s.Waiting = len(h.waiting)
	for _, e := range h.live {
		s.Environments = append(s.Environments, Environment{
			ID: e.id, PID: e.pid, Init: e.init, Calls: e.calls, Idle: e.state == idle, Frozen: e.frozen,
		})
	}
	slices.SortFunc(s.Environments, func(a, b Environment) int { return a.ID - b.ID })
	return s
}

// remove returns the list without x.
func remove[T comparable](list []T, x T) []T {
	return slices.DeleteFunc(list, func(y T) bool { return x == y })
}

// reserved lists the environment variables, in addition to AWS_LAMBDA_*, that only Lambda may set.
var reserved = []string{"_HANDLER", "_X_AMZN_TRACE_ID", "LAMBDA_TASK_ROOT", "LAMBDA_RUNTIME_DIR"}

func (c *Config) region() string {
	if r := c.Env["AWS_REGION"]; r != "" {
		return r
	}
	return "us-east-1"
}

// environ returns the environment variables of all processes of the function. The address of the Runtime API and the
// log stream differ between processes: execute adds them.
func (c *Config) environ() []string {
	root := filepath.Dir(c.Binary)
	env := []string{
		"AWS_LAMBDA_FUNCTION_NAME=" + c.Name,
		"AWS_LAMBDA_FUNCTION_VERSION=$LATEST",
		fmt.Sprintf("AWS_LAMBDA_FUNCTION_MEMORY_SIZE=%d", c.MemoryMB),
		"AWS_LAMBDA_INITIALIZATION_TYPE=on-demand",
		"AWS_LAMBDA_LOG_GROUP_NAME=/aws/lambda/" + c.Name,
		"AWS_REGION=" + c.region(),
		"AWS_DEFAULT_REGION=" + c.region(),
		"LAMBDA_TASK_ROOT=" + root,
		"LAMBDA_RUNTIME_DIR=" + root,
		"_HANDLER=" + filepath.Base(c.Binary),
		"LANG=en_US.UTF-8",
		"TZ=:UTC",
		"PATH=/usr/local/bin:/usr/bin:/bin:/opt/bin",
		"TMPDIR=" + os.TempDir(),
	}
	for name, value := range c.Env {
		env = append(env, name+"="+value) // exec uses the last value of a name
	}
	return env
}
