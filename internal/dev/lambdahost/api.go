package lambdahost

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

const (
	runtimeVersion   = "/2018-06-01/runtime"
	extensionVersion = "/2020-01-01/extension"

	headerRequestID = "Lambda-Runtime-Aws-Request-Id"
	headerDeadline  = "Lambda-Runtime-Deadline-Ms"
	headerARN       = "Lambda-Runtime-Invoked-Function-Arn"
	headerTrace     = "Lambda-Runtime-Trace-Id"
	headerErrorType = "Lambda-Runtime-Function-Error-Type" // a header of an error, or a trailer of a response
	headerErrorBody = "Lambda-Runtime-Function-Error-Body" // a trailer: base64 of the error
	headerExtension = "Lambda-Extension-Identifier"
)

// What a body above MaxResponseBytes is read to, so that the function sees the answer instead of a broken connection.
const maxDiscardBytes = 64 << 20

// poll is a function's request for work.
type poll struct {
	work     chan *invocation // holds one
	replaced chan struct{}    // closed when the function polls again instead
}

// refusal is an answer of the Runtime API that is no 2xx.
type refusal struct {
	status  int
	Type    string `json:"errorType"`
	Message string `json:"errorMessage"`
}

var (
	unknownID = &refusal{http.StatusBadRequest, "InvalidRequestID", "Invalid request ID"}
	truncated = &refusal{http.StatusBadRequest, "TruncatedHTTPRequest", "HTTP request detected as truncated"}
	notNow    = &refusal{http.StatusForbidden, "InvalidStateTransition",
		"The environment is in no state for this request"}
	tooLarge = &refusal{http.StatusRequestEntityTooLarge, "RequestEntityTooLarge",
		fmt.Sprintf("Exceeded maximum allowed payload size (%d bytes).", MaxResponseBytes)}
	noEvents = &refusal{http.StatusForbidden, "Extension.UnsupportedEvents",
		"This host knows extensions only as the means to ask for SIGTERM: register for no events"}
)

// api is the Runtime API of this environment, and what of the Extensions API a function needs to ask for SIGTERM.
func (e *environment) api() http.Handler {
	mux := http.NewServeMux()
	for pattern, serve := range map[string]http.HandlerFunc{
		"GET " + runtimeVersion + "/invocation/next":           e.next,
		"POST " + runtimeVersion + "/invocation/{id}/response": e.response,
		"POST " + runtimeVersion + "/invocation/{id}/error":    e.failure,
		"POST " + runtimeVersion + "/init/error":               e.initFailure,
		"POST " + extensionVersion + "/register":               e.register,
		"GET " + extensionVersion + "/event/next":              e.event,
	} {
		mux.HandleFunc(pattern, serve)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-e.ready:
		case <-r.Context().Done(): // the process was never started: this is another's request
			return
		}
		e.h.mu.Lock()
		gone := e.gone
		if !gone {
			e.handlers.Add(1)
		}
		e.h.mu.Unlock()
		if gone {
			return
		}
		defer e.handlers.Done()
		mux.ServeHTTP(w, r)
	})
}

func (e *environment) next(w http.ResponseWriter, r *http.Request) {
	p := &poll{work: make(chan *invocation, 1), replaced: make(chan struct{})}
	if !e.accept(p) {
		write(w, notNow)
		return
	}
	select {
	case i := <-p.work:
		if r.Context().Err() != nil {
			e.lose(p, i)
			return
		}
		header := w.Header()
		header.Set("Content-Type", "application/json")
		header.Set("Content-Length", strconv.Itoa(len(i.payload)))
		header.Set(headerRequestID, i.id)
		header.Set(headerDeadline, strconv.FormatInt(i.deadline.UnixMilli(), 10))
		header.Set(headerARN, e.h.arn)
		header.Set(headerTrace, i.trace)
		_, _ = w.Write(i.payload) // a function that did not get it whole does not answer, and is killed for it
	case <-p.replaced:
		write(w, notNow)
	case <-r.Context().Done():
		e.lose(p, nil)
	}
}

// accept takes the poll, unless the environment still has something to do.
func (e *environment) accept(p *poll) bool {
	h := e.h
	h.mu.Lock()
	defer h.mu.Unlock()
	switch e.state {
	case busy, ending:
		return false
	case starting:
		if e.reported != nil {
			return false
		}
		e.init, e.polled = time.Since(e.began), true
		h.pause = 0
		h.c.Log.Debug("environment ready", "environment", e.id, "pid", e.pid, "init", e.init)
	case idle:
		close(e.poll.replaced)
		e.poll = p
		return true
	case answered, lost:
	}
	e.disarm()
	e.state, e.poll = idle, p
	if h.closing {
		e.terminate()
		return true
	}
	h.idle = append(h.idle, e)
	h.assignCalls()
	if e.state == idle {
		e.freeze()
	}
	return true
}

