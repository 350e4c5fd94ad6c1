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
	headerErrorBody = "Lambda-Runtime-Function-Error-Body" // a trailer of a response: the error document in base64
	headerExtension = "Lambda-Extension-Identifier"
)

// maxDiscardBytes is how much of a body above MaxResponseBytes is read and discarded. If the connection were closed
// earlier, the function would see a broken connection instead of the answer 413.
const maxDiscardBytes = 64 << 20

// poll is a request by which a function asks for its next call.
type poll struct {
	work     chan *invocation // receives the call; has room for one
	replaced chan struct{}    // closed when the function sends another poll before this one got a call
}

// refusal is an answer of the Runtime API with a status other than 2xx.
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
		"This host supports extensions only as a way to ask for SIGTERM: register for no events"}
)

// api returns the Runtime API of this environment, with the part of the Extensions API by which a function asks for
// SIGTERM.
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
		case <-r.Context().Done(): // the process was never started, so another program sent the request
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

// next serves a poll: it waits until the host gives a call to the environment.
func (e *environment) next(w http.ResponseWriter, r *http.Request) {
	p := &poll{work: make(chan *invocation, 1), replaced: make(chan struct{})}
	if !e.accept(p) {
		write(w, notNow)
		return
	}
	select {
	case i := <-p.work:
		if r.Context().Err() != nil {
			e.pollBroke(p, i)
			return
		}
		header := w.Header()
		header.Set("Content-Type", "application/json")
		header.Set("Content-Length", strconv.Itoa(len(i.payload)))
		header.Set(headerRequestID, i.id)
		header.Set(headerDeadline, strconv.FormatInt(i.deadline.UnixMilli(), 10))
		header.Set(headerARN, e.h.arn)
		header.Set(headerTrace, i.trace)
		_, _ = w.Write(i.payload) // a function that does not get all of it cannot answer, and is killed at the deadline
	case <-p.replaced:
		write(w, notNow)
	case <-r.Context().Done():
		e.pollBroke(p, nil)
	}
}

// accept makes the environment idle with this poll. It returns false if the environment must not poll in its present
// state: while it has a call without an answer, is ending, or has reported that its init failed.
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

// pollBroke handles a poll whose connection broke. i is the call that was about to be sent over the connection, or nil.
// The call is given to the next environment, since no function has seen it. This happens at most once for each call,
// because the call itself may be why the connections break.
func (e *environment) pollBroke(p *poll, i *invocation) {
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
		if i.requeued {
			i.finish(nil, (&Error{Kind: Exited, Type: TypeExit, Message: "The poll broke off"}).forCall(i))
			break
		}
		i.requeued = true
		h.waiting = append([]*invocation{i}, h.waiting...)
	default:
		return
	}
	e.state, e.poll = lost, nil
	e.thaw()
	e.arm(h.c.Timeout, &Error{Type: TypeTimeout, Message: "The poll broke off, and no other came"})
	h.assignCalls()
}

// response serves the function's response to a call. A trailer with an error makes it an error.
func (e *environment) response(w http.ResponseWriter, r *http.Request) {
	body, bad := read(r)
	document, _ := base64.StdEncoding.DecodeString(r.Trailer.Get(headerErrorBody)) // ignored if it is not base64
	failed := r.Trailer.Get(headerErrorType)
	write(w, e.answer(r.PathValue("id"), bad, func(i *invocation) {
		if failed != "" {
			i.finish(nil, reported(document, failed).forCall(i))
			return
		}
		i.finish(body, nil)
	}))
}

// failure serves the error that the function reports for a call.
func (e *environment) failure(w http.ResponseWriter, r *http.Request) {
	body, bad := read(r)
	failed := reported(body, r.Header.Get(headerErrorType))
	write(w, e.answer(r.PathValue("id"), bad, func(i *invocation) { i.finish(nil, failed.forCall(i)) }))
}

// answer ends the call with the given id by calling finish, if the environment has this call and has not answered it
// yet. bad is the result of reading the body: a body that is too large ends the call with an error, and a truncated
// body does not end the call.
func (e *environment) answer(id string, bad *refusal, finish func(*invocation)) *refusal {
	e.h.mu.Lock()
	defer e.h.mu.Unlock()
	i := e.current
	switch {
	case i == nil || i.id != id:
		return unknownID
	case e.state != busy:
		return notNow
	case bad == truncated:
		return bad
	case bad == tooLarge:
		i.finish(nil, (&Error{Kind: ResponseSize, Type: TypeResponseSize,
			Message: fmt.Sprintf("Response payload size exceeded maximum allowed payload size (%d bytes).",
				MaxResponseBytes)}).forCall(i))
	default:
		finish(i)
	}
	e.state = answered // the deadline of the call stays armed: the function must poll again before it
	return bad
}

// initFailure serves the error that the function reports for its init. The call that waits longest gets this error when
// the process has ended.
func (e *environment) initFailure(w http.ResponseWriter, r *http.Request) {
	body, bad := read(r)
	if bad == nil {
		failed := reported(body, r.Header.Get(headerErrorType))
		bad = e.duringInit(func() { e.reported = failed })
	}
	write(w, bad)
}

// register serves the registration of an extension, by which a function asks for SIGTERM. lambda.WithEnableSIGTERM does
// this.
func (e *environment) register(w http.ResponseWriter, r *http.Request) {
	body, bad := read(r)
	var request struct {
		Events []string `json:"events"`
	}
	err := json.Unmarshal(body, &request)
	if bad == nil && (err != nil || len(request.Events) > 0) {
		bad = noEvents
	}
	if bad == nil {
		bad = e.duringInit(func() { e.wantTerm = true })
	}
	if bad != nil {
		write(w, bad)
		return
	}
	w.Header().Set(headerExtension, newRequestID())
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"functionName": e.h.c.Name, "functionVersion": "$LATEST"})
}

// duringInit calls do, or returns notNow if the init of the environment is over or has failed.
func (e *environment) duringInit(do func()) *refusal {
	e.h.mu.Lock()
	defer e.h.mu.Unlock()
	if e.state != starting || e.reported != nil {
		return notNow
	}
	do()
	return nil
}

// event serves an extension's request for its next event. There are no events, so it waits until the process ends.
func (e *environment) event(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// read reads a body of at most MaxResponseBytes. Otherwise the refusal is truncated or tooLarge.
func read(r *http.Request) ([]byte, *refusal) {
	body, err := io.ReadAll(io.LimitReader(r.Body, MaxResponseBytes+1))
	if err != nil {
		return nil, truncated
	}
	if len(body) <= MaxResponseBytes {
		return body, nil
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, maxDiscardBytes)) // even after an error, the body is too large
	return nil, tooLarge
}

// write answers a request of the Runtime API: with the refusal, or with 202 if it is nil.
func write(w http.ResponseWriter, refused *refusal) {
	w.Header().Set("Content-Type", "application/json")
	if refused == nil {
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, `{"status":"OK"}`+"\n")
		return
	}
	w.WriteHeader(refused.status)
	_ = json.NewEncoder(w).Encode(refused)
}
