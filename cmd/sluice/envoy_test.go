package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// patience is how long a test waits for a process to do what it will do.
const patience = 30 * time.Second

// envoy is a real Envoy, in front of an upstream that answers 200.
type envoy struct {
	url    string
	admin  string // the file with the address of its admin port
	client *http.Client
}

// startEnvoy starts the Envoy that SLUICE_ENVOY names, with rate limit services at these ports. It waits 2 s for their
// answers.
func startEnvoy(t *testing.T, services ...int) *envoy {
	t.Helper()
	return startEnvoyThatWaits(t, "2s", services...)
}

// startEnvoyThatWaits starts an Envoy that waits so long for the services' answers, and for those to health checks.
func startEnvoyThatWaits(t *testing.T, wait string, services ...int) *envoy {
	t.Helper()
	program := os.Getenv("SLUICE_ENVOY")
	if program == "" {
		if os.Getenv("REQUIRE_ENVOY") != "" {
			t.Fatal("REQUIRE_ENVOY is set, and SLUICE_ENVOY names no Envoy")
		}
		t.Skip("no Envoy: set SLUICE_ENVOY=$(scripts/envoy)")
	}
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_,
			_ = io.WriteString(w, "hello")
	}))
	t.Cleanup(upstream.Close)
	dir := t.TempDir()
	config, admin := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin")
	file, err := os.Create(config)
	if err != nil {
		t.Fatal(err)
	}
	err = template.Must(template.ParseFiles("testdata/envoy/envoy.yaml.tmpl")).Execute(file,
		map[string]any{"Timeout": wait, "Services": services, "Upstream": upstream.Listener.Addr().(*net.TCPAddr).Port})
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := redistest.Run(nil, log, log, os.Environ(), program, "-c", config, "--admin-address-path", admin,
		"--use-dynamic-base-id", "--concurrency", "1", "-l", "warn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("Envoy's log:\n%s", text)
		}
	})
	e := &envoy{admin: admin, client: &http.Client{Timeout: patience}}
	e.url = "http://" + e.listener(t)
	return e
}

