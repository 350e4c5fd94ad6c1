// Package lambdahost runs the deployed binary of a Lambda function as processes on this machine, over the Runtime API,
// for tests.
//
// Each process is an environment, with a Runtime API of its own on a loopback port, and serves one call at a time. As
// on Lambda:
//
//   - A call goes to the idle environment that was used last. A new environment is started only if all are busy. If all
//     Environments are busy, the call waits.
//   - If the function exits or exceeds the timeout during a call, the call fails with an [*Error]. The environment is
//     replaced when another call needs it. A caller that stops waiting does not stop the function.
//   - An environment gets none of this process's environment variables, and runs in the folder of its binary.
//   - Functions that register an extension get SIGTERM (lambda.WithEnableSIGTERM registers one). Others get SIGKILL.
//
// The path of each Runtime API begins with a secret, which only the environment's own process knows: another user of
// this machine can neither take its calls, with the credentials in them, nor answer them.
package lambdahost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Config sets up a [Host]. Only Binary is required.
type Config struct {
	Binary   string            // the executable: Lambda's bootstrap
	Env      map[string]string // more environment variables of the function
	Name     string            // name of the function; default the binary's file name
	MemoryMB int               // reported to the function, but not enforced; default 128

	Environments int           // the most processes at a time; default 1
	InitTimeout  time.Duration // bounds the time from the start of a process to its first poll; default 10 s
	Timeout      time.Duration // bounds the time from a call to its answer; default 3 s
	Grace        time.Duration // time from SIGTERM to SIGKILL; default 2 s
	Freeze       bool          // an idle environment is stopped (SIGSTOP) until its next call; on Unix only

	// Output is called with each line that a function writes to stdout or stderr, in one goroutine for each
	// environment. By default the lines are dropped.
	Output func(Line)
	Log    *slog.Logger // default slog.Default()
}

// Line is one line that a function wrote, without its line end.
type Line struct{ Text string }

// Host starts, calls and ends the environments of one function. It is safe for concurrent use. Make it with [Start].
type Host struct {
	c         Config
	env       []string
	slots     chan struct{} // has one element for each environment that is busy
	stopWatch func() bool   // ends the waiting for the end of Start's ctx

	busy      sync.WaitGroup // calls that a function serves, also those whose caller has left
	processes sync.WaitGroup

	mu     sync.Mutex
	closed bool
	live   []*environment // whose process has not ended, the oldest first
	idle   []*environment // the one that was used last is the last
	stats  Stats
}

// ErrClosed is the error of a call to a host that was closed.
var ErrClosed = errors.New("lambdahost: the host is closed")

// Start makes a host. No process runs before the first call. When ctx ends, all processes are killed; [Host.Close] lets
// calls end first.
func Start(ctx context.Context, c Config) (*Host, error) {
	binary, err := exec.LookPath(c.Binary)
	if err == nil {
		c.Binary, err = filepath.Abs(binary)
	}
	if err != nil {
		return nil, fmt.Errorf("lambdahost: Binary: %w", err)
	}
	if c.Freeze && !canFreeze {
		return nil, errors.New("lambdahost: Freeze: this operating system cannot stop and continue a process: unset it")
	}
	if c.Name == "" {
		c.Name = filepath.Base(c.Binary)
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Output == nil {
		c.Output = func(Line) {}
	}
	c.MemoryMB, c.Environments = max(c.MemoryMB, 128), max(c.Environments, 1)
	orDefault := func(field *time.Duration, value time.Duration) {
		if *field == 0 {
			*field = value
		}
	}
	orDefault(&c.InitTimeout, 10*time.Second)
	orDefault(&c.Timeout, 3*time.Second)
	orDefault(&c.Grace, 2*time.Second)
	h := &Host{c: c, env: c.environ(), slots: make(chan struct{}, c.Environments)}
	h.stopWatch = context.AfterFunc(ctx, func() { _ = h.Close(ctx) })
	return h, nil
}

// environ returns the environment variables of all processes of the function. The address of the Runtime API differs
// between processes: environment.run adds it.
func (c *Config) environ() []string {
	region := c.Env["AWS_REGION"]
	if region == "" {
		region = "us-east-1"
	}
	root := filepath.Dir(c.Binary)
	env := []string{
		"AWS_LAMBDA_FUNCTION_NAME=" + c.Name,
		"AWS_LAMBDA_FUNCTION_VERSION=$LATEST",
		fmt.Sprintf("AWS_LAMBDA_FUNCTION_MEMORY_SIZE=%d", c.MemoryMB),
		"AWS_LAMBDA_INITIALIZATION_TYPE=on-demand",
		"AWS_LAMBDA_LOG_GROUP_NAME=/aws/lambda/" + c.Name,
		"AWS_LAMBDA_LOG_STREAM_NAME=[$LATEST]",
		"AWS_REGION=" + region,
		"AWS_DEFAULT_REGION=" + region,
		"LAMBDA_TASK_ROOT=" + root,
		"LAMBDA_RUNTIME_DIR=" + root,
		"_HANDLER=" + filepath.Base(c.Binary),
		"LANG=en_US.UTF-8",
		"TZ=:UTC",
		"PATH=/usr/local/bin:/usr/bin:/bin:/opt/bin",
		"TMPDIR=" + os.TempDir(),
	}
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		env = append(env, name+"="+c.Env[name]) // exec uses the last value of a name
	}
	return env
}

