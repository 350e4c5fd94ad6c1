//go:build unix

package endtoend_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/configfile/configfiletest"
	"github.com/sluicelimits/sluice/internal/request/identity/token"
	"github.com/sluicelimits/sluice/internal/telemetry"
	"github.com/sluicelimits/sluice/internal/testkit/apigateway"
	"github.com/sluicelimits/sluice/internal/testkit/built"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
	"github.com/sluicelimits/sluice/internal/testkit/secretstest"
)

const page = "../../../docs/attach.md"

// command is a call of `aws` on the page, in which names of files are replaced with the contents.
type command []string

func (c command) is(service, operation string) bool {
	return len(c) > 1 && c[0] == service && c[1] == operation
}

// args returns the values of an option.
func (c command) args(option string) (all []string) {
	at := slices.Index(c, option)
	if at < 0 {
		return nil
	}
	for _, a := range c[at+1:] {
		if strings.HasPrefix(a, "--") {
			break
		}
		all = append(all, a)
	}
	return all
}

// arg returns the only value of an option, or "" if the option is missing.
func (c command) arg(option string) string { return strings.Join(c.args(option), " ") }

// parsed decodes the JSON value of an option.
func parsed[T any](t *testing.T, c command, option string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(c.arg(option)), &v); err != nil {
		t.Fatalf("%v of %.80q: %v", option, c, err)
	}
	return v
}

// attached is what the commands of the page have created.
type attached struct {
	t        *testing.T
	dir      string
	commands []command
}

// the returns the only command of the given kind, among those whose option has the value.
func (a *attached) one(service, operation string, options ...string) command {
	a.t.Helper()
	var found []command
	for _, c := range a.commands {
		fits := c.is(service, operation)
		for i := 0; i < len(options); i += 2 {
			fits = fits && c.arg(options[i]) == options[i+1]
		}
		if fits {
			found = append(found, c)
		}
	}
	if len(found) != 1 {
		a.t.Fatalf("the page has %d commands %s %s %q, want one", len(found), service, operation, options)
	}
	return found[0]
}

// standIn is a stand-in for `aws`. It records its arguments, and prints what the real command would. It fails if users
// other than its own may read a file that is passed to it, since one of these files contains the secret.
const standIn = `#!/usr/bin/env bash
set -euo pipefail
out=$(printf '%s/%04d' "$CALLS" "$(ls "$CALLS" | wc -l)")
for a in "$@"; do
  if [[ $a == file://* ]]; then
    [[ $(ls -l "${a#file://}" | cut -c5-10) == ------ ]] || { echo "others may read $a" >&2; exit 1; }
    a=$(cat "${a#file://}")
  fi
  printf '%s\0' "$a" >>"$out"
done
case "$1 $2" in
"sts get-caller-identity") echo 123456789012 ;;
"secretsmanager create-secret") echo "$SECRET_ARN" ;;
"lambda create-function") echo arn:aws:lambda:eu-west-1:123456789012:function:sluice-authorizer ;;
*" create-authorizer") echo "auth${out##*/}" ;;
esac
`

// follow runs the commands of the page.
func follow(t *testing.T) *attached {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	for i, block := range strings.Split(string(text), "\n```sh\n") {
		if i > 0 {
			block, _, _ = strings.Cut(block, "\n```")
			script.WriteString(block + "\n")
		}
	}
	a := &attached{t: t, dir: t.TempDir()}
	bin, calls := filepath.Join(a.dir, "bin"), filepath.Join(a.dir, "calls")
	for _, dir := range []string{bin, calls} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"aws": standIn,
		"make": "#!/bin/sh\n[ \"$*\" = 'lambdas PLANS=plans.yaml' ]\n"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := built.Build(filepath.Join(bin, "sluice"), "github.com/sluicelimits/sluice/cmd/sluice"); err != nil {
		t.Fatal(err)
	}
	run := exec.Command("bash", "-euo", "pipefail")
	run.Dir, run.Stdin = a.dir, strings.NewReader("umask 022\n"+script.String()) // as on most machines
	run.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "CALLS="+calls,
		"SECRET_ARN="+secretstest.ARN("sluice/eu-1"))
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("the page's commands: %v\n%s", err, out)
	}
	files, err := filepath.Glob(filepath.Join(calls, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		a.commands = append(a.commands, strings.Split(strings.TrimSuffix(a.read(f), "\x00"), "\x00"))
	}
	return a
}

