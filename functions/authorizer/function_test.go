//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile/configfiletest"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/built"
	"github.com/sluicelimits/sluice/internal/testkit/lambdahost"
	"github.com/sluicelimits/sluice/internal/testkit/secretstest"
	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

// executable is the path of the function's executable, which differs from the deployed one in the processor only.
var executable string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "sluice-authorizer-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		executable = filepath.Join(dir, "bootstrap")
		if err := built.Function(executable, "."); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

const (
	secretName = "sluice/test"
	pepper     = "not-the-dev-pepper-of-everyone"
	client     = "198.51.100.20" // the address in the event
	patient    = 30 * time.Second
)

// world is the environment of a function: a bundle, the AWS services, and its output.
type world struct {
	t       *testing.T
	dir     string
	env     map[string]string
	secrets *secretstest.Manager
	key     string // of tenant acme
	host    *lambdahost.Host

	mu    sync.Mutex
	lines []string
}

// plans returns a file with the limits of plan pro, which are a list in YAML.
func plans(limits, key string) string {
	return fmt.Sprintf(`
plans:
  - id: pro
    limits:
%s
tenants:
  - { id: acme, plan: pro }
  - { id: globex, plan: pro }
keys:
  - { id: k1, tenant: acme, subject: ci, pepper: p1, hash: %q }
`, limits, identity.HashKey([]byte(pepper), key))
}

// newWorld has a secret, and no other service unless the test adds one.
func newWorld(t *testing.T, limits string) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), secrets: &secretstest.Manager{}, key: identity.NewKey()}
	url, stop, err := w.secrets.Listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stop() })
	base64 := base64.StdEncoding.EncodeToString
	w.secrets.Set(secretName, fmt.Sprintf(`{"peppers":{"p1":%q},"addressKey":%q}`, base64([]byte(pepper)),
		base64(bytes.Repeat([]byte("k"), 32))))
	w.env = map[string]string{
		"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "not-to-be-seen-key",
		"AWS_SESSION_TOKEN": "not-to-be-seen-token",
		"AWS_ENDPOINT_URL":  unusedURL(t), "AWS_ENDPOINT_URL_SECRETS_MANAGER": url,
		"SLUICE_CELL": "eu-1", "SLUICE_CONFIG_FILE": "plans.json", "SLUICE_COUNTERS_TABLE": "counters",
		"SLUICE_SECRET": secretName,
	}
	if err := os.Link(executable, filepath.Join(w.dir, "bootstrap")); err != nil {
		t.Fatal(err)
	}
	w.plans(plans(limits, w.key))
	return w
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

