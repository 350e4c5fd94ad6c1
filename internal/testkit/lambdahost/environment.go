package lambdahost

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
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
	response []byte // response and err may be read when done is closed
	err      error
	once     sync.Once
	done     chan struct{}
}

func newInvocation(payload []byte) *invocation {
	return &invocation{id: newID(), payload: payload, done: make(chan struct{})}
}

// newID returns a random UUID.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return fmt.Sprintf("%x-%x-4%03x-8%03x-%x", b[:4], b[4:6], b[6], b[8], b[10:])
}

func (i *invocation) finish(response []byte, err error) {
	i.once.Do(func() {
		i.response, i.err = response, err
		close(i.done)
	})
}

// environment is one process of the function, and the Runtime API that the host serves to it.
type environment struct {
	h      *Host
	secret string           // the first segment of the paths of its Runtime API
	work   chan *invocation // passes a call to the poll of the function
	ready  chan struct{}    // closed at the first poll
	gone   chan struct{}    // closed when the process has ended

	init       atomic.Int64 // nanoseconds from the start of the binary to the first poll; 0 before that
	wantTerm   atomic.Bool  // the function registered an extension, so it gets SIGTERM
	terminated atomic.Bool  // the host asked the process to end
	timedOut   atomic.Bool  // the host killed the process because it took too long

	mu       sync.Mutex
	cmd      *exec.Cmd // nil unless the process runs
	began    time.Time
	current  *invocation // the call that the function has not answered yet
	reported *Error      // the error of its init, as the function reported it
	exit     string      // how the process ended
}

func newEnvironment(h *Host) *environment {
	return &environment{h: h, secret: rand.Text(), work: make(chan *invocation), ready: make(chan struct{}),
		gone: make(chan struct{})}
}

func (e *environment) wasReady() bool { return e.init.Load() > 0 }

func (e *environment) hasEnded() bool {
	select {
	case <-e.gone:
		return true
	default:
		return false
	}
}

// serve gives the call to the process, and waits until the call has ended. It reports whether the environment can serve
// another one.
func (e *environment) serve(i *invocation) bool {
	select {
	case <-e.ready:
	case <-e.gone:
		i.finish(nil, e.failedInit())
		return false
	case <-time.After(e.h.c.InitTimeout):
		e.kill()
		i.finish(nil, &Error{InitFailed, "Sandbox.Timedout", fmt.Sprintf("Init timed out after %s",
			e.h.c.InitTimeout)})
		return false
	}
	i.deadline = time.Now().Add(e.h.c.Timeout)
	late := time.After(e.h.c.Timeout)
	select {
	case e.work <- i:
	case <-e.gone:
		i.finish(nil, &Error{Exited, "Runtime.ExitError", e.exit})
		return false
	case <-late:
		e.kill()
		i.finish(nil, &Error{TimedOut, "Sandbox.Timedout", "The function did not poll for its next call"})
		return false
	}
	select {
	case <-i.done:
		return true
	case <-e.gone:
		i.finish(nil, &Error{Exited, "Runtime.ExitError", e.exit})
	case <-late:
		e.kill()
		i.finish(nil, &Error{TimedOut, "Sandbox.Timedout", fmt.Sprintf("Task timed out after %s", e.h.c.Timeout)})
	}
	return false
}

// failedInit returns why the process ended before its first poll: what the function reported, or how it ended.
func (e *environment) failedInit() *Error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reported != nil {
		return e.reported
	}
	return &Error{InitFailed, "Runtime.ExitError", e.exit}
}

