//go:build unix

package lambdahost

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
)

func newTestHost(t *testing.T) *Host {
	t.Helper()
	h, err := Start(context.Background(), Config{Binary: os.Args[0], Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// Guarantees that a call that an environment did not receive, because the connection of its poll broke, is given to the
// next environment that polls.
func TestCallOfABrokenPollIsGivenAgain(t *testing.T) {
	h := newTestHost(t)
	e := &environment{h: h, id: 1}
	h.live[e.id] = e
	i := &invocation{id: "i", payload: []byte("payload"), done: make(chan struct{})}
	h.waiting = []*invocation{i}

	broken, cancel := context.WithCancel(t.Context())
	cancel()
	e.next(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil).WithContext(broken))
	if e.state != lost || len(h.waiting) != 1 || h.waiting[0] != i || len(h.idle) != 0 {
		t.Fatalf("after a broken poll the state is %d, waiting %v, idle %v", e.state, h.waiting, h.idle)
	}
	w := httptest.NewRecorder()
	e.next(w, httptest.NewRequest("GET", "/", nil))
	if e.state != busy || w.Body.String() != "payload" || w.Header().Get(headerRequestID) != "i" {
		t.Errorf("after another poll the state is %d, the poll's answer %q", e.state, w.Body)
	}
	e.disarm()
}

// Guarantees that a call is given to at most two environments. If the connections of both broke, the call is likely the
// reason.
func TestCallOfABrokenPollIsGivenAgainOnlyOnce(t *testing.T) {
	h := newTestHost(t)
	e := &environment{h: h, id: 1}
	h.live[e.id] = e
	i := &invocation{id: "i", done: make(chan struct{})}
	h.waiting = []*invocation{i}
	broken, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		e.next(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil).WithContext(broken))
	}
	var failure *Error
	if !errors.As(i.err, &failure) || failure.Kind != Exited || len(h.waiting) != 0 {
		t.Errorf("the call = %v, waiting %v; want it failed", i.err, h.waiting)
	}
	e.disarm()
}

// Guarantees that an idle environment whose poll broke gets no call until it polls again.
func TestEnvironmentWithoutAPollIsNotIdle(t *testing.T) {
	h := newTestHost(t)
	e := &environment{h: h, id: 1}
	h.live[e.id] = e
	broken, cancel := context.WithCancel(t.Context())
	cancel()
	e.next(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil).WithContext(broken))
	if e.state != lost || len(h.idle) != 0 || e.deadline == nil {
		t.Fatalf("state %d, idle %v, deadline %v; want the state lost, and a deadline at which it is killed", e.state,
			h.idle, e.deadline)
	}
	i := &invocation{id: "i", done: make(chan struct{})}
	if err := h.enqueue(i); err != nil || len(h.waiting) != 1 {
		t.Fatalf("enqueue = %v, waiting %v", err, h.waiting)
	}
	e.next(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	if e.state != busy || e.current != i {
		t.Errorf("after a poll the state is %d, the call %v", e.state, e.current)
	}
	e.disarm()
}

// Guarantees that the deadline of a call ends when the environment polls again, so that an idle environment is not
// killed.
func TestIdleEnvironmentHasNoDeadline(t *testing.T) {
	h := newTestHost(t)
	e := &environment{h: h, id: 1, state: answered}
	e.arm(time.Hour, &Error{})
	if !e.accept(&poll{}) || e.state != idle || e.deadline != nil {
		t.Errorf("after a poll the state is %d, the deadline %v; want it idle without one", e.state, e.deadline)
	}
}

// Guarantees that a process is killed if Close comes between the decision to start it and its start.
func TestProcessThatIsStartedTooLateIsKilled(t *testing.T) {
	e := &environment{h: newTestHost(t), ready: make(chan struct{})}
	e.h.c.InitTimeout = time.Hour // the init timeout must not kill it
	e.kill(nil)
	cmd := exec.Command("sleep", "1000")
	setGroup(cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	e.started(cmd, time.Now())
	if err := cmd.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("the process = %v, want it killed", err)
	}
}

// Guarantees that a second poll of an environment replaces the first one, which the client may have given up.
func TestLaterPollReplaces(t *testing.T) {
	h := newTestHost(t)
	e := &environment{h: h, id: 1}
	h.live[e.id] = e
	w, ended := httptest.NewRecorder(), make(chan struct{})
	go func() {
		defer close(ended)
		e.next(w, httptest.NewRequest("GET", "/", nil))
	}()
	polls := func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return e.state == idle
	}
	for !polls() {
		runtime.Gosched()
	}
	first, second := e.poll, &poll{work: make(chan *invocation, 1), replaced: make(chan struct{})}
	if !e.accept(second) {
		t.Fatal("a poll of an idle environment was refused")
	}
	<-ended
	if w.Code != http.StatusForbidden {
		t.Errorf("status of the first poll = %d, want 403", w.Code)
	}
	e.pollBroke(first, nil) // the connection of the first poll ends only now
	i := &invocation{id: "i", done: make(chan struct{})}
	if err := h.enqueue(i); err != nil || <-second.work != i || len(h.idle) != 0 {
		t.Errorf("enqueue = %v, idle %v", err, h.idle)
	}
	e.disarm()
}

// Guarantees that the pause before the next init doubles up to a bound with each init that fails, and is gone after one
// that succeeds.
func TestPauseGrowsWithEachFailedInit(t *testing.T) {
	h := newTestHost(t)
	h.c.InitBackoff, h.c.MaxInitBackoff = 3*time.Second, 20*time.Second
	for _, want := range []time.Duration{3, 6, 12, 20, 20} {
		h.initFailed(&environment{h: h}, &Error{Kind: InitFailed})
		if h.pause != want*time.Second {
			t.Errorf("pause = %v, want %d s", h.pause, want)
		}
	}
	e := &environment{h: h}
	if !e.accept(&poll{}) || h.pause != 0 {
		t.Errorf("pause = %v after a good init, want none", h.pause)
	}
}

// FuzzReported checks that whatever a function posts as its error becomes an error with a type.
func FuzzReported(f *testing.F) {
	f.Add([]byte(`{"errorType":"T","errorMessage":"m"}`), "")
	f.Add([]byte(`{"errorType":"","errorMessage":"m","stackTrace":[]}`), "Of.Header")
	f.Add([]byte(`[1]`), "\n")
	f.Add([]byte{}, "")
	f.Fuzz(func(t *testing.T, document []byte, header string) {
		e := reported(document, header)
		if e.Kind != Reported || e.Type == "" || string(e.Document) != string(document) {
			t.Errorf("reported(%q, %q) = %+v", document, header, e)
		}
		var back *Error
		if !errors.As(e.forCall(&invocation{id: "r"}), &back) || !strings.HasSuffix(back.Error(), "(request r)") {
			t.Errorf("Error() = %q", back.Error())
		}
	})
}
