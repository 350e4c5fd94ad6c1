package bench

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/cell"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/route"
	"github.com/sluicelimits/sluice/internal/request/identity/token"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
	"github.com/sluicelimits/sluice/internal/testkit/lambdahost"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
	"github.com/sluicelimits/sluice/internal/testkit/secretstest"
	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

// The plans file of the functions that figures measure. Every tenant has three limits. Those of the plan "narrow" admit
// narrowUnits in all, and those of "wide" admit more than any figure asks for. The longest window lasts for a year, so
// that it does not end during a measurement.
const (
	functionPlan = `  - id: %s
    limits:
      - { id: burst, algorithm: token_bucket, rate: 1000000, period: 1s, burst: 2000000 }
      - id: put-product
        match: { methods: [PUT], pathPattern: "/v1/organizations/{org}/product/*" }
        tiers: [ { period: 10s, threshold: 10000000 } ]
      - { id: yearly, tiers: [ { period: 8760h, threshold: %d } ] }
`
	narrowUnits    = 5
	functionLimits = 3
	yearlyTier     = 2 // index of the yearly limit in the results of a decision

	functionMemoryMB = 512
	patient          = 30 * time.Second // longer than any step takes, even on a busy machine
)

// deployment is the surroundings of an authorizer function: a bundle with a plans file, Redis or DynamoDB, a secret and
// an issuer of JWTs.
type deployment struct {
	dir    string
	env    map[string]string
	redis  string // address
	config *plan.Config
	signer *tokentest.Signer
	event  map[string]any
	stops  []func()
}

// deploy starts everything that a function needs. wide and narrow are the numbers of tenants on these plans, which are
// called "wide-0", "wide-1" and so on.
func deploy(signer *tokentest.Signer, wide, narrow int) (d *deployment, err error) {
	d = &deployment{signer: signer, env: map[string]string{
		"AWS_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local",
		"AWS_SESSION_TOKEN": "local",
		"SLUICE_CELL":       "eu-1", "SLUICE_CONFIG_FILE": "plans.json", "SLUICE_COUNTERS_TABLE": "counters",
		"SLUICE_SECRET": "sluice/bench",
	}}
	defer func() {
		if err != nil {
			d.close()
			d = nil
		}
	}()
	if d.dir, err = os.MkdirTemp("", "sluice-bench-"); err != nil {
		return d, err
	}
	d.stops = append(d.stops, func() { _ = os.RemoveAll(d.dir) })
	var text strings.Builder
	fmt.Fprintf(&text, "plans:\n"+functionPlan+functionPlan+"tenants:\n", "wide", 1_000_000_000, "narrow", narrowUnits)
	for i := range wide {
		fmt.Fprintf(&text, "  - { id: wide-%d, plan: wide }\n", i)
	}
	for i := range narrow {
		fmt.Fprintf(&text, "  - { id: narrow-%d, plan: narrow }\n", i)
	}
	plans, err := plan.JSON(time.Now(), configyaml.Source("plans.yaml", []byte(text.String())))
	if err != nil {
		return d, err
	}
	if d.config, err = plan.Parse(plan.Source{Name: "plans.json", Data: plans}); err != nil {
		return d, err
	}
	if err = os.WriteFile(filepath.Join(d.dir, "plans.json"), plans, 0o600); err != nil {
		return d, err
	}
	golden, err := os.ReadFile(filepath.Join(tree(), "internal", "request", "apigw", "testdata",
		"rest_request.event.json"))
	if err != nil {
		return d, err
	}
	if err = json.Unmarshal(golden, &d.event); err != nil {
		return d, err
	}
	server, err := redistest.Launch(d.dir)
	if err != nil {
		return d, err
	}
	d.stops = append(d.stops, server.Kill)
	d.redis, d.env["SLUICE_REDIS"], d.env["SLUICE_REDIS_TLS"] = server.Addr, server.Addr, "false"
	d.withIssuer()
	return d, d.withSecret()
}

func (d *deployment) close() {
	for i := len(d.stops) - 1; i >= 0; i-- {
		d.stops[i]()
	}
}

func (d *deployment) withSecret() error {
	manager := &secretstest.Manager{}
	url, stop, err := manager.Listen()
	if err != nil {
		return err
	}
	d.stops = append(d.stops, func() { _ = stop() })
	encode := base64.StdEncoding.EncodeToString
	manager.Set(d.env["SLUICE_SECRET"], fmt.Sprintf(`{"peppers":{"p1":%q},"addressKey":%q}`,
		encode(bytes.Repeat([]byte("p"), 32)), encode(bytes.Repeat([]byte("a"), 32))))
	d.env["AWS_ENDPOINT_URL_SECRETS_MANAGER"] = url
	return nil
}

func (d *deployment) withIssuer() {
	server := httptest.NewServer(tokentest.Publishing(d.signer))
	d.stops = append(d.stops, server.Close)
	d.env["SLUICE_ISSUERS"] = fmt.Sprintf(`[{"issuer":%q,"audiences":[%q],"jwksUrl":%q,"allTenants":true}]`,
		tokentest.Issuer, tokentest.Audience, server.URL)
}