func (a *attached) read(file string) string {
	a.t.Helper()
	if !filepath.IsAbs(file) {
		file = filepath.Join(a.dir, file)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		a.t.Fatal(err)
	}
	return string(text)
}

// table creates the table of the page under a new name, with the attributes that the page says.
func (a *attached) table(name, endpoint string) {
	a.t.Helper()
	create, ttl := a.one("dynamodb", "create-table"), a.one("dynamodb", "update-time-to-live")
	in := &sdk.CreateTableInput{TableName: &name, BillingMode: types.BillingMode(create.arg("--billing-mode"))}
	shorthand := func(text string) map[string]string {
		m := make(map[string]string)
		for pair := range strings.SplitSeq(text, ",") {
			k, v, _ := strings.Cut(pair, "=")
			m[k] = v
		}
		return m
	}
	for _, text := range create.args("--attribute-definitions") {
		m := shorthand(text)
		in.AttributeDefinitions = append(in.AttributeDefinitions, types.AttributeDefinition{
			AttributeName: aws.String(m["AttributeName"]),
			AttributeType: types.ScalarAttributeType(m["AttributeType"])})
	}
	for _, text := range create.args("--key-schema") {
		m := shorthand(text)
		in.KeySchema = append(in.KeySchema, types.KeySchemaElement{AttributeName: aws.String(m["AttributeName"]),
			KeyType: types.KeyType(m["KeyType"])})
	}
	c, done := dynamodbtest.Connect(endpoint)
	defer done()
	if _, err := c.CreateTable(a.t.Context(), in); err != nil {
		a.t.Fatal(err)
	}
	if got := shorthand(ttl.arg("--time-to-live-specification")); got["AttributeName"] != "ttl" ||
		got["Enabled"] != "true" {
		a.t.Errorf("the page's TTL is %v", got)
	}
}

// world makes the function with the settings of the page. Its requests to DynamoDB go through the endpoint at.
func (a *attached) world(at, table, environment string) *world {
	a.t.Helper()
	w := newWorld(a.t, "plans: []")
	var e struct{ Variables map[string]string }
	if err := json.Unmarshal([]byte(environment), &e); err != nil {
		a.t.Fatalf("the page's environment: %v", err)
	}
	w.file("plans.json", string(configfiletest.JSON(a.t, a.read("plans.yaml"))))
	var list []string
	for name, value := range e.Variables {
		list = append(list, name+"="+value)
	}
	if _, err := environ.Parse(list, os.DirFS(w.dir), new(token.Issuers)); err != nil {
		a.t.Fatal(err)
	}
	if want := a.one("dynamodb", "create-table").arg("--table-name"); e.Variables["SLUICE_COUNTERS_TABLE"] != want {
		a.t.Errorf("the function's table is %s, and the page makes %s", e.Variables["SLUICE_COUNTERS_TABLE"], want)
	}
	if want := a.one("lambda", "put-function-concurrency").arg(
		"--reserved-concurrent-executions"); e.Variables["SLUICE_MAX_INSTANCES"] != want {
		a.t.Errorf("SLUICE_MAX_INSTANCES is %s, and the reserved concurrency %s", e.Variables["SLUICE_MAX_INSTANCES"],
			want)
	}
	for name := range w.env {
		if strings.HasPrefix(name, "SLUICE_") && name != "SLUICE_LOG_LEVEL" {
			delete(w.env, name)
		}
	}
	maps.Copy(w.env, e.Variables)
	w.env["SLUICE_COUNTERS_TABLE"], w.env["SLUICE_DYNAMODB_DEADLINE"], w.env["AWS_ENDPOINT_URL_DYNAMODB"] = table,
		"5s", at
	secret := a.one("secretsmanager", "create-secret")
	w.secrets.Set(secret.arg("--name"), secret.arg("--secret-string"))
	key, _, _ := strings.Cut(a.read("key.txt"), "\n")
	w.keys["acme"] = told.secret("an API key", key)
	w.start(2)
	return w
}

