package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/sluicelimits/sluice/internal/dev/livepage"
)

// functionEnv makes the test binary a Lambda function. It serves as the authorizer of an API and as its backend.
const functionEnv = "SLUICE_TEST_FUNCTION"

// testFunction admits the key "good", denies "limited", and answers a request of an integration with the caller's
// identity.
func testFunction(event struct {
	ARN            string `json:"methodArn"`
	Headers        map[string]string
	RequestContext struct {
		Authorizer map[string]any
		Identity   struct{ UserArn string }
	}
}) (map[string]any, error) {
	if who := event.RequestContext.Identity.UserArn; who != "" {
		return map[string]any{"statusCode": 200, "body": "hello " + who}, nil
	}
	if event.ARN == "" {
		return map[string]any{"statusCode": 200,
			"body": fmt.Sprint("hello ", event.RequestContext.Authorizer["tenant"])}, nil
	}
	effect := "Allow"
	switch event.Headers["X-Api-Key"] {
	case "good":
	case "limited":
		effect = "Deny"
	default:
		return nil, errors.New("Unauthorized") //nolint:staticcheck // the text that API Gateway expects
	}
	return map[string]any{
		"principalId": "acme", "context": map[string]any{"tenant": "acme", "caller": "acme!", "retryAfter": "7",
			"problemMembers": `,"status":429`},
		"policyDocument": map[string]any{"Version": "2012-10-17",
			"Statement": []any{map[string]any{"Action": "execute-api:Invoke", "Effect": effect,
				"Resource": event.ARN}}},
	}, nil
}

// A newcomer sees with one command what API Gateway would answer. For each kind of API, every printed command gives the
// answer that is printed beside it, and the live page counts the calls.
func TestDevBuiltinAPIs(t *testing.T) {
	for api, want := range map[string]struct {
		codes  []int
		denied int
	}{
		"rest": {[]int{200, 200, 429, 401}, 429},
		"http": {[]int{200, 200, 403, 403}, 403},
	} {
		r := startDev(t, "--api", api)
		lines := curlLine.FindAllStringSubmatch(r.stdout.String(), -1)
		if len(lines) != len(want.codes) {
			t.Fatalf("%s: %d curl lines:\n%s", api, len(lines), r.stdout)
		}
		for i, code := range want.codes {
			if got, _, body := get(t, lines[i][2], lines[i][1]); got != code {
				t.Errorf("%s: %s: status %d, want %d: %s", api, lines[i][0], got, code, body)
			}
		}
		if none := fmt.Sprint("no key: ", want.codes[len(want.codes)-1]); !strings.Contains(r.stdout.String(), none) {
			t.Errorf("%s: the output lacks %q", api, none)
		}
		loop := regexp.MustCompile(`200s, then (\d+)s\n  for i in ([\d ]+); do curl .* -H "X-API-Key: (\S+)" (\S+); ` +
			`done`).FindStringSubmatch(r.stdout.String())
		if loop == nil {
			t.Fatalf("%s: no loop:\n%s", api, r.stdout)
		}
		denied := 0
		for range strings.Fields(loop[2]) {
			code, h, body := get(t, loop[4], loop[3])
			if code != want.denied {
				continue
			}
			denied++
			if api == "rest" && (h.Get("Retry-After") == "" || !strings.Contains(body, `"retry-after-ms"`) ||
				h.Get("Content-Type") != "application/problem+json") {
				t.Errorf("%s: status %d with headers %v: %s", api, code, h, body)
			}
		}
		if denied < 2 || loop[1] != strconv.Itoa(want.denied) {
			t.Errorf("%s: %d of the loop's requests were denied, but the output says %s", api, denied, loop[1])
		}
		var page livepage.Data
		if code, _, body := get(t, r.base+"/_sluice/data.json", ""); code != 200 ||
			json.Unmarshal([]byte(body), &page) != nil || len(page.Denials) < 2 {
			t.Errorf("%s: live data: %d, %d denials: %.400s", api, code, len(page.Denials), body)
		}
		for _, d := range page.Denials {
			if d.Limit != "burst" || d.WaitMs < 1000 {
				t.Errorf("%s: the live page shows the denial %+v", api, d)
			}
		}
		if err := r.finish(t); err != nil {
			t.Errorf("%s: stopping gives %v, want nil", api, err)
		}
		if log := r.stderr.String(); strings.Contains(log, "slk_") || strings.Contains(log, "127.0.0.1") {
			t.Errorf("%s: the log holds a key or an address: %s", api, log)
		}
	}
}

