//go:build unix

package endtoend_test

import (
	"bytes"
	"context"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile/configfiletest"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/apigateway"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
	"github.com/sluicelimits/sluice/internal/testkit/lambdahost"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
	"github.com/sluicelimits/sluice/internal/testkit/secretstest"
	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
	"github.com/sluicelimits/sluice/middleware"
)

const (
	patient    = 60 * time.Second // how long tests wait for something that must happen, even on a busy machine
	secretName = "sluice/eu-1"
	apiID      = "a1b2c3d4e5"
	prodPepper = "p1"
)

// client is the address of the clients in these tests, if the system has more loopback addresses. It is not 127.0.0.1,
// because that is in log lines for other reasons.
var client = map[bool]string{true: "127.83.12.7"}[runtime.GOOS == "linux"]

// world is one cell: the function's bundle, AWS services, and the environments of its authorizer.
type world struct {
	t       *testing.T
	dir     string
	env     map[string]string
	secrets *secretstest.Manager
	pepper  []byte
	keys    map[string]string // the API key, by tenant
	entries string            // of the keys, for a plans file
	host    *lambdahost.Host
	sink    *sink // where lines go; &told unless a test has its own

	mu    sync.Mutex
	lines []string // of this cell's authorizer
}

// newWorld returns a cell with a secret, a key for each tenant, and plans in a file. It has no store unless the test
// adds one.
func newWorld(t *testing.T, plans string, tenants ...string) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), secrets: &secretstest.Manager{}, pepper: []byte(rand.Text()),
		keys: make(map[string]string), sink: &told}
	told.secret("a client's address", client)
	told.secret("a pepper", string(w.pepper))
	addressKey := bytes.Repeat([]byte(rand.Text())[:16], 2)
	told.secret("the key of addresses", string(addressKey))
	w.secrets.Set(secretName, fmt.Sprintf(`{"peppers":{%q:%q},"addressKey":%q}`, prodPepper,
		base64.StdEncoding.EncodeToString(w.pepper),
		base64.StdEncoding.EncodeToString(addressKey)))
	manager, stop, err := w.secrets.Listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stop() })
	w.env = map[string]string{
		"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": told.secret("AWS's secret key", rand.Text()),
		"AWS_SESSION_TOKEN": told.secret("AWS's session token", rand.Text()),
		"AWS_ENDPOINT_URL":  unusedURL(t), "AWS_ENDPOINT_URL_SECRETS_MANAGER": manager,
		"SLUICE_CELL": "eu-1", "SLUICE_CONFIG_FILE": "plans.json", "SLUICE_COUNTERS_TABLE": "counters",
		"SLUICE_SECRET":    secretName,
		"SLUICE_LOG_LEVEL": "debug", // with the most lines, none of which may contain a secret
	}
	for i, tenant := range tenants {
		w.keys[tenant] = told.secret("an API key", identity.NewKey())
		w.entries += w.entry(fmt.Sprintf("k%d", i), tenant, w.keys[tenant])
	}
	if err := os.Link(executable, filepath.Join(w.dir, "bootstrap")); err != nil {
		t.Fatal(err)
	}
	w.file("plans.json", string(configfiletest.JSON(t, w.plans(plans))))
	return w
}

// entry returns the entry of a key in a plans file.
func (w *world) entry(id, tenant, key string) string {
	return fmt.Sprintf("  - { id: %s, tenant: %q, subject: ci, pepper: %s, hash: %q }\n", id, tenant, prodPepper,
		identity.HashKey(w.pepper, key))
}

// plans returns a plans file with the cell's keys.
func (w *world) plans(text string) string {
	if w.entries == "" {
		return text
	}
	return text + "\nkeys:\n" + w.entries
}