// description returns the JSON of an API with the authorizer of the page.
func description(
	kind apigateway.Kind, api string, authorizer map[string]any, route apigateway.Route, more map[string]any,
) string {
	authorizer["function"] = "authorizer"
	integration := map[string]any{"type": route.Integration.Type}
	for name, v := range map[string]string{"url": route.Integration.URL, "function": route.Integration.Function} {
		if v != "" {
			integration[name] = v
		}
	}
	if route.Integration.RequestParameters != nil {
		integration["requestParameters"] = route.Integration.RequestParameters
	}
	d := map[string]any{"kind": kind, "api": api, "authorizers": map[string]any{"sluice": authorizer},
		"routes": []any{map[string]any{"route": route.Key, "authorizer": "sluice", "integration": integration}}}
	maps.Copy(d, more)
	out, err := json.Marshal(d)
	if err != nil { // not reached: texts always marshal
		panic(err)
	}
	return string(out)
}

// authorizer2 returns the authorizer of an HTTP or WebSocket API.
func authorizer2(c command) map[string]any {
	m := map[string]any{"type": c.arg("--authorizer-type"), "resultTtlInSeconds": 0}
	if v := c.arg("--authorizer-payload-format-version"); v != "" {
		m["payloadFormatVersion"], m["enableSimpleResponses"] = v, slices.Contains(c, "--enable-simple-responses")
		m["resultTtlInSeconds"] = json.Number(c.arg("--authorizer-result-ttl-in-seconds"))
	}
	if c.arg("--identity-source") != "[]" {
		m["identitySource"] = c.args("--identity-source")
	}
	return m
}

// callUntilDenied waits until a request is admitted, since others may have used up the limit, and then sends requests
// until one is denied.
func (a *api) callUntilDenied(allowed, denied int, path string, header ...string) (first, last *reply) {
	a.w.t.Helper()
	mustFinish(a.w.t, func() error {
		if first = a.send("GET", path, header...); first.status != allowed {
			return fmt.Errorf("%s, want %d", first, allowed)
		}
		return nil
	})
	const most = 300
	for range most {
		switch last = a.send("GET", path, header...); last.status {
		case denied:
			return first, last
		case allowed:
		default:
			a.w.t.Fatalf("%s, want %d or %d", last, allowed, denied)
		}
	}
	a.w.t.Fatalf("nothing was denied in %d requests: %s", most, last)
	return nil, nil
}

// actions records the actions that a function requests from DynamoDB.
type actions struct {
	mu   sync.Mutex
	seen map[string]bool
}

func (a *actions) proxy(t *testing.T, endpoint string) string {
	t.Helper()
	return proxy(t, endpoint, func(r *http.Request) {
		_, action, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
		a.mu.Lock()
		defer a.mu.Unlock()
		a.seen[action] = true
	})
}

// proxy passes requests on to an endpoint, and calls each with a request first.
func proxy(t *testing.T, endpoint string, first func(*http.Request)) string {
	t.Helper()
	target, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	s := httptest.NewServer(&httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		first(r.In)
		r.SetURL(target)
		r.Out.Host = r.In.Host
	}})
	t.Cleanup(func() { s.Close(); transport.CloseIdleConnections() })
	return s.URL
}