// run serves the Runtime API of the environment and runs its process to its end.
func (e *environment) run() {
	runtime.LockOSThread() // see dieWithParent
	defer runtime.UnlockOSThread()
	err := e.execute()
	e.mu.Lock()
	e.cmd = nil
	if e.exit = "Runtime exited without providing a reason"; err != nil {
		e.exit = "Runtime exited with error: " + err.Error()
	}
	e.mu.Unlock()
	e.h.ended(e, e.timedOut.Load())
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
	cmd.Dir = filepath.Dir(c.Binary)
	cmd.Env = append(slices.Clone(e.h.env), "AWS_LAMBDA_RUNTIME_API="+listener.Addr().String()+"/"+e.secret)
	cmd.Stdout, cmd.Stderr = write, write
	setGroup(cmd)
	e.mu.Lock()
	e.began = time.Now()
	if err = cmd.Start(); err == nil {
		e.cmd = cmd
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
	e.timedOut.Store(true)
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
	for pattern, serve := range map[string]http.HandlerFunc{
		"GET " + runtimeAPI + "/invocation/next":           e.next,
		"POST " + runtimeAPI + "/invocation/{id}/response": e.answer,
		"POST " + runtimeAPI + "/invocation/{id}/error":    e.answer,
		"POST " + runtimeAPI + "/init/error":               e.initError,
		"POST " + extensionAPI + "/register":               e.register,
		// There are no events: the request waits until the process ends.
		"GET " + extensionAPI + "/event/next": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		mux.HandleFunc(pattern, serve)
	}
	return http.StripPrefix("/"+e.secret, mux)
}

// next serves a poll: it waits for a call, and while it waits the process is stopped if the host freezes processes.
func (e *environment) next(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	if !e.wasReady() {
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
	for name, value := range map[string]string{
		"Content-Type":                        "application/json",
		"Lambda-Runtime-Aws-Request-Id":       i.id,
		"Lambda-Runtime-Deadline-Ms":          strconv.FormatInt(i.deadline.UnixMilli(), 10),
		"Lambda-Runtime-Invoked-Function-Arn": "arn:aws:lambda:us-east-1:000000000000:function:" + e.h.c.Name,
		"Lambda-Runtime-Trace-Id": fmt.Sprintf("Root=1-%08x-%.24s;Parent=%.16s;Sampled=0",
			uint32(time.Now().Unix()), strings.ReplaceAll(i.id, "-", ""), strings.ReplaceAll(newID(), "-", "")),
	} {
		w.Header().Set(name, value)
	}
	_, _ = w.Write(i.payload) // a function that does not get all of it cannot answer, and is killed at the deadline
}

// answer serves the response to a call, or the error that the function reports for it.
func (e *environment) answer(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	e.mu.Lock()
	i := e.current
	known := i != nil && i.id == r.PathValue("id") && err == nil
	if known {
		e.current = nil
	}
	e.mu.Unlock()
	switch {
	case !known:
		http.Error(w, `{"errorType":"InvalidRequestID","errorMessage":"Invalid request ID"}`, http.StatusBadRequest)
		return
	case strings.HasSuffix(r.URL.Path, "/error"):
		i.finish(nil, reported(Reported, body, r))
	case r.Trailer.Get(errorType) != "":
		i.finish(nil, &Error{Reported, r.Trailer.Get(errorType), "the function failed while it answered"})
	default:
		i.finish(body, nil)
	}
	w.WriteHeader(http.StatusAccepted)
}

// errorType is a header of an error that a function reports, and a trailer of a response that failed.
const errorType = "Lambda-Runtime-Function-Error-Type"

// reported returns the error that a function reported: its type is in the document, or else in the header.
func reported(kind Kind, document []byte, r *http.Request) *Error {
	e := &Error{Kind: kind, Type: r.Header.Get(errorType)}
	var d struct{ ErrorType, ErrorMessage string }
	if err := json.Unmarshal(document, &d); err != nil {
		e.Message = "the function's error is not a JSON document of errorType and errorMessage"
		return e
	}
	if e.Message = d.ErrorMessage; d.ErrorType != "" {
		e.Type = d.ErrorType
	}
	return e
}

// initError serves the error that the function reports for its init. The call gets it when the process has ended.
func (e *environment) initError(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		e.mu.Lock()
		e.reported = reported(InitFailed, body, r)
		e.mu.Unlock()
	}
	w.WriteHeader(http.StatusAccepted)
}

// register serves the registration of an extension, by which a function asks for SIGTERM.
func (e *environment) register(w http.ResponseWriter, r *http.Request) {
	var request struct{ Events []string }
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil && !errors.Is(err, io.EOF) ||
		len(request.Events) > 0 {
		http.Error(w, "this host sends no events to extensions", http.StatusForbidden)
		return
	}
	e.wantTerm.Store(true)
	w.Header().Set("Lambda-Extension-Identifier", newID())
	_ = json.NewEncoder(w).Encode(map[string]string{"functionName": e.h.c.Name, "functionVersion": "$LATEST"})
}
