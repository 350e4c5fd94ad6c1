//go:build unix

package main

import (
	"context"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	awsdynamodb "github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/sluicelimits/sluice/internal/cell/dynamotable"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/route"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
	"github.com/sluicelimits/sluice/internal/testkit/secretstest"
	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

var elliptic256 = elliptic.P256()

// jwks returns the URL of an issuer that publishes the signer's key.
func jwks(t *testing.T, signer *tokentest.Signer) string {
	t.Helper()
	s := httptest.NewServer(tokentest.Publishing(signer))
	t.Cleanup(s.Close)
	return s.URL
}

// withRedis lets the function count in a Redis server, with a deadline that a busy machine can meet.
func (w *world) withRedis(options ...string) *redistest.Server {
	w.t.Helper()
	s := redistest.Start(w.t, options...)
	w.env["SLUICE_REDIS"], w.env["SLUICE_REDIS_TLS"], w.env["SLUICE_REDIS_DEADLINE"] = s.Addr, "false", "2s"
	return s
}

// withDynamoDB makes a small cell, which counts in a table of its own. It returns the endpoint.
func (w *world) withDynamoDB() string {
	w.t.Helper()
	url := dynamodbtest.Need(w.t)
	client, done := dynamodbtest.Connect(url)
	w.t.Cleanup(done)
	w.env["SLUICE_COUNTERS_TABLE"] = "authorizer-" + strings.ToLower(rand.Text())
	w.env["SLUICE_DYNAMODB_DEADLINE"], w.env["AWS_ENDPOINT_URL_DYNAMODB"] = "5s", url
	if err := dynamodb.Create(w.t.Context(), client, w.env["SLUICE_COUNTERS_TABLE"]); err != nil {
		w.t.Fatal(err)
	}
	return url
}

// configTable is a cell's config table on DynamoDB Local.
type configTable struct {
	t         *testing.T
	name      string
	documents *dynamotable.Table
}

// newConfigTable makes a config table with the client.
func newConfigTable(t *testing.T, client *awsdynamodb.Client) *configTable {
	t.Helper()
	c := &configTable{t: t, name: "config-" + strings.ToLower(rand.Text())}
	dynamodbtest.CreateConfigTable(t, client, c.name)
	c.documents = dynamotable.New(dynamotable.Config{Client: client, Table: c.name})
	return c
}

// withConfigTable lets the function read its configuration there, and not from the file of its bundle.
func (w *world) withConfigTable() *configTable {
	w.t.Helper()
	client, done := dynamodbtest.Connect(w.withDynamoDB())
	w.t.Cleanup(done)
	c := newConfigTable(w.t, client)
	delete(w.env, "SLUICE_CONFIG_FILE")
	w.env["SLUICE_CONFIG_TABLE"] = c.name
	return c
}

// apply stores the content of a plans file, and further documents.
func (c *configTable) apply(version int64, text string, more ...table.Document) {
	c.t.Helper()
	split, err := plan.Split(time.Now(), configyaml.Source("plans.yaml", []byte(text)))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, d := range split {
		more = append(more, table.Document{Ref: table.Ref{Kind: d.Kind, ID: d.ID}, Version: version,
			Body: d.Body})
	}
	c.put(more...)
}

func (c *configTable) put(all ...table.Document) {
	c.t.Helper()
	if _, err := c.documents.Apply(c.t.Context(), all); err != nil {
		c.t.Fatal(err)
	}
}

// usedUnits returns the units that a store has counted of tenant acme's limit.
func (w *world) usedUnits(s limit.Store, limits string) int64 {
	w.t.Helper()
	c, err := plan.Parse(configyaml.Source("plans.yaml", []byte(plans(limits, w.key))))
	if err != nil {
		w.t.Fatal(err)
	}
	tenant, _ := c.Tenant("acme")
	path := route.Clean("/v1/organizations/o1/product/42")
	req := &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: "acme"},
		Charges: tenant.Limits(time.Now()).AppendCharges(nil, &plan.Attributes{Method: "PUT", Path: &path})}
	var d limit.Decision
	if err := s.Peek(context.Background(), req, time.Now(), &d); err != nil {
		w.t.Fatal(err)
	}
	return d.Results[0].Used()
}

const thousand = `      - { id: burst, tiers: [ { period: 24h, threshold: 100000 } ] }`

