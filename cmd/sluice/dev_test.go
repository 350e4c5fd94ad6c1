package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// output holds what a command wrote. It can be read while the command runs.
type output struct {
	mu   sync.Mutex
	b    bytes.Buffer
	grew chan struct{}
}

func newOutput() *output { return &output{grew: make(chan struct{}, 1)} }

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.grew <- struct{}{}:
	default:
	}
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// running is a `sluice dev` in this process.
type running struct {
	base           string
	stdout, stderr *output
	stop           context.CancelFunc
	done           chan error
}

// startDev runs the command on a free port, and waits until it has printed what to try.
func startDev(t *testing.T, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{stdout: newOutput(), stderr: newOutput(), stop: cancel, done: make(chan error, 1)}
	root := newRootCommand()
	root.SetArgs(append([]string{"dev", "--listen", "127.0.0.1:0"}, args...))
	root.SetOut(r.stdout)
	root.SetErr(r.stderr)
	ended := make(chan struct{})
	go func() {
		r.done <- root.ExecuteContext(ctx)
		close(ended)
	}()
	t.Cleanup(func() { // the command writes to folders of the test until it ends
		clients.CloseIdleConnections()
		cancel()
		<-ended
	})
	for !strings.Contains(r.stdout.String(), "listens on") {
		select {
		case <-r.stdout.grew:
		case err := <-r.done:
			t.Fatalf("sluice dev %q ended: %v\n%s", args, err, r.stderr)
		case <-time.After(patience):
			t.Fatalf("sluice dev %q prints nothing to try\n%s", args, r.stderr)
		}
	}
	r.base = regexp.MustCompile(`listens on (\S+)`).FindStringSubmatch(r.stdout.String())[1]
	return r
}

// finish stops the command and returns its error.
func (r *running) finish(t *testing.T) error {
	t.Helper()
	clients.CloseIdleConnections()
	r.stop()
	select {
	case err := <-r.done:
		return err
	case <-time.After(patience):
		t.Fatalf("sluice dev does not stop\n%s", r.stderr)
		return nil
	}
}

// clients holds the connections of the tests' HTTP clients, one for each client that a test runs at a time. A server
// that stops waits 5 s for a connection on which no request was sent, so tests close these first.
var clients = &http.Transport{MaxIdleConnsPerHost: 32}

