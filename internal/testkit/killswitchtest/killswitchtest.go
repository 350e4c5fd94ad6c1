// Package killswitchtest is a stand-in for AWS AppConfig Data. It speaks the protocol of its sessions. It behaves like
// the service when a token is used twice or has expired, when a client polls too early, and when the service is slow,
// throttles or fails. It does not need a test, so programs can be run against it: set their
// AWS_ENDPOINT_URL_APPCONFIGDATA to the URL that [AppConfig.Listen] returns.
package killswitchtest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The ids of the only configuration that the stand-in has.
const (
	Application = "app1234"
	Environment = "env1234"
	Profile     = "prof123"
)

// Setting is the value of SLUICE_KILL_SWITCH for this configuration.
const Setting = Application + "/" + Environment + "/" + Profile

// The names of the calls.
const (
	Session       = "StartConfigurationSession"
	Configuration = "GetLatestConfiguration"
)

const (
	notFound        = "ResourceNotFoundException"
	minInterval     = 15 // the shortest interval that a client may ask for, seconds
	lifetime        = 24 * time.Hour
	maxRequestBytes = 64 << 10
	headerTimeout   = 10 * time.Second
)

// AppConfig is the stand-in. Nothing is deployed in the zero AppConfig, which is ready for use, also by several
// goroutines at once.
type AppConfig struct {
	// Interval is how long clients are told to wait before the next poll, in whole seconds; 0: as long as they ask for.
	// The service itself never tells clients to wait for less than 15 s.
	Interval time.Duration

	mu       sync.Mutex
	document string
	version  int // version of the document; 0 if none is deployed
	tokens   map[string]*session
	made     int
	calls    map[string]int
	fault    Fault
	faulty   int // how many further calls have the fault; below 0: all
}

// session is the state of a session that a token stands for.
type session struct {
	version  int           // version of the document that the client has; -1 if it has none
	interval time.Duration // how long the client must wait before it polls
	from     time.Time     // when the token was given
	first    bool          // the client has not polled yet, so it need not wait
}

// Fault says what goes wrong with a call. The zero Fault changes nothing.
type Fault struct {
	On      string        // the calls that it concerns: Session or Configuration; "": both
	Delay   time.Duration // how long the answer is delayed
	Hang    bool          // there is no answer for as long as the caller waits
	Drop    bool          // the connection ends without an answer
	Lose    bool          // the call is carried out, so that its token is used up, and the answer is lost
	Code    string        // the answer is an error with this name, such as ThrottlingException
	Message string        // the message of the error
	Missing string        // the type of the resource that an error says does not exist; "" if it says none
	Body    string        // the answer has this body
	Status  int           // status of the answer; default 400 for an error and 200 for a Body
}

// Throttled is the answer to too many calls.
func Throttled() Fault {
	return Fault{Code: "ThrottlingException", Message: "Rate exceeded", Status: http.StatusTooManyRequests}
}

// Down is the answer of a service that fails.
func Down() Fault {
	return Fault{Code: "InternalServerException", Message: "An error occurred on the server side.",
		Status: http.StatusInternalServerError}
}

// Set deploys a document.
func (a *AppConfig) Set(document string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.document = document
	a.version++
}

// Undeploy leaves nothing deployed, as after a first deployment that AppConfig has taken back.
func (a *AppConfig) Undeploy() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.document, a.version = "", 0
}

// Expire ends all sessions, as if a day had passed.
func (a *AppConfig) Expire() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.tokens)
}

// Fail makes the next n calls that the fault concerns go wrong. If n is below 0, all further calls go wrong; if n is 0,
// none does.
func (a *AppConfig) Fail(f Fault, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fault, a.faulty = f, n
}

// Calls returns how many calls of that name arrived, including those that went wrong.
func (a *AppConfig) Calls(name string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.calls[name]
}

// request is the body of a StartConfigurationSession.
type request struct {
	ApplicationIdentifier, EnvironmentIdentifier, ConfigurationProfileIdentifier string
	RequiredMinimumPollIntervalInSeconds                                         int
}

// refusal is an answer that is an error.
type refusal struct {
	status                 int
	code, message, missing string
}

func bad(message string) *refusal {
	return &refusal{http.StatusBadRequest, "BadRequestException", message, ""}
}