func (w *world) file(name, text string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// unusedURL returns a URL at which no server listens.
func unusedURL(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

// redis makes the cell count in a Redis server, with a deadline that a busy machine can meet.
func (w *world) redis() *redistest.Server {
	w.t.Helper()
	s := redistest.Start(w.t)
	w.env["SLUICE_REDIS"], w.env["SLUICE_REDIS_TLS"], w.env["SLUICE_REDIS_DEADLINE"] = s.Addr, "false", "2s"
	return s
}

// dynamodb makes the cell count in a new table. It returns the endpoint.
func (w *world) dynamodb() string {
	w.t.Helper()
	endpoint := dynamodbtest.Need(w.t)
	c, done := dynamodbtest.Connect(endpoint)
	w.t.Cleanup(done)
	w.env["SLUICE_COUNTERS_TABLE"] = "endtoend-" + strings.ToLower(rand.Text())
	w.env["SLUICE_DYNAMODB_DEADLINE"], w.env["AWS_ENDPOINT_URL_DYNAMODB"] = "5s", endpoint
	if err := dynamodb.Create(w.t.Context(), c, w.env["SLUICE_COUNTERS_TABLE"]); err != nil {
		w.t.Fatal(err)
	}
	return endpoint
}

// issuer starts an issuer whose keys are fetched over HTTP, and which may issue tokens for any tenant.
func (w *world) issuer(signers ...*tokentest.Signer) *tokentest.Authority {
	w.t.Helper()
	a := tokentest.Publishing(signers...)
	s := httptest.NewServer(a)
	w.t.Cleanup(s.Close)
	w.env["SLUICE_ISSUERS"] = fmt.Sprintf(`[{"issuer":%q,"audiences":[%q],"jwksUrl":%q,"allTenants":true}]`,
		tokentest.Issuer, tokentest.Audience, s.URL)
	return a
}

func newSigner(kid string) *tokentest.Signer { return tokentest.NewEC(kid, elliptic.P256()) }

// bearer returns the header with a token, which no line may contain.
func bearer(token string) []string {
	return []string{"Authorization", "Bearer " + told.secret("a token", token)}
}

// key returns the header with a tenant's API key.
func (w *world) key(tenant string) []string {
	w.t.Helper()
	if w.keys[tenant] == "" {
		w.t.Fatalf("%s has no key", tenant)
	}
	return []string{"X-Api-Key", w.keys[tenant]}
}

// start runs the authorizer in at most the given number of environments. Each is stopped by SIGSTOP while it has no
// request.
func (w *world) start(environments int) {
	w.t.Helper()
	host, err := lambdahost.Start(context.Background(), lambdahost.Config{
		Binary: filepath.Join(w.dir, "bootstrap"), Name: "authorizer", Env: w.env, Environments: environments,
		InitTimeout: patient, Timeout: 10 * time.Second, Grace: patient, Freeze: true, Log: w.sink.log(),
		Output: func(l lambdahost.Line) {
			w.sink.line(l)
			w.mu.Lock()
			defer w.mu.Unlock()
			w.lines = append(w.lines, l.Text)
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.host = host
	w.t.Cleanup(func() { w.close() })
}

// close ends the authorizer as Lambda does, waits for its end, and checks its output.
func (w *world) close() {
	w.t.Helper()
	closeHost(w.t, w.host)
	if s := w.host.Stats(); s.Lost > 0 {
		w.t.Errorf("an environment ended by itself or hung: %+v", s)
	}
	for _, leak := range w.sink.findSecrets() {
		w.t.Errorf("a log line tells %s", leak)
	}
}

func closeHost(t *testing.T, h *lambdahost.Host) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	if err := h.Close(ctx); err != nil {
		t.Errorf("a function does not end: %v", err)
	}
}

// function runs this binary as the Lambda function of that name.
func (w *world) function(name string) *lambdahost.Host {
	w.t.Helper()
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	host, err := lambdahost.Start(context.Background(), lambdahost.Config{Binary: self, Name: name,
		Env:          map[string]string{functionVar: name},
		Environments: 2, InitTimeout: patient, Timeout: 10 * time.Second, Grace: patient, Freeze: true,
		Log: w.sink.log(), Output: w.sink.line})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { closeHost(w.t, host) })
	return host
}

// output returns what the authorizer has written so far.
func (w *world) output() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.lines)
}

// metric returns the sum of a metric of the authorizer so far.
func (w *world) metric(name string) (total float64) {
	w.t.Helper()
	for _, l := range w.output() {
		var m map[string]any
		if err := json.Unmarshal([]byte(l), &m); err != nil {
			w.t.Fatalf("a line is not JSON: %s", l)
		}
		if m["_aws"] != nil {
			n, _ := m[name].(float64)
			total += n
		}
	}
	return total
}

// api is an API that is served.
type api struct {
	w      *world
	d      *apigateway.Description
	base   string // with the stage's prefix
	client *http.Transport
}

// serve serves the API of a description. Its function "authorizer" is that of the cell, and "backend" the given one.
func (w *world) serve(description string, backend apigateway.Function) *api {
	w.t.Helper()
	d, err := apigateway.Parse("api.yaml", []byte(description))
	if err != nil {
		w.t.Fatal(err)
	}
	return w.serveAPI(d, map[string]apigateway.Function{"authorizer": w.host, "backend": backend})
}

// serveAPI serves an API with its functions.
func (w *world) serveAPI(d *apigateway.Description, functions map[string]apigateway.Function) *api {
	w.t.Helper()
	s, err := apigateway.New(apigateway.Config{Description: d, Functions: functions, Log: w.sink.log()})
	if err != nil {
		w.t.Fatal(err)
	}
	server := httptest.NewServer(s)
	from := &net.Dialer{}
	if client != "" {
		from.LocalAddr = &net.TCPAddr{IP: net.ParseIP(client)}
	}
	a := &api{w: w, d: d, base: server.URL + d.Prefix(), client: &http.Transport{DialContext: from.DialContext,
		MaxIdleConnsPerHost: 64}}
	w.t.Cleanup(func() { a.client.CloseIdleConnections(); server.Close() })
	return a
}

// reply is an answer as the client gets it.
type reply struct {
	status int
	header http.Header
	body   string
}

func (r *reply) String() string { return fmt.Sprintf("%d %v %s", r.status, r.header, r.body) }

// try sends a request. The header arguments are name, value, name, value and so on.
func (a *api) try(method, path string, header ...string) (*reply, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, a.base+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(header); i += 2 {
		r.Header[header[i]] = append(r.Header[header[i]], header[i+1])
	}
	res, err := a.client.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusSwitchingProtocols {
		return &reply{res.StatusCode, res.Header, ""}, nil
	}
	body, err := io.ReadAll(res.Body)
	return &reply{res.StatusCode, res.Header, string(body)}, err
}

func (a *api) send(method, path string, header ...string) *reply {
	a.w.t.Helper()
	got, err := a.try(method, path, header...)
	if err != nil {
		a.w.t.Fatalf("%s %s: %v", method, path, err)
	}
	return got
}

// wantStatus sends a request, and fails unless the answer has the status.
func (a *api) wantStatus(want int, method, path string, header ...string) *reply {
	a.w.t.Helper()
	got := a.send(method, path, header...)
	if got.status != want {
		lines := a.w.output()
		a.w.t.Fatalf("%s %.200s: %s, want %d; the function's last output is\n%s", method, path, got, want,
			strings.Join(lines[max(0, len(lines)-5):], "\n"))
	}
	return got
}

// seen is what a backend reports about a request.
type seen struct {
	Tenant, Subject, Plan, KeyID string
	StoreFailed                  bool
	Path                         string
	Header                       map[string]string
}

func (r *reply) seen(t *testing.T) (s seen) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.body), &s); err != nil {
		t.Fatalf("decode the backend's answer: %v in %s", err, r)
	}
	return s
}