// withDynamoDB adds the DynamoDB on this machine, with a table of its own.
func (d *deployment) withDynamoDB() error {
	endpoint, err := dynamodbtest.Endpoint()
	if err != nil {
		return err
	}
	client, done := dynamodbtest.Connect(endpoint)
	defer done()
	d.env["AWS_ENDPOINT_URL_DYNAMODB"] = endpoint
	d.env["SLUICE_COUNTERS_TABLE"] = fmt.Sprintf("bench-%d-%d", os.Getpid(), time.Now().UnixNano())
	return dynamodb.Create(context.Background(), client, d.env["SLUICE_COUNTERS_TABLE"])
}

// with returns a copy of the function's variables in which some are changed: pairs has names and values in turn. An
// empty value removes the variable.
func (d *deployment) with(pairs ...string) map[string]string {
	env := maps.Clone(d.env)
	for pair := range slices.Chunk(pairs, 2) {
		env[pair[0]] = pair[1]
		if pair[1] == "" {
			delete(env, pair[0])
		}
	}
	return env
}

// call returns an event of a REST API with a JWT of the tenant.
func (d *deployment) call(tenant string) ([]byte, error) {
	text := "Bearer " + d.signer.Sign(tokentest.Claims(time.Now(), tokentest.With("tenant_id", tenant, "jti", "1")))
	one, all := d.event["headers"].(map[string]any), d.event["multiValueHeaders"].(map[string]any)
	delete(one, "x-api-key")
	delete(all, "x-api-key")
	one["Authorization"], all["Authorization"] = text, []string{text}
	return json.Marshal(d.event)
}

// calls returns an event of each of the tenants word-0, word-1 and so on.
func (d *deployment) calls(word string, tenants int) ([][]byte, error) {
	events := make([][]byte, tenants)
	for i := range events {
		var err error
		if events[i], err = d.call(fmt.Sprintf("%s-%d", word, i)); err != nil {
			return nil, err
		}
	}
	return events, nil
}

// wantSpentUnits returns an error if Redis has counted other than the wanted units of the tenants: see countSpentUnits.
func (d *deployment) wantSpentUnits(word string, tenants int, want int64) error {
	spent, err := d.countSpentUnits(word, tenants)
	if err == nil && spent != want {
		err = fmt.Errorf("redis has counted %d units of %d admitted calls of %s tenants", spent, want, word)
	}
	return err
}

// countSpentUnits returns the units that Redis has counted in the year's windows of the tenants word-0, word-1 and so
// on. All leases must have been given back.
func (d *deployment) countSpentUnits(word string, tenants int) (units int64, err error) {
	store, err := redis.New(context.Background(), redis.Config{Addrs: []string{d.redis}, Deadline: patient})
	if err != nil {
		return 0, err
	}
	defer func() { _ = store.Close() }()
	path := route.Clean(d.event["path"].(string))
	now := time.Now()
	for i := range tenants {
		tenant, _ := d.config.Tenant(fmt.Sprintf("%s-%d", word, i))
		req := limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: tenant.ID},
			Charges: tenant.Limits(now).AppendCharges(nil, &plan.Attributes{Method: http.MethodPut, Path: &path})}
		var decision limit.Decision
		if err := store.Peek(context.Background(), &req, now, &decision); err != nil {
			return 0, err
		}
		if len(decision.Results) != functionLimits {
			return 0, fmt.Errorf("%s has %d limits, want %d", tenant.ID, len(decision.Results), functionLimits)
		}
		units += decision.Results[yearlyTier].Used()
	}
	return units, nil
}

// outcome holds the parts of the authorizer's answer that figures check.
type outcome struct {
	PolicyDocument struct {
		Statement []struct{ Effect string }
	}
	Context map[string]any
}

func (o *outcome) allowed() bool {
	return len(o.PolicyDocument.Statement) == 1 && o.PolicyDocument.Statement[0].Effect == "Allow"
}

// read parses an answer of the authorizer. An answer that is about another tenant, or that does not have the headers of
// the three limits, is an error: then the limiter was not asked.
func read(answer []byte, tenant string) (*outcome, error) {
	o := new(outcome)
	if err := json.Unmarshal(answer, o); err != nil {
		return nil, fmt.Errorf("%w: %s", err, answer)
	}
	policy, _ := o.Context["rateLimitPolicy"].(string)
	if o.Context["tenant"] != tenant || o.Context["rateLimitLimit"] == nil ||
		strings.Count(policy, `"`) != 2*functionLimits {
		return nil, fmt.Errorf("the answer is not one of %d limits for %s: %s", functionLimits, tenant, answer)
	}
	return o, nil
}

// admitted returns an error unless the answer admits the tenant, and a store has counted the request.
func admitted(answer []byte, tenant string) error {
	o, err := read(answer, tenant)
	if err == nil && (!o.allowed() || o.Context["storeFailed"] != nil) {
		err = fmt.Errorf("not admitted, or not by a store: %s", answer)
	}
	return err
}

