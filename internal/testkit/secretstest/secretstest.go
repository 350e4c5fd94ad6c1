// Package secretstest is a stand-in for AWS Secrets Manager. It speaks the protocol of the SDK for GetSecretValue. It
// behaves like the service when secrets rotate, and when the service is slow, throttles or fails. It does not need a
// test, so programs can be run against it: set their AWS_ENDPOINT_URL_SECRETS_MANAGER to the URL that [Manager.Listen]
// returns.
package secretstest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Stages of a version.
const (
	Current  = "AWSCURRENT"
	Pending  = "AWSPENDING"
	Previous = "AWSPREVIOUS"
)

const (
	target          = "secretsmanager.GetSecretValue"
	contentType     = "application/x-amz-json-1.1"
	maxRequestBytes = 64 << 10
	headerTimeout   = 10 * time.Second
)

// Manager is the stand-in. The zero Manager holds no secrets and is ready for use, also by several goroutines at once.
type Manager struct {
	mu       sync.Mutex
	secrets  map[string]*secret // by name
	versions int
	calls    int
	fault    Fault
	faulty   int // how many further calls have the fault; below 0: all
}

type secret struct {
	arn      string
	versions []*version
}

type version struct {
	id, text string
	binary   []byte
	created  time.Time
	stages   []string
}

// Fault says what goes wrong with a call. The zero Fault changes nothing.
type Fault struct {
	Delay   time.Duration // how long the answer is delayed
	Hang    bool          // there is no answer for as long as the caller waits
	Drop    bool          // the connection ends without an answer
	Code    string        // the answer is an error with this name, such as ThrottlingException
	Message string        // the message of the error
	Body    string        // the answer has this body
	Status  int           // status of the answer; default 400 for an error and 200 for a Body
	Stage   string        // the answer has the version of this stage, whatever the caller asked for
}

// Throttled is the answer to too many calls.
func Throttled() Fault { return Fault{Code: "ThrottlingException", Message: "Rate exceeded"} }

// Down is the answer of a service that fails.
func Down() Fault {
	return Fault{Code: "InternalServiceError", Message: "An error occurred on the server side.",
		Status: http.StatusInternalServerError}
}

// Set gives a secret a value at once: the version that was AWSCURRENT becomes AWSPREVIOUS. It returns the version's id.
func (m *Manager) Set(name, text string) (versionID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.add(name)
	v.text = text
	m.promote(name, v)
	return v.id
}

// SetBinary does what Set does, with a binary value.
func (m *Manager) SetBinary(name string, value []byte) (versionID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.add(name)
	v.binary = slices.Clone(value)
	m.promote(name, v)
	return v.id
}

// Stage begins a rotation: it adds a version with the stage AWSPENDING, and the current version stays. It returns the
// id of the new version.
func (m *Manager) Stage(name, text string) (versionID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.add(name)
	v.text = text
	m.move(name, Pending, v)
	return v.id
}

// Finish ends a rotation: the version that is AWSPENDING becomes AWSCURRENT. As in the service, it then has both
// stages. Finish returns false if there is no such version.
func (m *Manager) Finish(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.secrets[name]
	if s == nil {
		return false
	}
	v := s.staged(Pending)
	if v == nil || v == s.staged(Current) {
		return false
	}
	m.promote(name, v)
	return true
}

// Remove deletes a secret.
func (m *Manager) Remove(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.secrets, name)
}

// Fail makes the next n calls go wrong. If n is below 0, all further calls go wrong; if n is 0, none does.
func (m *Manager) Fail(f Fault, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault, m.faulty = f, n
}

// Calls returns how many calls arrived, including those that went wrong.
func (m *Manager) Calls() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls
}

// ARN returns the ARN of the secret with a name.
func ARN(name string) string {
	return "arn:aws:secretsmanager:eu-west-1:123456789012:secret:" + name + "-a1B2c3"
}

// add adds a version without a stage to a secret, and makes the secret if there is none. The caller holds mu.
func (m *Manager) add(name string) *version {
	if m.secrets == nil {
		m.secrets = make(map[string]*secret)
	}
	s := m.secrets[name]
	if s == nil {
		s = &secret{arn: ARN(name)}
		m.secrets[name] = s
	}
	m.versions++
	v := &version{id: fmt.Sprintf("00000000-0000-4000-8000-%012d", m.versions), created: time.Now()}
	s.versions = append(s.versions, v)
	return v
}

// promote makes v the version AWSCURRENT, and the version before it AWSPREVIOUS.
func (m *Manager) promote(name string, v *version) {
	if was := m.secrets[name].staged(Current); was != nil {
		m.move(name, Previous, was)
	}
	m.move(name, Current, v)
}

