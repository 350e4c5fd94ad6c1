package bench

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/route"
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
	functionPlans = `plans:
  - id: wide
    limits:
      - { id: burst, algorithm: token_bucket, rate: 1000000, period: 1s, burst: 2000000 }
      - id: put-product
        match: { methods: [PUT], pathPattern: "/v1/organizations/{org}/product/*" }
        tiers: [ { period: 10s, threshold: 10000000 } ]
      - { id: yearly, tiers: [ { period: 8760h, threshold: 1000000000 } ] }
  - id: narrow
    limits:
      - { id: burst, algorithm: token_bucket, rate: 1000000, period: 1s, burst: 2000000 }
      - id: put-product
        match: { methods: [PUT], pathPattern: "/v1/organizations/{org}/product/*" }
        tiers: [ { period: 10s, threshold: 10000000 } ]
      - { id: yearly, tiers: [ { period: 8760h, threshold: 5 } ] }
tenants:
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
	redis  *redistest.Server // nil in a small cell
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
	text.WriteString(functionPlans)
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
	return d, errors.Join(d.withSecret(), d.withIssuer(), d.withRedis())
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

func (d *deployment) withIssuer() error {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: tokentest.Publishing(d.signer), ReadHeaderTimeout: patient}
	go func() { _ = server.Serve(l) }() // returns after Close
	d.stops = append(d.stops, func() { _ = server.Close() })
	d.env["SLUICE_ISSUERS"] = fmt.Sprintf(`[{"issuer":%q,"audiences":[%q],"jwksUrl":"http://%s","allTenants":true}]`,
		tokentest.Issuer, tokentest.Audience, l.Addr())
	return nil
}

func (d *deployment) withRedis() (err error) {
	if d.redis, err = redistest.Launch(d.dir); err != nil {
		return err
	}
	d.stops = append(d.stops, d.redis.Kill)
	d.env["SLUICE_REDIS"], d.env["SLUICE_REDIS_TLS"] = d.redis.Addr, "false"
	return nil
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

// countSpentUnits returns the units that Redis has counted in the year's windows of the tenants word-0, word-1 and so
// on. All leases must have been given back.
func (d *deployment) countSpentUnits(word string, tenants int) (units int64, err error) {
	store, err := redis.New(context.Background(), redis.Config{Addrs: []string{d.redis.Addr}, Deadline: patient})
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

// build compiles a program of the module in a folder of the repository as scripts/lambdas does, but for this machine.
func build(module, program, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	arguments := []string{"build", "-trimpath", "-buildvcs=false", "-tags", "lambda.norpc,nethttpomithttp2",
		"-ldflags=-s -w -buildid=", "-o", to, program}
	cmd := exec.Command("go", arguments...) //nolint:gosec // the programs are this repository's
	cmd.Dir = filepath.Join(tree(), module)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", program, err, out)
	}
	return nil
}

// function is the binary of a function: the authorizer, or one with which it is compared.
type function struct {
	name   string
	binary string
	env    map[string]string
}

// function builds a function, and puts the plans file into the folder of its binary.
func (d *deployment) function(name, module, program string) (*function, error) {
	f := &function{name: name, binary: filepath.Join(d.dir, name, "bootstrap"), env: d.env}
	if err := build(module, program, f.binary); err != nil {
		return nil, err
	}
	return f, os.Link(filepath.Join(d.dir, "plans.json"), filepath.Join(d.dir, name, "plans.json"))
}

// running is a function that runs, and is called through the Runtime API.
type running struct {
	*function
	host *lambdahost.Host

	mu    sync.Mutex
	lines []string
}

func (f *function) start() (*running, error) {
	r := &running{function: f}
	var err error
	r.host, err = lambdahost.Start(context.Background(), lambdahost.Config{
		Binary: f.binary, Name: f.name, Env: f.env, MemoryMB: functionMemoryMB, InitTimeout: patient, Timeout: patient,
		Grace: patient,
		Output: func(l lambdahost.Line) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if len(r.lines) < 20 {
				r.lines = append(r.lines, l.Text)
			}
		},
	})
	return r, err
}

func (r *running) invoke(event []byte) ([]byte, error) {
	answer, err := r.host.Invoke(context.Background(), event)
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		return nil, fmt.Errorf("%s: %w\n%s", r.name, err, strings.Join(r.lines, "\n"))
	}
	return answer, nil
}

// stop ends the function as Lambda does, with SIGTERM, so that it gives back its leases.
func (r *running) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	return r.host.Close(ctx)
}