// Guarantees that the printed line of a WebSocket API is a handshake, which is authorized.
func TestDevBuiltinWebSocket(t *testing.T) {
	r := startDev(t, "--api", "websocket")
	line := regexp.MustCompile(`(?m)^  curl .*-H "X-API-Key: (\S+)" (\S+)$`).FindStringSubmatch(r.stdout.String())
	if line == nil || !strings.Contains(line[0], "-H") {
		t.Fatalf("no line:\n%s", r.stdout)
	}
	req, err := http.NewRequest("GET", line[2], nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range regexp.MustCompile(`-H "([^:]+): ([^"]+)"`).FindAllStringSubmatch(line[0], -1) {
		req.Header.Set(h[1], h[2])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Errorf("%s: status %d, want 101", line[0], resp.StatusCode)
	}
}

// The authorizer and the backend of an API can be Lambda binaries. Their processes end with the command.
func TestDevWithBinaries(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "api.yaml")
	text := strings.Replace(string(readBuiltin(t, "rest")),
		`"ANY /product/{id}", authorizer: sluice, integration: *backend`,
		`"ANY /product/{id}", authorizer: sluice, integration: { type: AWS_PROXY, function: shop }`, 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r := startDev(t, "--api", file, "--function", os.Args[0], "--function", "shop="+os.Args[0], "--function-env",
		functionEnv+"=1", "--environments", "2")
	for key, want := range map[string]struct {
		code int
		body string
	}{"good": {200, "hello acme"}, "limited": {429, `"status":429}`}, "": {401, `"status":401`}} {
		code, h, body := get(t, r.base+"/dev/product/1", key)
		if code != want.code || !strings.Contains(body, want.body) || (h.Get("Retry-After") == "7") != (code == 429) {
			t.Errorf("key %q: status %d, body %s, headers %v; want %d\n%s", key, code, body, h, want.code, r.stderr)
		}
	}
	if err := r.finish(t); err != nil {
		t.Errorf("stopping gives %v, want nil\n%s", err, r.stderr)
	}
}

// synthesized is a template with APIs. The tests of package infra keep it up to date.
const synthesized = "../../infra/testdata/attach.template.json"

// Guarantees that --api serves an API as its template says: with the functions that the template names, and with local
// services instead of its own.
func TestDevTemplate(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(synthesized)
	if err != nil {
		t.Fatal(err)
	}
	id := regexp.MustCompile(`"(Rest[0-9A-F]{8})": \{`).FindSubmatch(data)
	if id == nil {
		t.Fatal("the template has no REST API")
	}
	shop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s %s for %s", r.Method, r.URL.Path, r.Header.Get("X-Sluice-Caller"))
	}))
	t.Cleanup(shop.Close)
	r := startDev(t, "--api", synthesized, "--api-id", string(id[1]), "--target",
		"https://shop.example.com/v1="+shop.URL+"/here",
		"--function", os.Args[0], "--function", "orders="+os.Args[0], "--function-env", functionEnv+"=1",
		"--environments", "2")
	for _, c := range []struct {
		method, path, key string
		code              int
		body              string
	}{
		{"GET", "/product/7", "good", 200, "GET /here/product/7 for acme!"},
		{"POST", "/orders", "good", 200, "hello acme"},
		{"GET", "/product/7", "limited", 429, `explicit deny","status":429}`},
		{"GET", "/product/7", "", 401, "#bad-credential"},
		{"GET", "/healthz", "", 200, `"path": "/healthz"`}, // answered with an echo, since no --target names its URL
		{"OPTIONS", "/orders", "", 204, ""},
	} {
		req, err := http.NewRequest(c.method, r.base+"/prod"+c.path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header["X-Api-Key"], req.Header["X-Sluice-Caller"] = []string{c.key}, []string{"forged"}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != c.code || !strings.Contains(string(body), c.body) ||
			strings.Contains(string(body), "forged") || (resp.Header.Get("Retry-After") == "7") != (c.code == 429) {
			t.Errorf("%s %s with key %q: status %d, body %s, headers %v (%v); want %d %s\n%s", c.method, c.path, c.key,
				resp.StatusCode,
				body, resp.Header, err, c.code, c.body, r.stderr)
		}
	}
	if err := r.finish(t); err != nil {
		t.Errorf("stopping gives %v, want nil\n%s", err, r.stderr)
	}
}

