package lambdahost

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// state is the state of an environment. Its first state is starting. Then it repeats idle, busy and answered, until it
// is ending.
type state int

const (
	starting state = iota // it has not polled for a call yet
	idle                  // it polls for a call, and is in Host.idle
	busy                  // it has a call, and has not answered the call yet
	answered              // it has answered a call, and must poll again
	lost                  // the connection of its poll broke; it must poll again, or is killed
	ending                // it has ended, or was told to end
)

// environment is one process of the function, and the Runtime API that the host serves to it. The fields after ready
// are guarded by the host's mu.
type environment struct {
	h     *Host
	id    int
	ready chan struct{} // closed when the process has been started

	state    state
	cmd      *exec.Cmd
	pid      int
	began    time.Time // when the binary was executed
	polled   bool
	init     time.Duration // from began to the first poll
	calls    int
	poll     *poll       // the poll that waits for a call; nil unless the environment is idle
	current  *invocation // the call that was given to it last
	frozen   bool
	deadline *time.Timer    // kills the environment when it fires; nil if there is no deadline
	killed   *Error         // why it was killed; nil if it was not, or because the host closes
	reported *Error         // the error of its init, as the function reported it; nil if it reported none
	wantTerm bool           // the function registered an extension, so it gets SIGTERM
	reaped   bool           // the process has ended, so another process may have its id
	gone     bool           // end was called
	handlers sync.WaitGroup // requests to its API that are being served; no further one begins once gone is set
}

// outputAfterExit is how long the host reads the output of a process that has ended. Another process that it started,
// and that the kill did not reach, may hold the output open for ever.
const outputAfterExit = time.Second

// run serves the Runtime API of the environment and runs its process. It returns when the process and all handlers of
// the API have ended.
func (e *environment) run() {
	runtime.LockOSThread() // see dieWithParent
	defer runtime.UnlockOSThread()
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		e.end(&Error{Type: TypeEntrypoint, Message: err.Error()})
		return
	}
	server := &http.Server{
		Handler: e.api(),
		// Bounds other programs that connect. A slow function reaches its own timeout first.
		ReadHeaderTimeout: e.h.c.InitTimeout + e.h.c.Timeout,
		ErrorLog:          slog.NewLogLogger(e.h.c.Log.Handler(), slog.LevelWarn),
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // returns after Close
	}()
	e.end(e.execute(listener.Addr().String()))
	_ = server.Close()
	<-served
	e.handlers.Wait()
}

// execute runs the process to its end. The error says how the process ended.
func (e *environment) execute(address string) *Error {
	c := &e.h.c
	output, write, err := os.Pipe()
	if err != nil {
		return &Error{Type: TypeEntrypoint, Message: err.Error()}
	}
	defer func() { _ = output.Close() }()
	cmd := exec.Command(c.Binary) //nolint:gosec // running the configured binary is what this package does
	cmd.Dir = filepath.Dir(c.Binary)
	cmd.Env = append(slices.Clone(e.h.env),
		"AWS_LAMBDA_RUNTIME_API="+address,
		fmt.Sprintf("AWS_LAMBDA_LOG_STREAM_NAME=[$LATEST]%d", e.id))
	cmd.Stdout, cmd.Stderr = write, write
	setGroup(cmd)
	err = cmd.Start()
	began := time.Now()
	_ = write.Close()
	if err != nil {
		return &Error{Type: TypeEntrypoint, Message: err.Error()}
	}
	e.started(cmd, began)
	read := make(chan struct{})
	go func() {
		defer close(read)
		e.copyOutput(output)
	}()
	err = cmd.Wait()
	e.h.mu.Lock()
	e.reaped = true
	e.h.mu.Unlock()
	signalKill(cmd) // kills what the process started and left behind: its process group still exists
	_ = output.SetReadDeadline(time.Now().Add(outputAfterExit))
	<-read
	if err == nil {
		return &Error{Type: TypeExit, Message: "Runtime exited without providing a reason"}
	}
	return &Error{Type: TypeExit, Message: "Runtime exited with error: " + err.Error()}
}

// started records the process of the environment, and arms the deadline of its init.
func (e *environment) started(cmd *exec.Cmd, began time.Time) {
	e.h.mu.Lock()
	defer e.h.mu.Unlock()
	e.cmd, e.pid, e.began = cmd, cmd.Process.Pid, began
	close(e.ready)
	if e.state == ending { // the host was closed before the process was started
		e.signal(signalKill)
		return
	}
	limit := e.h.c.InitTimeout
	e.arm(limit, &Error{Kind: InitFailed, Type: TypeTimeout, Message: fmt.Sprintf("Init timed out after %.2f seconds",
		limit.Seconds())})
}