func (w *world) file(name, text string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// plans writes the plans file of the zip, from YAML.
func (w *world) plans(yaml string) {
	w.t.Helper()
	w.file("plans.json", string(configfiletest.JSON(w.t, yaml)))
}

func (w *world) start() {
	w.t.Helper()
	host, err := lambdahost.Start(context.Background(), lambdahost.Config{
		Binary: filepath.Join(w.dir, "bootstrap"), Name: "authorizer", Env: w.env, Environments: 1,
		InitTimeout: patient, Timeout: patient,
		Freeze: true, // the process is frozen between two calls
		Output: func(l lambdahost.Line) {
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

// close ends the function as Lambda does, and waits for its end.
func (w *world) close() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	if err := w.host.Close(ctx); err != nil {
		w.t.Errorf("the function does not end: %v", err)
	}
}

func (w *world) output() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.lines)
}

// outcome is the answer as API Gateway reads it.
type outcome struct {
	PrincipalID    string
	PolicyDocument struct {
		Statement []struct{ Effect string }
	}
	Context map[string]any
}

func (o *outcome) effect() string {
	if len(o.PolicyDocument.Statement) != 1 {
		return fmt.Sprintf("%d statements", len(o.PolicyDocument.Statement))
	}
	return o.PolicyDocument.Statement[0].Effect
}

// call sends an event of a REST API with these headers, which are pairs.
func (w *world) call(headers ...string) (*outcome, error) {
	w.t.Helper()
	answer, err := w.host.Invoke(context.Background(), event(w.t, headers...))
	if err != nil {
		return nil, err
	}
	var o outcome
	if err := json.Unmarshal(answer, &o); err != nil {
		w.t.Fatalf("%v: %s", err, answer)
	}
	return &o, nil
}

// wantAnswer fails unless the answer has the effect and decision.
func (w *world) wantAnswer(effect, decision string, headers ...string) *outcome {
	w.t.Helper()
	o, err := w.call(headers...)
	if err != nil {
		w.t.Fatalf("%v, want %s\n%s", err, effect, strings.Join(w.output(), "\n"))
	}
	if o.effect() != effect || o.Context["decision"] != decision {
		w.t.Fatalf("%s %v, want %s %s\n%s", o.effect(), o.Context, effect, decision, strings.Join(w.output(), "\n"))
	}
	return o
}

func event(t *testing.T, headers ...string) []byte {
	t.Helper()
	text, err := os.ReadFile("../../internal/request/apigw/testdata/rest_request.event.json")
	if err != nil {
		t.Fatal(err)
	}
	var e map[string]any
	if err := json.Unmarshal(text, &e); err != nil {
		t.Fatal(err)
	}
	one, all := map[string]any{}, map[string]any{}
	for i := 0; i < len(headers); i += 2 {
		one[headers[i]], all[headers[i]] = headers[i+1], []string{headers[i+1]}
	}
	e["headers"], e["multiValueHeaders"] = one, all
	out, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

const ten = `      - { id: burst, tiers: [ { period: 1h, threshold: 10 } ] }`

// refusal returns the error with which the function fails to start.
func (w *world) refusal() *lambdahost.Error {
	w.t.Helper()
	_, err := w.call()
	var e *lambdahost.Error
	if !errors.As(err, &e) || e.Kind != lambdahost.InitFailed || e.Type != "Sluice.Configuration" {
		w.t.Fatalf("%v, want a failed init\n%s", err, strings.Join(w.output(), "\n"))
	}
	return e
}

// Guarantees that invalid settings are all reported at once, to Lambda and in the log, and that no secret is in either.
func TestBadEnvironment(t *testing.T) {
	w := newWorld(t, ten)
	delete(w.env, "SLUICE_SECRET")
	w.env["SLUICE_CEL"], w.env["SLUICE_REDIS_DEADLINE"], w.env["SLUICE_COUNTERS_TABLE"] = "eu-1", "9h",
		"not-to-be-seen {}"
	w.start()
	told := w.refusal().Message
	for _, want := range []string{"SLUICE_CEL ", "SLUICE_REDIS_DEADLINE ", "SLUICE_COUNTERS_TABLE ",
		"SLUICE_SECRET is missing"} {
		if !strings.Contains(told, want) {
			t.Errorf("Lambda does not get %q: %s", want, told)
		}
	}
	w.close()
	lines := w.output()
	if len(lines) != 1 || !strings.Contains(lines[0], "SLUICE_SECRET is missing") ||
		strings.Contains(told+lines[0], "not-to-be-seen") {
		t.Errorf("told %s\nlogged %q", told, lines)
	}
	checkLines(t, lines)
}

// Guarantees that a plans file with errors stops the function, which reports all of them with their places.
func TestBadPlans(t *testing.T) {
	w := newWorld(t, "      - { id: burst, tiers: [ { period: 1h, threshold: 0 } ] }\n      - { id: burst, rat: 5 }")
	w.start()
	told := w.refusal().Message
	for _, want := range []string{"plans.json:5:", "plans.json:6:", "threshold", "rat"} {
		if !strings.Contains(told, want) {
			t.Errorf("Lambda does not get %q: %s", want, told)
		}
	}
}

// Guarantees that a limit which the cell's store cannot keep stops the function.
func TestPlansThatTheStoreCannotKeep(t *testing.T) {
	w := newWorld(t, "      - { id: strict, algorithm: sliding_log, tiers: [ { period: 1m, threshold: 5 } ] }")
	w.start()
	if told := w.refusal().Message; !strings.Contains(told, "plan pro") || !strings.Contains(told, "strict") {
		t.Errorf("Lambda gets: %s", told)
	}
}

// Guarantees that a missing region or role is an error at the start that says so, and not an error of each call.
func TestWithoutCredentials(t *testing.T) {
	w := newWorld(t, ten)
	delete(w.env, "AWS_SECRET_ACCESS_KEY")
	w.start()
	if told := w.refusal().Message; !strings.Contains(told, "AWS_SECRET_ACCESS_KEY") {
		t.Errorf("Lambda gets: %s", told)
	}
}

// Guarantees that JWTs are accepted from the issuers of the environment, and from no others.
func TestToken(t *testing.T) {
	w := newWorld(t, ten)
	w.withRedis()
	signer, other := tokentest.NewEC("one", elliptic256), tokentest.NewEC("one", elliptic256)
	w.env["SLUICE_ISSUERS"] = fmt.Sprintf(`[{"issuer":%q,"audiences":[%q],"jwksUrl":%q,"allTenants":true}]`,
		tokentest.Issuer, tokentest.Audience, jwks(t, signer))
	w.start()
	claims := tokentest.Claims(time.Now(), tokentest.With("tenant_id", "globex"))
	o := w.wantAnswer("Allow", "allowed", "Authorization", "Bearer "+signer.Sign(claims))
	if o.Context["tenant"] != "globex" {
		t.Errorf("context %v, want tenant globex", o.Context)
	}
	w.unauthorized("Authorization", "Bearer "+other.Sign(claims))
	claims["iss"] = "https://elsewhere.example"
	w.unauthorized("Authorization", "Bearer "+signer.Sign(claims))
}

func (w *world) unauthorized(headers ...string) {
	w.t.Helper()
	o, err := w.call(headers...)
	var e *lambdahost.Error
	if !errors.As(err, &e) || e.Kind != lambdahost.Reported || e.Message != "Unauthorized" {
		w.t.Errorf("%v %v, want the error Unauthorized", o, err)
	}
}

// checkLines fails unless each line is JSON: a log line, or metrics.
func checkLines(t *testing.T, lines []string) (metrics []map[string]any) {
	t.Helper()
	for _, l := range lines {
		var m map[string]any
		if err := json.Unmarshal([]byte(l), &m); err != nil {
			t.Errorf("a line is not JSON: %s", l)
			continue
		}
		_, hasLevel := m["level"]
		_, hasMetrics := m["_aws"]
		if hasLevel == hasMetrics {
			t.Errorf("a line is neither a log line nor metrics: %s", l)
		}
		if hasMetrics {
			metrics = append(metrics, m)
		}
	}
	return metrics
}

// sum returns the sum of a metric over the lines.
func sum(metrics []map[string]any, name string) (total float64) {
	for _, m := range metrics {
		n, _ := m[name].(float64)
		total += n
	}
	return total
}

// names returns the names of the metrics in the lines.
func names(metrics []map[string]any) []string {
	all := map[string]bool{}
	for _, m := range metrics {
		for name := range m {
			all[name] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}
