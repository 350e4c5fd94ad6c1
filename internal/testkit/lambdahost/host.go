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
package lambdahost

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	slots     chan struct{} // has one element for each environment that is busy
	stopWatch func() bool   // ends the waiting for the end of Start's ctx
	running   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	live   []*environment // whose process has not ended, the oldest first
	idle   []*environment // the one that was used last is the last
	lost   int
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
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Output == nil {
		c.Output = func(Line) {}
	}
	c.Name, c.MemoryMB = cmp.Or(c.Name, filepath.Base(c.Binary)), cmp.Or(c.MemoryMB, 128)
	c.Environments, c.InitTimeout = cmp.Or(c.Environments, 1), cmp.Or(c.InitTimeout, 10*time.Second)
	c.Timeout, c.Grace = cmp.Or(c.Timeout, 3*time.Second), cmp.Or(c.Grace, 2*time.Second)
	h := &Host{c: c, slots: make(chan struct{}, c.Environments)}
	h.stopWatch = context.AfterFunc(ctx, func() { _ = h.Close(ctx) })
	return h, nil
}

// environ returns the environment variables of a process of the function, whose Runtime API has the given address.
func (c *Config) environ(api string) []string {
	region := cmp.Or(c.Env["AWS_REGION"], "us-east-1")
	env := []string{
		"AWS_LAMBDA_RUNTIME_API=" + api,
		"AWS_LAMBDA_FUNCTION_NAME=" + c.Name,
		"AWS_LAMBDA_FUNCTION_VERSION=$LATEST",
		fmt.Sprintf("AWS_LAMBDA_FUNCTION_MEMORY_SIZE=%d", c.MemoryMB),
		"AWS_REGION=" + region,
		"AWS_DEFAULT_REGION=" + region,
		"LAMBDA_TASK_ROOT=" + filepath.Dir(c.Binary),
		"_HANDLER=" + filepath.Base(c.Binary),
		"TZ=:UTC",
		"PATH=/usr/local/bin:/usr/bin:/bin:/opt/bin",
		"TMPDIR=" + os.TempDir(),
	}
	for name, value := range c.Env {
		env = append(env, name+"="+value) // exec uses the last value of a name
	}
	return env
}

// Invoke calls the function and returns its answer, whether that is JSON or not. An error is [ErrClosed], or wraps an
// [*Error] or ctx's error: then Invoke no longer waits, and a function that has begun the call goes on with it.
func (h *Host) Invoke(ctx context.Context, payload []byte) ([]byte, error) {
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
	i := &invocation{id: newID(), payload: slices.Clone(payload), done: make(chan outcome, 1)}
	ended := make(chan outcome, 1)
	go func() {
		defer h.running.Done()
		o := e.serve(i)
		h.mu.Lock()
		if h.closed {
			e.terminate()
		} else if !e.killed.Load() {
			h.idle = append(h.idle, e)
		}
		h.mu.Unlock()
		<-h.slots
		ended <- o // when the environment is idle, so that the caller's next call gets it
	}()
	select {
	case o := <-ended:
		return o.response, o.err
	case <-ctx.Done():
		return nil, fmt.Errorf("invoke %s: %w", h.c.Name, ctx.Err())
	}
}

// take returns an environment for one call, which ends with h.running.Done.
func (h *Host) take() (*environment, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, ErrClosed
	}
	h.running.Add(1)
	for len(h.idle) > 0 {
		e := h.idle[len(h.idle)-1]
		h.idle = h.idle[:len(h.idle)-1]
		select {
		case <-e.gone: // it ended while it was idle
		default:
			return e, nil
		}
	}
	e := &environment{h: h, work: make(chan *invocation), ready: make(chan struct{}), gone: make(chan struct{})}
	h.live = append(h.live, e)
	h.running.Go(e.run)
	return e, nil
}

// ended removes an environment whose process has ended.
func (h *Host) ended(e *environment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.live = slices.DeleteFunc(h.live, func(x *environment) bool { return x == e })
	if e.init.Load() > 0 && !e.terminated.Load() {
		h.lost++
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
		h.running.Wait()
	}()
	select {
	case <-all:
		return nil
	case <-ctx.Done():
	}
	h.mu.Lock()
	for _, e := range h.live {
		e.terminated.Store(true)
		e.send(signalKill)
	}
	h.mu.Unlock()
	<-all
	return fmt.Errorf("close %s: its environments were killed: %w", h.c.Name, ctx.Err())
}

// Stats describes the environments of a host.
type Stats struct {
	Environments []Environment // those that have not ended, the oldest first

	// Lost is the number of environments that ended by themselves after their init, or were killed because a call took
	// too long.
	Lost int
}

// Environment is one process.
type Environment struct {
	Init time.Duration // from the execution of the binary to the first poll; 0 before that poll
}

// Stats returns the present state and counts.
func (h *Host) Stats() Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := Stats{Lost: h.lost}
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
	Ended                      // the process ended during the call, or was killed because the call took too long
)

// Error is a call that failed in the function.
type Error struct {
	Kind    Kind
	Type    string // errorType
	Message string // errorMessage
}

// Error returns the type and the message.
func (e *Error) Error() string { return "lambdahost: " + e.Type + ": " + e.Message }
