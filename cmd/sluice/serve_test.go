package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluicelimits/sluice/internal/serve"
	"github.com/sluicelimits/sluice/internal/server"
	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// serving is a `sluice serve` or a `sluice proxy` in this process.
type serving struct {
	conn               *grpc.ClientConn // of client
	client             rlsv3.RateLimitServiceClient
	proxy, http, debug string
	stderr             *output
	stop               context.CancelFunc
	done               chan error
}

// startServe runs the command on free ports and waits until it listens.
func startServe(t *testing.T, args ...string) *serving {
	t.Helper()
	s := launch(t, append([]string{"serve", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"}, args...)...)
	conn, err := grpc.NewClient(s.address("gRPC"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s.http, s.conn, s.client = "http://"+s.address("HTTP"), conn, rlsv3.NewRateLimitServiceClient(conn)
	if !slices.Contains(args, "--tls-cert") {
		untilReady(s.http)
	}
	return s
}

// launch runs a command that serves, and waits until it listens.
func launch(t *testing.T, args ...string) *serving {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &serving{stderr: newOutput(), stop: cancel, done: make(chan error, 1)}
	root := newRootCommand()
	root.SetArgs(append(args[:1:1], append([]string{"--debug", "127.0.0.1:0"}, args[1:]...)...))
	root.SetErr(s.stderr)
	ended := make(chan struct{})
	go func() {
		s.done <- root.ExecuteContext(ctx)
		close(ended)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	s.waitFor(t, "server=debug")
	s.debug = "http://" + s.address("debug")
	return s
}

// address returns where the server of a name listens.
func (s *serving) address(name string) string {
	return regexp.MustCompile(`server=` + name + ` address=(\S+)`).FindStringSubmatch(s.stderr.String())[1]
}

// untilReady waits until a service decides, for some seconds at most: the store of some tests never answers.
func untilReady(base string) {
	for range 200 {
		resp, err := http.Get(base + "/healthcheck")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		<-time.After(10 * time.Millisecond)
	}
}

// waitFor waits until the log contains the text.
func (s *serving) waitFor(t *testing.T, text string) {
	t.Helper()
	for !strings.Contains(s.stderr.String(), text) {
		select {
		case <-s.stderr.grew:
		case err := <-s.done:
			t.Fatalf("sluice serve ended: %v\n%s", err, s.stderr)
		case <-time.After(10 * time.Second):
			t.Fatalf("the log of sluice serve does not contain %q\n%s", text, s.stderr)
		}
	}
}

// ask requests one unit of key=value, and returns the overall code.
func (s *serving) ask(t *testing.T, key, value string) rlsv3.RateLimitResponse_Code {
	t.Helper()
	out, err := s.client.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "api",
		Descriptors: []*ratelimitv3.RateLimitDescriptor{
			{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: key, Value: value}}}}}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return out.GetOverallCode()
}

func limitsFile(t *testing.T, perYear int) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "limits.yaml")
	writeLimits(t, name, perYear)
	return name
}

func writeLimits(t *testing.T, name string, perYear int) {
	t.Helper()
	text := fmt.Sprintf("domain: api\ndescriptors: [{key: tenant, rate_limit: {unit: year, requests_per_unit: %d}}]\n",
		perYear)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Guarantees that the log names --redis if Redis does not answer at the start, and that the service runs nevertheless.
func TestServeWithoutItsRedis(t *testing.T) {
	away := fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))
	s := startServe(t, "--config", limitsFile(t, 2), "--redis", away)
	s.waitFor(t, "the Redis of --redis does not answer: start it, or correct the flag")
	s.waitFor(t, "redis="+away)
}