// send sends a request, and reads the whole answer.
func send(req *http.Request) (status int, header http.Header, body string, err error) {
	resp, err := clients.RoundTrip(req)
	if err != nil {
		return 0, nil, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, string(text), err
}

func get(t *testing.T, url, key string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequest("GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("X-API-Key", key)
	}
	status, header, body, err := send(req)
	if err != nil {
		t.Fatal(err)
	}
	return status, header, body
}

var curlLine = regexp.MustCompile(`(?m)^  curl -i (?:-H "X-API-Key: (\S+)" )?(\S+)$`)

// runLines runs what dev prints for each of the three tenants of the example and for a request without a key.
func runLines(t *testing.T, lines [][]string) {
	t.Helper()
	for i, want := range []int{200, 200, 403, 401} {
		if code, _, body := get(t, lines[i][2], lines[i][1]); code != want {
			t.Errorf("%s: status %d, want %d: %s", lines[i][0], code, want, body)
		}
	}
}

// Every printed command gives the answer that is printed beside it with several cells, too. Each cell grants a limit
// that is too small to be divided between them.
func TestDevCellsWithoutFlags(t *testing.T) {
	t.Parallel()
	r := startDev(t, "--cells", "3")
	lines := curlLine.FindAllStringSubmatch(r.stdout.String(), -1)
	if len(lines) != 4 {
		t.Fatalf("%d curl lines, want one for each of 3 tenants and one without a key:\n%s", len(lines), r.stdout)
	}
	runLines(t, lines)
	cells := cellLine.FindAllStringSubmatch(r.stdout.String(), -1)
	if len(cells) != 3 {
		t.Fatalf("%d cells are printed, want 3:\n%s", len(cells), r.stdout)
	}
	for _, c := range cells { // globex has a burst of 5
		if code, _, body := get(t, c[1]+"/product/1", lines[1][1]); code != http.StatusOK {
			t.Errorf("the cell at %s answers globex with status %d: %s", c[1], code, body)
		}
	}
}

var cellLine = regexp.MustCompile(`(?m)^  cell +\S+ at (\S+)$`)

// Without flags, every printed command gives the answer that is printed beside it.
func TestDevWithoutFlags(t *testing.T) {
	r := startDev(t)
	lines := curlLine.FindAllStringSubmatch(r.stdout.String(), -1)
	if len(lines) != 4 {
		t.Fatalf("%d curl lines, want one for each of 3 tenants and one without a key:\n%s", len(lines), r.stdout)
	}
	runLines(t, lines)
	loop := regexp.MustCompile(
		`for i in ([\d ]+); do curl .* -H "X-API-Key: (\S+)" (\S+); done`).FindStringSubmatch(r.stdout.String())
	if loop == nil {
		t.Fatalf("no loop:\n%s", r.stdout)
	}
	denied := 0
	for range strings.Fields(loop[1]) {
		code, h, body := get(t, loop[3], loop[2])
		if code != 429 {
			continue
		}
		denied++
		seconds, err := strconv.Atoi(h.Get("Retry-After"))
		var ms int
		if m := regexp.MustCompile(`"retry-after-ms":(\d+)`).FindStringSubmatch(body); m != nil {
			ms, _ = strconv.Atoi(m[1])
		}
		if err != nil || ms < 1 || seconds*1000 < ms {
			t.Errorf("Retry-After %q, retry-after-ms %d in %s", h.Get("Retry-After"), ms, body)
		}
	}
	if denied < 2 { // 9 requests, a burst of 5, and one unit more each second
		t.Errorf("%d of the loop's requests were denied, want 3 or so", denied)
	}
	if code, _, body := get(t, r.base+"/_sluice/", ""); code != 200 || !strings.Contains(body, "<html") {
		t.Errorf("live page: %d %.100s", code, body)
	}
	if code, _, body := get(t, r.base+"/_sluice/data.json", ""); code != 200 || !strings.Contains(body, `"globex"`) {
		t.Errorf("live data: %d %.300s", code, body)
	}
	if err := r.finish(t); err != nil {
		t.Errorf("stopping gives %v, want nil", err)
	}
	if log := r.stderr.String(); strings.Contains(log, "slk_") || strings.Contains(log, "127.0.0.1") {
		t.Errorf("the log holds a key or an address: %s", log)
	}
}

// edited returns the text with its first old replaced with by. It fails the test if the text has no old, because the
// test would then change nothing.
func edited(t *testing.T, text, old, by string) string {
	t.Helper()
	if !strings.Contains(text, old) {
		t.Fatalf("the plans do not have %q, which this test replaces by %q", old, by)
	}
	return strings.Replace(text, old, by, 1)
}

// Guarantees that an edit of the plans file changes limits while the gateway runs, and that counters survive it.
func TestDevReloads(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "plans.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := edited(t, string(examplePlans), "rate: 1\n        period: 1s\n", "rate: 1\n        period: 1h\n")
	write(text)
	r := startDev(t, "--plans", file)
	key := identity.ExampleKey("globex")
	for i := range 5 {
		if code, _, body := get(t, r.base, key); code != 200 {
			t.Fatalf("request %d: status %d, body %s", i+1, code, body)
		}
	}
	write(edited(t, text, "burst: 5", "burst: 7"))
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(10 * time.Second); ; {
		code, h, _ := get(t, r.base, key)
		if h.Get("X-RateLimit-Limit") == "7" {
			if code != 200 {
				t.Errorf("5 of 5 were used, and the burst was raised to 7: status %d, want 200", code)
			}
			break
		}
		if code != 429 {
			t.Fatalf("an empty bucket gives status %d, want 429", code)
		}
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("the change is not in force after 10 s\n%s", r.stderr)
		}
	}
	for _, want := range []int{200, 429} {
		if code, _, _ := get(t, r.base, key); code != want {
			t.Errorf("after 5 of 5 and 1 of the raised burst of 7: status %d, want %d", code, want)
		}
	}
	if err := r.finish(t); err != nil {
		t.Error(err)
	}
}