// backendAnswer is the answer of every backend: the caller, by the middleware, and the headers of the request.
func backendAnswer(ctx context.Context, path string, header map[string]string) []byte {
	who, ok := middleware.FromContext(ctx)
	if !ok {
		return []byte(`"our middleware is not in front of this"`)
	}
	out, err := json.Marshal(seen{who.Tenant, who.Subject, who.Plan, who.KeyID, who.StoreFailed, path, header})
	if err != nil { // not reached: texts always marshal
		panic(err)
	}
	return out
}

// backend starts a web service with the middleware, and returns its URL.
func (w *world) backend() string {
	w.t.Helper()
	s := httptest.NewServer(middleware.Behind(middleware.MappedHeaders)(http.HandlerFunc(func(rw http.ResponseWriter,
		r *http.Request) {
		header := make(map[string]string)
		for name, lines := range r.Header {
			header[name] = strings.Join(lines, ",")
		}
		_, _ = rw.Write(backendAnswer(r.Context(), r.URL.EscapedPath(), header))
	})))
	w.t.Cleanup(s.Close)
	return s.URL
}

// backendLambda is a Lambda function behind the wrapper, for any payload format.
func backendLambda(ctx context.Context, event []byte) ([]byte, error) {
	var e struct {
		Path, RawPath string
		Headers       map[string]string
	}
	if err := json.Unmarshal(event, &e); err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{"statusCode": http.StatusOK,
		"body": string(backendAnswer(ctx, e.Path+e.RawPath, e.Headers))})
}

func mustFinish(t *testing.T, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	if err := redistest.Until(ctx, f); err != nil {
		t.Fatal(err)
	}
}