// ask gets a page of Envoy's admin port.
func (e *envoy) ask(path string) ([]byte, error) {
	address, err := os.ReadFile(e.admin)
	if err != nil {
		return nil, err
	}
	resp, err := http.Get("http://" + strings.TrimSpace(string(address)) + path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	return io.ReadAll(resp.Body)
}

// listener returns where Envoy listens.
func (e *envoy) listener(t *testing.T) (address string) {
	t.Helper()
	within(t, "Envoy listens", func() error {
		text, err := e.ask("/listeners")
		name, at, ok := strings.Cut(strings.TrimSpace(string(text)), "::")
		if err == nil && (!ok || name != "in") {
			err = fmt.Errorf("listeners %q", text)
		}
		address = at
		return err
	})
	return address
}

// healthy waits until Envoy takes so many of its rate limit services for healthy.
func (e *envoy) healthy(t *testing.T, services int) {
	t.Helper()
	within(t, "the services are healthy", func() error {
		text, err := e.ask("/clusters")
		n := len(regexp.MustCompile(`(?m)^rls::.*::health_flags::healthy$`).FindAll(text, -1))
		if err == nil && n != services {
			err = fmt.Errorf("%d services are healthy:\n%s", n, text)
		}
		return err
	})
}

// within tries until try succeeds, as long as there is patience.
func within(t *testing.T, what string, try func() error) {
	t.Helper()
	err := try()
	for end := time.Now().Add(patience); err != nil && time.Now().Before(end); {
		<-time.After(10 * time.Millisecond)
		err = try()
	}
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// get asks for a page as a tenant, or as nobody if tenant is "".
func (e *envoy) get(t *testing.T, tenant string) (int, http.Header) {
	t.Helper()
	code, header, _ := e.page(t, tenant)
	return code, header
}

// page is get, and returns the body, too.
func (e *envoy) page(t *testing.T, tenant string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, e.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if tenant != "" {
		req.Header.Set("X-Tenant", tenant)
	}
	resp, err := e.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(body)
}

// servingProcess is a `sluice serve` in a process of its own, which can be killed.
type servingProcess struct {
	*redistest.Process
	ended chan struct{} // closed when the process has ended
}

func serveProcess(t *testing.T, port int, args ...string) *servingProcess {
	t.Helper()
	args = append([]string{"serve", "--grpc", fmt.Sprint("127.0.0.1:", port), "--http=", "--debug="}, args...)
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p, err := redistest.Run(nil, in, in, append(os.Environ(), argsEnv+"="+strings.Join(args, "\n")), os.Args[0])
	_ = in.Close() // the process has its own
	if err != nil {
		t.Fatal(err)
	}
	s := &servingProcess{p, make(chan struct{})}
	var log strings.Builder
	go func() {
		_, _ = io.Copy(&log, out) // until the process ends
		_ = out.Close()           // it was only read
		close(s.ended)
	}()
	t.Cleanup(func() {
		p.Kill()
		<-s.ended
		if t.Failed() {
			t.Logf("log of the service on port %d:\n%s", port, log.String())
		}
	})
	return s
}

// ready waits until Envoy gets answers of its rate limit service.
func (e *envoy) ready(t *testing.T) {
	t.Helper()
	within(t, "the rate limit service answers Envoy", func() error {
		if code, _ := e.get(t, "probe"); code != http.StatusOK {
			return fmt.Errorf("status %d", code)
		}
		return nil
	})
}

const envoyLimits = "domain: api\ndescriptors:\n" +
	"  - {key: tenant, value: probe, rate_limit: {unlimited: true}}\n" +
	"  - {key: tenant, rate_limit: {unit: year, requests_per_unit: 3}}\n" +
	"  - {key: tenant, value: many, rate_limit: {unit: year, requests_per_unit: 300}}\n"

func envoyLimitsFile(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(name, []byte(envoyLimits), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// Guarantees what clients behind a real Envoy see: 200s, then 429s, with the headers of Envoy and ours; that requests
// without a descriptor are not limited; that Envoy denies while the service is dead (failure_mode_deny); and that a
// service that was killed and started again goes on counting where it was.
func TestEnvoy(t *testing.T) {
	port := redistest.FreePort(t)
	e := startEnvoy(t, port)
	redis := redistest.Start(t)
	args := []string{"--config", envoyLimitsFile(t), "--redis", redis.Addr, "--redis-deadline", "10s", "--leases=false",
		"--headers", "both"}
	service := serveProcess(t, port, args...)
	e.ready(t)

	seconds := regexp.MustCompile(`\b\d{5,}\b`) // those until the year ends
	check := func(i, status int, want map[string]string) {
		t.Helper()
		code, h := e.get(t, "acme")
		if code != status {
			t.Errorf("request %d: status %d, want %d", i, code, status)
		}
		for name, value := range want {
			if got := seconds.ReplaceAllString(h.Get(name), "S"); got != value {
				t.Errorf("request %d: %s is %q, want %q", i, name, got, value)
			}
		}
	}
	for i, left := range []string{"2", "1", "0"} {
		check(i, 200, map[string]string{
			"X-Ratelimit-Limit": `3, 3;w=S`, "X-Ratelimit-Remaining": left, "X-Ratelimit-Reset": "S",
			"X-Envoy-Ratelimited": "",
			"Ratelimit":           `"tenant";r=` + left + `;t=S`, "Ratelimit-Policy": `"tenant";q=3;w=S`,
			"Retry-After":     "",
			"Ratelimit-Limit": "3", "Ratelimit-Remaining": left, "Ratelimit-Reset": "S",
		})
	}
	denied := map[string]string{
		"X-Ratelimit-Limit": `3, 3;w=S`, "X-Ratelimit-Remaining": "0", "X-Envoy-Ratelimited": "true",
		"Retry-After": "S",
		"Ratelimit":   `"tenant";r=0;t=S`, "Ratelimit-Policy": `"tenant";q=3;w=S`,
	}
	check(3, 429, denied)
	if code, _ := e.get(t, ""); code != 200 {
		t.Errorf("without a descriptor: %d", code)
	}

	service.Kill()
	within(t, "Envoy sees that the service is dead", func() error {
		if code, _ := e.get(t, "acme"); code != http.StatusInternalServerError {
			return fmt.Errorf("status %d", code)
		}
		return nil
	})
	if code, _ := e.get(t, ""); code != 200 {
		t.Errorf("without a descriptor, and without the service: %d", code)
	}
	serveProcess(t, port, args...)
	e.ready(t)
	check(4, 429, denied)
	code, h := e.get(t, "globex")
	if code != 200 || h.Get("X-Ratelimit-Remaining") != "2" {
		t.Errorf("another tenant: %d, %s left", code, h.Get("X-Ratelimit-Remaining"))
	}
}

// Guarantees that Envoy denies while the service is frozen (failure_mode_deny), that it goes on when the service does,
// and that what the service was asked meanwhile lets nobody over the limit.
func TestEnvoyPaused(t *testing.T) {
	port := redistest.FreePort(t)
	e := startEnvoy(t, port)
	service := serveProcess(t, port, "--config", envoyLimitsFile(t))
	e.ready(t)
	admitted := 0
	ask := func() int {
		t.Helper()
		code, _ := e.get(t, "acme")
		if code == http.StatusOK {
			admitted++
		}
		return code
	}
	if code := ask(); code != http.StatusOK {
		t.Errorf("the first request: %d", code)
	}
	if err := service.Freeze(); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if code := ask(); code != http.StatusInternalServerError {
			t.Errorf("request %d while the service is frozen: %d", i, code)
		}
	}
	if err := service.Thaw(); err != nil {
		t.Fatal(err)
	}
	e.ready(t)
	for range 5 {
		ask()
	}
	if code := ask(); code != http.StatusTooManyRequests || admitted < 1 || admitted > 3 {
		t.Errorf("%d requests were admitted, and the last is %d", admitted, code)
	}
}

// Guarantees that behind a real Envoy the plan of a tenant decides, and that clients get the body of its denial.
func TestEnvoyPlans(t *testing.T) {
	dir := t.TempDir()
	file, plans := filepath.Join(dir, "limits.yaml"), filepath.Join(dir, "plans.yaml")
	for name, text := range map[string]string{
		file: "domain: api\nsluice: {mapping: {tenant: tenant}}\n",
		plans: "plans: [ { id: free, limits: [] }, { id: p, limits: [ { id: total, quota: { units: 2, every: year } " +
			"} ] } ]\n" + "tenants: [ { id: acme, plan: p }, { id: probe, plan: free } ]\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	port := redistest.FreePort(t)
	e := startEnvoy(t, port)
	serveProcess(t, port, "--config", file, "--plans", plans)
	e.ready(t)
	for i, left := range []string{"1", "0"} {
		if code, h := e.get(t, "acme"); code != 200 || !strings.HasPrefix(h.Get("Ratelimit"), `"total";r=`+left+";t=") {
			t.Errorf("request %d: %d, %v", i, code, h)
		}
	}
	code, h, body := e.page(t, "acme")
	if code != 429 || h.Get("Retry-After") == "" || h.Get("X-Ratelimit-Remaining") != "0" ||
		strings.Join(h.Values("Content-Type"), ",") != "application/problem+json" ||
		!strings.Contains(body, `"total"`) {
		t.Errorf("denied: %d, %v, %s", code, h, body)
	}
	if code, _, body = e.page(t, "nobody"); code != 429 || !strings.Contains(body, `"status":403`) {
		t.Errorf("an unknown tenant: %d, %s", code, body)
	}
}

// Guarantees that two services are restarted one after the other under requests without one that fails, and without one
// too many or too few that is admitted.
//
// None of Envoy's timeouts may end on a busy machine. Where a health check took longer than its timeout, Envoy would
// take the service that stays for dead while the other one drains, and where an answer did, it would deny the request.
// The services drain for 4 s: Envoy checks their health ten times a second.
func TestEnvoyRollingRestart(t *testing.T) {
	ports := []int{redistest.FreePort(t), redistest.FreePort(t)}
	e := startEnvoyThatWaits(t, "20s", ports...)
	redis := redistest.Start(t)
	args := []string{"--config", envoyLimitsFile(t), "--redis", redis.Addr, "--redis-deadline", "10s", "--drain", "4s",
		"--leases=false"}
	services := []*servingProcess{serveProcess(t, ports[0], args...), serveProcess(t, ports[1], args...)}
	e.ready(t)
	admitted, denied := 0, 0
	ask := func() {
		t.Helper()
		switch code, _ := e.get(t, "many"); code {
		case 200:
			admitted++
		case 429:
			denied++
		default:
			hosts, err := e.ask("/clusters")
			t.Fatalf("status %d after %d requests; the clusters, %v:\n%s", code, admitted+denied, err, hosts)
		}
	}
	for range 50 {
		ask()
	}
	for i, port := range ports {
		e.healthy(t, len(ports))
		if err := services[i].Terminate(); err != nil {
			t.Fatal(err)
		}
		for running := true; running; {
			ask()
			select {
			case <-services[i].ended:
				running = false
			case <-time.After(20 * time.Millisecond):
			}
		}
		services[i] = serveProcess(t, port, args...)
		for range 20 {
			ask()
		}
	}
	for range 300 {
		ask()
	}
	if admitted != 300 {
		t.Errorf("admitted %d and denied %d, want 300 admitted", admitted, denied)
	}
}