// end removes the environment from the host after its process has ended. The call that it was serving fails. how says
// how the process ended, unless the host or the function knows a better reason.
func (e *environment) end(how *Error) {
	h := e.h
	h.mu.Lock()
	defer h.mu.Unlock()
	askedToEnd := e.state == ending
	e.disarm()
	e.state, e.gone = ending, true
	delete(h.live, e.id)
	h.idle = remove(h.idle, e)
	switch {
	case e.reported != nil && !e.polled:
		how = e.reported
	case e.killed != nil:
		how = e.killed
	}
	calling := e.current != nil && !e.current.ended
	switch {
	case askedToEnd && e.killed == nil: // the host is closing
		if calling {
			e.current.finish(nil, ErrClosed)
		}
	case !e.polled:
		how.Kind = InitFailed
		h.initFailed(e, how)
	default:
		if e.killed == nil {
			how.Kind = Exited
			h.stats.Exits++
		} else {
			how.Kind = TimedOut
			h.stats.Timeouts++
		}
		request := ""
		if calling {
			request = e.current.id
			e.current.finish(nil, how.forCall(e.current))
		}
		h.c.Log.Error("environment ended", "environment", e.id, "request", request, "type", how.Type, "error",
			how.Message)
	}
	h.assignCalls()
}

// startCall gives the call to the environment, which must be idle. The caller holds the host's mu, as for all methods
// below except copyOutput.
func (e *environment) startCall(i *invocation) {
	limit := e.h.c.Timeout
	e.state, e.current = busy, i
	e.calls++
	i.deadline = time.Now().Add(limit)
	e.arm(limit, &Error{Type: TypeTimeout, Message: fmt.Sprintf("Task timed out after %.2f seconds", limit.Seconds())})
	e.thaw()
	e.poll.work <- i
	e.poll = nil
}

func (e *environment) freeze() {
	if e.h.c.Freeze && !e.frozen {
		e.frozen = true
		e.signal(signalFreeze)
	}
}

func (e *environment) thaw() {
	if e.frozen {
		e.frozen = false
		e.signal(signalThaw)
	}
}

// arm sets the deadline: after the time d, the environment is killed for the given reason, unless disarm or arm is
// called before.
func (e *environment) arm(d time.Duration, reason *Error) {
	e.disarm()
	var t *time.Timer
	t = time.AfterFunc(d, func() {
		e.h.mu.Lock()
		defer e.h.mu.Unlock()
		if e.deadline == t {
			e.kill(reason)
		}
	})
	e.deadline = t
}

func (e *environment) disarm() {
	if e.deadline != nil {
		e.deadline.Stop()
		e.deadline = nil
	}
}

// kill ends the process. reason is nil if the host closes. The call that the process was serving fails when the process
// has ended: see end.
func (e *environment) kill(reason *Error) {
	e.disarm()
	if e.state != ending {
		e.state, e.killed = ending, reason
		e.h.idle = remove(e.h.idle, e)
	}
	e.signal(signalKill)
}

// terminate ends an idle process because the host closes: with SIGTERM if the function asked for that, else with
// SIGKILL.
func (e *environment) terminate() {
	if !e.wantTerm {
		e.kill(nil)
		return
	}
	e.h.idle = remove(e.h.idle, e)
	e.state = ending
	e.signal(signalTerminate)
	e.thaw()
	e.arm(e.h.c.Grace, nil)
}

func (e *environment) signal(send func(*exec.Cmd)) {
	if e.cmd != nil && !e.reaped {
		send(e.cmd)
	}
}

const maxLine = 256 << 10 // bytes; a longer line of output is passed on in parts

// copyOutput passes the output of the function to Config.Output line by line, until the output ends. It locks mu
// itself.
func (e *environment) copyOutput(output io.Reader) {
	lines := bufio.NewReaderSize(output, maxLine)
	for {
		text, err := lines.ReadSlice('\n')
		if len(text) > 0 {
			line := Line{Environment: e.id, Text: strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")}
			e.h.mu.Lock()
			if e.current != nil {
				line.RequestID = e.current.id
			}
			e.h.mu.Unlock()
			e.h.c.Output(line)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}