// Invoke calls the function and returns its answer, whether that is JSON or not. An error is [ErrClosed], or wraps an
// [*Error] or ctx's error: then Invoke no longer waits, and a function that has begun the call goes on with it.
func (h *Host) Invoke(ctx context.Context, payload []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("invoke %s: %w", h.c.Name, err)
	}
	select {
	case h.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("invoke %s: %w", h.c.Name, ctx.Err())
	}
	e, err := h.take()
	if err != nil {
		<-h.slots
		return nil, err
	}
	i, ended := newInvocation(slices.Clone(payload)), make(chan struct{})
	go func() {
		defer h.busy.Done()
		defer close(ended) // after the environment is idle, so that the caller's next call gets it
		served := e.serve(i)
		h.mu.Lock()
		if served && !h.closed {
			h.idle = append(h.idle, e)
		} else if served {
			e.terminate()
		}
		h.mu.Unlock()
		<-h.slots
	}()
	select {
	case <-ended:
		return i.response, i.err
	case <-ctx.Done():
		return nil, fmt.Errorf("invoke %s: %w", h.c.Name, ctx.Err())
	}
}

// take returns an environment for one call, which ends with h.busy.Done.
func (h *Host) take() (*environment, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, ErrClosed
	}
	h.busy.Add(1)
	for len(h.idle) > 0 {
		e := h.idle[len(h.idle)-1]
		h.idle = h.idle[:len(h.idle)-1]
		if !e.hasEnded() {
			return e, nil
		}
	}
	e := newEnvironment(h)
	h.live = append(h.live, e)
	h.processes.Go(e.run)
	return e, nil
}

// ended removes an environment whose process has ended. It counts the end unless the host asked for it.
func (h *Host) ended(e *environment, timedOut bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.live = slices.DeleteFunc(h.live, func(x *environment) bool { return x == e })
	switch {
	case timedOut:
		h.stats.Timeouts++
	case e.wasReady() && !e.terminated.Load():
		h.stats.Exits++
	}
}

// Close refuses further calls, lets the calls under way end, and then ends every environment. If ctx ends before that,
// the remaining environments are killed, and Close returns ctx's error. When Close returns, no process of the host is
// left. Close may be called again.
func (h *Host) Close(ctx context.Context) error {
	h.stopWatch()
	h.mu.Lock()
	h.closed = true
	for _, e := range h.idle {
		e.terminate()
	}
	h.idle = nil
	h.mu.Unlock()
	all := make(chan struct{})
	go func() {
		defer close(all)
		h.busy.Wait()
		h.processes.Wait()
	}()
	select {
	case <-all:
		return nil
	case <-ctx.Done():
	}
	h.mu.Lock()
	cut := len(h.live)
	for _, e := range h.live {
		e.terminated.Store(true)
		e.send(signalKill)
	}
	h.mu.Unlock()
	<-all
	if cut == 0 {
		return nil
	}
	return fmt.Errorf("close %s: killed %d environments: %w", h.c.Name, cut, ctx.Err())
}

// Stats describes the environments of a host, and counts what happened since Start.
type Stats struct {
	Environments []Environment // those that have not ended, the oldest first
	Exits        int           // environments that ended by themselves after their init
	Timeouts     int           // environments that were killed because their init or a call took too long
}

// Environment is one process.
type Environment struct {
	Init time.Duration // from the execution of the binary to the first poll; 0 before that poll
}

// Stats returns the present state and counts.
func (h *Host) Stats() Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.stats
	for _, e := range h.live {
		s.Environments = append(s.Environments, Environment{Init: time.Duration(e.init.Load())})
	}
	return s
}

// Kind says how a call failed. The host determines it, while Error.Type can be anything that the function reports.
type Kind int

// The kinds of [Error].
const (
	Reported   Kind = iota + 1 // the function reported an error, and may go on serving
	InitFailed                 // the environment that was started for the call failed, or took too long
	Exited                     // the process ended during the call
	TimedOut                   // the call took too long, and its environment was killed
)

// Error is a call that failed in the function.
type Error struct {
	Kind    Kind
	Type    string // errorType
	Message string // errorMessage
}

// Error returns the type and the message.
func (e *Error) Error() string { return "lambdahost: " + e.Type + ": " + e.Message }