// Guarantees that the deployed binary answers events of a REST API: allowed with the context for the backend, denied
// over the limit, and 401 without a credential or with a bad one; and that its output is log lines and metrics, without
// the key or the address.
func TestRedis(t *testing.T) {
	w := newWorld(t, ten)
	w.withRedis()
	w.start()
	for range 10 {
		o := w.wantAnswer("Allow", "allowed", "x-api-key", w.key)
		if o.PrincipalID != "acme/ci" || o.Context["tenant"] != "acme" || o.Context["rateLimitLimit"] != "10" ||
			o.Context["storeFailed"] != nil {
			t.Fatalf("%+v", o)
		}
	}
	o := w.wantAnswer("Deny", "limited", "x-api-key", w.key)
	if o.Context["httpStatus"] != 429.0 || o.Context["retryAfter"] == nil ||
		!strings.Contains(fmt.Sprint(o.Context["problem"]), "violated-policies") {
		t.Errorf("a denial's context: %v", o.Context)
	}
	w.unauthorized()
	w.unauthorized("x-api-key", identity.NewKey())
	w.close()

	lines := w.output()
	metrics := checkLines(t, lines)
	for name, want := range map[string]float64{"decisions": 13, "enforce_denied": 1, "cold_starts": 1,
		"requests_served_by_backstop": 0, "config_stale": 0} {
		if got := sum(metrics, name); got != want {
			t.Errorf("metric %s: %v, want %v", name, got, want)
		}
	}
	if all := names(metrics); !slices.Contains(all, "store_latency_redis") ||
		slices.Contains(all, "store_latency_dynamodb") {
		t.Errorf("metrics %v, want the latency of Redis, which is what was asked", all)
	}
	for _, l := range lines {
		for _, secret := range []string{w.key, client, "not-to-be-seen", pepper} {
			if strings.Contains(l, secret) {
				t.Errorf("a line holds %q: %s", secret, l)
			}
		}
	}
}

// Guarantees that the last metrics are written by a function that Lambda ends while Redis does not answer: giving
// leases back then takes all of the time.
func TestEndWhileRedisHangs(t *testing.T) {
	w := newWorld(t, thousand)
	server := w.withRedis()
	w.env["SLUICE_REDIS_DEADLINE"] = "5s"
	w.start()
	for range 60 {
		w.wantAnswer("Allow", "allowed", "x-api-key", w.key)
	}
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Thaw() }()
	w.close()
	if got := sum(checkLines(t, w.output()), "decisions"); got != 60 {
		t.Errorf("%v decisions are counted, want 60", got)
	}
}

// Guarantees that Redis may require a password, either that of the secret for both, or one of its own.
func TestRedisPasswordFromASecret(t *testing.T) {
	const password, peppers = "not-to-be-seen-password", `"peppers":{"p1":"bm90LXRoZS1kZXYtcGVwcGVyLW9mLWV2ZXJ5b25l"}`
	for name, own := range map[string]bool{"the cell's": false, "its own": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, ten)
			w.withRedis("--requirepass", password)
			w.env["SLUICE_REDIS_AUTH"] = "secret"
			w.secrets.Set(secretName, fmt.Sprintf(`{%s,"redis":{"password":%q}}`, peppers, password))
			if own {
				w.secrets.Set(secretName, "{"+peppers+"}")
				w.secrets.Set("cache", fmt.Sprintf(`{"username":"default","password":%q}`, password))
				w.env["SLUICE_REDIS_SECRET"] = "cache"
			}
			w.start()
			if o := w.wantAnswer("Allow", "allowed", "x-api-key", w.key); o.Context["storeFailed"] != nil {
				t.Errorf("decided without Redis\n%s", strings.Join(w.output(), "\n"))
			}
		})
	}
}

// Guarantees that the first call waits for the connections that the function opens at its start, also if this takes
// longer than a decision may wait for Redis: a cold start is not a failure of the store.
func TestFirstCallWaitsForConnections(t *testing.T) {
	const password = "not-to-be-seen-password"
	w := newWorld(t, ten)
	w.plans(plans(ten, w.key) + "ipLimits: [ { id: address, tiers: [ { period: 24h, threshold: 50 } ] } ]\n")
	w.withRedis("--requirepass", password)
	w.env["SLUICE_REDIS_AUTH"], w.env["SLUICE_REDIS_DEADLINE"] = "secret", "250ms"
	w.secrets.Set(secretName,
		fmt.Sprintf(`{"peppers":{"p1":"bm90LXRoZS1kZXYtcGVwcGVyLW9mLWV2ZXJ5b25l"},"redis":{"password":%q}}`, password))
	w.secrets.Fail(secretstest.Fault{Delay: 400 * time.Millisecond}, 1) // without it nobody can log in
	w.start()
	if o := w.wantAnswer("Allow", "allowed", "x-api-key", w.key); o.Context["storeFailed"] != nil {
		t.Errorf("decided without Redis\n%s", strings.Join(w.output(), "\n"))
	}
}