// ServeHTTP answers one call.
func (a *AppConfig) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := map[string]string{"POST /configurationsessions": Session,
		"GET /configuration": Configuration}[r.Method+" "+r.URL.Path]
	fault := a.arrived(name)
	if !fault.hold(r.Context()) {
		return
	}
	signed := r.Header.Get("Authorization")
	switch {
	case fault.Drop:
		panic(http.ErrAbortHandler)
	case name == "":
		refuse(w, &refusal{http.StatusNotFound, "UnknownOperationException", "no such call", ""})
	case !strings.HasPrefix(signed, "AWS4-HMAC-SHA256 ") || !strings.Contains(signed, "/appconfig/aws4_request"):
		refuse(w, &refusal{http.StatusForbidden, "MissingAuthenticationTokenException", "Missing Authentication Token",
			""})
	case fault.Code != "":
		refuse(w, &refusal{cmp.Or(fault.Status, http.StatusBadRequest), fault.Code, fault.Message, fault.Missing})
	case fault.Body != "":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(cmp.Or(fault.Status, http.StatusOK))
		_, _ = io.WriteString(w, fault.Body)
	case name == Session:
		a.begin(w, r, fault.Lose)
	default:
		a.latest(w, r, fault.Lose)
	}
}

// arrived counts a call, and returns its fault.
func (a *AppConfig) arrived(name string) (f Fault) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.calls == nil {
		a.calls = make(map[string]int)
	}
	a.calls[name]++
	if a.faulty != 0 && (a.fault.On == "" || a.fault.On == name) {
		f = a.fault
		a.faulty = max(a.faulty-1, -1)
	}
	return f
}

// hold waits as long as the fault says. It returns false if the caller has gone meanwhile.
func (f *Fault) hold(ctx context.Context) bool {
	if f.Hang {
		<-ctx.Done()
		return false
	}
	if f.Delay <= 0 {
		return true
	}
	timer := time.NewTimer(f.Delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// begin answers StartConfigurationSession.
func (a *AppConfig) begin(w http.ResponseWriter, r *http.Request, lose bool) {
	var asked request
	body, err := io.ReadAll(io.LimitReader(r.Body, maxRequestBytes))
	if err == nil {
		err = json.Unmarshal(body, &asked)
	}
	if err != nil {
		refuse(w, bad("the body cannot be read"))
		return
	}
	every := asked.RequiredMinimumPollIntervalInSeconds
	switch {
	case asked.ApplicationIdentifier != Application || asked.EnvironmentIdentifier != Environment ||
		asked.ConfigurationProfileIdentifier != Profile:
		refuse(w, &refusal{http.StatusNotFound, notFound, "there is no such configuration", ""})
		return
	case every != 0 && every < minInterval:
		refuse(w, bad("RequiredMinimumPollIntervalInSeconds is below 15"))
		return
	}
	interval := time.Duration(cmp.Or(every, 60)) * time.Second
	a.mu.Lock()
	token := a.token(&session{version: -1, interval: cmp.Or(a.Interval, interval), first: true})
	a.mu.Unlock()
	if lose {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]string{"InitialConfigurationToken": token}) // the client may be gone
}

// token returns a new token for a session. The caller holds mu.
func (a *AppConfig) token(s *session) string {
	if a.tokens == nil {
		a.tokens = make(map[string]*session)
	}
	a.made++
	s.from = time.Now()
	name := fmt.Sprintf("token-not-to-be-seen-%d", a.made)
	a.tokens[name] = s
	return name
}

// latest answers GetLatestConfiguration. A token can be used once, within a day.
func (a *AppConfig) latest(w http.ResponseWriter, r *http.Request, lose bool) {
	token := r.URL.Query().Get("configuration_token")
	a.mu.Lock()
	s := a.tokens[token]
	age := time.Duration(0)
	if s != nil {
		age = time.Since(s.from)
	}
	switch {
	case s == nil || age > lifetime:
		a.mu.Unlock()
		refuse(w, bad("the token is unknown, was used, or has expired"))
		return
	case !s.first && age < s.interval:
		a.mu.Unlock()
		refuse(w, bad("the poll interval is not over"))
		return
	case a.version == 0:
		a.mu.Unlock()
		refuse(w, &refusal{http.StatusNotFound, notFound, "nothing is deployed", "Deployment"})
		return
	}
	delete(a.tokens, token)
	document := ""
	if s.version != a.version {
		document = a.document
	}
	next := a.token(&session{version: a.version, interval: s.interval})
	a.mu.Unlock()
	if lose {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Next-Poll-Configuration-Token", next)
	w.Header().Set("Next-Poll-Interval-In-Seconds", strconv.Itoa(int(s.interval/time.Second)))
	_, _ = io.WriteString(w, document) // the client may be gone
}

func refuse(w http.ResponseWriter, why *refusal) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Amzn-Errortype", why.code)
	w.WriteHeader(why.status)
	_ = json.NewEncoder(w).Encode(map[string]string{"message": why.message, "ResourceType": why.missing})
}

// Listen serves on a free port of the loopback address until stop is called. stop also ends calls that hang.
func (a *AppConfig) Listen() (url string, stop func() error, err error) {
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: a, ReadHeaderTimeout: headerTimeout}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	return "http://" + l.Addr().String(), func() error {
		err := server.Close()
		if e := <-ended; !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, e)
		}
		return err
	}, nil
}