// An operators' API is served from the template of its stack, with a Lambda binary behind it. Only calls that are
// signed with the credentials of the environment are answered. If the environment has no credentials, the command fails
// and says how to set them.
func TestDevSigned(t *testing.T) {
	const control = "../../infra/testdata/control.template.json"
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"} {
		t.Setenv(name, "")
	}
	args := []string{"--api", control, "--function", "sluice-admin=" + os.Args[0], "--function-env", functionEnv + "=1"}
	root := newRootCommand()
	root.SetArgs(append([]string{"dev", "--listen", "127.0.0.1:0"}, args...))
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	if err := root.ExecuteContext(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "route POST /documents/get takes signed calls only (AWS_IAM): set "+
			"AWS_ACCESS_KEY_ID") {
		t.Errorf("without credentials the command gives %v", err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t")
	r := startDev(t, args...)
	for secret, want := range map[string]int{"s3cr3t": 200, "other": 403, "": 403} {
		req, err := http.NewRequest("POST", r.base+"/v1/documents/get", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		empty := sha256.Sum256(nil)
		if secret != "" {
			if err := v4.NewSigner().SignHTTP(t.Context(), aws.Credentials{AccessKeyID: "AKIAEXAMPLE",
				SecretAccessKey: secret}, req, hex.EncodeToString(empty[:]), "execute-api", "eu-west-1",
				time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != want ||
			(string(body) == "hello arn:aws:iam::000000000000:user/local") != (want == 200) {
			t.Errorf("a call signed with %q: status %d, body %s (%v)\n%s", secret, resp.StatusCode, body, err, r.stderr)
		}
	}
	if err := r.finish(t); err != nil {
		t.Errorf("stopping gives %v, want nil", err)
	}
	if printed := r.stdout.String() + r.stderr.String(); strings.Contains(printed, "s3cr3t") {
		t.Errorf("the secret is printed: %s", printed)
	}
}

func readBuiltin(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "internal", "dev", "gateway", "stage", "builtin", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// A wrong command line, and an API that cannot be served, are reported before anything is served. No error contains the
// value of a variable.
func TestDevAPIProblems(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	bad := file("bad.yaml", "kind: REST\ncors: {}\n")
	backend := file("backend.yaml", "kind: REST\nroutes: [ { route: GET /a, integration: { type: AWS_PROXY, "+
		"function: shop } } ]\n")
	for _, c := range []struct {
		args  []string
		want  string
		usage bool
	}{
		{[]string{"--function", "x"}, "need --api", true},
		{[]string{"--api", "rest", "--environments", "0"}, "--environments 0 is outside 1..1000", true},
		{[]string{"--api", "rest", "--function-env", "A=1"}, "--function-env is for --function", true},
		{[]string{"--api", "rest", "--function", "x", "--function", "y"},
			`--function "y": want BOOTSTRAP or NAME=BOOTSTRAP, each once`, true},
		{[]string{"--api", "rest", "--function", "x", "--function-env", "s3cr3t"}, "want NAME=VALUE", true},
		{[]string{"--api", "rest", "--function", "x", "--function-env", "A=s3cr3t", "--function-env", "A=s3cr3t"},
			`--function-env "A"`, true},
		{[]string{"--api", filepath.Join(dir, "none.yaml")}, "the built-in APIs are http, rest, websocket", false},
		{[]string{"--api", bad}, `bad.yaml:2:1: unknown key "cors" in a description`, false},
		{[]string{"--api", synthesized}, "the template has 3 APIs; select one with --api-id: ", false},
		{[]string{"--api", synthesized, "--api-id", "Other"}, `the template has no API "Other"; its APIs are `, false},
		{[]string{"--api", "rest", "--api-id", "Other"}, "need a template, and --api rest is a description", false},
		{[]string{"--api", synthesized, "--target", "https://shop.example.com=nowhere"}, "--target: want FROM=URL",
			true},
		{[]string{"--target", "a=http://b"}, "--target need --api", true},
		{[]string{"--api", backend}, "--function shop=BOOTSTRAP", false},
		{[]string{"--api", "rest", "--function", "other=" + os.Args[0]}, "no function of that name", false},
		{[]string{"--api", "rest", "--function", filepath.Join(dir, "none")}, "--function", false},
		{[]string{"--api", "rest", "--function", os.Args[0], "--plans", "p.yaml"},
			"--plans sets the authorizer in this process", false},
		{[]string{"--api", "http", "--function", os.Args[0], "--pass-denials"},
			"set SLUICE_PASS_DENIALS of the binary", false},
	} {
		root := newRootCommand()
		root.SetArgs(append([]string{"dev", "--listen", "127.0.0.1:0"}, c.args...))
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		err := root.ExecuteContext(t.Context())
		var u *usageError
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.As(err, &u) != c.usage ||
			strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%q: %v (a wrong command line: %v), want %q", c.args, err, errors.As(err, &u), c.want)
		}
	}
}
