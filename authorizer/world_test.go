package authorizer_test

import (
	"bytes"
	"context"
	"crypto/elliptic"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/route"
	"github.com/sluicelimits/sluice/internal/request/apigw"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/request/identity/token"
	"github.com/sluicelimits/sluice/internal/telemetry"
	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

var (
	shapes = []apigw.Shape{apigw.RESTToken, apigw.RESTRequest, apigw.HTTP1, apigw.HTTP2, apigw.WebSocket}
	signer = tokentest.NewEC("k1", elliptic.P256())
	thief  = tokentest.NewEC("k1", elliptic.P256()) // has the key id of signer and another key
)

// world is a Handler with everything that it depends on: plans, API keys, an issuer of JWTs, a store that can fail, and
// a clock that the test sets. The test fails if the handler writes a secret to its log or its metrics.
type world struct {
	t             testing.TB
	now           time.Time
	mu            sync.Mutex           // guards now
	snap          *authorizer.Snapshot // what configuration wraps
	configuration failingConfiguration
	store         *failingStore
	authority     *tokentest.Authority
	log           *secretGuard
	lines         *secretGuard
	recorder      *telemetry.Recorder

	authorizer *authorizer.Authorizer
	verifier   *token.Verifier // nil where there are no issuers
	*authorizer.Handler
}

// setup is what newWorld makes a world from. A test changes what it needs to.
type setup struct {
	authorizer authorizer.Config
	handler    authorizer.HandlerConfig
	tokens     token.Config
	level      slog.Level
}

// failingConfiguration is a snapshot whose methods return the errors that a test sets. It is its own Source.
type failingConfiguration struct {
	*authorizer.Snapshot
	keyErr, tenantErr, anonymousErr error // what Key, Tenant and Anonymous return; nil asks the snapshot
	stale                           bool
	panicValue                      any // what Routed panics with; nil does not panic
}

func (b *failingConfiguration) Begin(context.Context, time.Time) (authorizer.Configuration, func()) {
	return b, nil
}
func (b *failingConfiguration) Stale() bool { return b.stale }
func (b *failingConfiguration) Routed(method string, path *route.Path) bool {
	if b.panicValue != nil {
		panic(b.panicValue)
	}
	return b.Snapshot.Routed(method, path)
}

func (b *failingConfiguration) Key(ctx context.Context, presented string, now time.Time) (*identity.Key, error) {
	if b.keyErr != nil {
		return nil, b.keyErr
	}
	return b.Snapshot.Key(ctx, presented, now)
}

func (b *failingConfiguration) Tenant(ctx context.Context, id string) (*plan.Tenant, error) {
	if b.tenantErr != nil {
		return nil, b.tenantErr
	}
	if id == "planless" { // no file has such a tenant, but a table may
		return &plan.Tenant{ID: id}, nil
	}
	return b.Snapshot.Tenant(ctx, id)
}

func (b *failingConfiguration) Anonymous(ctx context.Context) (string, *plan.Set, error) {
	if b.anonymousErr != nil {
		return "", nil, b.anonymousErr
	}
	return b.Snapshot.Anonymous(ctx)
}

// tenantsWithKeys are the names from which newWorld makes one API key each. Most are tenants of the plans; "nobody" is
// a tenant that no plan file has, and "expired" and "revoked" are keys of acme.
var tenantsWithKeys = []string{"acme", "globex", "initech", "planless", "lax", "strict", "people", "a", "a/b", "nobody",
	"expired", "revoked"}

func newWorld(t testing.TB, text string, settings ...func(*setup)) *world {
	t.Helper()
	w := &world{t: t, now: noon, authority: tokentest.Publishing(signer, tokentest.NewRSA("rsa"))}
	w.log, w.lines = &secretGuard{t: t}, &secretGuard{t: t}
	cfg, err := plan.Parse(configyaml.Source("test.yaml", []byte(text)))
	if err != nil {
		t.Fatal(err)
	}
	var keys []identity.Key
	for _, name := range tenantsWithKeys {
		k := identity.Key{ID: "k-" + name, Tenant: name, Subject: "ci", Pepper: "dev",
			Hash: identity.HashKey(identity.DevPepper(), identity.ExampleKey(name))}
		switch name {
		case "expired":
			k.Tenant, k.ExpiresAt = "acme", noon
		case "revoked":
			k.Tenant, k.Revoked = "acme", true
		}
		keys = append(keys, k)
	}
	found, err := identity.NewKeys(keys, map[string][]byte{"dev": identity.DevPepper()})
	if err != nil {
		t.Fatal(err)
	}
	w.snap = &authorizer.Snapshot{Config: cfg, Keys: found}
	w.configuration = failingConfiguration{Snapshot: w.snap}
	inner := memorytest.New(t)
	w.store = &failingStore{Store: inner}
	if w.recorder, err = telemetry.New(telemetry.Config{Writer: w.lines, Cell: "eu-1",
		Function: "authorizer"}); err != nil {
		t.Fatal(err)
	}
	s := setup{level: slog.LevelDebug}
	s.tokens = token.Config{Claims: []string{"region"}, Client: &http.Client{Transport: w.authority},
		Issuers: []token.Issuer{{
			Issuer: tokentest.Issuer, Audiences: []string{tokentest.Audience}, JWKSURL: tokentest.JWKSURL,
			AllTenants: true,
		}}}
	s.authorizer = authorizer.Config{Source: &w.configuration, Store: w.store, Now: w.clock, Measure: true}
	s.handler = authorizer.HandlerConfig{Recorder: w.recorder, Cell: "eu-1"}
	for _, change := range settings {
		change(&s)
	}
	log := slog.New(twoLogHandlers{telemetry.NewHandler(w.log, s.level),
		slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: s.level})})
	s.tokens.Log, s.authorizer.Log, s.handler.Log = log, log, log
	if len(s.tokens.Issuers) > 0 {
		v, err := token.New(s.tokens)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(v.Close)
		w.verifier, s.authorizer.Tokens = v, v
	}
	if w.authorizer, err = authorizer.New(s.authorizer); err != nil {
		t.Fatal(err)
	}
	s.handler.Authorizer = w.authorizer
	if w.Handler, err = authorizer.NewHandler(s.handler); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *world) advance(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

// takeStoreAway makes each decision of the store fail.
func (w *world) takeStoreAway() {
	gone := errors.New("connection refused")
	w.store.down.Store(&gone)
}

// twoLogHandlers hands each record to two handlers: the deployed one, which redacts secrets, and one that does not.
type twoLogHandlers [2]slog.Handler

func (b twoLogHandlers) Enabled(ctx context.Context, l slog.Level) bool { return b[0].Enabled(ctx, l) }
func (b twoLogHandlers) Handle(ctx context.Context, r slog.Record) error {
	return errors.Join(b[0].Handle(ctx, r.Clone()), b[1].Handle(ctx, r.Clone()))
}
func (b twoLogHandlers) WithAttrs(a []slog.Attr) slog.Handler {
	return twoLogHandlers{b[0].WithAttrs(a), b[1].WithAttrs(a)}
}
func (b twoLogHandlers) WithGroup(n string) slog.Handler {
	return twoLogHandlers{b[0].WithGroup(n), b[1].WithGroup(n)}
}

// secretGuard is a writer that keeps what is written, and fails the test if a secret is written.
type secretGuard struct {
	t    testing.TB
	mu   sync.Mutex
	text bytes.Buffer
}

func (g *secretGuard) Write(p []byte) (int, error) {
	if found := secretIn(string(p)); found != "" {
		g.t.Errorf("%q is in the line %s", found, p)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.text.Write(p)
}

func (g *secretGuard) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.text.String()
}

var secretPattern = regexp.MustCompile(`slk_|\beyJ|s3cr3t|Bearer|\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b|[0-9a-f]{1,` +
	`4}(:[0-9a-f]{0,4}){3,}|BEGIN CERTIFICATE|session=`)

// secretIn returns the first part of the text that no log may hold: a key, a token, a cookie, a certificate, or an
// address. It returns "" if the text has no such part.
func secretIn(text string) string { return secretPattern.FindString(text) }

// Guarantees that secretIn, on which the other tests rely, finds each kind of secret and nothing else.
func TestGuardFindsSecrets(t *testing.T) {
	text := signer.Sign(tokentest.Claims(noon, nil))
	for _, line := range []string{identity.ExampleKey("acme"), identity.NewKey(), text, "addr 203.0.113.7:1",
		"[2001:db8:1:2::99]:443", "::ffff:203.0.113.7",
		"Authorization: Bearer x", "session=s3cr3t"} {
		if secretIn("before "+line+" after") == "" {
			t.Errorf("%q passes", line)
		}
	}
	for _, line := range []string{"2026-03-01T12:00:00.000Z",
		`"instance":"urn:uuid:0b0e9d3c-7a66-4d3e-8a41-6f5e4d3c2b1a"`, "Root=1-69206f10-5f84a1c21bd2f3b94c0e7a66",
		"tenant=acme source=00112233445566778899aabbccddeeff"} {
		if found := secretIn(line); found != "" {
			t.Errorf("%q in %q is no secret", found, line)
		}
	}
}

// call is a request of a client. Its method event makes the event that a kind of API sends for it.
type call struct {
	method, path string   // the path as sent, without stage and base path; default GET /product/1
	header       []string // name, value, name, value, …
	peer         string   // default 198.51.100.9
	arn          string   // path in the ARN; default path
	base         string   // base path of a custom domain, before the path
	stage        string   // default prod
}

func withKey(name string, extra ...string) call {
	return call{header: append([]string{"X-API-Key", identity.ExampleKey(name)}, extra...)}
}

func withHeader(header ...string) call { return call{header: header} }

func withBearer(text string, extra ...string) call {
	return call{header: append([]string{"Authorization", "Bearer " + text}, extra...)}
}

// goldenEvents returns an event of each shape as API Gateway sends it, from the test data of package apigw.
var goldenEvents = sync.OnceValue(func() map[apigw.Shape][]byte {
	out := map[apigw.Shape][]byte{}
	for _, s := range shapes {
		data, err := os.ReadFile(filepath.Join("..", "internal", "request", "apigw", "testdata",
			s.String()+".event.json"))
		if err != nil {
			panic(err)
		}
		out[s] = data
	}
	return out
})

// event returns the golden event of the shape, with the call's method, path, headers and address in it.
func (c call) event(t testing.TB, shape apigw.Shape) []byte {
	t.Helper()
	var e map[string]any
	if err := json.Unmarshal(goldenEvents()[shape], &e); err != nil {
		t.Fatal(err)
	}
	c.setDefaults()
	context, _ := e["requestContext"].(map[string]any)
	arn := "arn:aws:execute-api:eu-west-1:210987654321:" + apiID(shape) + "/" + c.stage + "/" + c.method + "/" +
		strings.TrimPrefix(c.arn, "/")
	lines := c.headerLines()
	switch shape {
	case apigw.RESTToken:
		e["methodArn"], e["authorizationToken"] = arn, ""
		for _, name := range []string{"Authorization", "X-Api-Key"} {
			if v := lines[name]; len(v) > 0 {
				e["authorizationToken"] = v[0]
			}
		}
	case apigw.RESTRequest:
		e["methodArn"], e["httpMethod"], e["path"] = arn, c.method, c.base+c.path
		context["stage"], context["identity"].(map[string]any)["sourceIp"] = c.stage, c.peer
		e["headers"], e["multiValueHeaders"] = lastLines(lines), lines
	case apigw.HTTP1:
		e["methodArn"], e["httpMethod"], e["path"] = arn, c.method, c.eventPath()
		context["stage"], context["identity"].(map[string]any)["sourceIp"] = c.stage, c.peer
		e["headers"] = joinLines(lines)
		delete(e, "authorizationToken")
		delete(e, "identitySource")
	case apigw.HTTP2:
		e["routeArn"], e["rawPath"] = arn, c.eventPath()
		h := context["http"].(map[string]any)
		h["method"], h["path"], h["sourceIp"], context["stage"] = c.method, c.eventPath(), c.peer, c.stage
		e["headers"] = joinLines(lines)
	case apigw.WebSocket:
		context["identity"].(map[string]any)["sourceIp"] = c.peer
		e["headers"], e["multiValueHeaders"] = lastLines(lines), lines
	}
	out, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (c *call) setDefaults() {
	for field, standard := range map[*string]string{&c.method: "GET", &c.path: "/product/1", &c.peer: "198.51.100.9",
		&c.stage: "prod"} {
		if *field == "" {
			*field = standard
		}
	}
	if c.arn == "" {
		c.arn = c.path
	}
}

// eventPath returns the path in the event of an HTTP API. It begins with the stage, or with the base path of a custom
// domain.
func (c *call) eventPath() string {
	if c.base != "" || c.stage == "$default" {
		return c.base + c.path
	}
	return "/" + c.stage + c.path
}

func (c *call) headerLines() map[string][]string {
	h := http.Header{"Accept": {"application/json"}, "User-Agent": {"catalogue-sync/7.1"},
		"X-Amzn-Trace-Id": {"Root=1-69206f10-5f84a1c21bd2f3b94c0e7a66"}}
	for i := 0; i < len(c.header); i += 2 {
		h.Add(c.header[i], c.header[i+1])
	}
	if h["X-Forwarded-For"] == nil {
		h.Set("X-Forwarded-For", c.peer)
	}
	return h
}

func lastLines(lines map[string][]string) map[string]string {
	out := map[string]string{}
	for name, v := range lines {
		out[name] = v[len(v)-1]
	}
	return out
}

// joinLines returns headers as an HTTP API sends them: names in lower case, and several lines joined with commas.
func joinLines(lines map[string][]string) map[string]string {
	out := map[string]string{}
	for name, v := range lines {
		out[strings.ToLower(name)] = strings.Join(v, ",")
	}
	return out
}

// apiID returns the id of the API in the golden event.
func apiID(shape apigw.Shape) string {
	e, err := apigw.Parse(goldenEvents()[shape])
	if err != nil {
		panic(err)
	}
	return e.API
}

// reply is the handler's answer to the gateway, decoded.
type reply struct {
	text      string
	allow     bool
	decision  string // "unauthorized" for a 401
	principal string
	resource  string
	context   map[string]any
}

func (w *world) send(shape apigw.Shape, c call) reply {
	w.t.Helper()
	return w.read(w.Invoke(context.Background(), c.event(w.t, shape)))
}

// read decodes what Invoke returned, as strictly as the gateway does.
func (w *world) read(out []byte, err error) reply {
	w.t.Helper()
	if err != nil {
		// Lambda answers "Unauthorized" only for this very error. A wrapped error has another text.
		if err != apigw.ErrUnauthorized || out != nil { //nolint:errorlint // it must not be wrapped
			w.t.Fatalf("Invoke = %s, %v", out, err)
		}
		return reply{decision: "unauthorized"}
	}
	var a struct {
		IsAuthorized   *bool          `json:"isAuthorized"`
		PrincipalID    string         `json:"principalId"`
		Context        map[string]any `json:"context"`
		PolicyDocument struct {
			Statement []struct{ Effect, Resource string }
		} `json:"policyDocument"`
	}
	if err := json.Unmarshal(out, &a); err != nil || len(out) > apigw.MaxAnswerBytes {
		w.t.Fatalf("%d bytes, %v: %s", len(out), err, out)
	}
	r := reply{text: string(out), context: a.Context, principal: a.PrincipalID}
	for name, v := range a.Context {
		switch v.(type) {
		case string, bool, float64:
		default:
			w.t.Errorf("context value %s is no scalar: %v", name, v)
		}
	}
	r.decision, _ = a.Context["decision"].(string)
	if a.IsAuthorized != nil {
		r.allow = *a.IsAuthorized
		return readUnauthorized(r)
	}
	if len(a.PolicyDocument.Statement) != 1 {
		w.t.Fatalf("not one statement: %s", out)
	}
	r.allow, r.resource = a.PolicyDocument.Statement[0].Effect == "Allow", a.PolicyDocument.Statement[0].Resource
	return readUnauthorized(r)
}

// readUnauthorized returns a 401 of an HTTP API in the form in which read returns those of other APIs. An HTTP API gets
// an answer, and the other kinds of API get an error.
func readUnauthorized(r reply) reply {
	if !r.allow && (r.decision == "no_credential" || r.decision == "bad_credential") {
		return reply{text: r.text, decision: "unauthorized"}
	}
	return r
}

// expect sends a call and checks the decision.
func (w *world) expect(shape apigw.Shape, c call, decision string) reply {
	w.t.Helper()
	r := w.send(shape, c)
	if r.decision != decision || r.allow != (decision == "allowed") {
		w.t.Fatalf("%s, %s %s: %s (allow %v), want %s: %s\n%s", shape, c.method, c.path, r.decision, r.allow, decision,
			r.text, w.log)
	}
	return r
}

// metrics returns the sum of each number over all metric lines, and what the lines say of each limit: its id, then
// "denied" or "shadow_denied", then how often.
func (w *world) metrics() (numbers map[string]float64, limits map[string]map[string]int) {
	w.t.Helper()
	if err := w.recorder.Flush(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	numbers, limits = map[string]float64{}, map[string]map[string]int{}
	for line := range strings.Lines(w.lines.String()) {
		var doc map[string]json.RawMessage
		if err := json.Unmarshal([]byte(line), &doc); err != nil {
			w.t.Fatalf("%v in %s", err, line)
		}
		for name, raw := range doc {
			var n float64
			if json.Unmarshal(raw, &n) == nil {
				numbers[name] += n
			}
		}
		var lineLimits map[string]map[string]int
		if raw := doc["limits"]; raw != nil && json.Unmarshal(raw, &lineLimits) == nil {
			for id, by := range lineLimits {
				if limits[id] == nil {
					limits[id] = map[string]int{}
				}
				for what, n := range by {
					limits[id][what] += n
				}
			}
		}
	}
	return numbers, limits
}

// records returns the log lines with the message, from the handler that redacts and writes JSON.
func (w *world) records(message string) (out []map[string]any) {
	w.t.Helper()
	for line := range strings.Lines(w.log.String()) {
		var r map[string]any
		if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &r) == nil && r["msg"] == message {
			out = append(out, r)
		}
	}
	return out
}

// shapesExcept returns all shapes of events except some.
func shapesExcept(not ...apigw.Shape) []apigw.Shape {
	return slices.DeleteFunc(slices.Clone(shapes), func(s apigw.Shape) bool { return slices.Contains(not, s) })
}