// Guarantees that the commands of the page leave no secret in a file that other users of the machine may read, and pass
// no such file to `aws`, with the usual umask.
func TestAttachKeepsSecrets(t *testing.T) {
	t.Parallel()
	a := follow(t)
	for _, secret := range []string{"p1.pepper", "key.txt"} {
		if info, err := os.Stat(filepath.Join(a.dir, secret)); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("others may read %s: %v, %v", secret, info, err)
		}
	}
}

// Guarantees that docs/attach.md is correct, as far as this can be tested without AWS: its commands run; the table, the
// secret, the plans and the variables that they create are those of a working function, within the actions that its
// role allows; and each kind of API, with the authorizer, gateway responses and mappings of the page, answers as the
// page says.
func TestAttach(t *testing.T) {
	t.Parallel()
	scratch := newWorld(t, "plans: []")
	endpoint := scratch.dynamodb() // or the test is skipped
	a := follow(t)
	table := scratch.env["SLUICE_COUNTERS_TABLE"] + "-attach"
	a.table(table, endpoint)
	asked := &actions{seen: make(map[string]bool)}
	at := asked.proxy(t, endpoint)

	closed := a.world(at, table, a.one("lambda", "create-function").arg("--environment"))
	a.rest(closed)
	a.webSocket(closed)
	a.http(closed, a.world(at, table, a.one("lambda", "update-function-configuration").arg("--environment")))
	spans := newWorld(t, "plans: [ { id: pro, limits: [ { id: all, exact: true, tiers: [ { period: 1h, threshold: 9 "+
		"} ] }, { id: each, per: subject, exact: true, tiers: [ { period: 1h, threshold: 9 } ] } ] } ]\ntenants: [ "+
		"{ id: acme, plan: pro } ]\n", "acme")
	spans.env["SLUICE_COUNTERS_TABLE"], spans.env["SLUICE_DYNAMODB_DEADLINE"],
		spans.env["AWS_ENDPOINT_URL_DYNAMODB"] = table, "5s", at
	spans.start(2)
	served := spans.serve(restLambda, spans.function(open))
	for range 9 {
		served.wantStatus(200, "GET", "/product/1", spans.key("acme")...)
	}
	served.wantStatus(403, "GET", "/product/1", spans.key("acme")...)
	a.policy(asked)
	closed.close() // writes the metrics of its last second, which may be the only one
	a.alarms(closed)
}

func (a *attached) rest(w *world) {
	t := a.t
	create := a.one("apigateway", "create-authorizer")
	id := create.arg("--rest-api-id")
	responses := make(map[string]map[string]any)
	for _, c := range a.commands {
		if c.is("apigateway", "put-gateway-response") {
			r := parsed[map[string]any](t, c, "--cli-input-json")
			kind, _ := r["responseType"].(string)
			delete(r, "responseType")
			responses[kind] = r
		}
	}
	api := w.serve(description(apigateway.REST, id, map[string]any{
		"type": create.arg("--type"), "resultTtlInSeconds": json.Number(create.arg(
			"--authorizer-result-ttl-in-seconds")),
	}, apigateway.Route{Key: "ANY /{proxy+}", Integration: apigateway.Integration{Type: apigateway.AWSProxy,
		Function: "backend"}},
		map[string]any{"gatewayResponses": responses,
			"stage": a.one("apigateway", "create-deployment").arg("--stage-name")}), w.function(behind))
	allowed, denied := api.callUntilDenied(200, 429, "/product/1", w.key("acme")...)
	if allowed.seen(t).Tenant != "acme" {
		t.Errorf("allowed: %s", allowed)
	}
	wantLimits(t, allowed)
	wantDenial(t, denied)
	none := api.wantStatus(401, "GET", "/product/1")
	if none.header.Get("Www-Authenticate") == "" || none.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("no credential: %s", none)
	}

	text, _ := apigateway.ReadBuiltin("rest")
	builtin, err := apigateway.Parse("rest", text)
	if err != nil {
		t.Fatal(err)
	}
	for kind, r := range responses { // one and the same in the example
		want := builtin.Responses[kind]
		// the 401 of the page has no headers to expose
		delete(want.Parameters, "gatewayresponse.header.Access-Control-Expose-Headers")
		got := api.d.Responses[kind]
		delete(got.Parameters, "gatewayresponse.header.Access-Control-Expose-Headers")
		if got.StatusCode != want.StatusCode || !maps.Equal(got.Parameters, want.Parameters) ||
			!maps.Equal(got.Templates, want.Templates) {
			t.Errorf("the gateway response %s differs from the built-in one:\n%v\n%v\nof %v", kind, got, want, r)
		}
	}
	if len(responses) != 2 {
		t.Errorf("%d gateway responses, want ACCESS_DENIED and UNAUTHORIZED", len(responses))
	}
	a.attachedTo(create.arg("--rest-api-id"), a.one("apigateway", "update-method").arg("--patch-operations"))
}