// tree returns the folder of the repository: the nearest one at or above the working folder that has a file
// bench/go.mod. Without one it returns the working folder, and whoever opens a file in it names the missing file. The
// path of this source file cannot be used, because programs that are built with -trimpath do not contain it.
func tree() string {
	start, err := os.Getwd()
	if err != nil {
		return "."
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "bench", "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			return start
		}
	}
}

// function is the binary of a function: the authorizer, or one with which it is compared.
type function struct {
	name   string
	binary string
	env    map[string]string
}

// function builds a function of the module in a folder of the repository as scripts/lambdas does, but for this machine.
// It puts the plans file into the folder of the binary.
func (d *deployment) function(name, module, program string) (*function, error) {
	f := &function{name: name, binary: filepath.Join(d.dir, name, "bootstrap"), env: d.env}
	cmd := exec.Command("go", "build", //nolint:gosec // the programs are this repository's
		"-trimpath", "-buildvcs=false", "-tags", "lambda.norpc,nethttpomithttp2",
		"-ldflags=-s -w -buildid=", "-o", f.binary, program)
	cmd.Dir = filepath.Join(tree(), module)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build %s: %w\n%s", program, err, out)
	}
	return f, os.Link(filepath.Join(d.dir, "plans.json"), filepath.Join(d.dir, name, "plans.json"))
}

// start starts the function, which is then called through the Runtime API. Its errors go to standard error.
func (f *function) start() (*lambdahost.Host, error) {
	return lambdahost.Start(context.Background(), lambdahost.Config{
		Binary: f.binary, Name: f.name, Env: f.env, MemoryMB: functionMemoryMB, InitTimeout: patient, Timeout: patient,
		Grace: patient,
		Output: func(l lambdahost.Line) {
			if strings.Contains(l.Text, `"ERROR"`) {
				fmt.Fprintln(os.Stderr, l.Text)
			}
		},
	})
}

// stop ends a function as Lambda does, with SIGTERM, so that it gives back its leases.
func stop(h *lambdahost.Host) error {
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	return h.Close(ctx)
}

// inProcess is the authorizer as it is deployed, in this process. Its costs can be measured without those of the
// Runtime API and of other processes.
type inProcess struct {
	*cell.Function
	metrics metricLines
	close   func() error
}

// here makes the authorizer of the deployment in this process, with some variables changed: see deployment.with.
func (d *deployment) here(pairs ...string) (*inProcess, error) {
	env := d.with(append(pairs, "AWS_LAMBDA_FUNCTION_NAME", "authorizer", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE",
		strconv.Itoa(functionMemoryMB))...)
	var list []string
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	bundle := os.DirFS(d.dir)
	var issuers token.Issuers
	settings, err := environ.Parse(list, bundle, &issuers)
	if err != nil {
		return nil, err
	}
	memory, garbage := debug.SetMemoryLimit(-1), debug.SetGCPercent(100) // cell.New changes both
	debug.SetGCPercent(garbage)
	p := &inProcess{}
	p.Function, err = cell.New(cell.Config{
		Settings: settings, Issuers: issuers, Env: func(name string) string { return env[name] }, Bundle: bundle,
		Output: &p.metrics, Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err != nil {
		return nil, err
	}
	p.close = sync.OnceValue(func() error {
		defer debug.SetMemoryLimit(memory)
		defer debug.SetGCPercent(garbage)
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		defer cancel()
		return p.Close(ctx)
	})
	return p, nil
}

// metricLines collects the lines of metrics that a function writes.
type metricLines struct {
	mu      sync.Mutex
	lines   []line
	refused error
}

// line holds the metrics of a line that figures use.
type line struct {
	AWS struct{ Timestamp int64 } `json:"_aws"`

	Decisions int64
	Denied    int64        `json:"enforce_denied"`
	Backstop  int64        `json:"requests_served_by_backstop"`
	Limiter   distribution `json:"limiter_latency"` // µs
}

// distribution holds values, and how often each occurred.
type distribution struct {
	Values []float64
	Counts []int64
}

// all returns every value as often as it occurred.
func (d *distribution) all() (values []float64) {
	for i, v := range d.Values {
		values = append(values, slices.Repeat([]float64{v}, int(d.Counts[i]))...)
	}
	return values
}

// Write implements [io.Writer].
func (m *metricLines) Write(text []byte) (int, error) {
	var l line
	err := json.NewDecoder(bytes.NewReader(text)).Decode(&l)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil && m.refused == nil {
		m.refused = fmt.Errorf("a line of metrics: %w: %s", err, text)
	}
	m.lines = append(m.lines, l)
	return len(text), nil
}

// since adds up the lines from the given second on. The error names a line that could not be read.
func (m *metricLines) since(second int64) (sum line, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.lines {
		l := &m.lines[i]
		if l.AWS.Timestamp < second*1000 {
			continue
		}
		sum.Decisions += l.Decisions
		sum.Denied += l.Denied
		sum.Backstop += l.Backstop
		sum.Limiter.Values = append(sum.Limiter.Values, l.Limiter.Values...)
		sum.Limiter.Counts = append(sum.Limiter.Counts, l.Limiter.Counts...)
	}
	return sum, m.refused
}