// lose is told that a poll's connection broke, with the call that was about to go over it, if any. That call is given
// to the next environment, as no function has seen it, but only once: it may be what the function breaks on.
func (e *environment) lose(p *poll, i *invocation) {
	h := e.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if i == nil {
		select {
		case i = <-p.work:
		default:
		}
	}
	switch {
	case e.state == idle && e.poll == p:
		h.idle = remove(h.idle, e)
	case e.state == busy && e.current == i:
		e.current = nil
		if i.returned {
			i.finish(nil, (&Error{Kind: Exited, Type: TypeExit, Message: "The poll broke off"}).in(i))
			break
		}
		i.returned = true
		h.waiting = append([]*invocation{i}, h.waiting...)
	default:
		return
	}
	e.state, e.poll = lost, nil
	e.thaw()
	e.arm(h.c.Timeout, &Error{Type: TypeTimeout, Message: "The poll broke off, and no other came"})
	h.assignCalls()
}

func (e *environment) response(w http.ResponseWriter, r *http.Request) {
	body, no := read(r)
	document, _ := base64.StdEncoding.DecodeString(r.Trailer.Get(headerErrorBody)) // what is no base64 tells nothing
	failed := r.Trailer.Get(headerErrorType)
	write(w, e.answer(r.PathValue("id"), no, func(i *invocation) {
		if failed != "" {
			i.finish(nil, reported(document, failed).in(i))
			return
		}
		i.finish(body, nil)
	}))
}

func (e *environment) failure(w http.ResponseWriter, r *http.Request) {
	body, no := read(r)
	failed := reported(body, r.Header.Get(headerErrorType))
	write(w, e.answer(r.PathValue("id"), no, func(i *invocation) { i.finish(nil, failed.in(i)) }))
}

// answer ends the call of that id with finish, if it is the current one and has no answer yet. no is what is wrong with
// the body: what is too large is an answer, what broke off is not.
func (e *environment) answer(id string, no *refusal, finish func(*invocation)) *refusal {
	e.h.mu.Lock()
	defer e.h.mu.Unlock()
	i := e.current
	switch {
	case i == nil || i.id != id:
		return unknownID
	case e.state != busy:
		return notNow
	case no == truncated:
		return no
	case no == tooLarge:
		i.finish(nil, (&Error{Kind: ResponseSize, Type: TypeResponseSize,
			Message: fmt.Sprintf("Response payload size exceeded maximum allowed payload size (%d bytes).",
				MaxResponseBytes)}).in(i))
	default:
		finish(i)
	}
	e.state = answered // its deadline stays: the function is to poll again by then
	return no
}

// initFailure records why the init failed. The call gets this error when the process has ended.
func (e *environment) initFailure(w http.ResponseWriter, r *http.Request) {
	body, no := read(r)
	if no == nil {
		failed := reported(body, r.Header.Get(headerErrorType))
		no = e.initialise(func() { e.reported = failed })
	}
	write(w, no)
}

// register lets a function ask for SIGTERM, as lambda.WithEnableSIGTERM does.
func (e *environment) register(w http.ResponseWriter, r *http.Request) {
	body, no := read(r)
	var request struct {
		Events []string `json:"events"`
	}
	if err := json.Unmarshal(body, &request); no == nil && (err != nil || len(request.Events) > 0) {
		no = noEvents
	}
	if no == nil {
		no = e.initialise(func() { e.wantTerm = true })
	}
	if no != nil {
		write(w, no)
		return
	}
	w.Header().Set(headerExtension, newRequestID())
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"functionName": e.h.c.Name, "functionVersion": "$LATEST"})
}

// initialise does what has its place only in an init that has not failed.
func (e *environment) initialise(do func()) *refusal {
	e.h.mu.Lock()
	defer e.h.mu.Unlock()
	if e.state != starting || e.reported != nil {
		return notNow
	}
	do()
	return nil
}

// event is where an extension waits. There are none, so it waits until the process ends.
func (e *environment) event(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// read takes a body of at most MaxResponseBytes, or says that it is truncated or tooLarge.
func read(r *http.Request) ([]byte, *refusal) {
	body, err := io.ReadAll(io.LimitReader(r.Body, MaxResponseBytes+1))
	if err != nil {
		return nil, truncated
	}
	if len(body) <= MaxResponseBytes {
		return body, nil
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, maxDiscardBytes)) // whatever happens, it is too large
	return nil, tooLarge
}

// write answers a request of the Runtime API: 202 without a refusal.
func write(w http.ResponseWriter, no *refusal) {
	w.Header().Set("Content-Type", "application/json")
	if no == nil {
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, `{"status":"OK"}`+"\n")
		return
	}
	w.WriteHeader(no.status)
	_ = json.NewEncoder(w).Encode(no)
}