// move gives a stage to v, and removes it from the version that has it.
func (m *Manager) move(name, stage string, v *version) {
	for _, other := range m.secrets[name].versions {
		other.stages = slices.DeleteFunc(other.stages, func(s string) bool { return s == stage })
	}
	v.stages = append(v.stages, stage)
}

func (s *secret) staged(stage string) *version {
	for _, v := range s.versions {
		if slices.Contains(v.stages, stage) {
			return v
		}
	}
	return nil
}

// refusal is an answer that is an error.
type refusal struct {
	status        int
	code, message string
}

type request struct{ SecretId, VersionId, VersionStage string }

type answer struct {
	ARN           string
	CreatedDate   float64
	Name          string
	SecretString  *string `json:",omitempty"`
	SecretBinary  []byte  `json:",omitempty"`
	VersionId     string
	VersionStages []string
}

// ServeHTTP answers one call.
func (m *Manager) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	asked, bad := read(r)
	m.mu.Lock()
	m.calls++
	var fault Fault
	if m.faulty != 0 {
		fault = m.fault
		m.faulty = max(m.faulty-1, -1)
	}
	m.mu.Unlock()
	if !fault.hold(r.Context()) {
		return
	}
	switch {
	case fault.Drop:
		panic(http.ErrAbortHandler)
	case bad != nil:
		refuse(w, bad)
	case fault.Code != "":
		refuse(w, &refusal{cmp.Or(fault.Status, http.StatusBadRequest), fault.Code, fault.Message})
	case fault.Body != "":
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(cmp.Or(fault.Status, http.StatusOK))
		_, _ = io.WriteString(w, fault.Body)
	default:
		if fault.Stage != "" {
			asked.VersionStage, asked.VersionId = fault.Stage, ""
		}
		m.answer(w, asked)
	}
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

// read parses a call, and checks it as the service does, except that the signature is not verified: the call only has
// to be signed for this service.
func read(r *http.Request) (asked request, bad *refusal) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxRequestBytes+1))
	signed := r.Header.Get("Authorization")
	switch {
	case err != nil || len(body) > maxRequestBytes:
		return asked, &refusal{http.StatusBadRequest, "SerializationException", "the body cannot be read"}
	case r.Method != http.MethodPost || r.URL.Path != "/" || r.Header.Get("Content-Type") != contentType:
		return asked, &refusal{http.StatusBadRequest, "InvalidRequestException", "not a call of the JSON protocol 1.1"}
	case r.Header.Get("X-Amz-Target") != target:
		return asked, &refusal{http.StatusBadRequest, "UnknownOperationException", "only " + target + " is known here"}
	case !strings.HasPrefix(signed, "AWS4-HMAC-SHA256 ") || !strings.Contains(signed, "/secretsmanager/aws4_request"):
		return asked, &refusal{http.StatusBadRequest, "MissingAuthenticationTokenException",
			"Missing Authentication Token"}
	case json.Unmarshal(body, &asked) != nil || asked.SecretId == "":
		return asked, &refusal{http.StatusBadRequest, "InvalidParameterException", "SecretId is missing"}
	}
	return asked, nil
}

func (m *Manager) answer(w http.ResponseWriter, asked request) {
	out, bad := m.find(asked)
	if bad != nil {
		refuse(w, bad)
		return
	}
	w.Header().Set("Content-Type", contentType)
	_ = json.NewEncoder(w).Encode(out) // the client may be gone
}

func (m *Manager) find(asked request) (*answer, *refusal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, s := range m.secrets {
		if asked.SecretId != name && asked.SecretId != s.arn {
			continue
		}
		if asked.VersionId == "" && asked.VersionStage == "" {
			asked.VersionStage = Current
		}
		for _, v := range s.versions {
			if asked.VersionId != "" && v.id != asked.VersionId || asked.VersionStage != "" &&
				!slices.Contains(v.stages, asked.VersionStage) {
				continue
			}
			out := &answer{ARN: s.arn, Name: name, CreatedDate: float64(v.created.UnixMilli()) / 1000, VersionId: v.id,
				VersionStages: slices.Clone(v.stages), SecretBinary: slices.Clone(v.binary)}
			if v.binary == nil {
				text := v.text
				out.SecretString = &text
			}
			return out, nil
		}
	}
	return nil, &refusal{http.StatusBadRequest, "ResourceNotFoundException",
		"Secrets Manager can't find the specified secret."}
}

func refuse(w http.ResponseWriter, bad *refusal) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Amzn-Errortype", bad.code)
	w.WriteHeader(bad.status)
	// The client may be gone.
	_ = json.NewEncoder(w).Encode(map[string]string{"__type": bad.code, "Message": bad.message})
}

// Listen serves on a free port of the loopback address until stop is called. stop also ends calls that hang.
func (m *Manager) Listen() (url string, stop func() error, err error) {
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: m, ReadHeaderTimeout: headerTimeout}
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
