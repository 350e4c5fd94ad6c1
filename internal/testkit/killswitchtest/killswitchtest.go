// Package killswitchtest is a stand-in for AWS AppConfig Data: it speaks the protocol of its sessions, and does what
// the service does when tokens are used twice or expire, when it is asked too early, and when it is slow, throttles or
// fails. It needs no test, so that programs can be run against it too: their AWS_ENDPOINT_URL_APPCONFIGDATA is what
// [AppConfig.Listen] returns.
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

// The ids of the one configuration that there is.
const (
	Application = "app1234"
	Environment = "env1234"
	Profile     = "prof123"
)

// Setting is the configuration in SLUICE_KILL_SWITCH.
const Setting = Application + "/" + Environment + "/" + Profile

// The calls.
const (
	Session       = "StartConfigurationSession"
	Configuration = "GetLatestConfiguration"
)

const (
	minInterval     = 15 // s, that a client may ask for
	lifetime        = 24 * time.Hour
	maxRequestBytes = 64 << 10
	headerTimeout   = 10 * time.Second
)

// AppConfig is the stand-in. The zero AppConfig has an empty document and is ready for use, also by several goroutines
// at once.
type AppConfig struct {
	// Interval is what clients are told to wait, in whole seconds; 0 is what they ask for. The service itself never
	// tells less than 15 s.
	Interval time.Duration

	mu       sync.Mutex
	document string
	version  int // of the document
	tokens   map[string]*session
	made     int
	calls    map[string]int
	fault    Fault
	faulty   int // calls yet with fault; below 0 all
}

// session is what a token stands for.
type session struct {
	version  int           // that the client has; -1 none
	interval time.Duration // that it is to wait
	from     time.Time     // when the token was given
	first    bool
}

// Fault is what goes wrong with a call. What is not said is as it should be.
type Fault struct {
	On      string        // Session or Configuration; "" both
	Delay   time.Duration // before the answer
	Hang    bool          // no answer for as long as the caller waits
	Drop    bool          // the connection ends without an answer
	Lose    bool          // so, but after the call has done its work: its token is used up
	Code    string        // an error's name, such as ThrottlingException
	Message string        // its message
	Body    string        // instead of the answer
	Status  int           // of an error, default 400, or of a Body, default 200
}

// Throttled is the answer to too many calls.
func Throttled() Fault {
	return Fault{Code: "ThrottlingException", Message: "Rate exceeded", Status: http.StatusTooManyRequests}
}

// Down is the answer of a service that is not well.
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

// Expire ends all sessions, as a day does.
func (a *AppConfig) Expire() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.tokens)
}

// Fail lets the next n calls that it is about go wrong, all from now on if n is below 0, and none if it is 0.
func (a *AppConfig) Fail(f Fault, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fault, a.faulty = f, n
}

// Calls is how many calls of that name arrived, those that went wrong included.
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

type refusal struct {
	status        int
	code, message string
}

func bad(message string) *refusal {
	return &refusal{http.StatusBadRequest, "BadRequestException", message}
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
		refuse(w, &refusal{http.StatusNotFound, "UnknownOperationException", "no such call"})
	case !strings.HasPrefix(signed, "AWS4-HMAC-SHA256 ") || !strings.Contains(signed, "/appconfig/aws4_request"):
		refuse(w, &refusal{http.StatusForbidden, "MissingAuthenticationTokenException", "Missing Authentication Token"})
	case fault.Code != "":
		refuse(w, &refusal{cmp.Or(fault.Status, http.StatusBadRequest), fault.Code, fault.Message})
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

// arrived counts a call, and says what goes wrong with it.
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

// hold waits as long as the fault says, and reports whether there is anybody left to answer.
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
		refuse(w, &refusal{http.StatusNotFound, "ResourceNotFoundException", "there is no such configuration"})
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
	_ = json.NewEncoder(w).Encode(map[string]string{"InitialConfigurationToken": token}) // whoever asked may be gone
}

// token gives a session a new token; mu is held.
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

// latest answers GetLatestConfiguration. A token is good once, and for a day.
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
	_, _ = io.WriteString(w, document) // whoever asked may be gone
}

func refuse(w http.ResponseWriter, why *refusal) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Amzn-Errortype", why.code)
	w.WriteHeader(why.status)
	_ = json.NewEncoder(w).Encode(map[string]string{"message": why.message}) // whoever asked may be gone
}

// Listen serves on a free port of the loopback address until stop, which ends calls that hang.
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