// attachedTo checks that the API may call the authorizer, and that the authorizer is the one of its route.
func (a *attached) attachedTo(api, route string) {
	a.t.Helper()
	var source, authorizer string
	for _, c := range a.commands {
		if c.is("lambda", "add-permission") && strings.Contains(c.arg("--source-arn"), ":"+api+"/authorizers/") {
			source = c.arg("--source-arn")
			_, authorizer, _ = strings.Cut(source, "/authorizers/")
			if c.arg("--principal") != "apigateway.amazonaws.com" || c.arg("--action") != "lambda:InvokeFunction" {
				a.t.Errorf("the permission is %q", c)
			}
		}
	}
	if authorizer == "" || !strings.HasPrefix(source, "arn:aws:execute-api:eu-west-1:123456789012:") ||
		!strings.Contains(route, authorizer) || !strings.Contains(route, "CUSTOM") {
		a.t.Errorf("%s: the authorizer %q may be called, the route has %q", api, source, route)
	}
}

func (a *attached) webSocket(w *world) {
	// The authorizer of the HTTP API has a format, that of the WebSocket API none.
	create := a.one("apigatewayv2", "create-authorizer", "--authorizer-payload-format-version", "")
	id := create.arg("--api-id")
	api := w.serve(description(apigateway.WebSocket, id, authorizer2(create),
		apigateway.Route{Key: "$connect", Integration: apigateway.Integration{Type: apigateway.Mock}},
		map[string]any{"stage": a.one("apigatewayv2", "create-deployment").arg("--stage-name")}), nil)
	api.callUntilDenied(101, 403, "", append(w.key("acme"), handshake...)...)
	api.wantStatus(401, "GET", "", handshake...)
	a.attachedTo(id, strings.Join(a.one("apigatewayv2", "update-route", "--api-id", id), " "))
}

