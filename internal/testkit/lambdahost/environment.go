package lambdahost

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// invocation is one call of the function.
type invocation struct {
	id       string
	payload  []byte
	deadline time.Time
	done     chan outcome // has room for the only outcome
}

// outcome is how a call ended.
type outcome struct {
	response []byte
	err      error
}

func failed(kind Kind, typ, format string, more ...any) outcome {
	return outcome{err: &Error{kind, typ, fmt.Sprintf(format, more...)}}
}

// newID returns an id in the form of a UUID.
func newID() string {
	b := fmt.Sprintf("%x", rand.Text())
	return b[:8] + "-" + b[8:12] + "-" + b[12:16] + "-" + b[16:20] + "-" + b[20:32]
}

// environment is one process of the function, and the Runtime API that the host serves to it.
type environment struct {
	h     *Host
	work  chan *invocation // passes a call to the poll of the function
	ready chan struct{}    // closed at the first poll
	gone  chan struct{}    // closed when the process has ended

	init       atomic.Int64 // nanoseconds from the start of the binary to the first poll; 0 before that
	wantTerm   atomic.Bool  // the function registered an extension, so it gets SIGTERM
	terminated atomic.Bool  // the host asked the process to end
	killed     atomic.Bool  // the host killed the process because it took too long

	mu       sync.Mutex
	cmd      *exec.Cmd // nil unless the process runs
	began    time.Time
	current  *invocation // the call that the function has not answered yet
	reported *Error      // the error of its init, as the function reported it
	exit     error       // how the process ended
}

// serve gives the call to the process, and waits until the call has ended.
func (e *environment) serve(i *invocation) outcome {
	select {
	case <-e.ready:
	case <-e.gone:
		if e.reported != nil {
			return outcome{err: e.reported}
		}
		return failed(InitFailed, "Runtime.ExitError", "Runtime exited: %v", e.exit)
	case <-time.After(e.h.c.InitTimeout):
		e.kill()
		return failed(InitFailed, "Sandbox.Timedout", "Init timed out after %s", e.h.c.InitTimeout)
	}
	i.deadline = time.Now().Add(e.h.c.Timeout)
	late := time.After(e.h.c.Timeout)
	for work := e.work; ; {
		select {
		case work <- i:
			work = nil
		case o := <-i.done:
			return o
		case <-e.gone:
			return failed(Ended, "Runtime.ExitError", "Runtime exited: %v", e.exit)
		case <-late:
			e.kill()
			return failed(Ended, "Sandbox.Timedout", "Task timed out after %s", e.h.c.Timeout)
		}
	}
}

// run serves the Runtime API of the environment and runs its process to its end.
func (e *environment) run() {
	err := e.execute()
	e.mu.Lock()
	e.cmd, e.exit = nil, err
	e.mu.Unlock()
	e.h.ended(e)
	close(e.gone)
}

func (e *environment) execute() error {
	c := &e.h.c
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: e.api(), ReadHeaderTimeout: time.Minute,
		ErrorLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelWarn)}
	go func() { _ = server.Serve(listener) }() // returns after Close
	defer func() { _ = server.Close() }()
	output, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = output.Close() }()
	cmd := exec.Command(c.Binary) //nolint:gosec // running the configured binary is what this package does
	cmd.Dir, cmd.Env = filepath.Dir(c.Binary), c.environ(listener.Addr().String())
	cmd.Stdout, cmd.Stderr = write, write
	setGroup(cmd)
	e.mu.Lock()
	e.began = time.Now()
	if err = cmd.Start(); err == nil {
		e.cmd = cmd
		if e.killed.Load() { // kill came before the process did
			signalKill(cmd)
		}
	}
	e.mu.Unlock()
	_ = write.Close()
	if err != nil {
		return err
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewReader(output); ; {
			text, err := lines.ReadString('\n')
			if text != "" {
				c.Output(Line{strings.TrimRight(text, "\r\n")})
			}
			if err != nil {
				return
			}
		}
	}()
	err = cmd.Wait()
	signalKill(cmd) // kills what the process started and left behind: its process group still exists
	_ = output.SetReadDeadline(time.Now().Add(time.Second))
	<-read
	return err
}