// Guarantees that the service limits; that a changed file is in force without a restart and keeps the counters; that a
// bad file is reported and ignored; and that a stop is orderly.
func TestServe(t *testing.T) {
	file := limitsFile(t, 2)
	s := startServe(t, "--config", file)
	s.waitFor(t, `msg="configuration loaded" files=1 domains=[api] limits=1`)
	for i, want := range []rlsv3.RateLimitResponse_Code{1, 1, 2} {
		if got := s.ask(t, "tenant", "acme"); got != want {
			t.Errorf("request %d: %s, want %s", i, got, want)
		}
	}
	writeLimits(t, file, 3)
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	s.waitFor(t, `msg="configuration reloaded" files=1 domains=[api] limits=1`)
	for i, want := range []rlsv3.RateLimitResponse_Code{1, 2} {
		if got := s.ask(t, "tenant", "acme"); got != want {
			t.Errorf("request %d after the change: %s, want %s", i, got, want)
		}
	}
	if err := os.WriteFile(file, []byte("domain: api\ndescriptor: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.waitFor(t, "config error, unknown key 'descriptor'") // noticed without a signal
	if got := s.ask(t, "tenant", "other"); got != rlsv3.RateLimitResponse_OK {
		t.Errorf("after a bad file the answer is %s", got)
	}
	if code, _, text := get(t, s.debug+"/stats", ""); code != http.StatusOK || !strings.Contains(text,
		"config_load_error: 1\n") {
		t.Errorf("/stats: status %d\n%s", code, text)
	}
	if code, _, text := get(t, s.http+"/healthcheck", ""); code != http.StatusOK || text != "OK" {
		t.Errorf("/healthcheck: status %d, body %s", code, text)
	}
	s.stop()
	select {
	case err := <-s.done:
		if err != nil {
			t.Errorf("serve ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("sluice serve does not stop\n%s", s.stderr)
	}
}

// Guarantees that the authorities of clients are read again on SIGHUP.
func TestServeMutualTLS(t *testing.T) {
	cert, key := certificateFiles(t)
	another, _ := certificateFiles(t)
	clients := filepath.Join(t.TempDir(), "clients.pem")
	admit := func(authority string) {
		text, err := os.ReadFile(authority)
		if err == nil {
			err = os.WriteFile(clients, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	admit(cert)
	s := startServe(t, "--config", limitsFile(t, 2), "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", clients)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(pair.Leaf)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		RootCAs: roots, MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}}}
	ask := func() error {
		resp, err := client.Get(strings.Replace(s.http, "http:", "https:", 1) + "/healthcheck")
		if err == nil {
			_ = resp.Body.Close() // its content does not matter
		}
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	admit(another)
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ask() == nil; {
		if time.Now().After(end) {
			t.Fatal("10 s after SIGHUP a client of an authority that was removed is admitted")
		}
	}
}

// Guarantees that connections end after some minutes if clients need certificates, unless a flag gives another time.
func TestServeConnectionAge(t *testing.T) {
	for _, c := range []struct {
		clientCA string
		flag     time.Duration
		want     time.Duration
	}{{"", 0, 0}, {"", time.Hour, time.Hour}, {"ca.pem", 0, 10 * time.Minute}, {"ca.pem", time.Hour, time.Hour}} {
		o := serve.Options{ClientCA: c.clientCA, Server: server.Config{MaxAge: c.flag}}
		_ = o.Check() // other flags are missing
		if got := o.Server.MaxAge; got != c.want {
			t.Errorf("--tls-client-ca %q --max-connection-age %s: %s, want %s", c.clientCA, c.flag, got, c.want)
		}
	}
}

// Guarantees that the mapping of a file decides by the plans of --plans, and that such a file is refused without
// --plans.
func TestServePlans(t *testing.T) {
	dir := t.TempDir()
	file, plans := filepath.Join(dir, "limits.yaml"), filepath.Join(dir, "plans.yaml")
	for name, text := range map[string]string{
		file: "domain: api\nsluice: {mapping: {tenant: tenant}}\n",
		plans: "plans: [ { id: p, limits: [ { id: l, algorithm: fixed_window, threshold: 1, period: 8784h } ] } " +
			"]\ntenants: [ { id: acme, plan: p }, { id: globex, plan: p } ]\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := startServe(t, "--config", file, "--plans", plans)
	for i, want := range []rlsv3.RateLimitResponse_Code{1, 2} {
		if got := s.ask(t, "tenant", "acme"); got != want {
			t.Errorf("request %d: %s, want %s", i, got, want)
		}
	}
	for _, c := range []struct{ tenant, want string }{{"globex", `"allowed":true`}, {"acme", `"reason":"limited"`},
		{"globex", `"reason":"limited"`}} {
		resp, err := http.Post(s.http+"/v1/check", "application/json",
			strings.NewReader(`{"call": {"tenant": "`+c.tenant+`"}}`))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close() // it was read
		if err != nil || !strings.Contains(string(text), c.want) {
			t.Errorf("check of %s: %s, %v", c.tenant, text, err)
		}
	}
	if got := s.ask(t, "tenant", "unknown"); got != rlsv3.RateLimitResponse_OVER_LIMIT {
		t.Errorf("the answer for an unknown tenant is %s", got)
	}
	if got := sluice(t, "", "serve", "--config", file); got.code != exitFailed || !strings.Contains(got.stderr,
		"start the service with --plans") {
		t.Errorf("without plans: exit %d, %s", got.code, got.stderr)
	}
}

// Guarantees that two services with one Redis hold a limit together exactly, with leases and without, and that a
// service that stops gives back what it has leased.
func TestServeRedis(t *testing.T) {
	for _, leases := range []string{"true", "false"} {
		t.Run("leases="+leases, func(t *testing.T) {
			redis := redistest.Start(t)
			args := []string{"--config", limitsFile(t, 500), "--redis", redis.Addr, "--redis-deadline", "10s",
				"--leases=" +
					leases,
				"--max-instances", "2"}
			both := []*serving{startServe(t, args...), startServe(t, args...)}
			var admitted atomic.Int64
			var group sync.WaitGroup
			for _, s := range both {
				for range 4 {
					group.Go(func() {
						for range 50 {
							if s.ask(t, "tenant", "acme") == rlsv3.RateLimitResponse_OK {
								admitted.Add(1)
							}
						}
					})
				}
			}
			group.Wait()
			both[0].stop()
			if err := <-both[0].done; err != nil {
				t.Errorf("the first service ended with %v", err)
			}
			if n := admitted.Load(); n > 500 || leases == "false" && n != 400 {
				t.Errorf("admitted %d of 400 requests", n)
			}
			// A service that was denied remembers the denial for a moment. Then it gets what the other service has
			// given back.
			for deadline := time.Now().Add(20 * time.Second); admitted.Load() < 500 && time.Now().Before(deadline); {
				if both[1].ask(t, "tenant", "acme") == rlsv3.RateLimitResponse_OK {
					admitted.Add(1)
				}
			}
			for range 300 {
				if both[1].ask(t, "tenant", "acme") == rlsv3.RateLimitResponse_OK {
					admitted.Add(1)
				}
			}
			if n := admitted.Load(); n != 500 {
				t.Errorf("admitted %d, want 500", n)
			}
		})
	}
}

// Guarantees that with a shared store /metrics has metrics of its calls, of leases and of the circuit breaker.
func TestServeMetrics(t *testing.T) {
	redis := redistest.Start(t)
	s := startServe(t, "--config", limitsFile(t, 1000), "--redis", redis.Addr, "--redis-deadline", "10s")
	for range 50 {
		s.ask(t, "tenant", "acme")
	}
	_, _, text := get(t, s.debug+"/metrics", "")
	for _, want := range []string{`sluice_store_call_seconds_count{store="Redis",failed="false"} `,
		`sluice_lease_decisions_total{how="admitted_from_leases"} `,
		`sluice_breaker_open{store="Redis"} 0`, "sluice_instances 1",
		`sluice_fallback_decisions_total{policy="backstop"} 0`} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics lacks %s:\n%s", want, text)
		}
	}
}

// Guarantees that limits are still held while Redis does not answer: the instance answers every request, admits at most
// its part of the limit in addition, and its health says how many decisions it made alone.
func TestServeRedisAway(t *testing.T) {
	redis := redistest.Start(t)
	s := startServe(t, "--config", limitsFile(t, 10), "--redis", redis.Addr, "--redis-deadline", "2s", "--leases=false")
	count := func(requests int) (admitted int) {
		for range requests {
			if s.ask(t, "tenant", "acme") == rlsv3.RateLimitResponse_OK {
				admitted++
			}
		}
		return admitted
	}
	if n := count(5); n != 5 {
		t.Errorf("admitted %d of 5", n)
	}
	redis.Kill()
	if n := count(100); n != 10 {
		t.Errorf("while Redis does not answer, %d of 100 requests are admitted, want 10", n)
	}
	made := regexp.MustCompile(`^OK\n[1-9]\d* decisions since the start were made without the store$`)
	if code, _, text := get(t, s.http+"/healthcheck", ""); code != http.StatusOK || !made.MatchString(text) {
		t.Errorf("health: status %d, %s", code, text)
	}
}

// Guarantees that a limit that counts denied requests, too, is decided while Redis is away as its onStoreFailure says,
// like any other limit: by backstop the instance admits its part.
func TestServeCountDeniedRedisAway(t *testing.T) {
	redis := redistest.Start(t)
	file := filepath.Join(t.TempDir(), "limits.yaml")
	text := "domain: api\ndescriptors:\n  - {key: part, rate_limit: {unit: year, requests_per_unit: 10}}\n"
	for _, policy := range []string{"open", "closed"} {
		text += fmt.Sprintf("  - {key: %s, rate_limit: {unit: year, requests_per_unit: 10}, "+
			"sluice: {onStoreFailure: %s}}\n", policy, policy)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServe(t, "--config", file, "--redis", redis.Addr, "--redis-deadline", "2s", "--count-denied")
	s.ask(t, "part", "x")
	redis.Kill()
	for key, want := range map[string]int{"part": 10, "open": 50, "closed": 0} {
		admitted := 0
		for range 50 {
			if s.ask(t, key, "x") == rlsv3.RateLimitResponse_OK {
				admitted++
			}
		}
		if admitted != want {
			t.Errorf("%s: while Redis does not answer, %d of 50 requests are admitted, want %d", key, admitted, want)
		}
	}
}

// Guarantees that a wrong command line is refused with the name of the flag, and that nothing is started.
func TestServeUsage(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"", "--config is missing"},
		{"--config x --headers all", `invalid argument "all" for "--headers" flag: want exact, plain, both or none`},
		{"--config x --tls-cert y", "--tls-cert and --tls-key need each other"},
		{"--config x --tls-client-ca y", "--tls-client-ca needs --tls-cert"},
		{"--config x --tls-cert y --tls-key z --tls-client-san a", "--tls-client-san needs --tls-client-ca"},
		{"--config x --grpc= --http=", "give at least one an address"},
		{"--config x --grpc 8081", `--grpc "8081" is not HOST:PORT, such as 127.0.0.1:8081, or :8081 for every`},
		{"--config x --http :70000", `--http ":70000": the port "70000" is not a number within 0..65535`},
		{"--config x --debug localhost", `--debug "localhost" is not HOST:PORT`},
		{"--config x --pprof :6060", "--pprof :6060: whoever reaches the profiles"},
		{"--config x --pprof 192.0.2.1:6060", "choose a loopback address, such as 127.0.0.1:6060"},
		{"--config x --near-limit-ratio NaN", "outside 0..1"},
		{"--config x --header-limit X-L:", `--header-limit "X-L:" is not the name of a header`},
		{"--config x --header-reset X(Reset)", `--header-reset "X(Reset)" is not the name of a header`},
		{"--config x --grace 0s", `invalid argument "0s" for "--grace" flag: want 1ms or more`},
		{"--config x --redis-tls", "have no use without --redis"},
		{"--config x --redis a:1,b:2", "--redis-cluster"},
		{"--config x --redis a", "--redis is not HOST:PORT"},
		{"--config x --redis a:1 --redis-password-file y", "would travel in plain text"},
		{"--config x --redis 127.0.0.1:1 --redis-user y", "--redis-user needs --redis-password-file"},
		{"--config x --redis a:1 --redis-ca y", "--redis-ca needs --redis-tls"},
		{"--config x --log-format xml", `invalid argument "xml" for "--log-format" flag: want text or json`},
		{"--config x --max-stats 0", `invalid argument "0" for "--max-stats" flag: want a number within 1..1000000`},
	} {
		got := sluice(t, "", append([]string{"serve"}, strings.Fields(c.args)...)...)
		if got.code != exitUsage || !strings.Contains(got.stderr, c.want) {
			t.Errorf("serve %s: exit %d, %s; want %s", c.args, got.code, got.stderr, c.want)
		}
	}
	got := sluice(t, "", "serve", "--config", "/nowhere/limits.yaml")
	if got.code != exitFailed || !strings.Contains(got.stderr, "/nowhere/limits.yaml") {
		t.Errorf("a missing file: exit %d, %s", got.code, got.stderr)
	}
}

// Guarantees that the command lines in the errors about a missing --config work.
func TestServeExamples(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.WriteFile("plans.yaml", []byte("plans: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{nil, {"--plans", "plans.yaml"}} {
		said := sluice(t, "", append([]string{"serve"}, args...)...).stderr
		example := regexp.MustCompile(`echo '(.*)' > (\S+) && sluice serve (.*)\n$`).FindStringSubmatch(said)
		if example == nil {
			t.Fatalf("serve %q: there is no example in %q", args, said)
		}
		if err := os.WriteFile(example[2], []byte(example[1]+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		s := startServe(t, strings.Fields(example[3])...)
		s.stop()
		if err := <-s.done; err != nil {
			t.Errorf("serve %s: %v", example[3], err)
		}
	}
}

// Guarantees that each row of the tables in docs/envoy.md names tests that exist, and that each flag on the page
// exists.
func TestEnvoyPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/envoy.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{} // package.Test
	for _, dir := range []string{".", "../../internal/server", "../../internal/server/rls",
		"../../internal/server/envoyconfig", "../../internal/server/limits",
		"../../bench/envoypeer", "../../bench/otlppeer", "../../infra"} {
		files, err := filepath.Glob(dir + "/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(dir)
		if dir == "." {
			name = "sluice"
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`).FindAllStringSubmatch(string(text),
				-1) {
				tests[name+"."+f[1]] = true
			}
		}
	}
	named, rows := regexp.MustCompile("`(\\w+\\.(?:Test|Fuzz)\\w+)`"), 0
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "|---") && !strings.HasPrefix(line, "| what |") &&
			!strings.Contains(line, "/v1/") &&
			!strings.Contains(line, "](../") && !strings.HasPrefix(line, "| where |") {
			if rows++; !named.MatchString(line) {
				t.Errorf("a row names no test: %s", line)
			}
		}
	}
	for _, name := range named.FindAllStringSubmatch(string(page), -1) {
		if !tests[name[1]] {
			t.Errorf("there is no test %s", name[1])
		}
	}
	if rows < 25 || len(tests) < 30 {
		t.Errorf("%d rows and %d tests were found", rows, len(tests))
	}
	flags := newServeCommand().Flags()
	for _, name := range regexp.MustCompile("--([a-z][a-z0-9-]+)").FindAllStringSubmatch(string(page), -1) {
		if flags.Lookup(name[1]) == nil {
			t.Errorf("sluice serve has no flag --%s", name[1])
		}
	}
}

// Guarantees that the configuration examples of docs/envoy.md can be loaded.
func TestEnvoyPageExamples(t *testing.T) {
	page, err := os.ReadFile("../../docs/envoy.md")
	if err != nil {
		t.Fatal(err)
	}
	loaded := 0
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		text := block[1]
		if strings.HasPrefix(text, "- key:") {
			text = "domain: api\ndescriptors:\n" + text
		}
		if !strings.Contains(text, "domain: api\n") || strings.HasPrefix(text, "http_filters") {
			continue
		}
		if _, err := envoyconfig.Load([]envoyconfig.File{{Name: "page", Data: []byte(text)}},
			envoyconfig.Options{Mapping: true}); err != nil {
			t.Errorf("%v in\n%s", err, text)
		}
		loaded++
	}
	if loaded != 4 {
		t.Errorf("%d examples were loaded", loaded)
	}
}

// Guarantees that an error about a wrong file names the file, the place and what to do, also for a user who confuses
// the two kinds of files.
func TestServeWrongFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plans := write("plans.yaml", "# plans of our API\nplans: []\n")
	typo := write("typo.yaml", "domain: api\ndescriptors:\n  - key: a\n    rate_limits: {unit: day}\n")
	odd := write("odd.yaml", "domain: api\nzzz: 1\n")
	limits, missing := limitsFile(t, 2), filepath.Join(dir, "missing.yaml")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--config", missing}, exitFailed, missing + ": cannot be read: there is no such file: correct the " +
			"name, or create the file"},
		{[]string{"--config", limits, "--plans", missing}, exitFailed,
			missing + ": cannot be read: there is no such file: correct the name, or create the file"},
		{nil, exitUsage, "--config is missing: it names a file that says what to limit, or a folder of such files"},
		{[]string{"--plans", plans}, exitUsage, "--config is missing: beside the plans, the service needs a file " +
			"with a mapping"},
		{[]string{"--config-table", "t"}, exitUsage, " > map.yaml && sluice serve --config map.yaml " +
			"--config-table t\n"},
		{[]string{"--config", plans}, exitFailed, plans + ": config error, unknown key 'plans', line 2: this is a " +
			"key of a plans file, which --plans wants"},
		{[]string{"--config", typo}, exitFailed, typo + ": config error, unknown key 'rate_limits', line 4: did you " +
			"mean 'rate_limit'?"},
		{[]string{"--config", odd}, exitFailed, odd + ": config error, unknown key 'zzz', line 2\n"},
		{[]string{"--config", limits, "--plans", limits}, exitFailed, limits + ":1:1: the key domain belongs to a " +
			"file for 'sluice serve --config'; a plans file has at least one of plans, tenants, "},
		{[]string{"readme.yaml"}, exitUsage, `"readme.yaml" is not a flag: sluice serve takes flags only. For a ` +
			"configuration file, say --config readme.yaml"},
	} {
		got := sluice(t, "", append([]string{"serve"}, c.args...)...)
		if got.code != c.code || !strings.Contains(got.stderr, c.want) {
			t.Errorf("serve %q: exit %d, %s\nwant exit %d, %s", c.args, got.code, got.stderr, c.code, c.want)
		}
	}
}

// Guarantees that the flags which correspond to settings of envoyproxy/ratelimit have the same effect, and that the
// default ports are the same.
func TestServeFlags(t *testing.T) {
	flags := newServeCommand().Flags()
	for name, want := range map[string]string{"grpc": "127.0.0.1:8081", "http": "127.0.0.1:8080",
		"debug": "127.0.0.1:6070", "pprof": ""} {
		if got := flags.Lookup(name).DefValue; got != want {
			t.Errorf("--%s is %s by default, want %s", name, got, want)
		}
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.yaml": "domain: api\ndescriptors: [{key: a, metadata: {from: a}, rate_limit: {unit: year, " +
			"requests_per_unit: 2}}]\n",
		"b.yaml": "domain: api\ndescriptors: [{key: b, rate_limit: {unit: year, requests_per_unit: 2}}]\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := sluice(t, "", "serve", "--config", dir); got.code != exitFailed ||
		!strings.Contains(got.stderr, "duplicate domain 'api'") {
		t.Errorf("without --merge-domains: exit %d, %s", got.code, got.stderr)
	}
	answer := func(s *serving, hits uint64, keys ...string) *rlsv3.RateLimitResponse {
		t.Helper()
		req := &rlsv3.RateLimitRequest{Domain: "api"}
		for _, key := range keys {
			req.Descriptors = append(req.Descriptors, &ratelimitv3.RateLimitDescriptor{
				HitsAddend: wrapperspb.UInt64(hits),
				Entries:    []*ratelimitv3.RateLimitDescriptor_Entry{{Key: key, Value: "x"}}})
		}
		out, err := s.client.ShouldRateLimit(t.Context(), req, grpc.WaitForReady(true))
		if err != nil {
			t.Fatal(err)
		}
		return out
	}

	s := startServe(t, "--config", dir, "--merge-domains", "--shadow-mode", "--dynamic-metadata", "--headers", "plain",
		"--header-limit", "X-L", "--header-remaining", "X-R", "--header-reset", "X-T", "--near-limit-ratio", "0.4")
	first := answer(s, 1, "a")
	var headers []string
	for _, h := range first.GetResponseHeadersToAdd() {
		headers = append(headers, h.GetKey())
	}
	if got := strings.Join(headers, " "); got != "X-L X-R X-T" {
		t.Errorf("the plain headers are %s", got)
	}
	if m := first.GetDynamicMetadata().AsMap(); m["domain"] != "api" ||
		fmt.Sprint(m["metadata"]) != "map[from:a]" {
		t.Errorf("the dynamic metadata is %v", m)
	}
	answer(s, 1, "a")
	if out := answer(s, 1, "a"); out.GetOverallCode() != rlsv3.RateLimitResponse_OK ||
		out.GetStatuses()[0].GetCode() != rlsv3.RateLimitResponse_OVER_LIMIT {
		t.Errorf("in shadow mode the answer is %v", out)
	}
	if out := answer(s, 1, "b"); out.GetStatuses()[0].GetCurrentLimit() == nil {
		t.Errorf("the second file of the domain has no effect: %v", out)
	}
	if _, _, text := get(t, s.debug+"/stats", ""); !strings.Contains(text,
		"ratelimit.service.rate_limit.api.a.near_limit: 2\n") {
		t.Errorf("--near-limit-ratio has no effect:\n%s", text)
	}

	s = startServe(t, "--config", dir, "--merge-domains", "--quota-mode", "--count-denied", "--max-connection-age",
		"1s")
	answer(s, 3, "a")
	if out := answer(s, 0, "a"); out.GetOverallCode() != rlsv3.RateLimitResponse_OVER_LIMIT {
		t.Errorf("denied hits are not counted: %v", out)
	}
	if out := answer(s, 1, "a", "b"); out.GetOverallCode() != rlsv3.RateLimitResponse_OK ||
		out.GetStatuses()[0].GetCode() != rlsv3.RateLimitResponse_OVER_LIMIT {
		t.Errorf("in quota mode, with one of two limits exceeded, the answer is %v", out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if !s.conn.WaitForStateChange(ctx, connectivity.Ready) {
		t.Error("--max-connection-age does not end the connection")
	}
}