func (a *attached) http(closed, open *world) {
	t := a.t
	create := a.one("apigatewayv2", "create-authorizer", "--authorizer-payload-format-version", "2.0")
	id := create.arg("--api-id")
	route := apigateway.Route{Key: "ANY /{proxy+}", Integration: apigateway.Integration{Type: apigateway.HTTPProxy,
		URL: closed.backend() + "/{proxy}"}}
	before := closed.serve(description(apigateway.HTTP, id, authorizer2(create), route, nil), nil)
	before.wantStatus(403, "GET", "/product/1")
	mustFinish(t, func() error { // without the mapping the middleware finds no decision, and nobody gets to the backend
		if got := before.wantStatus(403, "GET", "/product/1", closed.key("acme")...); !strings.Contains(got.body,
			"no-decision") {
			return fmt.Errorf("without the mapping: %s", got)
		}
		return nil
	})

	route.Integration.RequestParameters = parsed[map[string]string](t, a.one("apigatewayv2", "update-integration"),
		"--request-parameters")
	mapped := closed.serve(description(apigateway.HTTP, id, authorizer2(create), route, nil), nil)
	if _, denied := mapped.callUntilDenied(200, 403, "/product/1",
		closed.key("acme")...); !strings.Contains(denied.body,
		`"Forbidden"`) {
		t.Errorf("a denial without the opt-in: %s", denied)
	}

	after := open.serve(description(apigateway.HTTP, id, authorizer2(create), route, nil), nil)
	allowed, denied := after.callUntilDenied(200, 429, "/product/1", open.key("acme")...)
	wantLimits(t, allowed)
	wantDenial(t, denied)
	if got := allowed.seen(t); got.Tenant != "acme" || got.Subject != "ci" {
		t.Errorf("allowed: %+v", got)
	}
	after.wantStatus(401, "GET", "/product/1")
	cors := parsed[map[string][]string](t, a.one("apigatewayv2", "update-api"), "--cors-configuration")
	if !slices.Equal(cors["ExposeHeaders"], strings.Split(denied.header.Get("Access-Control-Expose-Headers"), ", ")) {
		t.Errorf("CORS exposes %q, and the middleware %q", cors["ExposeHeaders"],
			denied.header.Get("Access-Control-Expose-Headers"))
	}
	a.attachedTo(id, strings.Join(a.one("apigatewayv2", "update-route", "--api-id", id), " "))
}

// policy checks that the role allows the actions that the function requested, and no others of DynamoDB.
func (a *attached) policy(asked *actions) {
	t := a.t
	type statement struct {
		Action   any
		Resource string
	}
	role := parsed[struct{ Statement []statement }](t, a.one("iam", "put-role-policy"), "--policy-document")
	var dynamo []string
	for _, s := range role.Statement {
		if list, ok := s.Action.([]any); ok && strings.Contains(s.Resource, ":table/") {
			for _, action := range list {
				dynamo = append(dynamo, strings.TrimPrefix(fmt.Sprint(action), "dynamodb:"))
			}
		}
	}
	asked.mu.Lock()
	defer asked.mu.Unlock()
	// A transaction needs the permissions for its parts, and has no action of its own.
	delete(asked.seen, "TransactWriteItems")
	if got := slices.Sorted(maps.Keys(asked.seen)); !slices.Equal(got, dynamo) {
		t.Errorf("the function asked DynamoDB for %q, and its role has %q", got, dynamo)
	}
	if got := a.one("secretsmanager", "create-secret").arg("--name"); !strings.Contains(role.Statement[1].Resource,
		got) || role.Statement[1].Action != "secretsmanager:GetSecretValue" {
		t.Errorf("the role's secret: %v", role.Statement[1])
	}
}

// alarms checks that each alarm on a metric of Sluice has an existing metric with the correct dimensions.
func (a *attached) alarms(w *world) {
	known, n := telemetry.Metrics(), 0
	for _, c := range a.commands {
		if !c.is("cloudwatch", "put-metric-alarm") || c.arg("--namespace") != "Sluice" {
			continue
		}
		n++
		metric := c.arg("--metric-name")
		if !slices.ContainsFunc(known, func(m telemetry.Metric) bool { return m.Name == metric && !m.LineOnly }) {
			a.t.Errorf("there is no metric %s", metric)
		}
		if got := c.arg(
			"--dimensions"); got != "Name=cell,Value="+w.env["SLUICE_CELL"]+" Name=function,Value="+a.one("lambda",
			"create-function").arg("--function-name") {
			a.t.Errorf("the alarm on %s has the dimensions %s", metric, got)
		}
	}
	if n < 5 {
		a.t.Errorf("%d alarms on our metrics", n)
	}
	var dimensions bool
	for _, l := range w.output() {
		dimensions = dimensions || strings.Contains(l, `"Dimensions":[["cell","function"]]`)
	}
	if !dimensions {
		a.t.Errorf("no line of metrics has the alarms' dimensions:\n%s", strings.Join(w.output(), "\n"))
	}
}