// Guarantees that without Redis the backstop decides calls, none is an error, and each is marked and counted as decided
// without the store.
func TestRedisAway(t *testing.T) {
	w := newWorld(t, ten)
	server := w.withRedis()
	w.env["SLUICE_REDIS_DEADLINE"], w.env["SLUICE_MAX_INSTANCES"] = "50ms", "5"
	server.Kill()
	w.start()
	for range 2 { // ten units, divided by five instances
		if o := w.wantAnswer("Allow", "allowed", "x-api-key", w.key); o.Context["storeFailed"] != true {
			t.Errorf("not marked: %v", o.Context)
		}
	}
	w.wantAnswer("Deny", "limited", "x-api-key", w.key)
	w.close()
	metrics := checkLines(t, w.output())
	if got := sum(metrics, "requests_served_by_backstop"); got != 3 {
		t.Errorf("%v decisions by the backstop, want 3", got)
	}
	if sum(metrics, "store_errors_redis") < 1 {
		t.Errorf("no failure of Redis is counted: %v", metrics)
	}
}

// Guarantees that nobody is admitted while a secret cannot be read, and that the function recovers by itself.
func TestSecretAway(t *testing.T) {
	w := newWorld(t, ten)
	w.withRedis()
	w.secrets.Fail(secretstest.Down(), -1)
	w.start()
	w.wantAnswer("Deny", "unidentified", "x-api-key", w.key)
	w.secrets.Fail(secretstest.Fault{}, 0)
	for end := time.Now().Add(patient); ; {
		o, err := w.call("x-api-key", w.key)
		if err != nil {
			t.Fatal(err)
		}
		if o.Context["decision"] == "allowed" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("still %v", o.Context)
		}
		<-time.After(100 * time.Millisecond)
	}
}

// Guarantees that a small cell keeps its limits in DynamoDB, and gives its leases back there.
func TestSmallCell(t *testing.T) {
	w := newWorld(t, thousand)
	w.plans(plans(thousand, w.key) + "ipLimits: [ { id: address, tiers: [ { period: 24h, threshold: 50 } ] } ]\n")
	url := w.withDynamoDB()
	w.start()
	const calls = 50
	for range calls {
		if o := w.wantAnswer("Allow", "allowed", "x-api-key", w.key); o.Context["storeFailed"] != nil {
			t.Fatalf("decided without DynamoDB\n%s", strings.Join(w.output(), "\n"))
		}
	}
	w.wantAnswer("Deny", "ip_limited", "x-api-key", w.key)
	w.close()
	client, done := dynamodbtest.Connect(url)
	defer done()
	store, err := dynamodb.New(dynamodb.Config{Client: client, Table: w.env["SLUICE_COUNTERS_TABLE"], Timeout: patient})
	if err != nil {
		t.Fatal(err)
	}
	if got := w.usedUnits(store, thousand); got != calls {
		t.Errorf("%d counted after the end, want the %d that were spent\n%s", got, calls,
			strings.Join(w.output(), "\n"))
	}
	metrics := checkLines(t, w.output())
	if all := names(metrics); !slices.Contains(all, "store_latency_dynamodb") {
		t.Errorf("metrics %v, want the latency of DynamoDB", all)
	}
}

// Guarantees that the cell's config table decides calls, and that a change in it takes effect within seconds: a revoked
// key is refused.
func TestConfigTable(t *testing.T) {
	w := newWorld(t, ten)
	config := w.withConfigTable()
	w.env["SLUICE_ALONE"] = "true"
	config.apply(1, plans(thousand, w.key))
	w.start()
	w.wantAnswer("Allow", "allowed", "x-api-key", w.key)
	w.unauthorized("x-api-key", identity.NewKey())
	config.apply(2, strings.Replace(plans(thousand, w.key), "subject: ci,", "subject: ci, revoked: true,", 1))
	for end := time.Now().Add(patient); ; {
		if _, err := w.call("x-api-key", w.key); err != nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("a revoked key is still accepted")
		}
		<-time.After(100 * time.Millisecond)
	}
	w.unauthorized("x-api-key", w.key)
	w.close()
	if metrics := checkLines(t, w.output()); !slices.Contains(names(metrics), "propagation_seconds") {
		t.Errorf("metrics %v, want how long the change took", names(metrics))
	}
}