// send sends a signal to the process, if it runs.
func (e *environment) send(signal func(*exec.Cmd)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cmd != nil {
		signal(e.cmd)
	}
}

// kill ends a process that took too long.
func (e *environment) kill() {
	e.killed.Store(true)
	e.send(signalKill)
}

// terminate ends an idle process because the host closes: with SIGTERM if the function asked for that, and else with
// SIGKILL.
func (e *environment) terminate() {
	e.terminated.Store(true)
	if !e.wantTerm.Load() {
		e.send(signalKill)
		return
	}
	e.send(signalTerminate)
	e.send(signalThaw)
	time.AfterFunc(e.h.c.Grace, func() { e.send(signalKill) })
}

// api returns the Runtime API of this environment, with the part of the Extensions API by which a function asks for
// SIGTERM.
func (e *environment) api() http.Handler {
	const runtimeAPI, extensionAPI = "/2018-06-01/runtime", "/2020-01-01/extension"
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+runtimeAPI+"/invocation/next", e.next)
	mux.HandleFunc("POST "+runtimeAPI+"/invocation/{id}/{kind}", e.answer)
	mux.HandleFunc("POST "+runtimeAPI+"/init/error", func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		e.reported = reported(InitFailed, r) // the call gets it when the process has ended
		e.mu.Unlock()
		w.WriteHeader(http.StatusAccepted)
	})
	mux.HandleFunc("POST "+extensionAPI+"/register", func(w http.ResponseWriter, _ *http.Request) {
		e.wantTerm.Store(true)
		w.Header().Set("Lambda-Extension-Identifier", newID())
		_ = json.NewEncoder(w).Encode(map[string]string{"functionName": e.h.c.Name, "functionVersion": "$LATEST"})
	})
	// There are no events: the request waits until the process ends.
	mux.HandleFunc("GET "+extensionAPI+"/event/next", func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
	})
	return mux
}

// next serves a poll: it waits for a call, and while it waits the process is stopped if the host freezes processes.
func (e *environment) next(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	if e.init.Load() == 0 {
		e.init.Store(max(1, int64(time.Since(e.began))))
		close(e.ready)
	}
	e.mu.Unlock()
	var i *invocation
	select {
	case i = <-e.work:
	default:
		if e.h.c.Freeze && !e.terminated.Load() {
			e.send(signalFreeze)
		}
		if e.terminated.Load() { // terminate may have continued the process before it was stopped
			e.send(signalThaw)
		}
		select {
		case i = <-e.work:
			e.send(signalThaw)
		case <-r.Context().Done():
			return
		}
	}
	e.mu.Lock()
	e.current = i
	e.mu.Unlock()
	h := w.Header()
	h.Set("Lambda-Runtime-Aws-Request-Id", i.id)
	h.Set("Lambda-Runtime-Deadline-Ms", strconv.FormatInt(i.deadline.UnixMilli(), 10))
	h.Set("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:us-east-1:000000000000:function:"+e.h.c.Name)
	h.Set("Lambda-Runtime-Trace-Id", fmt.Sprintf("Root=1-%08x-%.12x;Sampled=0", time.Now().Unix(), i.id))
	_, _ = w.Write(i.payload) // a function that does not get all of it cannot answer, and is killed at the deadline
}

// answer serves the response to a call, or the error that the function reports for it.
func (e *environment) answer(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	i := e.current
	if i == nil || i.id != r.PathValue("id") {
		e.mu.Unlock()
		http.Error(w, `{"errorType":"InvalidRequestID","errorMessage":"Invalid request ID"}`, http.StatusBadRequest)
		return
	}
	e.current = nil
	e.mu.Unlock()
	var o outcome
	if r.PathValue("kind") == "error" {
		o.err = reported(Reported, r)
	} else {
		o.response, o.err = io.ReadAll(r.Body)
	}
	i.done <- o
	w.WriteHeader(http.StatusAccepted)
}

// reported returns the error that a function reports.
func reported(kind Kind, r *http.Request) *Error {
	var d struct{ ErrorType, ErrorMessage string }
	if err := json.NewDecoder(r.Body).Decode(&d); err != nil {
		d.ErrorMessage = "the function's error is not a JSON document of errorType and errorMessage"
	}
	return &Error{kind, d.ErrorType, d.ErrorMessage}
}