// A request in flight gets its answer before the command ends.
func TestDevStopsGracefully(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}), make(chan struct{})
	upstream := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(entered)
		<-release
		fmt.Fprint(w, "done")
	})}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = upstream.Serve(ln) }() // ends with Close
	defer upstream.Close()
	r := startDev(t, "--upstream", "http://"+ln.Addr().String())
	answer := make(chan string, 1)
	go func() {
		code, _, body := get(t, r.base, identity.ExampleKey("acme"))
		answer <- fmt.Sprint(code, " ", body)
	}()
	<-entered
	r.stop()
	for !strings.Contains(r.stderr.String(), "stopping") {
		<-r.stderr.grew
	}
	select {
	case err := <-r.done:
		t.Fatalf("ended with a request in flight: %v", err)
	default:
	}
	close(release)
	if got := <-answer; got != "200 done" {
		t.Errorf("the request in flight got %q, want 200 done", got)
	}
	if err := r.finish(t); err != nil {
		t.Error(err)
	}
}

// Guarantees that a second signal ends the command without a wait for requests in flight.
func TestDevStopsAtOnceOnASecondSignal(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	upstream := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(entered)
		<-release
	})}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = upstream.Serve(ln) }() // ends with Close
	defer upstream.Close()
	defer close(release)
	r := startDev(t, "--upstream", "http://"+ln.Addr().String())
	go func() {
		req, _ := http.NewRequest("GET", r.base, nil)
		req.Header.Set("X-API-Key", identity.ExampleKey("acme"))
		if resp, err := http.DefaultTransport.RoundTrip(req); err == nil { // the connection must be cut
			resp.Body.Close()
		}
	}()
	<-entered
	r.stop()
	for !strings.Contains(r.stderr.String(), "stopping") { // logged as soon as a second signal is noticed
		<-r.stderr.grew
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-r.done:
		if err == nil || !strings.Contains(err.Error(), "second signal") {
			t.Errorf("ended with %v, want the second signal", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("still running after a second signal")
	}
}

// The exit status is 2 for a wrong command line, and 1 for a file or a machine that does not fit.
func TestDevExitCodes(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("plans: 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	short := filepath.Join(t.TempDir(), "short.pepper")
	if err := os.WriteFile(short, []byte("short\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want int
		text string
	}{
		{[]string{"--listen", ln.Addr().String()}, 1, "another program uses that port"},
		{[]string{"--listen", "nonsense"}, 2, `--listen "nonsense" is not HOST:PORT`},
		{[]string{"--listen", "8081"}, 2, ":8081 for every address"},
		{[]string{"--listen", "127.0.0.1:80800"}, 2, `the port "80800" is not a number within 0..65535`},
		{[]string{"--upstream", "localhost:3000"}, 2, "h2c://HOST, such as http://localhost:3000"},
		{[]string{"--upstream", "127.0.0.1:9"}, 2, "h2c://HOST, such as http://127.0.0.1:9"},
		{[]string{"--upstream", "ftp://host"}, 2, "want http://HOST"},
		{[]string{"--upstream", "http://"}, 2, "has no host"},
		{[]string{"--plans", filepath.Join(t.TempDir(), "missing.yaml")}, 1, "missing.yaml"},
		{[]string{"--plans", bad}, 1, "bad.yaml:1:8"},
		{[]string{"--pepper", "prod=" + short}, 1, "has 5 bytes; want 16..4096"},
		{[]string{"--pepper", "prod=missing.txt"}, 1,
			"--pepper prod=missing.txt: there is no such file: correct the name"},
		{[]string{"--pepper", "prod"}, 2, "want ID=FILE"},
		{[]string{"--pepper", "dev=x"}, 2, "built in; choose another id"},
		{[]string{"--trusted-hops", "-1"}, 2, "within 0..16"},
		{[]string{"--live-page", "some"}, 2, "want loopback, all or off"},
		{[]string{"--log-level", "loud"}, 2, "want debug, info, warn or error"},
		{[]string{"--nope"}, 2, "unknown flag"},
		{[]string{"extra"}, 2, "unknown command"},
		{[]string{"--plans", "-"}, 2, "want the name of a file"},
	} {
		args := []string{"dev"}
		if !slices.Contains(c.args, "--listen") { // the default port may be in use
			args = append(args, "--listen", "127.0.0.1:0")
		}
		stderr := captureStderr(t, func() {
			if got := run(append(args, c.args...)); got != c.want {
				t.Errorf("sluice dev %q exits with %d, want %d", c.args, got, c.want)
			}
		})
		if !strings.Contains(stderr, c.text) || strings.Contains(stderr, "goroutine") {
			t.Errorf("sluice dev %q prints %q, want it to contain %q", c.args, stderr, c.text)
		}
	}
}

// captureStderr returns what f writes to the standard error of the process.
func captureStderr(t *testing.T, f func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	old := os.Stderr
	os.Stderr = w
	text := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(r) // a pipe of our own
		text <- string(b)
	}()
	func() {
		defer func() { os.Stderr = old; w.Close() }()
		f()
	}()
	return <-text
}

// Guarantees that the hashes in the example are those of the printed keys, and that the file means what its comments
// say.
func TestExamplePlans(t *testing.T) {
	cfg, err := plan.Parse(configyaml.Source("example.yaml", examplePlans))
	if err != nil {
		t.Fatal(err)
	}
	if w := cfg.Warnings(); len(w) > 0 {
		t.Errorf("the example has warnings: %v", w)
	}
	for _, k := range cfg.Keys() {
		if want := identity.HashKey(identity.DevPepper(), identity.ExampleKey(k.Tenant)); k.Hash != want ||
			k.Pepper != "dev" {
			t.Errorf("key %s has hash %s, want %s", k.ID, k.Hash, want)
		}
	}
	if len(cfg.Keys()) != 3 || len(cfg.Tenants()) != 3 || len(cfg.IPLimits().Limits) != 1 {
		t.Errorf("the example has %d keys, %d tenants, %d ipLimits", len(cfg.Keys()), len(cfg.Tenants()),
			len(cfg.IPLimits().Limits))
	}
}

// As long as there is no API key, the credentials of requests reach the upstream unchecked. With the first key, they
// are checked.
func TestDevWithoutKeys(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("X-Api-Key"))
	}))
	t.Cleanup(upstream.Close)
	const own = "the-upstreams-own-key"
	file := filepath.Join(t.TempDir(), "plans.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("ipLimits: [ { id: per-address, algorithm: token_bucket, rate: 1000, period: 1s, burst: 100000 } ]\n")
	r := startDev(t, "--plans", file, "--upstream", upstream.URL)
	for _, key := range []string{own, ""} {
		if code, h, body := get(t, r.base, key); code != 200 || body != key || h.Get("RateLimit") == "" {
			t.Errorf("with key %q: status %d, headers %v, and the upstream gets the key %q", key, code, h, body)
		}
	}
	if out := r.stdout.String(); strings.Contains(out, "Every call is refused") || !curlLine.MatchString(out) {
		t.Errorf("nothing to try is printed: %s", out)
	}
	write("plans: [ { id: p, limits: [] } ]\ntenants: [ { id: acme, plan: p } ]\nkeys: [ { id: k, tenant: acme, " +
		"pepper: dev, hash: " +
		identity.HashKey(identity.DevPepper(), identity.ExampleKey("acme")) + " } ]\n")
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(10 * time.Second); ; {
		if code, _, body := get(t, r.base, own); code == 401 && strings.Contains(body, "bad-credential") {
			break
		}
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("10 s after the first key was added, an unknown key is still admitted\n%s", r.stderr)
		}
	}
	if code, _, body := get(t, r.base, identity.ExampleKey("acme")); code != 200 || body != "" {
		t.Errorf("the new key gives status %d, and the upstream gets %q", code, body)
	}
	if code, _, body := get(t, r.base, ""); code != 401 {
		t.Errorf("without a key: status %d, body %s", code, body)
	}
}
