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

// state is where an environment is in its life. From starting it goes to idle, and from there to busy, answered and
// idle again, until it is ending.
type state int

const (
	starting state = iota // has not polled
	idle                  // polls, and is in Host.idle
	busy                  // has a call that has no answer
	answered              // is to poll again
	lost                  // its poll broke off; is to poll again, or dies
	ending                // has ended, or got the signal to end
)

// environment is one process and its Runtime API. The fields after ready are guarded by the host's mu.
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
	poll     *poll       // of an idle environment
	current  *invocation // the last that was given to it
	frozen   bool
	deadline *time.Timer // it is killed then; nil: none
	killed   *Error      // why it was, unless because the host closes
	reported *Error      // by the function, of its init
	wantTerm bool        // it registered an extension
	reaped   bool        // its process id may be another's
	gone     bool
	handlers sync.WaitGroup // of its API; none begins when it is gone
}

// After its end a process's output may be held open by what it started and the kill did not reach.
const outputAfterExit = time.Second

// run is the environment's life, from the listening of its API until nothing of it is left.
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
		// a slow function's affair; the bound is for other programs
		ReadHeaderTimeout: e.h.c.InitTimeout + e.h.c.Timeout,
		ErrorLog:          slog.NewLogLogger(e.h.c.Log.Handler(), slog.LevelWarn),
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // ends by Close
	}()
	e.end(e.execute(listener.Addr().String()))
	_ = server.Close()
	<-served
	e.handlers.Wait()
}

// execute runs the process and says how it ended.
func (e *environment) execute(address string) *Error {
	c := &e.h.c
	output, write, err := os.Pipe()
	if err != nil {
		return &Error{Type: TypeEntrypoint, Message: err.Error()}
	}
	defer func() { _ = output.Close() }()
	cmd := exec.Command(c.Binary) //nolint:gosec // to run it is what it was given for
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
		e.pass(output)
	}()
	err = cmd.Wait()
	e.h.mu.Lock()
	e.reaped = true
	e.h.mu.Unlock()
	signalKill(cmd) // what it started and left behind, whose group keeps the number
	_ = output.SetReadDeadline(time.Now().Add(outputAfterExit))
	<-read
	if err == nil {
		return &Error{Type: TypeExit, Message: "Runtime exited without providing a reason"}
	}
	return &Error{Type: TypeExit, Message: "Runtime exited with error: " + err.Error()}
}

// started gives the environment its process.
func (e *environment) started(cmd *exec.Cmd, began time.Time) {
	e.h.mu.Lock()
	defer e.h.mu.Unlock()
	e.cmd, e.pid, e.began = cmd, cmd.Process.Pid, began
	close(e.ready)
	if e.state == ending { // the host was closed in between
		e.signal(signalKill)
		return
	}
	limit := e.h.c.InitTimeout
	e.arm(limit, &Error{Kind: InitFailed, Type: TypeTimeout, Message: fmt.Sprintf("Init timed out after %.2f seconds",
		limit.Seconds())})
}

// end takes the environment out of the host, and tells the call that it had.
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
	case askedToEnd && e.killed == nil: // the host closes
		if calling {
			e.current.finish(nil, ErrClosed)
		}
	case !e.polled:
		how.Kind = InitFailed
		h.initFailed(e, how)
	default:
		if how.Kind = TimedOut; e.killed == nil {
			how.Kind = Exited
			h.stats.Exits++
		} else {
			h.stats.Timeouts++
		}
		request := ""
		if calling {
			request = e.current.id
			e.current.finish(nil, how.in(e.current))
		}
		h.c.Log.Error("environment ended", "environment", e.id, "request", request, "type", how.Type, "error",
			how.Message)
	}
	h.assignCalls()
}

// startCall gives the call to the environment, which is idle. Like the methods below it is called with mu held.
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

// arm has the environment killed for the reason unless it is disarmed or armed again within d.
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

// kill ends the process for the reason, nil being that the host closes. What it was doing fails when it is gone.
func (e *environment) kill(reason *Error) {
	e.disarm()
	if e.state != ending {
		e.state, e.killed = ending, reason
		e.h.idle = remove(e.h.idle, e)
	}
	e.signal(signalKill)
}

// terminate ends an idle process because the host closes: gently, where it asked for that.
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

const maxLine = 256 << 10 // bytes

// pass gives what the function writes to Config.Output, until it writes no more. It takes mu for itself.
func (e *environment) pass(output io.Reader) {
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
